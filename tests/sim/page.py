"""A page that shows a simulator, as Python sees it: it asks, and has the last answer."""

from __future__ import annotations

from typing import Any

from gpulab.sim.base.live import Live


class Page:
    def __init__(self, simulator: Any) -> None:
        self.simulator = simulator
        simulator._live = self.live = Live(simulator)
        self.answers = 0
        self.live.front.observe(self._answered, names="view")
        self._number = 0

    def _answered(self, change: Any) -> None:
        self.answers += 1

    def ask(self, **values: Any) -> dict[str, Any]:
        """Send these values, as a touched control does; returns the answer."""
        self._number += 1
        self.live.front.asked = {"number": self._number, "values": values}
        assert self.view["answered"] == self._number
        return self.view

    @property
    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = self.live.front.view
        return view
