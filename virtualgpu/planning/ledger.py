"""Ledger of GPU memory blocks in a step: birth, death, role, and the blocks alive at the peak.

It is an `Observer` of the virtual GPU (scope/device.py), keeps no tensor alive and changes nothing. A block's role
follows from its holder (`tensor_roles`) and from its lifetime.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from .. import own_code
from ..operations import factories
from ..scope.labels import NAME, Label, parts_of, storage_of

if TYPE_CHECKING:
    from types import FrameType

    from ..memory.blocks import Block
    from ..scope.device import Device

Phase: TypeAlias = Literal["forward", "backward", "optimizer", "no_grad"]
Role: TypeAlias = Literal[
    "weights", "gradients", "optimizer_state", "activations", "data", "temporaries", "workspaces", "communication"
]
ROLES: tuple[Role, ...] = get_args(Role)
_BEFORE = 0  # born before the step's first event
_MOST = 10_000  # dead blocks kept beside as many as are alive


class Entry:
    """One block: `born` and `died` count the events of the step."""

    __slots__ = ("born", "died", "from_nothing", "phase", "role", "size", "what")

    def __init__(self, size: int, born: int, phase: Phase, from_nothing: bool) -> None:
        self.size = size
        self.born = born
        self.died = sys.maxsize
        self.phase = phase
        self.from_nothing = from_nothing  # copied from the host, or made without any tensor of the GPU
        self.role: Role | None = None
        self.what: Any = None


class Ledger:
    """All blocks of `device` from now on; `begin` starts the record of a step.

    `at_peak` is called with the phase whenever a step reaches a new peak; its last result is in `seen`. `describe` is
    called with every new block and its entry, to describe it; `peak_what` is its result for the block of the peak.
    """

    def __init__(
        self,
        device: Device,
        at_peak: Callable[[Phase], Any] | None = None,
        describe: Callable[[Block, Entry], Any] | None = None,
    ) -> None:
        self._device = device
        self._at_peak, self._describe = at_peak, describe
        self._alive: dict[Block, Entry] = {}
        self.total = self.highest = 0  # bytes allocated now, and at most since the ledger was opened
        self.in_use = 0  # the most that the driver showed since then: context and reserved memory
        self.optimizing = False
        self.begin()
        device.observer = self

    def adopt(self, block: Block, entry: Entry) -> None:
        """Add a block that existed before the ledger was opened."""
        self._alive[block] = entry
        self.total += entry.size

    def begin(self) -> None:
        """Begin a step: its events and its peak are counted from here."""
        self.settle()
        self._entries = list(self._alive.values())
        for entry in self._entries:
            entry.born = _BEFORE
        self._events = self._peak_event = _BEFORE
        self.peak = self.total
        self.traffic = 0  # all bytes that the step has allocated
        self.seen: Any = None
        self.peak_what: Any = None
        self._starts_of_backward: list[int] = []
        self.optimizing = self._in_backward = False

    def settle(self) -> None:
        """Process all blocks that have died."""
        with self._device.lock:
            self._device.drain()

    def hold(self, role: Role, tensors: Iterable[Any]) -> None:
        """Give the memory of these tensors this role, for its whole lifetime; weights stay weights."""
        for block in _blocks(tensors):
            entry = self._alive.get(block)
            if entry is not None and entry.role != "weights":
                entry.role = role

    def at_the_peak(self) -> dict[Role, int]:
        """Return the bytes of each role at the peak of the step; their sum is `peak`."""
        found = dict.fromkeys(ROLES, 0)
        for role, entry in self.held():
            found[role] += entry.size
        return found

    def held(self, *, now: bool = False) -> list[tuple[Role, Entry]]:
        """Return the blocks alive at the peak of the step, or `now`, with their roles.

        In a forward pass, and where a backward pass begins, what is alive now counts as kept for backward.
        """
        for label in (*self._device.workspaces.values(), self._device.dropout_state):
            if label is not None and label.block in self._alive:
                self._alive[label.block].role = "workspaces"
        at, starts = (self._events if now else self._peak_event), self._starts_of_backward
        if now and self.phase() in ("forward", "backward"):
            starts = [*starts, self._events + 1]
        return [(self._role(entry, starts), entry) for entry in self._entries if entry.born <= at < entry.died]

    def _role(self, entry: Entry, starts: list[int]) -> Role:
        if entry.role is not None:
            return entry.role
        if entry.born == _BEFORE or entry.from_nothing:
            return "data"
        if entry.phase in ("forward", "no_grad"):
            # A block alive when a backward pass begins is kept for it, by autograd or by a variable of the step.
            following = bisect_right(starts, entry.born)
            if following < len(starts) and starts[following] < entry.died:
                return "activations"
        return "temporaries"

    # -- called by the device ----------------------------------------------------------------------------------------

    def allocated(self, block: Block) -> None:
        self._events += 1
        phase = self.phase()
        if phase == "backward" and not self._in_backward:
            self._starts_of_backward.append(self._events)
        self._in_backward = phase == "backward"
        entry = Entry(block.size, self._events, phase, phase in ("forward", "no_grad") and _from_nothing())
        self._alive[block] = entry
        self._entries.append(entry)
        if len(self._entries) > 2 * len(self._alive) + _MOST:
            self._forget()
        self.total += block.size
        self.traffic += block.size
        free, capacity = self._device.allocator.memory_info()
        self.in_use = max(self.in_use, capacity - free)
        self.highest = max(self.highest, self.total)
        if self._describe is not None:
            entry.what = self._describe(block, entry)
        if self.total > self.peak:
            self.peak, self._peak_event, self.peak_what = self.total, self._events, entry.what
            if self._at_peak is not None:
                self.seen = self._at_peak(phase)

    def freed(self, block: Block) -> None:
        entry = self._alive.pop(block, None)
        if entry is not None:
            self._events += 1
            entry.died = self._events
            self.total -= entry.size

    def communicates(self, tensors: list[torch.Tensor]) -> None:
        for block in _blocks(tensors):
            entry = self._alive.get(block)
            if entry is not None and entry.role is None:
                entry.role = "communication"

    def took_beside(self, block: Block | None) -> None:
        if block is not None and block in self._alive:
            self._alive[block].role = "workspaces"

    def _forget(self) -> None:
        """Drop what is dead and was not alive at the peak: a run without steps goes on for long."""
        peak = self._peak_event
        self._entries = [e for e in self._entries if e.died == sys.maxsize or e.born <= peak < e.died]

    def phase(self) -> Phase:
        # Within backward, an operation that records a graph is a part of the forward pass, done again.
        if torch.is_grad_enabled():
            return "forward"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "optimizer" if self.optimizing else "no_grad"


def _from_nothing() -> bool:
    """Return True if the current allocation is for a tensor made without any other tensor of the GPU.

    These are copies from the host, and results of `torch.rand(…, device="cuda")` and its like.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):  # allocate, put, place (once or twice), create
        if frame is None:
            return False
        if frame.f_code is factories.create.__code__:
            return not any(True for _ in _blocks(own_code.local_of(frame, "args")))
        frame = frame.f_back
    return False


def _blocks(tensors: Iterable[Any]) -> Iterator[Block]:
    """Yield the blocks of tensors, also within lists; other objects, and tensors on no GPU, have none."""
    for tensor in tensors:
        if isinstance(tensor, (list, tuple)):
            yield from _blocks(tensor)
        elif isinstance(tensor, torch.Tensor):
            yield from _of_tensor(tensor)


def _of_tensor(tensor: torch.Tensor) -> Iterator[Block]:
    if torch.nn.parameter.is_lazy(tensor):
        return
    if hasattr(tensor, "__tensor_flatten__"):
        yield from _blocks(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return
    storage = storage_of(tensor)
    if storage is None:
        yield from _blocks(parts_of(tensor))
        return
    label = getattr(storage, NAME, None)
    if isinstance(label, Label) and label.block is not None:
        yield label.block
