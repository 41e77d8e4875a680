"""Predict first: a number box before an experiment, and a line after it that says how far off you were.

Typing is optional: a notebook run from top to bottom, or in CI, goes on without a prediction.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..display import in_notebook, show
from . import front_end


class Prediction:
    """A number that the student has guessed, or not yet. `value` is None until something was typed."""

    def __init__(self, question: str, unit: str) -> None:
        self.question, self.unit = question, unit
        self.value: float | None = None

    def set(self, value: float) -> None:
        """Guess from code. Raises TypeError for what is no number, ValueError for NaN or infinity."""
        self.value = _number("value", value)

    def compare(self, actual: float, source: str = "measured") -> None:
        """Print the prediction beside `actual`; `source` says what kind of number that is: measured, virtual,
        recorded or computed."""
        number = _number("actual", actual)
        if source not in ("measured", "virtual", "recorded", "computed"):
            raise ValueError(f"source must be 'measured', 'virtual', 'recorded' or 'computed', not {source!r}")
        print(self._verdict(number, _with_unit(number, self.unit), source))

    def _verdict(self, actual: float, shown: str, source: str) -> str:
        if self.value is None:
            return f"{source}: {shown} (no prediction was typed)"
        yours = f"your prediction: {_with_unit(self.value, self.unit)}"
        return f"{source}: {shown} · {yours}: {how_far(self.value, actual)}"

    def __repr__(self) -> str:
        guess = "no prediction yet" if self.value is None else _with_unit(self.value, self.unit)
        return f"Prediction({self.question!r}: {guess})"


def predict(question: str, *, unit: str = "", guess: float | None = None) -> Prediction:
    """Ask for a number before the cell that finds it out; keep the answer in a variable and `.compare` it later.

    The unit is added where the question does not name it itself, as in “how many MiB …?” or “…, in MiB?”. `guess`
    answers from code, where typing into the box is not possible. Raises TypeError when `question` or
    `unit` is no text or `guess` no number.
    """
    for name, value in (("question", question), ("unit", unit)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, not {value!r}")
    prediction = Prediction(question, unit)
    if guess is not None:
        prediction.set(guess)
    told = unit and re.search(rf"\b(how many|in) {re.escape(unit)}\b", question, re.IGNORECASE)
    asked = f"Predict: {question}" + (f" (in {unit})" if unit and not told else "")
    show(asked, widget=(lambda: _box(prediction, asked)) if in_notebook() else None)
    return prediction


def how_far(guess: float, actual: float) -> str:
    """The distance in words: as a factor where both have the same sign, as a difference otherwise."""
    if guess == actual or math.isclose(guess, actual, rel_tol=0.005):
        return "exact to half a per cent"
    if guess * actual > 0:
        factor = max(guess / actual, actual / guess)
        direction = "too high" if abs(guess) > abs(actual) else "too low"
        size = f"{(factor - 1) * 100:.0f} %" if factor < 2 else f"{factor:.3g} times"
        return f"{direction} by {size}" if factor < 2 else f"{size} {direction}"
    return f"off by {_text(abs(guess - actual))}"


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def _with_unit(value: float, unit: str) -> str:
    """`1 sample`, `2 samples`, `1 ms`; a factor stays `1 times`."""
    word = unit.removesuffix("s") if value == 1 and len(unit) > 3 and unit.isalpha() and unit != "times" else unit
    return f"{_text(value)} {word}".rstrip()


def _box(prediction: Prediction, asked: str) -> Any:
    """A text box that takes a number and says what it kept."""
    import html

    import ipywidgets as widgets

    start = "" if prediction.value is None else _text(prediction.value)
    box = widgets.Text(
        value=start,
        description=asked,
        placeholder="type a number, press Enter",
        continuous_update=False,
        style={"description_width": "initial"},
        layout={"width": "100%", "max_width": "60em"},
    )
    answer = widgets.HTML()

    def keep(change: dict[str, Any]) -> None:
        typed = str(change["new"]).strip()
        if not typed:
            prediction.value, answer.value = None, ""
            return
        try:
            prediction.set(float(typed.replace(" ", "").replace(",", "")))
        except ValueError:
            answer.value = f"{html.escape(typed)} is not a number: write it like 12.5"
            return
        answer.value = "kept; run on and see"

    box.observe(keep, "value")
    return front_end.box([box, answer], answer=answer, label=asked)
