"""Answers that do not try to be right: they must not pass either, and what they leave behind must not help the next."""

import contextlib
import gc
import io
import itertools
import random
import re
from pathlib import Path

import pytest
import torch

import gpulab
from gpulab.check.lesson04.common import SECTIONS
from gpulab.virtual.scope import in_force

from . import memory_buckets as buckets
from . import memory_profiler as profiler
from . import memory_tracker as tracker

RIGHT = {
    "memory_profiler": profiler.BANK.solution,
    "memory_buckets": buckets.BANK.solution,
}
EACH_CHECK = pytest.mark.parametrize("name", RIGHT)


def does_nothing(*args):
    return None


def returns_what_it_got(*args):
    return args


class NeverMeasures:
    """All that is asked for, and none of it true."""

    available, peak_memory_mb, memory_delta_mb, peak_above_entry_mb = True, 0.0, 0.0, 0.0

    def __init__(self, device=None):
        self.peak_by_gpu = self.delta_by_gpu = {0: 0.0}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@EACH_CHECK
@pytest.mark.parametrize("answer", [does_nothing, returns_what_it_got, None, 3, "text", NeverMeasures])
def test_what_is_no_answer_never_passes(name, answer):
    with pytest.raises(gpulab.CheckFailed):
        getattr(gpulab.check, name)(answer)


@EACH_CHECK
@pytest.mark.parametrize("scope", [False, True])
def test_a_check_leaves_nothing_behind(name, scope):
    """No tensor on the notebook's own GPU, no peak of its own, no other current GPU."""
    with gpulab.VirtualGPU("T4") if scope else contextlib.nullcontext():
        device = "cuda" if scope else "cpu"
        own = torch.empty(1 << 20, device=device)
        before = torch.cuda.memory_stats() if scope else {}
        has_gpu = torch.cuda.is_available()
        outer = in_force.current
        getattr(gpulab.check, name)(RIGHT[name])
        with pytest.raises(gpulab.CheckFailed):
            getattr(gpulab.check, name)(does_nothing)
        gc.collect()
        assert in_force.current is outer
        assert own.device.type == device
        if scope:
            assert torch.cuda.memory_stats() == before
            assert torch.cuda.current_device() == 0
        else:
            assert torch.cuda.is_available() == has_gpu


def test_a_tracker_in_place_of_its_class_is_told_so():
    with pytest.raises(gpulab.CheckFailed, match="an object came where the class is wanted"):
        gpulab.check.memory_tracker(tracker.BANK.solution())


@pytest.mark.parametrize("name", ["memory_profiler", "memory_buckets"])
def test_to_be_right_at_the_first_call_is_not_enough(name):
    calls = itertools.count()

    def student(*args):
        return RIGHT[name](*args) if next(calls) == 0 else None

    with pytest.raises(gpulab.CheckFailed):
        getattr(gpulab.check, name)(student)


@EACH_CHECK
def test_the_notebooks_own_settings_do_not_decide(name):
    """A notebook in float64, under autocast and without gradients, with another default device."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            getattr(gpulab.check, name)(RIGHT[name], seed=1)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


@EACH_CHECK
def test_the_environments_allocator_settings_do_not_decide(name, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    getattr(gpulab.check, name)(RIGHT[name])


@EACH_CHECK
def test_a_check_takes_no_random_number_from_the_notebook(name):
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    getattr(gpulab.check, name)(RIGHT[name])
    with pytest.raises(gpulab.CheckFailed), contextlib.redirect_stdout(io.StringIO()):
        getattr(gpulab.check, name)(does_nothing)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


def test_the_sections_that_a_failed_check_names_are_headings_of_the_lecture():
    lecture = Path(__file__).resolve().parents[3] / "sources" / "lectures" / "04_memory.py"
    assert set(SECTIONS) <= set(re.findall(r"^# ## (.+)$", lecture.read_text(encoding="utf-8"), re.MULTILINE))
