"""After every test PyTorch is as it was: no virtual GPU in force, and its functions its own."""

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_of_a_virtual_gpu_stays(request):
    # Set up first, so that fixtures of the test are undone before it looks.
    yield
    if "gpulab.virtual.state" in sys.modules:
        import torch

        from gpulab.virtual import state

        assert state.current is None, f"{request.node.name} leaves {state.current!r} in force"
        assert torch.cuda.is_available.__module__ == "torch.cuda", f"{request.node.name} leaves torch.cuda changed"
