"""The check of a loader whose workers draw random numbers: from four generators, in two epochs, in several runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .. import settings
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from .sections import MISTAKES, SEEDS
from .workers import Workers, quiet

SOURCES = ("torch", "NumPy", "random", "dataset.rng")
EPOCHS = 3
KIND, COUNT, SIZES = "kind of what is returned", "num_workers", "sizes of the batches"
ONCE, ORDER = "samples of an epoch", "orders of the epochs"
WORKERS, PASSED = "generators from which two workers draw the same", "generators that draw what they drew before"
AGAIN, ORDER_AGAIN = "generators that draw other numbers in a second run", "order in a second run"
OTHER, ORDER_OTHER = "generators that draw the same with another seed", "order with another seed"
PROCESS = "generators of the process that were drawn from"
REPEATED = "dataset.rng after worker_init_fn has run again"  # tells counting in a worker's own memory from not counting
CLAUSES = [
    Clause(*row)
    for row in (
        ("A DataLoader", [KIND], "what came back is no DataLoader", "return it", SEEDS),
        ("how many workers there are", [COUNT], "there are more or fewer workers", "num_workers=workers", SEEDS),
        ("samples in a batch", [SIZES], "the batches have other sizes", "batch_size, and nothing is dropped", SEEDS),
        (
            "Each epoch gives every sample once",
            [ONCE],
            "an epoch does not give every sample once",
            "shuffle=True goes through the dataset once",
            SEEDS,
        ),
        ("in another order", [ORDER], "the epochs have the same order", "shuffle=True", SEEDS),
        (
            "In the process itself no generator is seeded and nothing is drawn",
            [PROCESS],
            "in the process itself numbers were drawn",
            "without a generator of its own a loader takes seeds and order from torch's global one",
            SEEDS,
        ),
        (
            "No two workers draw the same numbers",
            [WORKERS],
            "two workers draw the same numbers",
            "each worker is a copy of the process, generators and all",
            SEEDS,
        ),
        (
            "no worker draws in an epoch what was drawn in one before",
            [PASSED],
            "an epoch draws the numbers of one before",
            "workers are made anew for each epoch, and what they compute their seed from is the same as before",
            SEEDS,
        ),
        (
            "gives the same batches with the same numbers",
            [AGAIN, ORDER_AGAIN],
            "a second run of this seed gives other batches",
            "all of it must come from seed",
            SEEDS,
        ),
        (
            "with another seed both order and numbers are others",
            [OTHER, ORDER_OTHER],
            "another seed gives the same order, or the same numbers",
            "order and numbers must come from seed",
            MISTAKES,
        ),
    )
]
EDGES = {
    "workers": (1, 2, 3),
    "seed": ("small", "of 32 bits"),
    "size": ("full batches", "a rest"),
    "other": ("the next", "in its upper bits", "any"),  # the seed of another run
}
SEEDS_OF = {"small": 0, "of 32 bits": 2**32 - 42}


class Drawing(Dataset[Any]):
    """A sample is its index, and one number from each generator."""

    def __init__(self, size: int) -> None:
        self.size, self.rng = size, np.random.default_rng(random.randrange(2**31))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        own = self.rng.integers(2**53) / 2**53  # which a Generator has, and a RandomState has not
        drawn = torch.rand((), dtype=torch.float64).item(), np.random.random(), random.random(), own
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Seen:
    """One run: what the loader is, and the batches of its epochs, as lists of rows."""

    def __init__(self, student: Callable[..., Any], data: Drawing, *args: Any) -> None:
        before = _states(data)
        loader = student(data, *args)
        self.kind = "a DataLoader" if isinstance(loader, DataLoader) else type(loader).__name__
        self.epochs: list[list[list[list[float]]]] = []
        if isinstance(loader, DataLoader):
            self.workers = loader.num_workers
            played = Workers(loader)
            self.epochs = [[batch.tolist() for batch in played.epoch()] for _ in range(EPOCHS if self.workers else 0)]
            first, again = played.after_each_init(lambda: repr(data.rng.bit_generator.state))
            self.repeated = "the same" if first == again else "another one"
        after = _states(data)
        self.drawn = [source for source in SOURCES if before[source] != after[source]]

    def orders(self) -> list[list[float]]:
        return [[row[0] for batch in epoch for row in batch] for epoch in self.epochs]

    def numbers(self, source: int, epoch: int, worker: int) -> set[float]:
        return {row[1 + source] for batch in self.epochs[epoch][worker :: self.workers] for row in batch}


def _states(data: Drawing) -> dict[str, Any]:
    states = settings.random_states()
    kind, words, *rest = states["numpy"]
    found = bytes(states["torch"].numpy()), (kind, words.tobytes(), *rest), states["python"]
    return dict(zip(SOURCES, (*found, repr(data.rng.bit_generator.state)), strict=True))


def stir() -> None:
    """Put the generators elsewhere, as a run does that has drawn other numbers before."""
    torch.default_generator.manual_seed(random.randrange(2**31))
    np.random.seed(random.randrange(2**31))


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    batch, workers = random.randint(3, 4), scene.workers
    size = batch * workers * 3 + (random.randint(1, batch - 1) if scene.size == "a rest" else 0)
    seed = SEEDS_OF[scene.seed] + random.randint(0, 40)
    other = {"the next": seed + 1, "in its upper bits": seed ^ 2**31, "any": random.randrange(2**20)}[scene.other]
    facts = Facts(f"{size} samples, batches of {batch}, workers = {workers}, seed = {seed}, another one {other}")

    def run(seed: int) -> Seen:
        stir()
        with quiet():
            seen: Seen = call(Drawing(size), batch, workers, seed, through=Seen)
        return seen

    first = run(seed)
    facts.add(KIND, first.kind, "a DataLoader")
    if facts.hold():
        facts.add(COUNT, first.workers, workers)
        facts.add(PROCESS, first.drawn, [])
    if not facts.hold() and not first.epochs:
        return facts
    facts.seen[REPEATED] = first.repeated
    sizes = [[len(one) for one in epoch] for epoch in first.epochs]
    facts.add(SIZES, sizes, [[batch] * (size // batch) + [size % batch] * (size % batch > 0)] * EPOCHS)
    orders = first.orders()
    facts.add(ONCE, [len(set(order)) for order in orders], [size] * EPOCHS)
    said = "others" if len(set(map(tuple, orders))) == EPOCHS else "the same"
    facts.add(ORDER, "that of the dataset" if orders[0] == sorted(orders[0]) else said, "others")
    second, third = run(seed), run(other)
    compare(facts, first, second, third)
    return facts


def compare(facts: Facts, first: Seen, second: Seen, third: Seen) -> None:
    def which(same: Callable[[int], bool]) -> list[str]:
        return [source for number, source in enumerate(SOURCES) if same(number)]

    def drawn(seen: Seen, source: int, epoch: int) -> list[set[float]]:
        return [seen.numbers(source, epoch, worker) for worker in range(seen.workers)]

    def common(sets: Sequence[set[float]]) -> bool:
        return sum(map(len, sets)) > len(set[float]().union(*sets))

    def all_of(seen: Seen, source: int, epochs: int = EPOCHS) -> list[set[float]]:
        return [set[float]().union(*drawn(seen, source, epoch)) for epoch in range(epochs)]

    facts.add(WORKERS, which(lambda source: any(common(drawn(first, source, e)) for e in range(EPOCHS))), [])
    facts.add(PASSED, which(lambda source: common(all_of(first, source))), [])
    facts.add(AGAIN, which(lambda source: all_of(first, source) != all_of(second, source)), [])
    facts.add(ORDER_AGAIN, "the same" if first.orders() == second.orders() else "another one", "the same")
    mixed = [[set[float]().union(*all_of(seen, source)) for seen in (first, third)] for source in range(len(SOURCES))]
    facts.add(OTHER, which(lambda source: common(mixed[source])), [])
    same = any(a == b for a, b in zip(first.orders(), third.orders(), strict=True))
    facts.add(ORDER_OTHER, "the same" if same else "another one", "another one")


EXERCISE = Contract(
    __file__,
    says="other numbers for every worker and epoch, and the same again in a second run",
    own_gpu=False,
    parameters=("dataset", "batch_size", "workers", "seed"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
