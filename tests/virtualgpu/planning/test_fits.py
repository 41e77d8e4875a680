"""Which GPU it fits on, and the largest batch: held against runs that really run out of memory."""

import dataclasses

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.gpus.specs import SPECS
from virtualgpu.planning import plan, planner
from virtualgpu.planning.largest_batch import MOST, Stop, Trial, search

from . import steps
from .steps import MIB


@pytest.fixture
def small(monkeypatch):
    """Make the T4 of the plans one of a few MiB."""

    def make(mib):
        spec = dataclasses.replace(SPECS["T4"], memory_bytes=mib * MIB)
        monkeypatch.setattr(planner, "SPECS", {**SPECS, "T4": spec})
        return spec

    return make


def runs(build, batch, spec):
    """Whether four steps run on a virtual GPU with `spec`."""
    scope = VirtualGPU(spec.name, compute=False)
    scope.spec = spec
    try:
        with scope:
            step = build(batch)
            for _ in range(4):
                step()
    except torch.OutOfMemoryError:
        return False
    return True


def test_too_large_for_a_t4_and_not_for_an_a100():
    def build(batch):
        return steps.mlp(batch, width=8192, depth=12)

    t4, a100 = plan(build, 512, "T4"), plan(build, 512, "A100-40")
    assert not t4.fits
    assert t4.free < 0 < a100.free
    assert a100.fits
    # The T4's plan says what it would take, though it never had it.
    assert t4.peak_allocated == pytest.approx(a100.peak_allocated, rel=0.02)
    assert sum(t4.categories.values()) == t4.peak_allocated
    assert (t4.fits_on["T4"], t4.fits_on["H100"]) == (False, True)
    assert (a100.fits_on["T4"], a100.fits_on["A100-40"]) == (False, True)
    assert "does not fit on a T4" in str(t4)


def test_a_gpu_between_allocated_and_reserved_is_left_open():
    plain = plan(steps.mlp, 8192, "T4")
    between = (plain.peak_allocated + plain.peak_reserved) // 2 + plain.context
    measured = type("", (), {"in_use": plain.total, "highest": plain.peak_allocated, "context": plain.context})
    answers = [
        planner._fits(measured, dataclasses.replace(SPECS["L4"], memory_bytes=nbytes))
        for nbytes in (plain.total, between, plain.peak_allocated + plain.context - 1)
    ]
    assert answers == [True, None, False]


def test_short_of_memory_the_allocator_gives_back_what_it_can(small):
    def build(batch):
        def step():
            for mib in (200, 300):  # a block of 200 MiB is of no use for 300
                torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

        return step

    small(300 + 400)
    found = plan(build, 1, "T4")
    assert found.fits
    assert found.peak_reserved == 300 * MIB
    small(300 + 250)
    assert not plan(build, 1, "T4").fits


@pytest.mark.parametrize(("build", "first"), [(steps.mlp, 1), (steps.mlp, 10**6), (steps.gan, 1000), (steps.tied, 16)])
def test_the_largest_batch_against_trying_them(build, first, small):
    spec = small(300 + 640)
    found = plan(build, first, "T4", largest=True)
    assert found.largest_batch > 1
    assert runs(build, found.largest_batch, spec)
    assert not runs(build, found.largest_batch + 1, spec)
    assert found.tried[found.largest_batch] is not found.tried[found.largest_batch + 1]
    assert len(found.tried) < 30
    assert f"batch {found.largest_batch:,}" in str(found)


def test_no_batch_fits(small):
    small(310)
    found = plan(steps.mlp, 4, "T4", largest=True)
    assert found.largest_batch == 0
    assert not any(found.tried.values())


def test_a_build_that_ignores_its_argument_is_found_out():
    found = plan(lambda batch: steps.mlp(32), 1, "T4", largest=True)
    assert found.largest_batch is None
    assert "build seems not to use its argument" in found.notes[-1]
    assert len(found.tried) < 8


# -- the search, with made-up GPUs -----------------------------------------------------------------------------------


def linear(fixed, each, room, slack=0.0):
    def trial(batch):
        allocated = fixed + each * batch
        return Trial(allocated <= room, allocated, int(allocated * (1 + slack)), allocated)

    return trial


@pytest.mark.parametrize("first", [1, 7, 500, 10**7])
@pytest.mark.parametrize("slack", [0, 0.15])
@pytest.mark.parametrize(("fixed", "each"), [(0, 1), (10**6, 3), (10**9, 10**6), (5, 10**9 - 5), (10**9, 1)])
def test_search_where_memory_grows_evenly(first, slack, fixed, each):
    room = 10**9
    found = search(linear(fixed, each, room, slack), first, room)
    assert found.batch == (room - fixed) // each
    assert found.note == ""
    assert len(found.tried) < 60


def test_search_where_it_does_not():
    def trial(batch):  # an even batch has a better kernel
        taken = batch * 10 + (15 if batch % 2 else 0)
        return Trial(taken <= 1000, taken, taken, taken)

    found = search(trial, 1, 1000)
    assert trial(found.batch).fits
    assert not trial(found.batch + 1).fits
    assert found.batch == 100 or "does not grow evenly" in found.note


def test_search_ends_where_a_trial_cannot_be_made():
    def trial(batch):
        if batch > 1000:
            raise Stop("the host is full")
        return Trial(True, 7, 7, batch)

    found = search(trial, 1, 10)
    assert found.batch is None
    assert "the host is full" in found.note


def test_search_ends_where_everything_fits():
    found = search(lambda batch: Trial(True, 7, 7, batch), 1, 10)
    assert found.batch is None
    assert max(found.tried) < MOST
    assert "were not tried" in found.note


def test_the_host_is_not_filled(monkeypatch):
    from virtualgpu.planning import host_limit

    taken = iter([10**9, 3 * 10**9])
    monkeypatch.setattr(host_limit, "peak_rss", lambda: next(taken))
    memory = host_limit.HostMemory()
    memory.check(10**9)  # nothing is known yet
    memory.note(100)
    memory.check(10)
    with pytest.raises(Stop, match="make the data on the GPU"):
        memory.check(10**7)


def test_other_reasons_for_growth_do_not_count(monkeypatch):
    from virtualgpu.planning import host_limit

    taken = iter([10**9, 10**9 + 50 * MIB])  # a module was imported, say
    monkeypatch.setattr(host_limit, "peak_rss", lambda: next(taken))
    memory = host_limit.HostMemory()
    memory.note(1)
    memory.check(10**9)
