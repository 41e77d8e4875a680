"""Checks the capstone: a script with twelve faults, each repaired and scored on its own."""

from __future__ import annotations

import functools
import os
import random
import tokenize
from pathlib import Path
from typing import Any

from gpulab.capstone.drawing import Drawn, faults_of
from gpulab.capstone.faults import FIRST, places_of, with_faults
from gpulab.capstone.places import PLACES
from gpulab.exercise.base import ATTENTION, OPTIMIZERS, SAVING, NotAttempted, Trial, check
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.wording import brief, text_of
from gpulab.notebook.progress import record_passed
from virtualgpu.pictures.display import show

from .bench import Finding
from .scoring import findings, of_the_run
from .table import Row, as_html, as_text


@check(
    lesson=15,
    says="twelve faults are repaired, and nothing else is broken",
    imports=[SAVING, OPTIMIZERS, ATTENTION],
    draws_once=True,  # it is asked again after each repair
)
def capstone(student: Any, trial: Trial) -> None:
    """Check a file: the script of lesson 15, with its faults repaired."""
    judge(student, trial, FIRST)


@check(
    lesson=15,
    says="the twelve faults of your own script are repaired",
    imports=[SAVING, OPTIMIZERS, ATTENTION],
    draws_once=True,
)
def capstone_drawn(student: Any, trial: Trial) -> None:
    """Check what `gpulab.capstone.draw` has returned: the script in its file, with the faults repaired."""
    student = _returned(student, trial)
    if not isinstance(student, Drawn):
        trial.fail(
            "this is not a drawn script",
            expected='what gpulab.capstone.draw("your name", "mine.py") returns',
            got=brief(student),
        )
    judge(student, trial, faults_of(student.name))


def judge(student: Any, trial: Trial, faults: tuple[str, ...]) -> None:
    """Score the file, show the table, record what is repaired; fail with one place that is not, if there is one."""
    text, path = _read(student, trial)
    given = with_faults(faults)
    if _bare(text) == _bare(given) or _bare(text) in ("", "raise gpulab.NotAttempted"):
        raise NotAttempted(f"{trial.name}: not attempted yet, the script is as it was found")
    seed = random.randrange(2**31)
    after = findings(text, path, trial, seed)
    wanted = places_of(faults)
    before = _as_found(given, wanted, seed, trial.name, trial.lesson)
    rows = [
        Row(PLACES[name], after[name], before.get(name)) for name in PLACES if name in wanted or not after[name].right
    ]
    repaired = [row for row in rows if row.was and row.now.right]
    for row in repaired:
        record_passed("checks", trial.lesson, f"{trial.name}: {row.place.name}")
    show(as_text(rows), html=as_html(rows))
    for row in rows:
        if row.state in ("broken", "changed"):
            trial.fail(
                row.now.means,
                expected=f"“{row.place.name}” in order (lesson {row.place.lesson:02d}), seen by {row.place.instrument}",
                got=row.now.measured,
                likely=row.now.likely,
                also=f"{len(repaired)} of {len(wanted)} faults are repaired",
            )
    for row in rows:
        if row.state == "as found":
            trial.fail(
                f"{len(repaired)} of {len(wanted)} faults are repaired; one of {row.place.kind} shows no change",
                expected=f"a different result from {row.place.instrument}",
                got="the same as in the script as it was found",
                likely="what you changed for it does not affect what is measured",
                read="",
            )
    run = of_the_run(text, path, trial, seed)
    trial.expect(
        run.right,
        run.means,
        expected="a whole run of main(), like that of the script without faults",
        got=run.measured,
        likely=run.likely,
        also=f"{len(repaired)} of {len(wanted)} faults are repaired",
    )


@functools.lru_cache(maxsize=2)
def _as_found(given: str, places: tuple[str, ...], seed: int, name: str, lesson: int) -> dict[str, Finding]:
    """What the script shows before any repair; the same for the same inputs."""
    return findings(given, "as found", Trial(name, lesson), seed, places)


def _returned(student: Any, trial: Trial) -> Any:
    """What a function returns that came in the place of a script; anything else as it is."""
    if not callable(student):
        return student
    with virtual_gpu():
        return trial.call(student)


def _read(student: Any, trial: Trial) -> tuple[str, str]:
    student = _returned(student, trial)
    if not isinstance(student, str | os.PathLike):
        trial.fail("this is not a file", expected='the path of the script, such as "train.py"', got=brief(student))
    path = Path(os.fspath(student))
    if not path.is_file():
        trial.fail(
            "there is no such file",
            expected="the script, written by the cell that begins with %%writefile",
            got=f"{path}, in the folder {Path.cwd().name}",
            likely="that cell has not been run yet",
        )
    trial.called = True
    try:
        with tokenize.open(path) as file:  # in the encoding that Python reads it in
            return file.read(), str(path)
    except (UnicodeDecodeError, SyntaxError) as error:
        trial.fail(
            "Python cannot read this file as text",
            expected="UTF-8, or a first line that names another encoding",
            got=f"{type(error).__name__}: {text_of(error, 100)}",
            likely="an editor saved it in another encoding, and it has a letter beyond ASCII",
        )


def _bare(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
