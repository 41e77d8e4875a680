"""No wrong answer passes with some seeds: scenes are drawn as 1,000 checks draw them. Of `make explore`.

What an answer shows in a scene is seen once, and remembered: a thousand checks play few scenes that differ.
"""

import random

import pytest

from gpulab.exercise import settings
from gpulab.exercise.base import CheckFailed, NotAttempted, Trial
from gpulab.exercise.contract import holds
from gpulab.exercise.numbers import Numbers

from .test_banks import BANKS, explores

SEEDS = 1_000
EXERCISES = [bank for bank in BANKS.values() if bank.exercise]


def pytest_generate_tests(metafunc):
    banks = EXERCISES if explores() else [bank for bank in EXERCISES if isinstance(bank.exercise, Numbers)]
    metafunc.parametrize("bank", banks, ids=lambda bank: bank.name)


def breaks(contract, function, trial, seed, scene):
    """Whether this answer breaks a clause in this scene, or fails in another way."""
    try:
        facts = settings.in_clean_state(lambda: contract._play(function, trial, seed, scene), seed=seed)
    except (CheckFailed, NotAttempted):
        return True
    judged = {fact for clause in contract.clauses for fact in clause.facts}
    return any(name in judged and not holds(facts, name) for name in facts.wanted)


def passing_seeds(contract, answer, seeds):
    """With which seeds a check would draw only scenes in which this answer breaks nothing."""
    trial, seen, found = Trial(contract.name, contract.lesson), {}, []
    with contract._on_ranks(trial):
        try:
            function = contract.accept(answer, trial)
        except CheckFailed:
            return []
        for seed in seeds:
            for of_scene, scene in contract.scenes(seed):
                key = str(scene)
                if key not in seen:
                    seen[key] = breaks(contract, function, trial, of_scene, scene)
                if seen[key]:
                    break
            else:
                found.append(seed)
    return found


def test_a_wrong_answer_passes_with_no_seed(bank):
    if isinstance(bank.exercise, Numbers):  # all jobs are played, and only their numbers are drawn
        for wrong in bank.wrong_answers:
            for seed in random.Random(1).sample(range(2**31), 5 if explores() else 1):
                with pytest.raises(CheckFailed):
                    bank.check(wrong.answer, seed=seed)
        return
    passed = {}
    for wrong in bank.wrong_answers:
        if found := passing_seeds(bank.exercise, wrong.answer, range(SEEDS)):
            passed[wrong.name] = f"{len(found)} of {SEEDS}, as {found[0]}"
    assert not passed
