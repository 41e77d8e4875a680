"""Judges the turn of lesson 15: an alarm for memory that grows."""

from __future__ import annotations

import random
from typing import Any

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

_STATE = 3 * 2**20  # what the first updates add: optimizer state


@turn("it grows is said of what grows, and of nothing else")
def grows(answer: Any) -> None:
    start, leak = random.randrange(2**28, 2**30), random.randrange(512, 2**20, 512)
    growing = [start, start + _STATE, *(start + _STATE + leak * n for n in range(10))]
    steady = [start, start + _STATE, *[start + _STATE] * 10]
    bump = [start + _STATE + leak if n in (6, 11) else steady[n] for n in range(12)]
    steps = [start, start + _STATE, *(start + _STATE + leak * (n // 2) for n in range(10))]
    said = [answer(list(case)) for case in (growing, steady, bump, steps)]
    if not all(isinstance(word, bool) for word in said):
        raise NotYet(f"{brief(said[0])} came back", expected="True or False", likely="a comparison gives one")
    if said == [True] * 4:
        raise AsGiven("the optimizer's state, made in the first update, is taken for growth")
    if not said[0]:
        raise NotYet(
            "a job that leaves something with each update is called steady",
            expected="True",
            likely="a leak of a block of 512 bytes is one as well",
        )
    if said[1]:
        raise NotYet("a job that repeats is said to grow", expected="False", likely="begin with the third update")
    if said[2]:
        raise NotYet(
            "one update that is larger and goes back is said to grow",
            expected="False",
            likely="what the others leave has not changed: compare the lowest of either half",
        )
    if not said[3]:
        raise NotYet(
            "a log that is written at every second update is called steady",
            expected="True",
            likely="two updates may leave the same, and the next one more",
        )
