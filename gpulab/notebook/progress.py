"""Records a student's passed exercises, answers and guesses in one JSON file, and shows the map of the course.

The file is `progress.json` in the course folder, or the one in `GPULAB_PROGRESS`. It is replaced atomically, by one
kernel at a time; a damaged one is set aside, and never stops a lesson. A file of an older version is upgraded with the
next entry, one of a newer version is left alone.
"""

from __future__ import annotations

import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from virtualgpu.pictures.display import show
from virtualgpu.pictures.style import GREEN

from .. import course

_VERSION = 2  # 1 had no predictions
_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Guess:
    """A guess in the unit of its question, and its day; `lesson` is None if unknown."""

    value: float
    on: date
    lesson: int | None = None


@dataclass(frozen=True)
class Passed:
    """The names of passed exercises and questions by lesson number, the guesses by question, and notes for the reader.

    `days` has the dates by (kind, lesson, name); entries of an earlier gpulab have none.
    """

    checks: dict[int, frozenset[str]] = field(default_factory=dict)
    questions: dict[int, frozenset[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    guesses: dict[str, Guess] = field(default_factory=dict)
    days: dict[tuple[str, int, str], date] = field(default_factory=dict, compare=False)


def file_path() -> Path:
    """Return the file's path: `GPULAB_PROGRESS`, else `progress.json` in the course folder or the current one.

    `{pid}` in GPULAB_PROGRESS is replaced by the process id, to separate parallel kernels in CI.
    """
    told = os.environ.get("GPULAB_PROGRESS")
    if told:
        return Path(told.replace("{pid}", str(os.getpid()))).expanduser()
    return (course.folder() or Path.cwd()) / "progress.json"


def read_progress() -> Passed:
    """Return the record. A damaged file is renamed to `progress.damaged-N.json`, and a note says so."""
    try:
        raw, wrong = _parse(file_path())
        notes: tuple[str, ...] = ()
        if wrong:
            with _locked() as file:  # again: another kernel may have replaced it meanwhile
                raw, notes = _load(file)
    except _TROUBLE as error:
        raw, notes = _empty(), (f"progress not read: {_why(error)}",)
    return Passed(
        {int(k): frozenset(v) for k, v in raw["checks"].items()},
        {int(k): frozenset(v) for k, v in raw["questions"].items()},
        notes,
        {q: Guess(float(r["guess"]), date.fromisoformat(r["on"]), r["lesson"]) for q, r in raw["predictions"].items()},
        {key: day for text, row in raw.get("days", {}).items() if (key := _key(text)) and (day := _day(row))},
    )


def record_passed(kind: str, lesson: int, name: str) -> tuple[str, ...]:
    """Record that `name` of `lesson` was passed; `kind` is "checks" or "questions".

    Returns notes for the student: (), or why it could not be recorded. Never raises for a file that cannot be read or
    written: a lesson goes on without it.
    """
    if kind not in ("checks", "questions"):
        raise ValueError(f"kind must be 'checks' or 'questions', not {kind!r}")

    def add(raw: dict[str, Any]) -> bool:
        names = raw[kind].setdefault(str(lesson), [])
        if name in names:
            return False
        names.append(name)
        names.sort()
        raw.setdefault("days", {})[f"{kind}/{lesson}/{name}"] = date.today().isoformat()
        return True

    return _change(add)


def record_guess(question: str, value: float | None, lesson: int | None) -> tuple[str, ...]:
    """Record a guess, a finite number, with today's date, or remove it for None; the same number keeps its first date.

    Returns notes for the student, and never raises for the file, as `record_passed`.
    """

    def put(raw: dict[str, Any]) -> bool:
        rows = raw["predictions"]
        if value is None:
            return rows.pop(question, None) is not None
        if question in rows and rows[question]["guess"] == value:
            return False
        rows[question] = {"guess": value, "lesson": lesson, "on": date.today().isoformat()}
        return True

    return _change(put)


def progress() -> None:
    """Show the map of the course: its lessons with your passed exercises and questions."""
    passed = read_progress()
    show(_as_text(passed), html=_as_html(passed))


def _change(change: Callable[[dict[str, Any]], bool]) -> tuple[str, ...]:
    """Apply `change` to the record, and write it if that returns True; return the notes for the reader."""
    try:
        with _locked() as file:
            raw, notes = _load(file)
            if change(raw):
                _write(file, raw)
            return notes
    except _TROUBLE as error:
        return (f"progress not recorded: {_why(error)}",)


def _empty() -> dict[str, Any]:
    return {"version": _VERSION, "checks": {}, "questions": {}, "predictions": {}}


class _Newer(Exception):
    """Raised for a file of a version that only a newer gpulab knows."""


# RuntimeError: a home folder that is not known, a circle of links. NotImplementedError: a disk without locks.
_TROUBLE = (OSError, RuntimeError, NotImplementedError, _Newer)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"another program has held the lock of the file for {_LOCK_SECONDS:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name if isinstance(error.filename, str) else 'the file'}: {error.strerror}"
    return str(error)


@contextmanager
def _locked() -> Iterator[Path]:
    """Lock the file against other kernels, and yield its path with links resolved."""
    from filelock import FileLock

    file = file_path().resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock", timeout=_LOCK_SECONDS):
        yield file


def _load(file: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the record, and a note if a damaged file was set aside; needs the lock."""
    raw, wrong = _parse(file)
    return raw, (_set_aside(file, wrong),) if wrong else ()


def _parse(file: Path) -> tuple[dict[str, Any], str | None]:
    """Return the record in the current version, or an empty one and the reason. OSError if it cannot be read."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _empty(), None
    except UnicodeDecodeError:
        return _empty(), "it is not text"
    except (ValueError, RecursionError) as error:
        return _empty(), f"it is not JSON ({error})"
    version = raw.get("version") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        return _empty(), f"it is not a progress file of version 1 to {_VERSION}"
    if version > _VERSION:
        known = f"this gpulab knows versions 1 to {_VERSION}: update gpulab; the file is unchanged"
        raise _Newer(f"{file.name} is of version {version}, and {known}")
    if version == 1:
        raw |= {"version": 2, "predictions": {}}
    wrong = _what_is_wrong(raw)
    return (_empty(), wrong) if wrong else (raw, None)


def _key(text: str) -> tuple[str, int, str] | None:
    """Return (kind, lesson, name) from a key of days; None for any other text."""
    found = re.fullmatch(r"(checks|questions)/(0|[1-9][0-9]{0,3})/(.+)", text, re.DOTALL)
    return (found[1], int(found[2]), found[3]) if found else None


def _day(row: Any) -> date | None:
    try:
        return date.fromisoformat(row)
    except (TypeError, ValueError):
        return None


def _what_is_wrong(raw: dict[str, Any]) -> str | None:
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
    if not isinstance(raw.get("days", {}), dict):
        return "'days' is not a table"
    if not isinstance(raw.get("predictions"), dict):
        return "'predictions' is not a table"
    for question, row in raw["predictions"].items():
        if not _is_guess(row):
            return f"'predictions' has a row that is not a guess with its day and lesson: {question[:20]!r}"
    return None


def _is_guess(row: Any) -> bool:
    most = sys.float_info.max
    try:
        guess, lesson, _ = row["guess"], row["lesson"], date.fromisoformat(row["on"])
    except (LookupError, TypeError, ValueError):
        return False
    return type(guess) in (int, float) and -most <= guess <= most and (lesson is None or type(lesson) is int)


def _set_aside(file: Path, why: str) -> str:
    number = 1
    while (kept := file.with_name(f"{file.stem}.damaged-{number}.json")).exists():
        number += 1
    os.replace(file, kept)
    return f"{file.name} was damaged ({why}); it is kept as {kept.name}, and a new one is started"


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


def counts(passed: Passed) -> list[tuple[course.Lesson, int, int]]:
    """Return each lesson with the numbers of exercises passed and questions answered."""
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


def _coloured(done: int, total: int) -> str:
    """Return `_bar` with what is done on the green of a passed check; the text has the colour of the page."""
    bar = _bar(done, total)
    passed = f'<span style="background: {GREEN}1f; border-bottom: 3px solid {GREEN};">{bar[:done]}</span>'
    return f"{passed if done else ''}{bar[done:]}"


def _as_text(passed: Passed) -> str:
    lines = []
    for lesson, checks, questions in counts(passed):
        parts = []
        if lesson.checks:
            parts.append(f"exercises {_bar(checks, len(lesson.checks))} {checks}/{len(lesson.checks)}")
        if lesson.questions:
            parts.append(f"quiz {_bar(questions, lesson.questions)} {questions}/{lesson.questions}")
        state = "  ".join(parts)
        lines.append(f"{lesson.name:<18} {lesson.promise:<61} {state}".rstrip())
    return "\n".join([*lines, *(f"note: {note}" for note in passed.notes)])


def _as_html(passed: Passed) -> str:
    """Return the map as a table, with links relative to a notebook in `notebooks/`."""
    cell = 'style="text-align:left;padding:2px 12px 2px 0"'
    whole = 'style="text-align:left;padding:2px 12px 2px 0;white-space:nowrap"'
    rows = []
    for lesson, checks, questions in counts(passed):
        name = f'<a href="../notebooks/{lesson.name}.ipynb">{lesson.name}</a>'
        exercises, quiz = "–", "–"
        if lesson.checks:
            link = f'<a href="../exercises/{lesson.name}.ipynb">exercises</a>'
            exercises = f"{_coloured(checks, len(lesson.checks))} {checks} of {len(lesson.checks)} {link}"
        if lesson.questions:
            quiz = f"{_coloured(questions, lesson.questions)} {questions} of {lesson.questions}"
        rows.append(
            f"<tr><td {cell}>{name}</td><td {cell}>{html.escape(lesson.promise)}</td>"
            f"<td {whole}>{exercises}</td><td {whole}>{quiz}</td></tr>"
        )
    head = "".join(f"<th {cell}>{title}</th>" for title in ("lesson", "promise", "exercises", "quiz"))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in passed.notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{notes}"
