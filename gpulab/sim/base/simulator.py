"""What a simulator is: a model, a drawing and controls, joined.

`Simulator` checks values, runs the pure model, has the result drawn, and shows text, picture and live widget
in one output. It knows no model and draws nothing; a new simulator gives it four things and is done.
"""

from __future__ import annotations

import difflib
import functools
import html
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from virtualgpu.pictures import display, style
from virtualgpu.pictures.asleep import UNRUN
from virtualgpu.pictures.svg import Picture, image

from .controls import Choice, Control, Flag, Limit, Play, Script, Slider

__all__ = ["Choice", "Flag", "Limit", "Play", "Result", "Row", "Script", "Simulator", "Slider", "State"]

Row: TypeAlias = tuple[str, str, str]  # name, value with unit, source


class Result:
    """What a model returns: a frozen dataclass that can say its finding and list its numbers."""

    @property
    def finding(self) -> str:
        """The one sentence to take from these values."""
        raise NotImplementedError

    def rows(self) -> Iterable[Row]:
        """Name, value with unit, and where the number comes from: measured, virtual, recorded, or "" if counted."""
        raise NotImplementedError

    def __str__(self) -> str:
        rows = list(self.rows())
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        table = (f"{name:<{wide[0]}}  {value:<{wide[1]}}  {source}".rstrip() for name, value, source in rows)
        return "\n".join((self.finding, "", *table))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return display.bundle(str(self))

    def describe(self) -> str:
        """The rows as a sentence, for a screen reader."""
        return "; ".join(f"{name}: {value}" + (f" ({source})" if source else "") for name, value, source in self.rows())


R = TypeVar("R", bound=Result)


class State(NamedTuple):
    """A state with a name that shows one point; `note` is what an instructor says of it."""

    name: str
    values: Mapping[str, Any]
    note: str


class Simulator(Generic[R]):
    """A model that can be moved, by hand in a notebook or by `set` from code.

    A subclass names its `controls`, one for each argument of its `model`; `draw` turns the model's result into
    a picture; `limits`, where one slider's range depends on other controls, gives the ranges for the values at
    hand; `leaves_out` says in a line or two what the model does not know.
    """

    controls: ClassVar[tuple[Control, ...]]
    primary: ClassVar[tuple[str, ...]] = ()  # the two or three controls beside the picture; the first three if empty
    states: ClassVar[tuple[State, ...]] = ()
    leaves_out: ClassVar[str]
    model: Callable[..., R]
    draw: Callable[[R], Picture]

    @staticmethod
    def limits(values: Mapping[str, Any]) -> Mapping[str, Limit]:
        return {}

    def __init_subclass__(cls) -> None:
        # so that help() and completion know the controls
        kind = inspect.Parameter.KEYWORD_ONLY
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(control.name, kind, default=control.value) for control in cls.controls]
        )

    def __init__(self, **values: Any) -> None:
        self._asked = {control.name: control.value for control in self.controls}
        self._live: Any = None
        self._change(values, self._name())

    def set(self, **values: Any) -> None:
        """Move controls from code; what is on the page follows. A bad value changes nothing and raises."""
        self._change(values, f"{self._name()}.set")

    @classmethod
    def _name(cls) -> str:
        """What it is called by: the course's own are functions of `gpulab.sim`, named as their folders are."""
        house = __package__.rpartition(".")[0] + "."
        module = cls.__module__
        return module.removeprefix(house).partition(".")[0] if module.startswith(house) else cls.__name__.lower()

    @property
    def values(self) -> dict[str, Any]:
        """The value of each control, after the limits that the others put on it."""
        return dict(self._values)

    @property
    def result(self) -> R:
        """The model's result for the present values."""
        return self._result

    @property
    def picture(self) -> Picture:
        """The drawing of `result`."""
        return self.draw(self.result)

    def svg(self) -> str:
        """The picture as an SVG document, at the size that `style.lecture` asks for."""
        return self.picture.text(note=self.leaves_out, scale=style.scale())

    def show(self) -> None:
        """Display it, as being last in the cell does; in a terminal, print the table."""
        self._show()

    def _show(self, *, presented: bool = False) -> None:
        widget = functools.partial(self._widget, presented=presented)
        display.show(repr(self), svg=self.svg(), html=self._still(), widget=widget)

    def __repr__(self) -> str:
        return f"{self.result}\n\n{textwrap.fill(self.leaves_out, 100)}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        widget = self._widget() if display.in_notebook() else None
        return display.bundle(repr(self), svg=self.svg(), html=self._still(), widget=widget)

    def _still(self) -> str:
        """Picture and table as a page for readers without a kernel, where an SVG output would have no alt text."""
        return (
            image(self.svg(), f"{self.picture.title}. {self.picture.desc}")
            + UNRUN
            + f"<details><summary>The same as text</summary><pre>{html.escape(repr(self))}</pre></details>"
        )

    def _change(self, values: Mapping[str, Any], call: str) -> None:
        known = {control.name: control for control in self.controls}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise TypeError(f"{call}() has no control {name!r}{hint}; it has {', '.join(known)}")
        asked = self._asked | {name: known[name].check(value, call) for name, value in values.items()}
        limits = self.limits(asked)
        for name in values:
            known[name].check(values[name], call, limits.get(name))
        present = self._within(asked)
        self._result = self.model(**present)  # an error of the model comes before anything has changed
        self._asked, self._values = asked, present
        if self._live is not None:
            self._live.follow()

    def _within(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        limits = self.limits(asked)
        return {control.name: control.clamp(asked[control.name], limits.get(control.name)) for control in self.controls}

    def _widget(self, *, presented: bool = False) -> Any:
        """The widget, made at the first call; a new one where it is to be `presented` in the whole window."""
        if self._live is None or presented:
            try:
                from .live import Live
            except ImportError:  # anywidget is not installed: the picture and the table stand alone
                return None
            self._live = Live(self, presented=presented)
        else:
            self._live.follow()  # `style.lecture` may have changed since
        return self._live.box
