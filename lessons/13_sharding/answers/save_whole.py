"""Answers to "one file for everybody"."""

import torch
import torch.distributed as dist
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

BANK = Bank("save_whole")
SAVE, ONLY = "torch.save(whole, path)", "    if dist.get_rank() == 0:\n        torch.save"


@BANK.right
def by_options(model, path):
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(whole, path)


@BANK.right
def in_padded_pieces(model, path):
    """On the GPU are one tensor and a padded copy of this rank's rows, half a tensor where there are two ranks."""

    def gathered(value):
        own = value.to_local()
        padded = own.new_zeros(-(-len(value) // dist.get_world_size()), *own.shape[1:])
        padded[: len(own)] = own
        rows = padded.new_empty(len(padded) * dist.get_world_size(), *padded.shape[1:])
        dist.all_gather_into_tensor(rows, padded)
        return rows.cpu()[: len(value)].clone()

    whole = {}
    for name, value in model.state_dict().items():
        whole[name] = gathered(value) if isinstance(value, DTensor) else value.cpu()
    if dist.get_rank() == 0:
        torch.save(whole, path)


BANK.mistakes(
    ("the file has DTensors, each with this rank's rows",
     "a sharded model's state_dict() has only this rank's part: full_tensor() gathers the rest",
     (drop("if isinstance(value, DTensor):"), drop("value = value.full_tensor()"))),
    ("each weight in the file has this rank's rows only",
     "to_local() is this rank's part; full_tensor() is the whole tensor",
     change("full_tensor()", "to_local()")),
    ("only rank 0 gathers, and waits for the others for ever",
     "full_tensor() is a collective: all ranks call it, and only rank 0 keeps the result",
     change("if isinstance(value, DTensor):", "if dist.get_rank() == 0 and isinstance(value, DTensor):"),
     add("if dist.get_rank(): return", before="whole = {}")),
    ("every rank saves", "in one folder all would write the same file at once: if dist.get_rank() == 0",
     change(ONLY, "    if True:\n        torch.save")),
    ("it is the last rank that saves", "rank 0 is there on any number of ranks",
     (change("if dist.get_rank() == 0:\n            whole",
             "if dist.get_rank() == dist.get_world_size() - 1:\n            whole"),
      change(ONLY, "    if dist.get_rank() == dist.get_world_size() - 1:\n        torch.save"))),
    ("the tensors in the file are on the GPU",
     "torch.load puts them back on that GPU, and fails if there is none: cpu() before saving",
     change("value.cpu()", "value")),
    ("the tensors in the file are parameters",
     "an nn.Parameter requires gradients wherever it is loaded: save plain tensors",
     change("value.cpu()", "torch.nn.Parameter(value.cpu(), value.is_floating_point())")),
    ("your function changed its argument model: it is left in eval mode", "remember each module's mode",
     add("model.eval()", before="whole = {}")),
    ("the whole model is on rank 0's GPU before it goes to the host",
     "call cpu() on each before you gather the next: a sharded model does not fit whole",
     (change("whole[name] = value.cpu()", "whole[name] = value"), change("torch.save(whole, path)",
     "torch.save({name: value.cpu() for name, value in whole.items()}, path)"))),
    ("all tensors are gathered first, and are whole on every GPU at once",
     "gather one, copy it to the host, then gather the next",
     change("in model.state_dict().items():", "in {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in "
     "model.state_dict().items()}.items():"),
     (change("model.state_dict()", "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"),
     add("from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict",
     before="whole = {}"))),
    ("the last tensor is still whole while the next one is gathered",
     "a variable keeps it until it is reassigned: reuse the loop variable, or del it",
     (change("value = value.full_tensor()", "full = value.full_tensor()\n        else:\n            full = value"),
     change("value.cpu()", "full.cpu()"))),
    ("a buffer is in the file that does not belong to the state dict",
     "named_buffers() has those of persistent=False too: state_dict() has what is to be saved",
     (change("model.state_dict().items()", "[*model.named_parameters(), *model.named_buffers()]"),
     change("value.cpu()", "value.detach().cpu()"))),
    ("the tensors in the file require gradients",
     "they would wherever the file is loaded: detach() them; state_dict()'s tensors are detached",
     change("value.cpu()", "value.cpu().requires_grad_(value.is_floating_point())")),
    ("the dictionary has a type that torch.load does not read",
     "it reads dict and OrderedDict, tensors and numbers: dict(whole)",
     change("whole = {}", "from collections import defaultdict\n    whole = defaultdict(list)")),
    ("the buffers are missing", "running means and counters of BatchNorm are buffers: state_dict() has both",
     change("model.state_dict().items()", "model.named_parameters()")),
    ("the model is whole afterwards, on every rank",
     "unshard() gathers in place, and reshard() must follow; full_tensor() makes a copy",
     change(SAVE, f"{SAVE}\n    [m.unshard() for m in model.modules() if hasattr(m, 'unshard')]")),
    ("the model itself is on the host afterwards",
     "model.cpu() moves the model being trained; cpu() of a tensor makes a copy",
     change(SAVE, f"{SAVE}\n    model.cpu()")),
    ("the buffers in the file are zeros",
     "they are not DTensors, but whole on every rank: they only need cpu()",
     change("value = value.full_tensor()",
     "value = value.full_tensor()\n        else:\n            value = torch.zeros_like(value)")),
    ("the process group is closed", "it belongs to the script, which continues training with it",
     change(SAVE, f"{SAVE}\n    dist.destroy_process_group()")),
    ("what an earlier call gathered is saved again", "the weights have been trained since: gather at each call",
     (change("(model, path):", "(model, path, whole={}):"), drop("whole = {}"),
      change("whole[name] = value.cpu()", "whole.setdefault(name, value.cpu())"))),
    ("a DTensor is gathered on the host", "NCCL sends from GPU to GPU: full_tensor() first, and then cpu()",
     change("value.full_tensor()", "value.cpu().full_tensor()")),
    ("the file is not a dictionary of tensors",
     "a pickled module needs its class, and a process group, where it is loaded: save the dictionary",
     change("torch.save(whole, path)", "torch.save([*whole.items()], path)")),
    ("the values are rounded to another dtype", "save the weights as they are; convert to bfloat16 after loading",
     change("value.cpu()", "value.cpu().to(torch.bfloat16).to(value.dtype)")),
    ("the names have a prefix", "DDP puts module. before the names; fully_shard changes none",
     change("whole[name]", "whole['module.' + name]")),
)  # fmt: skip
