"""The student's copies in `work/`: what an update brings along, and what it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from courselib import work

from gpulab import course

ROOT = Path(__file__).resolve().parents[1]
LESSON = "notebooks/00_start_here.ipynb"


def write(path: Path, *cells: str, output: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    outputs = [nbformat.v4.new_output("stream", text=output)] if output else []
    made = [nbformat.v4.new_code_cell(cell, outputs=outputs, id=f"cell-{n}") for n, cell in enumerate(cells)]
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (LESSON, "exercises/01.ipynb", "solutions/01.ipynb"):
        write(tmp_path / name, f"# {name}", "1")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text("words")
    work.refresh(tmp_path)
    return tmp_path


def cells(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def test_at_first_everything_is_copied_in_silence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (LESSON, "exercises/01.ipynb", "solutions/01.ipynb", "docs/glossary.md"):
        assert (root / "work" / name).read_bytes() == (root / name).read_bytes()
    assert capsys.readouterr().out == ""


def test_what_was_only_run_is_brought_up_to_date(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = root / "work" / LESSON
    write(copy, f"# {LESSON}", "1", "", output="1 ms, measured")  # as JupyterLab leaves it
    work.refresh(root)
    assert "measured" in copy.read_text()  # nothing new: it stays as it is
    write(root / LESSON, "# better", "1")
    work.refresh(root)
    assert cells(copy) == ["# better", "1"]
    assert capsys.readouterr().out == f"Brought up to date in work/: {LESSON}.\n"


def test_what_was_changed_stays_and_the_newer_one_is_beside_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = root / "work/exercises/01.ipynb"
    write(copy, "# exercises/01.ipynb", "my answer")
    work.refresh(root)
    assert capsys.readouterr().out == ""
    for text in ("# better", "# better still"):
        write(root / "exercises/01.ipynb", text, "1")
        work.refresh(root)
        assert cells(copy)[1] == "my answer"
        assert cells(copy.with_name("01.new.ipynb"))[0] == text
        said = "work/exercises/01.ipynb is yours and stays; the course's newer one is 01.new.ipynb beside it.\n"
        assert capsys.readouterr().out == said
        work.refresh(root)
        assert capsys.readouterr().out == ""  # it says so once


def test_what_was_deleted_comes_back_and_what_is_the_student_s_own_is_left(root: Path) -> None:
    (root / "work" / LESSON).unlink()
    own = root / "work/notebooks/mine.ipynb"
    write(own, "mine")
    work.refresh(root)
    assert cells(root / "work" / LESSON) == cells(root / LESSON)
    assert cells(own) == ["mine"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"notebooks/00_start_here.ipynb": 1}'])
def test_without_its_record_nothing_that_differs_is_overwritten(root: Path, text: str) -> None:
    copy = root / "work" / LESSON
    write(copy, "mine")
    (root / "work" / work.RECORD).write_text(text)
    work.refresh(root)
    assert cells(copy) == ["mine"]
    assert cells(copy.with_name("00_start_here.new.ipynb")) == cells(root / LESSON)


def test_a_damaged_copy_is_left(root: Path) -> None:
    copy = root / "work" / LESSON
    copy.write_text("{")
    write(root / LESSON, "new")
    work.refresh(root)
    assert copy.read_text() == "{"


def test_progress_is_the_course_s_wherever_one_works(root: Path) -> None:
    for place in (root, root / "notebooks", root / "work", root / "work/exercises"):
        assert course.folder(place) == root
    assert course.folder(root.parent) is None


def test_git_ignores_them() -> None:
    assert f"{work.FOLDER}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_every_file_that_a_notebook_links_to_is_copied(tmp_path: Path) -> None:
    """Links in the notebooks lead to what is in `work/`."""
    copies = {path.relative_to(ROOT).as_posix() for path in work._files(ROOT)}
    links = 0
    for path in sorted(ROOT.glob("notebooks/*.ipynb")) + sorted(ROOT.glob("exercises/*.ipynb")):
        for link in re.findall(r"\]\((\.\./[^)#]+)", path.read_text(encoding="utf-8")):
            links += 1
            assert link.removeprefix("../") in copies, f"{path.name} links to {link}"
    assert links > 10
