"""What PyTorch allocates for products of matrices however their operands lie: one JSON row per case and mode, on
standard output.

Runs inside a process that sees the stand-in; record.py starts it. Argument: the number of rows to skip. A row:

forward, backward       every allocation (+) and free (-) in order, as requested, in elements of the result's dtype (of
                the 16-bit one under autocast); "w" and "lt" stand for a workspace of cuBLAS and of cuBLASLt, so that a
                row holds for more modes and GPUs; the gradients stay
strides         of the result and of each gradient that is not contiguous, by its number (0: the result)
"""

import contextlib
import gc
import itertools
import json
import sys

import product_cases
import record_ops
import torch

MODES = record_ops.MODES | {"fp64": (torch.float64, None), "c64": (torch.complex64, None)}


def compact(events, dtype):
    """As the rows have them."""
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    workspaces = {(32 << 20 if hopper else (8 << 20) + (128 << 10)): "w", 1 << 20: "lt"}
    workspaces |= {-size: f"-{name}" for size, name in workspaces.items()}
    named = []
    for allocated, run in itertools.groupby(events, key=lambda size: size > 0):
        sizes = [workspaces.get(size, size / dtype.itemsize) for size in run]
        sizes = [int(size) if isinstance(size, float) and size.is_integer() else size for size in sizes]
        named += sizes if allocated else sorted(sizes, key=lambda size: (isinstance(size, str), size))
    return named


class Engine:
    """Autograd's thread lets go of what it held a moment after a backward has returned."""

    def __init__(self):
        self.leaf = product_cases.ones(torch.float32, 1).requires_grad_()
        self.copy = self.leaf.clone()
        self.given = torch.ones_like(self.leaf)

    def settle(self):
        """Give it a task that allocates nothing: it has let go when it takes the next."""
        torch.autograd.grad(self.copy, self.leaf, self.given, retain_graph=True)


def record(engine, make, call, gradient, autocast, warm_up=True):
    """One row: the call is run once to warm up, with its backward, and once measured."""
    inputs = [tensor.detach().requires_grad_() for tensor in make()]

    def context():
        return torch.autocast("cuda", dtype=autocast) if autocast else contextlib.nullcontext()

    def backward(result):
        given = gradient(result)
        with record_ops.Traced() as traced:
            gradients = torch.autograd.grad(result, inputs, given)
            engine.settle()
        return traced, gradients

    if warm_up:
        with context():
            result = call(*inputs)
        if result.requires_grad:
            backward(result)
        engine.settle()
        del result
    with record_ops.Traced() as forward, context():
        result = call(*inputs)
    row = {"forward": compact(forward.events, autocast or result.dtype)}
    outs = [result]
    if result.requires_grad:
        behind, gradients = backward(result)
        row["backward"] = compact(behind.events, autocast or result.dtype)
        outs += gradients
    strides = {str(number): list(t.stride()) for number, t in enumerate(outs) if not t.is_contiguous()}
    return row | ({"strides": strides} if strides else {})


def main(skip: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda}), flush=True)
    every = torch.cuda.get_device_capability() >= (8, 0)
    modes = {name: mode for name, mode in MODES.items() if every or "bf16" not in name}
    tables = {mode: product_cases.cases(dtype) for mode, (dtype, _) in modes.items()}
    todo = [(name, mode) for mode in modes for name in tables[mode]]
    engine = Engine()
    for number, (name, mode) in enumerate(todo):
        if number < skip:
            continue
        row = {"case": name, "mode": mode}
        print(json.dumps(row | {"started": number}), flush=True)
        try:
            row |= record(engine, *tables[mode][name], MODES[mode][1])
        except Exception as error:
            torch.cuda.memory._record_memory_history(None)
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(row), flush=True)
        if number == skip:
            gc.collect()
            gc.freeze()  # what the first row imported: collections are then quick


if __name__ == "__main__":
    main(int(sys.argv[1]))
