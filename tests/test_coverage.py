"""lessons/coverage.md: every place that it names is there, and every claim stands in the myths."""

import re
from functools import cache
from pathlib import Path

import pytest

import gpulab
from gpulab import course

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in (ROOT / "lessons" / "coverage.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [A-FT]\d", line)
]
COUNTS = {"A": 74, "B": 70, "C": 49, "D": 15, "E": 5, "F": 10, "T": 46}
PLACE = re.compile(r"\b(exercise )?(\d\d) \*([^*]+)\*(?: \(([^)]*)\))?")


def flat(text):
    return re.sub(r"[\s`“”\"*]+", " ", text).strip().lower()


@cache
def sections(file, number):
    """heading: the names of the cells under it, of the lecture or the solution with this number."""
    (path,) = (ROOT / "lessons").glob(f"{number}_*/{file}")
    found, open_headings, cell = {}, {}, ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"# %% (\S+)", line):
            cell = match[1]
            for heading in open_headings.values():
                found[heading].add(cell)
        elif match := re.match(r"# (##+) (.+)", line):
            open_headings = {level: name for level, name in open_headings.items() if level < len(match[1])}
            open_headings[len(match[1])] = flat(match[2])
            # two sections may have one name (“See it move”)
            found.setdefault(flat(match[2]), set()).add(cell)
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_place_is_there(row):
    where = row[-1]
    places = 0
    for exercise, number, heading, cells in PLACE.findall(where):
        places += 1
        found = sections("exercises.py" if exercise else "lecture.py", number)
        names = [name for name in found if name.startswith(flat(heading))]
        assert names, f"{number} has no heading {heading!r}"
        under = set().union(*(found[name] for name in names))
        missing = {cell.strip() for cell in cells.split(",") if cell} - under
        assert not missing, f"{number} *{heading}* has no cells {missing}"
    for page, words in re.findall(r"docs/(\w+\.md) \*([^*]+)\*", where):
        places += 1
        assert flat(words) in flat((ROOT / "docs" / page).read_text(encoding="utf-8")), (page, words)
    for name in re.findall(r"\bsimulator (\w+)$|\bsimulator (\w+);", where):
        places += 1
        assert "".join(name) in gpulab.sim.__all__
    for name in re.findall(r"\bcheck (\w+)", where):
        places += 1
        assert any(name in lesson.checks for lesson in course.LESSONS)
    assert places or row[0] in ("C12", "A65"), where


def test_rows_are_counted_and_named_one_after_the_other():
    for part, count in COUNTS.items():
        assert [row[0] for row in ROWS if row[0][0] == part] == [f"{part}{n}" for n in range(1, count + 1)]
    assert all(re.fullmatch(r"00[0-4](, 00[0-4])*|–", row[2]) for row in ROWS if row[0][0] != "F")


def test_every_claim_stands_in_the_myths():
    myths = (ROOT / "docs" / "myths.md").read_text(encoding="utf-8").splitlines()
    claims = [flat(line.split("|")[1]) for line in myths if line.startswith("| ") and line.count("|") > 3]
    for row in ROWS:
        if row[0][0] == "B":
            assert any(flat(row[1]) in claim for claim in claims), row[:2]
