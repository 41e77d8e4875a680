"""Break down what a GPU held at the peak of the run, or where its memory ran out: by role, and the largest tensors.

It uses the planner's ledger (`virtualgpu.planning`). The search for holders takes time: it is made after a step with a
new peak, where memory runs out, and at the end. Nothing of the script is kept alive.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import operations
from ..own_code import local_of
from ..planning import tensor_roles
from ..planning.ledger import Entry, Ledger
from ..planning.peak_line import operation_of
from ..scope.device import Device
from ..scope.labels import NAME, Label, storage_of
from .report import Breakdown, Tensors
from .source_lines import Line, Place

if TYPE_CHECKING:
    from types import FrameType

    from ..memory.blocks import Block

_SHARE = 1000  # a block of less than one in so many of the bytes then allocated is not described
_LARGEST = 5
_NEWER = 1.01  # a peak of at least so many times the last is broken down anew
_OPERATIONS = os.path.join(os.path.dirname(operations.__file__), "")  # whose `out` or `shapes` is the result
_COPIES = ("aten.clone", "aten.copy_", "aten._to_copy")  # of weights before training, for an average of them
_GATHERED = ("init_all_gather_outputs", "alloc_storage")  # whole weights, in FSDP2
_MODULE = torch.nn.Module._call_impl.__code__


class _What(NamedTuple):
    """Description of a block, at its birth."""

    phase: str
    place: Place | None
    shape: tuple[int, ...] | None
    dtype: str
    operation: str
    module: str


class Breakdowns:
    """Follows every block of `device` until `end`, and the steps of its first optimizer, after its death of the next.

    `place_of` returns the line that allocated a block, `line` its text.
    """

    def __init__(
        self, device: Device, place_of: Callable[[Block], Place | None], line: Callable[[Place | None], Line | None]
    ) -> None:
        self._device, self._place_of, self._line = device, place_of, line
        self._ledger = Ledger(device, describe=self._describe)
        self._optimizer: weakref.ref[Any] | None = None
        self._step = 1
        self.highest: Breakdown | None = None  # of a step that has ended, or of an allocation that has failed
        self._computes = False  # True from the first operation of a model on

    def end(self) -> None:
        """Stop following."""
        self._device.observer = None

    def begins(self, optimizer: Any) -> None:
        """Note that an optimizer begins its step."""
        tensor_roles.begin_optimizer_step(self._ledger, optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has taken a step."""
        self._ledger.optimizing = False
        followed = None if self._optimizer is None else self._optimizer()
        if followed is None:
            self._optimizer, followed = weakref.ref(optimizer), optimizer
        if optimizer is followed:
            self.highest = self.peak()
            self._step += 1
            self._ledger.begin()

    def peak(self) -> Breakdown | None:
        """Return the breakdown of the highest peak until now."""
        ledger, highest = self._ledger, self.highest
        if not ledger.peak or (highest is not None and ledger.peak < _NEWER * highest.allocated):
            return highest
        ledger.settle()
        return self._broken_down(now=False)

    def ran_out(self) -> Breakdown:
        """Return the breakdown of this moment, in which an allocation has failed."""
        found = self._broken_down(now=True)
        if _NEWER * found.allocated > self._ledger.peak:
            self.highest = found
        return found

    def _broken_down(self, *, now: bool) -> Breakdown:
        ledger = self._ledger
        tensor_roles.assign_roles(ledger)
        held = ledger.held(now=now)
        categories = dict.fromkeys((role for role, _ in held), 0)
        alike: dict[tuple[int, str, _What], list[_What]] = {}
        for role, entry in held:
            categories[role] += entry.size
            if entry.what is not None:
                alike.setdefault((entry.size, role, _kind(role, entry.what)), []).append(entry.what)
        last = self._describe(None, Entry(0, 0, ledger.phase(), False)) if now else ledger.peak_what
        return Breakdown(
            step=self._step,
            phase="" if last is None else last.phase,
            operation="" if last is None else last.operation,
            module="" if last is None else last.module,
            allocated=sum(categories.values()),
            categories=tuple(sorted(categories.items(), key=lambda item: -item[1])),
            largest=tuple(
                Tensors(nbytes, len(same), role, *same[0][2:6], self._line(what.place))
                for (nbytes, role, what), same in sorted(alike.items(), key=lambda item: -item[0][0])[:_LARGEST]
            ),
        )

    def _describe(self, block: Block | None, entry: Entry) -> _What | None:
        """Return a description of a block that is being allocated, None for a small one; of the moment for None."""
        ledger = self._ledger
        if block is not None and entry.size * _SHARE < ledger.total <= ledger.peak:
            return None
        shape, dtype, operation, modules = None, "", "", []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is _MODULE:
                modules.append(local_of(frame, "self"))
            elif not operation and code.co_filename.startswith(_OPERATIONS):
                out = next((out for name in ("out", "shapes") if (out := local_of(frame, name)) is not None), None)
                if shape is None and isinstance(out, torch.Tensor) and _is_new(out):
                    shape, dtype = tuple(map(int, out.shape)), str(out.dtype).removeprefix("torch.")
                operation = operation_of(frame) or ""
            elif code.co_name in _GATHERED and code.co_filename.endswith("_fsdp_param.py"):
                entry.role = "weights"
            frame = frame.f_back
        phase = self._phase(entry, computes=bool(modules) or (entry.phase == "forward" and operation not in _COPIES))
        entry.from_nothing |= phase == "load"
        place = None if block is None else self._place_of(block)
        return _What(phase, place, shape, dtype, operation.removeprefix("aten."), _path(modules))

    def _phase(self, entry: Entry, *, computes: bool) -> str:
        within_backward = torch._C._current_graph_task_id() != -1
        self._computes |= within_backward or (computes and not entry.from_nothing)
        if within_backward:
            return "backward"  # what a checkpoint computes again, too
        if entry.phase in ("forward", "no_grad") and not self._computes:
            return "load"
        return "evaluation" if entry.phase == "no_grad" else entry.phase


def _kind(role: str, what: _What) -> _What:
    """Return what tensors have in common that are shown as one."""
    made = "" if role in ("weights", "gradients", "optimizer_state") else what.operation
    return what._replace(phase="", operation=made, module="")


def _is_new(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has no memory on the GPU yet."""
    storage = storage_of(tensor)
    return storage is not None and not isinstance(getattr(storage, NAME, None), Label)


def _path(modules: Sequence[torch.nn.Module]) -> str:
    """Return the innermost module's name within the others, which call it; its class for one alone."""
    names = [
        next((name for name, module in _called_by(outer) if module is inner), type(inner).__name__)
        for inner, outer in itertools.pairwise(modules)
    ]
    return ".".join(reversed(names)) or "".join(type(module).__name__ for module in modules)


def _called_by(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module | None]]:
    for name, child in module._modules.items():
        yield name, child
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from ((f"{name}.{key}", each) for key, each in child._modules.items())
