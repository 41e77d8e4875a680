"""Renders the report as a table: text for a terminal, HTML for a notebook."""

from __future__ import annotations

import html
import textwrap

from .finding import Finding, Report

# Blue, green and vermillion of the palette, dark enough for white text.
_COLOURS = {"ok": "#007a5a", "note": "#0072b2", "problem": "#b34700"}

_SOURCE = "Numbers are measured on this machine."


def as_text(report: Report, width: int = 100) -> str:
    """Return the table for a terminal: state, name, finding, and below it the remedy."""
    column = max((len(finding.name) for finding in report.findings), default=0)
    lines = [line for finding in report.findings for line in _text_lines(finding, column, width)]
    return "\n".join([*lines, "", f"{report.summary}. {_SOURCE}"])


def _text_lines(finding: Finding, column: int, width: int) -> list[str]:
    head = f"{finding.status:<7}  {finding.name:<{column}}  "
    below = " " * len(head)
    lines = textwrap.wrap(finding.what, width, initial_indent=head, subsequent_indent=below)
    if finding.do:
        lines += textwrap.wrap(finding.do, width, initial_indent=f"{below}do: ", subsequent_indent=f"{below}    ")
    return lines


def as_html(report: Report) -> str:
    cell = 'style="text-align:left;vertical-align:top;padding:4px 12px 4px 0"'
    rows = []
    for finding in report.findings:
        badge = (
            f'<span style="background:{_COLOURS[finding.status]};color:#fff;border-radius:3px;padding:1px 6px">'
            f"{finding.status}</span>"
        )
        do = f"<br><strong>do:</strong> {html.escape(finding.do)}" if finding.do else ""
        rows.append(
            f'<tr><td {cell}>{badge}</td><th {cell} scope="row">{html.escape(finding.name)}</th>'
            f"<td {cell}>{html.escape(finding.what)}{do}</td></tr>"
        )
    head = "".join(f'<th {cell} scope="col">{title}</th>' for title in ("state", "part", "what was found"))
    return (
        f"<table><caption>{html.escape(report.summary)}. {_SOURCE}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
