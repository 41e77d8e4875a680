"""What this program takes on a GPU, held by tests that run on any machine: `pip install gpulab`, then `pytest`."""

import pytest
import torch
from train import make_model, train

MIB = 2**20


def batches(count, size=256):
    """Images and labels in page-locked memory, as a DataLoader with pin_memory=True gives them."""
    for _ in range(count):
        yield torch.randn(size, 784).pin_memory(), torch.randint(0, 10, (size,)).pin_memory()


@pytest.fixture
def program(virtual_gpu):
    """The model and its optimizer after one step, which makes the gradients and AdamW's state."""
    model = make_model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    train(model, optimizer, batches(1))
    return model, optimizer


def test_a_step_takes_little_memory(virtual_gpu, program):
    with virtual_gpu.watch() as seen:
        train(*program, batches(3))
    assert seen.peak_memory < 32 * MIB
    assert seen.peak_reserved < 64 * MIB


def test_the_host_waits_once_for_the_loss_and_never_in_a_step(virtual_gpu, program):
    with virtual_gpu.watch() as seen:
        train(*program, batches(5))
    assert len(seen.host_waits) == 1


def test_only_the_batches_are_copied(virtual_gpu, program):
    with virtual_gpu.watch() as seen:
        train(*program, batches(5))
    to_gpu = [copy for copy in seen.copies if copy.way == "to GPU"]
    assert len(to_gpu) == 10
    assert all(copy.pinned for copy in to_gpu)


def test_a_step_launches_few_kernels(virtual_gpu, program):
    with virtual_gpu.watch() as seen:
        train(*program, batches(1))
    assert len(seen.kernels) < 60


def wide_step():
    """A step with 40,960 units: 1.7 billion weights, for which AdamW needs 16 bytes each."""
    model = make_model(40_960).to("cuda")
    train(model, torch.optim.AdamW(model.parameters(), fused=True), batches(1))


@pytest.mark.virtual_gpu("A100-40", "H100", compute=False)  # without values: this machine needs no memory for them
def test_a_wide_model_fits(virtual_gpu):
    assert virtual_gpu.fits(wide_step)


@pytest.mark.virtual_gpu("T4", compute=False)
def test_it_does_not_fit_on_a_t4(virtual_gpu):
    assert not virtual_gpu.fits(wide_step)
