"""Checks a choice among four ways to train; for each mistake there are jobs that show it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpulab.exercise.base import Trial
from gpulab.exercise.numbers import Clause, Numbers, Part
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_whole

Way = Callable[["Job", int], float]  # bytes on each of so many ranks, or whether it may be used on them
ROUND = 720720  # divides by all ranks up to 16, so that no share of bytes is a fraction
Answer = tuple[int, str] | tuple[None]
NOTHING = (None,)  # what None is here: a formula that gives None is not compared


class Job(NamedTuple):
    parameters: int
    unit: int
    activations: int
    batch: int
    memory: int
    machine: int
    most: int

    def own(self, ranks: int) -> float:
        return self.activations * self.batch / ranks

    def shard(self, ranks: int) -> float:
        return 16 * self.parameters / ranks


WAYS: dict[str, Way] = {  # bytes; the simplest first
    "ddp": lambda j, n: 16 * j.parameters + j.own(n),
    "zero1": lambda j, n: 8 * j.parameters + j.shard(n) / 2 + j.own(n),
    "fsdp": lambda j, n: j.shard(n) + 16 * j.unit + j.own(n),
    "tensor": lambda j, n: j.shard(n) + j.own(n),
}


def divides(j: Job, ranks: int) -> bool:
    return j.batch % ranks == 0


def within(j: Job, ranks: int) -> bool:
    return ranks <= j.machine


def fitting(
    j: Job,
    *,
    ranks: range | None = None,
    memory: float | None = None,
    equal: Way = divides,
    machine: Way = within,
    **other: Way,
) -> Iterator[tuple[int, str]]:
    """The ways that fit, with the fewest ranks first; with `other` ways to count their bytes, or to be allowed."""
    for n in ranks or range(1, j.most + 1):
        for way, needed in {**WAYS, **other}.items():
            allowed = (machine if way == "tensor" else equal)(j, n)
            if allowed and needed(j, n) <= (j.memory if memory is None else memory):
                yield n, way


def right(j: Job, **other: Any) -> Answer:
    return next(fitting(j, **other), NOTHING)


def by(**other: Any) -> Callable[[Job], Answer]:
    return lambda j: right(j, **other)


def best(key: Callable[[Job, tuple[int, str]], Any]) -> Callable[[Job], Answer]:
    """Of all that fit, the one with the least of this."""
    return lambda j: min(fitting(j), key=lambda one: key(j, one), default=NOTHING)


def in_order(*ways: str) -> Callable[[Job], Answer]:
    return best(lambda j, one: (one[0], ways.index(one[1])))


ORDER = [*WAYS]
MISTAKES: list[tuple[Any, ...]] = [
    ("answer", *row) for row in (
        ("one GPU more than `most` is tried", "range(1, most + 1) ends with most",
         lambda j: right(j, ranks=range(1, j.most + 2))),
        ("the largest number of GPUs is not tried", "range excludes its end: most + 1",
         lambda j: right(j, ranks=range(1, j.most)) if j.most > 1 else NOTHING),
        ("one GPU is not tried", "range(1, …): if the model fits on one GPU, nothing need be sent",
         lambda j: right(j, ranks=range(2, j.most + 1)) if j.most > 1 else NOTHING),
        ("only powers of two are tried", "any number of ranks that divides the batch is allowed",
         lambda j: next((one for one in fitting(j) if one[0] in (1, 2, 4, 8, 16)), NOTHING)),
        ("zero1 counts 4 bytes kept and 12 cut",
         "stage 1 cuts the optimizer state alone; weights and gradients, 8 bytes, stay whole",
         by(zero1=lambda j, n: 4 * j.parameters + j.shard(n) * 12 / 16 + j.own(n))),
        ("zero1 needs as much as ddp", "its 8 bytes of optimizer state are divided by the ranks",
         by(zero1=WAYS["ddp"])),
        ("ddp counts 12 bytes for each parameter", "the gradient takes 4 bytes too: 4 + 4 + 8",
         by(ddp=lambda j, n: 12 * j.parameters + j.own(n))),
        ("ddp divides its 16 bytes by the ranks", "DDP shares the work: each GPU has a whole copy",
         by(ddp=lambda j, n: j.shard(n) + j.own(n))),
        ("fsdp has nothing whole", "it gathers a unit to compute with it: count four units, 4 bytes per parameter",
         by(fsdp=WAYS["tensor"])),
        ("fsdp has fewer units whole than it needs",
         "the next unit's weights arrive while this one computes, and a gradient and its copy wait to be sent: four "
         "units",
         *(by(fsdp=lambda j, n, k=k: j.shard(n) + 4 * k * j.unit + j.own(n)) for k in (1, 2, 3)),
         by(fsdp=lambda j, n: j.shard(n) + 16 * j.unit / n + j.own(n))),
        ("fsdp has more units whole than it needs",
         "weights of two, the gradient of one and its copy: four units of 4 bytes per parameter, no more",
         by(fsdp=lambda j, n: j.shard(n) + 20 * j.unit + j.own(n))),
        ("fsdp keeps all weights whole", "they are sharded too; the four units include those that are whole",
         by(fsdp=lambda j, n: j.shard(n) + 4 * j.parameters + 16 * j.unit + j.own(n))),
        ("tensor has units whole", "nothing is gathered: each rank computes with its part of the matrices",
         by(tensor=WAYS["fsdp"])),
        ("fsdp and tensor count 12 bytes cut", "the gradient's 4 bytes are in the 16",
         by(fsdp=lambda j, n: j.shard(n) * 12 / 16 + 16 * j.unit + j.own(n),
            tensor=lambda j, n: j.shard(n) * 12 / 16 + j.own(n))),
        ("tensor has the activations of the batch whole on each GPU", "they are sharded over the ranks as well",
         by(tensor=lambda j, n: j.shard(n) + j.own(1))),
        ("the samples of a rank are rounded, also under tensor",
         "tensor cuts each sample, so that nothing is left over: activations * batch / ranks",
         by(tensor=lambda j, n: j.shard(n) + j.activations * -(-j.batch // n)),
         by(tensor=lambda j, n: j.shard(n) + j.activations * (j.batch // n))),
        ("activations of one sample are counted, whatever the rank's part of the batch",
         "a rank has batch / ranks samples",
         by(**{w: lambda j, n, w=w: WAYS[w](j, n) - j.own(n) + j.activations for w in WAYS})),
        ("each rank has the whole batch's activations",
         "batch is for all ranks together: a rank has batch / ranks",
         by(**{w: lambda j, n, w=w: WAYS[w](j, n) - j.own(n) + j.own(1) for w in WAYS})),
        ("the batch is split though it does not divide evenly",
         "three of the ways give each rank an equal part: batch % ranks == 0",
         by(equal=lambda j, n: True), by(equal=lambda j, n: n <= j.batch)),
        ("tensor is left out if the batch does not divide evenly", "every rank of tensor works on the whole batch",
         by(machine=lambda j, n: within(j, n) and divides(j, n)),
         by(machine=lambda j, n: within(j, n) and n <= j.batch)),
        ("tensor is left out where its ranks do not divide a machine's GPUs",
         "three of eight GPUs are within one machine, too: ranks <= machine",
         by(machine=lambda j, n: within(j, n) and j.machine % n == 0)),
        ("tensor goes beyond one machine", "the next kernel has to wait for its exchanges: ranks <= machine",
         by(machine=lambda j, n: True)),
        ("tensor is used on a whole machine only", "it may use fewer of the machine's GPUs: ranks <= machine",
         by(machine=lambda j, n: n == j.machine)),
        ("tensor is left out where it takes all GPUs of a machine", "within one machine: <=, not <",
         by(machine=lambda j, n: n < j.machine)),
        ("a GPU that is exactly full is rejected", "full to the last byte is allowed: <=",
         lambda j: right(j, memory=j.memory - 1e-3)),
        ("a tenth of the memory is left free", "a good habit, but not asked for: all of memory may be used",
         lambda j: right(j, memory=0.9 * j.memory)),
        ("an earlier way is taken on more GPUs", "the number of GPUs comes first: the outer loop goes over ranks",
         best(lambda j, one: (ORDER.index(one[1]), one[0]))),
        ("of the ways that fit on the fewest GPUs, the one with the fewest bytes is chosen",
         "the first that fits is the simplest: spare memory is not worth a more complex way",
         best(lambda j, one: (one[0], WAYS[one[1]](j, one[0])))),
        ("of the ways that fit on the fewest GPUs, not the first is chosen", "the first that fits is the simplest",
         in_order(*reversed(ORDER)), in_order("zero1", "ddp", "fsdp", "tensor"),
         in_order("ddp", "fsdp", "zero1", "tensor"), in_order("ddp", "zero1", "tensor", "fsdp")),
        ("if nothing fits the largest number is returned",
         "return None: with `most` GPUs the job would run out of memory on all of them",
         *(lambda j, way=way: (j.most, way) if right(j) is NOTHING else right(j) for way in WAYS)),
    )
]  # fmt: skip
SHOWS: list[tuple[Any, Any]] = [(right, formula) for _, _, _, *formulas in MISTAKES for formula in formulas]
SHOWS.append((by(zero1=WAYS["ddp"]), in_order("ddp", "fsdp", "zero1", "tensor")))  # which are seldom told apart


def draw(scene: Scene) -> Job:
    """A job for which these two formulas give different answers."""
    one, other = scene.shows
    while True:
        count, ranks = ROUND * random.randint(2, 40), random.randint(1, 6)
        job = Job(
            parameters=count,
            unit=count // random.randint(2, 15),
            activations=ROUND * random.randint(1, 40),
            batch=random.choice([0, ranks, ranks, ranks]) * random.randint(1, 5) + random.choice([0, 0, 1]) or 1,
            memory=0,
            machine=random.choice([1, 2, 4, 8, ranks]),
            most=ranks + random.randint(-1, 8) or 1,
        )
        spare = random.choice([0, random.randint(0, 4 * job.unit), random.randint(0, 4 * count)])
        job = job._replace(memory=int(random.choice([*WAYS.values()])(job, ranks)) + spare)
        if one(job) != other(job):
            return job


def pair(trial: Trial, value: Any, name: str, read: str) -> Answer:
    """`value`, if it is None or a whole number and the name of a way."""
    if value is None or value is NOTHING:
        return NOTHING
    likely = "which way is the other half of the decision" if is_whole(value) else ""
    if isinstance(value, tuple | list):
        likely = "if nothing fits, return None itself" if None in value else "(ranks, way), the number first"
    trial.expect(
        isinstance(value, tuple | list) and len(value) == 2 and is_whole(value[0]) and isinstance(value[1], str),
        "what is returned is neither (ranks, way) nor None",
        expected="(ranks, way): a whole number and a name",
        got=brief(value),
        likely=likely,
        read=read,
    )
    return int(value[0]), str(value[1])


CLAUSES: list[Clause[Job]] = [
    Clause("None if none of them fits", "answer", "a way is returned though none fits",
           "up to `most` ranks, none of the four has enough memory", lambda j: right(j) is NOTHING),
    Clause("the fewest GPUs that train the model", "answer", "the choice is wrong",
           "among the ways that fit and are allowed, take the fewest ranks, then the first way"),
]  # fmt: skip
EXERCISE = Numbers(
    __file__,
    says="the fewest GPUs that are enough, and the simplest way that fits on them",
    parameters=Job._fields,
    job=Job,
    edges={"shows": SHOWS},
    draw=draw,
    parts={"answer": Part(right, "A 7B, a 13B and a 70B planned", pair)},
    clauses=CLAUSES,
    mistakes=MISTAKES,
)
