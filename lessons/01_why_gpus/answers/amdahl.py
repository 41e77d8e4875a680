"""Answers to `amdahl` that are no formula for one number: right ones written differently, and other wrong ones."""

from fractions import Fraction
from math import inf

import numpy as np
import torch
from banks.bank import Bank
from banks.edits import change

from ..checks.amdahl import Job

BANK = Bank("amdahl")
CROSSOVER, RETURN = "overhead / saved if saved > 0 else math.inf", "return seconds / with_gpu, crossover"


@BANK.right
def uses_numpy(seconds, share, factor, overhead):
    rest = np.float64(1 - share + share / factor)
    return [
        np.float64(seconds) / (seconds * rest + overhead),
        overhead / (1 - rest) if share and factor > 1 else np.inf,
    ]


@BANK.right
def uses_fractions(seconds, share, factor, overhead):
    share, rest = Fraction(share), 0 if factor == inf else 1 / Fraction(factor)
    time, saved = Fraction(seconds) * (1 - share + share * rest) + Fraction(overhead), share * (1 - rest)
    return Fraction(seconds) / time, Fraction(overhead) / saved if saved > 0 else inf


def crossover(formula):
    """The right speed-up, and this for the crossover."""
    return lambda *args: (Job(*args).speedup, formula(Job(*args)))


BANK.mistakes(
    ("the two numbers are swapped", "", change(RETURN, "return crossover, seconds / with_gpu")),
    ("two values are wanted", "the function ends without a return", change(RETURN, "pass")),
    ("two values are wanted", "one number came back", change(RETURN, "return seconds / with_gpu")),
    ("two values are wanted", "a dict came back", change(RETURN, "return {'speedup': seconds / with_gpu}")),
    ("speedup is not a number", "this is a text", change("seconds / with_gpu", "f'{seconds / with_gpu:.2f}'")),
    ("speedup is not a number", "arithmetic on a tensor", lambda *args: (torch.tensor(Job(*args).speedup), 0.0)),
    ("crossover is not a number", "what the exercise says about it", change("else math.inf", "else None")),
    ("the speed-up is not right", "", change("return seconds / with_gpu", "return round(seconds / with_gpu, 2)")),
    ("the crossover is not right", "", crossover(lambda j: j.seconds / j.speedup)),
    ("a GPU that never pays off has a finite crossover", "",
     crossover(lambda j: j.crossover if j.share else 0.0),
     crossover(lambda j: 0 if j.never and j.share else j.crossover),
     crossover(lambda j: 0 if not j.overhead and j.factor > 1 else j.crossover)),
    ("a GPU without overhead has a crossover above 0", "", crossover(lambda j: j.crossover or j.seconds),
     crossover(lambda j: inf if j.factor == inf and not j.overhead else j.crossover)),
    ("your function raised ZeroDivisionError", "test for that before you divide",
     change(CROSSOVER, "math.inf if factor < 1 else overhead / saved")),
    ("your function raised ZeroDivisionError", "1 / factor is 0 for an infinitely fast GPU",
     change("overhead / saved if", "1 / (saved / overhead) if")),
)  # fmt: skip
