"""Backward passes that keep memory, or compute much of it again: what the report says of them, and when nothing."""

import pytest

CYCLES = """
import sys, torch
layer, data = torch.nn.Linear(4096, 4096).cuda(), torch.ones(4, 4096, device="cuda")
for _ in range(8):
    loss = layer(data).square().mean()
    if sys.argv[1] == "backward":
        loss.backward(create_graph=True)
    elif sys.argv[1] == "none":
        loss.backward(create_graph=True)
        layer.zero_grad()
    else:
        torch.autograd.grad(loss, list(layer.parameters()), create_graph=True)
    del loss
    layer = torch.nn.Linear(4096, 4096).cuda()
"""

CHECKPOINTS = """
import sys, torch
from torch.utils.checkpoint import checkpoint

def block():
    return torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))

body, x = torch.nn.Sequential(*(block() for _ in range(8))).cuda(), torch.randn(8192, 512, device="cuda")
x.requires_grad_()
whole, reentrant = sys.argv[1] == "whole", sys.argv[2] == "reentrant"
for part in [body] if whole else body:
    x = checkpoint(part, x, use_reentrant=reentrant)
loss = x.sum()
if sys.argv[1] == "penalty":
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    loss = loss + grad.square().sum()
loss.backward()
"""


@pytest.mark.parametrize(("how", "found"), [("backward", True), ("none", False), ("grad", False)])
def test_a_cycle_of_gradient_and_graph_is_named(how, found, run, tmp_path):
    (tmp_path / "cycles.py").write_text(CYCLES)
    done = run(tmp_path / "cycles.py", how, options=["--shapes-only"])
    assert ("backward(create_graph=True) on average, at cycles.py:7" in " ".join(done.text.split())) == found
    assert (done.report.cycles is not None) == found
    if found:
        assert done.report.cycles.growth >= 2 * 64 << 20  # a weight and its gradient a call


@pytest.mark.parametrize("reentrant", ["reentrant", "not"])
def test_one_checkpoint_around_everything_is_told(reentrant, run, tmp_path):
    (tmp_path / "checkpoints.py").write_text(CHECKPOINTS)
    whole, blocks = (
        run(tmp_path / "checkpoints.py", parts, reentrant, options=["--shapes-only"]) for parts in ("whole", "blocks")
    )
    assert "is what backward computes again for a checkpoint" in " ".join(whole.text.split())
    assert "computes again" not in blocks.text
    (memory,) = (gpu.memory for gpu in whole.report.gpus)
    # Of each block the input, the first product and what GELU gives; of the first the input is the script's own.
    assert memory.recomputed >= 8 * 2 * (8192 * 2048 * 4)
    assert memory.recomputed > 4 * blocks.report.gpus[0].memory.recomputed > 0


def test_a_graph_that_is_built_in_backward_is_no_recomputation(run, tmp_path):
    (tmp_path / "penalty.py").write_text(CHECKPOINTS.replace("checkpoint(part, x, use_reentrant=reentrant)", "part(x)"))
    assert (
        run(tmp_path / "penalty.py", "penalty", "not", options=["--shapes-only"]).report.gpus[0].memory.recomputed == 0
    )
