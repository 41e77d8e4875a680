"""Shows a watch in a running notebook: a picture that is redrawn with new samples, and replaced by a still one.

Imported only in a notebook. The saved notebook keeps the still picture and its text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
from IPython.display import display

from virtualgpu.pictures import asleep
from virtualgpu.pictures.display import bundle

from .picture import as_html, as_svg, render
from .summary import Sample, summarise

BOX_CLASS = "gpulab-monitor"
SHORTEST = 0.2  # seconds between two pictures


class View:
    """One output of one cell. `samples()` returns the samples so far.

    With `stop` there is a button that calls it. A kernel handles buttons between cells only (ipykernel 7.4 routes them
    to the thread of the cells, whatever JupyterLab asks for), so that beside a running block it would have no effect.
    """

    def __init__(self, samples: Callable[[], Sequence[Sample]], stop: Callable[[], None] | None = None) -> None:
        self._samples = samples
        self._lock = threading.Lock()  # the sampling thread draws, others may end the view
        self._over = False
        self._drawn = self._took = 0.0  # time and duration of the last drawing
        self._picture = ipywidgets.HTML()
        self.box = asleep.mark_without_kernel(ipywidgets.VBox([self._picture, *([_button(stop)] if stop else [])]))
        self.box.add_class(BOX_CLASS)
        self._output: Any = None

    def show(self) -> None:
        """Display it in the output of the running cell."""
        self.draw()
        with self._lock:
            # a watch of a few milliseconds may be over already
            data = still(self._samples()) if self._over else bundle("watching the GPUs …", widget=self.box)
            self._output = display(data, raw=True, display_id=True)

    def draw(self) -> None:
        """Draw the samples so far; less often the longer it takes, to leave the processor to the cell."""
        began = time.monotonic()
        if began - self._drawn < max(SHORTEST, 50 * self._took):
            return
        picture = render(self._samples(), running=True)
        self._drawn, self._took = began, time.monotonic() - began
        with self._lock:
            if not self._over:
                # without pointer events, since the title would be a tooltip all over the picture
                self._picture.value = f'<div style="pointer-events:none;line-height:normal">{as_svg(picture)}</div>'

    def end(self) -> None:
        """Replace the widget by a still picture and its text."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._output is not None:
                self._output.update(still(self._samples()), raw=True)
        for widget in (*self.box.children, self.box):
            widget.close()


def _button(stop: Callable[[], None]) -> Any:
    layout = ipywidgets.Layout(width="auto", align_self="flex-start")
    button = ipywidgets.Button(description="Stop watching", tooltip="", layout=layout)
    button.on_click(lambda _: stop())
    return button


def still(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the MIME bundle of a watch that is over."""
    picture, words = render(samples, running=False), repr(summarise(samples))
    return bundle(words, svg=as_svg(picture), html=as_html(picture, words))
