"""What the checks of lesson 02 leave behind: nothing, whatever the answer does."""

import pytest
import torch

import gpulab
from gpulab.check.lesson02.machines import with_another_accelerator, without_gpu

CHECKS = ["device_agnostic", "late_error", "model_device", "move_batch"]


def queries():
    """Every function that the checks put another in the place of."""
    return [
        torch.accelerator.current_accelerator,
        torch.accelerator.is_available,
        torch.accelerator.device_count,
        torch.accelerator.current_device_index,
        torch.cuda.is_available,
        torch.cuda.device_count,
        torch.cuda.current_device,
        torch.xpu.is_available,
        torch.backends.mps.is_available,
    ]


ORIGINAL = queries()


def raises(*args):
    raise KeyError("odd")


def exits(*args):
    raise SystemExit(3)


def sets_things(*args):
    torch.cuda.set_device(1)
    torch.set_default_device("cuda:1")
    return args[0]


@pytest.mark.parametrize("answer", [raises, exits, sets_things], ids=lambda answer: answer.__name__)
@pytest.mark.parametrize("name", CHECKS)
def test_nothing_is_left_behind(name, answer):
    with gpulab.VirtualGPU("T4"):
        mine, before = torch.ones(3, device="cuda"), [query() for query in queries()]
        taken = torch.cuda.memory_allocated()
        with pytest.raises(gpulab.CheckFailed):
            getattr(gpulab.check, name)(answer, seed=1)
        assert [query() for query in queries()] == before
        assert torch.cuda.memory_allocated() == taken
        assert torch.cuda.current_device() == 0
        assert torch.get_default_device() == torch.device("cpu")
        assert mine.sum().item() == 3  # no failed kernel has reached this GPU


@pytest.mark.parametrize("name", CHECKS)
def test_without_a_gpu_every_query_is_the_same_object_again(name):
    before = queries()
    with pytest.raises(gpulab.CheckFailed):
        getattr(gpulab.check, name)(raises, seed=1)
    assert queries() == before


def broken_off(machine):
    with machine():
        assert queries() != ORIGINAL
        raise ZeroDivisionError


@pytest.mark.parametrize("machine", [without_gpu, with_another_accelerator])
def test_a_machine_is_gone_afterwards_also_by_an_error(machine):
    with pytest.raises(ZeroDivisionError):
        broken_off(machine)
    assert queries() == ORIGINAL


def test_the_machine_without_a_gpu_answers_as_one():
    with without_gpu() as asked:
        assert torch.accelerator.current_accelerator(check_available=True) is None
        assert not asked.built
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert asked.built
        assert asked.available
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 0
        with pytest.raises(RuntimeError, match="No CUDA GPUs"):
            torch.cuda.current_device()


def test_a_late_error_is_found_where_a_print_waits():
    def prints(steps, batch):
        for number, step in enumerate(steps):
            try:
                batch = step(batch)
                str(batch)
            except RuntimeError:
                return number
        return None

    gpulab.check.late_error(prints)
