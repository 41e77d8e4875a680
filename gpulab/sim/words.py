"""Numbers as a student reads them: counted things, shares, sizes of memory. Rounded to few digits, so that the
text is the same on every machine.
"""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """`1 micro-batch`, `3 micro-batches`."""
    ending = "" if number == 1 else "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{number} {what}{ending}"


def percent(share: float) -> str:
    """A share of one as `0.99%`, `7.3%` or `75%`."""
    return f"{100 * share:.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"


def size(count: int) -> str:
    """A number of bytes as MiB below 1 GiB, as GiB from there."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
