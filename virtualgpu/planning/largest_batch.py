"""Search for the largest batch that fits: linear prediction, then bisection.

No torch: a trial is a function from a batch to its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST = 1 << 40
_IGNORED = 64  # a step with the same traffic for this many times the batch ignores the batch
_LEAP = 16  # no guess is more than this many times the largest known fit


@dataclass(frozen=True)
class Trial:
    """The result for one batch. If it fits: peak bytes allocated and reserved, and all bytes that a step allocates."""

    fits: bool
    allocated: int = 0
    reserved: int = 0
    traffic: int = 0


@dataclass(frozen=True)
class Largest:
    """The largest `batch` that fits: 0 if not even 1 does, None if it was not found.

    `tried` maps each batch that was run to whether it fits; `note` has remarks for the user.
    """

    batch: int | None
    tried: dict[int, bool]
    note: str = ""


class Stop(Exception):
    """Raised by a trial that cannot be made; its text says why."""


def search(trial: Callable[[int], Trial], first: int, room: int, known: dict[int, Trial] | None = None) -> Largest:
    """Search for the largest batch that fits in `room` bytes, from `first` on; `known` are trials made already.

    Both `batch` and `batch + 1` are really tried. Memory need not grow with the batch, so `batch + 2` is tried as well,
    and a note says if it fits.
    """
    known = dict(known or {})

    def fits(batch: int) -> bool:
        if batch not in known:
            known[batch] = trial(batch)
        return known[batch].fits

    def answer(batch: int | None, note: str = "") -> Largest:
        return Largest(batch, {batch: known[batch].fits for batch in sorted(known)}, note)

    low, high, batch = 0, MOST, first
    try:
        while high - low > 1:
            low, high = (batch, high) if fits(batch) else (low, batch)
            fitting = {b: known[b] for b in sorted(known) if known[b].fits}
            if high == MOST and min(fitting) * _IGNORED <= low and len({t.traffic for t in fitting.values()}) == 1:
                return answer(None, "every batch takes the same memory: build seems not to use its argument")
            inside = (guess for guess in _guesses(fitting, room) if low < guess < high)
            batch = next(inside, (low + high) // 2 if high < MOST else max(1, 2 * low))
            if batch >= MOST:
                return answer(None, f"batches up to {low:,} fit; larger ones were not tried")
        if low and fits(low + 2):
            return answer(low, f"memory does not grow evenly: batch {low + 1:,} does not fit, but {low + 2:,} does")
    except Stop as stop:
        return answer(None, f"batch {low:,} fits, larger ones were not tried: {stop}" if low else str(stop))
    return answer(low)


def _guesses(fitting: dict[int, Trial], room: int) -> list[int]:
    """Return batches worth trying next, by lines through the two largest that fit.

    Reserved memory that is not in use is released before an allocation fails: the answer lies between the last batch
    whose reserved memory fits, and the first whose allocated memory does not.
    """
    if len(fitting) < 2:
        return []
    (small, a), (large, b) = list(fitting.items())[-2:]
    guesses = []
    for before, now, one_more in ((a.reserved, b.reserved, 0), (a.allocated, b.allocated, 1)):
        if now > before:
            guess = large + max(0, room - now) * (large - small) // (now - before) + one_more
            guesses.append(min(guess, _LEAP * large))
    return guesses
