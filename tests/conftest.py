"""Virtual GPUs for tests that ask only what torch.cuda says, and a look that none stays in force after a module."""

import sys

import hypothesis
import pytest

# No test is about time: a slow machine must not fail one.
hypothesis.settings.register_profile("gpulab", deadline=None)
hypothesis.settings.load_profile("gpulab")


@pytest.fixture(autouse=True, scope="module")
def nothing_of_a_virtual_gpu_stays(request):
    # Set up first, so that the module's other fixtures are undone before it looks.
    yield
    if "gpulab.virtual.scope.in_force" in sys.modules:
        import torch

        from gpulab.virtual.scope import in_force

        name = request.module.__name__
        assert in_force.current is None, f"{name} leaves {in_force.current!r} in force"
        assert torch.cuda.is_available.__module__ == "torch.cuda", f"{name} leaves torch.cuda changed"


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    """A virtual GPU in both of its modes."""
    from gpulab.virtual.gpu import VirtualGPU

    with VirtualGPU("T4", compute=request.param) as scope:
        yield scope


@pytest.fixture
def shapes():
    from gpulab.virtual.gpu import VirtualGPU

    with VirtualGPU("T4", compute=False) as scope:
        yield scope


@pytest.fixture
def two_gpus():
    from gpulab.virtual.gpu import VirtualGPU

    with VirtualGPU("T4", count=2, compute=False) as scope:
        yield scope


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without any accelerator, whatever this one has."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
