"""The notebooks as they lie in the repository: canonical, light, described, linked, and honest about errors.

What their cells print is compared by nbval; here is what nbval does not look at.
"""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import nbclient
import nbformat
import pytest
from courselib.lanes import lanes_for_tests
from courselib.patience import HANG_SECONDS
from courselib.ready import PLACE

import gpulab

ROOT = Path(__file__).resolve().parent.parent
LECTURES = sorted((ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [path for path in LECTURES if path.stem[:2].isdigit()]  # and not the gallery
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
EXERCISES = sorted((ROOT / "exercises").glob("*.ipynb"))
ORDINARY = {"01_why_gpus", "12_many_gpus"}  # exercises whose kernel begins as a student's; the others' are forks
EXECUTED = LECTURES + SOLUTIONS
ALL = EXECUTED + EXERCISES

# The cells that fail on purpose, and how: a cell tagged raises-exception would hide any other error too.
WANTED_ERRORS = {
    "00_start_here": ["CheckFailed"],
    "07_mixed_precision": ["RuntimeError"],
    "06_less_memory": ["RuntimeError"],
    "05_out_of_memory": ["OutOfMemoryError", "RuntimeError"],
    "10_profiling": ["AssertionError"],
    "12_many_gpus": ["TimeLimit", "RankFailed", "RankFailed"],
    "14_long_runs": ["UnpicklingError", "RuntimeError"],
}


def name(path):
    return f"{path.parent.name}/{path.stem}"


def cells(path, kind):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == kind]


def outputs(path):
    return [output for cell in cells(path, "code") for output in cell.outputs]


def text_of(output):
    data = output.get("data", {})
    return "".join([output.get("text", ""), *(data.get(k, "") for k in ("text/plain", "text/html", "image/svg+xml"))])


def test_there_are_notebooks_of_each_kind():
    assert LECTURES
    assert SOLUTIONS
    assert [p.name for p in EXERCISES] == [p.name for p in SOLUTIONS]


@pytest.mark.parametrize("path", ALL, ids=name)
def test_a_notebook_is_under_a_megabyte(path):
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("path", ALL, ids=name)
def test_a_notebook_is_in_canonical_form(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"gpulab", "kernelspec", "language_info"}
    written = nbformat.writes(notebook, version=4, indent=1, sort_keys=True, ensure_ascii=False).rstrip("\n") + "\n"
    assert path.read_text(encoding="utf-8") == written
    assert len({c.id for c in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("path", EXECUTED, ids=name)
def test_every_code_cell_was_executed_in_order(path):
    counts = [c.execution_count for c in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", EXECUTED, ids=name)
def test_errors_are_those_that_are_wanted(path):
    wanted = WANTED_ERRORS.get(path.stem, []) if path in LECTURES else []
    assert [o.ename for o in outputs(path) if o.output_type == "error"] == wanted


@pytest.mark.parametrize("path", EXECUTED, ids=name)
def test_no_warning_is_left_unexplained(path):
    assert [o.text for o in outputs(path) if o.output_type == "stream" and o.name == "stderr"] == []


@pytest.mark.parametrize("path", EXECUTED, ids=name)
def test_a_saved_output_holds_no_widget_view_and_no_folder_of_this_machine(path):
    text = path.read_text(encoding="utf-8")
    assert "jupyter.widget" not in text
    for part in (str(ROOT), str(Path.home()) + "/", "ipykernel_"):
        assert part not in text, part


@pytest.mark.parametrize("path", EXECUTED, ids=name)
def test_every_picture_has_alt_text(path):
    for output in outputs(path):
        data = output.get("data", {})
        html, svg = data.get("text/html", ""), data.get("image/svg+xml", "")
        assert all(re.search(r'alt="[^"]{15,}"', tag) for tag in re.findall(r"<img[^>]*>", html))
        if svg:
            assert 'role="img"' in svg
            assert re.search(r"<title[^>]*>[^<]{10,}</title>", svg)
        if "image/png" in data:
            assert len(output.metadata.get("image/png", {}).get("alt", "")) >= 15 or "<img" in html
    for cell in cells(path, "markdown"):
        assert not re.search(r"!\[\s*\]\(", cell.source), "a markdown picture without alt text"


@pytest.mark.parametrize("path", ALL, ids=name)
def test_every_link_inside_the_repository_resolves(path):
    texts = [c.source for c in cells(path, "markdown")] + [text_of(o) for o in outputs(path)]
    for text in texts:
        for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'href="([^"]+)"', text):
            assert_resolves(path, target)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_every_link_of_a_page_resolves(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        assert_resolves(page, target)


def assert_resolves(page, target):
    if re.match(r"[a-z]+:", target):
        return
    file, _, anchor = unquote(target).partition("#")
    place = (page.parent / file).resolve() if file else page
    assert place.exists(), f"{page.name} links to {target}"
    assert place.is_relative_to(ROOT)
    assert not anchor or file, f"{page.name}: a link to its own #{anchor} breaks where headings get other ids"


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_lecture_has_the_rooms_of_a_lesson(path):
    text = "\n".join(c.source for c in cells(path, "markdown"))
    for room in ("**Promise:**", "After this", "| time |", "## Take-aways", "## References"):
        assert room in text, room
    if path.stem[:2] != "00":
        for heading in ("## A question worth asking", "## What the web says", "## Common mistakes", "## Quick check"):
            assert heading in text, heading


def test_the_gallery_shows_every_simulator_with_a_sentence():
    gallery = ROOT / "notebooks" / "simulators.ipynb"
    shown = [c.source.removeprefix("gpulab.sim.").removesuffix("()") for c in cells(gallery, "code")[1:]]
    assert sorted(shown) == sorted(gpulab.sim.__all__)
    headings = re.findall(r"^## `(\w+)` \(lessons? \d", "\n".join(c.source for c in cells(gallery, "markdown")), re.M)
    assert headings == shown


@pytest.mark.parametrize("path", LECTURES, ids=name)
def test_a_lecture_is_written_in_small_cells(path):
    for cell in cells(path, "code"):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= 18 or "write_text('''" in cell.source, cell.source.splitlines()[0]
    for cell in cells(path, "markdown"):
        prose = re.sub(r"^\|.*$", "", cell.source, flags=re.MULTILINE)
        assert len(prose.split()) <= 190, cell.source.splitlines()[0]
        assert "!" not in re.sub(r"`[^`]*`|!\[|\$[^$]*\$", "", cell.source), "an exclamation mark"


@pytest.mark.parametrize("path", EXERCISES, ids=name)
def test_an_exercise_keeps_nothing_of_the_solution(path):
    text = path.read_text(encoding="utf-8")
    assert "BEGIN SOLUTION" not in text
    assert "raise gpulab.NotAttempted" in text
    assert outputs(path) == []


@pytest.mark.unsolved
@pytest.mark.parametrize("path", EXERCISES, ids=name)
def test_an_unsolved_exercise_runs_through_and_every_error_is_not_attempted(path, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_GPU", "virtual:T4")
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    if path.stem in ORDINARY:
        monkeypatch.delenv(PLACE, raising=False)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=HANG_SECONDS, resources={"metadata": {"path": str(path.parent)}})
    asyncio.run(client.async_execute())
    errors = [(c, o) for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert {o.ename for _, o in errors} == {"NotAttempted"}
    for cell, error in errors:  # JupyterLab hides an error that comes right after this note
        assert 'class="gpulab-not-yet"' in cell.outputs[cell.outputs.index(error) - 1].data["text/html"]
    checks = [c for c in notebook.cells if "check" in c.metadata.get("tags", [])]
    assert checks
    assert all(any(c is cell for cell, _ in errors) for c in checks), "a check that passes on a stub"
    assert not (tmp_path / "progress.json").exists()


# --- what answers a prediction is folded, and compared all the same ---------------------------------------


def is_folded(cell):
    return bool(cell.metadata.get("jupyter", {}).get("outputs_hidden") and cell.metadata.get("collapsed"))


def is_covered(cell):
    """Whether the fold has no line of the answer on it: see `fold_answers` in tools/build.py."""
    return cell.outputs[0].get("data") == {}


def prediction_places():
    """Each `NAME = gpulab.predict(…)` of the lectures: where, the cell that asks, and those up to its first answer."""
    for path in LECTURES:
        code = cells(path, "code")
        for number, cell in enumerate(code):
            for variable in re.findall(r"^(\w+) = gpulab\.predict\(", cell.source, re.MULTILINE):
                rest = code[number + 1 :]
                end = next(i for i, c in enumerate(rest) if re.search(rf"\b{variable}\.compare\(", c.source))
                yield f"{path.stem}: {variable}", cell, rest[: end + 1]


def test_the_answer_of_every_prediction_is_folded_and_the_question_is_not():
    places = list(prediction_places())
    sources = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "lessons").glob("*/lecture.py"))]
    assert len(places) == sum(text.count("gpulab.predict(") for text in sources)
    assert len(places) >= 66
    assert [place for place, ask, _ in places if is_folded(ask)] == [], "a question that cannot be seen"
    told = "Where outputs do not fold, as on GitHub, the answer follows: guess before you scroll."
    assert [place for place, ask, _ in places if told not in "".join(map(text_of, ask.outputs))] == []
    open_ones = [
        place
        for place, _, answers in places
        for cell in answers
        if cell.outputs and "gpulab.predict(" not in cell.source and not (is_folded(cell) and is_covered(cell))
    ]
    assert open_ones == [], "predictions whose answer can be seen before a guess"
    assert [place for place, _, answers in places if not answers[-1].outputs] == []


def test_nothing_else_is_folded():
    answers = {cell.id for _, _, between in prediction_places() for cell in between}
    others = [(name(p), c.id) for p in ALL for c in cells(p, "code") if c.id not in answers and is_folded(c)]
    assert others == []


def test_every_question_is_asked_in_one_place_only():
    """The progress file knows a prediction by its question."""
    lines = [line for p in EXECUTED for output in outputs(p) for line in text_of(output).splitlines()]
    asked = [line for line in lines if line.startswith("Predict: ")]
    assert len(asked) >= 69
    assert sorted(asked) == sorted(set(asked))


@pytest.mark.parametrize(("saved", "code"), [("4\n", 0), ("5\n", 1)], ids=["right", "wrong"])
def test_nbval_compares_an_output_that_is_folded(tmp_path, saved, code):
    folded = {"collapsed": True, "jupyter": {"outputs_hidden": True}}
    output = nbformat.v4.new_output("stream", name="stdout", text=saved)
    cell = nbformat.v4.new_code_cell("print(2 + 2)", metadata=folded, outputs=[output], execution_count=1)
    cell.outputs.insert(0, nbformat.v4.new_output("display_data"))  # as the build covers it
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = tmp_path / "folded.ipynb"
    nbformat.write(notebook, path)
    (lane,) = [lane for lane in lanes_for_tests(None) if lane.name == "notebooks"]
    # As `make test` runs it.
    arguments = [a for a in lane.arguments if a not in ("notebooks", "solutions")]
    run = subprocess.run(
        [sys.executable, *arguments, str(path)], cwd=ROOT, env=os.environ | lane.environ, capture_output=True, text=True
    )
    assert run.returncode == code, run.stdout + run.stderr
    assert ("1 passed" if code == 0 else "1 failed") in run.stdout
    assert ("mismatch 'stdout'" in run.stdout) == bool(code)
