"""What a run waits for its data: counted in `DataLoader.__next__`, of the main thread, each moment once."""

import contextlib
import json
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from virtualgpu.gpu import VirtualGPU
from virtualgpu.running import loader_waits
from virtualgpu.running.loader_waits import LoaderWaits
from virtualgpu.running.steps import StepMarks

from .starting import start


class Clock:
    """`time` for the module: it goes on when a test says so."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loader_waits, "time", clock)
    return clock


@pytest.fixture
def fed():
    found = LoaderWaits()
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
        found = LoaderWaits()
        marks = StepMarks(lambda: Meter(clock), waits=found)
        try:
            loop(optimizer)
        finally:
            marks.end()
            found.end()
        (steps,) = marks.steps()
        return steps


class Meter:
    counts_host = True

    def __init__(self, clock):
        self.clock = clock

    def reading(self, device):
        return self.clock.now, 0

    def mark(self, device):
        return self.clock.now

    def python(self, marks):
        return None

    def aside(self):
        return contextlib.nullcontext()

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


def test_a_script_with_workers_waits_for_data_in_a_part_of_its_step(run):
    done = run("workers", "fork")
    (steps,) = done.report.steps
    assert 0 <= steps.waited_share < 1  # two workers are as quick as the step
    assert steps.workers == 2
    assert dict(steps.parts).keys() == {"data", "forward", "backward", "optimizer"}
    (loop,) = run("loop").report.steps
    assert (loop.workers, dict(loop.parts)["data"]) == (0, 0)  # it has no loader


@pytest.mark.parametrize(
    ("workers", "seconds", "step", "waits"),
    [
        (1, 1.0, 0.25, 0.75),  # a worker gives a batch every second
        (2, 1.0, 0.25, 0.25),  # two of them every half
        (4, 1.0, 0.25, 0.0),  # and four as many as are asked for
        (4, 0.0, 0.25, 0.0),
    ],
)
def test_a_loop_waits_on_the_virtual_clock_for_workers_of_the_measured_speed(workers, seconds, step, waits):
    times = torch.tensor([[10 * seconds, 10.0]] * workers, dtype=torch.float64)
    found, now, waited = loader_waits._Workers(times, prefetch=2), 0.0, []
    found.last = now
    for _ in range(40):
        now += step
        waited.append(found.wait(now))
        now += waited[-1]
        found.last = now
    assert waited[20:] == pytest.approx([waits] * 20)


def test_what_workers_load_ahead_is_there_after_a_long_step():
    found = loader_waits._Workers(torch.tensor([[1.0, 1.0]] * 2, dtype=torch.float64), prefetch=2)
    found.last = 0.0
    assert found.wait(100.0) == 0  # four batches, and no more
    found.last = 100.0
    assert [found.wait(100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.5, 0.5])


def test_another_clock_that_is_behind_makes_no_longer_wait():
    found = loader_waits._Workers(torch.tensor([[1.0, 1.0]], dtype=torch.float64), prefetch=2)
    found.last = 1000.0
    assert found.wait(1.0) == 1.0


LOADING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.zeros(64)

if __name__ == "__main__":
    layer = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    workers, context = int(sys.argv[1]), sys.argv[2] if sys.argv[1:][1:] else None
    loader = DataLoader(Slow(), 2, num_workers=workers, multiprocessing_context=context)
    for batch in loader:
        time.sleep(float(sys.argv[3]) if sys.argv[3:] else 0.0)
        layer(batch.cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("arguments", [("0",), ("1", "fork"), ("1", "spawn")])
def test_loading_is_compared_with_the_step_of_the_gpu(arguments, tmp_path):
    (tmp_path / "loading.py").write_text(LOADING)
    done = start("--json", tmp_path / "r.json", tmp_path / "loading.py", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    (steps,) = report["steps"]
    assert steps["waited"] > 0.05  # two samples of 50 ms, less what the loop does meanwhile
    assert steps["median"] > 0.08  # on a busy machine a sample comes late, and the next the sooner after it
    assert steps["busy_share"] < 0.1
    assert steps["waited_share"] > 0.5
    assert any(hint.startswith("The loop waits for data ") for hint in report["hints"])


def test_workers_that_are_fast_enough_are_not_blamed_for_a_slow_host(run, tmp_path):
    (tmp_path / "loading.py").write_text(LOADING)
    steps = run(tmp_path / "loading.py", "1", "fork", "0.5").report.steps[0]
    assert steps.python > 0.4
    assert steps.waited < 0.2
