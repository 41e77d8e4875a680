"""Translate errors of CPU kernels and meta functions into CUDA's messages."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import torch

from ..scope.in_force import backing
from .results import tensors_in

_AT_MOST = 1 << 24  # elements that may be allocated to obtain the CPU's error


def of_cpu(error: Exception) -> Exception:
    """Return the CPU's error, with the names of CUDA's tensors."""
    text = str(error)
    changed = re.sub(r"\btorch\.(\w+Tensor)\b", r"torch.cuda.\1", text)
    changed = re.sub(r'^"(?:lt|le|gt|ge)_cpu" not impl', '"compare_cuda" not impl', changed)
    return error if changed == text else type(error)(changed)


def of_saved(text: str) -> str:
    """Return autograd's words about a tensor that it saved, with the name of CUDA's type."""
    named = "Byte|Char|Double|Float|Int|Long|Short|Half"  # the others keep the name of PyTorch's C++
    text = re.sub(rf"\[(?:torch\.|Meta)({named})(?:Tensor|Type) \[", r"[torch.cuda.\1Tensor [", text)
    return re.sub(r"\[(?:CPU|Meta)(\w+)Type \[", r"[CUDA\1Type [", text)


def of_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Exception:
    """Replace an error of PyTorch's meta functions by the CPU's for the same shapes, else return it unchanged.

    The CPU shares its checks with CUDA; those of meta functions are rewritten in Python.
    """
    written = {i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write}
    tensors = tensors_in((args, tuple(kwargs.values())))
    if sum(t.numel() for t in tensors) > _AT_MOST or prod(_widest(tensors)) > _AT_MOST:
        return error
    try:
        with backing:
            func._op(
                *[_on_host(value, own=i in written) for i, value in enumerate(args)],
                **{name: _on_host(value, own=True) for name, value in kwargs.items()},
            )
    except (RuntimeError, IndexError, ValueError, TypeError) as found:
        return of_cpu(found).with_traceback(None)
    return error


def _widest(tensors: list[torch.Tensor]) -> list[int]:
    """Return the largest size of each dimension, from the end: a bound for the broadcast shape."""
    rank = max((t.dim() for t in tensors), default=0)
    return [max((t.shape[-i] for t in tensors if t.dim() >= i), default=1) for i in range(1, rank + 1)]


def _on_host(value: Any, *, own: bool) -> Any:
    """Return zeros of the same shape: one expanded number, except where it is written to."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value
        if own:
            return torch.zeros(value.shape, dtype=value.dtype)
        return torch.zeros((), dtype=value.dtype).expand(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value)([_on_host(item, own=own) for item in value])
    if isinstance(value, torch.device) and value.type == "meta":
        return torch.device("cpu")
    return value
