"""Judges the turns of lesson 15: an alarm for memory that grows, and a test for a speed that cannot be."""

from __future__ import annotations

import random
from typing import Any

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

_STATE = 3 * 2**20  # what the first updates add: optimizer state


@turn("growing memory is reported, and nothing else")
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
        raise AsGiven("the optimizer's state, made in the first update, is counted as growth")
    if not said[0]:
        raise NotYet(
            "a job that leaks in each update is called steady",
            expected="True",
            likely="a leak of 512 bytes is a leak, too",
        )
    if said[1]:
        raise NotYet("a steady job is said to grow", expected="False", likely="begin with the third update")
    if said[2]:
        raise NotYet(
            "one larger update, whose memory is freed again, is called growth",
            expected="False",
            likely="the memory after the other updates is unchanged: compare the lowest values of the two halves",
        )
    if not said[3]:
        raise NotYet(
            "a job that leaks at every second update is called steady",
            expected="True",
            likely="memory may stay the same after one update and grow after the next",
        )


@turn("6 FLOPs for each word and parameter: only speeds beyond the peak are called impossible")
def possible(answer: Any) -> None:
    """A function (words_per_second, parameters, peak_tflops): whether a GPU could train so many words a second."""
    parameters, peak = random.randrange(10**7, 10**9), random.choice((8.1, 65.0, 312.0, 989.4))
    most = peak * 1e12 / (6 * parameters)
    said = {share: answer(share * most, parameters, peak) for share in (0.4, 0.9, 1.3, 4.0)}
    if not all(isinstance(word, bool) for word in said.values()):
        raise NotYet(f"{brief(said[0.4])} came back", expected="True or False", likely="a comparison gives one")
    if not said[0.4] and said[4.0]:
        raise NotYet(
            "speeds within the peak are called impossible, and four times the peak possible",
            expected="True within the peak",
            likely="the comparison is reversed",
        )
    if not said[0.4]:
        raise NotYet(
            "a speed at 40 % of the peak is called impossible",
            expected="True",
            likely="a TFLOP/s is 10¹² FLOPs a second",
        )
    if said[4.0]:
        raise NotYet(
            "a speed at four times the peak is called possible",
            expected="False",
            likely="a TFLOP/s is 10¹² FLOPs a second, and each parameter takes 6 FLOPs for each word",
        )
    if not said[0.9]:
        raise NotYet(
            "a speed at 90 % of the peak is called impossible",
            expected="True",
            likely="a step takes at least 6 FLOPs for each parameter and word; a good job may come close",
        )
    if said[1.3]:
        raise NotYet(
            "a speed at 1.3 times the peak is called possible",
            expected="False",
            likely="forward takes 2 FLOPs for each parameter and word, backward 4",
        )
