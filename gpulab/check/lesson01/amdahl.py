"""The check of Amdahl's law with an overhead, and of the crossover point that follows from it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..base import Trial, check
from .common import LAW, SMALL, Mistake, close, find, number, pair


@dataclass(frozen=True)
class Case:
    """A job: its length, the share that the GPU takes over, how much faster that is, and what it costs beside."""

    seconds: float
    share: float
    factor: float
    overhead: float

    @property
    def remaining(self) -> float:
        """Of each second of the job, without the overhead."""
        return 1 - self.share + self.share / self.factor

    @property
    def speedup(self) -> float:
        return self.seconds / (self.seconds * self.remaining + self.overhead)

    @property
    def crossover(self) -> float:
        if self.share == 0 or self.factor <= 1:
            return math.inf
        return self.overhead / (self.share * (1 - 1 / self.factor))

    @property
    def words(self) -> str:
        return (
            f"seconds={self.seconds:.4g}, share={self.share:.4g}, factor={self.factor:.4g}, "
            f"overhead={self.overhead:.4g}"
        )


def speedup_mistakes(case: Case) -> Iterator[Mistake]:
    seconds, share, factor, overhead = case.seconds, case.share, case.factor, case.overhead
    took = seconds * case.remaining + overhead
    if overhead:
        yield Mistake(
            1 / case.remaining,
            "the overhead is missing from the speed-up",
            "starting and copying take time before and after the work: they are part of the time with the GPU",
        )
        yield Mistake(
            1 / (case.remaining + overhead),
            "the overhead was taken for a share of the job",
            "it is in seconds, whatever the job's length: add it to seconds, not to shares",
        )
        yield Mistake(
            seconds / (seconds * (1 - share) + (seconds * share + overhead) / factor),
            "the overhead was divided by the factor",
            "launches and copies do not get faster because the arithmetic does",
        )
        yield Mistake(
            (seconds + overhead) / took,
            "the overhead was added to the CPU's time too",
            "the CPU alone copies nothing and launches nothing",
        )
        if seconds * case.remaining != overhead:
            yield Mistake(
                seconds / (seconds * case.remaining - overhead),
                "the overhead was subtracted",
                "it makes the time with the GPU longer",
            )
    swapped = share + (1 - share) / factor
    for time in (seconds * swapped + overhead, seconds * swapped):
        yield Mistake(
            seconds / time,
            "share was taken for the part that stays on the CPU",
            "share is what the GPU takes over: 1 - share stays as it was",
        )
    yield Mistake(
        took,
        "the time came back, and not the speed-up",
        "divide the time on the CPU by this time",
    )
    yield Mistake(
        took / seconds,
        "the speed-up is upside down",
        "the CPU's time over the time with the GPU: above 1 where the GPU helps",
    )
    yield Mistake(
        (case.speedup - 1) * 100,
        "the speed-up came in per cent",
        "1.5 is asked for where a job takes two thirds of its time",
    )
    if share not in (0, 1) and math.isfinite(factor):
        scaled = 1 - share + share * factor
        for value in (scaled, 1 / (1 / scaled + overhead / seconds)):
            yield Mistake(
                value,
                "speeds were added, and not times",
                "that is Gustafson's law, for a job that grows with the machine; this job is fixed: add up what its "
                "parts take",
            )
        yield Mistake(
            share * factor,
            "share · factor is no speed-up",
            "times add up, speeds do not: what remains is (1 - share) + share / factor of the time",
        )
        for value in (factor, seconds / (seconds / factor + overhead)):
            yield Mistake(
                value,
                "the part that stays on the CPU is missing",
                "the factor holds for the share that the GPU takes over; the rest takes as long as before",
            )
        gone = seconds / (seconds * share / factor + overhead)
        for value in (gone, factor / share):
            yield Mistake(
                value,
                "the part that stays on the CPU is missing",
                "only the share on the GPU was timed; (1 - share) of the job is still to be done",
            )


def crossover_mistakes(case: Case) -> Iterator[Mistake]:
    seconds, share, factor, overhead = case.seconds, case.share, case.factor, case.overhead
    if not overhead:
        return
    ends = "what a second of the job saves is share · (1 - 1 / factor); the overhead must be saved first"
    if share:
        yield Mistake(overhead / share, "the factor is missing from the crossover", ends)
    if factor != 1:
        yield Mistake(
            overhead / (1 - 1 / factor),
            "the share is missing from the crossover",
            "only the share that the GPU takes over saves anything",
        )
    if share and math.isfinite(factor):
        yield Mistake(overhead * factor / share, "the crossover is another one", ends)
    yield Mistake(
        overhead,
        "the overhead itself is not the crossover",
        "a job as long as the overhead saves less than its own length, and costs all of the overhead",
    )
    if share != 1:
        yield Mistake(
            overhead / (1 - share),
            "the crossover was reckoned with the part that stays on the CPU",
            "what stays takes the same time either way, and drops out of the comparison",
        )
    if case.remaining > 0:
        yield Mistake(
            overhead / case.remaining,
            "the crossover was reckoned with what remains, and not with what is saved",
            "at the crossover t = remaining · t + overhead, so t · (1 - remaining) = overhead",
        )
    if case.share and case.factor != 1:
        exact = overhead / (share * (1 - 1 / factor))
        yield Mistake(
            exact * 1e3,
            "the crossover is not in seconds",
            "all times are in seconds here",
        )
        yield Mistake(
            exact / seconds,
            "the crossover came as a part of this job's length",
            "a length in seconds is asked for: it does not depend on how long this job is",
        )
        yield Mistake(
            seconds - exact,
            "the crossover is the length itself, not what is missing to it",
            "return the length at which both take the same time",
        )
    yield Mistake(
        seconds,
        "the crossover is the length of this job",
        "it is the length at which both would take the same time, whatever this job is",
    )


def _told_apart(case: Case) -> bool:
    for right, mistakes in ((case.speedup, speedup_mistakes(case)), (case.crossover, crossover_mistakes(case))):
        told = [(right, ("", ""))]
        for mistake in mistakes:
            words = mistake.summary, mistake.likely
            if any(close(mistake.value, value, 1e-3) and words != other for value, other in told):
                return False
            told.append((mistake.value, words))
    return True


def _drawn(share: tuple[float, float], factor: tuple[float, float], overhead: tuple[float, float]) -> Case:
    """A job of some seconds; `overhead` in parts of its length."""
    while True:
        seconds = random.uniform(2, 40)
        case = Case(seconds, random.uniform(*share), random.uniform(*factor), random.uniform(*overhead) * seconds)
        if _told_apart(case):
            return case


def cases() -> list[Case]:
    usual = _drawn((0.6, 0.97), (3, 40), (0.05, 0.3))
    short = _drawn((0.5, 0.9), (3, 20), (1.2, 3))  # the CPU wins
    endless = Case(usual.seconds, usual.share, math.inf, usual.overhead)
    free = Case(short.seconds, short.share, short.factor, 0.0)
    whole = Case(short.seconds, 1.0, short.factor, usual.overhead)
    slower = Case(usual.seconds, usual.share, random.uniform(0.2, 0.8), usual.overhead)
    slower_free = Case(usual.seconds, usual.share, slower.factor, 0.0)
    even = Case(usual.seconds, usual.share, 1.0, usual.overhead)
    nothing = Case(usual.seconds, 0.0, usual.factor, usual.overhead)
    whole_numbers = Case(10, 1, 2, 1)
    cost = usual.overhead
    corners = [  # any two of a share, a factor and an overhead at which formulas end
        Case(usual.seconds, share, factor, overhead)
        for share, factor, overhead in (
            (0.0, usual.factor, 0.0),
            (0.0, math.inf, random.choice((cost, 0.0))),
            (0.0, 1.0, 0.0),
            (0.0, slower.factor, cost),
            (1.0, math.inf, cost),
            (1.0, 1.0, random.choice((cost, 0.0))),
            (1.0, slower.factor, cost),
            (1.0, usual.factor, 0.0),
            (usual.share, 1.0, 0.0),
            (usual.share, math.inf, 0.0),
        )
    ]
    hardly = Case(usual.seconds, random.uniform(0.001, 0.01), random.uniform(1.02, 1.1), usual.overhead)
    return [usual, short, endless, free, whole, slower, slower_free, even, nothing, whole_numbers, hardly, *corners]


@check(lesson=1, says="the speed-up has the overhead in it, and the crossover holds, also where it is 0 or never")
def amdahl(student: Any, trial: Trial) -> None:
    """Check a function of (seconds, share, factor, overhead): the speed-up of the whole job, and the length of job in
    seconds on the CPU from which the GPU is ahead, 0 where it always is and infinity where it never is."""
    trial.function(student, ("seconds", "share", "factor", "overhead"))
    for case in cases():
        got = trial.call(student, case.seconds, case.share, case.factor, case.overhead, explain=_explainer(case))
        first, second = pair(trial, got, ("speedup", "crossover"), LAW)
        speedup, crossover = number(trial, first, "speedup", LAW), number(trial, second, "crossover", SMALL)
        trial.expect(
            not (case.speedup != case.crossover and close(speedup, case.crossover) and close(crossover, case.speedup)),
            "the two numbers are swapped",
            expected=f"({case.speedup:.6g}, {case.crossover:.6g})",
            got=f"({speedup:.6g}, {crossover:.6g})",
            read=LAW,
        )
        if not close(speedup, case.speedup):
            mistake = find(speedup, speedup_mistakes(case))
            trial.fail(
                mistake.summary if mistake else "the speed-up is not right",
                expected=f"{case.speedup:.6g} for {case.words}",
                got=f"{speedup:.6g}",
                likely=mistake.likely
                if mistake
                else "the CPU's time over (1 - share) of it, plus share / factor of it, plus the overhead",
                read=LAW,
            )
        _judge_crossover(trial, case, crossover)


_NEXT_TO_NOTHING = 1e-12  # seconds: what a search that halves, or a rounded difference, leaves where 0 is right


def _judge_crossover(trial: Trial, case: Case, got: float) -> None:
    want = case.crossover
    if close(got, want) or (want == 0 and abs(got) < _NEXT_TO_NOTHING):
        return
    mistake = find(got, crossover_mistakes(case))
    if math.isinf(want):
        why = "takes over nothing" if not case.share else "is no faster at its part"
        summary = "a GPU that never pays has a crossover"
        likely = f"where it {why}, no job is long enough: math.inf"
        if got < 0:
            summary = "the crossover is negative"
            likely = f"a formula that was used beyond its range: where it {why}, nothing is saved: math.inf"
    elif want == 0:
        summary = "a GPU without overhead has a crossover"
        likely = "it is ahead from the start if it saves anything: 0"
    elif mistake:
        summary, likely = mistake.summary, mistake.likely
    elif math.isinf(got):
        summary, likely = "the GPU is said never to pay", "it saves time in each second of the job: that pays some time"
    else:
        summary = "the crossover is not right"
        likely = "set the two times equal, t = t · (1 - share + share / factor) + overhead, and solve for t"
    trial.fail(
        summary,
        expected=f"{want:.6g} s for {case.words}",
        got=f"{got:.6g}",
        likely=likely,
        read=SMALL,
    )


def _explainer(case: Case) -> Any:
    def explain(error: str) -> str:
        if not error.startswith("ZeroDivisionError"):
            return ""
        if case.share == 0 or case.factor == 1:
            return "where nothing is saved, the overhead is never made up for: look for that before you divide"
        if math.isinf(case.factor):
            return "1 / factor is 0 for an infinitely fast GPU"
        if case.overhead == 0:
            return "the overhead may be 0: do not divide by it"
        return "share may be 1: do not divide by what stays on the CPU"

    return explain
