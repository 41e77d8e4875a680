"""A simulator in a running notebook: its ipywidgets, and how they and the simulator follow one another.

Imported only when a simulator is displayed in a kernel. It computes and draws nothing itself.
"""

from __future__ import annotations

import functools
import html
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import ipywidgets

from virtualgpu.pictures import asleep, style

from .controls import Play, Script, Slider

if TYPE_CHECKING:
    from .simulator import Simulator

BOX_CLASS = "gpulab-sim"  # names.js looks for these two
PICTURE_CLASS = "gpulab-picture"
ALERT = "white-space:pre-wrap;word-break:normal"
CALM = 1000  # milliseconds a frame of Play lasts where the browser asks for reduced motion


class Live:
    """The widget of one simulator: `box` holds a slider or menu for each control, and the picture below."""

    def __init__(self, simulator: Simulator[Any]) -> None:
        self._simulator = simulator
        self._following = False
        self._lock = threading.RLock()  # JupyterLab may run callbacks on a thread beside the cell's
        self._picture = ipywidgets.HTML()
        self._picture.add_class(PICTURE_CLASS)
        self._widgets = {control.name: control.widget() for control in simulator.controls}
        for widget in self._widgets.values():
            widget.layout = ipywidgets.Layout(width="auto", margin="2px 8px 2px 0")
            if not isinstance(widget, ipywidgets.Checkbox):
                widget.style.description_width = "13em"
        players = {c.name: _player(c, self._widgets[c.name]) for c in simulator.controls if isinstance(c, Play)}
        self._scripts = {
            c.name: _Scripted(c, self._widgets[c.name]) for c in simulator.controls if isinstance(c, Script)
        }
        rows = {name: part.row for name, part in (players | self._scripts).items()}
        cells = [rows.get(name, widget) for name, widget in self._widgets.items()]
        self._controls = ipywidgets.GridBox(cells, layout=ipywidgets.Layout(width="100%"))
        self._names = _names(simulator, [player.play for player in players.values()])
        self.box = asleep.mark_without_kernel(
            ipywidgets.VBox([self._controls, self._picture, *map(_hidden, self._names)])
        )
        self.box.add_class(BOX_CLASS)
        self.follow()
        for name, widget in self._widgets.items():
            widget.observe(functools.partial(self._moved, name), names="value")

    def follow(self) -> None:
        """Put the simulator's present values into the widgets, and its picture into the page."""
        with self._lock, self._quietly():
            values = self._simulator.values
            limits = self._simulator.limits(values)
            for control in self._simulator.controls:
                widget = self._widgets[control.name]
                # One message each, the range before the value: the browser cuts a value to the range it knows,
                # and sends it back.
                if isinstance(control, Slider) and hasattr(widget, "min"):
                    low, high, _ = limits.get(control.name) or (control.low, control.high, "")
                    _narrow(widget, low, high, control.step)
                value = values[control.name]
                if isinstance(control, Script):
                    value = self._scripts[control.name].follow(control.text(value))
                widget.value = value
            self._draw()

    def _draw(self) -> None:
        scale, picture = style.scale(), self._simulator.picture
        self.box.layout.max_width = f"{picture.width * scale:.0f}px"
        self._controls.layout.grid_template_columns = f"repeat(auto-fit, minmax({360 * scale:.0f}px, 1fr))"
        for names in self._names:
            names.scale = scale
        # its title would else be a tooltip all over the picture, for those who can see it anyway
        svg = picture.text(note=self._simulator.leaves_out, scale=scale)
        self._drawn = f'<div style="pointer-events:none;line-height:normal">{svg}</div>'
        self._picture.value = self._drawn

    def _moved(self, name: str, change: Any) -> None:
        with self._lock:
            if self._following:
                return
            # An exception in a callback ends in a log that no student opens, so any is shown in the picture.
            try:
                control = next(c for c in self._simulator.controls if c.name == name)
                value = control.snap(change["new"]) if isinstance(control, Slider) else change["new"]
                self._simulator.set(**{name: value})
            except Exception as error:
                words = html.escape(f"{type(error).__name__}: {error}")
                alert = f'<pre role="alert" style="{ALERT}">This setting could not be drawn.\n{words}</pre>'
                # what one types is seldom right at once: the picture of what was right stays
                kept = f"<p>The commands before:</p>{self._drawn}" if name in self._scripts else ""
                self._picture.value = alert + kept

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        self._following = True
        try:
            yield
        finally:
            self._following = False


def _narrow(widget: Any, low: float, high: float, step: float) -> None:
    # A slider of zero length is an error in the browser: one that has a single value is shown, but held.
    widget.disabled = low == high
    widget.max = max(high, low + step, widget.min)
    widget.min = low
    widget.max = max(high, low + step)


class Player(NamedTuple):
    play: Any
    row: Any


class _Scripted:
    """A row of its own for commands: the text, a menu of examples, and buttons that add a command or take one away."""

    def __init__(self, control: Script, box: Any) -> None:
        self._control, self._box = control, box
        self._good = ""  # the last text that could be run
        self._menu: Any = None
        box.layout.flex = "1"
        line = [box]
        if control.examples:
            self._menu = ipywidgets.Dropdown(
                options=[("your own", ""), *control.examples.items()],
                description="Example",
                tooltip="",
                layout=ipywidgets.Layout(width="16em", flex="none", margin="2px 8px 2px 0"),
            )
            self._menu.observe(self._chosen, names="value")
            line.append(self._menu)
        buttons = [_button(words, functools.partial(self._add, command)) for words, command in control.buttons.items()]
        buttons += [_button("Undo", self._undo), _button("Clear", lambda _: self._put(""))]
        wrapped = ipywidgets.Layout(flex_flow="row wrap")
        self.row = ipywidgets.VBox(
            [ipywidgets.HBox(line), ipywidgets.HBox(buttons, layout=wrapped)], layout=_whole_row()
        )

    def follow(self, text: str) -> str:
        """Take over what has been run; the text is for the box."""
        self._good = text
        if self._menu is not None:
            self._menu.value = text if text in self._control.examples.values() else ""
        return text

    def _add(self, command: str, _: Any) -> None:
        self._put(self._control.longer(self._good, command))

    def _undo(self, _: Any) -> None:
        # what cannot be run is taken away first
        self._put(self._control.shorter(self._good) if self._box.value == self._good else self._good)

    def _chosen(self, change: Any) -> None:
        if change["new"]:
            self._put(change["new"])

    def _put(self, text: str) -> None:
        self._box.value = text  # which runs it, if it is another


def _button(words: str, press: Any) -> Any:
    button = ipywidgets.Button(description=words, layout=ipywidgets.Layout(width="auto", flex="none"))
    button.on_click(press)
    return button


def _whole_row() -> Any:
    # all columns of the grid; ipywidgets loses the shorter `grid_column`
    return ipywidgets.Layout(grid_area="auto / 1 / auto / -1")


def _player(control: Play, slider: Any) -> Player:
    """A row of its own for a slider over time: play and pause, stop, one step."""
    play = ipywidgets.Play(
        min=control.low,
        max=control.high,
        value=control.value,
        step=control.step,
        interval=1000 // control.frames_per_second,
        show_repeat=False,
    )
    for trait in ("min", "max", "value"):
        ipywidgets.jslink((slider, trait), (play, trait))

    def forward(_: Any) -> None:
        slider.value = min(slider.value + control.step, slider.max)

    slider.layout.flex, play.layout.flex = "1", "none"
    return Player(play, ipywidgets.HBox([slider, play, _button("Step", forward)], layout=_whole_row()))


def _names(simulator: Simulator[Any], players: list[Any]) -> list[Any]:
    """The script that gives controls their names in the browser, or nothing where anywidget is not installed."""
    try:
        widget = _names_class()(units={c.label: c.unit for c in simulator.controls if isinstance(c, Slider)})
    except ImportError:
        return []

    def calm(change: Any) -> None:
        for play in players:
            play.interval = max(play.interval, CALM) if change["new"] else play.interval

    widget.observe(calm, names="reduced_motion")
    return [widget]


def _hidden(widget: Any) -> Any:
    # of no height, so that nothing shows where the browser lacks anywidget's half
    return ipywidgets.Box([widget], layout=ipywidgets.Layout(height="0", overflow="hidden", margin="0"))


@functools.cache
def _names_class() -> Any:
    import anywidget
    import traitlets

    class Names(anywidget.AnyWidget):
        _esm = (files(__package__) / "names.js").read_text(encoding="utf-8")
        units = traitlets.Dict().tag(sync=True)
        scale = traitlets.Float(1.0).tag(sync=True)
        reduced_motion = traitlets.Bool(False).tag(sync=True)

    return Names
