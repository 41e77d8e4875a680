"""The turn of lesson 15: an alarm for memory that grows."""

from __future__ import annotations

import random
from typing import Any

from ..check.wording import show
from .base import AsGiven, NotYet, turn

_STATE = 3 * 2**20  # what the first updates add: optimizer state


@turn("it grows is said of what grows, and of nothing else")
def grows(answer: Any) -> None:
    start, leak = random.randrange(2**28, 2**30), random.randrange(512, 2**20, 512)
    growing = [start, start + _STATE, *(start + _STATE + leak * n for n in range(5))]
    steady = [start, start + _STATE, *[start + _STATE] * 5]
    bump = [*steady[:4], start + _STATE + leak, start + _STATE, start + _STATE + leak]
    said = [answer(list(case)) for case in (growing, steady, bump)]
    if not all(isinstance(word, bool) for word in said):
        raise NotYet(f"{show(said[0])} came back", expected="True or False", likely="a comparison gives one")
    if said == [True, True, True]:
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
            likely="growth is from each update to the next, not from the first to the last",
        )
