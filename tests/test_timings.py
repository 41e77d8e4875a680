"""docs/timings.md agrees with the notebooks, lessons state the minutes that they take, and routes lead to their end."""

import re

import nbformat
import pytest
import timings

from gpulab import course

PATHS = timings.notebooks()
LESSONS = {lesson.name: lesson for lesson in course.LESSONS}
ROUTES = timings.routes()
STATED = 0.15  # a lesson may state so much more or less than a run-through takes


def table(heading):
    """The rows of a table of the page, by their first cell; the cells by the head of their column."""
    text = timings.PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    head, _, *rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_page_has_a_row_for_each_notebook_that_agrees_with_it(path):
    """To some percent: a word more is no reason to measure again."""
    row = table("Lectures" if path.parent.name == "notebooks" else "Exercises")[path.stem]
    counted = timings.counts(path)
    assert int(row["words"]) == pytest.approx(counted.words, rel=0.05, abs=20)
    assert int(row["lines of code"]) == pytest.approx(counted.lines, rel=0.05, abs=10)
    assert int(row["kB"]) == pytest.approx(counted.size / 1000, rel=0.2, abs=10)
    assert all(float(row[column]) > 0 for column in ("s, processor", "s, clock"))
    if path.stem in LESSONS and path.parent.name == "notebooks":
        assert int(row["minutes stated"]) == LESSONS[path.stem].minutes, "make bench"


def test_the_page_has_no_other_rows():
    for heading, folder in (("Lectures", "notebooks"), ("Exercises", "solutions")):
        assert set(table(heading)) == {path.stem for path in PATHS if path.parent.name == folder}


@pytest.mark.parametrize("lesson", course.LESSONS, ids=lambda lesson: lesson.name)
def test_a_lesson_states_the_minutes_that_a_run_through_takes(lesson):
    path = timings.ROOT / "notebooks" / f"{lesson.name}.ipynb"
    assert timings.counts(path).minutes(lesson.questions) == pytest.approx(lesson.minutes, rel=STATED)
    first = nbformat.read(path, as_version=4).cells[0].source
    assert re.search(rf"^\| {lesson.minutes} minutes\b", first, re.MULTILINE)


def test_what_is_counted_in_a_notebook(tmp_path):
    cells = [
        nbformat.v4.new_markdown_cell("**Your turn** · 3 minutes. Two — words"),
        nbformat.v4.new_markdown_cell("20 minutes · difficulty ●○○"),
        nbformat.v4.new_code_cell("# a remark\n\nguess = gpulab.predict('?')\ngpulab.sim.race(tasks=3)"),
    ]
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    counted = timings.counts(path)
    assert (counted.words, counted.lines, counted.outputs) == (9, 2, 0)
    assert (counted.predictions, counted.simulators, counted.turns, counted.exercises) == (1, 1, (3,), (20,))
    by_hand = 9 / 200 + 2 * 3 / 60 + 0.5 + 3 + 2 + 3 + 30 / 60
    assert counted.minutes(questions=2, seconds=30) == pytest.approx(by_hand)


def test_four_routes_lead_to_their_end():
    assert len(ROUTES) == 4
    for name, numbers in ROUTES.items():
        assert list(numbers) == sorted(set(numbers)), name
        assert set(numbers) <= {lesson.number for lesson in course.LESSONS}, name


def test_the_minutes_of_a_route_add_up():
    """On the page, and in lesson 00."""
    cells = nbformat.read(timings.ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells
    (told,) = [cell.source for cell in cells if "### Four routes" in cell.source]
    hours = [f"{sum(course.LESSONS[number].minutes for number in numbers) / 60:.1f}" for numbers in ROUTES.values()]
    assert re.findall(r"([\d.]+) hours", told) == hours
    page = table("Routes")
    assert [page[name]["lectures, stated"] for name in ROUTES] == hours
    assert [page[name]["lessons"] for name in ROUTES] == [
        ", ".join(f"{number:02d}" for number in numbers) for numbers in ROUTES.values()
    ]
    lecture = (timings.ROOT / "lessons" / "00_start_here" / "lecture.py").read_text(encoding="utf-8")
    longer = re.findall(r"exercises take ([\d.]+) to ([\d.]+) times as long", lecture.replace("\n# ", " "))
    shares = [float(page[name]["exercises, stated"]) / float(page[name]["lectures, stated"]) for name in ROUTES]
    assert longer == [(f"{min(shares):.1f}", f"{max(shares):.1f}")]
    through = table("Lectures")
    for name, numbers in ROUTES.items():
        minutes = sum(float(through[course.LESSONS[number].name]["by run-through"]) for number in numbers)
        assert float(page[name]["by run-through"]) == pytest.approx(minutes / 60, abs=0.2)
