"""What PyTorch's CUDA operators allocate and keep for backward: one JSON row per operator and mode, on standard output.

Runs inside a process that sees the stand-in; record.py starts it. A row:

calls           the operators below autograd and autocast, with their inputs' dtypes; views are left out
out             [shape, dtype] of each result
saved_tensors   what autograd keeps: [shape, dtype, bytes of its storage, number of its storage, whose it is: "input",
                "parameter", "buffer", "output", "" (made for backward) or "cpu"]
saved, saved_not_input, saved_own       bytes of the storages kept: all, those of no input, those of no input,
                parameter or buffer
forward, backward       [change, peak] of memory_allocated over the call, in bytes; the gradients stay
forward_events, backward_events         every allocation (+) and free (-) in order, in bytes as requested
gradients       bytes of the gradients

`peak` includes the workspaces of cuBLAS. TF32 is PyTorch's default: on for cuDNN, off for cuBLAS.
"""

import contextlib
import itertools

import operators
import torch
from printing import of_this_gpu, print_rows
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = {"f": "float", "i": "int", "u": "uint"}
SHORT = {getattr(torch, f"{KINDS[k]}{b}"): f"{k}{b}" for k in KINDS for b in (8, 16, 32, 64) if f"{k}{b}" != "f8"}
SHORT |= {torch.bfloat16: "bf16", torch.bool: "b8"}
MODES = {
    "fp32": (torch.float32, None),
    "autocast_fp16": (torch.float32, torch.float16),
    "autocast_bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float16, None),
    "bf16": (torch.bfloat16, None),
}


def fresh():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def tensors(result):
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


class Traced:
    """Within: every allocation (+) and free (-) in order, in bytes as requested; `delta` and `peak` over the start.

    Frees in a row are put in order of size: autocast empties its cache of casts in the order of their addresses.
    """

    def __enter__(self):
        fresh()
        torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
        self.start = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *error):
        self.delta = torch.cuda.memory_allocated() - self.start
        self.peak = torch.cuda.max_memory_allocated() - self.start
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        sign = {"alloc": 1, "free_completed": -1}
        sizes = [sign[e["action"]] * e["size"] for e in events if e["action"] in sign]
        runs = itertools.groupby(sizes, key=lambda size: size > 0)
        self.events = [size for alloc, run in runs for size in (run if alloc else sorted(run))]


class Calls(TorchDispatchMode):
    """The operators below autograd and autocast that compute, with the dtypes of their first tensor arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        if not call.is_view:
            kinds = {SHORT.get(t.dtype, str(t.dtype)): None for t in tensors(args)}
            self.seen.append(f"{call._schema.name.removeprefix('aten::')}({','.join(kinds)})")
        return call(*args, **kwargs or {})


def record(make, autocast, warm_up=True):
    """One row: the call is run once to warm up, once to see its operators, once measured with its backward.

    Without `warm_up` once only, and there are no `calls`.
    """

    def context():
        return torch.autocast("cuda", dtype=autocast) if autocast else contextlib.nullcontext()

    case = make()
    parameters = list(case.module.parameters()) if case.module else []
    buffers = list(case.module.buffers()) if case.module else []
    leaves = [t for t in (*case.inputs, *parameters) if t.requires_grad]

    def backward(result):
        differentiable = [t for t in tensors(result) if t.requires_grad][:1]
        if differentiable:
            gradient = torch.empty_like(differentiable[0])
            with Traced() as traced:
                torch.autograd.backward(differentiable, [gradient])
            return traced

    row = {}
    for before in (contextlib.nullcontext(), Calls()) if warm_up else ():
        with before, context():
            result = case.call(*case.inputs)
        if isinstance(before, Calls):
            row["calls"] = before.seen
        else:
            with contextlib.suppress(RuntimeError):  # the measured one says it
                backward(result)
        del result
        for leaf in leaves:
            leaf.grad = None

    owners = {t.untyped_storage().data_ptr(): "parameter" for t in parameters}
    owners |= {t.untyped_storage().data_ptr(): "buffer" for t in buffers}
    owners |= {t.untyped_storage().data_ptr(): "input" for t in case.inputs if t.numel()}
    packed = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        packed.append((list(tensor.shape), tensor.dtype, storage.data_ptr(), storage.nbytes(), tensor.device.type))
        return tensor

    with Traced() as forward, context(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = case.call(*case.inputs)
    outputs = tensors(result)
    owners = {t.untyped_storage().data_ptr(): "output" for t in outputs} | owners
    row["out"] = [[list(t.shape), SHORT[t.dtype]] for t in outputs]
    order = {}
    for _, _, pointer, _, _ in packed:
        order.setdefault(pointer, len(order))
    row["saved_tensors"] = []
    for shape, dtype, pointer, nbytes, device in packed:
        owner = owners.get(pointer, "") if device == "cuda" else device
        row["saved_tensors"].append([shape, SHORT[dtype], nbytes, order[pointer], owner])
    unique = {pointer: (nbytes, owners.get(pointer)) for _, _, pointer, nbytes, device in packed if device == "cuda"}
    row["saved"] = sum(nbytes for nbytes, _ in unique.values())
    row["saved_not_input"] = sum(nbytes for nbytes, owner in unique.values() if owner != "input")
    row["saved_own"] = sum(nbytes for nbytes, owner in unique.values() if owner in (None, "output"))
    row["forward"] = [forward.delta, forward.peak]
    row["forward_events"] = forward.events
    traced = None
    try:
        traced = backward(result)
    except RuntimeError as error:
        row["backward_error"] = f"{type(error).__name__}: {error}"[:300]
    if traced:
        row["backward"] = [traced.delta, traced.peak]
        row["backward_events"] = traced.events
        gradients = [t.grad.untyped_storage() for t in leaves if t.grad is not None and not t.grad.is_sparse]
        row["gradients"] = sum({storage.data_ptr(): storage.nbytes() for storage in gradients}.values())
    return row


def cases():
    for mode, (dtype, autocast) in of_this_gpu(MODES).items():
        for name, make in operators.operators(dtype).items():
            yield {"op": name, "mode": mode}, (make, autocast)


if __name__ == "__main__":
    print_rows(cases(), record, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
