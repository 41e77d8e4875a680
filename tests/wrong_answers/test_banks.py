"""Every check passes the right answers of its bank, and tells every wrong one what it is: without a GPU, and with a
virtual one in force, as students have it."""

import functools
from importlib import import_module

import pytest

import gpulab
from gpulab.course import LESSONS

BANKS = [
    import_module(f".lesson{lesson.number:02d}.{name}", __package__).BANK
    for lesson in LESSONS
    if lesson.written
    for name in lesson.checks
]
MOST_LINES = 10  # wrapped, so that a message is seen without scrolling
SEED = 1  # of the wrong answers; the right ones are tried with several


def each(answers, names=lambda answer: answer.__name__):
    """A test for each of `answers(bank)`, over all banks."""
    rows = [pytest.param(bank, answer, id=f"{bank.name}-{names(answer)}") for bank in BANKS for answer in answers(bank)]
    return pytest.mark.parametrize(("bank", "answer"), rows)


def wrong_answers(where):
    return each(lambda bank: [wrong for wrong in bank.wrong_answers if where(wrong)], lambda wrong: wrong.name)


each_bank = pytest.mark.parametrize("bank", BANKS, ids=lambda bank: bank.name)


def failure(bank, answer):
    with pytest.raises(gpulab.CheckFailed) as caught:
        bank.check(answer, seed=SEED)
    return caught.value


failure_here = functools.cache(failure)  # without a GPU; asked for again by the comparison of their words


def assert_its_own_words(failed, wrong, bank):
    assert failed.summary == wrong.summary
    assert wrong.likely in failed.rows["likely"]
    assert not wrong.also or wrong.also == failed.rows["also"]
    assert len(str(failed).splitlines()) <= MOST_LINES
    assert f"seed={SEED}" in str(failed)
    section = failed.rows["read"].partition("“")[2].removesuffix("”")
    assert not section or section in bank.sections


def assert_passes(bank, answer, capsys, seeds):
    for seed in seeds:
        bank.check(answer, seed=seed)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(seeds)
    assert all(line.startswith("✔") for line in out)


@each(lambda bank: bank.right_answers)
@pytest.mark.filterwarnings("error")
def test_a_right_answer_passes(bank, answer, capsys):
    assert_passes(bank, answer, capsys, range(3))


@wrong_answers(lambda wrong: not wrong.on_gpu)
def test_a_wrong_answer_fails_in_its_own_words(bank, answer):
    assert_its_own_words(failure_here(bank, answer.answer), answer, bank)


@each(lambda bank: bank.right_answers + bank.right_on_gpu)
def test_a_right_answer_passes_with_a_virtual_gpu_in_force(bank, answer, capsys):
    with gpulab.VirtualGPU("T4"):
        assert_passes(bank, answer, capsys, [3])


@wrong_answers(lambda wrong: True)
def test_a_wrong_answer_fails_in_the_same_words_with_a_virtual_gpu_in_force(bank, answer):
    with gpulab.VirtualGPU("T4"):
        assert_its_own_words(failure(bank, answer.answer), answer, bank)


@each_bank
def test_no_two_wrong_answers_are_told_the_same(bank):
    """Unless the bank says that they are the same misconception."""
    said = {}
    for wrong in bank.wrong_answers:
        if wrong.on_gpu:
            continue
        failed = failure_here(bank, wrong.answer)
        words = failed.summary, failed.rows["likely"], failed.rows["also"]
        first = said.setdefault(words, wrong.name)
        assert wrong.same_as == (first if first != wrong.name else ""), f"{wrong.name} is told the same as {first}"


@each_bank
def test_a_bank_holds_five_wrong_answers_and_two_right_ones_at_the_least(bank):
    assert len(bank.wrong_answers) >= 5
    assert len(bank.right_answers) >= 2


@each_bank
def test_a_stub_is_not_attempted(bank):
    """The course's own stub, and the one that an instructor's grader puts in its place."""

    def stub(*args):
        raise gpulab.NotAttempted

    def graders_stub(*args):
        raise NotImplementedError()

    for empty in (stub, graders_stub):
        with pytest.raises(gpulab.NotAttempted, match="not attempted yet"):
            bank.check(empty)
