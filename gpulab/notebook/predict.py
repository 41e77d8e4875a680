"""Asks for a prediction in a number box before an experiment, and afterwards shows how far off it was.

Typing is optional: a notebook run from top to bottom goes on without a prediction. A typed one is kept in the progress
file, also over restarts.
"""

from __future__ import annotations

import html
import math
import os
import re
import textwrap
from collections.abc import Sequence
from datetime import date
from pathlib import PurePath
from typing import Any

from virtualgpu.pictures.display import in_notebook, show

from .. import course
from . import front_end, guess_bar, progress

# A saved lecture folds the outputs that answer a prediction, and says this under it (tools/build.py).
UNFOLDED = "Where outputs do not fold, as on GitHub, the answer follows: guess before you scroll."


class Prediction:
    """A student's guess: `value` is None until one is typed; `asked` is the question with its unit, its key in the
    progress file."""

    def __init__(self, question: str, unit: str) -> None:
        self.question, self.unit = question, unit
        self.value: float | None = None
        told = unit and re.search(rf"\b(how many|in) {re.escape(unit)}\b", question, re.IGNORECASE)
        self.asked = question + (f" (in {unit})" if unit and not told else "")

    def set(self, value: float) -> None:
        """Set and record the guess. Raises TypeError if it is no number, ValueError for NaN or infinity."""
        for note in self._keep(_number("value", value)):
            print(note)

    def _keep(self, value: float | None) -> tuple[str, ...]:
        """Set and record the guess, or remove it for None; return notes for the student."""
        self.value = value
        return progress.record_guess(self.asked, value, _lesson())

    def compare(self, actual: float, source: str = "measured", *, because: str = "") -> None:
        """Show the prediction beside `actual`, as a line and in a notebook as two bars; without one, `actual` alone.

        `source` is the origin of `actual`: measured, virtual, recorded or computed. `because` explains the number, and
        stands below it: so no text above or below the cell tells the answer to a reader who has not guessed yet.
        """
        number = _number("actual", actual)
        if source not in ("measured", "virtual", "recorded", "computed"):
            raise ValueError(f"source must be 'measured', 'virtual', 'recorded' or 'computed', not {source!r}")
        if not isinstance(because, str):
            raise TypeError(f"because must be a text, not {because!r}")
        line = self._verdict(number, _with_unit(number, self.unit), source)
        text = f"{line}\n{textwrap.fill(because, 100)}".rstrip()
        if self.value is None:
            print(text)
        else:
            show(text, html=guess_bar.as_html(line, self.value, number, source, because))

    def _verdict(self, actual: float, shown: str, source: str) -> str:
        if self.value is None:
            return f"{source}: {shown} (no prediction was typed)"
        yours = f"your prediction: {_with_unit(self.value, self.unit)}"
        return f"{source}: {shown} · {yours}: {how_far(self.value, actual)}"

    def __repr__(self) -> str:
        guess = "no prediction yet" if self.value is None else _with_unit(self.value, self.unit)
        return f"Prediction({self.question!r}: {guess})"


def predict(question: str, *, unit: str = "", guess: float | None = None) -> Prediction:
    """Ask for a number before the cell that measures it; keep the result in a variable, and `.compare` it later.

    The unit is added to a question that does not name it, as “how many MiB …?” or “…, in MiB?” do. `guess` answers from
    code, where there is no box to type into. A guess of an earlier session comes from the progress file. Raises
    TypeError if `question` or `unit` is no text or `guess` no number.
    """
    for name, value in (("question", question), ("unit", unit)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, not {value!r}")
    prediction = Prediction(question, unit)
    if guess is not None:
        prediction.set(guess)
    kept = progress.read_progress()
    said = list(kept.notes)
    if prediction.value is None and prediction.asked in kept.guesses:
        earlier = kept.guesses[prediction.asked]
        prediction.value = earlier.value
        said.append(f"your guess from {_day(earlier.on)}: {_with_unit(earlier.value, unit)}")
    asked = f"Predict: {prediction.asked}"
    text = "\n".join([asked, *said])
    show(text, widget=(lambda: _box(prediction, said)) if in_notebook() else None)
    return prediction


def _lesson() -> int | None:
    """Return the number of the lesson from the notebook's name; None if the name is another or unknown."""
    name = PurePath(os.environ.get("JPY_SESSION_NAME", "")).name  # Jupyter's server sets it for each kernel
    return next((row.number for row in course.LESSONS if name.startswith(row.name)), None)


def _day(day: date) -> str:
    return f"{day.day} {day:%B} {day.year}"


def how_far(guess: float, actual: float) -> str:
    """Return the distance in words: a factor if both have the same sign, else a difference."""
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
    """Return number and unit: `1 sample`, `2 samples`, `1 ms`; a factor stays `1 times`."""
    word = unit.removesuffix("s") if value == 1 and len(unit) > 3 and unit.isalpha() and unit != "times" else unit
    return f"{_text(value)} {word}".rstrip()


def _box(prediction: Prediction, said: Sequence[str] = ()) -> Any:
    """Return a text box for a number, with the lines `said` under it until one is typed."""
    import ipywidgets as widgets

    asked = f"Predict: {prediction.asked}"
    box = widgets.Text(
        value="" if prediction.value is None else repr(prediction.value).removesuffix(".0"),
        description=asked,
        placeholder="a number, or just run on",
        continuous_update=False,
        style={"description_width": "initial"},
        layout={"width": "100%", "max_width": "60em"},
    )
    answer = widgets.HTML(_lines(said))

    def keep(change: dict[str, Any]) -> None:
        typed = str(change["new"]).strip()
        if not typed:
            answer.value = _lines(["no guess kept; run on and see", *prediction._keep(None)])
            return
        try:
            number = _number("value", float(typed.replace(" ", "").replace(",", "")))
        except ValueError:
            answer.value = _lines([f"{typed} is not a number: write it like 12.5"])
            return
        answer.value = _lines([*prediction._keep(number)] or ["kept; run on and see"])

    box.observe(keep, "value")
    return front_end.box([box, answer], answer=answer, label=asked)


def _lines(said: Sequence[str]) -> str:
    return "<br>".join(html.escape(line, quote=False) for line in said)
