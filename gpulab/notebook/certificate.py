"""Writes a certificate as an HTML page from the progress file; it states that it is not signed."""

from __future__ import annotations

import html
import os
from datetime import date
from pathlib import Path

from virtualgpu.pictures.display import show

from . import progress

_LONGEST = 100  # characters of a name
_WHAT_IT_IS = (
    "This page was made on the reader's own machine from the file progress.json, which the course's checks write when "
    "an answer passes. It is a record of one's own progress. Nobody has supervised it, and nobody has signed it."
)
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpulab: the progress of {name}</title>
<style>
body {{ font: 16px/1.5 sans-serif; color: #111; background: #fff; max-width: 46em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.6em; margin-bottom: 0.2em; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.25em 0.8em 0.25em 0; border-bottom: 1px solid #bbb; }}
tr {{ break-inside: avoid; }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 11pt; }} }}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p>{sum}</p>
<h2>Lessons</h2>
<table>
<thead><tr><th scope="col">lesson</th><th scope="col">exercises passed</th><th scope="col">questions</th></tr></thead>
<tbody>
{lessons}
</tbody>
</table>
{faults}<p>{what}</p>
<p>Made on {today} by gpulab.</p>
</main>
</body>
</html>
"""


def certificate(name: str, path: str | os.PathLike[str] = "certificate.html") -> Path:
    """Write a page with the exercises and questions that `name` has passed, with days and repaired faults; return its
    path, and show its text.

    The page needs no network and prints well. Raises ValueError for an empty or overlong name, FileNotFoundError if the
    folder of `path` is missing, RuntimeError if nothing has been passed yet.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST or not name.isprintable():
        raise ValueError(f"name must be a text of 1 to {_LONGEST} letters such as 'Ada Lovelace', not {name!r:.120}")
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"path is {str(file)!r}; the folder {str(file.parent)!r} does not exist")
    passed = progress.read_progress()
    if not any((*passed.checks.values(), *passed.questions.values())):
        raise RuntimeError(
            f"there is nothing to certify yet: {progress.file_path().name} holds no exercise and no question that was "
            "passed"
        )
    part = file.with_name(f"{file.name}.new")
    part.write_text(as_html(name.strip(), passed, date.today()), encoding="utf-8")
    os.replace(part, file)
    show("\n".join([as_text(name.strip(), passed, date.today()), f"written to {file}", *passed.notes]))
    return file


def as_text(name: str, passed: progress.Passed, today: date) -> str:
    """Return the content of the page as lines of text."""
    lines = [f"{name}: {_sum(passed)}"]
    for lesson, exercises, questions in _lessons(passed):
        lines.append(f"  {lesson}: {'; '.join(exercises) or 'no exercise'}{f'; {questions}' if questions else ''}")
    for script, repaired in _faults(passed):
        lines.append(f"  {script}: {'; '.join(repaired)}")
    return "\n".join([*lines, _WHAT_IT_IS, f"Made on {today.isoformat()} by gpulab."])


def as_html(name: str, passed: progress.Passed, today: date) -> str:
    lessons = "\n".join(
        f'<tr><th scope="row">{html.escape(lesson)}</th><td>{"<br>".join(map(html.escape, exercises)) or "none"}</td>'
        f"<td>{html.escape(questions) or '–'}</td></tr>"
        for lesson, exercises, questions in _lessons(passed)
    )
    faults = "".join(
        f"<h2>Faults repaired: {html.escape(script)}</h2>\n<p>{html.escape('; '.join(repaired))}</p>\n"
        for script, repaired in _faults(passed)
    )
    return _PAGE.format(
        name=html.escape(name),
        sum=html.escape(_sum(passed)),
        lessons=lessons,
        faults=faults,
        what=html.escape(_WHAT_IT_IS, quote=False),
        today=today.isoformat(),
    )


def _sum(passed: progress.Passed) -> str:
    """Return the numbers of exercises and questions passed, as a sentence."""
    lessons, checks, answered = zip(*progress.counts(passed), strict=True)
    of_checks, of_questions = sum(len(row.checks) for row in lessons), sum(row.questions for row in lessons)
    exercises = f"{sum(checks)} of {of_checks} exercises"
    return f"{exercises} and {sum(answered)} of {of_questions} questions of the course gpulab"


def _lessons(passed: progress.Passed) -> list[tuple[str, list[str], str]]:
    """Return name, exercises with days, and questions of each lesson with something passed."""
    rows = []
    for row, _, answered in progress.counts(passed):
        names = [name for name in row.checks if name in passed.checks.get(row.number, ())]
        if names or answered:
            exercises = [_with_day(name, passed, row.number, name) for name in names]
            rows.append((row.name, exercises, f"{answered} of {row.questions}" if answered else ""))
    return rows


def _faults(passed: progress.Passed) -> list[tuple[str, list[str]]]:
    """Return the repaired places of the capstone's scripts, which its check records as "capstone: place"."""
    rows: dict[str, list[str]] = {}
    for number, names in passed.checks.items():
        for name in sorted(names):
            script, colon, place = name.partition(": ")
            if colon:
                rows.setdefault(script, []).append(_with_day(place, passed, number, name))
    return sorted(rows.items())


def _with_day(text: str, passed: progress.Passed, number: int, name: str) -> str:
    day = passed.days.get(("checks", number, name))
    return f"{text} ({day.isoformat() if day else 'day not recorded'})"
