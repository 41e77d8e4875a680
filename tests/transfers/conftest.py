"""A virtual GPU in both of its modes, two of them, and a machine without any."""

import pytest

from gpulab.virtual.gpu import VirtualGPU


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with VirtualGPU("T4", compute=request.param) as scope:
        yield scope


@pytest.fixture
def shapes():
    with VirtualGPU("T4", compute=False) as scope:
        yield scope


@pytest.fixture
def two_gpus():
    with VirtualGPU("T4", count=2, compute=False) as scope:
        yield scope


@pytest.fixture
def no_gpu(monkeypatch):
    """Whatever this machine has."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
