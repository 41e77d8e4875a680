"""Workspaces that do not fit: a convolution goes on without, a product does not."""

import pytest
import torch
from torch import nn

from gpulab import VirtualGPU

MIB = 1 << 20


@pytest.mark.parametrize("backward", [False, True])
def test_a_convolution_whose_workspace_does_not_fit_is_done_by_another_plan(backward):
    with VirtualGPU("A100-40", compute=False):
        conv = nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=torch.float16)
        x = torch.empty(64, 64, 112, 112, device="cuda", dtype=torch.float16, requires_grad=backward)
        free, _ = torch.cuda.mem_get_info()
        room = x.nbytes * (3 if backward else 1) + 64 * MIB  # the results, not the copies with channels last
        taken = torch.empty(free - room, dtype=torch.uint8, device="cuda")
        out = conv(x)
        if backward:
            out.backward(out.detach())
            assert x.grad is not None
        assert torch.cuda.memory_stats()["num_ooms"] >= 1
        del taken


def test_a_product_whose_clone_does_not_fit_runs_out_of_memory():
    with VirtualGPU("A100-40", compute=False):
        a = torch.empty(8192, 1, device="cuda").expand(8192, 8192)
        b = torch.empty(8192, 8192, device="cuda")
        free, _ = torch.cuda.mem_get_info()
        taken = torch.empty(free - b.nbytes - 32 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            a @ b
        del taken
