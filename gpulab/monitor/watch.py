"""Watches the GPUs beside running code: live in a notebook, silent in a script."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

from virtualgpu.pictures import display

from .sampler import Sampler
from .summary import Sample, Summary, summarise

SHORTEST, LONGEST = 0.05, 60.0  # seconds between samples

_background: Watch | None = None  # the watch started without a block in a notebook, until it is stopped


class Watch:
    """A watch of `watch()`, to be started once.

    `samples` and `summary()` can be read at any time. Its thread ends with the block, also on an exception or an
    interrupt; with the button; after its `seconds`; with `stop()`; and when nothing refers to the watch any more.
    """

    def __init__(self, every: float, seconds: float | None, nvml: Any = None) -> None:
        self._view: Any = None
        sampler = self._sampler = Sampler(every, seconds, nvml=nvml)
        self._started = False
        # The thread refers to the sampler and not to the watch, so that an unused watch is collected.
        self._finalizer = weakref.finalize(self, sampler.drop)

    def start(self) -> None:
        """Start without a block.

        In a notebook it then runs beside all cells until it is stopped or another one is started, in a script as long
        as something refers to it.
        """
        global _background
        self._start(beside=True)
        if display.in_notebook():
            if _background is not None:
                _background.stop()
            _background = self

    def _start(self, *, beside: bool) -> None:
        if self._started:
            raise RuntimeError("this watch has already been started: gpulab.monitor.watch() makes a new one")
        self._started = True
        if display.in_notebook():
            self._view = _view(self._sampler, beside)
        try:
            self._sampler.start()
            if self._view is not None:
                self._view.show()
        except BaseException:  # such as an interrupt between the two
            self._sampler.stop()
            raise

    def stop(self) -> None:
        """End with a last sample; without effect if it has ended or was never started."""
        global _background
        if self._started:
            self._sampler.stop()
        if _background is self:
            _background = None

    def __enter__(self) -> Watch:
        self._start(beside=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._sampler.running

    @property
    def samples(self) -> Sequence[Sample]:
        """All samples, each with one reading for each GPU."""
        return self._sampler.samples

    def summary(self) -> Summary:
        """Return mean and largest utilization, largest memory of a sample, and energy of each GPU."""
        return summarise(self.samples)

    def __repr__(self) -> str:
        if not self._started:
            return "a watch, not started: use it as `with gpulab.monitor.watch() as seen:`, or call its start()"
        head = "a watch, running" if self.running else "a watch, over"
        trouble = self._sampler.trouble
        failed = f"\nIts picture could not be drawn: {type(trouble).__name__}: {trouble}" if trouble else ""
        return f"{head}: {self.summary()!r}{failed}"

    def _ipython_display_(self) -> None:
        # As the last expression of a cell a watch displays itself, so it starts.
        if not self._started and display.in_notebook():
            self.start()
        else:
            self._show()

    def _show(self) -> None:
        if not self._started:
            display.show(repr(self))
            return
        from .picture import as_html, as_svg, render

        picture = render(self.samples, running=self.running)
        display.show(repr(self), svg=as_svg(picture), html=as_html(picture, repr(self)))


def _view(sampler: Sampler, beside: bool) -> Any:
    """Return the live view, None without ipywidgets; with a button if it runs `beside` the cells."""
    try:
        from .view import View
    except ImportError:
        return None
    view = View(lambda: sampler.samples, sampler.stop if beside else None)
    sampler.show_to(view.draw, view.end)
    return view


def watch(seconds: float | None = None, every: float = 0.5) -> Watch:
    """Watch all GPUs beside running code.

        with gpulab.monitor.watch() as seen:
            train()
        print(seen.summary())

    In a notebook there is a live view under the cell, and afterwards a still picture with its text. As the last line of
    a cell, `gpulab.monitor.watch()` runs beside all following cells until its Stop button is pressed. In a script
    nothing is printed: use the block, or keep the watch in a variable and call its `start()` and `stop()`.

    `every` is the real time between two samples, from 0.05 to 60 s; the driver updates utilization only every 1/6 s to
    1 s. After `seconds` the sampling ends by itself. Raises TypeError for anything but a number, ValueError for one out
    of range.
    """
    every = _number("every", every)
    if not SHORTEST <= every <= LONGEST:
        raise ValueError(f"every must be from {SHORTEST} to {LONGEST:.0f} seconds, not {every!r}")
    if seconds is not None:
        seconds = _number("seconds", seconds)
        if not seconds > 0:
            raise ValueError(f"seconds must be more than 0, or None to watch until it is stopped, not {seconds!r}")
    return Watch(every, seconds)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r} ({type(value).__name__})")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return float(value)
