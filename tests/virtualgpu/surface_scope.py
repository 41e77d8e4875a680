"""What the tests of the surface share: a scope for a module's tests, and what a result weighs on the GPU."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

from virtualgpu.gpu import VirtualGPU

SPELLINGS: dict[str, Any] = {
    "cuda": "cuda",
    "cuda:0": "cuda:0",
    "0": 0,
    "device(cuda)": torch.device("cuda"),
    "device(cuda, 0)": torch.device("cuda", 0),
}
"""The ways to name the GPU as an argument."""


def parts(result: Any) -> list[torch.Tensor]:
    """The dense tensors that a tensor is made of."""
    if result.layout is torch.sparse_coo:
        return [result._indices(), result._values()]
    if result.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [result.crow_indices(), result.col_indices(), result.values()]
    if result.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [result.ccol_indices(), result.row_indices(), result.values()]
    return [result]


def weight(*tensors: torch.Tensor) -> int:
    """The bytes that the tensors' storages take on the GPU, each rounded up to 512."""
    storages = {id(s): s for t in tensors for part in parts(t) for s in [part.untyped_storage()]}
    return sum(-(-storage.nbytes() // 512) * 512 for storage in storages.values())


def allocated(*, cycles: bool = False) -> int:
    """Bytes in use; with `cycles`, after Python has collected what holds itself, if there is any."""
    if cycles:
        gc.collect(1)
    return torch.cuda.memory_allocated()


@contextlib.contextmanager
def default_device(device: Any) -> Iterator[None]:
    """`torch.set_default_device` for a while."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def same_values(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether both hold the same; `result` may be on a GPU."""
    return all(torch.equal(a.cpu(), b) for a, b in zip(parts(result), parts(expected), strict=True))


def scope(**options: Any) -> VirtualGPU:
    """A virtual T4 as the tests want it, whatever the environment says."""
    return VirtualGPU("T4", settings="", **options)
