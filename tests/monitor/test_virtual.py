"""Readings of the virtual GPUs: from their books, labelled, and without changing a number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from courselib.patience import HANG_SECONDS
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab import monitor
from gpulab.monitor.virtual import VirtualReader
from virtualgpu.gpus.specs import spec
from virtualgpu.scope import in_force


class FakeClock:
    """One GPU: at `seen` seconds it has been given `given` seconds of kernels, and needs `left` more for them."""

    def __init__(self) -> None:
        self.at = self.given = self.left = self.host = 0.0

    def seen(self) -> float:
        return self.at

    def busy(self, index: int) -> float:
        return self.given

    def now(self, index: int) -> float:
        return self.host + self.left


def fake_gpu(clock: FakeClock) -> Any:
    allocator = SimpleNamespace(memory_info=lambda: (60, 100))
    device = SimpleNamespace(lock=threading.Lock(), allocator=allocator, spec=SimpleNamespace(product="Tesla T4"))
    return SimpleNamespace(clock=clock, devices=[device])


def utilization(reader: VirtualReader, gpu: Any) -> float | None:
    (reading,) = reader.read(gpu)[1]
    return reading.utilization


def test_utilization_is_what_ran_over_what_passed() -> None:
    clock, reader = FakeClock(), VirtualReader()
    gpu = fake_gpu(clock)
    assert utilization(reader, gpu) is None, "no time has been looked at"
    clock.at, clock.given = 2.0, 0.5
    assert utilization(reader, gpu) == 25
    assert utilization(reader, gpu) == 25, "no time has passed, so nothing new is known"
    clock.at = 4.0
    assert utilization(reader, gpu) == 0


def test_what_is_queued_has_not_run_yet() -> None:
    clock, reader = FakeClock(), VirtualReader()
    gpu = fake_gpu(clock)
    utilization(reader, gpu)
    clock.at, clock.given, clock.left = 1.0, 10.0, 9.0
    assert utilization(reader, gpu) == 100
    clock.at, clock.left = 5.0, 7.0
    assert utilization(reader, gpu) == 50


def test_another_clock_begins_anew() -> None:
    reader = VirtualReader()
    one, two = FakeClock(), FakeClock()
    utilization(reader, fake_gpu(one))
    one.at = two.at = 1.0
    assert utilization(reader, fake_gpu(two)) is None


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(-9, 9)), max_size=9))
def test_utilization_is_a_percentage_whatever_is_queued_and_put_off(moves: list[tuple[float, float, float]]) -> None:
    clock, reader = FakeClock(), VirtualReader()
    gpu = fake_gpu(clock)
    utilization(reader, gpu)
    for passed, given_, left in moves:
        clock.at += passed
        clock.given += given_
        clock.left = max(0.0, clock.left + left)
        busy = utilization(reader, gpu)
        assert busy is None or 0 <= busy <= 100


def test_used_memory_is_what_the_driver_would_report() -> None:
    with gpulab.VirtualGPU("T4", count=2, compute=False):
        kept = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda:1")
        found = monitor.read()
        for index, reading in enumerate(found):
            free, total = torch.cuda.mem_get_info(index)
            assert (reading.used_bytes, reading.total_bytes) == (total - free, total)
        assert found[1].used_bytes == found[0].used_bytes + kept.nbytes
        assert [(reading.numbers, reading.device, reading.name) for reading in found] == [
            ("virtual", "cuda:0", "Tesla T4"),
            ("virtual", "cuda:1", "Tesla T4"),
        ]
        assert (found[0].temperature_c, found[0].power_w, found[0].energy_j) == (None, None, None)
        assert "virtual" in repr(found)
        assert "not modelled" in repr(found)


def test_a_gpu_that_works_is_busy_and_its_neighbour_is_not() -> None:
    with gpulab.VirtualGPU("T4", count=2, compute=False):
        x = torch.empty(4096, 4096, device="cuda:1")
        monitor.read()
        for _ in range(400):
            x @ x
        torch.cuda.synchronize(1)
        idle, busy = monitor.read()
    # 2 x 4096**3 operations at 8.1 * 10**12 a second are 17 ms each, 7 s in all, and no host is that slow
    assert idle.utilization == 0
    assert busy.utilization is not None
    assert busy.utilization > 50


def test_a_reading_launches_nothing_and_moves_no_clock_and_no_count() -> None:
    def books() -> tuple[Any, ...]:
        clock = in_force.current.clock  # type: ignore[union-attr]
        return (
            clock.host,
            clock.now(0),
            clock.busy(0),
            clock.kernels(0),
            clock.waited,
            dict(torch.cuda.memory_stats()),
            torch.cuda.mem_get_info(),
        )

    with gpulab.VirtualGPU("T4", compute=False):
        x = torch.empty(1024, 1024, device="cuda")
        y = x @ x
        del y
        before = books()
        between = books()
        for _ in range(3):
            monitor.read()
        after = books()
    # what looking into the books costs by itself, twice
    for one, two, three in zip(before[:5], between[:5], after[:5], strict=True):
        assert three - two == pytest.approx(two - one, abs=1e-12)
    assert before[5:] == after[5:]


def deterministic_run() -> tuple[float, ...]:
    """A training step's modelled times, which are the same every time."""
    clock = in_force.current.clock  # type: ignore[union-attr]
    net = torch.nn.Linear(512, 512, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(30):
        net(torch.ones(64, 512, device="cuda")).sum().backward()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end), clock.host, clock.busy(0), clock.waited, float(torch.cuda.max_memory_allocated())


def test_watching_changes_no_number_of_what_it_watches() -> None:
    runs: list[tuple[float, ...]] = []
    for watched in (False, True, True):
        with gpulab.VirtualGPU("T4", compute=False):
            if watched:
                with monitor.Watch(0.0005, None) as seen:
                    runs.append(deterministic_run())
            else:
                runs.append(deterministic_run())
    assert len(seen.samples) > 10
    assert runs[0] == runs[1] == runs[2]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_watch_follows_the_gpu_that_is_in_force() -> None:
    with monitor.watch(every=0.05) as seen:
        with gpulab.VirtualGPU("T4", count=2, compute=False):
            until(lambda: [one.name for one in seen.samples[-1].readings] == ["Tesla T4", "Tesla T4"])
        with gpulab.VirtualGPU("A100-40", compute=False):
            until(lambda: [one.name for one in seen.samples[-1].readings] == [spec("A100-40").product])
    kinds = [(gpu.index, gpu.name) for gpu in seen.summary().gpus if gpu.numbers == "virtual"]
    assert kinds == [(0, "Tesla T4"), (1, "Tesla T4"), (0, spec("A100-40").product)]
    times = [sample.at_s for sample in seen.samples]
    assert times == sorted(times)


def test_a_scope_that_ends_while_it_is_watched_leaves_nothing_behind() -> None:
    seen = monitor.watch(every=0.05)
    with gpulab.VirtualGPU("T4", compute=False):
        seen.start()
        torch.empty(8, device="cuda")
    seen.stop()
    assert seen.summary().gpus[0].numbers == "virtual"
    assert not torch.cuda.is_available() or torch.cuda.is_available.__module__ == "torch.cuda"


def test_the_virtual_clock_and_not_this_machines_is_the_axis() -> None:
    with gpulab.VirtualGPU("T4", compute=False):
        x = torch.empty(8192, 8192, device="cuda")
        clock = in_force.current.clock  # type: ignore[union-attr]
        with monitor.watch(every=0.05) as seen:
            before = clock.host
            for _ in range(40):
                x @ x
            torch.cuda.synchronize()
            modelled = clock.host - before
    # 40 products of 0.14 s each, in far less real time; an onlooker does not know a pause's length before it has ended.
    assert seen.summary().seconds >= 0.99 * modelled > 1
    (gpu,) = seen.summary().gpus
    assert gpu.mean_utilization is not None
    assert gpu.mean_utilization > 50
