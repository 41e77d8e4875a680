"""The build of the notebooks: deterministic, one way, and clear about a source that cannot be built."""

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import get_sanitize_patterns

from virtualgpu.pictures.asleep import UNRUN

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import build  # noqa: E402
from courselib import spoilers  # noqa: E402

SOURCE = '''\
# %% title [markdown]
# # A small notebook

# %% work tags=["solution"]
def double(x):
    """Twice x."""
    # TODO: return twice x
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% look tags=["check"]
import sys
import time
print("one"), print("two", file=sys.stdout)
for i in range(3):
    print(f"bar {i}", end="\\r")
print("done")
double(21)

# %% clock tags=["host-dependent"]
print(time.perf_counter())

# %% told [markdown]
# What comes next.
'''


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course with one solution in it, as `build.sources` finds it."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    lessons = (f"lessons/{name}" for name in ("99_small", "97_asking", "96_asking", "95_turning", "94_turning"))
    for folder in (*lessons, "notebooks", "solutions", "exercises"):
        (tmp_path / folder).mkdir(parents=True)
    path = tmp_path / "lessons/99_small/exercises.py"
    path.write_text(SOURCE, encoding="utf-8")
    return build.sources([])[0]


def files(root):
    return {p.name + p.parent.name: p.read_bytes() for p in root.rglob("*.ipynb")}


def test_a_second_build_changes_no_byte_also_when_forced(course, tmp_path):
    assert build.build(course, force=False).startswith("executed")
    first = files(tmp_path)
    assert build.build(course, force=False) == "unchanged"
    assert files(tmp_path) == first
    assert build.build(course, force=True).startswith("executed")
    assert files(tmp_path) == first  # the clock's saved output is kept


def test_what_build_writes_check_accepts_and_an_edit_is_found(course):
    build.build(course, force=False)
    assert list(build.problems(course)) == []
    assert list(build.strays()) == []
    notebook = nbformat.read(course.notebook, as_version=4)
    notebook.cells[0].source += " edited"
    course.notebook.write_text(build.canonical(notebook), encoding="utf-8")
    assert any("edited in lessons/ only" in p for p in build.problems(course))
    course.exercise.write_text("{}", encoding="utf-8")
    assert any("not what the solution gives" in p for p in build.problems(course))


def test_a_changed_source_is_found_before_it_is_built(course):
    build.build(course, force=False)
    course.path.write_text(SOURCE.replace("21", "22"), encoding="utf-8")
    assert any("another version" in p for p in build.problems(course))


def test_a_notebook_without_a_source_is_found(course, tmp_path):
    build.build(course, force=False)
    (tmp_path / "notebooks" / "98_stray.ipynb").write_text("{}", encoding="utf-8")
    assert list(build.strays()) == ["notebooks/98_stray.ipynb has no source"]


def test_outputs_are_saved_as_a_reader_sees_them(course):
    build.build(course, force=False)
    cell = nbformat.read(course.notebook, as_version=4).cells[2]
    assert [o.output_type for o in cell.outputs] == ["stream", "execute_result"]
    assert cell.outputs[0].text == "one\ntwo\ndone\n"


def test_a_notebook_that_is_built_keeps_bytecode(course, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    course.path.write_text("# %% keeps\nimport sys\nprint(sys.dont_write_bytecode)\n", encoding="utf-8")
    build.build(course)
    assert nbformat.read(course.notebook, as_version=4).cells[0].outputs[0].text == "False\n"


def test_the_exercise_has_the_stub_and_not_the_answer(course):
    build.build(course, force=False)
    exercise = nbformat.read(course.exercise, as_version=4)
    assert [c.cell_type for c in exercise.cells] == ["markdown", "code", "code", "code", "markdown"]
    stub = exercise.cells[1].source
    assert stub.endswith("    # TODO: return twice x\n    raise gpulab.NotAttempted")
    assert "raises-exception" in exercise.cells[2].metadata.tags
    assert exercise.cells[2].outputs == []
    solution = nbformat.read(course.notebook, as_version=4)
    assert "raises-exception" not in solution.cells[2].metadata.tags


def test_cell_ids_depend_on_the_names_and_not_on_the_text(course):
    before = [c.id for c in build.parse(course).cells]
    course.path.write_text(SOURCE.replace("A small notebook", "Another title"), encoding="utf-8")
    assert [c.id for c in build.parse(course).cells] == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# %% told [markdown]", "# %% [markdown]", "cell 5 has no name"),
        ("# %% clock", "# %% look", "two cells are named 'look'"),
        ("host-dependent", "hostdependent", "the tag 'hostdependent'"),
    ],
)
def test_a_source_that_cannot_be_built_says_where(course, old, new, message):
    course.path.write_text(SOURCE.replace(old, new), encoding="utf-8")
    with pytest.raises(build.SourceError, match=message):
        build.parse(course)


@pytest.mark.parametrize("old", ["    # TODO: return twice x", "    return 2 * x", 'print("done")'])
def test_a_line_of_code_that_would_be_cut_at_the_right_is_none_to_build(course, old):
    def columns(number):
        return SOURCE.replace(old, f"{old}  #".ljust(number, "-"))

    course.path.write_text(columns(100), encoding="utf-8")
    build.parse(course)
    course.path.write_text(columns(101), encoding="utf-8")
    with pytest.raises(build.SourceError, match="a line of code has 101 columns, more than 100"):
        build.parse(course)


def test_a_line_of_text_may_be_long_because_it_wraps(course):
    course.path.write_text(SOURCE.replace("What comes next.", "What comes next. " * 20), encoding="utf-8")
    build.parse(course)


def test_a_measurement_is_kept_where_only_the_layout_of_its_code_changes(course):
    build.build(course)
    saved = nbformat.read(course.notebook, as_version=4).cells[3].outputs
    for new, kept in (("print(\n    time.perf_counter()  # now\n)", True), ("print(time.perf_counter(), 1)", False)):
        course.path.write_text(SOURCE.replace("print(time.perf_counter())", new), encoding="utf-8")
        build.build(course)
        assert (nbformat.read(course.notebook, as_version=4).cells[3].outputs == saved) is kept


def test_a_failing_cell_stops_the_build_and_leaves_the_old_notebook(course):
    build.build(course, force=False)
    before = course.notebook.read_bytes()
    course.path.write_text(SOURCE.replace("2 * x", "2 * y"), encoding="utf-8")
    with pytest.raises(Exception, match="name 'y' is not defined"):
        build.build(course, force=False)
    assert course.notebook.read_bytes() == before


def test_a_prediction_speaks_of_pages_that_do_not_fold_in_the_saved_page_only():
    def shown(**data):
        return build._clean(nbformat.v4.new_output("display_data", data=data)).data["text/plain"]

    live = {"text/plain": "Predict: how many?", build.WIDGET_VIEW: {"model_id": "1"}}
    assert shown(**live) == f"Predict: how many?\n{build.UNFOLDED}"
    assert shown(**live | {"text/plain": "Question 1"}) == "Question 1"
    assert shown(**{"text/plain": "Predict: how many?"}) == "Predict: how many?"


def test_nbval_compares_a_saved_page_with_one_that_is_alive():
    """A rule whose replacement is empty is none to nbval, which wants a blank after the colon."""
    rules = get_sanitize_patterns((ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8"))

    def cleaned(text):
        for old, new in rules:
            text = re.sub(old, new, text)
        return text

    assert cleaned(f"Predict: how many?\n{build.UNFOLDED}") == "Predict: how many?"
    assert cleaned(f'<img alt="a b" style="c">{UNRUN}<b>') == '<img alt="a b"><b>'
    assert cleaned("2 samples") != cleaned("3 samples")


def test_paths_of_this_machine_do_not_get_into_outputs():
    text = (
        "/tmp/ipykernel_12/34.py:1: \x1b[39m~/.venv/lib/python3.12/site-packages/torch/a.py C:\\v\\site-packages\\b.py"
    )
    assert build._without_paths(text) == "<cell>:1: \x1b[39msite-packages/torch/a.py site-packages/b.py"


def test_nbgrader_reads_the_exercise_as_its_own(course):
    """An instructor can release it: every answer is a solution cell, every check worth a point, ids unique."""
    notebook = build.parse(course)
    grading = [c.metadata["nbgrader"] for c in notebook.cells if "nbgrader" in c.metadata]
    assert [(g["grade_id"], g["solution"], g["grade"]) for g in grading] == [
        ("work", True, False),
        ("look", False, True),
    ]
    assert grading[1]["points"] == 1


# --- what answers a prediction ---------------------------------------------------------------------------

ASKING = """\
# %% before
print("before")

# %% ask
import gpulab
first = gpulab.predict("How many?")
second = gpulab.predict("How many more?")

# %% told [markdown]
# Two things follow.

# %% way
print("on the way")

# %% silent
ready = True

# %% third
third = gpulab.predict("And how many then?")

# %% answer
first.compare(1, "computed")
if True:
    second.compare(2, "computed")

# %% again
first.compare(1, "computed")

# %% last
third.compare(3, "computed")

# %% after
print("after")
"""


@pytest.fixture
def asking(course, tmp_path):
    """A lecture that asks, and the course of `course` around it."""
    path = tmp_path / "lessons/97_asking/lecture.py"
    path.write_text(ASKING, encoding="utf-8")
    return next(s for s in build.sources([]) if s.path == path)


def folded(cells):
    return [c.source.split("(")[0] for c in cells if c.metadata.get("jupyter", {}).get("outputs_hidden")]


def test_a_lecture_is_folded_from_a_prediction_to_its_answer(asking):
    build.build(asking, force=False)
    cells = nbformat.read(asking.notebook, as_version=4).cells
    assert folded(cells) == ["print", "first.compare", "first.compare", "third.compare"]
    assert all(c.metadata.get("collapsed", False) == ("jupyter" in c.metadata) for c in cells)
    found = build.predictions(cells, "here")
    assert [(name, [c.source.split("\n")[0] for c in answers]) for name, answers in found] == [
        ("first", ['print("on the way")', "ready = True", 'first.compare(1, "computed")']),
        ("second", ['print("on the way")', "ready = True", 'first.compare(1, "computed")']),
        ("third", ['first.compare(1, "computed")', 'first.compare(1, "computed")', 'third.compare(3, "computed")']),
    ]


def test_a_fold_shows_no_line_of_what_is_in_it(asking):
    """JupyterLab 4.6 writes the first line of the first output on it, and of an output without data none."""
    build.build(asking, force=False)
    notebook = nbformat.read(asking.notebook, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [len(c.outputs) for c in code] == [1, 2, 2, 0, 1, 2, 2, 2, 1]
    for cell in code:
        assert (cell.outputs[:1] == [build.COVER]) == ("jupyter" in cell.metadata), cell.source
    assert list(build.problems(asking)) == []
    code[5].outputs.pop(0)
    asking.notebook.write_text(build.canonical(notebook), encoding="utf-8")
    problem = "a fold is not covered, and JupyterLab would write a line of the answer on it"
    assert list(build.problems(asking)) == [f"notebooks/97_asking.ipynb: {problem}"]


def test_a_solution_is_not_folded(asking):
    (asking.path.parents[1] / "96_asking" / "exercises.py").write_text(ASKING, encoding="utf-8")
    solution = next(s for s in build.sources(["96"]))
    assert solution.folder == "solutions"
    assert folded(build.parse(solution).cells) == []


def test_folding_is_put_right_without_running_anything(asking, monkeypatch):
    build.build(asking, force=False)
    built = asking.notebook.read_text(encoding="utf-8")
    notebook = nbformat.read(asking.notebook, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("collapsed", None)
        cell.metadata.pop("jupyter", None)
        cell.outputs = [output for output in cell.get("outputs", []) if output != build.COVER]
    asking.notebook.write_text(build.canonical(notebook), encoding="utf-8")
    assert any("cells differ from the source" in p for p in build.problems(asking))
    monkeypatch.setattr(build, "execute", lambda *_: pytest.fail("the notebook was run"))
    assert build.build(asking, force=False) == "metadata written"
    assert asking.notebook.read_text(encoding="utf-8") == built
    assert build.build(asking, force=False) == "unchanged"


def test_a_cell_edited_in_the_notebook_is_run_again_and_not_kept(asking):
    build.build(asking, force=False)
    built = asking.notebook.read_text(encoding="utf-8")
    asking.notebook.write_text(built.replace("on the way", "elsewhere"), encoding="utf-8")
    assert build.build(asking, force=False).startswith("executed")
    assert asking.notebook.read_text(encoding="utf-8") == built


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("third.compare(3", "print(3", "'third' asks, and no later cell answers: write third.compare"),
        ("third = gpulab", "first = gpulab", "'first' asks, and no later cell answers"),
        (
            "third.compare(3",
            "x = gpulab.predict('?')\nthird.compare(3",
            r"third.compare\(…\) stands in a cell that asks",
        ),
        ("third = gpulab", "third = x = gpulab", "write NAME = gpulab.predict"),
        ('print("after")', "print(", "a cell is no Python"),
    ],
)
def test_a_prediction_that_cannot_be_folded_is_named(asking, old, new, message):
    asking.path.write_text(ASKING.replace(old, new), encoding="utf-8")
    with pytest.raises(build.SourceError, match=message) as caught:
        build.parse(asking)
    assert "97_asking/lecture.py" in str(caught.value)


# --- no text tells the answer of a prediction -------------------------------------------------------------

GUESSING = """\
# %% title [markdown]
# # A small lecture
#
# Three batches are counted here, and GOAL.

# %% ask
import gpulab
guess = gpulab.predict("How many of the seven batches are lost?")

# %% answer
lost = 5  # COMMENT
guess.compare(lost, "computed", because="The last five are cut off, 5 of seven.")

# %% first [markdown]
# FIRST. Seven samples follow.

# %% turn-text [markdown]
# **Your turn** · 1 minute. SECOND.

# %% turn tags=["your-turn"]
def double(x):
    ### BEGIN SOLUTION
    return 2 * x  # five of seven
    ### END SOLUTION
gpulab.turn.double(double)

# %% third [markdown]
# THIRD.
"""


def lecture(course, text):
    path = course.path.parents[1] / "95_guessing" / "lecture.py"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return next(s for s in build.sources(["95"]))


def built(source, *outputs):
    """The cells of the lecture as if it had been run, with these texts as outputs of its first code cells."""
    cells = build.parse(source).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    for cell, text in zip(code, outputs, strict=False):
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    return cells


ASKED = "Predict: How many of the seven batches are lost?\n"
ANSWERED = "computed: 5 (no prediction was typed)\nThe last five are cut off, 5 of seven.\n"


@pytest.mark.parametrize(
    ("place", "text", "cell"),
    [
        ("GOAL", "five of seven are lost", "title"),
        ("COMMENT", "5 of 7", "answer"),
        ("FIRST", "Five of the seven: the last ones", "first"),
        ("FIRST", "The loop loses\n# 5 batches", "first"),
        ("SECOND", "Why five batches", "turn-text"),
    ],
)
def test_a_text_that_tells_the_answer_of_a_prediction_is_named(course, place, text, cell):
    source = lecture(course, GUESSING.replace(place, text))
    told = list(build.spoiled(source, built(source, ASKED, ANSWERED)))
    sentence = " ".join(text.replace("# ", "").split())
    assert len(told) == 1
    start = "lessons/95_guessing/lecture.py"
    assert told[0].startswith(
        f"{start}: cell {cell!r} tells the answer of “How many of the seven batches are lost?”, 5: "
    )
    assert sentence in told[0]


@pytest.mark.parametrize("place", ["GOAL", "COMMENT", "FIRST", "SECOND"])
@pytest.mark.parametrize(
    "text", ["5 minutes later", "fives of seven", "seven batches", "5 of them, or lesson 05", "15 batches"]
)
def test_another_number_or_a_bare_one_tells_nothing(course, place, text):
    source = lecture(course, GUESSING.replace(place, text))
    assert list(build.spoiled(source, built(source, ASKED, ANSWERED))) == []


def test_the_third_text_below_an_answer_and_a_solution_may_tell_it(course):
    source = lecture(course, GUESSING.replace("THIRD", "Five of the seven batches"))
    assert list(build.spoiled(source, built(source, ASKED, ANSWERED))) == []


def test_a_prediction_without_a_printed_answer_is_named(course):
    source = lecture(course, GUESSING)
    assert list(build.spoiled(source, built(source, ASKED, ""))) == [
        "lessons/95_guessing/lecture.py: guess printed no question or no answer"
    ]


def test_build_and_check_fail_where_a_text_tells_the_answer(course, monkeypatch, capsys):
    path = course.path.parents[1] / "95_guessing" / "lecture.py"
    path.parent.mkdir()
    cells = ['import gpulab\nguess = gpulab.predict("How long?", unit="ms")', 'guess.compare(17.52, "computed")']
    text = "".join(f"# %% code{number}\n{cell}\n\n" for number, cell in enumerate(cells))
    path.write_text(text + "# %% told [markdown]\n# It takes 17.5 ms.\n", encoding="utf-8")
    told = "cell 'told' tells the answer of “How long? (in ms)”, 17.52 ms: It takes 17.5 ms."
    for arguments in (["95"], ["--check", "95"]):
        monkeypatch.setattr(sys, "argv", ["build.py", *arguments])
        assert build.main() == 1
        assert f"lessons/95_guessing/lecture.py: {told}" in capsys.readouterr().out.splitlines()
    path.write_text(text + "# %% told [markdown]\n# It takes longer than 16 ms.\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["build.py", "95"])
    assert build.main() == 0
    assert list(build.problems(next(iter(build.sources(["95"]))))) == []


@pytest.mark.parametrize(
    ("question", "value", "unit", "telling", "silent"),
    [
        (
            "How many times as long?",
            3.5,
            "times",
            ["3.5 ×", "3.50 times", "a 3.5-fold time", "3.5"],
            ["3 times", "3.5 ms"],
        ),
        (
            "How many times as long?",
            2.0,
            "times",
            ["twice as long", "two times", "2×"],
            ["2 × 4", "counted twice", "2 ms"],
        ),
        ("How much?", 1.312, "times", ["1.31 times", "31 % more"], ["31 GB", "1.3125 times", "32 %"]),
        ("What share?", 31.0, "%", ["31 per cent", "31 %", "1.31 times", "only 31."], ["31 rows", "3 %", "1.4 times"]),
        (
            "How many bytes?",
            39720.0,
            "bytes",
            ["39,700 bytes", "39720", "40,000 bytes or 39,720"],
            ["40,000", "39 of 720"],
        ),
        ("How often is it compiled?", 2.0, "", ["It is compiled twice"], ["two lengths"]),
        ("How much longer?", 12.5, "%", ["12.5", "12 %", "1.12 times"], ["the DDP of lesson 12?", "12.", "2 + 12"]),
        ("How many ranks?", 12.0, "", ["12.", "12 ranks"], ["lesson 12.", "lessons 11 to 12 hours"]),
        ("Which line is blamed?", 8.0, "", ["line 8 is"], ["8 lines", "line 80", "in line x8"]),
        ("x has 4 MiB. How many are copied?", 4.0, "MiB", [], ["4 MiB"]),
        ("How many seconds?", 12.0, "", ["twelve seconds", "12 seconds", "12, in all"], ["12 steps", "3.12", "12,000"]),
    ],
)
def test_a_number_tells_the_answer_with_its_unit_or_by_its_digits(question, value, unit, telling, silent):
    answer = spoilers.Answer(question, value, unit)
    assert [text for text in telling if not answer.told_in(text)] == []
    assert [text for text in silent if answer.told_in(text)] == []


# --- the reader's turn -----------------------------------------------------------------------------------

TURN = """\
# %% ask [markdown]
# **Your turn** · 1 minute. Double it.

# %% double tags=["your-turn"]
def double(x):
    # TODO: double it
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


gpulab.turn.double(double)

# %% ask-halve [markdown]
# **Your turn** · 1 minute. Now halve it.

# %% halve tags=["your-turn"]
def halve(x):
    ### BEGIN SOLUTION
    if True:
        return x / 2
    ### INSTEAD OF
    # if True:
    #     return x
    ### END SOLUTION


gpulab.turn.halve(halve)
"""


@pytest.fixture
def turning(course, tmp_path):
    path = tmp_path / "lessons/95_turning/lecture.py"
    path.write_text(TURN, encoding="utf-8")
    return next(s for s in build.sources([]) if s.path == path)


def test_the_reader_gets_a_stub_or_the_code_to_change_and_the_solution_below(turning):
    cells = build.parse(turning).cells
    assert [c.cell_type for c in cells] == ["markdown", "code", "markdown"] * 2
    end = "\n\n\ngpulab.turn.double(double)"
    assert cells[1].source == "def double(x):\n    # TODO: double it\n    raise gpulab.NotAttempted" + end
    assert cells[4].source == "def halve(x):\n    if True:\n        return x\n\n\ngpulab.turn.halve(halve)"
    fence = "```"
    code = f"{fence}python\ndef double(x):\n    return 2 * x\n{fence}"
    assert cells[2].source == f"<details><summary>A solution</summary>\n\n{code}\n\n</details>"
    assert len({c.id for c in cells}) == 6


def test_the_solved_lecture_has_the_code_that_is_folded(turning):
    lecture = build.parse(turning)
    solved = build.solved(lecture)
    assert solved.cells[1].source == "def double(x):\n    return 2 * x\n\n\ngpulab.turn.double(double)"
    assert solved.cells[4].source.startswith("def halve(x):\n    if True:\n        return x / 2\n\n\n")
    assert [c for i, c in enumerate(solved.cells) if i not in (1, 4)] == [
        c for i, c in enumerate(lecture.cells) if i not in (1, 4)
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "**Your turn** · 1 minute. Double",
            "Double",
            r"cell 'double' is tagged your-turn: write a text cell above it",
        ),
        ("    ### END SOLUTION\n\n\ngpulab.turn.double", "\n\ngpulab.turn.double", "its solution stands once between"),
        ("gpulab.turn.double(double)", "print(double(2))", r"its last line is gpulab.turn.NAME\(…\), which answers"),
        ("    #     return x\n", "    return x\n", "cell 'halve': under ### INSTEAD OF each line is code behind '# '"),
        (
            "# %% ask-halve",
            "# %% q\nguess = gpulab.predict('?')\n\n# %% ask-halve",
            "a turn stands between 'guess' and its answer, and would be folded",
        ),
    ],
)
def test_a_turn_that_cannot_be_built_is_named(turning, old, new, message):
    text = TURN.replace(old, new)
    if "guess" in new:
        text += "\n# %% answer\nguess.compare(2)\n"
    turning.path.write_text(text, encoding="utf-8")
    with pytest.raises(build.SourceError, match=message) as caught:
        build.parse(turning)
    assert "95_turning/lecture.py" in str(caught.value)


def test_an_exercise_has_no_turns(turning):
    path = turning.path.parents[1] / "94_turning" / "exercises.py"
    path.write_text(TURN, encoding="utf-8")
    with pytest.raises(build.SourceError, match="which is for lectures: here it is 'solution'"):
        build.parse(build.sources(["94"])[0])
