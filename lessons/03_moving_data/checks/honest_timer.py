"""Checks a timer for GPU work: what it times, what it includes, and which of the times it returns."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from gpulab.exercise.clocks import Clocks, clocks_here, scope
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, is_finite, is_number

QUEUE, CLOCK = "The launch queue", "A clock that tells the truth"

EARLIER = 0.06  # seconds of work that is queued before the student's function is called
WITHIN = 0.04  # who asks every half millisecond whether the GPU is done is late by so much
_NOTHING = 1 / 1500  # a part of the right time: below it lies that of launches, above it the time in seconds
# Of seven calls the first, the last and the middle one as taken are none that a statistic picks.
_PLAIN, _TELLING = (1.25, 1.5, 3.2), (1.0, 1.9, 2.8, 6.0)
OTHER_CLOCK = "a wrong time, by another clock than time.perf_counter"
ONE, SIDE, SECOND = "ms of one call", "ms of one call in a side stream", "ms of one call on the second GPU"
AFTER, WARM, MEDIAN = "ms of one call after earlier work", "ms of one call after a warm-up", "ms of the median call"
CLAUSES = [
    Clause(quote, facts, summary, rule, QUEUE if facts == [ONE] else CLOCK)
    for quote, facts, summary, rule in (
        ("as a float", ["what came back", "parts of a millisecond are kept"],
         "what came back is not a float with its digits",
         "return the median itself as a float: not a list, a tensor or a string, and not rounded to whole "
         "milliseconds"),
        ("The median time of `fn()` on the GPU, in milliseconds", ["unit"], "the time is in the wrong unit",
         "the host's clocks count seconds, and elapsed_time counts milliseconds"),
        ("A clock of the host, if one is read, is time.perf_counter", [OTHER_CLOCK],
         "the clock is not suited to this", "use time.perf_counter, or events"),
        ("A call's time is that of its own work, from its start on the GPU to its end", [ONE],
         "the time is not that of one call's work",
         "start and stop the clock for each call, and stop it when the GPU has finished"),
        ("queues work in the current stream of the current GPU", ["the current GPU and stream stay", SIDE, SECOND],
         "the time is wrong if the work is in a side stream, or on another GPU",
         "record() and torch.cuda.synchronize() without an argument mean the current stream and the current GPU"),
        ("without anything that was queued earlier", [AFTER], "with earlier work in the queue the time is wrong",
         "wait for the GPU before the clock starts, or mark the start in the stream, with an event"),
        ("how many calls are timed", ["calls of fn"], "fn was not called as often as it should be",
         "with warm_up = 0 there are `repeats` calls"),
        ("how many calls go before them untimed", ["calls of fn, with a warm-up", WARM],
         "the warm-up is not what it should be",
         "warm_up calls come before the repeats; neither they nor what is still queued from them is timed"),
        ("The median time", [MEDIAN], "the time is not the median of the calls' times",
         "each call is timed by itself: wait for the GPU before each start and before each end. The median is the "
         "middle one of the sorted times"),
    )
]  # fmt: skip
EDGES = {
    "repeats": (1, 3, 7),
    "warm_up": (0, 1, 3),
    "stream": ("the default stream", "a side stream"),
    "gpu": (0, 1),
    "kernels": (1, 3),  # of one call
    "waits": (False, True),  # fn itself, for its work
}


class Run:
    """One call of the student's function: what came back, and what was seen meanwhile.

    Each call of `fn` queues kernels in the current stream, together of the next of `seconds`.
    """

    def __init__(
        self, call: Callable[..., Any], scene: Scene, seconds: list[float], repeats: int, warm_up: int, earlier: float
    ) -> None:
        before, marks, self.calls, own_waits = clocks_here(), set[int](), 0, 0
        with scope(compute=False, count=2) as gpu, gpu.timeline() as timeline:
            device = gpu.device(scene.gpu)
            side = torch.cuda.Stream(scene.gpu) if scene.stream == "a side stream" else None
            number = side.stream_id if side else 0
            if earlier:
                device.timer.kernel(number, earlier, "earlier work")
            mark = device.timer.mark

            def noted(stream: int) -> float:
                marks.add(stream)
                return mark(stream)

            def work() -> None:
                nonlocal own_waits
                takes, current = seconds[min(self.calls, len(seconds) - 1)], gpu.device(None)
                self.calls += 1
                for _ in range(scene.kernels):
                    current.timer.kernel(current.stream, takes / scene.kernels, "work")
                if scene.waits:
                    own_waits += 1
                    current.timer.synchronize(current.stream)

            def timed(student: Any, fn: Any, repeats: Any, warm_up: Any) -> Any:
                with ExitStack() as inside:
                    clocks = inside.enter_context(Clocks(student, before, gpu.clock))
                    if scene.gpu:
                        inside.enter_context(torch.cuda.device(scene.gpu))
                    if side is not None:
                        inside.enter_context(torch.cuda.stream(side))
                    returned = student(fn, repeats, warm_up)
                    self.clocks, self.own_clock = clocks.used, clocks.own
                    self.stays = gpu.device(None) is device and device.stream == number
                    return returned

            device.timer.mark = noted  # type: ignore[method-assign]
            self.got = call(work, repeats, warm_up, through=timed)
        waits = [span for span in timeline.spans if span.where == "host" and span.name.endswith("synchronize")]
        self.by_another_clock = bool(self.clocks) or not (marks or self.own_clock)  # as datetime's, which nobody sees
        self.waited, self.elsewhere = len(waits) > own_waits, bool(marks - {number})


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    """One call of fn; one after earlier work; and `repeats` calls of different length after a slow warm-up."""
    one, base = random.uniform(0.014, 0.02), random.uniform(0.014, 0.02)
    warm = [5 * base, 4.5 * base, 0.4 * base][: scene.warm_up]  # not each of them slow
    times = [base * factor for factor in factors(scene.repeats)]
    facts = Facts(f"in {scene.stream} of cuda:{scene.gpu}, repeats = {scene.repeats}, warm_up = {scene.warm_up}")

    run = Run(call, Scene(**{**vars(scene), "gpu": 0, "stream": "the default stream"}), [one], 1, 0, 0.0)
    facts.seen["events in another stream"] = run.elsewhere
    facts.add("what came back", kind_of(run.got), "a number")
    if not facts.hold():
        return facts
    facts.add("parts of a millisecond are kept", bool(run.got != round(run.got)), True)
    facts.add("unit", unit(run.got, one * 1e3), "milliseconds")
    if facts.hold():
        off = abs(float(run.got) - one * 1e3) > WITHIN * one * 1e3
        facts.add(OTHER_CLOCK, off and run.by_another_clock, False)
    add_ms(facts, ONE, run.got, one)

    if scene.gpu or scene.stream == "a side stream":
        run = Run(call, scene, [one], 1, 0, 0.0)
        facts.seen["events in another stream than the side stream"] = run.elsewhere
        if facts.hold():
            facts.add("the current GPU and stream stay", run.stays, True)
        add_ms(facts, SECOND if scene.gpu else SIDE, run.got, one)

    run = Run(call, scene, [one], 1, 0, EARLIER)
    facts.seen |= {
        "waited for earlier work": run.waited,
        "ms, right or wrong": 0.0 if run.by_another_clock else without_launches(run.got, one),
    }
    add_ms(facts, AFTER, run.got, one)

    run = Run(call, scene, [*warm, *times, 7 * base], scene.repeats, scene.warm_up, 0.0)
    name = "calls of fn, with a warm-up" if scene.warm_up else "calls of fn"
    if facts.hold():
        facts.add(name, run.calls, scene.repeats + scene.warm_up)
    name = WARM if scene.repeats == 1 and scene.warm_up else MEDIAN
    add_ms(facts, name, run.got, statistics.median(times))
    return facts


def factors(repeats: int) -> list[float]:
    """How long the timed calls are: the fastest, the middle one, the slowest and the mean lie well apart."""
    if repeats < 7:
        return random.sample(_TELLING[:repeats], repeats)
    plain, telling = random.sample(_PLAIN, 3), random.sample(_TELLING, 4)
    return [plain[0], *telling[:2], plain[1], *telling[2:], plain[2]]


def add_ms(facts: Facts, name: str, got: Any, seconds: float) -> None:
    """Judge a time, unless an earlier one was wrong."""
    if facts.hold():
        facts.add(name, without_launches(got, seconds), Near(seconds * 1e3, WITHIN))


def without_launches(got: Any, seconds: float) -> Any:
    """A time; 0 where it is that of launches, which differ."""
    return (0.0 if abs(got) < _NOTHING * seconds * 1e3 else as_float(got)) if is_number(got) else kind_of(got)


def kind_of(got: Any) -> str:
    if is_number(got):
        return "a number" if is_finite(got) else f"{as_float(got):g}"
    return "None" if got is None else f"a {type(got).__name__}"


def unit(got: Any, want: float) -> str:
    """That in which `got` is the right time; milliseconds where it is in none."""
    units = {"seconds": 1e-3, "microseconds": 1e3, "nanoseconds": 1e6}
    return next((name for name, times in units.items() if abs(got / times - want) <= WITHIN * want), "milliseconds")


EXERCISE = Contract(
    __file__,
    says="the median of the work's own time, whatever was queued before it",
    parameters=("fn", "repeats", "warm_up"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    hides=lambda scene: ("warm_up",) if scene.waits else (),  # then nothing of it is still queued
    errors={
        "must be completed": "elapsed_time was called before the GPU had reached the end event: call "
                             "end.synchronize() first",
        "enable_timing": "an event records the time only if made with torch.cuda.Event(enable_timing=True)",
        "must be recorded": "an event has no time before record() was called on it",
        "repeats": "fn takes no arguments: it is called as fn()",
    },
)
