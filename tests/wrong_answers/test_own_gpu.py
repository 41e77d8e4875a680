"""Checks that open a virtual GPU of their own leave that of the notebook alone."""

import gc

import pytest
import torch

import gpulab
from virtualgpu.scope import in_force

from .test_banks import BANKS

EACH_BANK = pytest.mark.parametrize(
    "bank",
    [BANKS[name] for name in ("memory_profiler", "memory_tracker", "memory_buckets", "oom_golf")],
    ids=lambda b: b.name,
)


def does_nothing(*args):
    return None


@EACH_BANK
def test_no_tensor_and_no_peak_stays_on_the_notebooks_gpu(bank):
    with gpulab.VirtualGPU("T4"):
        own = torch.empty(1 << 20, device="cuda")
        before, outer = torch.cuda.memory_stats(), in_force.current
        bank.check(bank.solution)
        with pytest.raises(gpulab.CheckFailed):
            bank.check(does_nothing)
        gc.collect()
        assert in_force.current is outer
        assert own.is_cuda
        assert torch.cuda.memory_stats() == before
        assert torch.cuda.current_device() == 0


@EACH_BANK
def test_the_environments_allocator_settings_do_not_decide(bank, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    bank.check(bank.solution)


def test_a_tracker_in_place_of_its_class_is_told_so():
    with pytest.raises(gpulab.CheckFailed, match="an object was passed, not the class"):
        gpulab.check.memory_tracker(BANKS["memory_tracker"].solution())
