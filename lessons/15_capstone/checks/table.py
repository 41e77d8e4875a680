"""Renders the table of a score, a line for each fault, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.capstone.places import Place

from .bench import Finding

_MARKS = {"repaired": "✔", "as found": "○", "changed": "✘", "broken": "✘"}


@dataclass(frozen=True)
class Row:
    """One place: what its probe finds `now`, and what `was` found in the script as given; None where that was sound."""

    place: Place
    now: Finding
    was: Finding | None

    @property
    def state(self) -> str:
        """ "repaired", "as found" (the evidence is the same), "changed" (wrong in another way) or "broken"."""
        if self.was is None:
            return "broken"
        if self.now.right:
            return "repaired"
        return "as found" if self.now.means == self.was.means else "changed"

    @property
    def name(self) -> str:
        """What is not repaired is not named."""
        return "?" if self.state == "as found" else self.place.name

    @property
    def evidence(self) -> str:
        if self.state == "as found":
            return f"as it was found; look with {self.place.instrument}"
        if self.state == "repaired" and self.was is not None:
            return f"{self.was.measured} → {self.now.measured}"
        said = f"{self.now.means} ({self.now.measured})"
        return f"was in order, but now {said}" if self.was is None else said


def as_text(rows: Sequence[Row]) -> str:
    lines = [f"{_MARKS[row.state]} {row.place.kind:<11} {row.name:<13} {row.evidence}" for row in rows]
    return "\n".join([*lines, *([] if all(row.state == "repaired" for row in rows) else [_sum(rows)])])


def as_html(rows: Sequence[Row]) -> str:
    cell = 'style="text-align:left;vertical-align:top;padding:2px 12px 2px 0"'
    body = "".join(
        f"<tr><td {cell}>{_MARKS[row.state]}</td><td {cell}>{row.place.kind}</td><td {cell}>{row.name}</td>"
        f"<td {cell}>{html.escape(row.evidence, quote=False)}</td></tr>"
        for row in rows
    )
    head = "".join(
        f"<th {cell}>{title}</th>" for title in ("", "kind", "place", "measured, before → after (virtual T4)")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{_sum(rows)}</p>"


def _sum(rows: Sequence[Row]) -> str:
    faults = [row for row in rows if row.was is not None]
    more = f"; in order before, but not now: {len(rows) - len(faults)}" if len(rows) > len(faults) else ""
    return f"{sum(row.state == 'repaired' for row in faults)} of {len(faults)} faults are repaired{more}"
