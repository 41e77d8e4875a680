"""Numbers as a student reads them: counted things, shares, sizes of memory. Rounded to few digits, so that the
text is the same on every machine.
"""

from __future__ import annotations

import textwrap


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


def many(number: int, what: str) -> str:
    """As `count`, with thousands set apart: `2,100 elements`."""
    return count(number, what).replace(str(number), f"{number:,}", 1)


def duration(seconds: float) -> str:
    """A time to two digits or more in its own unit: `54 ns`, `2.1 µs`, `67 ms`, `311 s`."""
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    unit, factor = next((pair for pair in units if seconds * pair[1] >= 0.9995), units[-1])
    number = seconds * factor
    return f"{number:.0f} {unit}" if number >= 9.95 or number == 0 else f"{number:.1f} {unit}"


def article(name: str) -> str:
    """A GPU's name with its article: `a T4`, `an H100`."""
    return f"{'an' if name[0] in 'AHLR' else 'a'} {name}"


def below(table: str, error: str) -> str:
    """A table with an error's text under it, in lines of its own: in a row it would push all others apart."""
    return f"{table}\n\n{textwrap.fill(error, 100, break_long_words=False, break_on_hyphens=False)}" if error else table
