"""16-bit arithmetic as tensor cores do it: computed in float32, rounded once."""

from __future__ import annotations

from typing import Any

import torch

from ..scope.in_force import backing
from .results import map_tensors

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)


def in_float(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute in float32 and round, as tensor cores do; CPUs are some hundred times slower in 16 bits."""
    dtype: torch.dtype | None = None

    def widen(tensor: Tensor) -> Tensor:
        nonlocal dtype
        if tensor.dtype in HALVES:
            dtype = tensor.dtype
            return tensor.float()
        return tensor

    with backing:
        wide = func._op(*map_tensors(widen, args), **map_tensors(widen, kwargs))
        written = [
            i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
        ]
        if written:
            results = wide if isinstance(wide, (list, tuple)) else [wide]
            for index, result in zip(written, results, strict=False):
                if index < len(args):
                    args[index].copy_(result)
            return args[written[0]]
        return map_tensors(lambda t: t.to(dtype) if t.dtype == torch.float32 and dtype else t, wide)
