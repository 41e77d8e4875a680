"""Shows code with explanations of its lines: click a line, or use the arrow keys.

It is made of radio buttons and CSS, without a script or a kernel, so that it works in a saved notebook. Where styles or
buttons are removed, as on GitHub and in an untrusted notebook, each explanation is below its line; in text it is a
comment above the line.
"""

from __future__ import annotations

import hashlib
import html
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from virtualgpu.pictures.display import show

_WIDTH = 100  # of the text form

# An untrusted page loses the role, and with it the style of a trusted neighbour.
_STYLE = """<style>
.gpulab-annotated[role=radiogroup] {
  display: grid; grid-template-columns: minmax(0, max-content) minmax(15em, 1fr); column-gap: 1.5em; max-width: 75em;
  margin: 0.3em 0;
}
.gpulab-annotated[role=radiogroup] > div { display: contents; }
.gpulab-annotated[role=radiogroup] > div > :first-child {
  grid-column: 1; display: block; position: relative; margin: 0; padding: 0.1em 0.5em 0.1em 1.8em;
  border-left: 3px solid transparent;
}
.gpulab-annotated[role=radiogroup] code {
  display: block; padding: 0 0 0 var(--hang) !important; text-indent: calc(-1 * var(--hang)); font-size: 0.9em;
  background: none !important; color: inherit; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere;
}
.gpulab-annotated[role=radiogroup] input { position: absolute; left: 0.2em; top: 0.3em; margin: 0; }
.gpulab-annotated[role=radiogroup] label { cursor: pointer; }
.gpulab-annotated[role=radiogroup] label:hover { border-left-color: currentColor; }
.gpulab-annotated[role=radiogroup] label:has(:checked) { border-left-color: #56B4E9; background: #56B4E933; }
.gpulab-annotated[role=radiogroup] label:has(:focus-visible) { outline: 2px solid #56B4E9; }
.gpulab-annotated[role=radiogroup] blockquote {
  grid-column: 2; grid-row: 1 / span var(--rows); align-self: start; visibility: hidden; margin: 0; padding: 0 0.8em;
  border: none; border-left: 3px solid #56B4E9; color: inherit; line-height: 1.6;
}
.gpulab-annotated[role=radiogroup] div:has(:checked) > blockquote { visibility: visible; }
</style>"""


def annotated(code: str | Callable[..., Any], notes: Mapping[str | int, str]) -> None:
    """Show `code`, a text or a function, and beside the chosen line its explanation in `notes`.

    The keys of `notes` are pieces of lines that occur in no other line, or line numbers from 1 on. Raises ValueError
    for a key that fits no line or several, two notes on one line or an empty one; TypeError for a note that is no text.
    """
    lines = _lines(code)
    said = _said(lines, notes)
    show(_as_text(lines, said), html=_as_html(lines, said))


def _lines(code: str | Callable[..., Any]) -> list[str]:
    if not isinstance(code, str):
        if not callable(code):
            raise TypeError(f"code must be a text or a function, not {code!r}")
        try:
            code = inspect.getsource(code)
        except (OSError, TypeError):
            raise ValueError(f"code: {code!r} has no source that can be read; give the text itself") from None
    lines = textwrap.dedent(code.expandtabs(4)).strip("\n").splitlines()
    if not any(line.strip() for line in lines):
        raise ValueError("code is empty; it must have at least one line")
    return [line.rstrip() for line in lines]


def _said(lines: list[str], notes: Mapping[str | int, str]) -> dict[int, str]:
    if not notes:
        raise ValueError("notes is empty; it must explain at least one line")
    said: dict[int, str] = {}
    for name, note in notes.items():
        if not isinstance(note, str):
            raise TypeError(f"notes[{name!r}] must be a text, not {note!r}")
        if not note.strip():
            raise ValueError(f"notes[{name!r}] is empty: say what the line does, or leave it out")
        number = _number(lines, name)
        if number in said:
            raise ValueError(f"notes[{name!r}] is the second note on line {number}, {lines[number - 1].strip()!r}")
        said[number] = " ".join(note.split())
    return dict(sorted(said.items()))


def _number(lines: list[str], name: str | int) -> int:
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise TypeError(f"notes: name a line by a part of its text or by its number, not by {name!r}")
    if isinstance(name, int):
        if not 1 <= name <= len(lines):
            raise ValueError(f"notes: there is no line {name}; the code has lines 1 to {len(lines)}")
        found = [name]
    else:
        found = [number for number, line in enumerate(lines, 1) if name.strip() and name in line]
        if len(found) != 1:
            where = f"in lines {', '.join(map(str, found))}: give a longer piece" if found else "in no line of the code"
            raise ValueError(f"notes: {name!r} stands {where}")
    if not lines[found[0] - 1].strip():
        raise ValueError(f"notes: line {found[0]} is blank, so there is nothing to explain")
    return found[0]


def _as_text(lines: list[str], said: Mapping[int, str]) -> str:
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in said:
            margin = line[: len(line) - len(line.lstrip())]
            out += textwrap.wrap(said[number], _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
        out.append(line)
    return "\n".join(out)


def _as_html(lines: list[str], said: Mapping[int, str]) -> str:
    key = "gpulab-" + hashlib.sha256(repr((lines, said)).encode()).hexdigest()[:10]
    first = next(iter(said))
    rows = []
    for number, line in enumerate(lines, 1):
        # Non-breaking spaces keep the indentation on a page without styles.
        margin = len(line) - len(line.lstrip())
        words = "&nbsp;" * margin + html.escape(line.strip(), quote=False) or "&nbsp;"
        code = f'<code style="--hang: {margin + 4}ch">{words}</code>'  # the indent of continuation lines
        if number in said:
            # Without the attribute, JupyterLab takes the arrow keys to move between cells.
            code = (
                f'<label><input type="radio" name="{key}" aria-describedby="{key}-{number}" '
                f'data-lm-suppress-shortcuts="true"{" checked" if number == first else ""}>{code}</label>'
                f'<blockquote id="{key}-{number}">{html.escape(said[number], quote=False)}</blockquote>'
            )
        else:
            code = f"<span>{code}</span>"
        rows.append(f"<div>{code}</div>")
    head = f'<div class="gpulab-annotated" role="radiogroup" aria-label="Explained lines" style="--rows: {len(lines)}">'
    return f"{_STYLE}\n{head}{''.join(rows)}</div>"
