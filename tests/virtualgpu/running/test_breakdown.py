"""What a GPU held at the peak of a run, or where memory ran out: categories, phase, step and the largest tensors."""

import re

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.planning import ledger as ledgers
from virtualgpu.planning.ledger import Ledger

MiB = 1 << 20
SHAPES = ["--shapes-only", "--gpu", "T4"]
MODEL = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
weights = 2 * 4 * 1024 * 4096
"""
STEPS = f"""{MODEL}
optimizer = torch.optim.Adam(model.parameters())
for batch in (64, 64, 8192, 64):
    model(torch.randn(batch, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def memory(run, tmp_path):
    def of(source, *options, code=0):
        (tmp_path / "train.py").write_text(source)
        done = run(tmp_path / "train.py", options=[*SHAPES, *options])
        assert done.code == code, done.err
        return done.report.used[0], done.text

    return of


@pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")
def test_the_peak_of_the_run_is_broken_down_and_not_that_of_a_certain_step(memory):
    gpu, text = memory(STEPS)
    found = gpu.memory.breakdown
    assert (found.step, found.phase) == (3, "backward")
    assert found.allocated == sum(nbytes for _, nbytes in found.categories) == gpu.memory.peak_allocated
    categories = dict(found.categories)
    assert categories["weights"] == pytest.approx(2 * 4 * 1024 * 4096, rel=0.01)
    assert categories["optimizer_state"] == pytest.approx(4 * 4 * 1024 * 4096, rel=0.01)
    assert categories["activations"] >= 4 * 8192 * 4096
    first = found.largest[0]
    assert (first.nbytes, first.shape, first.dtype) == (128 * MiB, (8192, 4096), "float32")
    assert "  reached in      backward of step 3: " in text
    assert "128.0 MiB  float32 8192x4096" in text


@pytest.mark.parametrize(
    ("rest", "phase"),
    [
        ("", "load"),
        ("with torch.no_grad():\n    model(torch.randn(8192, 1024, device='cuda'))\n", "evaluation"),
        ("loss = model(torch.randn(8192, 1024, device='cuda')).sum()\n", "forward"),
        ("optimizer = torch.optim.Adam(model.parameters(), foreach=False)\n"
         "model(torch.randn(8, 1024, device='cuda')).sum().backward()\noptimizer.step()\n", "optimizer"),
    ],
)  # fmt: skip
def test_the_phase_of_the_peak(memory, rest, phase):
    gpu, _ = memory(MODEL + rest)
    assert gpu.memory.breakdown.phase == phase


def test_a_first_step_that_runs_out_is_broken_down_where_it_does(memory):
    gpu, text = memory(f"{MODEL}\nmodel(torch.randn(2**19, 1024, device='cuda')).sum().backward()\n", code=12)
    found = gpu.shortage.breakdown
    assert (found.step, found.phase, found.operation, found.module) == (1, "forward", "relu", "1")
    assert found.allocated == gpu.shortage.allocated
    assert dict(found.categories) == {"activations": 2**33, "data": 2**31, "weights": pytest.approx(32 * MiB, rel=0.01)}
    assert [(each.nbytes, each.shape, each.module) for each in found.largest[:2]] == [
        (2**33, (2**19, 4096), "0"),
        (2**31, (2**19, 1024), ""),
    ]
    assert found.largest[1].line.code.startswith("model(torch.randn(2**19")
    assert "  asked in        forward: relu in 1" in text
    assert gpu.memory.breakdown == found


def test_what_is_kept_for_a_backward_pass_that_runs_out_at_its_beginning_is_activations(memory):
    source = """\
import torch
x = torch.randn(2**30, device="cuda", requires_grad=True)
x.exp().exp().backward(torch.ones((), device="cuda").expand(2**30))
"""
    gpu, _ = memory(source, code=12)
    found = gpu.shortage.breakdown
    assert (found.phase, dict(found.categories).get("activations")) == ("backward", 2**33)


def test_a_copy_of_the_weights_made_before_training_is_no_activation(memory):
    source = (
        f"{MODEL}\naverage = [p.clone().detach() for p in model.parameters()]\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.randn(8, 1024, device='cuda')).sum().backward()\noptimizer.step()\n"
    )
    gpu, text = memory(source)
    found = dict(gpu.memory.breakdown.categories)
    assert found["data"] == pytest.approx(found["weights"], rel=0.01)
    assert found.get("activations", 0) < MiB
    assert re.search(r"float32 \d+x\d+  clone, line \d+", text)


def test_the_line_the_holders_and_the_breakdown_are_of_one_peak(memory):
    source = """\
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1, device="cuda"))])
first = torch.ones(1000 << 20, dtype=torch.uint8, device="cuda")
del first
optimizer.step()
second = torch.ones(1005 << 20, dtype=torch.uint8, device="cuda")  # higher by less than 1 %
del second
optimizer.step()
"""
    gpu, _ = memory(source)
    assert gpu.memory.peak_allocated > 1005 << 20
    assert gpu.memory.breakdown.step == 1
    assert gpu.memory.breakdown.allocated == pytest.approx(1000 << 20, rel=0.001)
    assert gpu.memory.peak_line.code.startswith("first = ")
    assert gpu.memory.peak_shares[0].line == gpu.memory.peak_line
    gpu, _ = memory(source.replace("1005", "1020"))
    assert gpu.memory.peak_line.code.startswith("second = ")
    assert gpu.memory.breakdown.step == 2


def test_weights_that_fsdp_gathers_are_weights(memory):
    source = """\
import torch
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.fsdp import fully_shard
init_process_group("nccl")
model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False, device="cuda") for _ in range(4)))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    gpu, _ = memory(source, "--ranks", "8")
    found, weights = dict(gpu.memory.breakdown.categories), 4 * 4 * 4096 * 4096
    assert found["weights"] == pytest.approx(weights + weights / 8, rel=0.01)
    assert found.get("activations", 0) < MiB


def test_modules_in_lists_have_their_path(memory):
    source = """\
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
kept = Model().cuda()(torch.randn(8192, 512, device="cuda"))
"""
    gpu, _ = memory(source)
    assert (gpu.memory.breakdown.operation, gpu.memory.breakdown.module) == ("addmm", "layers.1")


def test_a_long_run_without_steps_keeps_no_list_of_what_is_dead(monkeypatch):
    monkeypatch.setattr(ledgers, "_MOST", 10)
    with VirtualGPU("T4", compute=False) as scope:
        ledger = Ledger(scope.devices[0])
        kept = [torch.ones(MiB, device="cuda") for _ in range(5)]
        high = torch.ones(8 * MiB, device="cuda")
        del high
        for _ in range(200):
            torch.ones(MiB, device="cuda")
        assert len(ledger._entries) <= 2 * len(kept) + 12
        assert sum(ledger.at_the_peak().values()) == ledger.peak == 4 * 13 * MiB
        assert ledger.traffic == 4 * 213 * MiB
