"""Answers to "a batch of anything": containers, what is no tensor, and the caller's own batch."""

import copy
import functools

import torch
from banks.bank import Bank
from banks.edits import change

BANK = Bank("move_batch")
MOVES, LISTS = "return batch.to(device)", "isinstance(batch, list | tuple)"
NAMED = 'isinstance(batch, tuple) and hasattr(batch, "_fields")'
OF_DICT = "{key: move_batch(value, device) for key, value in batch.items()}"
OF_LIST, ITEMS = "return type(batch)(move_batch(item", "move_batch(item, device) for item in batch"
NO_NAMED, REST = change(NAMED, "False"), f"return type(batch)({ITEMS})\n    return batch"


def moves(line):
    """`line` for each tensor; `moved` is what .to gives for it."""
    return change(MOVES, f"moved = batch.to(device)\n        {line}")


def rest(line):
    """`line` for what is neither a tensor nor a container."""
    return change(REST, REST.replace("\n    return batch", f"\n    {line}\n    return batch"))


@BANK.right
def asks_by_type_at_the_first_argument(batch, device):
    @functools.singledispatch
    def moved(x):
        return x

    moved.register(torch.Tensor, lambda x: x.to(device))
    moved.register(dict, lambda x: {key: moved(value) for key, value in x.items()})
    moved.register(list, lambda x: list(map(moved, x)))
    moved.register(tuple, lambda x: x._make(map(moved, x)) if hasattr(x, "_make") else tuple(map(moved, x)))
    return moved(batch)


@BANK.right
def moves_the_leaves_of_a_tree_and_waits(batch, device):
    def moved(x):
        return x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x

    got = torch.utils._pytree.tree_map(moved, batch)
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    return got


# --- containers ------------------------------------------------------------------------------------------
BANK.mistakes(
    ("not all containers in the batch are entered",
     "a dict holds lists, tuples and dicts: let the function call itself for every item of each",
     (change(OF_DICT, "{k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}"),
      NO_NAMED, change(LISTS, "False")), (NO_NAMED, change(LISTS, "False"))),
    ("tuples are not entered", "a tuple is a container too", (NO_NAMED, change(LISTS, "isinstance(batch, list)"))),
    ("namedtuples are not entered", "a namedtuple is a tuple: go through it, and rebuild it with type(x)(*items)",
     (NO_NAMED, change(LISTS, "type(batch) in (list, tuple)"))),
    ("a namedtuple is built from one iterable", "a namedtuple takes its items one by one: type(x)(*items)", NO_NAMED),
    ("a namedtuple without fields is treated as a plain tuple",
     "a namedtuple without fields is one too: test hasattr(x, '_fields'), which exists, though it is empty",
     change(NAMED, "getattr(batch, '_fields', None)")),
    ("a namedtuple became a plain tuple", "batch.images now fails: rebuild it with type(x)(*items)",
     (NO_NAMED, change(OF_LIST, "return (list if type(batch) is list else tuple)(move_batch(item"))),
    ("tuples became lists", "code that uses the batch distinguishes lists and tuples: rebuild it as type(x)",
     (NO_NAMED, change(OF_LIST, "return list(move_batch(item"))),
    ("a dict became a list of its keys",
     "iterating over a dict gives its keys: iterate over .items(), and build a dict",
     change(OF_DICT, f"[{ITEMS}]"),
     (change(OF_DICT, f"[{ITEMS}]"), NO_NAMED, change(OF_LIST, "return list(move_batch(item"))),
    ("the function takes dicts only", "the batch is not always a dict: it may be a tensor, a list, a tuple or None",
     lambda batch, device: {key: BANK.solution(value, device) for key, value in batch.items()}),
    ("empty containers come back as the same objects", "an empty one is a container too",
     (change("isinstance(batch, dict)", "isinstance(batch, dict) and batch"), change(LISTS, f"{LISTS} and batch"))),
    ("the keys are in another order", "a dict keeps the order of its keys: iterate over .items() as it is",
     change("in batch.items()", "in sorted(batch.items(), key=lambda pair: str(pair[0]))")),
    ("items that are None are left out", "None and strings belong to the batch too",
     change("batch.items()}", "batch.items() if value is not None}")),
)  # fmt: skip

# --- what is no tensor -----------------------------------------------------------------------------------
BANK.mistakes(
    (".to is called on everything", "not everything in a batch has a .to: test whether it is a tensor",
     change(REST, f"{REST}.to(device)"), lambda batch, device: {key: value.to(device) for key, value in batch.items()}),
    ("texts are entered", "a string of one letter contains itself: test for list and tuple by name",
     change(LISTS, "hasattr(batch, '__iter__')")),
    ("what is not a tensor became None", "a branch of the function ends without a return",
     change(REST, REST.replace("\n    return batch", ""))),
    ("numbers became tensors", "torch.as_tensor converts whatever looks like a tensor: only tensors move",
     rest("if isinstance(batch, int | float): return torch.as_tensor(batch, device=device)")),
    ("what belongs to NumPy became a tensor", "only tensors move here, and the rest is returned as it is",
     rest("if type(batch).__name__ == 'ndarray': return torch.from_numpy(batch).to(device)"),
     rest("if type(batch).__name__ == 'float32': return torch.as_tensor(batch, device=device)")),
    ("bytes are split into numbers", "bytes are a sequence like strings, not a container: test for list and tuple by "
                                     "name",
     rest("if type(batch) is bytes: return [*batch]"), rest("if type(batch) is bytes: return bytes([*batch])")),
    ("an object that is not a container was taken apart",
     "it can be iterated over, and has fields: test for dict, list and tuple by name, and return it as it is",
     change(NAMED, 'hasattr(batch, "_fields")'), change("isinstance(batch, dict)", "hasattr(batch, 'items')"),
     rest("if type(batch).__name__ == 'Record': return [move_batch(item, device) for item in batch]")),
    ("objects and arrays were copied", "return an object that is not a container itself, not a copy",
     change(REST, REST.replace("\n    return batch", "\n    return __import__('copy').deepcopy(batch)"))),
    ("the whole batch is copied first", "deepcopy copies objects and arrays too, and fails on a tensor within a graph",
     lambda batch, device: BANK.solution(copy.deepcopy(batch), device)),
)  # fmt: skip

# --- the caller's batch ----------------------------------------------------------------------------------
BANK.mistakes(
    ("the moved tensors were put into the caller's dict", "build a new dict",
     change(f"return {OF_DICT}", f"batch.update({OF_DICT})\n        return batch")),
    ("attributes of the caller's objects were set",
     "an object that is not a container stays as it is, and so do its attributes",
     rest("for name in vars(batch) if type(batch).__name__ == 'Record' else (): "
          "setattr(batch, name, move_batch(getattr(batch, name), device))")),
    ("a tensor is no longer part of the graph",
     "detach() and .data cut it off: backward never reaches the caller's tensor",
     moves("return moved if moved is batch else moved.detach()"),
     moves("return moved if moved is batch else moved.detach().requires_grad_(batch.requires_grad)")),
)  # fmt: skip

# --- tensors ---------------------------------------------------------------------------------------------
BANK.mistakes(
    ("a tensor's .to is called, but its result is not kept", "tensor.to(device) leaves the tensor as it is",
     moves("return batch")),
    ("the number of the GPU got lost", "the code names a GPU, or only its type: pass the device to .to as it is",
     change(MOVES, "return batch.to(torch.device(device).type)")),
    ("“cuda” is treated as GPU 0", "“cuda” is the current GPU, which need not be number 0: .to(device) knows it",
     change(MOVES, "return batch.to(0 if str(device) == 'cuda' else device)")),
    ("tensors move to a GPU, and not back", "moves to the CPU count too: .to(device) for any device",
     moves("return moved if moved.is_cuda else batch")),
    ("a tensor without dimensions is left out", "it is a tensor too", moves("return moved if batch.dim() else batch")),
    ("a tensor without elements is left out", "it is a tensor too, and has a device",
     moves("return moved if batch.numel() else batch")),
    ("an nn.Parameter is left out", "it is a tensor too, of a subclass: ask isinstance(x, torch.Tensor)",
     moves("return moved if type(batch) is torch.Tensor else batch")),
    ("every tensor became float32", "only the device changes; dtype and shape stay", moves("return moved.float()")),
    ("floats became float32", "float64 and bfloat16 are floats too, and the caller chose them",
     moves("return moved.float() if moved.is_floating_point() else moved"),
     moves("return moved.float() if moved.dtype is torch.float64 else moved")),
    ("a new tensor was made on the device", "empty_like and zeros_like copy no values: copy the old tensor",
     moves("return moved if moved is batch else torch.zeros_like(moved)")),
    ("a tensor that was already on the device was copied", "copy=True, clone(), contiguous(), or a way over the CPU",
     change(MOVES, "return batch.to(device, copy=True)"), moves("return moved.contiguous()")),
    ("a tensor that is on “cuda” already was copied",
     "torch.device('cuda') has no number, so it equals no tensor's device: .to(device) handles this itself",
     moves("return batch if batch.device == torch.device(device) else batch.to(device, copy=True)")),
    ("the values are not on the CPU yet when the function returns",
     "non_blocking=True to the CPU returns before the copy is made, and whoever reads the tensor then gets what stood "
     "in its memory before", change(MOVES, "return batch.to(device, non_blocking=True)")),
    ("only the current GPU is waited for", "torch.cuda.synchronize() waits for one GPU: the batch may be on another",
     change(MOVES, "moved = batch.to(device, non_blocking=True); torch.cuda.synchronize(); return moved")),
)  # fmt: skip
