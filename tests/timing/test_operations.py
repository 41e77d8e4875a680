"""The operations of one call: known times, bytes, FLOPs and bounds; PyTorch's profiler beside the clock."""

import pytest
import torch

from gpulab import timing
from gpulab.timing import operation_table, recording
from virtualgpu.gpu import VirtualGPU
from virtualgpu.readings import counters


def by_name(found):
    return {row.name: row for row in found}


def profiled(function, monkeypatch):
    """What a real GPU's call does, with PyTorch's profiler on a virtual one."""
    gpu = counters.one_gpu(None, "here")._replace(scope=None)
    monkeypatch.setattr(operation_table, "record", lambda function, device, who: recording._profiled(function, gpu))
    return timing.operations(function)


def test_each_operation_has_its_time_bytes_flops_and_bound(shapes):
    a = torch.empty(4096, 4096, device="cuda")
    big = torch.empty(64 * 2**20, device="cuda")
    small = torch.empty(4, device="cuda")
    sent = torch.empty(2**20)

    def call():
        a @ a
        big.add_(1)
        small.sin()
        small.sin()
        sent.to("cuda")

    timer = shapes.devices[0].timer
    busy = timer.busy
    found = timing.operations(call)
    rows = by_name(found)
    kernels_ms = (timer.busy - busy) * 1e3
    assert [row.name for row in found] == ["mm", "add_", "copy to GPU, pageable", "sin"]
    assert found.ms == pytest.approx(kernels_ms + rows["copy to GPU, pageable"].ms)
    assert sum(row.share for row in found) == pytest.approx(1)
    assert (rows["mm"].flops, rows["mm"].bound, rows["mm"].calls) == (2 * 4096**3, "compute", 1)
    assert (rows["add_"].bytes, rows["add_"].bound) == (2 * 4 * 64 * 2**20, "memory")
    assert (rows["sin"].calls, rows["sin"].bound) == (2, "launch")
    assert (rows["copy to GPU, pageable"].bytes, rows["copy to GPU, pageable"].bound) == (4 * 2**20, "link")


def test_the_table_says_source_and_units_and_sums_up_the_rest(shapes):
    x = torch.empty(2**20, device="cuda")
    found = timing.operations(lambda: (x + x, x.sin(), x.cos(), x.sum()), top=2)
    head, names, first, _, rest = str(found).splitlines()
    assert head == f"operations of one call: {found.ms:.3f} ms on cuda:0 (virtual, from its clock)"
    assert names.split() == ["ms", "share", "calls", "GFLOP", "MB", "bound", "by", "operation"]
    assert first.split()[0] == f"{found.rows[0].ms:.3f}"
    assert rest.endswith("2 more")
    assert rest.split()[2] == "2"
    assert len(found) == len(list(found)) == 4
    assert repr(found) == str(found)


def test_the_times_do_not_hang_on_what_was_queued_before(shapes):
    x = torch.empty(2**24, device="cuda")
    alone = timing.operations(lambda: x.sin()).ms
    for _ in range(5):
        x.cos()
    assert timing.operations(lambda: x.sin()).ms == pytest.approx(alone)


def test_another_gpus_work_is_not_in_it(two_gpus):
    x, y = (torch.empty(2**20, device=f"cuda:{n}") for n in range(2))
    found = timing.operations(lambda: (x.sin(), y.cos()), device="cuda:1")
    assert [row.name for row in found] == ["cos"]
    assert found.recording.device == "cuda:1"


def test_pytorchs_profiler_gives_the_same_operations(monkeypatch):
    with VirtualGPU("T4", compute=False) as scope:
        scope.devices[0].timer.budget = None
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
        x = torch.empty(4096, 512)

        def step():
            model(x.cuda()).sum().backward()
            model.zero_grad()

        step()
        clocked = timing.operations(step)
        found = profiled(step, monkeypatch)
    assert [(row.name, row.calls) for row in found] == [(row.name, row.calls) for row in clocked]
    assert [row.ms for row in found] == pytest.approx([row.ms for row in clocked])
    assert {row.bytes for row in found} == {None}
    assert {row.bound for row in found} == {""}
    flops = {row.name: row.flops for row in found}
    assert flops["addmm"] == by_name(clocked)["addmm"].flops == 2 * (2 * 4096 * 512 * 512)
    head, names, *_ = str(found).splitlines()
    assert head.endswith("ms on cuda:0 (measured by torch.profiler)")
    assert names.split() == ["ms", "share", "calls", "GFLOP", "operation"]


def test_a_call_without_work_on_the_gpu(gpu):
    found = timing.operations(lambda: None)
    assert (found.ms, len(found)) == (0, 0)
    assert str(found).endswith(": no kernel was seen")


def test_exceptions_pass_and_wrong_inputs_are_told(gpu):
    with pytest.raises(KeyError, match="mine"):
        timing.operations(lambda: {}["mine"])
    with pytest.raises(TypeError, match=r"write timing\.operations\(lambda: step\(x\)\)"):
        timing.operations(torch.ones(3))
    with pytest.raises(ValueError, match="top must be a whole number from 1 on, not 0"):
        timing.operations(lambda: None, top=0)
    with pytest.raises(ValueError, match="cuda:3 does not exist"):
        timing.operations(lambda: None, device="cuda:3")


def test_without_a_gpu(no_gpu):
    with pytest.raises(RuntimeError, match=r"timing\.operations needs a GPU, and there is no GPU here"):
        timing.operations(lambda: None)
