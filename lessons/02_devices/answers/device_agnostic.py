"""Answers to "one step, on any machine": the choice of the device, what has to move, and in which order."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop, swap
from torch import nn
from torch.nn import functional as F

BANK = Bank("device_agnostic", "train_step")
BEST = 'torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")'
MOVE, MADE, RETURN = "model.to(device)", "optimizer = torch", "return logits.detach(), optimizer"
LOSS = "F.cross_entropy(logits, targets.to(device), weight=weight).backward()"
A_KIND = """next((kind for kind, there in (("cuda", torch.cuda), ("mps", torch.backends.mps), ("xpu", torch.xpu))
                       if there.is_available()), "cpu")"""
ON_CPU = change(LOSS, "F.cross_entropy(logits.cpu(), targets, weight=weight.cpu()).backward()")


def first(line):
    """`line` before the model moves."""
    return add(line, before=MOVE)


@BANK.right
def asks_for_each_kind_and_makes_the_criterion_a_module(model, inputs, targets, class_weights, device=None):
    if device is None:
        kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        device = next((kind for kind, there in kinds.items() if there.is_available()), "cpu")
    model = model.to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor(class_weights)).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    optimizer.zero_grad()
    out = model(inputs.to(device, non_blocking=True))
    criterion(out, targets.to(device)).backward()
    optimizer.step()
    return [out, optimizer]


@BANK.right
def asks_for_the_number_and_steps_by_a_closure(model, inputs, targets, class_weights, device=None):
    if device is None and torch.accelerator.is_available():
        device = torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())
    with torch.device(device or "cpu") as place:
        for module in model.modules():
            module.to(place)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        seen = []

        def closure():
            seen.append(model(inputs.to(place)))
            loss = F.cross_entropy(seen[0], targets.to(place), weight=seen[0].new_tensor(class_weights))
            loss.backward()
            return loss

        optimizer.step(closure)
    return seen[0].detach(), optimizer


# --- which device ----------------------------------------------------------------------------------------
BANK.mistakes(
    ("cuda is written into the code", "ask what there is, and fall back to the CPU", change(BEST, '"cuda"')),
    ("a GPU was chosen because PyTorch was built for it, though there is none",
     "current_accelerator() says cuda on a laptop too: ask with check_available=True",
     change("check_available=True", "")),
    ("only CUDA's GPUs are asked for",
     "torch.cuda.is_available() knows CUDA and ROCm only; torch.accelerator knows Intel's and Apple's too",
     change(BEST, '"cuda" if torch.cuda.is_available() else "cpu"')),
    ("cuda was used on a machine with another kind of GPU",
     "only cuda is used of what torch.accelerator names: use the device that it returns",
     change(BEST, '"cuda" if torch.accelerator.is_available() else "cpu"')),
    ("without a device the work is done on the CPU",
     "device=None asks for the best device of the machine: torch.accelerator names it", change(BEST, '"cpu"')),
    ("GPU 0 was used, though another is current", "current_accelerator() has no number: “cuda” is the current GPU",
     change(BEST, f'"cuda:0" if torch.cuda.is_available() else {BEST}')),
    ("the argument device is ignored", "look for a GPU only if device is None",
     change("if device is None:", "if True:")),
    ("the number of the GPU got lost", "a number is part of the device: device.type and 'cuda' are without it",
     first("device = torch.device(device).type"),
     first("device = device.type if isinstance(device, torch.device) else device")),
    ("the CPU was asked for, but a GPU was used", "look for a GPU only if device is None",
     change("if device is None:", 'if device is None or torch.device(device).type == "cpu":')),
    ("the code knows only the CPU and CUDA's GPUs", "pass the argument on as it is",
     first('device = "cuda" if torch.device(device).type == "meta" and torch.cuda.is_available() else device')),
    ("the last letter is taken for the number of a GPU", "not every device has one: pass the argument on as it is",
     first('device = torch.device("cuda", int(device[-1])) if isinstance(device, str) else device')),
    ("a string is split at its colon", "not every device has a number: pass the argument on as it is",
     first('device = torch.device("cuda", int(device.split(":")[1])) if isinstance(device, str) else device'),
     first('device = torch.device("cuda", int(device.split(":")[1])) if "cuda" == str(device)[:4] else device')),
    ("the function left another GPU current",
     "set_device is for the start of a process. Pass the device to .to, or use with torch.cuda.device(…)",
     first("if torch.device(device).index is not None: torch.cuda.set_device(device)")),
    ("your function left a setting changed", "use it as a context manager", first("torch.set_default_device(device)")),
    ("something was made on the current GPU first",
     "what is made on “cuda” and then moved takes memory on the current GPU",
     first('inputs = inputs.to("cuda") if torch.device(device).type == "cuda" else inputs')),
)  # fmt: skip

# --- what moves ------------------------------------------------------------------------------------------
BANK.mistakes(
    ("the inputs are not where the model is", "inputs.to(device) returns a copy, and leaves inputs where they are",
     change("inputs.to(device)", "inputs"),
     (change("inputs.to(device)", "inputs"), change("targets.to(device)", "targets"), first("inputs.to(device)"))),
    ("the model is not where the inputs are", "model.to(device), before the forward pass", drop(MOVE)),
    ("a buffer stayed behind",
     "model.to(device) moves parameters and buffers; a loop over parameters() moves no buffers",
     change(MOVE, "for p in model.parameters(): p.data = p.data.to(device)")),
    ("the targets are not where the logits are", "the loss needs them, on the device of the logits",
     change("targets.to(device)", "targets")),
    ("the class weights are not where the logits are",
     "they are a list: make the tensor on the device, torch.tensor(class_weights, device=…)",
     change("torch.tensor(class_weights, device=device)", "torch.tensor(class_weights)")),
    ("a copy of the model was trained, not the caller's", "model.to works in place",
     change(MOVE, "model = __import__('copy').deepcopy(model).to(device)")),
    ("the logits were copied to the CPU", ".cpu() waits for the GPU: leave that to the caller",
     change("logits.detach()", "logits.detach().cpu()"),
     change(RETURN, f"logits = logits.cpu() if logits.is_cuda else logits; {RETURN}")),
    ("the model was moved back after the step",
     "the caller, who continues on the device, would have to move it again", add("model.cpu()", before=RETURN)),
    ("the model became float64", "to(device) keeps the dtype; double(), half() and to(device, dtype) do not",
     (change(MOVE, "model.to(device, torch.float64)"), change("inputs.to(device)", "inputs.to(device, torch.float64)"),
      change("device=device)", "dtype=torch.float64, device=device)"),
      change("logits.detach()", "logits.detach().float()"))),
    ("the logits became float16", "only the device changes", change("logits.detach()", "logits.detach().half()")),
    ("the loss was computed on the CPU",
     "in the middle of the step something was copied to the CPU, which a meta tensor cannot be: compute where the "
     "logits are",
     ON_CPU, (ON_CPU, change(BEST, A_KIND))),
)  # fmt: skip

# --- the optimizer and the step --------------------------------------------------------------------------
BANK.mistakes(
    ("the optimizer was made before the move",
     "from CPU to CUDA the parameters stay the same objects; on other devices the move puts new ones in",
     swap(MOVE, MADE), (swap(MOVE, MADE), change(BEST, A_KIND))),
    ("nothing was trained", "backward or step is missing", drop("optimizer.step()"), change(".backward()", "")),
    ("the class weights are not in the loss", "weight=torch.tensor(class_weights, device=…)",
     change(", weight=weight", "")),
    ("a step of Adam was taken", "torch.optim.SGD was asked for", change("optim.SGD", "optim.Adam")),
    ("the optimizer reads a value in the middle of the step", "that waits for the GPU, and plain SGD does not need it",
     change("optim.SGD", "optim.ASGD")),
    ("the weights decay in the step",
     "weight decay adds a fraction of each weight to its gradient: a small change in one step, but not asked for",
     change("lr=0.1", "lr=0.1, weight_decay=1e-4")),
    ("the learning rate is not 0.1", "one step with lr=0.1 is asked for, and no schedule",
     add("torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9).step()", before=RETURN)),
    ("the logits are those after the step",
     "the forward pass ran again: keep the logits that the loss was computed from",
     add("logits = model(inputs.to(device))", before=RETURN),

     add("with torch.no_grad(): logits = model(inputs.to(device))", before=RETURN)),
    ("probabilities are returned", "logits are the model's output", change("logits.detach()", "logits.softmax(1)")),
    ("the forward pass ran twice", "batch norm counts every forward pass in training mode: keep the logits of the "
                                   "first",
     add("logits = model(inputs.to(device))", before="weight = ")),
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("the logits are returned alone", "the caller goes on with the optimizer", change(RETURN, "return logits")),
)  # fmt: skip
