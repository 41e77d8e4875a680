"""Answers to "is the whole model there?": which tensors are looked at, how devices are compared, what is told."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("model_device", "verify_model_device")
BARE, CURRENT = 'device.type == "cuda" and device.index is None', "torch.cuda.current_device()"
TENSORS, BUFFERS = "tensors = [*model.named_parameters(), *model.named_buffers()]", ", *model.named_buffers()]"
DIFFERS, RAISE = "tensor.device != device", "raise ValueError(f\"not on {device}: {', '.join(elsewhere)}\")"
NAME_ON, IF = 'f"{name} on {tensor.device}"', "if elsewhere:"


def only_if(condition):
    """Nothing is raised unless this holds too."""
    return change(IF, f"if elsewhere and {condition}:")


@BANK.right
def compares_type_and_index_module_by_module(model, device):
    device = torch.device(device)
    lines = []
    for module_name, module in model.named_modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            index = device.index
            if index is None and device.type != "cpu":
                index = torch.accelerator.current_device_index()
            if (tensor.device.type, tensor.device.index) != (device.type, index):
                lines.append(f"{module_name}.{name} is on {tensor.device}\n")
    if lines:
        raise ValueError("".join(lines))


@BANK.right
def groups_them_by_device(model, device):
    class Misplaced(ValueError):
        pass

    tensors, found = [*model.named_parameters(), *model.named_buffers()], {}
    wanted = torch.empty(0, device=device).device if tensors else None
    for name, tensor in tensors:
        if tensor.device != wanted:
            found.setdefault(tensor.device, []).append(name)
    if found:
        raise Misplaced("misplaced", *found.items())
    return wanted


# --- how devices are compared ----------------------------------------------------------------------------
BANK.mistakes(
    ("a device without a number was compared as it is",
     "devices with and without a number are not equal, nor is a string equal to a device: make a torch.device of the "
     "argument, and give it the current GPU's number where it has none",
     change(BARE, "False"), (change(BARE, "False"), change(DIFFERS, "str(tensor.device) != str(device)"))),
    ("“cuda” was treated as GPU 0",
     "“cuda” is the current GPU, which need not be number 0: torch.cuda.current_device() tells", change(CURRENT, "0")),
    ("only the type of device was compared", "every GPU is “cuda”, and each has memory of its own",
     change(DIFFERS, "tensor.device.type != device.type")),
    ("the GPU's number in the argument is ignored", "only “cuda” alone means the current GPU",
     change(BARE, 'device.type == "cuda"')),
    ("the number 0 was treated as no number", "`not device.index` is true of 0 too: ask whether device.index is None",
     change("device.index is None", "not device.index")),
    ("the current GPU is asked for where no GPU is meant",
     "torch.cuda.current_device() raises where there is no GPU: ask for it only when a GPU is meant",
     add("current = torch.cuda.current_device()", before=BARE)),
    ("without a GPU every model is rejected", "a model on the CPU is in the right place if the device is the CPU",
     add("if not torch.cuda.is_available(): raise ValueError('no GPU')", before=BARE)),
    ("a string is used as a device", "the device may be a string: torch.device(device) makes a device of it",
     drop("torch.device(device)")),
)  # fmt: skip

# --- which tensors are looked at -------------------------------------------------------------------------
BANK.mistakes(
    ("a model without tensors was rejected", "none of its tensors can be elsewhere", add(
        "if not tensors: raise ValueError('no tensors')", before="elsewhere = ")),
    ("the first parameter is read, but there may be none",
     "next() of nothing raises StopIteration: a model may have no parameters at all",
     change(TENSORS, f"{TENSORS[:-len(BUFFERS)]}{BUFFERS}\n    next(model.parameters())")),
    ("only the first tensor is looked at", "next(model.parameters()) is one tensor, and each has a device of its own",
     only_if("tensors[0][1].device != device")),
    ("one tensor in the right place was enough to accept the model",
     "a model has many tensors, each with a device of its own",
     only_if("len(elsewhere) == len(tensors)")),
    ("parameters that are not trained do not count", "a frozen layer computes too: every parameter counts",
     change("*model.named_parameters()", "*((n, p) for n, p in model.named_parameters() if p.requires_grad)"),
     only_if("any(t.device != device for _, t in tensors if t.requires_grad or not isinstance(t, nn.Parameter))")),
    ("buffers do not count", "buffers are not in parameters(): go through named_buffers() too",
     change(BUFFERS, "]"), only_if("any(p.device != device for p in model.parameters())")),
    ("buffers of submodules do not count", "named_buffers() goes down to every depth; with recurse=False it does not",
     change("named_buffers()", "named_buffers(recurse=False)"),
     only_if("any(t.device != device for t in [*model.parameters(), *model.buffers(recurse=False)])")),
    ("buffers with persistent=False do not count", "state_dict() leaves them out: go through named_buffers()",
     change(TENSORS, "tensors = model.state_dict().items()"),
     only_if("any(t.device != device for t in model.state_dict().values())")),
)  # fmt: skip

# --- what is raised, and what it says --------------------------------------------------------------------
BANK.mistakes(
    ("nothing is raised", "a print or a returned False is easily overlooked: raise ValueError",
     change(RAISE, "return False"), change(RAISE, "print(elsewhere)")),
    ("an assert stands where ValueError is asked for", "python -O removes every assert: raise ValueError",
     change(RAISE, "assert not elsewhere, elsewhere")),
    ("another error was raised", "the caller catches ValueError", change("raise ValueError", "raise RuntimeError")),
    ("only the first is named", "collect all in a list, and raise once after the loop",
     change("{', '.join(elsewhere)}", "{elsewhere[0]}")),
    ("the list of names ends too early", "every tensor is named, however many there are",
     change("', '.join(elsewhere)", "', '.join(elsewhere[:20])")),
    ("only the last part of a name is given", "many layers have a “weight”: named_parameters() gives full names",
     change(NAME_ON, "f\"{name.split('.')[-1]} on {tensor.device}\"")),
    ("all tensors are named as soon as one is elsewhere", "then the reader still has to search for it",
     change(RAISE, 'raise ValueError([f"{name} on {tensor.device}" for name, tensor in tensors])')),
    ("the actual devices are not given", "the caller knows the device that was asked for: say where each tensor is",
     change(NAME_ON, "name")),
    ("one device is given for all tensors", "each tensor has its own: put it beside the name",
     change(RAISE, "names = [text.split()[0] for text in elsewhere]\n"
                   "        raise ValueError(f\"{names} are on {elsewhere[0].split()[-1]}\")"),
     change(RAISE, "names = [text.split()[0] for text in elsewhere]\n"
                   "        raise ValueError(f\"{names} are on {elsewhere[-1].split()[-1]}\")")),
    ("the devices stand apart from the names", "each tensor has its own: put it beside the name",
     change(RAISE, "names = [text.split()[0] for text in elsewhere]\n"
                   "        raise ValueError(f\"{names} are on {sorted({str(t.device) for _, t in tensors})}\")")),
    ("the model was moved", "model.to(device) works in place: the caller wants to know what is wrong, not to have it "
                            "changed",
     add("'meta' in str(elsewhere) or model.to(device)", before=IF), add("model.to(device)", before="tensors =")),
)  # fmt: skip
