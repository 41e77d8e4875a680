"""Break down a GPU's peak memory by role (weights, gradients, …) in an optimizer's third step.

It uses the planner's ledger (`virtualgpu.planning`), for one step only, as the search for holders takes time. It keeps
nothing of the script alive, and follows the first optimizer, after its death the next.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ..memory.blocks import Block
from ..planning import tensor_roles
from ..planning.ledger import Entry, Ledger
from ..scope.device import Device

AFTER = 2  # steps


class Categories:
    """Receives every optimizer step on `device` (`step`); `found` is filled after the third of one optimizer."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.found: dict[str, int] = {}
        self._optimizer: weakref.ref[Any] | None = None
        self._steps = 0
        self._ledger: Ledger | None = None
        self._telling = contextlib.ExitStack()

    def begins(self, optimizer: Any) -> None:
        """Note that an optimizer begins its step."""
        if self._ledger is not None:
            tensor_roles.begin_optimizer_step(self._ledger, optimizer)

    def step(self, optimizer: Any, alive: dict[Block, Any]) -> None:
        """Note that an optimizer has taken a step; `alive` are the live blocks."""
        if self._ledger is not None:
            self._ledger.optimizing = False
        followed = None if self._optimizer is None else self._optimizer()
        if followed is None:
            self.end()
            self._optimizer, self._steps, followed = weakref.ref(optimizer), 0, optimizer
        if optimizer is not followed or self.found:
            return
        self._steps += 1
        if self._steps == AFTER and self.device.observer is None:
            self._begin(alive)
        elif self._ledger is not None:
            self._end(self._ledger)

    def _begin(self, alive: dict[Block, Any]) -> None:
        ledger = self._ledger = Ledger(self.device)
        with self.device.lock:
            self.device.drain()
            for block in alive:
                ledger.adopt(block, Entry(block.size, 0, "no_grad", False))
        self._telling.enter_context(tensor_roles.roles_tracked(ledger, optimizers=False))
        ledger.begin()

    def _end(self, ledger: Ledger) -> None:
        ledger.settle()
        tensor_roles.assign_roles(ledger)
        self.found = {role: nbytes for role, nbytes in ledger.at_the_peak().items() if nbytes}
        self.end()

    def end(self) -> None:
        """Stop observing."""
        self._telling.close()
        if self._ledger is not None:
            self.device.observer = None
            self._ledger = None
