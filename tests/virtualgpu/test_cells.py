"""LSTMCell and GRUCell by CUDA's fused kernels: the CPU's values and gradients, and what CUDA keeps."""

import pytest
import torch
from torch import nn

from gpulab import VirtualGPU


def trained(device, dtype, *, bias=True):
    """States after two steps of each cell, and the gradients of everything."""
    torch.manual_seed(0)
    lstm, gru = (cell(5, 7, bias=bias, dtype=dtype).to(device) for cell in (nn.LSTMCell, nn.GRUCell))
    x = torch.randn(3, 5).to(device, dtype).requires_grad_()
    h, c = lstm(x, lstm(x))
    k = gru(x, gru(x))
    (h.sum() + (c * c).sum() + (k * k).sum()).backward()
    gradients = [p.grad for p in (*lstm.parameters(), *gru.parameters())]
    return [t.detach().cpu() for t in (h, c, k, x.grad, *gradients)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_values_and_gradients_are_the_cpus(dtype, bias):
    expected = trained("cpu", dtype, bias=bias)
    with VirtualGPU("T4"):
        found = trained("cuda", dtype, bias=bias)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=3e-2 if dtype is torch.float16 else 1e-6, rtol=1e-2)


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize(("cell", "floats"), [(nn.LSTMCell, 4 + 1 + 1), (nn.GRUCell, 5 + 1)])
def test_a_step_keeps_the_gates_and_the_states(cell, floats, compute):
    """Gates and both states of an LSTM; of a GRU five numbers and the state. Nothing of single gates."""
    with VirtualGPU("A100-80", compute=compute), torch.no_grad():
        made = cell(256, 256, device="cuda")
        x = torch.randn(128, 256, device="cuda")
        state = made(x)
        before = torch.cuda.memory_allocated()
        with torch.enable_grad():
            new = made(x, state)
        both_products = 2 * (4 if cell is nn.LSTMCell else 3)  # kept for a gradient of the gradient
        assert torch.cuda.memory_allocated() - before == (floats + both_products) * x.nbytes
        del new
        assert torch.cuda.memory_allocated() == before


def test_what_does_not_fit_together_is_refused_in_pytorchs_words():
    with VirtualGPU("T4"):
        cell = nn.LSTMCell(5, 7, device="cuda")
        x = torch.randn(3, 5, device="cuda")
        with pytest.raises(RuntimeError, match="hidden0 has inconsistent hidden_size: got 6, expected 7"):
            cell(x, (torch.zeros(3, 6, device="cuda"), torch.zeros(3, 7, device="cuda")))
        with pytest.raises(RuntimeError, match="same device"):
            cell(x, (torch.zeros(3, 7), torch.zeros(3, 7)))
