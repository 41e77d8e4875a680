"""A mistake is told in its own words on other machines than the one that has stored its fingerprint."""

import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import gpulab
from gpulab.exercise.contract import CALL, Fingerprint

from .test_banks import BANKS, SEED, failure

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("count", [1, 16, 192])
def test_however_many_cores_it_has(count, monkeypatch):
    bank = BANKS["make_loader"]
    wrong = bank.told("the cores of this machine are counted")[0]
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    for drawn in (True, False):
        assert failure(bank, wrong, drawn=drawn).summary == wrong.summary


def test_whatever_marks_its_pytorch_puts_into_an_error():
    """2.11 says "aten._foreach_norm.Scalar: got mixed", 2.15 leaves the colon out."""
    contract = BANKS["train_sharded"].contract
    told_so = "the rest of the model is not sharded"
    mistake = next(mistake for mistake in contract.stored.mistakes if mistake.summary == told_so)
    (said,) = {value for (_, fact), value in mistake.differs.items() if fact == CALL}
    for instead, told in ((said.replace(" got", ": got"), True), (said.replace("got", "met"), False)):
        assert instead != said
        found = Fingerprint()
        for key in mistake.differs:
            found.seen[key] = instead
            found.broken.add(key)
        assert ([one.summary for one in contract.explained(found)[0]] == [told_so]) == told


def test_whichever_python_sums_numbers():
    """Python 3.12 sums without the errors of rounding: no answer may hang on which of two equal sums is larger."""
    bank = BANKS["name_bottleneck"]
    for wrong in [
        *bank.told("gaps of more than 30 % do not decide"),
        *bank.told("only the longest gap is compared with the limit"),
    ]:
        answer = types.FunctionType(wrong.answer.__code__, wrong.answer.__globals__ | {"sum": math.fsum})
        with pytest.raises(gpulab.CheckFailed, match=wrong.summary):
            bank.check(answer, seed=SEED)


def test_a_machine_without_a_gpu_has_none_on_a_machine_with_one(monkeypatch):
    """There `moves_the_data_to_the_gpu` would have worked, and slept on the real one until its time was up."""
    asked = []
    bank = BANKS["precision_comparison"]
    right = bank.right_answers[0]

    def compare(make_model, loss_fn, x, y, steps, warm_up):
        asked.append((x.device.type, torch.cuda.is_available()))
        return right(make_model, loss_fn, x, y, steps, warm_up)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    bank.check(compare, seed=SEED)
    assert {("cpu", False), ("cpu", True), ("cuda", True)} == set(asked)


WITHOUT_AVX = """
from gpulab.exercise.base import Trial
from gpulab.course import lesson

BANK = lesson(8).part("answers.batch_norm_free").BANK

answer = BANK.told("a group for each channel is an instance norm")[0].answer
contract = BANK.contract
print([one.summary for one in contract.explained(contract.fingerprint(answer, Trial(BANK.name, 8)))[0]])
"""


def test_whatever_its_processor_rounds():
    """A norm of single values gives nothing but how the processor rounds: of that nothing may be told."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tools")))
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", WITHOUT_AVX], capture_output=True, text=True, env=env)
    assert (done.stdout, done.returncode) == ("['a group for each channel is an instance norm']\n", 0), done.stderr
