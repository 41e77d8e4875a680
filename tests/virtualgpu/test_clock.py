"""The clock alone: what the host waits for, what overlaps, and what every order of calls must keep."""

import itertools
import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.clock import clock as clocks
from virtualgpu.clock import hosts, rates
from virtualgpu.clock.clock import QUEUE, Clock, Covered, Engine, Span
from virtualgpu.clock.timeline import as_trace, communication, recording

US = 1e-6
HOST_US = 5.0
T4 = replace(rates.of("T4"), host=hosts.launching(HOST_US), power=None)


@pytest.fixture
def clock():
    return Clock(2, T4)


def test_a_launch_costs_the_host_its_own_time_and_the_kernel_starts_later(clock):
    end = clock.devices[0].kernel(0, 100 * US, "k")
    assert clock.host == pytest.approx(HOST_US * US)
    assert end == pytest.approx((HOST_US + T4.launch_us + 100) * US)
    assert clock.waited == 0


def test_kernels_of_one_stream_follow_each_other_and_synchronising_waits_for_them(clock):
    gpu = clock.devices[0]
    for _ in range(10):
        gpu.kernel(0, 100 * US, "k")
    assert clock.host == pytest.approx(10 * HOST_US * US)
    gpu.synchronize()
    assert clock.host == pytest.approx((HOST_US + T4.launch_us + 1000) * US)
    assert clock.waited == pytest.approx(clock.host - (10 * HOST_US + 1) * US)
    assert clock.busy() == pytest.approx(1000 * US)
    assert clock.kernels() == 10


def test_short_kernels_are_bound_by_their_launches(clock):
    gpu = clock.devices[0]
    for _ in range(100):
        gpu.kernel(0, 1 * US, "k")
    assert clock.now() == pytest.approx((100 * HOST_US + T4.launch_us + 1) * US)


def test_a_full_queue_makes_the_host_wait(clock):
    gpu = clock.devices[0]
    for _ in range(QUEUE):
        gpu.kernel(0, 1e-3, "k")
    assert clock.waited == 0
    first = HOST_US * US + T4.launch_us * US + 1e-3
    gpu.kernel(0, 1e-3, "k")
    assert clock.host == pytest.approx(max(first, (QUEUE + 1) * HOST_US * US))
    for _ in range(10):
        gpu.kernel(0, 1e-3, "k")
    assert clock.waited > 0
    assert clock.host == pytest.approx(first + 10e-3)


def test_pinned_copies_run_beside_kernels_and_beside_copies_the_other_way(clock):
    gpu = clock.devices[0]
    nbytes = round(1e-3 * T4.pinned_gbps * 1e9)
    kernel = gpu.kernel(0, 1e-3, "k")
    there = gpu.copy(1, nbytes, "to GPU", pinned=True, wait=False)
    back = gpu.copy(2, nbytes, "to host", pinned=True, wait=False)
    assert clock.waited == 0
    assert max(kernel, there, back) < 1.1e-3
    again = gpu.copy(3, nbytes, "to GPU", pinned=True, wait=False)
    assert again == pytest.approx(there + 1e-3 + T4.copy_us * US)  # one copy engine each way


def test_a_pageable_copy_waits_for_the_stream_and_returns_once_staged(clock):
    gpu = clock.devices[0]
    gpu.kernel(0, 5e-3, "k")
    end = gpu.copy(0, 1 << 20, "to GPU", pinned=False, wait=False)
    staged = end - T4.copy_us * US
    assert clock.host == pytest.approx(staged)
    assert clock.host > 5e-3


def test_a_copy_that_is_waited_for_blocks_the_host_also_from_pinned_memory(clock):
    end = clock.devices[0].copy(0, 1 << 20, "to GPU", pinned=True, wait=True)
    assert clock.host == end


def test_pageable_copies_back_block_whatever_was_asked(clock):
    end = clock.devices[0].copy(0, 1 << 20, "to host", pinned=False, wait=False)
    assert clock.host == end


def test_a_stream_that_waits_for_an_event_starts_after_it(clock):
    gpu = clock.devices[0]
    gpu.kernel(0, 1e-3, "k")
    marked = gpu.mark(0)
    gpu.hold(1, marked)
    assert gpu.kernel(1, 10 * US, "k") == pytest.approx(marked + 10 * US)


def test_a_kernel_of_another_stream_uses_the_gap_before_one_that_waits(clock):
    gpu = clock.devices[0]
    gpu.hold(1, 1.0)
    late = gpu.kernel(1, 1e-3, "late")
    early = gpu.kernel(2, 1e-3, "early")
    assert early < 0.1 < late


def test_kernels_of_two_streams_share_the_gpu(clock):
    gpu = clock.devices[0]
    for stream in (1, 2):
        for _ in range(5):
            gpu.kernel(stream, 1e-3, "k")
    assert clock.now() >= 10e-3


def test_two_gpus_work_side_by_side_and_share_the_host(clock):
    ends = [gpu.kernel(0, 1e-3, "k") for gpu in clock.devices]
    assert max(ends) < 1.1e-3
    assert clock.host == pytest.approx(2 * HOST_US * US)


MS = 1e-3


def exchange(clock, arrived, ready):
    """An all-reduce of 8 MB in 2 ms to which this rank comes at `arrived` and the last one at `ready`."""
    return clock.devices[0].collective(7, arrived, ready, 2 * MS, "all_reduce", 8_000_000)


def test_the_kernel_of_an_early_rank_spins_until_the_last_has_come_and_all_end_together(clock):
    """As NCCL's do: long on the early rank, short on the late one, whose bytes move in the same time."""
    late = Clock(1, T4)
    with recording(clock) as early_one, recording(late) as late_one:
        ends = exchange(clock, 1 * MS, 11 * MS), exchange(late, 11 * MS, 11 * MS)
    assert ends[0] == ends[1] == pytest.approx(13 * MS)
    (long,), (short,) = early_one.spans, late_one.spans
    assert (long.start, long.seconds, long.waited) == pytest.approx((1 * MS, 12 * MS, 10 * MS))
    assert (short.start, short.seconds, short.waited) == pytest.approx((11 * MS, 2 * MS, 0))
    shown = [next(e for e in as_trace(t.spans)["traceEvents"] if e["ph"] == "X") for t in (early_one, late_one)]
    assert [event["args"]["GB/s"] for event in shown] == [4.0, 4.0]  # of the transfer, not of the wait before it
    assert shown[0]["args"]["waited for other ranks (us)"] == pytest.approx(10_000)
    assert "waited for other ranks (us)" not in shown[1]["args"]


def test_a_gpu_that_waits_in_a_collective_is_busy_and_computes_nothing(clock):
    gpu = clock.devices[0]
    gpu.joins()
    gpu.kernel(0, 4 * MS, "k")
    began = gpu.done - 4 * MS
    with recording(clock) as timeline:
        exchange(clock, began + 2 * MS, began + 8 * MS)  # half of the kernel lies beside it, which ends at 10 ms
        gpu.kernel(0, 1 * MS, "k")  # from 4 to 5 ms
    assert clock.computing() == pytest.approx(5 * MS)
    assert clock.busy() == pytest.approx(10 * MS)
    found = communication(timeline.spans)
    assert (found.seconds, found.waited, found.exposed) == pytest.approx((8 * MS, 6 * MS, 7 * MS))


def test_what_was_queued_before_the_first_collective_counts_once(clock):
    gpu = clock.devices[0]
    gpu.kernel(0, 4 * MS, "k")
    began = gpu.done - 4 * MS
    exchange(clock, began + 3 * MS, began + 3 * MS)
    assert clock.busy() == pytest.approx(5 * MS, rel=0.01)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=40))
def test_time_in_which_several_things_run_counts_once(wanted):
    covered = Covered()
    for start, length in wanted:
        covered.add(start, start + length)
    assert covered.seconds == len({at for start, length in wanted for at in range(start, start + length)})
    assert covered.spans == sorted(covered.spans)


@pytest.fixture
def pass_(monkeypatch):
    """Lets this machine's time pass."""
    now = [100.0]
    monkeypatch.setattr(clocks, "real", lambda: now[0])
    monkeypatch.setattr(clocks, "queued", lambda: 0.0)

    def pass_(seconds):
        now[0] += seconds

    return pass_


@pytest.fixture
def ticking(pass_):
    return Clock(1, T4)


@pytest.fixture
def asked(ticking):
    """A clock that leaves out the host's own time, and was asked for it."""
    ticking.ignores_own = True
    ticking.ask()
    return ticking


def operation(clock, pass_, seconds):
    clock.enter()
    pass_(seconds)
    clock.devices[0].kernel(0, 1e-3, "k")
    clock.leave()


def answers(clock, pass_, pauses):
    """What each question counts that comes after a pause."""
    counted = []
    for pause in pauses:
        before = clock.host
        pass_(pause)
        clock.ask()
        counted.append(clock.host - before)
    return counted


def test_perf_counter_has_the_hosts_own_time_and_not_that_of_a_gpus_work(ticking, pass_):
    before = ticking.perf_counter()
    pass_(0.5)
    operation(ticking, pass_, 7.0)
    pass_(0.25)
    assert ticking.perf_counter() - before == pytest.approx(0.75 + HOST_US * US)
    assert ticking.own == pytest.approx(0.75)
    ticking.devices[0].synchronize()
    assert ticking.perf_counter() - before == pytest.approx(0.75 + ticking.host)


def test_what_other_programs_take_of_the_processor_is_not_the_hosts_own(pass_, monkeypatch):
    waited = [7.0]
    monkeypatch.setattr(clocks, "queued", lambda: waited[0])
    clock = Clock(1, T4)
    operation(clock, pass_, 1.0)
    waited[0] += 0.5
    pass_(0.75)
    operation(clock, pass_, 1.0)
    assert clock.own == pytest.approx(0.25)
    pass_(0.75)  # and now nobody else wants it
    operation(clock, pass_, 1.0)
    assert clock.own == pytest.approx(1.0)
    waited[0] += 0.5  # within an operation it is nobody's
    operation(clock, pass_, 1.0)
    pass_(0.5)
    operation(clock, pass_, 1.0)
    assert clock.own == pytest.approx(1.5)


def test_a_stopped_clock_counts_nothing_of_what_this_thread_does(pass_):
    clock = Clock(1, T4, counts_host=True)
    pass_(0.5)
    with clock.stopped():
        pass_(3.0)
        operation(clock, pass_, 1.0)
        pass_(3.0)
    pass_(0.25)
    operation(clock, pass_, 1.0)
    assert clock.own == pytest.approx(0.75)


def test_a_check_can_leave_out_the_hosts_own_time(ticking, pass_):
    ticking.ignores_own = True
    before = ticking.perf_counter()
    pass_(0.5)
    operation(ticking, pass_, 7.0)
    pass_(0.25)
    assert ticking.perf_counter() - before == pytest.approx(HOST_US * US)
    ticking.devices[0].synchronize()
    assert ticking.perf_counter() - before == pytest.approx(ticking.host)


def test_asking_again_and_again_then_is_not_charged_for_one_long_pause(asked, pass_):
    assert answers(asked, pass_, [0.5, 1e-6, 1e-6] * 10) == pytest.approx([101 * US, 2 * US, 2 * US] * 10)


def test_one_who_sleeps_between_the_questions_gets_on(asked, pass_):
    counted = [100 * US, 0.011, 0.010, 0.020, 0.010]
    assert answers(asked, pass_, [0.010, 0.011, 0.010, 0.5, 0.010]) == pytest.approx([one + US for one in counted])


def test_of_a_pause_that_was_asked_for_counts_what_was_asked_for(asked, pass_):
    for pause in (0.0006, 0.5, 0.030, 0.0005):  # a busy machine wakes up late
        before = asked.host
        pass_(pause)
        asked.slept(0.0005)
        asked.ask()
        assert asked.host - before == pytest.approx(0.0005 + US)
    operation(asked, pass_, 1.0)
    before = asked.host
    asked.slept(0.5)  # between operations it is the program's own time, which is left out
    assert asked.host == before


def test_a_short_pause_beside_an_operation_is_the_launch_that_the_model_knows(ticking, pass_):
    before = ticking.perf_counter()
    for _ in range(10):
        pass_(50 * US)
        operation(ticking, pass_, 1.0)
    pass_(50 * US)
    assert ticking.perf_counter() - before == pytest.approx(10 * HOST_US * US)
    pass_(50 * US)
    assert ticking.perf_counter() - before == pytest.approx((10 * HOST_US + 50) * US)  # no operation beside it


def test_the_rest_of_the_hosts_time_counts_on_the_gpu_only_where_that_is_wanted(pass_):
    modelled, counting = Clock(1, T4), Clock(1, T4, counts_host=True)
    for clock in (modelled, counting):
        pass_(2.0)
        operation(clock, pass_, 1.0)
        clock._last = clocks.real()
    assert modelled.host == pytest.approx(HOST_US * US)
    assert counting.host >= 2.0
    assert counting.now() == pytest.approx(counting.host + T4.launch_us * US + 1e-3)


def test_asking_takes_the_time_that_it_really_takes(ticking, pass_):
    operation(ticking, pass_, 1.0)
    pass_(5.0)
    ticking.ask()
    assert ticking.host < 1e-3
    pass_(3.0)
    ticking.ask()
    assert ticking.host == pytest.approx(3.0, abs=1e-3)


def test_a_thread_beside_one_that_does_a_gpus_work_changes_nothing(ticking, pass_):
    seen = []

    def beside():
        seen.append(ticking.perf_counter())
        ticking.enter()  # as a loader's thread that pins memory
        ticking.leave()

    before = ticking.perf_counter()
    ticking.enter()
    pass_(5.0)
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    pass_(5.0)
    ticking.leave()
    assert seen == [before]
    assert ticking.perf_counter() == before
    assert ticking.own == 0


def test_looking_from_elsewhere_changes_nothing(ticking, pass_):
    pass_(1.0)
    state = dict(vars(ticking))
    assert ticking.seen() == pytest.approx(101.0)
    assert dict(vars(ticking)) == state
    assert ticking.perf_counter() == pytest.approx(101.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=40))
def test_an_engine_never_does_two_things_at_once_and_nothing_before_it_is_ready(wanted):
    engine, taken = Engine(), []
    for ready, seconds in wanted:
        start = engine.take(ready, seconds, 0)
        assert start >= ready
        taken.append((start, start + seconds))
    taken.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
    assert engine.busy == sorted(engine.busy)
    assert sum(end - start for start, end in engine.busy) == sum(seconds for _, seconds in wanted)


steps = st.one_of(
    st.tuples(st.just("kernel"), st.integers(0, 2), st.floats(1e-6, 1e-3)),
    st.tuples(st.just("copy"), st.integers(0, 2), st.integers(1, 1 << 24), st.sampled_from(["to GPU", "to host"]),
              st.booleans(), st.booleans()),
    st.tuples(st.just("mark"), st.integers(0, 2)),
    st.tuples(st.just("synchronize"), st.sampled_from([None, 0, 1, 2])),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_whatever_is_called_time_goes_forward_and_streams_keep_their_order(calls):
    clock = Clock(1, T4)
    gpu = clock.devices[0]
    ends = {0: 0.0, 1: 0.0, 2: 0.0}
    with recording(clock) as timeline:
        for kind, *rest in calls:
            host = clock.host
            if kind == "kernel":
                end = gpu.kernel(rest[0], rest[1], "k")
            elif kind == "copy":
                stream, nbytes, way, pinned, wait = rest
                end = gpu.copy(stream, nbytes, way, pinned=pinned, wait=wait)
            elif kind == "mark":
                gpu.mark(rest[0])
            else:
                gpu.synchronize(rest[0])
                assert clock.host >= max(ends.values() if rest[0] is None else [ends[rest[0]]])
            assert clock.host >= host
            if kind in ("kernel", "copy"):
                assert end >= ends[rest[0]]
                ends[rest[0]] = end
    kernels = sorted((s.start, s.start + s.seconds) for s in timeline.spans if s.where == "kernels")
    assert all(end <= start + 1e-12 for (_, end), (start, _) in itertools.pairwise(kernels))
    assert clock.busy() == pytest.approx(sum(end - start for start, end in kernels))
    assert clock.now() >= max(ends.values())


def test_a_chrome_trace_has_every_span_in_its_lane_in_microseconds():
    spans = [
        Span("launch", "host", 0, 0, 0.0, 5e-6),
        Span("mm", "kernels", 1, 0, 9e-6, 1e-3, flops=2e9),
        Span("copy", "to GPU", 1, 0, 0.0, 1e-3, nbytes=12_000_000),
    ]
    trace = json.loads(json.dumps(as_trace(spans)))
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in complete] == [("launch", 0, 5), ("mm", 9, 1000), ("copy", 0, 1000)]
    assert complete[1]["args"] == {"flops": 2e9, "TFLOP/s": 2.0}
    assert complete[2]["args"] == {"bytes": 12_000_000, "GB/s": 12.0}
    lanes = {(e["pid"], e["tid"]) for e in complete}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert set(named) == lanes
    assert set(named.values()) == {"host (virtual)", "stream 0", "copy to GPU"}


def test_recordings_nest_and_the_outer_one_has_it_all(clock):
    with recording(clock) as outer:
        clock.devices[0].kernel(0, US, "a")
        with recording(clock) as inner:
            clock.devices[0].kernel(0, US, "b")
    assert {span.name for span in inner.spans} == {"b"}
    assert {span.name for span in outer.spans} == {"a", "b"}
    clock.devices[0].kernel(0, US, "c")
    assert "c" not in {span.name for span in outer.spans}
