"""What a student can change in a simulator: a number on a slider, one of several choices, a yes or no.

A control is a description. It checks a value that comes from code, and describes itself to the page, which cannot
send a wrong one; it does not know what the value is for.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Number: TypeAlias = int | float


class Limit(NamedTuple):
    """What a slider may take at present, where other controls narrow it, and the reason in words. A control that
    has no say is `hidden`, a choice too."""

    low: Number
    high: Number
    reason: str
    hidden: bool = False


@dataclass(frozen=True)
class Slider:
    """A number from `low` to `high`; whole if `value` is an int."""

    name: str
    label: str
    low: Number
    high: Number
    value: Number
    unit: str = ""
    step: Number = 1
    log: bool = False  # equal ways on the slider are equal factors: for what goes over decades

    @property
    def whole(self) -> bool:
        return isinstance(self.value, int)

    def check(self, value: object, call: str, limit: Limit | None = None) -> Number:
        """`value` as a number the model can take; TypeError or ValueError if there is none."""
        low, high = (limit.low, limit.high) if limit else (self.low, self.high)
        span = f"from {low} to {high} {self.unit}".rstrip()
        number = _number(value, self.whole)
        shown = reprlib.repr(value)
        if number is None:
            kind = "a whole number" if self.whole else "a number"
            raise TypeError(
                f"{call}({self.name}={shown}): {self.name} must be {kind} {span}, not {type(value).__name__}"
            )
        if not low <= number <= high:
            why = f": {limit.reason}" if limit and self.low <= number <= self.high else ""
            raise ValueError(f"{call}({self.name}={shown}): {self.name} must be {span}{why}")
        return number

    def clamp(self, value: Number, limit: Limit | None) -> Number:
        return min(max(value, limit.low), limit.high) if limit else value

    def snap(self, value: Number) -> Number:
        """The nearest whole number that the slider stops at: beside it one can type any."""
        if not self.whole:
            return value
        return min(self.low + round((value - self.low) / self.step) * self.step, self.high)

    def shown(self, value: Number) -> Number:
        """The value as the page has it."""
        return value

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of it: data that JSON can hold."""
        known = {name: getattr(self, name) for name in ("name", "label", "low", "high", "unit", "step", "log", "whole")}
        return {"kind": "slider", **known}


@dataclass(frozen=True)
class Play(Slider):
    """A slider over time: it can also run by itself, be paused, and go on by one step."""

    frames_per_second: int = 10

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"kind": "play", "frames_per_second": self.frames_per_second}


@dataclass(frozen=True)
class Choice:
    """One of several values, each with the words shown for it."""

    name: str
    label: str
    options: Mapping[Any, str]
    value: Any

    def check(self, value: object, call: str, limit: Limit | None = None) -> Any:
        try:
            known = value in self.options
        except TypeError:  # not hashable
            known = False
        if not known or isinstance(value, bool):
            names = ", ".join(repr(option) for option in self.options)
            raise ValueError(f"{call}({self.name}={reprlib.repr(value)}): {self.name} must be one of {names}")
        return value

    def clamp(self, value: Any, limit: Limit | None) -> Any:
        return value

    def shown(self, value: Any) -> Any:
        return value

    def meant(self, value: Any) -> Any:
        """The option that the page has sent: JSON has no difference between 1 and 1.0."""
        return next((option for option in self.options if option == value), value)

    def describe(self) -> dict[str, Any]:
        return {"kind": "choice", "name": self.name, "label": self.label, "options": [*map(list, self.options.items())]}


@dataclass(frozen=True)
class Flag:
    """True or False."""

    name: str
    label: str
    value: bool

    def check(self, value: object, call: str, limit: Limit | None = None) -> bool:
        if not isinstance(value, bool):
            raise TypeError(
                f"{call}({self.name}={reprlib.repr(value)}): {self.name} must be True or False,"
                f" not {type(value).__name__}"
            )
        return value

    def clamp(self, value: bool, limit: Limit | None) -> bool:
        return value

    def shown(self, value: bool) -> bool:
        return value

    meant = shown

    def describe(self) -> dict[str, Any]:
        return {"kind": "flag", "name": self.name, "label": self.label}


@dataclass(frozen=True)
class Script:
    """Commands one after another: typed, taken from an example, or put together by buttons that each add one.

    A value is the name of an example or the commands as text. `read` takes the text apart into commands whose
    `str` is their text again, and raises ValueError for one that it does not know; `buttons` has the words on each
    button and the command that it adds.
    """

    name: str
    label: str
    value: str
    read: Callable[[str], Sequence[object]]
    examples: Mapping[str, str] = field(default_factory=dict)
    buttons: Mapping[str, str] = field(default_factory=dict)

    def check(self, value: object, call: str, limit: Limit | None = None) -> str:
        shown = reprlib.repr(value)
        if not isinstance(value, str):
            raise TypeError(f"{call}({self.name}={shown}): {self.name} must be text, not {type(value).__name__}")
        try:
            self.read(self.text(value))
        except ValueError as error:
            names = f" Or the name of an example: {', '.join(self.examples)}." if self.examples else ""
            raise ValueError(f"{call}({self.name}={shown}): {error}{names}") from None
        return value

    def text(self, value: str) -> str:
        """The commands that `value` stands for."""
        return self.examples.get(value, value)

    def clamp(self, value: str, limit: Limit | None) -> str:
        return value

    def shown(self, value: str) -> str:
        return self.text(value)

    def describe(self) -> dict[str, Any]:
        known = {"name": self.name, "label": self.label, "examples": dict(self.examples), "buttons": dict(self.buttons)}
        return {"kind": "script", **known}


Control: TypeAlias = Slider | Choice | Flag | Script


def _number(value: object, whole: bool) -> Number | None:
    """`value` as an int or a float, None if it is not one; numpy's and torch's numbers are."""
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    if whole:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several numbers
        return None


@dataclass(frozen=True)
class Sizes(Slider):
    """A whole number on a slider with chosen `stops`, such as powers of two; from code, any from `low` to `high`."""

    stops: tuple[int, ...] = ()

    def snap(self, value: Number) -> Number:
        return value

    def describe(self) -> dict[str, Any]:
        stops = sorted({int(self.low), *self.stops, int(self.value), int(self.high)})
        return super().describe() | {"stops": stops}
