"""Answers to "a timer that tells the truth": when the clock starts and stops, and which of the times is returned."""

import statistics
import time
from time import perf_counter

import torch

import gpulab
from gpulab.check.lesson03.common import SECTIONS

from ..bank import Bank

BANK = Bank("honest_timer", SECTIONS)


def events():
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def by_events(fn):
    start, end = events()
    start.record()
    fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def two_events(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    return statistics.median(by_events(fn) for _ in range(repeats))


@BANK.right
def host_clock(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)[len(times) // 2]


@BANK.right
def host_clock_by_name(fn, repeats, warm_up):
    times = []
    for _ in range(warm_up + repeats):
        torch.accelerator.synchronize()
        start = perf_counter()
        fn()
        torch.accelerator.synchronize()
        times.append(perf_counter() - start)
    return statistics.median(times[warm_up:]) * 1e3


@BANK.right
def all_marks_first(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    pairs = []
    for _ in range(repeats):
        start, end = events()
        start.record()
        fn()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return torch.tensor([start.elapsed_time(end) for start, end in pairs]).median().item()


@BANK.right
def nanoseconds(fn, repeats, warm_up):
    def once():
        torch.cuda.current_stream().synchronize()
        start = time.perf_counter_ns()
        fn()
        torch.cuda.current_stream().synchronize()
        return (time.perf_counter_ns() - start) / 1e6

    return statistics.median([once() for _ in range(warm_up + repeats)][warm_up:])


@BANK.right
def asks_the_event_now_and_then(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        start, end = events()
        start.record()
        fn()
        end.record()
        while not end.query():
            time.sleep(0.01)
        times.append(start.elapsed_time(end))
    return statistics.median(times)


@BANK.right
def asks_the_stream_now_and_then(fn, repeats, warm_up):
    def drain():
        while not torch.cuda.current_stream().query():
            time.sleep(0.0005)

    times = []
    for _ in range(warm_up + repeats):
        drain()
        start = time.perf_counter()
        fn()
        drain()
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm_up:]) * 1e3


@BANK.right
def with_the_courses_own(fn, repeats, warm_up):
    return gpulab.timing.measure(fn, repeat=repeats, warm_up=warm_up).median_ms


# --- wrong: when the clock stops -----------------------------------------------------------------------


@BANK.wrong("the time is that of the launch: nothing waits for the GPU", "returns when its work is queued")
def never_waits(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


@BANK.wrong("work that was queued before the call is counted", "before the clock starts, too")
def waits_at_the_end_only(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


@BANK.wrong("the clock was stopped before the GPU was waited for", "between fn() and the second reading")
def waits_at_the_start_only(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


@BANK.wrong("earlier work is timed, and not that of fn", "before fn and not after it")
def waits_before_fn_within_the_clock(fn, repeats, warm_up):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.cuda.synchronize()
        fn()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


@BANK.wrong("the clock that was read is not fit for this", "time.time")
def wall_clock(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.time()
        fn()
        torch.cuda.synchronize()
        times.append((time.time() - start) * 1e3)
    return statistics.median(times)


@BANK.wrong("the events stand in another stream than the work", "record both in the current stream")
def events_elsewhere(fn, repeats, warm_up):
    other = torch.cuda.Stream()
    times = []
    for _ in range(repeats):
        start, end = events()
        start.record(other)
        fn()
        end.record(other)
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


@BANK.wrong("your function raised ValueError", "end.synchronize() comes first")
def reads_too_early(fn, repeats, warm_up):
    start, end = events()
    start.record()
    fn()
    end.record()
    return start.elapsed_time(end)


@BANK.wrong("your function raised ValueError", "enable_timing=True")
def events_without_a_clock(fn, repeats, warm_up):
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@BANK.wrong("your function raised ValueError", "before record() was called on it")
def forgets_to_record(fn, repeats, warm_up):
    start, end = events()
    start.record()
    fn()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


@BANK.wrong("the time is negative", "have changed places")
def the_wrong_way_round(fn, repeats, warm_up):
    start, end = events()
    start.record()
    fn()
    end.record()
    end.synchronize()
    return end.elapsed_time(start)


# --- wrong: units and forms ----------------------------------------------------------------------------


@BANK.wrong("the time is in seconds", "times 1000")
def in_seconds(fn, repeats, warm_up):
    return two_events(fn, repeats, warm_up) / 1e3


@BANK.wrong("the time is in microseconds", "milliseconds already")
def in_microseconds(fn, repeats, warm_up):
    return two_events(fn, repeats, warm_up) * 1e3


@BANK.wrong("what came back is not a number", "return their median")
def all_times(fn, repeats, warm_up):
    return [by_events(fn) for _ in range(repeats)]


@BANK.wrong("what came back is not a number", "without a return")
def prints_it(fn, repeats, warm_up):
    print(two_events(fn, repeats, warm_up))


# --- wrong: which time ---------------------------------------------------------------------------------


@BANK.wrong("the mean of the times came back", "drags the mean")
def mean(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    return statistics.mean(by_events(fn) for _ in range(repeats))


@BANK.wrong("the mean of the times came back", "drags the mean", same_as="mean")
def one_clock_around_the_loop(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3


@BANK.wrong("the fastest time came back", "at its best")
def fastest(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    return min(by_events(fn) for _ in range(repeats))


@BANK.wrong("the sum of the times came back", "started and stopped for each")
def sum_of_all(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    return by_events(lambda: [fn() for _ in range(repeats)])


@BANK.wrong("the last time came back", "overwritten")
def the_last(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    for _ in range(repeats):
        time_ = by_events(fn)
    return time_


@BANK.wrong("another of the times came back", "*sorted*")
def the_middle_unsorted(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    return [by_events(fn) for _ in range(repeats)][repeats // 2]


@BANK.wrong("there was no warm-up", "warm_up was not heeded")
def no_warm_up(fn, repeats, warm_up):
    return statistics.median(by_events(fn) for _ in range(repeats))


@BANK.wrong("the warm-up is counted in the median", "and not timed")
def counts_the_warm_up(fn, repeats, warm_up):
    return statistics.median(by_events(fn) for _ in range(warm_up + repeats))


@BANK.wrong("fn was not called as often as it should be", "0 included")
def always_warms_up(fn, repeats, warm_up):
    return two_events(fn, repeats, max(1, warm_up))


@BANK.wrong("your function raised TypeError", "it is called as fn()")
def calls_with_arguments(fn, repeats, warm_up):
    return by_events(lambda: fn(repeats=repeats))


@BANK.wrong("what came back is not a number", ".item()")
def a_tensor(fn, repeats, warm_up):
    return torch.tensor(two_events(fn, repeats, warm_up))


@BANK.wrong("what came back is not a number")
def the_whole_statistics(fn, repeats, warm_up):
    return {"median": two_events(fn, repeats, warm_up)}
