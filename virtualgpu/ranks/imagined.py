"""Simulated ranks: one process runs, and every other rank is assumed to send the same data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..operations import known_values
from ..scope.refusals import NotMirrored
from .calls import Awaited

if TYPE_CHECKING:
    from .calls import Call


class Imagined:
    """A carrier for `count` ranks of which only `rank` runs; all have equal tensors. Without values, only shapes."""

    def __init__(self, count: int, rank: int) -> None:
        self.count, self.rank = count, rank

    def begin(self, call: Call, ready: float | None) -> tuple[Awaited[None], Awaited[float]]:
        tensors = [*call.outputs, *call.inputs]
        if tensors:
            with torch.no_grad():
                if tensors[0].device.type == "meta":
                    self._on_shapes(call)
                else:
                    _CARRIED[call.kind](self, call)
        return Awaited(_nothing), Awaited(lambda: ready or 0.0)  # equal ranks are ready at the same time

    def _on_shapes(self, call: Call) -> None:
        """Propagate known small integers; other results are unknown."""
        given = [known_values.value(tensor) for tensor in call.inputs]
        inputs = [tensor.clone() for tensor in given if tensor is not None]
        if call.kind == "broadcast" or not call.outputs:
            return  # other ranks are assumed to send the same data
        if not inputs or len(inputs) < len(given):
            known_values.written(call.outputs)
            return
        outputs = inputs if call.in_place else [torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in call.outputs]
        _CARRIED[call.kind](self, replace(call, inputs=inputs, outputs=outputs))
        known_values.written(call.outputs, outputs)

    def _reduced(self, tensor: torch.Tensor, op: tuple[str, float]) -> None:
        """Replace `tensor` by the reduction of equal ones from all ranks."""
        kind, factor = op
        if kind in ("SUM", "PREMUL_SUM"):
            tensor.mul_(factor * self.count if tensor.is_floating_point() else self.count)
        elif kind == "PRODUCT":
            tensor.pow_(self.count)
        elif kind == "BXOR":
            if self.count % 2 == 0:
                tensor.zero_()
        elif kind not in ("AVG", "MIN", "MAX", "BAND", "BOR"):
            raise NotMirrored(f"a reduction by {kind} over imagined ranks is not mirrored by the virtual GPU")

    def _all_reduce(self, call: Call) -> None:
        self._reduced(call.outputs[0], call.op)

    def _reduce(self, call: Call) -> None:
        if self.rank == call.root:
            self._reduced(call.outputs[0], call.op)

    def _gather(self, call: Call) -> None:
        for output in call.outputs:
            output.copy_(call.inputs[0].view_as(output))

    def _reduce_scatter(self, call: Call) -> None:
        output = call.outputs[0]
        output.copy_(call.inputs[self.rank].view_as(output))
        self._reduced(output, call.op)

    def _scatter(self, call: Call) -> None:
        if self.rank == call.root:
            call.outputs[0].copy_(call.inputs[self.rank].view_as(call.outputs[0]))

    def _all_to_all(self, call: Call) -> None:
        mine = call.inputs[self.rank].clone()
        for output in call.outputs:
            if output.numel() != mine.numel():
                raise NotMirrored(
                    "all_to_all over imagined ranks needs equal shares: what ranks of other sizes send is unknown"
                )
        for output in call.outputs:
            output.copy_(mine.view_as(output))

    def _nothing(self, call: Call) -> None:
        """Leave the outputs as they are: this rank's own data, or unknown data of imagined ranks."""


def _nothing() -> None:
    """Wait for nothing."""


_CARRIED: dict[str, Callable[[Imagined, Call], None]] = {
    "all_reduce": Imagined._all_reduce,
    "reduce": Imagined._reduce,
    "broadcast": Imagined._nothing,
    "all_gather": Imagined._gather,
    "gather": Imagined._gather,
    "reduce_scatter": Imagined._reduce_scatter,
    "scatter": Imagined._scatter,
    "all_to_all": Imagined._all_to_all,
    "send": Imagined._nothing,
    "recv": Imagined._nothing,
    "barrier": Imagined._nothing,
}
