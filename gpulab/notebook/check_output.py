"""Displays what a check says as a card: a pass, a failure, or an exercise that is not attempted yet.

For the last two the check raises too, for graders and scripts; JupyterLab hides the error below the card, other front
ends show both. A card wraps to the window between words, where an error is broken anywhere.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from virtualgpu.pictures.display import in_notebook, show
from virtualgpu.pictures.style import GREEN, ORANGE

_HIDE_ERROR = """
<style>
.jp-OutputArea-child:has(.%s) + .jp-OutputArea-child:has(> [data-mime-type*="vnd.jupyter."]) { display: none; }
</style>"""

_PASSED = """\
<div class="gpulab-passed" style="{look} white-space: pre-wrap;">\
<span aria-hidden="true">✔ </span><strong>{name}</strong> passed: {rest}</div>"""

_NOT_YET = """\
<div class="gpulab-not-yet" style="border-left: 3px solid var(--jp-brand-color2, #56B4E9); padding: 0.2em 0.8em;">
○ {text}: write it in {where}, then run this one again.</div>"""

_FAILED = """\
<div class="gpulab-failed" style="{look} overflow-wrap: break-word;">
<div><span aria-hidden="true">✘ </span><strong>{name}</strong>: {summary}</div>
<table role="presentation" style="margin: 0.3em 0; border: none;">{rows}</table>{notes}</div>"""

_CELL = "text-align: left; vertical-align: top; white-space: normal; background: none; padding: 0 1em 0 0;"
_ROW = f"""\
<tr style="background: none;"><td style="{_CELL}"><em>{{label}}</em></td><td style="{_CELL}">{{text}}</td></tr>"""
_NOTE = '<div style="white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace);">{note}</div>'


def look(right: bool) -> str:
    """Return the CSS of a card: green or amber at its edge and behind its text, which keeps the colour of the page."""
    colour = GREEN if right else ORANGE
    return f"border-left: 3px solid {colour}; background: {colour}1f; padding: 0.3em 0.8em;"


def passed(name: str, says: str, *more: str) -> None:
    """Show that the check `name` has passed, its sentence `says`, and the lines `more`."""
    rest = "\n".join(html.escape(line, quote=False) for line in (says, *more))
    page = _PASSED.format(look=look(True), name=html.escape(name), rest=rest)
    show("\n  ".join([f"✔ {name}: {says}", *more]), html=page)


def failed(text: str, name: str, summary: str, rows: Mapping[str, str], notes: Sequence[str]) -> None:
    """Show above the error that follows why the check `name` has failed; only in a notebook. `text` is all of it."""
    if not in_notebook():
        return
    table = "".join(_ROW.format(label=label, text=html.escape(words)) for label, words in rows.items() if words)
    page = _FAILED.format(
        look=look(False),
        name=html.escape(name),
        summary=html.escape(summary),
        rows=table,
        notes="".join(_NOTE.format(note=html.escape(note)) for note in notes),
    )
    show(text, html=page + _HIDE_ERROR % "gpulab-failed")


def not_attempted(text: str, where: str = "the cell above") -> None:
    """Show `text`, such as "window: not attempted yet", above the error that follows; only in a notebook. `where` is
    the cell in which the answer belongs."""
    if in_notebook():
        page = _NOT_YET.format(text=html.escape(text), where=html.escape(where))
        show(f"○ {text}", html=page + _HIDE_ERROR % "gpulab-not-yet")
