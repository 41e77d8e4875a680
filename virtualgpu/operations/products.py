"""Extra memory of matrix products: cuBLAS workspaces, and clones of operands that cuBLAS cannot take.

cuBLAS takes a matrix whose rows or columns each lie in one piece, at equal distances that are no shorter than they
are: transposed, or a slice of columns. PyTorch clones any other first, an expanded gradient among them
(cuBlasCommonArgs.h and Blas.cpp in aten/src/ATen/native/cuda).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from .. import release

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor

_LT_BYTES = 1 << 20
_HALVES = (torch.float16, torch.bfloat16)


def keeps_workspaces() -> bool:
    """Return True if each cuBLAS handle keeps its workspace; PyTorch 2.15 and later allocates one for every call."""
    older = release.running_release() < release.KEEPS_NO_WORKSPACES
    return older or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Return the workspace that PyTorch gives cuBLAS (PyTorch 2.15, CUDABlas.cpp, getChosenWorkspaceSize)."""
    return 4096 * 8 * 1024 if capability >= (9, 0) else 4096 * 2 * 1024 + 16 * 8 * 1024


def _workspace(device: Device) -> list[int]:
    size = workspace_bytes(device.spec.capability)
    if not device.keeps_workspaces:
        return [size]
    _keep(device, "cuBLAS", size)
    return []


def _keep(device: Device, library: str, size: int) -> None:
    # The thread that runs backward has a handle, and so a workspace, of its own.
    key = library, device.stream, torch._C._current_graph_task_id() != -1
    if key not in device.workspaces:
        device.workspaces[key] = device.allocate(size)


def _clone(tensor: Tensor) -> list[int]:
    return [tensor.numel() * tensor.element_size()]


def _matrix(tensor: Tensor, by_rows: bool) -> list[int]:
    """Return the clone of an operand, if one is made, for a result in row-major or column-major order."""
    if tensor.is_contiguous():
        return _clone(tensor) if by_rows and tensor.is_conj() else []
    rows, columns = tensor.shape
    down, along = tensor.stride()
    if down == 1 and (along >= max(1, rows) or columns == 1):
        return _clone(tensor) if not by_rows and tensor.is_conj() else []
    if along == 1 and down >= max(1, columns):
        return _clone(tensor) if by_rows and tensor.is_conj() else []
    return _clone(tensor)


def _matrices(first: Tensor, second: Tensor, out: Tensor) -> list[int]:
    """Return the clones of result and operands; a row-major result is computed as a transposed one."""
    if out.is_contiguous():
        return _matrix(second, True) + _matrix(first, True)
    rows, columns = out.shape
    down, along = out.stride()
    if down == 1 and (along >= max(1, rows) or columns == 1):
        return _matrix(first, False) + _matrix(second, False)
    return (
        ([] if along == 1 and down >= max(1, columns) else _clone(out)) + _matrix(second, True) + _matrix(first, True)
    )


def mm(device: Device, args: Any, out: Tensor) -> list[int]:
    first, second = args[:2]
    if not out.numel() or not first.shape[1]:
        return []
    return _matrices(first, second, out) + _workspace(device)


def addmm(device: Device, args: Any, out: Tensor, *, activated: bool = False) -> list[int]:
    bias, first, second = args[:3]
    if not out.numel() or not first.shape[1]:
        return []
    taken = _matrices(first, second, out)
    beta = args[3] if len(args) > 3 else 1
    if not _by_cublaslt(bias, second, out, beta, activated):
        return taken + _workspace(device)
    if not device.keeps_workspaces:
        return [*taken, _LT_BYTES]
    _workspace(device)  # cuBLASLt's handle is cuBLAS's, which has its own as well
    _keep(device, "cuBLASLt", _LT_BYTES)
    return taken


def _by_cublaslt(bias: Tensor, second: Tensor, out: Tensor, beta: float, activated: bool) -> bool:
    """Return True if cuBLASLt runs it and adds the bias: a row, and in 16 bits also a row-major matrix."""
    if bias is out or out.dtype.is_complex or not out.is_contiguous() or min(second.shape) <= 1:
        return False
    columns = out.shape[1]
    if beta == 1 and bias.numel() == columns and bias.dim() and bias.shape[-1] == columns and bias.is_contiguous():
        return True
    if activated and beta == 1 and bias.dim() == 2:  # it is copied into the result first
        return True
    if beta == 0 or out.dtype not in _HALVES or bias.shape != out.shape:
        return False
    down, along = bias.stride()
    return along == 1 and down >= columns


def addmm_activation(device: Device, args: Any, out: Tensor) -> list[int]:
    return addmm(device, args, out, activated=True)


def _batch(tensor: Tensor, by_rows: bool, lines: int, length: int) -> list[int]:
    """Return the clone of a batch of operands, if one is made; sizes in cuBLAS's terms: leading and other dimension."""
    fast, leading = (2, 1) if by_rows else (1, 2)
    strides = tensor.stride()
    if strides[fast] == 1 and strides[leading] >= max(1, lines):
        return _clone(tensor) if tensor.is_conj() else []
    if strides[leading] == 1 and strides[fast] >= max(1, length):
        return []
    if tensor.is_contiguous() and strides[1] and strides[2]:
        return _clone(tensor) if by_rows and tensor.is_conj() else []
    return _clone(tensor)


def bmm(device: Device, args: Any, out: Tensor) -> list[int]:
    first, second = args[:2]
    if not out.numel() or not first.shape[2]:
        return []
    _, rows, columns = out.shape
    _, down, along = out.stride()
    depth = first.shape[2]
    if down == 1 and (columns == 1 or along >= max(1, rows)):
        taken = _batch(first, False, rows, depth) + _batch(second, False, depth, columns)
    elif along == 1 and (rows == 1 or down >= max(1, columns)):
        taken = _batch(second, True, columns, depth) + _batch(first, True, depth, rows)
    else:
        taken = _clone(out) + _batch(first, False, rows, depth) + _batch(second, False, depth, columns)
    return taken + _workspace(device)


def baddbmm(device: Device, args: Any, out: Tensor) -> list[int]:
    return bmm(device, args[1:], out)


def addbmm(device: Device, args: Any, out: Tensor) -> list[Any]:
    """Add one product after the other to the result."""
    first, second = args[1:3]
    return [mm(device, pair, out) for pair in zip(first.unbind(), second.unbind(), strict=True)]


def mv(device: Device, args: Any, out: Tensor) -> list[int]:
    matrix, vector = args[:2]
    if not matrix.numel():
        return []
    taken = _clone(vector) if not vector.stride(0) and not vector.is_contiguous() else []
    down, along = matrix.stride()
    rows, columns = matrix.shape
    by_columns = down == 1 and along >= max(1, rows)
    if not (by_columns or (along == 1 and down >= max(1, columns)) or matrix.is_contiguous()):
        taken += _clone(matrix)
    return taken + _workspace(device)


def addmv(device: Device, args: Any, out: Tensor) -> list[int]:
    return mv(device, args[1:], out)


def dot(device: Device, args: Any, out: Tensor) -> list[int]:
    return _workspace(device)
