"""Watch `backward(create_graph=True)` and `autograd.grad`, and detect memory that they leak.

A gradient that `backward` stores with its graph is part of a reference cycle: the graph keeps the parameter, whose
`.grad` keeps the graph. Python's garbage collector does not see it (PyTorch 2.15, accumulate_grad.h), so it stays until
`.grad` is replaced.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from .report import Cycles
from .source_lines import Place, SourceLines
from .steps import growth_per_step

_MOST = 20_000  # calls whose memory is kept


class CreateGraphCalls:
    """Patches `backward` and `grad` until `end`. `allocated()` returns the bytes on the GPU, None without one.

    `passing(begins)` is called before and after each pass.
    """

    def __init__(self, allocated: Callable[[], int | None], places: SourceLines) -> None:
        self.passing: Callable[[bool], None] = lambda begins: None
        self.building = False  # True while such a pass runs
        self._allocated, self._places = allocated, places
        self._held = array("q")
        self._calls: Counter[Place] = Counter()
        self._undo = contextlib.ExitStack()
        for name in ("backward", "grad"):
            own = getattr(torch.autograd, name)
            self._undo.callback(setattr, torch.autograd, name, own)
            setattr(torch.autograd, name, self._seeing(own, stores=name == "backward"))

    def end(self) -> None:
        """Remove the patches."""
        self._undo.close()

    def cycles(self) -> Cycles | None:
        """Return the memory that such calls of `backward` leak, if it grows with them."""
        grows = growth_per_step(self._held)
        if not grows:
            return None
        most = self._calls.most_common(1)
        return Cycles(len(self._held), grows, self._places.line(most[0][0]) if most else None)

    def _seeing(self, own: Callable[..., Any], *, stores: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.passing(True)
            try:
                return run(*args, **kwargs)
            finally:
                self.passing(False)

        def run(*args: Any, **kwargs: Any) -> Any:
            # tensors, grad_tensors, retain_graph, create_graph; or outputs, inputs, grad_outputs, and these two
            if not kwargs.get("create_graph", args[3 if stores else 4] if len(args) > (3 if stores else 4) else False):
                return own(*args, **kwargs)
            held = self._allocated() if stores else None
            if held is not None and len(self._held) < _MOST:
                self._held.append(held)
                self._calls.update(filter(None, [self._places.here()]))
            outer, self.building = self.building, True
            try:
                return own(*args, **kwargs)
            finally:
                self.building = outer

        return call
