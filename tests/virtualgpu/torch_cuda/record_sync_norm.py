"""What PyTorch's CUDA code allocates for the kernels of SyncBatchNorm, which CUDA alone has: one JSON row per case, on
standard output.

Runs inside a process that sees the stand-in; record.py starts it. A case names the input's shape, whether input and
gradient have their channels last, and dtypes of input and weight; its row has for each kernel

out             shape, strides and dtype of each result, null where there is none
memory          [change, peak] of memory_allocated over the call, in bytes
events          every allocation (+) and free (-) in order, in bytes as requested
error           instead of all, where it is refused: type and message
"""

import itertools

import record_ops
import torch
from printing import print_rows

DTYPES = {"f32": torch.float32, "f16": torch.float16, "f64": torch.float64}
SHAPES = (
    (300, 8), (2048, 512), (8, 512, 256), (64, 24, 20, 20), (8, 64, 56, 56), (4, 1, 6, 6), (4, 6, 1, 1),
    (3, 8, 4, 6, 5), (16, 24, 4, 20, 20),
)  # fmt: skip
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def cases():
    """name -> what `kernels` takes."""
    made = {}
    for shape, dtype, weight in itertools.product(SHAPES, DTYPES, (None, "f32", "f16")):
        layouts = (False, True) if len(shape) in LAST else (False,)
        for last, gradient_last in itertools.product(layouts, layouts):
            words = f"{'last' if last else 'first'}, {'last' if gradient_last else 'first'}"
            size = "x".join(map(str, shape))
            made[f"{size} {dtype}, {words}, {weight}"] = shape, dtype, weight, last, gradient_last
    return made


def kernels(shape, dtype, weight, last, gradient_last):
    """name -> call, on tensors as SyncBatchNorm has them over three ranks."""

    def ones(*sizes, dtype):
        return torch.ones(sizes, device="cuda", dtype=dtype)

    def laid_out(is_last):
        return ones(*shape, dtype=DTYPES[dtype]).contiguous(
            memory_format=LAST[len(shape)] if is_last else torch.contiguous_format
        )

    x, grad, channels = laid_out(last), laid_out(gradient_last), shape[1]
    wide = torch.float64 if dtype == "f64" else torch.float32
    mean, means = ones(channels, dtype=wide), ones(3, channels, dtype=wide)
    w, b, running, counts = None, None, None, ones(3, dtype=wide)
    if weight is not None:
        w, b, running = (ones(channels, dtype=DTYPES[weight]) for _ in range(3))
        counts = ones(3, dtype=DTYPES[weight])
    numbers = ones(3, 1, dtype=torch.int32)
    affine = w is not None
    return {
        "batch_norm_stats": lambda: torch.batch_norm_stats(x, 1e-5),
        "batch_norm_gather_stats_with_counts": lambda: torch.batch_norm_gather_stats_with_counts(
            x, means, means, running, running, 0.1, 1e-5, counts
        ),
        "batch_norm_elemt": lambda: torch.batch_norm_elemt(x, w, b, mean, mean, 1e-5),
        "batch_norm_backward_reduce": lambda: torch.batch_norm_backward_reduce(
            grad, x, mean, mean, w, True, affine, affine
        ),
        "batch_norm_backward_reduce, no input": lambda: torch.batch_norm_backward_reduce(
            grad, x, mean, mean, w, False, affine, False
        ),
        "batch_norm_backward_elemt": lambda: torch.batch_norm_backward_elemt(
            grad, x, mean, mean, w, mean, mean, numbers
        ),
    }


def record(case, warm_up=True):
    """One row, without its name."""
    return {name: measured(call, warm_up) for name, call in kernels(*case).items()}


def measured(call, warm_up):
    try:
        if warm_up:
            call()
        with record_ops.Traced() as traced:
            result = call()
    except RuntimeError as error:
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
    found = result if isinstance(result, (list, tuple)) else [result]
    short = {kind: name for name, kind in DTYPES.items()}
    out = [None if t is None else [list(t.shape), list(t.stride()), short[t.dtype]] for t in found]
    return {"out": out, "memory": [traced.delta, traced.peak], "events": traced.events}


if __name__ == "__main__":
    print_rows((({"case": name}, (case,)) for name, case in cases().items()), record, cuda=torch.version.cuda)
