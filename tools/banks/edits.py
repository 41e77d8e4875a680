"""Mistakes as edits of the solution: `drop("scaler.update()")`, `swap(...)`, `change(...)`.

The solution is the cell of the lesson's exercises.py that holds the answer; it is read, edited and run here, so that
a mistake follows when the solution changes, and an edit that no longer fits says so.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "lessons"
Edit = Callable[[list[str]], None]  # of the lines of the solution, in place


def _edit(edit: Edit) -> Edit:
    edit.is_edit = True  # type: ignore[attr-defined]
    return edit


class EditError(ValueError):
    """An edit that does not fit the solution."""


def drop(text: str) -> Edit:
    """Leave out the one line with `text` in it."""

    @_edit
    def edit(lines: list[str]) -> None:
        del lines[_line(lines, text)]

    return edit


def swap(first: str, second: str) -> Edit:
    """Let the line with `first` in it and the one with `second` change places; each keeps its own indentation."""

    @_edit
    def edit(lines: list[str]) -> None:
        i, j = _line(lines, first), _line(lines, second)
        lines[i], lines[j] = _indented(lines[j], lines[i]), _indented(lines[i], lines[j])

    return edit


def move(text: str, *, before: str = "", after: str = "") -> Edit:
    """Take the line with `text` in it to the place before, or after, that with the other in it, at its indentation."""

    @_edit
    def edit(lines: list[str]) -> None:
        line = lines.pop(_line(lines, text))
        place = _line(lines, before or after)
        lines.insert(place + bool(after), _indented(line, lines[place]))

    return edit


def change(old: str, new: str) -> Edit:
    """Put `new` in the place of `old`, which stands in the solution once; either may have several lines."""

    @_edit
    def edit(lines: list[str]) -> None:
        whole = "\n".join(lines)
        if whole.count(old) != 1:
            raise EditError(f"{old!r} stands {whole.count(old)} times in the solution, not once")
        lines[:] = whole.replace(old, new).splitlines()

    return edit


def add(new: str, *, before: str = "", after: str = "") -> Edit:
    """Put in the line `new`, before or after that with the other text in it, at its indentation."""

    @_edit
    def edit(lines: list[str]) -> None:
        place = _line(lines, before or after)
        lines.insert(place + bool(after), _indented(new, lines[place]))

    return edit


def _line(lines: list[str], text: str) -> int:
    found = [i for i, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise EditError(f"{text!r} stands in {len(found)} lines of the solution, not in one")
    return found[0]


def _indented(line: str, like: str) -> str:
    return like[: len(like) - len(like.lstrip())] + line.lstrip()


@functools.cache
def _code(cell: str) -> tuple[str, ...]:
    """The lines of a solution without its docstrings, the markers and the hints of the stub."""
    lines = cell.splitlines()
    for node in ast.walk(ast.parse(cell)):
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
            and len(node.body) > 1
        ):
            doc = slice(node.body[0].lineno - 1, node.body[0].end_lineno)
            lines[doc] = [""] * len(lines[doc])
    return tuple(line for line in lines if line.strip() and not line.lstrip().startswith(("### ", "# TODO")))


@functools.cache
def _solution(lesson: int, name: str) -> tuple[str, str, str]:
    """The imports of the solution notebook, the source of the answer called `name`, and the text cell above it."""
    (path,) = FOLDER.glob(f"{lesson:02d}_*/exercises.py")
    cells = re.split(r"^# %%", path.read_text("utf-8"), flags=re.M)
    code, text, above = [], "", {}
    for head, _, cell in (cell.partition("\n") for cell in cells):
        if "[markdown]" in head:
            text = re.sub(r"^# ?", "", cell, flags=re.M)
        else:
            code.append(cell)
            above[cell] = text
    imports = [node for cell in code for node in ast.parse(cell).body if isinstance(node, ast.Import | ast.ImportFrom)]
    found = [cell for cell in code if re.search(rf"^(def|class) {name}\b", cell, flags=re.M) and "### BEGIN" in cell]
    if len(found) != 1:
        raise EditError(f"{len(found)} cells of {path.parent.name} hold the solution {name!r}, not one")
    return "\n".join(map(ast.unparse, imports)), found[0], above[found[0]]


def text_of_exercise(lesson: int, name: str) -> str:
    """What the student reads of the answer called `name`: the text above its cell, and that without the solution."""
    _, cell, above = _solution(lesson, name)
    return above + re.sub(r"(?s)### BEGIN SOLUTION.*?### END SOLUTION", "", cell)


def solution(lesson: int, name: str, *edits: Edit, called: str = "") -> Any:
    """The solution's own object called `name`, after these edits; `called` is the name that it goes by."""
    imports, cell, _ = _solution(lesson, name)
    lines = [*_code(cell)]
    for edit in edits:
        edit(lines)
    file = f"<{called or name}>"
    source = "\n".join([*imports.splitlines(), *lines])
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names: dict[str, Any] = {"__name__": file}
    exec(compile(source, file, "exec"), names)
    answer = names[name]
    answer.__name__ = called or name
    return answer
