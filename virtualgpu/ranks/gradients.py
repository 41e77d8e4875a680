"""Copy gradients into the buckets of DistributedDataParallel, and reduced values back out.

It mirrors `mark_variable_ready_dense`, `flush_deferred_copies` and `finalize_bucket_dense` (PyTorch 2.15,
torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .buckets import Bucket, aliases, clone_like

Tensor = torch.Tensor
_divide: Any = torch.ops.aten.div_.Scalar


class Gradients:
    """Gradients of `parameters`, in `buckets`: with `views` as views of these; with `batched` copied all at once.

    `divides`: divide by the number of ranks before the sum; `stepped`: the optimizer runs in backward.
    """

    def __init__(self, parameters: list[Tensor], group: Any, *, views: bool, batched: bool) -> None:
        self.parameters, self.group = parameters, group
        self.views, self.batched = views, batched
        self.divides, self.stepped = True, False
        self.buckets: list[Bucket] = []
        self._places: dict[int, tuple[int, int]] = {}

    def make(self, indices: list[list[int]]) -> None:
        """Create buckets for these parameters; existing gradients move into the new views."""
        self.buckets = []  # frees the old ones first
        for number, of_bucket in enumerate(indices):
            bucket = Bucket.of(list(of_bucket), self.parameters)
            if self.views:
                for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                    if parameter.grad is not None and not aliases(parameter.grad, view):
                        view.copy_(parameter.grad)
                        parameter.grad = view
            self._places |= {index: (number, place) for place, index in enumerate(bucket.indices)}
            self.buckets.append(bucket)

    def fill(self, index: int) -> Bucket:
        """Copy the divided gradient of parameter `index` into its bucket, zeros without one; return the bucket."""
        number, place = self._places[index]
        bucket = self.buckets[number]
        view, parameter = bucket.views[place], self.parameters[index]
        grad = parameter.grad
        if grad is None:
            view.zero_()
        elif aliases(grad, view):
            if self.divides and not self.batched:
                _divide(view, self.group.size())
        elif self.batched and not grad.requires_grad:
            bucket.deferred.append(place)
        else:
            if grad.dtype is not view.dtype:
                raise RuntimeError(f"Expected {view.type()}, got {grad.type()}")
            if not self.divides:
                view.copy_(grad)
            elif grad.requires_grad:  # with create_graph=True
                view.copy_(torch.mul(grad, 1 / self.group.size()))
            else:
                torch.mul(grad, 1 / self.group.size(), out=view)
            if self.views:
                parameter.grad = view
        return bucket

    def flush(self, bucket: Bucket) -> None:
        """With `batched`, copy and divide the gradients of a full bucket at once."""
        if not self.batched:
            return
        if bucket.deferred:
            grads = [grad for place in bucket.deferred if (grad := bucket.parameters[place].grad) is not None]
            torch._foreach_copy_([bucket.views[place] for place in bucket.deferred], grads)
            if self.views:
                for place in bucket.deferred:
                    bucket.parameters[place].grad = bucket.views[place]
            bucket.deferred = []
        if self.divides:
            _divide(bucket.gradients, self.group.size())

    def give_back(self, bucket: Bucket, is_used: Callable[[int], bool]) -> None:
        """Write the reduced values into the gradients, except for parameters that no rank has used."""
        together: list[tuple[Tensor, Tensor]] = []
        for place, (index, parameter) in enumerate(zip(bucket.indices, bucket.parameters, strict=True)):
            takes = is_used(index) and not self.stepped
            result = bucket.results[place]
            if self.views:
                view = bucket.views[place]
                if not aliases(view, result):
                    view.copy_(result)
                if takes and parameter.grad is None:
                    parameter.grad = view
            elif takes:
                if parameter.grad is None:
                    parameter.grad = clone_like(result, parameter)
                elif self.batched:
                    together.append((parameter.grad, result))
                else:
                    parameter.grad.copy_(result)
        if together:
            torch._foreach_copy_([grad for grad, _ in together], [result for _, result in together])
