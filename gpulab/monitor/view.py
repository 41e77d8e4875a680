"""A watch in a running notebook: the picture, redrawn as samples come; a still picture when it is over.

Imported only in a notebook. Its output is replaced at the end, so that the saved notebook keeps a picture and its text.
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

from .picture import draw, page, svg
from .summary import Sample, summarise

BOX_CLASS = "gpulab-monitor"
SHORTEST = 0.2  # seconds between two pictures


class View:
    """One output of one cell. `samples` gives what has been read by now.

    With `stop` there is a button that calls it. A kernel answers buttons between cells only (ipykernel 7.4 routes them
    to the thread of the cells, whatever JupyterLab asks for), so beside a running block it would be a dead one.
    """

    def __init__(self, samples: Callable[[], Sequence[Sample]], stop: Callable[[], None] | None = None) -> None:
        self._samples = samples
        self._lock = threading.Lock()  # the sampling thread draws; others may end it
        self._over = False
        self._drawn = self._took = 0.0  # when it was last drawn, and how long that took
        self._picture = ipywidgets.HTML()
        self.box = asleep.mark_without_kernel(ipywidgets.VBox([self._picture, *([_button(stop)] if stop else [])]))
        self.box.add_class(BOX_CLASS)
        self._output: Any = None

    def show(self) -> None:
        """Put it into the output of the cell that is running."""
        self.draw()
        with self._lock:
            # a watch of a few milliseconds may be over before it is seen
            data = still(self._samples()) if self._over else bundle("watching the GPUs …", widget=self.box)
            self._output = display(data, raw=True, display_id=True)

    def draw(self) -> None:
        """The picture of the samples so far; more rarely as it gets longer, to leave the processor to the cell."""
        began = time.monotonic()
        if began - self._drawn < max(SHORTEST, 50 * self._took):
            return
        picture = draw(self._samples(), running=True)
        self._drawn, self._took = began, time.monotonic() - began
        with self._lock:
            if not self._over:
                # its title would else be a tooltip all over the picture, for those who can see it anyway
                self._picture.value = f'<div style="pointer-events:none;line-height:normal">{svg(picture)}</div>'

    def end(self) -> None:
        """Leave a still picture and its text in place of the widget."""
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
    """The bundle of a watch that is over."""
    picture, words = draw(samples, running=False), repr(summarise(samples))
    return bundle(words, svg=svg(picture), html=page(picture, words))
