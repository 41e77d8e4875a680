"""After every module of tests PyTorch is as it was: no virtual GPU in force, and its functions its own."""

import sys

import pytest


@pytest.fixture(autouse=True, scope="module")
def nothing_of_a_virtual_gpu_stays(request):
    # Set up first, so that the module's other fixtures are undone before it looks.
    yield
    if "gpulab.virtual.state" in sys.modules:
        import torch

        from gpulab.virtual import state

        name = request.module.__name__
        assert state.current is None, f"{name} leaves {state.current!r} in force"
        assert torch.cuda.is_available.__module__ == "torch.cuda", f"{name} leaves torch.cuda changed"
