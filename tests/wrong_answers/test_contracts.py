"""Every clause of a contract stands in the exercise, has a scene, and has a wrong answer that breaks it and no other.

What is compared with is what the build stored; that it is right is shown by test_banks.py, where every wrong answer is
told its own words.
"""

import pytest
from banks.edits import add, change, drop, text_of_exercise

import gpulab

from .test_banks import BANKS

CONTRACTS = [bank for bank in BANKS.values() if bank.contract]
JUDGED = [bank for bank in BANKS.values() if bank.exercise]


@pytest.fixture(params=CONTRACTS, ids=lambda bank: bank.name)
def bank(request):
    return request.param


@pytest.mark.parametrize("bank", JUDGED, ids=lambda bank: bank.name)
def test_a_clause_is_a_sentence_of_the_exercise(bank):
    text = without_ticks(text_of_exercise(bank.lesson, bank.object_name or bank.name))
    for clause in bank.exercise.clauses:
        assert without_ticks(clause.quote) in text, f"{bank.name} does not promise “{clause.quote}”"


def without_ticks(text):
    """Its words alone: a text cell sets code in backticks, which a message of the check does without."""
    return " ".join(text.replace("`", "").split())


def test_a_clause_has_a_scene(bank):
    shown = {fact for _, fact in bank.contract.stored.judged}
    for clause in bank.contract.clauses:
        assert shown >= set(clause.facts), f"no scene shows {set(clause.facts) - shown}"


def test_what_is_judged_belongs_to_one_clause(bank):
    facts = [fact for clause in bank.contract.clauses for fact in clause.facts]
    assert len(facts) == len(set(facts))


def test_a_clause_has_a_wrong_answer_that_breaks_it_alone(bank):
    mistakes = [bank.contract.broken_by(mistake) for mistake in bank.contract.stored.mistakes]
    without = [
        clause.quote
        for clause in bank.contract.clauses
        if not any(facts and facts <= set(clause.facts) for facts in mistakes)
    ]
    assert not without


def test_the_words_stored_are_those_of_the_bank(bank):
    stored = [(m.name, m.summary, m.likely) for m in bank.contract.stored.mistakes]
    assert stored == [(w.name, w.summary, w.likely) for w in bank.wrong_answers], "run tools/fingerprints.py"


def test_a_fingerprint_belongs_to_one_mistake(bank):
    found = {}
    for mistake in bank.contract.stored.mistakes:
        if not mistake.differs:  # it is told at once: it hangs, or changes what it was handed
            continue
        words = mistake.summary, mistake.likely
        print_of = frozenset((key, str(value)) for key, value in mistake.differs.items())
        assert found.setdefault(print_of, words) == words, f"{mistake.name} looks like another mistake"


def test_two_mistakes_at_once_are_both_named():
    bank = next(bank for bank in CONTRACTS if bank.name == "amp_step")
    both = bank.edited(drop("clip_grad_norm_"), change("loss.item(), stepped", "loss.item(), None"))
    with pytest.raises(gpulab.CheckFailed) as caught:
        bank.check(both, seed=1)
    assert {caught.value.summary, caught.value.rows["also"]} == {
        "the gradient is not clipped",
        "whether the optimizer stepped is not returned as a bool",
    }


def test_a_mistake_that_nobody_foresaw_is_told_its_clause():
    bank = next(bank for bank in CONTRACTS if bank.name == "amp_step")
    odd = bank.edited(add("[p.grad.mul_(1.7) for p in model.parameters() if p.grad is not None]", after="clip_"))
    with pytest.raises(gpulab.CheckFailed) as caught:
        bank.check(odd, seed=1)
    assert caught.value.summary.startswith("the optimizer steps with a wrong gradient")
    assert not caught.value.rows["also"]
