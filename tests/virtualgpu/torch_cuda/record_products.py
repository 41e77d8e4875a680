"""What PyTorch allocates for products of matrices however their operands lie: one JSON row per case and mode, on
standard output.

Runs inside a process that sees the stand-in; record.py starts it. A row:

forward, backward       every allocation (+) and free (-) in order, as requested, in elements of the result's dtype (of
                the 16-bit one under autocast); "w" and "lt" stand for a workspace of cuBLAS and of cuBLASLt, so that a
                row holds for more modes and GPUs; the gradients stay
strides         of the result and of each gradient that is not contiguous, by its number (0: the result)
"""

import contextlib
import itertools

import product_cases
import record_ops
import torch
from printing import of_this_gpu, print_rows

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


def rows():
    engine = Engine()
    for mode, (dtype, autocast) in of_this_gpu(MODES).items():
        for name, case in product_cases.cases(dtype).items():
            yield {"case": name, "mode": mode}, (engine, *case, autocast)


if __name__ == "__main__":
    print_rows(rows(), record, cuda=torch.version.cuda)
