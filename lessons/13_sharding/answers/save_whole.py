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
     "state_dict() of a cut model has what this rank holds: full_tensor() gathers the rest",
     (drop("if isinstance(value, DTensor):"), drop("value = value.full_tensor()"))),
    ("each weight in the file has this rank's rows only", "to_local() is what lies here; full_tensor() is all of it",
     change("full_tensor()", "to_local()")),
    ("rank 0 alone gathers, and waits for the others for ever",
     "full_tensor() is a collective: all ranks call it, and rank 0 alone keeps the result",
     change("if isinstance(value, DTensor):", "if dist.get_rank() == 0 and isinstance(value, DTensor):"),
     add("if dist.get_rank(): return", before="whole = {}")),
    ("every rank saves", "in one folder all would write the same file at once: if dist.get_rank() == 0",
     change(ONLY, "    if True:\n        torch.save")),
    ("it is the last rank that saves", "rank 0 is there on any number of ranks",
     (change("if dist.get_rank() == 0:\n            whole",
             "if dist.get_rank() == dist.get_world_size() - 1:\n            whole"),
      change(ONLY, "    if dist.get_rank() == dist.get_world_size() - 1:\n        torch.save"))),
    ("the tensors in the file are on the GPU",
     "torch.load puts them where they were, and fails where there is no such GPU: cpu() before saving",
     change("value.cpu()", "value")),
    ("the tensors in the file are parameters",
     "nn.Parameter asks for gradients wherever the file is loaded: a tensor without them",
     change("value.cpu()", "torch.nn.Parameter(value.cpu(), value.is_floating_point())")),
    ("your function changed its argument model: it is left in eval mode", "remember each module's mode",
     add("model.eval()", before="whole = {}")),
    ("all of the model lies whole on rank 0's GPU before it goes to the host",
     "cpu() for each, before the next is gathered: a model that was cut does not fit whole",
     (change("whole[name] = value.cpu()", "whole[name] = value"), change("torch.save(whole, path)",
     "torch.save({name: value.cpu() for name, value in whole.items()}, path)"))),
    ("all tensors are gathered first, and lie whole on every GPU at once",
     "gather one, bring it to the host, then the next",
     change("in model.state_dict().items():", "in {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in "
     "model.state_dict().items()}.items():"),
     (change("model.state_dict()", "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"),
     add("from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict",
     before="whole = {}"))),
    ("the last tensor is still whole while the next one is gathered",
     "a name holds it until it is given to the next: use the name of the loop, or del it",
     (change("value = value.full_tensor()", "full = value.full_tensor()\n        else:\n            full = value"),
     change("value.cpu()", "full.cpu()"))),
    ("a buffer is in the file that does not belong to the state dict",
     "named_buffers() has those of persistent=False too: state_dict() has what is to be saved",
     (change("model.state_dict().items()", "[*model.named_parameters(), *model.named_buffers()]"),
     change("value.cpu()", "value.detach().cpu()"))),
    ("the tensors in the file ask for gradients",
     "they would wherever the file is loaded: detach() them; those of state_dict() are detached",
     change("value.cpu()", "value.cpu().requires_grad_(value.is_floating_point())")),
    ("the dictionary is of a kind that torch.load does not read",
     "it reads dict and OrderedDict, tensors and numbers: dict(whole)",
     change("whole = {}", "from collections import defaultdict\n    whole = defaultdict(list)")),
    ("the buffers are missing", "running means and counters of BatchNorm are buffers: state_dict() has both",
     change("model.state_dict().items()", "model.named_parameters()")),
    ("the model is whole afterwards, on every rank",
     "unshard() gathers in place, and reshard() must follow; full_tensor() makes a copy",
     change(SAVE, f"{SAVE}\n    [m.unshard() for m in model.modules() if hasattr(m, 'unshard')]")),
    ("the model itself lies on the host afterwards",
     "model.cpu() moves what is being trained; cpu() of a tensor makes a copy",
     change(SAVE, f"{SAVE}\n    model.cpu()")),
    ("the buffers in the file are zeros",
     "they are no DTensors, and are whole on every rank: they need no gathering, only cpu()",
     change("value = value.full_tensor()",
     "value = value.full_tensor()\n        else:\n            value = torch.zeros_like(value)")),
    ("the process group is closed", "it is the script's, which goes on to train with it",
     change(SAVE, f"{SAVE}\n    dist.destroy_process_group()")),
    ("what an earlier call has gathered is saved again", "the weights have been trained since: gather at each call",
     (change("(model, path):", "(model, path, whole={}):"), drop("whole = {}"),
      change("whole[name] = value.cpu()", "whole.setdefault(name, value.cpu())"))),
    ("a DTensor is gathered on the host", "NCCL sends from GPU to GPU: full_tensor() first, and then cpu()",
     change("value.full_tensor()", "value.cpu().full_tensor()")),
    ("the file is no dictionary of tensors",
     "a pickled module needs its class, and a process group, where it is loaded: save the dictionary",
     change("torch.save(whole, path)", "torch.save([*whole.items()], path)")),
    ("the values are rounded to another dtype", "the file has the weights as they are; who wants bfloat16 converts it",
     change("value.cpu()", "value.cpu().to(torch.bfloat16).to(value.dtype)")),
    ("the names have a prefix", "module. is what DDP puts before the names; fully_shard changes none of them",
     change("whole[name]", "whole['module.' + name]")),
)  # fmt: skip
