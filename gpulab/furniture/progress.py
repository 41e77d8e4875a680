"""What a student has passed, kept in one JSON file, and the map of the course that shows it.

The file is `progress.json` in the course folder, or where `GPULAB_PROGRESS` says. It is written whole or
not at all, by one kernel at a time; a damaged one is set aside, and never stops a lesson.
"""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import course
from ..display import show

_VERSION = 1
_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Passed:
    """The names of what was passed, by lesson number; `notes` is what the reader should be told."""

    checks: dict[int, frozenset[str]] = field(default_factory=dict)
    questions: dict[int, frozenset[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def path() -> Path:
    """Where the record lives: `GPULAB_PROGRESS`, else `progress.json` in the course folder or the current one.

    `{pid}` in GPULAB_PROGRESS stands for the process, so that kernels running side by side in CI do not meet.
    """
    told = os.environ.get("GPULAB_PROGRESS")
    if told:
        return Path(told.replace("{pid}", str(os.getpid()))).expanduser()
    return (course.folder() or Path.cwd()) / "progress.json"


def read() -> Passed:
    """The record as it stands. A damaged file is renamed to `progress.damaged-N.json`, and a note says so."""
    try:
        raw, wrong = _parse(path())
        notes: tuple[str, ...] = ()
        if wrong:
            with _locked() as file:  # again, since another kernel may have seen to it meanwhile
                raw, notes = _load(file)
    except _TROUBLE as error:
        raw, notes = _empty(), (f"progress not read: {_why(error)}",)
    return Passed(
        {int(k): frozenset(v) for k, v in raw["checks"].items()},
        {int(k): frozenset(v) for k, v in raw["questions"].items()},
        notes,
    )


def record(kind: str, lesson: int, name: str) -> tuple[str, ...]:
    """Note that `name` of `lesson` was passed; `kind` is "checks" or "questions".

    Returns what the student should be told: nothing, or why it could not be kept. Never raises for a
    file that cannot be read or written: a lesson goes on without it.
    """
    if kind not in ("checks", "questions"):
        raise ValueError(f"kind must be 'checks' or 'questions', not {kind!r}")
    try:
        with _locked() as file:
            raw, notes = _load(file)
            names = raw[kind].setdefault(str(lesson), [])
            if name not in names:
                names.append(name)
                names.sort()
                _write(file, raw)
            return notes
    except _TROUBLE as error:
        return (f"progress not recorded: {_why(error)}",)


def progress() -> None:
    """Show the map of the course: its lessons, and what you have passed of each."""
    passed = read()
    show(_as_text(passed), html=_as_html(passed))


def _empty() -> dict[str, Any]:
    return {"version": _VERSION, "checks": {}, "questions": {}}


# RuntimeError: a home folder that is not known, a circle of links. NotImplementedError: a disk without locks.
_TROUBLE = (OSError, RuntimeError, NotImplementedError)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"another program has held the lock beside it for {_LOCK_SECONDS:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name if isinstance(error.filename, str) else 'the file'}: {error.strerror}"
    return str(error)


@contextmanager
def _locked() -> Iterator[Path]:
    """The file itself, also where `path()` is a link to it, held against the other kernels."""
    from filelock import FileLock

    file = path().resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=_LOCK_SECONDS):
        yield file


def _load(file: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The record, and a note where it was damaged and had to be set aside; only under the lock."""
    raw, wrong = _parse(file)
    return raw, (_set_aside(file, wrong),) if wrong else ()


def _parse(file: Path) -> tuple[dict[str, Any], str | None]:
    """The record as it stands, or an empty one and what is wrong with it. OSError when it cannot be read."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _empty(), None
    except UnicodeDecodeError:
        return _empty(), "it is not text"
    except (ValueError, RecursionError) as error:
        return _empty(), f"it is not JSON ({error})"
    wrong = _what_is_wrong(raw)
    return (_empty(), wrong) if wrong else (raw, None)


def _what_is_wrong(raw: Any) -> str | None:
    if not isinstance(raw, dict) or raw.get("version") != _VERSION:
        return f"it is not a progress file of version {_VERSION}"
    for kind in ("checks", "questions"):
        table = raw.get(kind)
        if not isinstance(table, dict):
            return f"{kind!r} is not a table"
        for number, names in table.items():
            if (
                not re.fullmatch("0|[1-9][0-9]{0,3}", number)
                or not isinstance(names, list)
                or not all(isinstance(n, str) for n in names)
            ):
                return f"{kind!r} has a row that is not a lesson with names: {number[:20]!r}"
    return None


def _set_aside(file: Path, why: str) -> str:
    number = 1
    while (kept := file.with_name(f"{file.stem}.damaged-{number}.json")).exists():
        number += 1
    os.replace(file, kept)
    return f"{file.name} was damaged ({why}); it is kept as {kept.name}, and a new one begins"


def _write(file: Path, raw: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(raw, out, indent=1, sort_keys=True)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _rows(passed: Passed) -> list[tuple[course.Lesson, int, int]]:
    """Each lesson with its exercises passed and its questions answered, out of those that exist."""
    return [
        (
            lesson,
            len(passed.checks.get(lesson.number, frozenset()) & set(lesson.checks)),
            min(len(passed.questions.get(lesson.number, ())), lesson.questions),
        )
        for lesson in course.LESSONS
    ]


def _bar(done: int, total: int) -> str:
    return "●" * done + "○" * (total - done)


def _as_text(passed: Passed) -> str:
    lines = []
    for lesson, checks, questions in _rows(passed):
        if not lesson.written:
            state = "in preparation"
        else:
            parts = []
            if lesson.checks:
                parts.append(f"exercises {_bar(checks, len(lesson.checks))} {checks}/{len(lesson.checks)}")
            if lesson.questions:
                parts.append(f"quiz {_bar(questions, lesson.questions)} {questions}/{lesson.questions}")
            state = "  ".join(parts)
        lines.append(f"{lesson.name:<18} {lesson.promise:<61} {state}".rstrip())
    return "\n".join([*lines, *(f"note: {note}" for note in passed.notes)])


def _as_html(passed: Passed) -> str:
    """The map as a table; its links lead from a notebook in `notebooks/` to the others."""
    cell = 'style="text-align:left;padding:2px 12px 2px 0"'
    rows = []
    for lesson, checks, questions in _rows(passed):
        if lesson.written:
            name = f'<a href="../notebooks/{lesson.name}.ipynb">{lesson.name}</a>'
            exercises, quiz = "–", "–"
            if lesson.checks:
                link = f'<a href="../exercises/{lesson.name}.ipynb">exercises</a>'
                exercises = f"{_bar(checks, len(lesson.checks))} {checks} of {len(lesson.checks)} {link}"
            if lesson.questions:
                quiz = f"{_bar(questions, lesson.questions)} {questions} of {lesson.questions}"
        else:
            name, exercises, quiz = lesson.name, "in preparation", ""
        rows.append(
            f"<tr><td {cell}>{name}</td><td {cell}>{html.escape(lesson.promise)}</td>"
            f"<td {cell}>{exercises}</td><td {cell}>{quiz}</td></tr>"
        )
    head = "".join(f"<th {cell}>{title}</th>" for title in ("lesson", "promise", "exercises", "quiz"))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in passed.notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{notes}"
