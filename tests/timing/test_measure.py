"""timing.measure and what it gives: the right times, from the right clock, said so, and clear refusals."""

import functools
import gc
import statistics
import time
import warnings

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpulab import timing
from virtualgpu.gpu import VirtualGPU

MIB = 2**20


def taken(*times_ms, **other):
    return timing.Timing(times_ms, **{"how": "CUDA events", "device": "cuda:0", "numbers": "measured"} | other)


def product(n=1024, device="cuda"):
    a = torch.randn(n, n, device=device)
    return lambda: a @ a


# -- what came out ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_median_and_spread_are_what_statistics_says(times):
    found = taken(*times)
    first, third = numpy.percentile(times, [25, 75])
    assert found.median_ms == statistics.median(times)
    assert found.quartiles_ms == pytest.approx((first, third))
    assert found.spread_ms == pytest.approx(third - first, rel=1e-6, abs=1e-6)
    assert found.relative_spread == found.spread_ms / found.median_ms
    assert found.min_ms == min(times)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (taken(4, 1, 3, 2, 5), "3.000 ms, median of 5 runs, half of them from 2.000 to 4.000 ms, unsteady: 67% apart"),
        (taken(0.41, 0.412, 0.413), "412.0 µs, median of 3 runs, half of them from 411.0 to 412.5 µs"),
        (taken(1500.0), "1.500 s, one run"),
        (taken(0.25, 0.25), "250.0 µs, median of 2 runs, all alike"),
        (taken(1, 1, 1, 1, 9), "1.000 ms, median of 5 runs, half of them alike"),
        (taken(0.0), "0.000 ms, one run"),
    ],
)
def test_it_is_told_in_one_line(found, line):
    assert str(found) == repr(found) == f"{line} (measured, CUDA events)"


def test_the_line_begins_with_the_label_and_ends_with_what_is_missing():
    found = taken(2.0, label="step", numbers="virtual", after_ms=0.5)
    assert str(found) == "step: 2.000 ms, one run (virtual, CUDA events); other streams went on for 500.0 µs more"


@pytest.mark.parametrize("times", [(), (float("nan"),), (-1.0,), (1.0, float("inf"))])
def test_times_that_are_none_are_refused(times):
    with pytest.raises(ValueError, match="times_ms must be one or more numbers from 0 on"):
        taken(*times)


# -- on the CPU ------------------------------------------------------------------------------------------------------


def test_every_call_is_prepared_and_the_warm_up_is_not_timed(no_gpu):
    calls = []
    found = timing.measure(lambda: calls.append("fn"), repeat=4, warm_up=2, setup=lambda: calls.append("setup"))
    assert calls == ["setup", "fn"] * 6
    assert len(found.times_ms) == 4
    assert (found.how, found.device, found.numbers) == ("host clock", "cpu", "measured")


def test_without_a_gpu_the_time_is_the_hosts_own(no_gpu):
    found = timing.measure(lambda: time.sleep(0.004), repeat=3, warm_up=0)
    assert found.min_ms >= 4


def test_preparing_is_not_timed(no_gpu):
    found = timing.measure(lambda: None, setup=lambda: time.sleep(0.3), repeat=3, warm_up=0)
    assert found.min_ms < 300  # the shortest of three


# -- on a GPU --------------------------------------------------------------------------------------------------------


def test_the_time_is_that_of_the_gpu_and_said_to_be_virtual(gpu):
    found = timing.measure(product(2048), repeat=2, warm_up=1)
    assert (found.how, found.device, found.numbers) == ("CUDA events", "cuda:0", "virtual")
    # 17 · 10⁹ operations at 8.1 · 10¹² a second are 2.1 ms at the very least, on any machine.
    assert 2.1 < found.median_ms < 5
    assert "(virtual, CUDA events)" in str(found)


def test_a_virtual_time_is_the_same_on_every_run():
    def run():
        with VirtualGPU("A100-40", compute=False):
            return timing.measure(product(), repeat=5).times_ms

    assert run() == run()


def test_the_work_queued_before_is_not_counted(shapes):
    short, long = product(64), product(4096)
    alone = timing.measure(short, repeat=3).median_ms
    assert timing.measure(short, repeat=3, setup=long).median_ms == pytest.approx(alone)


def test_a_call_that_uses_no_gpu_has_the_hosts_time(gpu):
    found = timing.measure(lambda: time.sleep(0.004), repeat=3, warm_up=0)
    assert found.min_ms >= 4
    assert (found.how, found.device, found.numbers) == ("host clock", "cpu", "measured")


def test_asked_for_the_host_it_shows_the_launch_only(shapes):
    long = product(16384)
    lie = timing.measure(long, repeat=3, device="cpu")
    assert (lie.how, lie.numbers) == ("host clock", "virtual")
    assert lie.median_ms < timing.measure(long, repeat=3).median_ms


def test_the_clock_of_each_gpu_can_be_read(two_gpus):
    other = product(4096, "cuda:1")
    there = timing.measure(other, repeat=3, device="cuda:1")
    assert there.device == "cuda:1"
    assert there.median_ms > 10 * timing.measure(other, repeat=3, device=0).median_ms
    with torch.cuda.device(1):
        assert timing.measure(other, repeat=3).median_ms == pytest.approx(there.median_ms)


def test_work_of_another_stream_is_told(shapes):
    work, side = product(4096), torch.cuda.Stream()

    def beside():
        with torch.cuda.stream(side):
            work()

    def waited():
        beside()
        torch.cuda.current_stream().wait_stream(side)

    whole = timing.measure(work, repeat=3)
    short, right = timing.measure(beside, repeat=3), timing.measure(waited, repeat=3)
    assert short.median_ms < whole.median_ms / 100
    assert short.after_ms == pytest.approx(whole.median_ms, rel=0.05)
    assert "other streams went on for" in str(short)
    assert right.median_ms == pytest.approx(whole.median_ms, rel=0.05)
    assert whole.after_ms == right.after_ms == 0
    with torch.cuda.stream(side):
        assert timing.measure(work, repeat=3).median_ms == pytest.approx(whole.median_ms)


def test_results_do_not_pile_up(shapes):
    timing.measure(lambda: torch.empty(MIB, dtype=torch.uint8, device="cuda"), repeat=10)
    assert torch.cuda.max_memory_allocated() == MIB
    assert torch.cuda.memory_allocated() == 0


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fn", "setup"])
def test_an_exception_passes_through_unchanged(gpu, where):
    mine = KeyError("mine")

    def fail():
        raise mine

    with pytest.raises(KeyError) as raised:
        timing.measure(**{"fn": lambda: None} | {where: fail})
    assert raised.value is mine
    assert timing.measure(product(8), repeat=1).median_ms > 0


def test_a_kernel_that_failed_is_not_timed(gpu):
    def fails():
        gpu.devices[0].fail("index out of bounds")

    with pytest.raises(torch.AcceleratorError):
        timing.measure(fails)
    gpu.devices[0].fault = None


async def coroutine():
    pass


def generator():
    yield


def takes_one(x):
    return x


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"fn": torch.zeros(3)}, TypeError, r"called before .* write timing.measure\(lambda: step\(x\)\)"),
        ({"fn": None}, TypeError, "fn must be a function without arguments, not None"),
        ({"fn": takes_one}, TypeError, r"missing a required argument: 'x'\); wrap it: .*lambda: takes_one\(x\)"),
        ({"fn": coroutine}, TypeError, "coroutine or generator function"),
        ({"fn": generator}, TypeError, "coroutine or generator function"),
        ({"fn": lambda: coroutine()}, TypeError, "fn gave a coroutine, whose body has not run"),
        ({"fn": lambda: generator()}, TypeError, r"fn gave a generator.*lambda: list\(batches\(\)\)"),
        ({"setup": 3}, TypeError, "setup must be a function without arguments, not 3"),
        ({"repeat": 0}, ValueError, "repeat must be a whole number from 1 on, not 0"),
        ({"repeat": 2.5}, TypeError, "repeat must be a whole number from 1 on, not 2.5"),
        ({"repeat": True}, TypeError, "repeat must be a whole number from 1 on, not True"),
        ({"warm_up": -1}, ValueError, "warm_up must be a whole number from 0 on, not -1"),
        ({"label": 3}, TypeError, "label must be a text, not 3"),
        ({"device": "all"}, ValueError, "one GPU"),
        ({"device": "gpu"}, ValueError, "not 'gpu'"),
        ({"device": "cuda:3"}, ValueError, "device cuda:3 does not exist: the only GPU is cuda:0"),
    ],
)
def test_wrong_arguments_are_named(shapes, wrong, error, words):
    with pytest.raises(error, match=words):
        timing.measure(**{"fn": lambda: None} | wrong)


def test_a_coroutine_that_was_refused_leaves_no_warning(no_gpu):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(TypeError):
            timing.measure(lambda: coroutine())
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_a_gpu_that_is_not_there_is_named(no_gpu):
    with pytest.raises(ValueError, match=r"device is 'cuda:0'.*gpulab.setup\(\) gives you a virtual GPU"):
        timing.measure(lambda: None, device="cuda:0")


@pytest.mark.parametrize("fn", [functools.partial(max, 1, 2), dict, torch.nn.Identity().eval, time.perf_counter])
def test_whatever_can_be_called_is_timed(no_gpu, fn):
    assert timing.measure(fn, repeat=1).median_ms >= 0
