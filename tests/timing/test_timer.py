"""timing.Timer: the GPU's time and the host's, without waiting until they are read."""

import time

import pytest
import torch

from gpulab import timing
from virtualgpu.gpu import VirtualGPU


def product(n=4096, device="cuda"):
    a = torch.randn(n, n, device=device)
    return lambda: a @ a


def test_it_shows_both_times(shapes):
    work = product(16384)  # a second on a T4
    with timing.Timer() as t:
        work()
    assert t.ms > 1000
    assert t.host_ms < t.ms
    assert (t.how, t.numbers) == ("CUDA events", "virtual")
    assert str(t).endswith("on the host (virtual, CUDA events)")
    assert " s on cuda:0, " in str(t)


def test_the_time_is_what_measure_finds(shapes):
    work = product()
    work()  # the first product takes memory for cuBLAS
    torch.cuda.synchronize()
    with timing.Timer() as t:
        work()
    assert t.ms == pytest.approx(timing.measure(work, repeat=1).median_ms)


def test_it_waits_for_nothing_until_it_is_read(shapes):
    work = product()
    torch.cuda.synchronize()
    before = shapes.clock.waited
    with timing.Timer() as t:
        work()
    assert shapes.clock.waited == before
    assert t.ms > 0
    assert shapes.clock.waited > before


def test_timers_nest_and_the_parts_add_up(shapes):
    work = product()
    torch.cuda.synchronize()
    with timing.Timer() as outer:
        with timing.Timer() as one:
            work()
        with timing.Timer() as two:
            work()
    assert one.ms + two.ms == pytest.approx(outer.ms, rel=0.02)
    assert outer.host_ms >= one.host_ms + two.host_ms


def test_work_queued_before_is_not_counted(shapes):
    long, short = product(8192), product(64)
    with timing.Timer() as alone:
        short()
    long()
    with timing.Timer() as after:
        short()
    assert after.ms <= alone.ms


def test_each_gpu_has_its_clock(two_gpus):
    work = product(device="cuda:1")
    work()  # the first call loads cuBLAS
    torch.cuda.synchronize(1)
    with timing.Timer() as here, timing.Timer("cuda:1") as there:
        work()
    assert there.ms > 10
    assert here.ms < 1


def test_the_stream_that_is_current_at_entry_is_timed(shapes):
    work, side = product(), torch.cuda.Stream()
    with torch.cuda.stream(side), timing.Timer() as inside:
        work()
    torch.cuda.synchronize()
    with timing.Timer() as outside, torch.cuda.stream(side):
        work()
    assert inside.ms > 10
    assert outside.ms < 1


def test_it_can_be_read_after_the_virtual_gpu_has_ended():
    with VirtualGPU("T4", compute=False):
        work = product()
        work()
        torch.cuda.synchronize()
        with timing.Timer() as t:
            work()
    assert 17 < t.ms < 40
    assert t.numbers == "virtual"


def test_a_block_that_uses_no_gpu_has_the_hosts_time(gpu):
    with timing.Timer() as t:
        time.sleep(0.004)
    assert t.ms >= 4
    assert (t.how, t.numbers) == ("host clock", "measured")


def test_without_a_gpu_both_times_are_the_hosts(no_gpu):
    with timing.Timer(label="nap") as t:
        time.sleep(0.004)
    assert 4 <= t.host_ms <= t.ms
    assert str(t).startswith("nap: ")
    assert str(t).endswith("on the host (measured, host clock)")


def test_used_again_it_starts_anew(shapes):
    long, short = product(), product(64)
    t = timing.Timer()
    with t:
        long()
    first = t.ms
    with t:
        short()
    assert t.ms < first / 10


def test_an_exception_goes_on_and_leaves_the_time_up_to_there(gpu):
    t, mine = timing.Timer(), KeyError("mine")
    work = product(256)

    def fail():
        work()
        raise mine

    with pytest.raises(KeyError) as raised, t:
        fail()
    assert raised.value is mine
    assert t.ms > 0


def test_a_failed_gpu_does_not_hide_the_exception_on_its_way(gpu, monkeypatch):
    def broken(*args):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    def fail():
        monkeypatch.setattr(t._pair._end, "record", broken)
        raise mine

    t, mine = timing.Timer(), KeyError("mine")
    with pytest.raises(KeyError) as raised, t:
        fail()
    assert raised.value is mine
    with pytest.raises(RuntimeError, match="has no time: a virtual GPU was started or ended within its block"):
        _ = t.ms


def test_a_virtual_gpu_that_begins_within_leaves_no_time():
    scope = VirtualGPU("T4", compute=False)
    t = timing.Timer(label="setup")
    with t:
        scope.start()
    try:
        with pytest.raises(
            RuntimeError, match="'setup' has no time: a virtual GPU was started or ended within its block"
        ):
            _ = t.host_ms
    finally:
        scope.stop()
    assert repr(t) == "setup: nothing timed"


def test_a_virtual_gpu_within_the_block_is_none_of_its_business(no_gpu):
    with timing.Timer() as t, VirtualGPU("T4", compute=False):
        pass
    assert t.numbers == "measured"


def test_reading_too_early_is_refused(shapes):
    t = timing.Timer(label="step")
    with pytest.raises(RuntimeError, match="'step' has timed nothing yet"):
        _ = t.ms
    assert repr(t) == "step: nothing timed"
    with t:
        with pytest.raises(RuntimeError, match="'step' is still open"):
            _ = t.host_ms
        with pytest.raises(RuntimeError, match="'step' is already open"), t:
            pass
        assert repr(t) == "step: still open"
    with pytest.raises(RuntimeError, match="is not open"):
        t.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"device": "forward"}, ValueError, r"not 'forward'.*Timer\(label='forward'\)"),
        ({"device": "all"}, ValueError, "one GPU"),
        ({"device": 1.5}, TypeError, "not 1.5"),
        ({"label": None}, TypeError, "label must be a text, not None"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        timing.Timer(**arguments)


def test_a_gpu_that_is_not_there_is_named_at_entry(no_gpu):
    t = timing.Timer("cuda:0")
    with pytest.raises(ValueError, match="there is no such GPU here"), t:
        pass
    assert repr(t) == "nothing timed"
