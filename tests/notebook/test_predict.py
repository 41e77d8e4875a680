"""Predictions: kept when typed, also over a restart, not missed when not, and compared in words that are true."""

import json
import math
import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.notebook import guess_bar
from gpulab.notebook import predict as module
from gpulab.notebook.front_end import ANSWER_CLASS
from gpulab.notebook.predict import Prediction, how_far

TODAY = f"{date.today().day} {date.today():%B %Y}"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """The progress file of this test."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("GPULAB_PROGRESS", str(path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return path


@pytest.fixture
def notebook(monkeypatch):
    """As if in a notebook; what is shown there, a dictionary of text, html and widget each."""
    shown = []
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr(
        module,
        "show",
        lambda text, html=None, widget=None: shown.append({"text": text, "html": html, "widget": widget and widget()}),
    )
    return shown


def kept(file):
    return json.loads(file.read_text())["predictions"]


def test_without_a_prediction_the_number_is_shown_all_the_same(capsys):
    gpulab.predict("How many?", unit="MiB").compare(12.5)
    assert capsys.readouterr().out.splitlines() == [
        "Predict: How many? (in MiB)",
        "measured: 12.5 MiB (no prediction was typed)",
    ]


@pytest.mark.parametrize(
    ("question", "unit", "asked"),
    [
        ("The peak of a step?", "GB", "The peak of a step? (in GB)"),
        ("The peak of a step, in GB?", "GB", "The peak of a step, in GB?"),
        ("How many MiB are reserved?", "MiB", "How many MiB are reserved?"),
        ("It takes how many times as long?", "times", "It takes how many times as long?"),
        (
            "A 3 MiB tensor does not fit. What was tried?",
            "MiB",
            "A 3 MiB tensor does not fit. What was tried? (in MiB)",
        ),
        ("How many minutes?", "min", "How many minutes? (in min)"),
        ("Which part, in per cent?", "%", "Which part, in per cent? (in %)"),
    ],
)
def test_the_unit_is_asked_for_once(capsys, question, unit, asked):
    gpulab.predict(question, unit=unit)
    assert capsys.readouterr().out == f"Predict: {asked}\n"


def test_without_a_prediction_no_file_is_made(file, notebook, capsys):
    gpulab.predict("How many?", unit="MiB").compare(12.5)
    [question] = notebook
    assert question["text"].splitlines() == [
        "Predict: How many? (in MiB)",
    ]
    assert capsys.readouterr().out == "measured: 12.5 MiB (no prediction was typed)\n"
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1, "samples", "1 sample"),
        (2, "samples", "2 samples"),
        (1.5, "samples", "1.5 samples"),
        (1, "bytes", "1 byte"),
        (1, "ms", "1 ms"),
        (1, "times", "1 times"),
        (1, "GB/s", "1 GB/s"),
        (1, "", "1"),
    ],
)
def test_one_of_something_is_singular(capsys, value, unit, shown):
    gpulab.predict("How many?", unit=unit, guess=value).compare(value, "computed")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"computed: {shown} · your prediction: {shown}: exact to half a per cent"


@pytest.mark.parametrize(
    ("guess", "actual", "words"),
    [
        (4, 4, "exact to half a per cent"),
        (100, 100.4, "exact to half a per cent"),
        (90, 100, "too low by 11 %"),
        (150, 100, "too high by 50 %"),
        (1, 16, "16 times too low"),
        (64, 16, "4 times too high"),
        (-32, -16, "2 times too high"),
        (0, 16, "off by 16"),
        (-5, 5, "off by 10"),
    ],
)
def test_the_distance_is_told_in_words(guess, actual, words):
    assert how_far(guess, actual) == words


def test_the_reason_stands_below_the_number_with_and_without_a_guess(capsys, notebook):
    gpulab.predict("How many?").compare(3, because="Two and one are three.")
    assert capsys.readouterr().out == "measured: 3 (no prediction was typed)\nTwo and one are three.\n"
    gpulab.predict("How many?", guess=4).compare(3, because="Two & one are three.")
    assert notebook[-1]["text"].endswith("\nTwo & one are three.")
    assert "Two &amp; one are three." in notebook[-1]["html"]
    with pytest.raises(TypeError, match="because must be a text, not 7"):
        gpulab.predict("How many?").compare(3, because=7)


@given(NUMBERS, NUMBERS)
def test_any_two_numbers_can_be_compared(guess, actual):
    words = how_far(guess, actual)
    assert words
    assert ("exact" in words) == math.isclose(guess, actual, rel_tol=0.005)


def test_the_kind_of_number_is_said_and_must_be_one_that_exists(capsys):
    gpulab.predict("How many?", guess=3).compare(3, "virtual")
    assert "virtual: 3 · your prediction: 3: exact to half a per cent" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"source must be 'measured', .* not 'guessed'"):
        gpulab.predict("How many?").compare(3, "guessed")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gpulab.predict(3), TypeError, "question must be a text, not 3"),
        (lambda: gpulab.predict("?", unit=None), TypeError, "unit must be a text, not None"),
        (lambda: gpulab.predict("?", guess="4"), TypeError, "value must be a number, not '4'"),
        (lambda: gpulab.predict("?", guess=True), TypeError, "value must be a number, not True"),
        (lambda: gpulab.predict("?", guess=float("nan")), ValueError, "value must be a finite number"),
        (lambda: gpulab.predict("?").compare(None), TypeError, "actual must be a number, not None"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def box(prediction):
    widget = module._box(prediction, "Predict: how many?")
    return widget.children[0], widget.children[1]


def test_what_is_typed_is_kept():
    prediction = Prediction("how many?", "bytes")
    typed, answer = box(prediction)
    typed.value = "39,720"
    assert prediction.value == 39720
    assert "kept" in answer.value
    assert ANSWER_CLASS in answer._dom_classes  # so that a screen reader speaks it
    typed.value = ""
    assert prediction.value is None
    assert answer.value == "no guess kept; run on and see"


@pytest.mark.parametrize("text", ["forty", "nan", "inf", "1e999", "<b>4</b>"])
def test_what_is_no_number_is_answered_and_not_kept(text):
    prediction = Prediction("how many?", "bytes")
    typed, answer = box(prediction)
    typed.value = text
    assert prediction.value is None
    assert "write it like 12.5" in answer.value
    assert "<b>" not in answer.value


# --- over a restart ------------------------------------------------------------------------------------


def test_what_is_typed_is_there_again_and_is_compared(file, notebook, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "work/notebooks/08_accumulation-Copy1.ipynb")
    gpulab.predict("How many?", unit="MiB")
    notebook[0]["widget"].children[0].value = "0.1"
    assert kept(file) == {"How many? (in MiB)": {"guess": 0.1, "lesson": 8, "on": date.today().isoformat()}}

    again = gpulab.predict("How many?", unit="MiB")
    typed, answer = notebook[1]["widget"].children[:2]
    assert typed.value == "0.1"
    assert answer.value == f"your guess from {TODAY}: 0.1 MiB"
    assert answer.value in notebook[1]["text"]
    again.compare(0.2)
    assert notebook[2]["text"] == "measured: 0.2 MiB · your prediction: 0.1 MiB: 2 times too low"
    assert notebook[2]["text"] in notebook[2]["html"]

    typed.value = ""
    assert kept(file) == {}
    assert gpulab.predict("How many?", unit="MiB").value is None


def test_a_guess_belongs_to_its_question_and_its_unit(file):
    gpulab.predict("How many?", unit="MiB", guess=3)
    assert gpulab.predict("How many?", unit="MiB").value == 3
    assert gpulab.predict("How many?", unit="GiB").value is None
    assert gpulab.predict("How much?", unit="MiB").value is None


def test_a_guess_from_code_is_kept_and_goes_before_an_older_one(file, capsys):
    gpulab.predict("How many?", guess=3)
    gpulab.predict("How many?").set(4)
    assert gpulab.predict("How many?").value == 4
    assert gpulab.predict("How many?", guess=5).value == 5
    assert kept(file)["How many?"] == {"guess": 5.0, "lesson": None, "on": date.today().isoformat()}
    assert f"your guess from {TODAY}: 4" in capsys.readouterr().out.splitlines()


def test_what_is_no_number_leaves_the_kept_guess(file):
    typed, _ = box(Prediction("how many?", "bytes"))
    typed.value = "4"
    before = file.read_bytes()
    typed.value = "forty"
    assert file.read_bytes() == before


def test_a_guess_that_cannot_be_kept_says_so_and_counts_all_the_same(file, notebook, capsys):
    text = '{"version": 3}'
    file.write_text(text)
    prediction = gpulab.predict("How many?")
    typed, answer = notebook[0]["widget"].children[:2]
    assert answer.value.startswith("progress not read: progress.json is of version 3, and this gpulab knows")
    typed.value = "4"
    assert answer.value.startswith("progress not recorded: progress.json is of version 3")
    assert prediction.value == 4
    prediction.set(5)
    assert capsys.readouterr().out.startswith("progress not recorded: progress.json is of version 3")
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "lesson"),
    [
        ("notebooks/08_accumulation.ipynb", 8),
        ("00_start_here.ipynb", 0),
        ("notebooks/simulators.ipynb", None),
        ("08_accumulation/mine.ipynb", None),
        ("", None),
    ],
)
def test_the_lesson_is_known_by_the_notebook(monkeypatch, name, lesson):
    monkeypatch.setenv("JPY_SESSION_NAME", name)
    assert module._lesson() == lesson


# --- the bar -------------------------------------------------------------------------------------------


def widths(page):
    return [float(w) for w in re.findall(r"width:([\d.e+-]+)%;min-width", page)]


def lefts(page):
    """Where on the track, in per cent, the two round points are: the guess, the truth."""
    return [float(x) for x in re.findall(r"left:([\d.e+-]+)%;width:12px", page)]


@pytest.mark.parametrize(
    ("guess", "actual", "per_cent"),
    [(2, 1, [100, 50]), (1, 2, [50, 100]), (0, 4, [0, 100]), (-5, 5, [50, 50]), (0, 0, [0, 0]), (29, 10, [100, 34.48])],
)
def test_bars_are_to_scale(guess, actual, per_cent):
    page = guess_bar.as_html("line", guess, actual, "measured")
    assert widths(page) == per_cent
    assert "logarithmic" not in page


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("guess", "actual"), [(3, 1), (1, 16), (100, 0.01), (7e250, 3e-300)])
def test_three_times_apart_the_scale_is_logarithmic_and_says_so(guess, actual, sign):
    page = guess_bar.as_html("line", sign * guess, sign * actual, "measured")
    assert widths(page) == []
    assert "logarithmic scale" in page
    at_guess, at_actual = lefts(page)
    low, high = math.floor(math.log10(min(guess, actual))), math.ceil(math.log10(max(guess, actual)))
    decade = 94 / (high - low)
    assert (at_guess - at_actual) / decade == pytest.approx(math.log10(guess) - math.log10(actual), abs=0.2)
    assert all(0 <= x <= 100 for x in (at_guess, at_actual))
    assert 2 <= page.count("translateX(-50%)") <= 7


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_any_two_numbers_can_be_drawn_within_the_track(guess, actual):
    page = guess_bar.as_html("line", guess, actual, "measured")
    assert "nan" not in page
    assert "inf" not in page
    assert all(0 <= w <= 100 for w in widths(page) + lefts(page))
    assert len(widths(page) + lefts(page)) == 2


def test_the_line_is_escaped_and_the_drawing_is_not_spoken():
    page = guess_bar.as_html("measured: 1 <b>", 1, 2, "measured")
    assert "measured: 1 &lt;b&gt;" in page
    assert 'aria-hidden="true"' in page
