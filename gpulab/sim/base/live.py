"""Show a simulator in a running notebook: one widget, whose script draws the controls and sends what is touched.

`front.js` asks (`asked`) and shows the answer (`view`). It needs no other widget and no server, so that a page without
a kernel can use it too. This module is imported only when a simulator is displayed in a kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from virtualgpu.pictures import asleep, palette, style

from .controls import Script, Slider

if TYPE_CHECKING:
    from .simulator import Simulator

# The colours of pictures, by the variables that stand for them in both themes.
COLOURS = {
    colour: f"--gs-{name.lower()}"
    for name, colour in vars(palette).items()
    if isinstance(colour, str) and colour in palette.DARK
}


def _palettes() -> str:
    """The variables, in the light theme and in the dark one; a presentation's window has those of its simulator."""
    light = ";".join(f"{variable}:{colour}" for colour, variable in COLOURS.items())
    dark = ";".join(f"{variable}:{palette.DARK[colour]}" for colour, variable in COLOURS.items())
    dialog = "dialog.gs-present"
    return f".gpulab-sim,{dialog}{{{light}}}\n.gpulab-sim.gs-dark,{dialog}:has(.gs-dark){{{dark}}}\n"


@cache
def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


class Front(anywidget.AnyWidget):
    """The state that the notebook and the page share."""

    _esm = _file("front.js")
    spec = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)
    look = traitlets.Unicode(_palettes() + _file("front.css")).tag(sync=True)
    scale = traitlets.Float(1.0).tag(sync=True)
    presented = traitlets.Bool(False).tag(sync=True)


class Live:
    """The widget of one simulator: `front` follows the simulator, and the simulator what the page asks of it."""

    def __init__(self, simulator: Simulator[Any], *, presented: bool = False) -> None:
        self._simulator = simulator
        self._lock = threading.RLock()  # JupyterLab may run callbacks on a thread beside the cell's
        self._answered = 0
        self._controls = {control.name: control for control in simulator.controls}
        self.front = Front(
            spec={
                "controls": [control.describe() for control in simulator.controls],
                "primary": list(simulator.primary or list(self._controls)[:3]),
                "states": [state._asdict() for state in simulator.states],
                "leaves_out": simulator.leaves_out,
            },
            view=self._view(),
            scale=style.scale(),
            presented=presented,
        )
        self.box = asleep.mark_without_kernel(ipywidgets.VBox([self.front]))
        self.front.observe(self._asked, names="asked")

    def follow(self) -> None:
        """Send the simulator's present values and picture to the page."""
        with self._lock:
            self.front.scale = style.scale()
            self.front.view = self._view()

    def _view(self, error: str = "", refused: Iterable[str] = ()) -> dict[str, Any]:
        simulator = self._simulator
        picture, values = simulator.picture, simulator.values
        return {
            "answered": self._answered,
            "values": {name: self._controls[name].shown(value) for name, value in values.items()},
            "limits": {name: limit._asdict() for name, limit in simulator.limits(values).items()},
            "headline": picture.title,
            "width": picture.width,
            "svg": themed(picture.inner()),
            "text": str(simulator.result),
            "error": error,
            "refused": list(refused),
        }

    def _asked(self, change: Any) -> None:
        with self._lock:
            asked = change["new"]
            self._answered = asked["number"]
            # An exception in a callback ends in a log that no student opens, so any is shown above the picture.
            try:
                self._simulator.set(**{name: self._value(name, value) for name, value in asked["values"].items()})
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                self.front.view = self._view(f"This setting could not be drawn.\n{words}", asked["values"])

    def _value(self, name: str, value: Any) -> Any:
        control = self._controls[name]
        if isinstance(control, Slider):
            return control.snap(int(value) if control.whole else float(value))
        return value if isinstance(control, Script) else control.meant(value)


def themed(svg: str) -> str:
    """The picture with variables in place of its colours, so that it follows the page's theme."""
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
