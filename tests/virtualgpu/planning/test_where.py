"""The line at which the peak is reached."""

import importlib
import sys
import textwrap

import pytest
import torch

from virtualgpu.planning import plan
from virtualgpu.planning.peak_line import Line, Where

SCRIPT = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = torch.nn.Linear(width, width)

    def forward(self, x):
        h = self.a(x)
        h = h * torch.sigmoid(h)  # LARGE
        return h.sum(-1)

def build(batch, width=64, spike=""):
    net = Net(width).to("cuda")
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        y = net(torch.randn(batch, width, device="cuda"))
        if spike == "forward":
            (y[:, None] * torch.ones(2000, device="cuda"))  # SPIKE
        loss = y.mean()
        loss.backward()  # BACKWARD
        if spike == "clip":
            with torch.no_grad():
                y[:, None].expand(-1, 5000).exp()  # CLIP
        optimizer.step()  # STEP
        optimizer.zero_grad()

    return step
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """`imported(name, source, folder)`: a module of that source."""

    def imported(name, source, folder=""):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path / folder)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return imported


@pytest.fixture
def script(imported):
    return imported("train_net", SCRIPT)


def line_of(mark):
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_in_the_forward_pass(script):
    found = plan(lambda batch: script.build(batch, spike="forward"), 4096, "T4", where=True).where
    assert (found.phase, found.operation) == ("forward", "aten.mul")
    assert (found.line.number, found.line.function) == (line_of("SPIKE"), "step")
    assert found.line.source.endswith("# SPIKE")
    assert found.line.file.endswith("train_net.py")
    assert str(found).startswith("in the forward pass (aten.mul)\n  train_net.py, line ")
    assert (found.forward, found.library) == (None, None)


def test_in_the_backward_pass_with_the_line_of_the_forward_pass(script):
    found = plan(script.build, 65536, "T4", where=True).where
    assert (found.phase, found.line.number) == ("backward", line_of("BACKWARD"))
    assert found.forward.number == line_of("LARGE")
    assert found.node == "MulBackward0"
    assert "backward of train_net.py" in str(found)


def test_in_the_optimizer(script):
    found = plan(lambda batch: script.build(batch, width=2048), 1, "T4", where=True).where
    assert (found.phase, found.line.number) == ("optimizer", line_of("STEP"))
    assert found.operation.startswith("aten._foreach_")


def test_elsewhere(script):
    found = plan(lambda batch: script.build(batch, spike="clip"), 65536, "T4", where=True).where
    assert (found.phase, found.line.number, found.operation) == ("no_grad", line_of("CLIP"), "aten.exp")


def test_within_a_library_both_lines_are_named(imported):
    source = "def grow(x):\n    return x.expand(1000, -1).exp()  # here\n"
    a_library = imported("a_library", source, "site-packages")

    def build(batch):
        x = torch.ones(batch, device="cuda")

        def step():
            a_library.grow(x)  # called

        return step

    found = plan(build, 1000, "T4", where=True).where
    assert found.line.source == "a_library.grow(x)  # called"
    assert (found.library.number, found.library.source) == (2, "return x.expand(1000, -1).exp()  # here")
    assert "within it a_library.py, line 2" in str(found)


def test_a_step_that_is_a_library_s_has_its_line(imported):
    line = "torch.ones(9, device='cuda', requires_grad=True).exp().sum().backward()"
    whole_step = imported("whole_step", f"import torch\n\ndef step():\n    {line}\n", "site-packages")
    found = plan(lambda batch: whole_step.step, 1, "T4", where=True).where
    assert found.line.number == 4
    assert found.library is None


def test_it_is_looked_for_on_request_only(script):
    assert plan(script.build, 64, "T4").where is None


def test_a_step_that_allocates_nothing_has_no_such_line():
    assert plan(lambda batch: lambda: None, 1, "T4", where=True).where is None


def test_the_search_changes_no_number(script):
    import dataclasses

    plain, searched = (plan(script.build, 4096, "T4", where=where) for where in (False, True))
    assert dataclasses.replace(searched, where=None) == plain


def test_a_cell_of_a_notebook_has_no_file_name_worth_showing():
    cell = Line("/tmp/ipykernel_4711/93.py", 3, "step", "loss.backward()")
    assert str(cell) == "the cell, line 3: loss.backward()"
    unknown = Where("backward", None, None)
    assert str(unknown) == "in the backward pass"
    assert textwrap.dedent(str(Where("forward", "aten.mm", cell))) == (
        "in the forward pass (aten.mm)\n  the cell, line 3: loss.backward()"
    )
