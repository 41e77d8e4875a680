"""Names that a notebook has bound before a check brings its own GPU mean that GPU while the check runs."""

import functools
import gc
import sys
from types import ModuleType

import pytest
import torch
from torch.cuda import Event, memory_allocated, synchronize
from torch.cuda import memory_allocated as live_bytes

import gpulab
from gpulab.exercise.base import Trial
from gpulab.exercise.bound_names import _is_replacement
from gpulab.exercise.measure import virtual_gpu


def call(answer, *args):
    with virtual_gpu(count=2):
        trial = Trial("double", 2)
        return trial.call(answer, *args)


def asked():
    kept = torch.ones(5000, device="cuda")
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    kept.sum()
    end.record()
    synchronize()
    return memory_allocated(), live_bytes(), torch.cuda.memory_allocated(), start.elapsed_time(end) > 0


class Asking:
    def __call__(self):
        return asked()

    @staticmethod
    def ask():
        return asked()


def test_a_name_bound_without_any_gpu():
    before = memory_allocated, Event
    assert call(asked) == (20480, 20480, 20480, True)
    assert (memory_allocated, Event) == before


def test_names_bound_of_the_notebooks_gpu(monkeypatch):
    for _ in range(2):  # the notebook's GPU has put other objects there each time that it comes back into force
        with gpulab.VirtualGPU("T4"):
            outer = torch.ones(1000, device="cuda")
            for name, of in (("memory_allocated",) * 2, ("live_bytes", "memory_allocated"), ("Event",) * 2):
                monkeypatch.setitem(globals(), name, getattr(torch.cuda, of))
            monkeypatch.setitem(globals(), "synchronize", torch.cuda.synchronize)
            kept = memory_allocated, Event
            for answer in (
                asked,
                Asking(),
                Asking.ask,
                functools.partial(asked),
                functools.wraps(asked)(lambda: asked()),
            ):
                assert call(answer) == (20480, 20480, 20480, True)
            assert (memory_allocated, Event) == kept
            assert memory_allocated() == 4096 == outer.untyped_storage().nbytes() + 96


def test_names_are_put_back_when_the_answer_raises():
    before = memory_allocated

    def fails():
        assert memory_allocated is not before
        raise ValueError("no")

    with pytest.raises(gpulab.CheckFailed, match="raised ValueError"):
        call(fails)
    assert memory_allocated is before


def test_other_names_are_left_alone(monkeypatch):
    seen = []
    monkeypatch.setitem(globals(), "mine", max)
    monkeypatch.setitem(globals(), "number", 7)
    call(lambda: seen.append((mine, number)))  # noqa: F821
    assert seen == [(max, 7)]


def test_no_gpu_of_a_check_stays():
    call(asked)
    gc.collect()
    before = sum(isinstance(thing, gpulab.VirtualGPU) for thing in gc.get_objects())
    for _ in range(3):
        call(asked)
    gc.collect()
    assert sum(isinstance(thing, gpulab.VirtualGPU) for thing in gc.get_objects()) == before


@pytest.mark.parametrize("gpu", [{"gpu": "T4"}, {"gpu": "T4", "compute": False}, {"gpu": "8xH100"}])
def test_what_a_gpu_puts_into_torch_is_known_as_such_and_what_stood_there_is_not(gpu):
    with gpulab.VirtualGPU(**gpu) as scope:
        places = [(owner, name, old) for owner, name, old in scope.replacements() if isinstance(owner, ModuleType)]
        put = {name: getattr(owner, name) for owner, name, old in places if callable(old) and owner is not sys}
        assert [name for name, value in put.items() if not _is_replacement(value)] == []
        assert [name for _, name, old in places if _is_replacement(old)] == []
