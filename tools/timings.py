"""docs/timings.md: what each notebook takes to run and to go through. Written by `make bench`, or by this file alone.

Each lecture and solution is run from top to bottom, one after the other. What is counted (words, lines, predictions,
turns) comes from the notebooks, the minutes that a lesson states from its lesson.toml, the routes from lesson 00.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import nbformat
from nbformat import NotebookNode

from gpulab import course

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "timings.md"
WORDS = ROOT / "tools" / "evidence" / "timings.md"  # the page without its numbers
FOLDERS = ("notebooks", "solutions")

WORDS_A_MINUTE = 200
SECONDS_A_LINE = 3.0  # of code
SECONDS_AN_OUTPUT = 10.0  # a table, a picture, a line that was printed
MINUTES_A_PREDICTION = 0.5
MINUTES_A_QUESTION = 1.0
MINUTES_A_SIMULATOR = 3.0


@dataclass(frozen=True)
class Counts:
    """What there is to do in a notebook; of turns and exercises the minutes that they state."""

    words: int
    lines: int
    outputs: int
    predictions: int
    simulators: int
    turns: tuple[int, ...]
    exercises: tuple[int, ...]
    size: int  # bytes of the file

    def minutes(self, questions: int, seconds: float = 0.0) -> float:
        """By run-through: reading, predicting, answering, turning knobs, and `seconds` of running."""
        reading = self.words / WORDS_A_MINUTE + (self.lines * SECONDS_A_LINE + self.outputs * SECONDS_AN_OUTPUT) / 60
        doing = self.predictions * MINUTES_A_PREDICTION + sum(self.turns) + questions * MINUTES_A_QUESTION
        return reading + doing + self.simulators * MINUTES_A_SIMULATOR + seconds / 60


@dataclass(frozen=True)
class Run:
    """Seconds of a notebook from its kernel's start to its end: by the clock, and of the processor in all processes."""

    wall: float
    processor: float


def counts(path: Path) -> Counts:
    """Counted in the notebook as it is stored; the solution that is folded under a turn counts as text."""
    notebook = nbformat.read(path, as_version=4)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    lines = [line.strip() for cell in code for line in cell.source.splitlines()]
    return Counts(
        words=sum(bool(re.search(r"\w", word)) for text in texts for word in text.split()),
        lines=sum(bool(line) and not line.startswith("#") for line in lines),
        outputs=sum(bool(cell.outputs) for cell in code),
        predictions=sum(line.count("gpulab.predict(") for line in lines),
        simulators=sum(bool(re.match(r"gpulab\.sim\.\w+\(.*\)$", line)) for line in lines),
        turns=_stated(texts, r"\*\*Your turn\*\* · (\d+) minutes?"),
        exercises=_stated(texts, r"^(\d+) minutes? · difficulty"),
        size=path.stat().st_size,
    )


def _stated(texts: Iterable[str], pattern: str) -> tuple[int, ...]:
    return tuple(int(number) for text in texts for number in re.findall(pattern, text, re.MULTILINE))


def notebooks() -> list[Path]:
    """The lectures and the solutions."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]


def measure(path: Path) -> Run:
    """Run a notebook from top to bottom, on one thread and a virtual GPU, as the build does."""
    from build import execute

    notebook: NotebookNode = nbformat.read(path, as_version=4)
    began, before = perf_counter(), os.times()
    execute(notebook, path.parent)
    after = os.times()
    children = after.children_user - before.children_user + after.children_system - before.children_system
    return Run(perf_counter() - began, children)


def routes() -> dict[str, tuple[int, ...]]:
    """Name and lessons of each route, as lesson 00 lists them."""
    text = (ROOT / "lessons" / "00_start_here" / "lecture.py").read_text(encoding="utf-8")
    found = {}
    for name, rest in re.findall(r"^# - \*\*(.+?):\*\* ([^.]*)\.", text.partition("### Four routes")[2], re.MULTILINE):
        numbers: list[int] = []
        for first, last in re.findall(r"(\d\d)(?: to (\d\d))?", rest):
            numbers += range(int(first), int(last or first) + 1)
        found[name] = tuple(numbers)
    return found


def page(runs: Mapping[Path, Run]) -> str:
    """The whole of docs/timings.md; `runs` are of all notebooks."""
    lessons = {lesson.name: lesson for lesson in course.LESSONS}
    through: dict[int, float] = {}
    exercises: dict[int, int] = {}
    lectures, solutions, ways = [], [], []
    for path, run in runs.items():
        c, lesson = counts(path), lessons.get(path.stem)
        text = f"`{path.stem}`", c.words, c.lines
        took = f"{run.processor:.0f}", f"{run.wall:.0f}", f"{c.size / 1000:.0f}"
        if path.parent.name == "notebooks":
            minutes: tuple[object, object] = ("–", "–")
            if lesson is not None:
                through[lesson.number] = c.minutes(lesson.questions, run.processor)
                minutes = lesson.minutes, f"{through[lesson.number]:.0f}"
            doing = c.predictions, sum(c.turns), lesson.questions if lesson else 0, c.simulators
            lectures.append((*text, *doing, *took, *minutes))
        elif lesson is not None:
            exercises[lesson.number] = sum(c.exercises)
            solutions.append((*text, *took, sum(c.exercises)))
    for name, numbers in routes().items():
        stated = sum(course.LESSONS[number].minutes for number in numbers) / 60
        takes = sum(through[number] for number in numbers) / 60
        solving = sum(exercises.get(number, 0) for number in numbers) / 60
        listed = ", ".join(f"{number:02d}" for number in numbers)
        ways.append((name, listed, f"{stated:.1f}", f"{takes:.1f}", f"{solving:.1f}"))
    processors = {1: "one processor", 2: "two processors"}.get(os.cpu_count() or 1, f"{os.cpu_count()} processors")
    counted, seconds = ("words", "lines of code"), ("s, processor", "s, clock", "kB")
    doing_columns = ("predictions", "minutes of turns", "questions", "simulators")
    return WORDS.read_text(encoding="utf-8").format(
        machine=f"{processors}, no GPU, {sys.platform} {platform.machine()}, Python {platform.python_version()}",
        words=WORDS_A_MINUTE,
        line=SECONDS_A_LINE,
        output=SECONDS_AN_OUTPUT,
        prediction=60 * MINUTES_A_PREDICTION,
        question=MINUTES_A_QUESTION,
        simulator=MINUTES_A_SIMULATOR,
        lectures=_table(("lecture", *counted, *doing_columns, *seconds, "minutes stated", "by run-through"), lectures),
        solutions=_table(("exercises", *counted, *seconds, "minutes stated"), solutions),
        routes=_table(("route", "lessons", "lectures, stated", "by run-through", "exercises, stated"), ways),
    )


def _table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def write(runs: Mapping[Path, Run]) -> None:
    """docs/timings.md from these runs, which are of all notebooks."""
    PAGE.write_text(page(runs), encoding="utf-8")


def stored() -> dict[Path, Run]:
    """The seconds that the page has by now, rounded as they stand there."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    found = {}
    for folder, heading in zip(FOLDERS, ("Lectures", "Exercises"), strict=True):
        lines = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
        rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
        for row in rows[2:]:
            named = dict(zip(rows[0], row, strict=True))
            found[ROOT / folder / f"{row[0]}.ipynb"] = Run(float(named["s, clock"]), float(named["s, processor"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="measure these alone, such as 14; the others keep their seconds")
    names = tuple(parser.parse_args().names)
    before, runs = stored() if names else {}, {}
    for path in notebooks():
        if path in before and not path.name.startswith(names):
            runs[path] = before[path]
            continue
        runs[path] = measure(path)
        print(f"{path.parent.name}/{path.name}: {runs[path].processor:.1f} s of the processor", flush=True)
    write(runs)
    print(f"written to {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
