"""Gradient buckets of DistributedDataParallel: flat GPU tensors that gradients are copied into or view.

They mirror `Reducer::Bucket` and `GradBucket` (PyTorch 2.15, torch/csrc/distributed/c10d/reducer.hpp, comm.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from ..scope.ownership import is_dense
from ..scope.refusals import NotMirrored

Tensor = torch.Tensor


@dataclass
class Bucket:
    """Gradients of one dtype that are reduced together: `indices` are those of their `parameters`."""

    indices: list[int]
    parameters: list[Tensor]
    gradients: Tensor
    views: list[Tensor] = field(default_factory=list)  # of `gradients`, one per parameter, in its layout
    results: list[Tensor] = field(default_factory=list)  # the same views of the reduction's result
    pending: int = 0
    future: Any = None  # a collective's work or a comm hook's future; None where the bucket is skipped
    deferred: list[int] = field(default_factory=list)  # places of gradients that are copied together

    @classmethod
    def of(cls, indices: list[int], parameters: list[Tensor]) -> Bucket:
        """Allocate a bucket for the parameters with these indices, on their GPU."""
        mine = [parameters[index] for index in indices]
        if any(parameter.is_complex() for parameter in mine):
            raise NotMirrored("DistributedDataParallel with complex parameters is not mirrored in shapes-only mode")
        count = sum(parameter.numel() for parameter in mine)
        bucket = cls(indices, mine, torch.empty(count, dtype=mine[0].dtype, device=mine[0].device))
        bucket.views = bucket.views_of(bucket.gradients)
        bucket.results = bucket.views
        return bucket

    @property
    def offsets(self) -> list[int]:
        return [0, *accumulate(parameter.numel() for parameter in self.parameters)][:-1]

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """Return the part of each parameter in `flat`, in its own layout where that is dense."""
        return [
            flat.as_strided(p.shape, p.stride(), flat.storage_offset() + offset)
            if is_dense(p)
            else flat.narrow(0, offset, p.numel()).view(p.shape)
            for p, offset in zip(self.parameters, self.offsets, strict=True)
        ]


class GradBucket:
    """The argument of a comm hook, as `torch.distributed.GradBucket`."""

    def __init__(self, bucket: Bucket, index: int, count: int, buffer: Tensor | None = None) -> None:
        self._bucket, self._index, self._last = bucket, index, index == count - 1
        self._buffer = bucket.gradients if buffer is None else buffer

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> Tensor:
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def parameters(self) -> list[Tensor]:
        return list(self._bucket.parameters)

    def gradients(self) -> list[Tensor]:
        bucket = self._bucket
        pairs = zip(bucket.parameters, bucket.offsets, strict=True)
        return [self._buffer[offset : offset + p.numel()].view(p.shape) for p, offset in pairs]


def clone_like(view: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with the values of `view`, in the layout of its parameter (clone_obey_contract)."""
    if not is_dense(parameter):
        return view.clone(memory_format=torch.contiguous_format)
    return view.new_empty_strided(parameter.shape, parameter.stride()).copy_(view)


def aliases(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors share a storage."""
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined]
