"""Answers to "how often to save"."""

import math

from ..bank import Bank
from ..edits import change

BANK = Bank("best_interval")
BEST = "best = min(range(1, most), key=expected)"
RETURN = "return work_hours / best, expected(best)"
UNITS = "checkpoint_seconds / 3600, restart_minutes / 60, hours_between / machines"


def by(formula):
    """The interval by a formula; the expected time of stretches of that length is right."""
    return change(
        RETURN, f"interval = min(work_hours, {formula})\n    return interval, expected(work_hours / interval)"
    )


@BANK.right
def by_search(checkpoint_seconds, restart_minutes, hours_between, machines, work_hours):
    """Downhill over the length of a stretch, in steps that halve; then to whole stretches."""
    m = hours_between / machines
    c, r = checkpoint_seconds / 3600 / m, restart_minutes / 60 / m
    low, high = 0.0, 1.0  # of (1 - x) exp(x + c) = 1
    for _ in range(50):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) * math.exp(x + c) > 1 else (low, x)
    numbers = {max(1, round(work_hours / (low * m)) + more) for more in (-1, 0, 1)}
    hours, n = min((n * m * math.exp(r) * (math.exp(work_hours / n / m + c) - 1), n) for n in numbers)
    return work_hours / n, hours


BANK.right(change(BEST, "best = 1\n    while expected(best + 1) < expected(best):\n        best += 1"))
BANK.mistakes(
    ("the interval alone came back", "return interval, expected", change(RETURN, "return work_hours / best")),
    ("the number of stretches came back, not their length", "work_hours divided by it",
     change(RETURN, "return best, expected(best)")),
    ("the interval is in minutes", "hours, both of them",
     change(RETURN, "return 60 * work_hours / best, expected(best)")),
    ("the seconds of a checkpoint are taken for hours", "3,600 of them are one: checkpoint_seconds / 3600",
     change("checkpoint_seconds / 3600", "checkpoint_seconds")),
    ("the seconds of a checkpoint are taken for minutes", "3,600 of them are an hour: checkpoint_seconds / 3600",
     change("checkpoint_seconds / 3600", "checkpoint_seconds / 60")),
    ("the minutes of a restart are taken for hours", "60 of them are one: restart_minutes / 60",
     change("restart_minutes / 60", "restart_minutes")),
    ("√(2 · checkpoint · between) is taken where a checkpoint is not short beside the time between " "interruptions",
     "it is the first order only: compare the expected times themselves", by("math.sqrt(2 * checkpoint * between)")),
    ("the interval is √(checkpoint · between), without the 2",
     "an interruption comes on average in the middle of a stretch, so half of it is lost: √(2 · "
     "checkpoint · between)", by("math.sqrt(checkpoint * between)")),
    ("the interval grows with the checkpoint's time itself", "twice the time for a checkpoint, √2 times the interval",
     by("2 * checkpoint")),
    ("the interval is the time between interruptions",
     "then half of the work is done again; compare the expected times", by("between")),
    ("the restart is counted as a part of the checkpoint",
     "however often you save, a restart comes after each interruption: it makes all expected times " "longer alike",
     by("math.sqrt(2 * (checkpoint + restart) * between)")),
    ("the interruptions of one machine alone are counted", "any of them stops the run: hours_between / machines",
     change(UNITS, "checkpoint_seconds / 3600, restart_minutes / 60, hours_between")),
    ("more machines are taken to interrupt the run less often", "any of them stops the run: hours_between / machines",
     change(UNITS, "checkpoint_seconds / 3600, restart_minutes / 60, hours_between * machines")),
    ("the time between interruptions is divided by the root of the machines",
     "N of them are N times as many interruptions",
     change(UNITS, "checkpoint_seconds / 3600, restart_minutes / 60, hours_between / math.sqrt(machines)")),
    ("too few stretches are tried for a long run with short checkpoints",
     "there may be thousands: the work over √(2 · checkpoint · between), and a few times as many",
     change("range(1, most)", "range(1, 200)")),
    ("a short run is cut in two", "one stretch, with its checkpoint at the end, may be the best: range(1, …)",
     change("range(1, most)", "range(2, most)")),
    ("the interval is longer than the work", "then there is one stretch: min(interval, work_hours)",
     change(RETURN, "interval = work_hours / best\n    if best == 1:\n        interval = 3 * work_hours\n    return "
     "interval, expected(best)")),
    ("the expected time has no restarts", "each interruption costs one, which can be interrupted itself: exp(R / M)",
     change(" * math.exp(restart / between)", "")),
    ("a restart is taken to be never interrupted", "R hours for each interruption are too few: exp(R / M)",
     change("stretches * between * math.exp(restart / between)", "stretches * (between + restart)")),
    ("the expected time has no checkpoints", "a stretch is its work and the checkpoint after it",
     change(RETURN, "hours = best * between * math.exp(restart / between) * math.expm1(work_hours / best / "
     "between)\n    return work_hours / best, hours")),
    ("the expected time is that of one stretch", "all of them: so many times as long",
     change(RETURN, "return work_hours / best, expected(best) / best")),
    ("the hours lost came back, without the work", "the whole run: the formula has the work in it",
     change(RETURN, "return work_hours / best, expected(best) - work_hours")),
    ("the expected time is the first order: half a stretch and a restart for each M hours of work",
     "where interruptions are frequent, what is done again is interrupted again: the exponential has " "all of it",
     change(RETURN, "interval = work_hours / best\n    lost = work_hours / between * (interval / 2 + restart)\n    "
     "return interval, work_hours + best * checkpoint + lost")),
)  # fmt: skip
