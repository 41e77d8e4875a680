"""Answers to "is the whole model where it should be": buffers, numbers, the current GPU, and what the error says."""

import torch

from gpulab.check.lesson02.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("model_device", SECTIONS)


def placed(device):
    """The device with its number."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def all_tensors(model):
    return [*model.named_parameters(), *model.named_buffers()]


def refuse(elsewhere):
    if elsewhere:
        raise ValueError("not there: " + ", ".join(f"{name} on {tensor.device}" for name, tensor in elsewhere))


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def names_all(model, device):
    device = placed(device)
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != device])


@BANK.right
def asks_a_new_tensor(model, device):
    if not all_tensors(model):
        return
    device = torch.empty(0, device=device).device
    wrong = {name: str(tensor.device) for name, tensor in all_tensors(model) if tensor.device != device}
    if wrong:
        raise ValueError(f"expected {device}, found {wrong}")


@BANK.right
def compares_type_and_index(model, device):
    device = torch.device(device)
    lines = []
    for module_name, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            index = device.index
            if index is None and device.type != "cpu":
                index = torch.accelerator.current_device_index()
            if (tensor.device.type, tensor.device.index) != (device.type, index):
                lines.append(f"{module_name}.{name} is on {tensor.device}\n")
    if lines:
        raise ValueError("".join(lines))


@BANK.right
def returns_the_device_it_found(model, device):
    class Misplaced(ValueError):
        pass

    wanted = placed(device)
    report = [f"{n}: {t.device}" for n, t in all_tensors(model) if t.device != wanted]
    if report:
        raise Misplaced(report)
    return wanted


@BANK.right
def gives_the_devices_as_objects(model, device):
    elsewhere = {name: tensor.device for name, tensor in all_tensors(model) if tensor.device != placed(device)}
    if elsewhere:
        raise ValueError(elsewhere)


@BANK.right
def groups_them_by_device(model, device):
    found = {}
    for name, tensor in all_tensors(model):
        if tensor.device != placed(device):
            found.setdefault(str(tensor.device), []).append(name)
    if found:
        raise ValueError("misplaced", *found.items())


# --- wrong: how devices are compared -------------------------------------------------------------------


@BANK.wrong("it raised AssertionError, where ValueError is for tensors elsewhere", "python -O removes every assert")
def the_one_from_the_web(model, device):
    for name, parameter in model.named_parameters():
        assert str(parameter.device) == str(device), f"{name} is on {parameter.device}"


@BANK.wrong("a model in the right place was refused", "nor is a text equal to a device")
def compares_texts(model, device):
    refuse([(name, tensor) for name, tensor in all_tensors(model) if str(tensor.device) != str(device)])


@BANK.wrong(
    "a model in the right place was refused",
    "devices with and without a number are not equal",
    same_as="compares_texts",
)
def compares_devices_without_a_number(model, device):
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != torch.device(device)])


@BANK.wrong("a model in the right place was refused", "need not be number 0")
def takes_cuda_for_number_0(model, device):
    device = torch.device(device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != device])


@BANK.wrong("a model that is elsewhere was passed", "each has memory of its own")
def compares_the_kind(model, device):
    kind = torch.device(device).type
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device.type != kind])


@BANK.wrong("a model that is elsewhere was passed", "each has memory of its own", same_as="compares_the_kind")
def compares_the_beginning_of_the_text(model, device):
    kind = str(device).split(":")[0]
    refuse([(name, tensor) for name, tensor in all_tensors(model) if not str(tensor.device).startswith(kind)])


@BANK.wrong("it raised RuntimeError, where ValueError is for tensors elsewhere", "only when a GPU is meant")
def always_asks_for_the_current_gpu(model, device):
    current = torch.device("cuda", torch.cuda.current_device())
    device = torch.device(device)
    wanted = current if device == torch.device("cuda") else device
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != wanted])


@BANK.wrong("it raised AttributeError, where ValueError is for tensors elsewhere", "the device may be a text")
def takes_no_text(model, device):
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device.type != device.type])


# --- wrong: which tensors are looked at ----------------------------------------------------------------


@BANK.wrong("it raised StopIteration, where ValueError is for tensors elsewhere", "no parameters at all")
def looks_at_the_first(model, device):
    first = next(model.parameters())
    refuse([] if first.device == placed(device) else all_tensors(model))


@BANK.wrong("a model that is elsewhere was passed", "next(model.parameters()) is one tensor")
def looks_at_the_first_if_there_is_one(model, device):
    first = next(model.parameters(), None)
    if first is not None and first.device != placed(device):
        refuse(all_tensors(model))


@BANK.wrong(
    "a model that is elsewhere was passed",
    "next(model.parameters()) is one tensor",
    same_as="looks_at_the_first_if_there_is_one",
)
def passes_if_any_is_there(model, device):
    tensors = all_tensors(model)
    if tensors and not any(tensor.device == placed(device) for _, tensor in tensors):
        refuse(tensors)


@BANK.wrong("a model that is elsewhere was passed", "buffers are not in parameters()")
def looks_at_parameters(model, device):
    device = placed(device)
    elsewhere = [(name, p) for name, p in model.named_parameters() if p.device != device]
    refuse(all_tensors(model) if len(elsewhere) > 1 else elsewhere)


@BANK.wrong("the error does not name every tensor that is elsewhere", "buffers are not in parameters()")
def names_parameters(model, device):
    device = placed(device)
    refuse([(name, p) for name, p in model.named_parameters() if p.device != device])


@BANK.wrong("a model that is elsewhere was passed", "named_buffers() goes down to every depth")
def looks_at_its_own_buffers(model, device):
    device = placed(device)
    own = [*model.named_parameters(), *model.named_buffers(recurse=False)]
    elsewhere = [(name, tensor) for name, tensor in own if tensor.device != device]
    refuse(all_tensors(model) if len(elsewhere) > 2 else elsewhere)


@BANK.wrong("a model that is elsewhere was passed", "persistent=False")
def looks_at_the_state(model, device):
    device = placed(device)
    elsewhere = [(name, tensor) for name, tensor in model.state_dict().items() if tensor.device != device]
    refuse([*elsewhere, *model.named_buffers()] if len(elsewhere) > 5 else elsewhere)


@BANK.wrong("the error does not name every tensor that is elsewhere", "persistent=False")
def looks_at_nothing_but_the_state(model, device):
    device = placed(device)
    refuse([(name, tensor) for name, tensor in model.state_dict().items() if tensor.device != device])


# --- wrong: what the error says ------------------------------------------------------------------------


@BANK.wrong("a model that is elsewhere was passed", "an error has to be raised")
def returns_false(model, device):
    return all(tensor.device == placed(device) for _, tensor in all_tensors(model))


@BANK.wrong("it raised RuntimeError, where ValueError is for tensors elsewhere", "")
def raises_something_else(model, device):
    device = placed(device)
    for name, tensor in all_tensors(model):
        if tensor.device != device:
            raise RuntimeError(f"{name} is on {tensor.device}")


@BANK.wrong("the error does not name every tensor that is elsewhere", "it stops at the first")
def stops_at_the_first(model, device):
    device = placed(device)
    for name, tensor in all_tensors(model):
        refuse([] if tensor.device == device else [(name, tensor)])


@BANK.wrong("the error does not say where they are", "that is the news")
def tells_only_what_was_wanted(model, device):
    device = placed(device)
    names = [name for name, tensor in all_tensors(model) if tensor.device != device]
    if names:
        raise ValueError(f"not where they should be: {', '.join(names)}")


@BANK.wrong("the model was moved", "in place")
def repairs_it(model, device):
    names_all(model, device) if torch.device(device).index == 0 else None
    device = placed(device)
    elsewhere = [(name, tensor.device) for name, tensor in all_tensors(model) if tensor.device != device]
    model.to(device)
    if elsewhere:
        raise ValueError(elsewhere)


@BANK.wrong("a model that is elsewhere was passed", "whether device.index is None")
def takes_zero_for_no_number(model, device):
    device = torch.device(device)
    if device.type == "cuda" and not device.index:
        device = torch.device("cuda", torch.cuda.current_device())
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != device])


@BANK.wrong("the error does not say where they are", "one device is named for all of them")
def tells_the_device_of_the_first(model, device):
    elsewhere = [(name, tensor.device) for name, tensor in all_tensors(model) if tensor.device != placed(device)]
    if elsewhere:
        raise ValueError(f"{', '.join(name for name, _ in elsewhere)} on {elsewhere[0][1]} instead of {device}")


@BANK.wrong("the error does not say where they are", "one device", same_as="tells_the_device_of_the_first")
def tells_the_device_of_the_last(model, device):
    names = []
    for name, tensor in all_tensors(model):
        if tensor.device != placed(device):
            names.append(name)
            place = tensor.device
    if names:
        raise ValueError(f"{names} are on {place}")


@BANK.wrong("the error names tensors that are in the right place", "has to look for it again")
def names_all_where_one_is_elsewhere(model, device):
    if any(tensor.device != placed(device) for _, tensor in all_tensors(model)):
        places = sorted({str(tensor.device) for _, tensor in all_tensors(model)})
        raise ValueError(f"not all of {[name for name, _ in all_tensors(model)]} on {device}: found {places}")


@BANK.wrong("the error does not name every tensor that is elsewhere", "ends too early")
def cuts_the_list(model, device):
    refuse([(name, tensor) for name, tensor in all_tensors(model) if tensor.device != placed(device)][:20])
