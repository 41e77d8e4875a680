"""Format what the trials of `run --what-if` gave, as a table of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..units import duration, mib, three_figures

if TYPE_CHECKING:
    from .what_if import Row

WIDTH = 80
_LABEL, _BYTES, _TIME, _COST = 23, 12, 10, 12


def as_text(
    title: str, rows: Sequence[Row], left_out: Mapping[str, str], unit: str, *, priced: bool, once: bool, same: float
) -> str:
    """Return the table. `unit` is what the cost is for, money if `priced`; `once` tells that the script takes a single
    step; `same` is the part of a change that counts as none."""
    per = "run" if unit == "1,000 runs" else "step"
    cost = "cost of" if priced else "GPU h for"
    lines = [
        title,
        "",
        f"{'':{_LABEL + 2 * _BYTES + _TIME}}{cost:>{_COST}}",
        f"{'':{_LABEL}}{'allocated':>{_BYTES}}{'needed':>{_BYTES}}{per:>{_TIME}}{unit:>{_COST}}  fits",
    ]
    for row in rows:
        lines += _row(row)
    lines += ["", *_wrapped(_reading(unit, priced, once, same))]
    if left_out:
        lines += ["", "Not in the table:"]
        for label, why in left_out.items():
            lines += _wrapped(f"{label}: {why}", "  ")
    notes = [row.note for row in rows if row.note and not row.same]
    if notes:
        lines += ["", "Tried as:"]
        for note in notes:
            lines += _wrapped(note, "  ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _row(row: Row) -> list[str]:
    label = f"{row.label:{_LABEL}}"
    if row.same:
        return [label + "  no change"]
    found = row.trial
    if found is None:
        return [label + "  the script fails", *_wrapped(row.why, "    ")]
    step = "–" if row.seconds is None else duration(row.seconds)
    cost = "–" if row.cost is None else three_figures(row.cost)
    full = f"yes, {found.needed / found.total:.0%}" if row.fits else f"no, {found.needed / found.total:.0%}"
    numbers = f"{mib(found.allocated):>{_BYTES}}{mib(found.needed):>{_BYTES}}{step:>{_TIME}}{cost:>{_COST}}"
    return [f"{label}{numbers}  {full}", *(_wrapped(row.why, "    ") if row.why else [])]


def _reading(unit: str, priced: bool, once: bool, same: float) -> str:
    text = "All of it is virtual, the bytes at the peak. Needed: what PyTorch reserves, and the context."
    if unit != "1M samples":
        why = "No DataLoader says how many samples a step has" if unit == "1,000 steps" else "No optimizer steps"
        text += f" {why}, so the cost is for {unit}."
    if once:
        text += " One step has no time; let the script take two or more."
    if priced:
        text += " The prices are those of --price."
    return f"{text} No change: below {same:.0%}."


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  " if indent else "")
