"""The check of a timer for GPU work: what it times, what it counts along, and which of the times it returns."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import torch

from ...virtual.gpu import VirtualGPU
from ..base import Trial, check
from ..wording import is_number, show
from .common import CLOCK, QUEUE, SHEET, Clocks, Waits, clocks_here, scope

EARLIER = 0.6  # seconds of work that is queued before the student's function is called
_CLOSE = 0.05  # as a part; a host's clock has this machine's own disturbances in it


class Work:
    """The `fn` that is timed: each call queues one kernel in the current stream, of the next of `seconds`."""

    def __init__(self, gpu: VirtualGPU, seconds: list[float]) -> None:
        self._device, self._seconds = gpu.device(0), seconds
        self.calls = 0

    def __call__(self) -> None:
        seconds = self._seconds[min(self.calls, len(self._seconds) - 1)]
        self.calls += 1
        self._device.timer.kernel(self._device.stream, seconds, "work")


class Run:
    """One call of the student's function: what came back, and what was seen meanwhile."""

    def __init__(self, student: Any, trial: Trial, seconds: list[float], repeats: int, warm_up: int) -> None:
        before = clocks_here()
        with scope(compute=False) as gpu:
            work = Work(gpu, seconds)
            timer = gpu.device(0).timer
            timer.kernel(0, EARLIER, "earlier work")
            marks: set[int] = set()
            mark = timer.mark

            def noted(stream: int) -> float:
                marks.add(stream)
                return mark(stream)

            timer.mark = noted  # type: ignore[method-assign]
            with Clocks(student, before) as clocks, Waits(gpu.clock) as waits:
                self.got = trial.call(student, work, repeats, warm_up, explain=explain)
        self.calls, self.waits, self.marks, self.clocks = work.calls, list(waits), marks, clocks.used


def explain(error: str) -> str:
    if "must be completed" in error:
        return "elapsed_time was asked for before the GPU had come to the end event: end.synchronize() comes first"
    if "enable_timing" in error:
        return "an event that is to tell the time is made with torch.cuda.Event(enable_timing=True), both of them"
    if "must be recorded" in error:
        return "an event has no time before record() was called on it"
    if "repeats" in error or "warm_up" in error:
        return "fn takes no arguments: it is called as fn()"
    return ""


@check(lesson=3, says="the median of the work's own time, whatever was queued before it")
def honest_timer(student: Any, trial: Trial) -> None:
    """Check a function of (fn, repeats, warm_up): the median time of fn() on the GPU in milliseconds."""
    trial.function(student, ("fn", "repeats", "warm_up"))
    one = random.uniform(0.2, 0.4)
    run = Run(student, trial, [one], repeats=1, warm_up=0)
    judge_kind(trial, run)
    judge_clock(trial, run, one * 1e3)
    judge_calls(trial, run, 1, 0)

    base = random.uniform(0.04, 0.06)
    # of seven times the first, the last and the middle one as taken are none that a statistic picks
    plain, telling = random.sample((1.25, 1.5, 4.2), 3), random.sample((1.0, 1.9, 2.5, 14.0), 4)
    factors = [plain[0], *telling[:2], plain[1], *telling[2:], plain[2]]
    times = [base * factor for factor in factors]
    warm = [12 * base, 10 * base]
    run = Run(student, trial, [*warm, *times, 25 * base], repeats=7, warm_up=2)
    judge_kind(trial, run)
    judge_statistic(trial, run, [t * 1e3 for t in warm], [t * 1e3 for t in times])
    judge_calls(trial, run, 7, 2)


def judge_kind(trial: Trial, run: Run) -> None:
    got = run.got
    number = is_number(got)
    likely = ""
    if got is None:
        likely = "the function ends without a return"
    elif isinstance(got, (list, tuple)):
        likely = "the list of times: return their median"
    elif isinstance(got, torch.Tensor):
        likely = "a tensor of one number becomes a float with .item()"
    trial.expect(
        number,
        "what came back is not a number",
        expected="the median in milliseconds, a float",
        got=show(got),
        likely=likely,
    )
    trial.expect(
        math.isfinite(got) and got >= 0,
        "the time is not a time" if not math.isfinite(got) else "the time is negative",
        expected="a number of milliseconds above 0",
        got=f"{got:g}",
        likely="start.elapsed_time(end) counts from start to end: the two have changed places",
        read=CLOCK,
    )


def close(got: float, want: float) -> bool:
    return abs(got - want) <= _CLOSE * want


def judge_clock(trial: Trial, run: Run, want: float) -> None:
    """One call, after earlier work: is the clock stopped when the GPU is done, and started when it begins?"""
    got = run.got
    if close(got, want):
        return
    rows = {"expected": f"{want:,.0f} ms, the time of one call of fn", "got": f"{got:,.4g} ms"}
    if run.clocks:
        trial.fail(
            "the clock that was read is not fit for this",
            **rows,
            likely=f"{' and '.join(sorted(run.clocks))} may be set while you measure, or is coarse, and knows nothing "
            "of a virtual GPU: use time.perf_counter or events",
            read=CLOCK,
        )
    earlier = EARLIER * 1e3
    if close(got, want / 1e3):
        trial.fail("the time is in seconds", **rows, likely="the host's clocks count seconds: times 1000", read=CLOCK)
    if close(got, want * 1e3):
        trial.fail("the time is in microseconds", **rows, likely="elapsed_time gives milliseconds already", read=CLOCK)
    if close(got, want + earlier):
        trial.fail(
            "work that was queued before the call is counted",
            **rows,
            likely=f"the caller had queued {earlier:,.0f} ms: wait for the GPU before the clock starts, too",
            read=CLOCK,
        )
    if close(got, earlier):
        trial.fail(
            "earlier work is timed, and not that of fn",
            **rows,
            likely="the GPU was waited for before fn and not after it: the clock stops when the old work is done",
            read=CLOCK,
        )
    if got < 0.1 * want and run.marks and 0 not in run.marks:
        trial.fail(
            "the events stand in another stream than the work",
            **rows,
            likely="an event marks one stream, and this one had nothing to do: record both in the current stream",
            read=SHEET,
        )
    if got < 0.1 * want and not run.waits:
        trial.fail(
            "the time is that of the launch: nothing waits for the GPU",
            **rows,
            likely="fn() returns when its work is queued; without synchronize the clock stops before the work begins",
            read=QUEUE,
        )
    if got < 0.1 * want:
        trial.fail(
            "the clock was stopped before the GPU was waited for",
            **rows,
            likely="the host does wait, but not between fn() and the second reading of the clock (or the end event)",
            read=QUEUE,
        )
    trial.fail(f"the time is {got / want:.3g} times the right one", **rows, read=CLOCK)


def judge_calls(trial: Trial, run: Run, repeats: int, warm_up: int) -> None:
    wanted = repeats + warm_up
    trial.expect(
        run.calls == wanted,
        "fn was not called as often as it should be",
        expected=f"{wanted} calls: warm_up = {warm_up}, then repeats = {repeats}",
        got=f"{run.calls}",
        likely="the warm-up comes on top of the repeats, and is as long as warm_up says, 0 included",
        read=CLOCK,
    )


def judge_statistic(trial: Trial, run: Run, warm: list[float], times: list[float]) -> None:
    """Seven calls of different length after a slow warm-up: which number of theirs came back?"""
    got, want = run.got, statistics.median(times)
    if close(got, want):
        return
    shown = ", ".join(f"{t:,.0f}" for t in times)
    rows = {"expected": f"{want:,.0f} ms, the median of {shown}", "got": f"{got:,.4g} ms"}
    if run.calls == len(times) and warm:
        trial.fail(
            "there was no warm-up",
            **rows,
            likely=f"fn was called {run.calls} times, and its first {len(warm)} calls are slow: warm_up was not heeded",
            read=CLOCK,
        )
    everything = warm + times
    found = {
        "the mean of the times came back": statistics.mean(times),
        "the fastest time came back": min(times),
        "the slowest time came back": max(times),
        "the sum of the times came back": sum(times),
        "the last time came back": times[-1],
        "the first time came back": times[0],
        "the warm-up is counted in the median": statistics.median(everything),
        "the warm-up is counted in the mean": statistics.mean(everything),
    }
    why = {
        "the mean of the times came back": "one disturbed run drags the mean, and leaves the median; a clock around "
        "the whole loop gives the mean as well",
        "the fastest time came back": "the minimum is what the machine can do at its best, the median what it does",
        "the sum of the times came back": "the clock ran through all calls: it is to be started and stopped for each",
        "the last time came back": "the list of times is overwritten, or only its end is used",
        "the warm-up is counted in the median": "the calls of the warm-up are run before the clock, and not timed",
    }
    for summary, value in found.items():
        if close(got, value):
            trial.fail(summary, **rows, likely=why.get(summary, "the median is the middle one when sorted"), read=CLOCK)
    ordered = sorted(times)
    if any(close(got, value) for value in ordered):
        trial.fail(
            "another of the times came back",
            **rows,
            likely="the middle one is times[len(times) // 2] of the *sorted* times; a first run that has earlier work "
            "in it moves the median too",
            read=CLOCK,
        )
    trial.fail(
        f"the time is {got / want:.3g} times the right one",
        **rows,
        likely="each call is timed by itself: wait for the GPU before each start and before each end",
        read=CLOCK,
    )
