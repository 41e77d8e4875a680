"""Answers to the prediction of buckets: weights, buffers, gradients, optimizer state, activations."""

import copy

import torch
from torch import nn

from gpulab.check.lesson04.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("memory_buckets", SECTIONS)
STATES = {"sgd": 0, "momentum": 1, "adamw": 2}


def ptr(tensor):
    return tensor.untyped_storage().data_ptr()


def saved_by(model, inputs, amp):
    """Everything that autograd saves in a forward pass, as often as it does, and the output."""
    saved = []

    def pack(tensor):
        saved.append(tensor.detach())
        return saved[-1]

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=amp):
        output = model(inputs)
    return saved, output


def known(model, inputs):
    return {ptr(t) for t in [*model.parameters(), *model.buffers(), inputs]}


def activations(model, inputs, amp):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = known(twin, inputs)
    return sum({ptr(t): t.untyped_storage().nbytes() for t in saved if ptr(t) not in leave}.values())


def right(model, inputs, optimizer="adamw", amp=False, **other):
    """The buckets; `other` replaces some of them."""
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    buckets = {
        "weights": sum(p.nbytes for p in model.parameters()),
        "buffers": sum(b.nbytes for b in model.buffers()),
        "gradients": gradients,
        "optimizer_state": STATES[optimizer] * gradients,
    }
    return {**buckets, **({} if "activations" in other else {"activations": activations(model, inputs, amp)}), **other}


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def arithmetic_and_one_pass(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp)


@BANK.right
def does_a_step_on_a_copy(model, inputs, optimizer, amp):
    model = copy.deepcopy(model)
    saved, output = saved_by(model, inputs, amp)
    leave = known(model, inputs)
    kept = {ptr(t): t.untyped_storage().nbytes() for t in saved}
    make = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
        "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        "adamw": torch.optim.AdamW,
    }
    optimizer = make[optimizer](model.parameters())
    output.float().sum().backward()
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "buffers": sum(b.nbytes for b in model.buffers()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer_state": sum(t.nbytes for t in states if t.dim()),
        "activations": sum(n for address, n in kept.items() if address not in leave),
    }


@BANK.right
def puts_the_buffers_back(model, inputs, optimizer, amp):
    """The pass runs on the model itself."""
    before = {name: b.clone() for name, b in model.named_buffers()}
    saved, output = saved_by(model, inputs, amp)
    leave = known(model, inputs)
    kept = sum({ptr(t): t.untyped_storage().nbytes() for t in saved if ptr(t) not in leave}.values())
    del output
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    return right(model, inputs, optimizer, amp, activations=kept)


# --- wrong: weights and buffers ------------------------------------------------------------------------


def each_modules_own(model):
    return [p for module in model.modules() for p in module.parameters(recurse=False)]


@BANK.wrong("tied weights are counted twice", "model.parameters() names it once")
def counts_tied_weights_twice(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, weights=sum(p.nbytes for p in each_modules_own(model)))


@BANK.wrong("frozen parameters are not counted as weights", "they are in memory")
def forgets_frozen_weights(model, inputs, optimizer="adamw", amp=False):
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, weights=trained)


@BANK.wrong("elements are counted, not bytes", "p.nbytes")
def counts_elements(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, weights=sum(p.numel() for p in model.parameters()))


@BANK.wrong("every parameter is taken for float32", "2 in bfloat16")
def four_bytes_each(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, weights=4 * sum(p.numel() for p in model.parameters()))


@BANK.wrong("the weights are halved under autocast", "weights, gradients and states stay as they are")
def halves_everything(model, inputs, optimizer="adamw", amp=False):
    buckets = right(model, inputs, optimizer, amp)
    return {name: n // 2 for name, n in right(model, inputs, optimizer, False).items()} if amp else buckets


@BANK.wrong("the buffers are forgotten", "running statistics and tables")
def forgets_buffers(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, buffers=0)


@BANK.wrong("the buffers are counted as weights", "a bucket of their own")
def buffers_among_weights(model, inputs, optimizer="adamw", amp=False):
    both = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    return right(model, inputs, optimizer, amp, weights=both, buffers=0)


@BANK.wrong("buffers that are not saved are forgotten", "persistent=False")
def buffers_of_the_state_dict(model, inputs, optimizer="adamw", amp=False):
    parameters = dict(model.named_parameters(remove_duplicate=False))
    saved = sum(t.nbytes for name, t in model.state_dict().items() if name not in parameters)
    return right(model, inputs, optimizer, amp, buffers=saved)


@BANK.wrong("every buffer is taken for float32", "counters are int64")
def buffers_of_four_bytes(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, buffers=4 * sum(b.numel() for b in model.buffers()))


@BANK.wrong("a buffer that two modules have is counted twice", "model.buffers() names it once")
def counts_shared_buffers_twice(model, inputs, optimizer="adamw", amp=False):
    every = sum(b.nbytes for module in model.modules() for b in module.buffers(recurse=False))
    return right(model, inputs, optimizer, amp, buffers=every)


@BANK.wrong("weights is not an int", "int(…) makes one of a float")
def counts_in_floats(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, weights=sum(8 * p.nbytes / 8 for p in model.parameters()))


@BANK.wrong("weights is in MiB, not in bytes", "asks for bytes")
def in_mib(model, inputs, optimizer="adamw", amp=False):
    return {name: n / 2**20 for name, n in right(model, inputs, optimizer, amp).items()}


# --- wrong: gradients and optimizer state --------------------------------------------------------------


@BANK.wrong("frozen parameters are given gradients", "where requires_grad is False")
def gradients_for_all(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, gradients=sum(p.nbytes for p in model.parameters()))


@BANK.wrong("the gradients are halved under autocast", "a gradient has its parameter's dtype")
def gradients_of_two_bytes(model, inputs, optimizer="adamw", amp=False):
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, gradients=gradients // 2 if amp else gradients)


@BANK.wrong("every gradient is taken for float32", "the dtype of its parameter")
def gradients_of_four_bytes(model, inputs, optimizer="adamw", amp=False):
    elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, gradients=4 * elements)


@BANK.wrong("no gradients are predicted", "predict what backward will leave")
def gradients_of_now(model, inputs, optimizer="adamw", amp=False):
    now = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return right(model, inputs, optimizer, amp, gradients=now)


@BANK.wrong("tied weights get two gradients")
def two_gradients_for_tied_weights(model, inputs, optimizer="adamw", amp=False):
    twice = sum(p.nbytes for p in each_modules_own(model) if p.requires_grad)
    return right(model, inputs, optimizer, amp, gradients=twice)


@BANK.wrong("the optimizer state is halved under autocast", "autocast does not halve the state")
def halves_the_state(model, inputs, optimizer="adamw", amp=False):
    buckets = right(model, inputs, optimizer, amp)
    return buckets | ({"optimizer_state": buckets["optimizer_state"] // 2} if amp else {})


@BANK.wrong("the state of every parameter is taken for float32", "the dtype of its parameter")
def states_of_four_bytes(model, inputs, optimizer="adamw", amp=False):
    elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, optimizer_state=4 * STATES[optimizer] * elements)


@BANK.wrong("one Adam moment is counted, not two", "one of its square")
def one_moment(model, inputs, optimizer="adamw", amp=False):
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, optimizer_state=gradients * min(STATES[optimizer], 1))


@BANK.wrong("frozen parameters are given optimizer state", "skipped by step()")
def state_for_all(model, inputs, optimizer="adamw", amp=False):
    every = sum(p.nbytes for p in model.parameters())
    return right(model, inputs, optimizer, amp, optimizer_state=every * STATES[optimizer])


@BANK.wrong("every optimizer is taken for Adam", "one value for each weight with momentum")
def always_adam(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, "adamw", amp)


@BANK.wrong("no optimizer state is predicted", "before the first step there is none")
def no_state_yet(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, amp, optimizer_state=0)


@BANK.wrong("the gradients are counted as optimizer state", "a bucket of their own: Adam's")
def three_times_the_weights(model, inputs, optimizer="adamw", amp=False):
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, optimizer_state=(STATES[optimizer] + 1) * gradients)


# --- wrong: activations --------------------------------------------------------------------------------


@BANK.wrong("activations are taken for the sum of the modules' outputs", "masks, indices and statistics")
def sums_outputs(model, inputs, optimizer="adamw", amp=False):
    twin, outputs = copy.deepcopy(model), []
    for module in twin.modules():
        module.register_forward_hook(lambda module, args, out: outputs.append(out.nbytes))
    saved_by(twin, inputs, amp)
    return right(model, inputs, optimizer, amp, activations=sum(outputs))


@BANK.wrong("shared storage is counted more than once", "count each storage once")
def counts_every_save(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = known(twin, inputs)
    return right(model, inputs, optimizer, amp, activations=sum(t.nbytes for t in saved if ptr(t) not in leave))


@BANK.wrong("all that is saved is added up: weights, inputs and shared storage too")
def adds_up_all(model, inputs, optimizer="adamw", amp=False):
    saved, _ = saved_by(copy.deepcopy(model), inputs, amp)
    return right(model, inputs, optimizer, amp, activations=sum(t.nbytes for t in saved))


@BANK.wrong("saved weights or inputs are counted as activations", "leave out the storages of parameters, buffers")
def counts_what_was_there(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    return right(
        model, inputs, optimizer, amp,
        activations=sum({ptr(t): t.untyped_storage().nbytes() for t in saved}.values()),
    )  # fmt: skip


@BANK.wrong("saved weights are counted as activations", "leave out the storages of parameters and buffers")
def takes_addresses_from_the_model_not_the_copy(model, inputs, optimizer="adamw", amp=False):
    saved, _ = saved_by(copy.deepcopy(model), inputs, amp)
    leave = known(model, inputs)
    kept = sum({ptr(t): t.untyped_storage().nbytes() for t in saved if ptr(t) not in leave}.values())
    return right(model, inputs, optimizer, amp, activations=kept)


@BANK.wrong("masks and indices are forgotten", "the place of each maximum")
def counts_floats_only(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = known(twin, inputs)
    kept = {ptr(t): t.untyped_storage().nbytes() for t in saved if ptr(t) not in leave and t.is_floating_point()}
    return right(model, inputs, optimizer, amp, activations=sum(kept.values()))


@BANK.wrong("the activations are those of evaluation mode", "there is no mask")
def counts_in_eval(model, inputs, optimizer="adamw", amp=False):
    quiet = copy.deepcopy(model).eval()
    return right(model, inputs, optimizer, amp, activations=activations(quiet, inputs, amp))


@BANK.wrong("no activations are predicted", "under no_grad nothing is kept")
def under_no_grad(model, inputs, optimizer="adamw", amp=False):
    with torch.no_grad():
        return right(model, inputs, optimizer, amp)


@BANK.wrong("the activations are those of float32, though the pass runs under autocast", "torch.autocast(device_type")
def ignores_autocast(model, inputs, optimizer="adamw", amp=False):
    return right(model, inputs, optimizer, False)


OF_ANOTHER_DEVICE = "the activations are those of float32: autocast is on for another type of device, or for none"


@BANK.wrong(OF_ANOTHER_DEVICE, "torch.autocast(inputs.device.type")
def autocast_of_the_machines_gpu(model, inputs, optimizer="adamw", amp=False):
    there = "cuda" if torch.cuda.is_available() else "cpu"
    kept = activations(model, inputs, amp and inputs.device.type == there)
    return right(model, inputs, optimizer, amp, activations=kept)


@BANK.wrong(OF_ANOTHER_DEVICE, "torch.autocast(inputs.device.type", same_as="autocast_of_the_machines_gpu")
def autocast_of_the_cpu(model, inputs, optimizer="adamw", amp=False):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        kept = activations(model, inputs, amp and not inputs.is_cuda)
    return right(model, inputs, optimizer, amp, activations=kept)


@BANK.wrong("two views of one storage are counted as two storages", "the halves of a tensor")
def takes_the_tensors_address(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = {t.data_ptr() for t in [*twin.parameters(), *twin.buffers(), inputs]}
    kept = {t.data_ptr(): t.untyped_storage().nbytes() for t in saved if t.data_ptr() not in leave}
    return right(model, inputs, optimizer, amp, activations=sum(kept.values()))


@BANK.wrong("a buffer that is not saved in the state_dict is counted as an activation", "it was there before")
def leaves_out_what_the_state_dict_has(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = {ptr(t) for t in [*twin.state_dict().values(), inputs]}
    kept = {ptr(t): t.untyped_storage().nbytes() for t in saved if ptr(t) not in leave}
    return right(model, inputs, optimizer, amp, activations=sum(kept.values()))


@BANK.wrong("autocast is taken to halve all activations", "norms and losses stay in float32")
def halves_the_activations(model, inputs, optimizer="adamw", amp=False):
    kept = activations(model, inputs, False)
    return right(model, inputs, optimizer, amp, activations=kept // 2 if amp else kept)


@BANK.wrong("a view is counted with its own bytes, not with its storage's", "keeps all of its tensor alive")
def counts_tensors_not_storages(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, _ = saved_by(twin, inputs, amp)
    leave = known(twin, inputs)
    kept = sum({ptr(t): t.nbytes for t in saved if ptr(t) not in leave}.values())
    return right(model, inputs, optimizer, amp, activations=kept)


@BANK.wrong("the output is counted though backward does not need it", "count what is saved")
def counts_the_output(model, inputs, optimizer="adamw", amp=False):
    twin = copy.deepcopy(model)
    saved, output = saved_by(twin, inputs, amp)
    leave = known(twin, inputs)
    kept = {ptr(t): t.untyped_storage().nbytes() for t in [*saved, output.detach()] if ptr(t) not in leave}
    return right(model, inputs, optimizer, amp, activations=sum(kept.values()))


@BANK.wrong("the activations are counted on the CPU, though the model is on a GPU", "Run the pass where the model is")
def counts_on_the_cpu(model, inputs, optimizer="adamw", amp=False):
    kept = activations(copy.deepcopy(model).cpu(), inputs.cpu(), amp)
    return right(model, inputs, optimizer, amp, activations=kept)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("the forward pass has changed the model's running statistics", "on a copy.deepcopy of the model")
def moves_running_statistics(model, inputs, optimizer="adamw", amp=False):
    kept = activations(model, inputs, amp)
    saved_by(model, inputs, amp)
    return right(model, inputs, optimizer, amp, activations=kept)


@BANK.wrong("the model came back with other gradients", "a forward pass is enough")
def leaves_gradients(model, inputs, optimizer="adamw", amp=False):
    buckets = right(model, inputs, optimizer, amp)
    model(inputs).float().sum().backward()
    return buckets


@BANK.wrong("the model came back with other weights", "an optimizer's step on the caller's model")
def trains_the_model(model, inputs, optimizer="adamw", amp=False):
    buckets = right(model, inputs, optimizer, amp)
    model(inputs).float().sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.zero_grad()
    return buckets


@BANK.wrong("the model came back in another mode", "takes away dropout's mask")
def leaves_eval(model, inputs, optimizer="adamw", amp=False):
    buckets = right(model, inputs, optimizer, amp)
    model.eval()
    return buckets


@BANK.wrong("what comes back is not the dict that is asked for", "its keys are these five")
def returns_a_list(model, inputs, optimizer="adamw", amp=False):
    return list(right(model, inputs, optimizer, amp).values())


@BANK.wrong("gradients is not a number of bytes", "an int for each bucket")
def returns_tensors(model, inputs, optimizer="adamw", amp=False):
    vector = nn.utils.parameters_to_vector(p.detach() for p in model.parameters() if p.requires_grad)
    return right(model, inputs, optimizer, amp, gradients=vector)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your function changed its argument model: it has a hook that it did not have", "handle.remove()")
def leaves_its_hooks(model, inputs, optimizer, amp):
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda layer, given, out: seen.append(layer))
    return right(model, inputs, optimizer, amp)


@BANK.wrong(
    "your function changed its argument model: model.positions.requires_grad is True, not False",
    "requires_grad_() was used",
)
def leaves_the_frozen_parameters_free(model, inputs, optimizer, amp):
    found = right(model, inputs, optimizer, amp)
    model.requires_grad_(True)
    return found


@BANK.wrong("the gradients that were there are gone", "zero_grad() belongs to the caller")
def clears_the_gradients(model, inputs, optimizer="adamw", amp=False):
    model.zero_grad()
    return right(model, inputs, optimizer, amp)
