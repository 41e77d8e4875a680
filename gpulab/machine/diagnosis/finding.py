"""Defines the result of one check, `Finding`, and of all, `Report`."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from virtualgpu.units import count

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. A note is an inconvenience, a problem stops something; both say what to `do`."""

    name: str
    status: Status
    what: str
    do: str = ""

    def __post_init__(self) -> None:
        if self.status != "ok" and not self.do:
            raise ValueError(f"the finding {self.name!r} is a {self.status} and does not say what to do")


@dataclass(frozen=True)
class Report:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "problem")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "note")

    @property
    def summary(self) -> str:
        return (
            f"{count(len(self.findings), 'line')}, {count(len(self.problems), 'problem')}, "
            f"{count(len(self.notes), 'note')}"
        )

    def __repr__(self) -> str:
        return f"<Report: {self.summary}>"


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error, shortened to 240 characters."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return textwrap.shorten(text, 240, placeholder=" …")
