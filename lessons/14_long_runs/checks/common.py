"""Provides the checks of lesson 14 that ask for a class with what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.exercise.base import Trial
from gpulab.exercise.wording import brief


def is_class(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes the student's object: a class, or a function of the same parameters."""
    trial.expect(
        callable(student),
        "this is not a class",
        expected="a class with the two methods",
        got=brief(student),
        likely="an object was passed: pass the class itself, without calling it",
    )
    make: Callable[..., Any] = student
    return make
