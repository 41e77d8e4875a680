"""Predictions: kept when typed, not missed when not, and compared in words that are true."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.furniture import predict as module
from gpulab.furniture.front_end import ANSWER_CLASS
from gpulab.furniture.predict import Prediction, how_far

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


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
    assert answer.value == ""


@pytest.mark.parametrize("text", ["forty", "nan", "inf", "1e999", "<b>4</b>"])
def test_what_is_no_number_is_answered_and_not_kept(text):
    prediction = Prediction("how many?", "bytes")
    typed, answer = box(prediction)
    typed.value = text
    assert prediction.value is None
    assert "write it like 12.5" in answer.value
    assert "<b>" not in answer.value
