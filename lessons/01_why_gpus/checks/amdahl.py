"""Checks exercise 01.2, "what the whole job gains": Amdahl's law with an overhead, and its crossover."""

from __future__ import annotations

import random
from math import inf, isinf
from typing import NamedTuple

from gpulab.exercise.numbers import Clause, Numbers, Part
from gpulab.exercise.scenes import Scene

LAW, SMALL = "Amdahl: the part that does not get faster", "When the CPU wins"


class Job(NamedTuple):
    seconds: float
    share: float
    factor: float
    overhead: float

    @property
    def remains(self) -> float:
        """Of each second, without the overhead."""
        return 1 - self.share + self.share / self.factor

    @property
    def took(self) -> float:
        return self.seconds * self.remains + self.overhead

    @property
    def speedup(self) -> float:
        return self.seconds / self.took

    @property
    def never(self) -> bool:
        return self.share == 0 or self.factor <= 1

    @property
    def crossover(self) -> float:
        return inf if self.never else self.overhead / (self.share * (1 - 1 / self.factor))


EDGES = {
    "share": ((0.6, 0.95), (0, 0), (1, 1), (2e-4, 1e-3)),
    "factor": ((3, 30), (inf, inf), (1, 1), (0.2, 0.8)),
    "overhead": ((0.05, 0.3), (0, 0), (1.2, 3)),  # in parts of the job: with the last the CPU wins
}


def draw(edge: Scene) -> Job:
    def some(ends: tuple[float, float]) -> float:
        return ends[0] if ends[0] == ends[1] else random.uniform(*ends)

    seconds = random.choice((10, random.uniform(2, 40)))
    return Job(seconds, some(edge.share), some(edge.factor), some(edge.overhead) * seconds)


def explain(j: Job, error: str) -> str:
    if "ZeroDivision" not in error:
        return ""
    if j.share == 0 or j.factor == 1:
        return "where nothing is saved, nothing makes up for the overhead: test for that before you divide"
    return "1 / factor is 0 for an infinitely fast GPU; the overhead may be 0, and share 1: do not divide by either"


CLAUSES: list[Clause[Job]] = [
    Clause("the job's time on the CPU over its time with the GPU", "speedup", "the speed-up is not right",
           "with the GPU it is (1 - share) of the CPU's time, plus share / factor of it, plus the overhead"),
    Clause("math.inf if none is", "crossover", "a GPU that never pays off has a finite crossover",
           "if it takes over nothing, or is no faster at its part, no job is long enough", lambda j: j.never),
    Clause("0 if all jobs are", "crossover", "a GPU without overhead has a crossover above 0",
           "it is faster from the start if it saves anything", lambda j: not j.overhead),
    Clause("jobs that take longer than this many seconds on the CPU are faster with the GPU", "crossover",
           "the crossover is not right", "there t = t · (1 - share + share / factor) + overhead"),
]  # fmt: skip
MISTAKES = [
    ("speedup", "the overhead is missing from the speed-up",
     "starting and copying take time before and after the work: they are part of the time with the GPU",
     lambda j: 1 / j.remains),
    ("speedup", "the overhead was treated as a share of the job",
     "it is in seconds, whatever the job's length: add it to seconds, not to shares",
     lambda j: 1 / (j.remains + j.overhead)),
    ("speedup", "the overhead was divided by the factor",
     "launches and copies do not get faster because the arithmetic does",
     lambda j: j.seconds / (j.seconds * (1 - j.share) + (j.seconds * j.share + j.overhead) / j.factor)),
    ("speedup", "the overhead was added to the CPU's time too", "the CPU alone copies nothing and launches nothing",
     lambda j: (j.seconds + j.overhead) / j.took),
    ("speedup", "the overhead was subtracted", "it makes the time with the GPU longer",
     lambda j: j.seconds / (j.seconds * j.remains - j.overhead)),
    ("speedup", "share was taken for the part that stays on the CPU",
     "share is what the GPU takes over: 1 - share stays as it was",
     lambda j: j.seconds / (j.seconds * (j.share + (1 - j.share) / j.factor) + j.overhead),
     lambda j: 1 / (j.share + (1 - j.share) / j.factor)),
    ("speedup", "the time was returned, not the speed-up", "divide the time on the CPU by this time",
     lambda j: j.took),
    ("speedup", "the speed-up is upside down", "the CPU's time over the time with the GPU: above 1 where the GPU helps",
     lambda j: 1 / j.speedup),
    ("speedup", "the speed-up was returned in per cent",
     "a job that takes two thirds of its time has a speed-up of 1.5",
     lambda j: (j.speedup - 1) * 100),
    ("speedup", "speeds were added, not times",
     "that is Gustafson's law, for a job that grows with the machine; this job does not grow: add up the times of its "
     "parts",
     lambda j: 1 - j.share + j.share * j.factor,
     lambda j: 1 / (1 / (1 - j.share + j.share * j.factor) + j.overhead / j.seconds)),
    ("speedup", "share · factor is not a speed-up",
     "times add up, speeds do not: what remains is (1 - share) + share / factor of the time",
     lambda j: j.share * j.factor),
    ("speedup", "the part that stays on the CPU is missing",
     "the factor holds for the share that the GPU takes over; the rest takes as long as before",
     lambda j: j.factor, lambda j: j.seconds / (j.seconds / j.factor + j.overhead)),
    ("speedup", "the part that stays on the CPU is missing",
     "only the share on the GPU was counted; (1 - share) of the job is still to be done",
     lambda j: j.seconds / (j.seconds * j.share / j.factor + j.overhead), lambda j: j.factor / j.share),
    ("crossover", "the factor is missing from the crossover",
     "what a second of the job saves is share · (1 - 1 / factor); the overhead must be saved first",
     lambda j: j.overhead / j.share if j.share else inf, lambda j: j.overhead * j.factor / j.share),
    ("crossover", "the share is missing from the crossover", "only the share that the GPU takes over saves anything",
     lambda j: j.overhead / (1 - 1 / j.factor) if j.factor > 1 else inf),
    ("crossover", "the overhead itself is not the crossover",
     "a job as long as the overhead saves less than its own length, and pays the whole overhead",
     lambda j: j.overhead),
    ("crossover", "the crossover was computed with the part that stays on the CPU",
     "what stays takes the same time either way, and drops out of the comparison",
     lambda j: j.overhead / (1 - j.share) if j.share < 1 else inf),
    ("crossover", "the crossover was computed from the time that remains, not from the time saved",
     "at the crossover t = remaining · t + overhead, so t · (1 - remaining) = overhead",
     lambda j: j.overhead / j.remains),
    ("crossover", "the crossover is not in seconds", "all times are in seconds here", lambda j: 1e3 * j.crossover),
    ("crossover", "the crossover was returned as a fraction of this job's length",
     "a length in seconds is asked for: it does not depend on how long this job is", lambda j: j.crossover / j.seconds),
    ("crossover", "the difference between the crossover and this job's length was returned",
     "return the length itself, at which both take the same time", lambda j: j.seconds - j.crossover),
    ("crossover", "the crossover is the length of this job",
     "it is the length at which both would take the same time, whatever this job is", lambda j: j.seconds),
    ("crossover", "the crossover is negative",
     "the formula does not hold here: if the GPU is no faster at its part, nothing is saved, and the answer is "
     "math.inf",
     lambda j: j.overhead / (j.share * (1 - 1 / j.factor)) if j.share and j.factor != 1 else inf),
    ("crossover", "a GPU that pays off is said never to do so",
     "it saves time in each second of the job, so a long enough job makes up for the overhead",
     lambda j: inf if j.took > j.seconds else j.crossover,
     lambda j: j.crossover if j.share * (1 - 1 / j.factor) > 1e-3 else inf),
]  # fmt: skip
EXERCISE = Numbers(
    __file__,
    says="the speed-up includes the overhead, and the crossover is right, also where it is 0 or infinite",
    parameters=Job._fields,
    job=Job,
    edges=EDGES,
    draw=draw,
    possible=lambda e: e.share != (1, 1) or not isinf(e.factor[0]),  # a job that takes no time is not asked for
    parts={"speedup": Part(lambda j: j.speedup, LAW), "crossover": Part(lambda j: j.crossover, SMALL)},
    clauses=CLAUSES,
    mistakes=MISTAKES,
    explain=explain,
)
