"""Answers to the profiler of a forward pass: on a GPU that is not the current one, and on the CPU by an estimate."""

import contextlib
import gc
import io

import torch

import gpulab
from gpulab.check.lesson04.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("memory_profiler", SECTIONS)
MIB = 2**20


def report(source, kept, peak, unit=MIB):
    kept, peak = kept / unit, None if peak is None else peak / unit
    print(f"kept {kept:.2f} MiB, {source}")
    return {"source": source, "kept_mib": kept, "peak_mib": peak}


def known_storages(model, inputs):
    return {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), inputs]}


def estimate(
    model,
    inputs,
    grad,
    *,
    known=known_storages,
    keep=torch.Tensor.detach,
    key=lambda tensor: tensor.untyped_storage().data_ptr(),
    mode=torch.set_grad_enabled,
    output=True,
    once=True,
    views=False,
):
    """The estimate on the CPU; each option that is not the default is a mistake."""
    saved = []

    def pack(tensor):
        nbytes = tensor.nbytes if views else tensor.untyped_storage().nbytes()
        saved.append((key(tensor), nbytes))
        return keep(tensor)

    with mode(grad), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(inputs)
    if output is True:
        saved.append((result.untyped_storage().data_ptr(), result.untyped_storage().nbytes()))
    leave = known(model, inputs)
    mine = [(address, nbytes) for address, nbytes in saved if address not in leave]
    kept = sum(nbytes for _, nbytes in (dict(mine).items() if once else mine))
    return kept if isinstance(output, bool) else kept + output(result)


def measured(model, inputs, grad, device=None):
    """Kept and peak in bytes, after a pass to warm up."""
    with torch.set_grad_enabled(grad):
        model(inputs)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        output = model(inputs)
        torch.cuda.synchronize(device)
        kept = torch.cuda.memory_allocated(device) - before
    del output
    return kept, torch.cuda.max_memory_allocated(device) - before


def on_gpu(measure, **words):
    """An answer that is right on the CPU and measures so on a GPU."""

    def profile(model, inputs, grad=True):
        if inputs.device.type == "cpu":
            return report("estimate", estimate(model, inputs, grad), None)
        return report("allocator", *measure(model, inputs, grad), **words)

    return profile


def on_cpu(**mistake):
    """An answer that is right on a GPU and estimates so on the CPU."""

    def profile(model, inputs, grad=True):
        if inputs.device.type == "cpu":
            return report("estimate", estimate(model, inputs, grad, **mistake), None)
        return report("allocator", *measured(model, inputs, grad, inputs.device))

    return profile


def prints(line):
    """An answer that is right but for the line that it prints."""

    def profile(model, inputs, grad=True):
        with contextlib.redirect_stdout(io.StringIO()):
            found = right(model, inputs, grad)
        print(line.format(**found))
        return found

    return profile


def right(model, inputs, grad=True):
    return on_gpu(lambda *args: measured(*args, inputs.device))(model, inputs, grad)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def measures_and_estimates(model, inputs, grad=True):
    return right(model, inputs, grad)


@BANK.right
def counts_with_stats_after_three_passes(model, inputs, grad=True):
    device = next(model.parameters()).device
    if device.type != "cuda":
        return report("estimate", estimate(model, inputs, grad), None)
    for _ in range(3):
        with torch.no_grad():
            model(inputs)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["allocated_bytes.all.current"]
    with torch.set_grad_enabled(grad):
        held = [model(inputs)]
    torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    found = report(
        "allocator",
        stats["allocated_bytes.all.current"] - before,
        stats["allocated_bytes.all.peak"] - before,
    )
    held.clear()
    return found


@BANK.right
def uses_gpulabs_own_tools(model, inputs, grad=True):
    with torch.set_grad_enabled(grad):
        if not inputs.is_cuda:
            found = gpulab.memory.activation_bytes(model, inputs)
            return report("estimate", found.total + found.output_bytes, None)
        model(inputs)
        with gpulab.GPUMemoryTracker(inputs.device) as tracker:
            output = model(inputs)
        del output
        return report("allocator", tracker.delta_bytes, tracker.peak_above_entry_bytes)


@BANK.right
def rounds_the_estimate_as_an_allocator_would(model, inputs, grad=True):
    if inputs.device.type != "cpu":
        return right(model, inputs, grad)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = -(-tensor.untyped_storage().nbytes() // 512) * 512
        return tensor.detach()

    with torch.set_grad_enabled(grad), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(inputs)
    pack(output)
    known = known_storages(model, inputs)
    return report("estimate", sum(n for address, n in saved.items() if address not in known), None)


@BANK.right
def empties_the_cache_first(model, inputs, grad=True):
    def measure(*args):
        gc.collect()
        torch.cuda.empty_cache()
        return measured(*args, inputs.device)

    return on_gpu(measure)(model, inputs, grad)


# --- wrong: on the GPU ---------------------------------------------------------------------------------


@BANK.wrong("the pass seems to keep nothing: its output was gone when the memory was read", "give the output a name")
def discards_the_output(model, inputs, grad=True):
    def measure(model, inputs, grad):
        with torch.set_grad_enabled(grad):
            model(inputs)
            torch.cuda.reset_peak_memory_stats(inputs.device)
            before = torch.cuda.memory_allocated(inputs.device)
            model(inputs)
            torch.cuda.synchronize(inputs.device)
        return [f(inputs.device) - before for f in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)]

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong(
    "the pass seems to keep little or nothing: the warm-up's output died during it", "Drop the warm-up's output"
)
def keeps_the_warm_up(model, inputs, grad=True):
    def measure(model, inputs, grad):
        with torch.set_grad_enabled(grad):
            output = model(inputs)
            torch.cuda.reset_peak_memory_stats(inputs.device)
            before = torch.cuda.memory_allocated(inputs.device)
            output = model(inputs)
            torch.cuda.synchronize(inputs.device)
        found = [f(inputs.device) - before for f in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)]
        del output
        return found

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("the pass ran under no_grad though grad is True", "only the output counts")
def never_keeps_a_graph(model, inputs, grad=True):
    return on_gpu(lambda model, inputs, grad: measured(model, inputs, False, inputs.device))(model, inputs, grad)


@BANK.wrong("the pass kept a graph though grad is False", "under torch.no_grad()")
def ignores_grad(model, inputs, grad=True):
    return on_gpu(lambda model, inputs, grad: measured(model, inputs, True, inputs.device))(model, inputs, grad)


@BANK.wrong("the first pass is measured, with what only a first pass takes", "a workspace that cuBLAS takes once")
def measures_the_first_pass(model, inputs, grad=True):
    def measure(model, inputs, grad):
        before = torch.cuda.memory_allocated(inputs.device)
        torch.cuda.reset_peak_memory_stats(inputs.device)
        with torch.set_grad_enabled(grad):
            output = model(inputs)
        torch.cuda.synchronize(inputs.device)
        kept = torch.cuda.memory_allocated(inputs.device) - before
        del output
        return kept, torch.cuda.max_memory_allocated(inputs.device) - before

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("kept_mib is reserved memory", "ask memory_allocated, not memory_reserved")
def reports_reserved(model, inputs, grad=True):
    def measure(model, inputs, grad):
        before = torch.cuda.memory_reserved(inputs.device)
        _, peak = measured(model, inputs, grad, inputs.device)
        return torch.cuda.memory_reserved(inputs.device) - before, peak

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("kept_mib is in MB of 10**6 bytes, not in MiB", "divide the bytes by 2**20")
def divides_by_a_million(model, inputs, grad=True):
    return on_gpu(lambda *args: measured(*args, inputs.device), unit=1e6)(model, inputs, grad)


@BANK.wrong("kept_mib is in bytes, not in MiB")
def returns_bytes(model, inputs, grad=True):
    return on_gpu(lambda *args: measured(*args, inputs.device), unit=1)(model, inputs, grad)


@BANK.wrong("the peak is reported as what is kept", "less before")
def peak_as_kept(model, inputs, grad=True):
    def measure(*args):
        _, peak = measured(*args, inputs.device)
        return peak, peak

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("what is kept is reported as the peak", "in between there was more")
def kept_as_peak(model, inputs, grad=True):
    def measure(*args):
        kept, _ = measured(*args, inputs.device)
        return kept, kept

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("peak_mib is absolute", "subtract it")
def absolute_peak(model, inputs, grad=True):
    def measure(*args):
        kept, _ = measured(*args, inputs.device)
        return kept, torch.cuda.max_memory_allocated(inputs.device)

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("a peak from before the pass is in peak_mib", "reset_peak_memory_stats(device)")
def never_resets(model, inputs, grad=True):
    def measure(model, inputs, grad):
        with torch.set_grad_enabled(grad):
            model(inputs)
            before = torch.cuda.memory_allocated(inputs.device)
            output = model(inputs)
        torch.cuda.synchronize(inputs.device)
        kept = torch.cuda.memory_allocated(inputs.device) - before
        del output
        return kept, torch.cuda.max_memory_allocated(inputs.device) - before

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("peak_mib is that of the warm-up", "just before the pass that you measure")
def peak_of_the_warm_up(model, inputs, grad=True):
    def measure(model, inputs, grad):
        torch.cuda.reset_peak_memory_stats(inputs.device)
        before = torch.cuda.memory_allocated(inputs.device)
        with torch.set_grad_enabled(grad):
            model(inputs)
        peak = torch.cuda.max_memory_allocated(inputs.device) - before
        return measured(model, inputs, grad, inputs.device)[0], peak

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("the model was never called", "reckoned, not measured")
def reckons(model, inputs, grad=True):
    kept = inputs.nbytes * len(list(model.modules()))
    return report("allocator" if inputs.is_cuda else "estimate", kept, kept)


@BANK.wrong("the current GPU is measured, not the model's", "pass inputs.device to each of them")
def measures_the_current_gpu(model, inputs, grad=True):
    return on_gpu(measured)(model, inputs, grad)


@BANK.wrong("kept_mib is the sum of the layers' outputs", "the allocator rounds: measure instead")
def adds_up_outputs(model, inputs, grad=True):
    def measure(model, inputs, grad):
        _, peak = measured(model, inputs, grad, inputs.device)
        total, x = 0, inputs
        for layer in model:
            x = layer(x)
            total += x.nbytes
        torch.cuda.synchronize(inputs.device)
        return total, peak

    return on_gpu(measure)(model, inputs, grad)


@BANK.wrong("the pass ran in another mode than the model's", "eval() switches dropout off")
def evaluates(model, inputs, grad=True):
    modes = [module.training for module in model.modules()]
    model.eval()
    result = right(model, inputs, grad)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return result


@BANK.wrong("the model came back in another mode", "set every module")
def trains_afterwards(model, inputs, grad=True):
    result = right(model, inputs, grad)
    model.train()
    return result


@BANK.wrong("the GPU was still at work when the function returned", "the caller's next line")
def does_not_wait(model, inputs, grad=True):
    def measure(model, inputs, grad):
        with torch.set_grad_enabled(grad):
            model(inputs)
            torch.cuda.reset_peak_memory_stats(inputs.device)
            before = torch.cuda.memory_allocated(inputs.device)
            output = model(inputs)
        kept = torch.cuda.memory_allocated(inputs.device) - before
        del output
        return kept, torch.cuda.max_memory_allocated(inputs.device) - before

    return on_gpu(measure)(model, inputs, grad)


KEPT = []


@BANK.wrong("memory is still held when the function has returned", "a list, a global or the result")
def holds_the_output(model, inputs, grad=True):
    KEPT.clear()
    result = right(model, inputs, grad)
    with torch.set_grad_enabled(grad):
        KEPT.append(model(inputs))
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    return result


@BANK.wrong(
    "memory is still held when the function has returned", "a list, a global or the result", same_as="holds_the_output"
)
def holds_a_small_output(model, inputs, grad=True):
    result = right(model, inputs, grad)
    if inputs.is_cuda:
        KEPT[:] = [model(inputs).detach()]
        torch.cuda.synchronize(inputs.device)
    return result


@BANK.wrong(
    "memory is still held when the function has returned", "a list, a global or the result", same_as="holds_the_output"
)
def holds_on_the_cpu_what_was_saved(model, inputs, grad=True):
    def keep(tensor):
        KEPT.append(tensor.detach())
        return tensor.detach()

    KEPT.clear()
    return on_cpu(keep=keep)(model, inputs, grad)


@BANK.wrong("what the pass keeps is not printed", "two decimals")
def prints_nothing(model, inputs, grad=True):
    if inputs.is_cuda:
        kept, peak = measured(model, inputs, grad, inputs.device)
        return {"source": "allocator", "kept_mib": kept / MIB, "peak_mib": peak / MIB}
    return right(model, inputs, grad)


@BANK.wrong("what the pass keeps is not printed", "two decimals", same_as="prints_nothing")
def prints_one_decimal(model, inputs, grad=True):
    return prints("kept {kept_mib:.1f} MiB, {source}")(model, inputs, grad)


@BANK.wrong("what the pass keeps is not printed", "two decimals", same_as="prints_nothing")
def prints_four_decimals(model, inputs, grad=True):
    return prints("kept {kept_mib:.4f} MiB, {source}")(model, inputs, grad)


@BANK.wrong("what the pass keeps is not printed", "in one line", same_as="prints_nothing")
def prints_the_unit_in_another_line(model, inputs, grad=True):
    return prints("in MiB, {source}:\n{kept_mib:.2f}")(model, inputs, grad)


@BANK.wrong("the line that is printed does not say where its number comes from", "on a GPU as well as on the CPU")
def prints_the_source_of_an_estimate_only(model, inputs, grad=True):
    return prints("kept {kept_mib:.2f} MiB" if inputs.is_cuda else "estimate: {kept_mib:.2f} MiB")(model, inputs, grad)


@BANK.wrong("what comes back is not the dict that is asked for", "ends without a return")
def returns_nothing(model, inputs, grad=True):
    right(model, inputs, grad)


@BANK.wrong("what a GPU has measured is not called so", '"estimate" is for a model on the CPU')
def calls_it_measured(model, inputs, grad=True):
    return right(model, inputs, grad) | ({"source": "measured"} if inputs.is_cuda else {})


# --- wrong: a model that fails -------------------------------------------------------------------------


@BANK.wrong("the model's exception does not come out", "a pass that never ended")
def hides_an_exception(model, inputs, grad=True):
    try:
        return right(model, inputs, grad)
    except Exception:
        return report("estimate", 0, None)


@BANK.wrong("after an exception of the model its mode is another one", "in a finally")
def leaves_eval_after_an_exception(model, inputs, grad=True):
    modes = [module.training for module in model.modules()]
    model.eval()
    with torch.no_grad():
        model(inputs)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return right(model, inputs, grad)


# --- wrong: on the CPU ---------------------------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "decide by inputs.device.type")
def needs_a_gpu(model, inputs, grad=True):
    return report("allocator", *measured(model, inputs, grad, inputs.device if inputs.is_cuda else None))


@BANK.wrong("on the CPU the estimate is 0", "count what autograd saves")
def reads_counters_of_nothing(model, inputs, grad=True):
    if inputs.is_cuda:
        return right(model, inputs, grad)
    before = torch.cuda.memory_allocated()
    with torch.set_grad_enabled(grad):
        output = model(inputs)
    found = report("estimate", torch.cuda.memory_allocated() - before, None)
    del output
    return found


@BANK.wrong("an estimate is not called one", "no allocator has counted these bytes")
def calls_an_estimate_measured(model, inputs, grad=True):
    return right(model, inputs, grad) | ({} if inputs.is_cuda else {"source": "allocator"})


@BANK.wrong("the inputs are counted as kept by the pass", "leave their storage out")
def counts_the_inputs(model, inputs, grad=True):
    known = lambda model, inputs: known_storages(model, inputs) - {inputs.untyped_storage().data_ptr()}  # noqa: E731
    return on_cpu(known=known)(model, inputs, grad)


@BANK.wrong("parameters, buffers and inputs are counted as kept by the pass", "they were there before")
def counts_all_that_is_saved(model, inputs, grad=True):
    return on_cpu(known=lambda model, inputs: set())(model, inputs, grad)


@BANK.wrong("parameters and buffers are counted as kept by the pass", "saves weights for backward")
def counts_parameters(model, inputs, grad=True):
    return on_cpu(known=lambda model, inputs: {inputs.untyped_storage().data_ptr()})(model, inputs, grad)


@BANK.wrong("shared storage is counted more than once", "by its data_ptr()")
def counts_each_time(model, inputs, grad=True):
    return on_cpu(once=False)(model, inputs, grad)


@BANK.wrong("a view is counted with its own bytes, not with its storage's", "keeps all of its tensor alive")
def counts_tensors_not_storages(model, inputs, grad=True):
    return on_cpu(views=True)(model, inputs, grad)


@BANK.wrong("the output is not counted", "it is all there is")
def leaves_out_the_output(model, inputs, grad=True):
    return on_cpu(output=False)(model, inputs, grad)


@BANK.wrong("the graph of the pass outlives the call", "Return tensor.detach()")
def saves_the_tensor_itself(model, inputs, grad=True):
    return on_cpu(keep=lambda tensor: tensor)(model, inputs, grad)


@BANK.wrong("kept is the sum of the layers' outputs", "dropout saves a mask besides")
def adds_up_outputs_on_the_cpu(model, inputs, grad=True):
    if inputs.is_cuda:
        return right(model, inputs, grad)
    total, x = 0, inputs
    with torch.set_grad_enabled(grad):
        for layer in model:
            x = layer(x)
            total += x.nbytes
        model(inputs)
    return report("estimate", total, None)


@BANK.wrong("a peak is given where none was measured", "would look like a measured peak")
def invents_a_peak(model, inputs, grad=True):
    if inputs.is_cuda:
        return right(model, inputs, grad)
    kept = estimate(model, inputs, grad)
    return report("estimate", kept, kept)


@BANK.wrong("the output is counted twice: autograd has saved it, too", "a last layer such as tanh")
def counts_the_output_beside(model, inputs, grad=True):
    return on_cpu(output=lambda result: result.untyped_storage().nbytes())(model, inputs, grad)


@BANK.wrong("the output is counted with its own bytes, not with its storage's", "output.untyped_storage().nbytes()")
def counts_the_outputs_own_bytes(model, inputs, grad=True):
    return on_cpu(output=lambda result: result.nbytes)(model, inputs, grad)


@BANK.wrong("the output is counted though it is the inputs", "a model can return what it got")
def counts_an_output_that_was_there(model, inputs, grad=True):
    saved = set()

    def keep(tensor):
        saved.add(tensor.untyped_storage().data_ptr())
        return tensor.detach()

    def of(result):
        storage = result.untyped_storage()
        return 0 if storage.data_ptr() in saved else storage.nbytes()

    return on_cpu(keep=keep, output=of)(model, inputs, grad)


@BANK.wrong("two views of one storage are counted as two storages", "the halves of a tensor")
def takes_the_tensors_address(model, inputs, grad=True):
    return on_cpu(key=torch.Tensor.data_ptr)(model, inputs, grad)


@BANK.wrong("what autograd saves is gone before the pass has ended, and its addresses come back", "tensor.detach()")
def keeps_nothing_of_what_is_saved(model, inputs, grad=True):
    return on_cpu(keep=lambda tensor: None)(model, inputs, grad)


@BANK.wrong("the pass ran under no_grad, as its caller does, though grad is True", "a nullcontext leaves the mode")
def leaves_the_callers_mode(model, inputs, grad=True):
    def mode(grad):
        return contextlib.nullcontext() if grad else torch.no_grad()

    return on_cpu(mode=mode)(model, inputs, grad)


@BANK.wrong("your function raised ValueError", "a model can be on the CPU though there is a GPU")
def decides_by_is_available(model, inputs, grad=True):
    if torch.cuda.is_available():
        return report("allocator", *measured(model, inputs, grad, inputs.device))
    return report("estimate", estimate(model, inputs, grad), None)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong(
    "your function changed its argument model: layer 0 (Linear) has a hook that it did not have", "handle.remove()"
)
def leaves_a_hook(model, inputs, grad):
    seen = []
    model[0].register_forward_hook(lambda layer, given, out: seen.append(out.shape))
    return on_cpu()(model, inputs, grad)


@BANK.wrong(
    "your function changed its argument inputs: inputs.requires_grad is True, not False", "requires_grad_() was used"
)
def leaves_the_inputs_with_requires_grad(model, inputs, grad):
    found = on_cpu()(model, inputs, grad)
    inputs.requires_grad_(True)
    return found
