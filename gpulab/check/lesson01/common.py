"""What the checks of lesson 01 share: the sections of its lecture, numbers as students return them, known mistakes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..base import Trial
from ..wording import as_float, is_number, show

ROOF = "Operations per byte, and the roof"
LAW = "Amdahl: the part that does not get faster"
SMALL = "When the CPU wins"
SECTIONS = (ROOF, LAW, SMALL)


class Mistake(NamedTuple):
    """A misconception: the number that it gives, and what its author is told."""

    value: float
    summary: str
    likely: str


def pair(trial: Trial, got: Any, names: Sequence[str], read: str) -> tuple[Any, Any]:
    """The two values that were returned, from a tuple or a list; anything else fails."""
    wanted = f"({', '.join(names)})"
    likely = ""
    if got is None:
        likely = "the function ends without a return"
    elif isinstance(got, numbers.Real):
        likely = f"one number came back: both {names[0]} and {names[1]} are asked for"
    elif isinstance(got, dict):
        likely = "a dict came back: return the two values themselves, in this order"
    trial.expect(
        isinstance(got, tuple | list) and len(got) == 2,
        "two values are wanted",
        expected=f"a tuple {wanted}",
        got=show(got),
        likely=likely,
        read=read,
    )
    first, second = got
    return first, second


def number(trial: Trial, value: Any, name: str, read: str) -> float:
    """`value`, if it is a plain number and not NaN; NumPy's count too."""
    likely = ""
    if isinstance(value, torch.Tensor):
        likely = "arithmetic on a tensor gives a tensor, which lives on its device: shapes and .numel() give plain ints"
    elif isinstance(value, str):
        likely = "the text was put together where the number is wanted: formatting is for printing"
    elif value is None:
        likely = "a value that does not exist has a number here: read the last lines of the docstring"
    plain = is_number(value)
    trial.expect(
        plain and not math.isnan(as_float(value)),
        f"{name} is not a number",
        expected=f"{name} as a plain number",
        got=show(value),
        likely=likely,
        read=read,
    )
    near = as_float(value)
    return int(value) if isinstance(value, numbers.Integral) and math.isfinite(near) else near


def close(got: float, want: float, within: float = 1e-6) -> bool:
    return got == want or math.isclose(got, want, rel_tol=within)


def find(got: float, mistakes: Iterable[Mistake], within: float = 1e-6) -> Mistake | None:
    """The misconception that gives this number."""
    return next((mistake for mistake in mistakes if close(got, mistake.value, within)), None)
