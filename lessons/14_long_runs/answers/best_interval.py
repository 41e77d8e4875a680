"""Answers to "how often to save" that are no formula for one number."""

import math

from banks.bank import Bank
from banks.edits import change

BANK = Bank("best_interval")
RETURN = "return work_hours / best, expected(best)"


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


BANK.right(change("best = min(range(1, most), key=expected)",
                  "best = 1\n    while expected(best + 1) < expected(best):\n        best += 1"))  # fmt: skip
BANK.mistakes(
    ("two values are wanted", "one number came back", change(RETURN, "return work_hours / best")),
    ("the two numbers are swapped", "", change(RETURN, "return expected(best), work_hours / best")),
    ("interval is not a number", "this is a text", change(RETURN, 'return f"{work_hours / best} h", expected(best)')),
    ("the expected time is wrong", "", change(RETURN, "return work_hours / best, 1.1 * expected(best)")),
)  # fmt: skip
