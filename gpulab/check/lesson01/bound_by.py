"""The check of what an operation waits for: arithmetic, memory or its launch, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..base import Trial, check
from ..wording import show, text_in
from .common import ROOF, SMALL, Mistake, close, find, number, pair

WORDS = ("compute", "memory", "launch")


@dataclass(frozen=True)
class Case:
    """An operation and a GPU, in the units of data sheets."""

    flops: int
    nbytes: int
    peak_tflops: float
    bandwidth_gbps: float
    launch_us: float

    @property
    def times(self) -> dict[str, float]:
        """Microseconds."""
        return {
            "compute": self.flops / self.peak_tflops * 1e-6,
            "memory": self.nbytes / self.bandwidth_gbps * 1e-3,
            "launch": self.launch_us,
        }

    @property
    def what(self) -> str:
        return max(self.times, key=lambda name: self.times[name])

    @property
    def shortest(self) -> str:
        return min(self.times, key=lambda name: self.times[name])

    @property
    def words(self) -> str:
        return (
            f"{self.flops:,} FLOPs and {self.nbytes:,} bytes at {self.peak_tflops:g} TFLOP/s, "
            f"{self.bandwidth_gbps:g} GB/s, {self.launch_us:g} µs"
        )


def time_mistakes(case: Case) -> Iterator[Mistake]:
    times = case.times
    right, compute, memory, launch = times[case.what], *times.values()
    both = "arithmetic, memory traffic and the launches of the next operations go on side by side: the longest counts"
    yield Mistake(compute + memory + launch, "the three times were added", both)
    yield Mistake(compute + memory, "two of the times were added", both)
    for other in (compute, memory):
        yield Mistake(max(compute, memory) + launch, "the launch was added", both)
        yield Mistake(other + launch, "the launch was added", both)
    yield Mistake(
        min(times.values()), "the shortest time came back", "the operation ends when the slowest part is done"
    )
    for name in WORDS:
        if name != case.what:
            yield Mistake(times[name], f"this is the time of {name}", "the longest of the three is asked for")
    yield Mistake(memory * 8, "the bytes were counted as bits", "GB/s are bytes per second, Gbit/s are not meant")
    yield Mistake(right * 1e-6, "the time came in seconds", "a microsecond is 10⁻⁶ s: multiply by 10⁶")
    yield Mistake(right * 1e-3, "the time came in milliseconds", "a millisecond has 1000 µs")
    yield Mistake(right * 1e3, "the time came in nanoseconds", "a microsecond has 1000 ns")
    if case.what == "memory":
        yield Mistake(
            memory * 1e9 / 2**30,
            "a GB was taken for 2³⁰ bytes",
            "data sheets give bandwidth in 10⁹ bytes per second; 2³⁰ bytes are a GiB",
        )
        yield Mistake(memory * 2, "the bytes were counted twice", "nbytes has what is read and what is written already")
    if case.what == "compute":
        yield Mistake(
            compute * 2,
            "the operations were counted twice",
            "flops counts a multiply-add as two already, and so does the peak",
        )
        yield Mistake(compute / 2, "half of the operations are missing", "flops and the peak both count operations")
        yield Mistake(
            compute * 1e12 / 2**40, "a TFLOP was taken for 2⁴⁰ operations", "it is 10¹²: powers of two are for memory"
        )


def _drawn(what: str) -> Case:
    """An operation that is bound by `what`, by a factor of 3 or more; the launch is the shortest or the longest."""
    peak, bandwidth, launch = round(random.uniform(5, 900), 1), round(random.uniform(200, 4000)), random.uniform(2, 9)
    longest = launch * random.uniform(60, 400) if what != "launch" else launch
    second, third = longest / random.uniform(3, 6), longest / random.uniform(9, 20)
    compute, memory = {"compute": (longest, second), "memory": (second, longest)}.get(
        what, random.choice(((second, third), (third, second)))
    )
    return Case(round(compute * peak * 1e6), round(memory * bandwidth * 1e3), peak, bandwidth, round(launch, 1))


def cases() -> list[Case]:
    found = [_drawn(what) for what in WORDS]
    copy = Case(0, found[1].nbytes, *_gpu(found[1]))  # no arithmetic at all
    # in registers all along: no bytes at all
    inside = Case(found[0].flops, 0, *_gpu(found[0]))
    # intensity above the balance, and yet the launch is longer
    small = next(case for case in iter(lambda: _drawn("launch"), None) if case.times["compute"] > case.times["memory"])
    empty = Case(0, 0, *_gpu(found[2]))
    little = Case(0, found[2].nbytes, *_gpu(found[2]))  # a copy that is done before the next launch is
    few = Case(found[2].flops, 0, *_gpu(found[2]))
    return [*found, small, copy, inside, empty, little, few]


def _gpu(case: Case) -> tuple[float, float, float]:
    return case.peak_tflops, case.bandwidth_gbps, case.launch_us


@check(lesson=1, says="compute, memory or launch: the longest of the three is found, with its time in µs")
def bound_by(student: Any, trial: Trial) -> None:
    """Check a function of (flops, nbytes, peak_tflops, bandwidth_gbps, launch_us): which of "compute", "memory" and
    "launch" takes longest, and how many microseconds that is."""
    parameters = ("flops", "nbytes", "peak_tflops", "bandwidth_gbps", "launch_us")
    trial.function(student, parameters)
    every = cases()
    first = [_answer(student, trial, case) for case in every[:3]]
    _judge_pattern(trial, every[:3], [what for what, _ in first])
    for case, (what, time) in zip(every[:3], first, strict=True):
        _judge_word(trial, case, what)
        _judge_time(trial, case, time)
    for case in every[3:]:
        what, time = _answer(student, trial, case)
        _judge_word(trial, case, what)
        _judge_time(trial, case, time)


def _answer(student: Any, trial: Trial, case: Case) -> tuple[str, float]:
    got = trial.call(student, case.flops, case.nbytes, *_gpu(case), explain=_explain)
    what, time = pair(trial, got, ("what", "microseconds"), ROOF)
    trial.expect(
        not (isinstance(time, str) and not isinstance(what, str)),
        "the two values are swapped",
        expected="(what, microseconds)",
        got=show(got),
        read=ROOF,
    )
    trial.expect(
        isinstance(what, str) and what in WORDS,
        "this is none of the three words",
        expected='"compute", "memory" or "launch"',
        got=show(what),
        read=ROOF,
    )
    return text_in(what), number(trial, time, "microseconds", ROOF)


def _judge_pattern(trial: Trial, found: list[Case], words: list[str]) -> None:
    """Mistakes that show in the words for one operation of each kind together."""
    summary = likely = ""
    if len(set(words)) == 1:
        summary, likely = "every operation is said to wait for the same", "the word does not depend on the numbers"
    elif words[:2] == ["memory", "compute"]:
        summary = "compute and memory are the wrong way round"
        likely = "many operations for each byte keep the arithmetic busy: above the balance it decides, below it memory"
    elif words == [case.shortest for case in found]:
        summary = "the shortest of the three times was taken"
        likely = "they go on side by side: what takes longest is what is waited for"
    if summary:
        trial.fail(
            summary,
            expected=", ".join(f'"{case.what}"' for case in found) + " for three operations",
            got=", ".join(f'"{word}"' for word in words),
            likely=likely,
            read=ROOF,
        )


def _judge_word(trial: Trial, case: Case, what: str) -> None:
    if what == case.what:
        return
    likely = "compare the three times, not the numbers they come from"
    if case.what == "launch":
        summary = "a small operation is said to wait for arithmetic or memory"
        likely = "both are done before the next launch is: an intensity says nothing about that"
        if not (case.flops and case.nbytes):
            likely = (
                "also where one of the three is 0 the longest counts: a small copy is done before the next launch is"
            )
    elif what == "launch":
        summary = "a large operation is said to wait for its launch"
    elif what == "compute":
        summary = "an operation that waits for memory is said to be bound by arithmetic"
        balance = case.peak_tflops / case.bandwidth_gbps
        if not case.flops:
            likely = "it has no arithmetic at all: a copy"
        elif case.flops / case.nbytes > balance:
            likely = "TFLOP/s are 10¹² and GB/s 10⁹ a second: their plain ratio is a thousand times too small"
    else:
        summary = "an operation that is bound by arithmetic is said to wait for memory"
        if not case.nbytes:
            likely = "it moves no bytes at all"
    times = ", ".join(f"{name} {time:.4g}" for name, time in case.times.items())
    trial.fail(
        summary,
        expected=f'"{case.what}" for {case.words}',
        got=f'"{what}"; in µs: {times}',
        likely=likely,
        read=SMALL if case.what == "launch" else ROOF,
    )


def _judge_time(trial: Trial, case: Case, got: float) -> None:
    want = case.times[case.what]
    if close(got, want):
        return
    mistake = find(got, time_mistakes(case))
    trial.fail(
        mistake.summary if mistake else "the time is not right",
        expected=f"{want:.6g} µs for {case.words}",
        got=f"{got:.6g}",
        likely=mistake.likely
        if mistake
        else "FLOPs over 10¹² · peak_tflops, bytes over 10⁹ · bandwidth_gbps, both in seconds; a second has 10⁶ µs",
        read=ROOF,
    )


def _explain(error: str) -> str:
    if error.startswith("ZeroDivisionError"):
        return "an operation may have no FLOPs, or no bytes, so their ratio need not exist; times always do"
    return ""
