"""The machines that checks put in the place of this one, and what a check's failed kernel leaves of the notebook's."""

import pytest
import torch

import gpulab
from gpulab.exercise.machines import with_another_accelerator, without_gpu


def queries():
    """Every function that a machine puts another in the place of, where this PyTorch has it."""
    asked = (
        *((torch.accelerator, f"{name}") for name in ("current_accelerator", "is_available", "device_count")),
        *((torch.accelerator, f"current_device_{name}") for name in ("index", "idx")),
        *((torch.cuda, name) for name in ("is_available", "device_count", "current_device", "get_device_name")),
        *((home, "is_available") for home in (torch.xpu, torch.mps, torch.backends.mps)),
    )
    return [getattr(home, name, None) for home, name in asked]


def broken_off(machine):
    with machine():
        raise ZeroDivisionError


@pytest.mark.parametrize("machine", [without_gpu, with_another_accelerator])
def test_a_machine_is_gone_afterwards_also_by_an_error(machine):
    before = queries()
    with machine():
        assert queries() != before
    with pytest.raises(ZeroDivisionError):
        broken_off(machine)
    assert queries() == before


def test_the_machine_without_a_gpu_answers_as_one():
    with without_gpu():
        assert torch.accelerator.current_accelerator(check_available=True) is None
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 0
        with pytest.raises(RuntimeError, match="No CUDA GPUs"):
            torch.cuda.current_device()


def test_a_kernel_that_fails_in_a_check_does_not_reach_the_notebooks_gpu():
    with gpulab.VirtualGPU("T4"):
        mine, taken = torch.ones(3, device="cuda"), torch.cuda.memory_allocated()
        with pytest.raises(gpulab.CheckFailed):
            gpulab.check.late_error(lambda steps, batch: [step(batch) for step in steps], seed=1)
        assert mine.sum().item() == 3
        assert torch.cuda.memory_allocated() == taken
