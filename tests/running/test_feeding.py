"""What a run waits for its data: counted in `DataLoader.__next__`, of the main thread, each moment once."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpulab.running import feeding
from gpulab.running.feeding import Feeding
from gpulab.running.steps import StepMarks
from gpulab.virtual.gpu import VirtualGPU


class Clock:
    """`time` for the module: it goes on when a test says so."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(feeding, "time", clock)
    monkeypatch.setattr("gpulab.running.steps.time", clock)
    return clock


@pytest.fixture
def fed():
    found = Feeding()
    yield found
    found.end()


class Slow(Dataset):
    """Each sample takes a second of the test's clock."""

    def __init__(self, clock, length=8):
        self.clock, self.length = clock, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.clock.now += 1
        return torch.tensor(float(index))


def test_loading_counts_and_what_the_loop_does_does_not(clock, fed):
    for _ in DataLoader(Slow(clock), batch_size=2):
        clock.now += 100
    assert (fed.seconds, fed.batches) == (8, 4)


def test_it_ends(clock, fed):
    fed.end()
    list(DataLoader(Slow(clock)))
    assert (fed.seconds, fed.batches) == (0, 0)


def test_a_loader_within_a_loader_counts_once(clock, fed):
    class Outer(Slow):
        def __getitem__(self, index):
            return torch.stack(list(DataLoader(Slow(self.clock, 3)))).sum()

    list(DataLoader(Outer(clock, 2)))
    assert (fed.seconds, fed.batches) == (6, 2)


def test_an_error_in_the_data_set_passes_and_the_time_counts(clock, fed):
    class Broken(Slow):
        def __getitem__(self, index):
            super().__getitem__(index)
            raise LookupError("no such file")

    with pytest.raises(LookupError):
        next(iter(DataLoader(Broken(clock))))
    assert (fed.seconds, fed.batches) == (1, 0)
    list(DataLoader(Slow(clock, 2)))  # and the next loader is counted again
    assert (fed.seconds, fed.batches) == (3, 2)


def test_what_another_thread_loads_ahead_does_not_count(clock, fed):
    thread = threading.Thread(target=lambda: list(DataLoader(Slow(clock))))
    thread.start()
    thread.join()
    assert (fed.seconds, fed.batches) == (0, 0)


def steps_of(loop, clock):
    with VirtualGPU("T4"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, device="cuda"))])
        found = Feeding()
        marks = StepMarks(lambda: Meter(), feeding=found)
        try:
            loop(optimizer)
        finally:
            marks.end()
            found.end()
        (steps,) = marks.steps()
        return steps


class Meter:
    def reading(self, device):
        return 0.0, 0

    def seconds(self, marks):
        return marks

    def between(self, device, marks):
        return None

    def busy(self, marks):
        return None


def test_the_share_is_of_the_time_from_the_first_step_to_the_last(clock):
    def loop(optimizer):
        clock.now += 1000  # before the first step nothing counts
        for _ in DataLoader(Slow(clock), batch_size=2):  # 2 s a batch, 6 s a step
            clock.now += 6
            optimizer.step()

    steps = steps_of(loop, clock)
    assert (steps.count, steps.waited, steps.waited_share) == (4, 2, 0.25)


def test_a_loop_that_loads_only_to_evaluate_is_not_told_that_it_waits_for_nothing(clock):
    def loop(optimizer):
        for _ in range(3):
            clock.now += 1
            optimizer.step()
        list(DataLoader(Slow(clock)))

    steps = steps_of(loop, clock)
    assert (steps.waited, steps.waited_share) == (None, None)


def test_a_script_with_workers_gets_the_line(run):
    done = run("workers", "fork")
    (steps,) = done.report.steps
    assert 0 < steps.waited_share < 1
    assert "  waited for data   " in done.text
    assert "waited for data" not in run("loop").text  # it has no loader
