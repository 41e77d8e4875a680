"""Marks of optimizers: counts, medians, growth; on a clock of the test's own."""

import contextlib
import itertools

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from virtualgpu.clock import clock as clocks
from virtualgpu.gpu import VirtualGPU
from virtualgpu.running.memory_watch import MemoryWatch
from virtualgpu.running.meters import VirtualMeter
from virtualgpu.running.source_lines import SourceLines
from virtualgpu.running.steps import StepMarks


class Meter:
    """A clock and a counter that go on by what the test says."""

    counts_host = False

    def __init__(self, times, held=None):
        self.times, self.held = iter(times), iter(held or itertools.repeat(100))

    def reading(self, device):
        self.now = next(self.times)
        return self.now, next(self.held)

    def mark(self, device):
        return self.now

    def seconds(self, marks):
        return marks

    def between(self, device, marks):
        return None

    def busy(self, marks):
        return 0.25

    def python(self, marks):
        return None

    def aside(self):
        return contextlib.nullcontext()


@pytest.fixture
def parameters():
    with VirtualGPU("T4"):
        yield [torch.nn.Parameter(torch.zeros(3, 4, device="cuda"))]


def marked(meter, optimizer, steps):
    marks = StepMarks(lambda: meter)
    try:
        for _ in range(steps):
            optimizer.step()
    finally:
        marks.end()
    optimizer.step()  # unseen
    return marks.steps()


def test_the_median_is_of_the_time_from_step_to_step(parameters):
    (steps,) = marked(Meter([0, 5, 6, 7, 9]), torch.optim.SGD(parameters), 5)
    assert (steps.optimizer, steps.count, steps.parameters, steps.device) == ("SGD", 5, 12, "cuda:0")
    assert steps.median == 1.5  # of 5, 1, 1, 2
    assert steps.busy_share == 0.25


def test_one_step_has_no_interval(parameters):
    (steps,) = marked(Meter([3]), torch.optim.Adam(parameters), 1)
    assert (steps.count, steps.median, steps.busy_share, steps.growth) == (1, None, None, 0)


@pytest.mark.parametrize(
    ("held", "growth"),
    [
        ([0, 90, 100, 110, 120, 130], 10),
        ([0, 90, 100, 110, 110, 130], 0),  # one step without
        ([0, 90, 100, 110, 105, 130], 0),
        ([50, 60, 70, 80], 0),  # too few to say
        ([900, 500, 100, 101, 102, 106], 2),  # what goes on before the third step is not counted
        ([0, 0, *(100 * (step // 5) for step in range(20))], 18),  # kept at every fifth step
        ([0, 0, *(1000 + 7 * step + 300 * (step % 3) for step in range(30))], 7),  # and batches of different lengths
        ([0, 0, *[100] * 10, *[500] * 10], 0),  # allocated once, and kept
        ([0, 0, 100, 300, 200, 500, 400, 800, *[800] * 12], 0),  # it grew at first, and does not any more
        ([0, 0, *(100 + (step * 7919) % 50 for step in range(40))], 0),  # up and down
    ],
)
def test_growth_is_a_trend_from_the_third_step_on(parameters, held, growth):
    (steps,) = marked(Meter(itertools.count(), held), torch.optim.SGD(parameters), len(held))
    assert steps.growth == growth


@pytest.mark.parametrize("named", [False, True])
def test_a_closure_within_an_optimizers_step_is_forward_and_backward(parameters, named):
    """As Lightning and LBFGS call it."""

    class Reads(Meter):
        now = 0.0

        def reading(self, device):
            return self.now, 100

    meter = Reads(())
    marks, optimizer = StepMarks(lambda: meter), torch.optim.SGD(parameters)

    def closure():
        meter.now += 3
        marks.passes("backward", True)
        meter.now += 5
        marks.passes("backward", False)
        return 7.0

    for _ in range(3):
        loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
    marks.end()
    (steps,) = marks.steps()
    assert dict(steps.parts) == {"data": 0, "forward": 3, "backward": 5, "optimizer": 0}
    assert loss == 7.0


def test_growth_of_the_optimizers_own_state_is_known():
    with VirtualGPU("T4"):
        weight = torch.nn.Parameter(torch.randn(1024, device="cuda"))
        keeping = torch.optim.LBFGS([weight], max_iter=1, lr=0.1)
        held = itertools.count(100, 10)
        marks = StepMarks(lambda: Meter(itertools.count(), held))

        def closure():
            keeping.zero_grad()
            loss = weight.pow(4).sum()
            loss.backward()
            return loss

        for _ in range(10):
            keeping.step(closure)
        marks.end()
    (steps,) = marks.steps()
    assert (steps.growth, steps.state_growth) == (
        10,
        2 * 4096 + 8,
    )  # a direction, a difference of gradients, two numbers


def test_what_watches_takes_none_of_the_host_s_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clocks, "real", lambda: now[0])
    monkeypatch.setattr(clocks, "seconds_without_core", lambda: 0.0)

    def pass_(seconds):
        now[0] += seconds

    with VirtualGPU("T4", counts_host=True) as scope:
        watches = [MemoryWatch(device, SourceLines(__file__.rpartition("/")[0])) for device in scope.devices]
        meter = VirtualMeter(scope, watches)
        weight = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.SGD([weight])
        marks = StepMarks(lambda: meter, lambda *_: pass_(5.0))  # both before a step and after it
        before = scope.clock.perf_counter()
        for _ in range(5):
            pass_(0.25)
            optimizer.step()
        assert scope.clock.perf_counter() - before == pytest.approx(5 * 0.25, rel=1e-3)
        (steps,) = marks.steps()
        marks.end()
    assert steps.median == pytest.approx(0.25, rel=1e-3)
    assert steps.python == pytest.approx(0.25, rel=1e-3)


def test_optimizers_are_told_apart_and_those_of_the_host_are_left_out(parameters):
    marks = StepMarks(lambda: Meter(itertools.count()))
    host = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    first, second = torch.optim.SGD(parameters), torch.optim.SGD(parameters)
    for optimizer in (first, host, second, first, first):
        optimizer.step()
    marks.end()
    assert [steps.count for steps in marks.steps()] == [3, 1]
    assert marks.elsewhere == 1


def test_a_step_that_the_scaler_skips_is_none(parameters):
    optimizer, scaler = torch.optim.SGD(parameters), torch.amp.GradScaler("cuda")
    marks = StepMarks(lambda: Meter(itertools.count()))
    for value in (1.0, float("inf"), 1.0):
        scaler.scale(parameters[0].sum()).backward()
        parameters[0].grad.mul_(value)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    marks.end()
    assert marks.steps()[0].count == 2


def test_without_a_gpu_nothing_is_marked():
    marks = StepMarks(lambda: None)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))]).step()
    marks.end()
    assert marks.steps() == ()


def test_a_step_is_split_into_its_phases(parameters):
    """Each phase takes a time of its own; a second optimizer's step counts as optimizer, within backward too."""

    class Ticking(Meter):
        now = 0.0

        def reading(self, device):
            return self.now, 100

    meter = Ticking([])
    first, second = torch.optim.SGD(parameters), torch.optim.SGD(parameters)
    marks = StepMarks(lambda: meter)
    hook = register_optimizer_step_pre_hook(lambda *_: setattr(meter, "now", meter.now + 5.0))
    for _ in range(4):
        meter.now += 1.0
        marks.passes("backward", True)
        meter.now += 20.0
        second.step()
        meter.now += 20.0
        marks.passes("backward", False)
        marks.passes("data", True)
        meter.now += 4.0
        marks.passes("data", False)
        meter.now += 2.0
        first.step()
    hook.remove()
    marks.end()
    steps = next(steps for steps in marks.steps() if steps.parts)
    assert dict(steps.parts) == {"data": 4.0, "forward": 3.0, "backward": 40.0, "optimizer": 10.0}
    assert steps.median == 57.0
