"""Answers to "one training step on any machine": the choice of the device, what has to move, and in which order."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.check.lesson02.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("device_agnostic", SECTIONS)


def best():
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def step_on(device, model, inputs, targets, class_weights, **settings):
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **settings)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def asks_for_the_accelerator(model, inputs, targets, class_weights, device=None):
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        device = torch.device("cpu")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.right
def asks_whether_there_is_one(model, inputs, targets, class_weights, device=None):
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    device = torch.device(device)
    model = model.to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor(class_weights)).to(device)
    optimizer = torch.optim.SGD(list(model.parameters()), lr=0.1)
    optimizer.zero_grad()
    out = model(inputs.to(device, non_blocking=True))
    criterion(out, targets.to(device)).backward()
    optimizer.step()
    return [out.detach(), optimizer]


@BANK.right
def makes_tensors_like_the_logits(model, inputs, targets, class_weights, device=None):
    model.to(device or best())
    first = next(model.parameters())
    inputs, targets = inputs.to(first), targets.to(first.device)
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    logits = model(inputs)
    loss = F.cross_entropy(logits, targets, weight=logits.new_tensor(class_weights))
    for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
        p.grad = g
    optimizer.step()
    return logits, optimizer


@BANK.right
def uses_the_device_as_a_context(model, inputs, targets, class_weights, device=None):
    with torch.device(device if device is not None else best()) as place:
        model.to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        logits = model(inputs.to(place))
        loss = nn.CrossEntropyLoss(torch.tensor(class_weights))(logits, targets.to(place))
        loss.backward()
        optimizer.step()
    return logits, optimizer


@BANK.right
def asks_for_each_kind(model, inputs, targets, class_weights, device=None):
    if device is None:
        kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        device = next((kind for kind, there in kinds.items() if there.is_available()), "cpu")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.right
def asks_for_the_number_too(model, inputs, targets, class_weights, device=None):
    if device is None and torch.accelerator.is_available():
        device = torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())
    return step_on(device or "cpu", model, inputs, targets, class_weights)


@BANK.right
def steps_by_a_closure(model, inputs, targets, class_weights, device=None):
    device = device or best()
    for module in model.modules():
        module.to(device)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=torch.tensor(0.1))
    seen = []

    def closure():
        seen.append(model(inputs.to(device)))
        loss = F.cross_entropy(seen[0], targets.to(device), weight=torch.FloatTensor(class_weights).to(device))
        loss.backward()
        return loss

    optimizer.step(closure)
    return seen[0].detach(), optimizer


# --- wrong: which device -------------------------------------------------------------------------------


@BANK.wrong("without a GPU the work has to be done on the CPU", "written into the code")
def writes_cuda(model, inputs, targets, class_weights, device=None):
    return step_on(device or "cuda", model, inputs, targets, class_weights)


@BANK.wrong("without a GPU the work has to be done on the CPU", "check_available=True")
def asks_what_pytorch_was_built_for(model, inputs, targets, class_weights, device=None):
    if device is None:
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.wrong("a GPU that is not CUDA's was not used", "knows CUDA and ROCm only")
def knows_cuda_only(model, inputs, targets, class_weights, device=None):
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.wrong("a GPU that is not CUDA's was not used", "take the device it gives")
def asks_and_takes_cuda(model, inputs, targets, class_weights, device=None):
    device = device or ("cuda" if torch.accelerator.is_available() else "cpu")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.wrong("the GPU that is there was not used", "the best device of the machine")
def stays_on_the_cpu(model, inputs, targets, class_weights, device=None):
    return step_on(device or "cpu", model, inputs, targets, class_weights)


@BANK.wrong("the device that was asked for was not used", "its number got lost")
def ignores_the_argument(model, inputs, targets, class_weights, device=None):
    return step_on(best(), model, inputs, targets, class_weights)


@BANK.wrong("the device that was asked for was not used", "its number got lost", same_as="ignores_the_argument")
def drops_the_number(model, inputs, targets, class_weights, device=None):
    return step_on(torch.device(device or best()).type, model, inputs, targets, class_weights)


@BANK.wrong("the CPU was asked for, and a GPU was used", "what there is matters only when it is None")
def prefers_a_gpu_to_the_cpu(model, inputs, targets, class_weights, device=None):
    if device is None or torch.device(device).type == "cpu":
        device = best()
    return step_on(device, model, inputs, targets, class_weights)


@BANK.wrong("the function left another GPU current", "set_device is for the start of a process")
def sets_the_current_gpu(model, inputs, targets, class_weights, device=None):
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
        device = "cuda"
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("your function left a setting changed", "use it as a context manager")
def sets_the_default_device(model, inputs, targets, class_weights, device=None):
    torch.set_default_device(device or best())
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("memory was taken on a GPU that was not asked for", "moved on from there")
def goes_by_way_of_gpu_0(model, inputs, targets, class_weights, device=None):
    device = torch.device(device or best())
    if device.type == "cuda":
        inputs = inputs.to("cuda")
    return step_on(device, model, inputs, targets, class_weights)


# --- wrong: what moves ---------------------------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "mat1 is the input of the first Linear")
def forgets_the_inputs(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs)
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("your function raised RuntimeError", "gives the copy back", same_as="forgets_the_inputs")
def throws_the_copies_away(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    inputs.to(device)
    targets.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs)
    F.cross_entropy(logits, targets, weight=torch.tensor(class_weights)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("your function raised RuntimeError", "the model is not where the inputs are")
def forgets_the_model(model, inputs, targets, class_weights, device=None):
    device = device or best()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("your function raised RuntimeError", "a buffer stayed behind")
def moves_the_parameters_one_by_one(model, inputs, targets, class_weights, device=None):
    device = device or best()
    for p in model.parameters():
        p.data = p.data.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("your function raised RuntimeError", "the targets are needed by the loss")
def forgets_the_targets(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets, weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("your function raised RuntimeError", "the class weights are a list")
def makes_the_weights_on_the_host(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("the work was done where it should be, but not with the caller's model", "model.to works in place")
def trains_a_copy(model, inputs, targets, class_weights, device=None):
    return step_on(device or best(), copy.deepcopy(model), inputs, targets, class_weights)


@BANK.wrong("the logits are on another device than the model", "leave that to the caller")
def fetches_the_logits(model, inputs, targets, class_weights, device=None):
    logits, optimizer = step_on(device or best(), model, inputs, targets, class_weights)
    return logits.detach().cpu(), optimizer


@BANK.wrong("the model has to stay on the device", "")
def brings_the_model_back(model, inputs, targets, class_weights, device=None):
    logits, optimizer = step_on(device or best(), model, inputs, targets, class_weights)
    model.cpu()
    return logits, optimizer


# --- wrong: the optimizer and the step -------------------------------------------------------------------


@BANK.wrong("the optimizer does not hold the model's parameters", "made before the move")
def makes_the_optimizer_first(model, inputs, targets, class_weights, device=None):
    device = device or best()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(device)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("the step is not the one that was asked for", "nothing was trained")
def forgets_the_step(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    return logits, optimizer


@BANK.wrong("the step is not the one that was asked for", "the class weights are not in the loss")
def forgets_the_class_weights(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("the step is not the one that was asked for", "")
def takes_adam(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("these are not the logits that the step was taken with", "ran again after the step")
def returns_the_logits_after_the_step(model, inputs, targets, class_weights, device=None):
    device = device or best()
    _, optimizer = step_on(device, model, inputs, targets, class_weights)
    return model(inputs.to(device)), optimizer


@BANK.wrong("a pair of logits and optimizer has to come back")
def returns_the_logits_only(model, inputs, targets, class_weights, device=None):
    return step_on(device or best(), model, inputs, targets, class_weights)[0]


@BANK.wrong("a pair of logits and optimizer has to come back", "ends without a return")
def returns_nothing(model, inputs, targets, class_weights, device=None):
    step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("the weights decay in the step", "too little to be seen")
def with_weight_decay(model, inputs, targets, class_weights, device=None):
    return step_on(device or best(), model, inputs, targets, class_weights, weight_decay=1e-4)


@BANK.wrong("the current GPU was not used", "a number is written into the code")
def takes_the_first_gpu(model, inputs, targets, class_weights, device=None):
    device = device or ("cuda:0" if torch.cuda.is_available() else best())
    return step_on(device, model, inputs, targets, class_weights)


def of_each_kind():
    kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    return torch.device(next((kind for kind, there in kinds.items() if there.is_available()), "cpu"))


@BANK.wrong("the optimizer does not hold the model's parameters", "made before the move",
            same_as="makes_the_optimizer_first")  # fmt: skip
def asks_for_each_kind_and_makes_the_optimizer_first(model, inputs, targets, class_weights, device=None):
    return makes_the_optimizer_first(model, inputs, targets, class_weights, device or of_each_kind())


def with_the_loss_on_the_cpu(device, model, inputs, targets, class_weights):
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits.cpu(), targets, weight=torch.tensor(class_weights)).backward()
    optimizer.step()
    return logits.detach(), optimizer


@BANK.wrong("your function raised NotImplementedError", "the loss is computed where the logits are")
def computes_the_loss_on_the_cpu(model, inputs, targets, class_weights, device=None):
    return with_the_loss_on_the_cpu(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("your function raised NotImplementedError", "fetched", same_as="computes_the_loss_on_the_cpu")
def asks_for_each_kind_and_computes_the_loss_on_the_cpu(model, inputs, targets, class_weights, device=None):
    return with_the_loss_on_the_cpu(device or of_each_kind(), model, inputs, targets, class_weights)


@BANK.wrong("your function raised RuntimeError", "or by an optimizer that does")
def takes_an_optimizer_that_reads_a_number(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device)
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    F.cross_entropy(logits, targets.to(device), weight=torch.tensor(class_weights, device=device)).backward()
    optimizer.step()
    return logits.detach(), optimizer


@BANK.wrong("your function raised ValueError", "not every device has a number")
def takes_the_last_letter_for_the_number(model, inputs, targets, class_weights, device=None):
    if isinstance(device, str):
        device = torch.device("cuda", int(device[-1]))
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("your function raised IndexError", "“cpu” has none")
def splits_every_text(model, inputs, targets, class_weights, device=None):
    if isinstance(device, str):
        device = torch.device("cuda", int(device.split(":")[1]))
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("your function raised IndexError", "“cuda” is the current GPU", same_as="splits_every_text")
def splits_the_text_of_every_gpu(model, inputs, targets, class_weights, device=None):
    if isinstance(device, str) and device.startswith("cuda"):
        device = torch.device("cuda", int(device.split(":")[1]))
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("the device that was asked for was not used", "its number got lost", same_as="ignores_the_argument")
def takes_the_kind_of_a_device(model, inputs, targets, class_weights, device=None):
    device = device.type if isinstance(device, torch.device) else device
    return step_on(device or best(), model, inputs, targets, class_weights)


@BANK.wrong("the device that was asked for was not used", "hand the argument on as it is")
def knows_the_cpu_and_cuda_only(model, inputs, targets, class_weights, device=None):
    device = torch.device(device or best())
    if device.type not in ("cpu", "cuda") and torch.cuda.is_available():
        device = torch.device("cuda")
    return step_on(device, model, inputs, targets, class_weights)


@BANK.wrong("the weights have another dtype", "only the device changes")
def computes_in_float64(model, inputs, targets, class_weights, device=None):
    device = device or best()
    model.to(device, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device, torch.float64))
    weight = torch.tensor(class_weights, dtype=torch.float64, device=device)
    F.cross_entropy(logits, targets.to(device), weight=weight).backward()
    optimizer.step()
    return logits, optimizer


@BANK.wrong("the logits have another dtype", "only the device changes")
def gives_half_logits(model, inputs, targets, class_weights, device=None):
    logits, optimizer = step_on(device or best(), model, inputs, targets, class_weights)
    return logits.detach().half(), optimizer


@BANK.wrong("the optimizer has another learning rate than was asked for", "a schedule made a step")
def steps_a_schedule(model, inputs, targets, class_weights, device=None):
    logits, optimizer = step_on(device or best(), model, inputs, targets, class_weights)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9).step()
    return logits, optimizer
