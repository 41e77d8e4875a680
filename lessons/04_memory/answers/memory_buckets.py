"""Answers to `memory_buckets` that are no formula for one number: right ones written differently, other wrong ones."""

import copy

import torch
from banks.bank import Bank
from banks.edits import add, change

BANK = Bank("memory_buckets")
WEIGHTS, GRADIENTS = '"weights": sum(p.nbytes for p in model.parameters()),', '"gradients": gradients,'
TWIN, RETURN = "twin = copy.deepcopy(model)", "return {"
CHANGED = "your function changed its argument model: "


@BANK.right
def does_a_step_on_a_copy(model, inputs, optimizer, amp):
    model, kept = copy.deepcopy(model), []

    def pack(tensor):
        kept.append(tensor.detach())
        return kept[-1]

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=amp):
        output = model(inputs)
    there = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), inputs]}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    stepper = torch.optim.AdamW(model.parameters())
    if optimizer != "adamw":
        stepper = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9 * (optimizer == "momentum"))
    stepper.zero_grad()
    output.float().sum().backward()
    stepper.step()
    states = [t for state in stepper.state.values() for t in state.values() if isinstance(t, torch.Tensor) and t.dim()]
    return {
        "activations": sum(nbytes for address, nbytes in storages.items() if address not in there),
        "optimizer_state": sum(t.nbytes for t in states),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "buffers": sum(b.nbytes for b in model.buffers()),
        "weights": sum(p.nbytes for p in model.parameters()),
    }


BANK.right(
    (change(TWIN, "twin, before = model, [b.clone() for b in model.buffers()]"),  # on the model itself
     add("[b.copy_(old) for b, old in zip(model.buffers(), before, strict=True)]", before=RETURN)),
    (add("with torch.autocast(inputs.device.type, torch.bfloat16, amp): kept = gpulab.memory.activation_bytes("
         "model, inputs).total", before=TWIN),
     change("sum(n for address, n in saved.items() if address not in known)", "kept")),
)  # fmt: skip
BANK.mistakes(
    ("return a dict with these keys", "", change(GRADIENTS, ""), lambda *args: [*BANK.solution(*args).values()]),
    ("return a dict with these keys", "the function ends without a return", change(RETURN, "_ = {")),
    ("weights is not a whole number", "/ makes floats", change(WEIGHTS, WEIGHTS.replace("nbytes", "nbytes / 1"))),
    ("gradients is not a number", ".numel() give plain ints",
     change(GRADIENTS, '"gradients": torch.tensor(gradients),')),
    ("weights is not what the parameters take", "", change(WEIGHTS, WEIGHTS.replace("),", ") // 512 * 512,"))),
    ("buffers is not what the buffers take", "", change("in model.buffers())", "in [*model.buffers()][:-1])")),
    ("gradients is not what backward leaves", "", change(GRADIENTS, '"gradients": gradients + inputs.nbytes,')),
    ("optimizer_state is not what the optimizer keeps", "", change('"adamw": 2', '"adamw": 3')),
    ("activations is not what autograd keeps", "", change("known)", "known and (amp or n > 400))")),
    ("the activations are not those of a pass under autocast", "",
     change("known)", "known and not (amp and n == twin.again.weight.numel() * 2))")),
    (CHANGED + "it is left in eval mode", "module's mode", add("model.eval()", before=RETURN)),
    (CHANGED + "model.stem.weight.grad is None, and was a tensor", "zero_grad()",
     add("model.zero_grad()", before=RETURN)),
    (CHANGED + "model.norm.running_mean has other values", "work on a copy", change(TWIN, "twin = model")),
    ("your function raised RuntimeError", "models come in several dtypes",
     change("twin(inputs)", "twin(inputs.double())")),
    ("your function raised RuntimeError", "inputs.device says where",
     change("twin(inputs)", "twin(inputs.cuda() if inputs.is_cuda else inputs)")),
)  # fmt: skip
