"""Checks the random numbers of a loader's workers: of four generators, in two epochs, in several runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from gpulab.exercise import settings
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene

from .workers import Workers, quiet

SEEDS = "Random numbers of workers"
SOURCES = ("torch", "NumPy", "random", "dataset.rng")
EPOCHS = 3
KIND, COUNT, SIZES = "kind of what is returned", "num_workers", "sizes of the batches"
ONCE, ORDER = "samples of an epoch", "orders of the epochs"
WORKERS, PASSED = "generators from which two workers draw the same", "generators that draw what they drew before"
AGAIN, ORDER_AGAIN = "generators that draw other numbers for a second loader", "order of a second loader"
OTHER, ORDER_OTHER = "generators that draw the same with another seed", "order with another seed"
PROCESS = "generators of the process that were drawn from"
REPEATED = "dataset.rng after worker_init_fn has run again"  # tells counting in a worker's own memory from not counting
CLAUSES = [
    Clause(quote, facts, summary, rule, SEEDS)
    for facts, quote, summary, rule in (
        ([KIND], "A DataLoader", "what was returned is not a DataLoader",
         "the caller iterates over it, epoch by epoch"),
        ([COUNT], "how many workers there are", "there are more or fewer workers", ""),
        ([SIZES], "samples in a batch", "the batches have other sizes", "only the last one may be smaller"),
        ([ONCE], "Each epoch yields every sample once", "an epoch does not give every sample once", ""),
        ([ORDER], "in a new order", "the epochs have the same order", "each its own, and none that of the dataset"),
        ([PROCESS], "In the process itself no generator is seeded, and none is drawn from",
         "numbers were drawn in the process itself", "random numbers after the call must not depend on it"),
        ([WORKERS], "No two workers draw the same numbers", "two workers draw the same numbers",
         "each worker is a copy of the process, generators and all"),
        ([PASSED], "no worker draws numbers that were drawn in an earlier epoch",
         "an epoch draws the numbers of an earlier one",
         "each epoch starts new workers, as copies of the process"),
        ([AGAIN, ORDER_AGAIN], "yields the same batches with the same numbers",
         "a second loader with this seed yields other batches",
         "whatever has been drawn before, and whatever other loaders do"),
        ([OTHER, ORDER_OTHER], "with another seed both order and numbers differ",
         "another seed gives the same order, or the same numbers", "seeds may differ in any of their bits"),
    )
]  # fmt: skip
EDGES = {
    "workers": (1, 2, 3),
    "seed": ("small", "of 32 bits"),
    "size": ("full batches", "a rest"),
    "other": ("in its lowest bit", "in its upper bits", "any"),  # the seed of another run
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
    """What one loader is, and the batches of its epochs, as lists of rows."""

    def __init__(self, loader: Any, data: Drawing) -> None:
        self.kind = "a DataLoader" if isinstance(loader, DataLoader) else type(loader).__name__
        self.workers = loader.num_workers if isinstance(loader, DataLoader) else 0
        self.epochs: list[list[list[list[float]]]] = []
        self._data, self._played = data, Workers(loader) if self.workers else None

    def go_on(self) -> None:
        if self._played:
            self.epochs.append([batch.tolist() for batch in self._played.epoch()])

    def repeated(self) -> str:
        """Whether worker_init_fn does the same when it runs once more: it tells counting from not counting."""
        if not self._played:
            return ""
        first, again = self._played.after_each_init(lambda: repr(self._data.rng.bit_generator.state))
        return "the same" if first == again else "another one"

    def orders(self) -> list[list[float]]:
        return [[row[0] for batch in epoch for row in batch] for epoch in self.epochs]

    def numbers(self, source: int, epoch: int, worker: int) -> set[float]:
        return {row[1 + source] for batch in self.epochs[epoch][worker :: self.workers] for row in batch}


def _states(data: Drawing) -> dict[str, Any]:
    states = settings.random_states()
    kind, words, *rest = states["numpy"]
    found = bytes(states["torch"].numpy()), (kind, words.tobytes(), *rest), states["python"]
    return dict(zip(SOURCES, (*found, repr(data.rng.bit_generator.state)), strict=True))


def together(student: Callable[..., Any], batch: int, workers: int, *jobs: Any) -> tuple[list[Seen], list[str], str]:
    """The student's loaders for these data sets and seeds, all alive, an epoch of each in turn; the generators of the
    process that were drawn from; and what a repeated worker_init_fn does."""
    data = jobs[::2]
    before = [_states(one) for one in data]
    seen = [Seen(student(one, batch, workers, seed), one) for one, seed in zip(data, jobs[1::2], strict=True)]
    for _ in range(EPOCHS):
        for one in seen:
            one.go_on()
    repeated, after = seen[0].repeated(), [_states(one) for one in data]
    drawn = [source for source in SOURCES if any(b[source] != a[source] for b, a in zip(before, after, strict=True))]
    return seen, drawn, repeated


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    batch, workers = random.randint(3, 4), scene.workers
    size = batch * workers * 3 + (random.randint(1, batch - 1) if scene.size == "a rest" else 0)
    seed = SEEDS_OF[scene.seed] + random.randint(0, 40)
    other = {"in its lowest bit": seed ^ 1, "in its upper bits": seed ^ 2**31, "any": random.randrange(2**20)}[
        scene.other
    ]
    facts = Facts(f"{size} samples, batches of {batch}, workers = {workers}, seed = {seed}, another one {other}")

    def run(*seeds: int) -> tuple[list[Seen], list[str], str]:
        torch.default_generator.manual_seed(random.randrange(2**31))  # as where other numbers have been drawn before
        np.random.seed(random.randrange(2**31))
        with quiet():
            jobs = [item for one in seeds for item in (Drawing(size), one)]
            found: tuple[list[Seen], list[str], str] = call(batch, workers, *jobs, through=together)
        return found

    (first,), drawn, repeated = run(seed)
    facts.add(KIND, first.kind, "a DataLoader")
    if facts.hold():
        facts.add(COUNT, first.workers, workers)
        facts.add(PROCESS, drawn, [])
    if not first.epochs:
        return facts
    facts.seen[REPEATED] = repeated
    sizes = [[len(one) for one in epoch] for epoch in first.epochs]
    facts.add(SIZES, sizes, [[batch] * (size // batch) + [size % batch] * (size % batch > 0)] * EPOCHS)
    orders = first.orders()
    facts.add(ONCE, [len(set(order)) for order in orders], [size] * EPOCHS)
    said = "others" if len(set(map(tuple, orders))) == EPOCHS else "the same"
    facts.add(ORDER, "that of the dataset" if orders[0] == sorted(orders[0]) else said, "others")
    (second, third), *_ = run(seed, other)
    without = [one.workers for one in (second, third) if not one.epochs]
    if without:
        facts.add(COUNT, without[0], workers)
    else:
        compare(facts, first, second, third)
        if second.orders() != first.orders():  # tells what other loaders change from what every one has anew
            facts.seen["order of a loader that is alone"] = (
                "the same" if run(seed)[0][0].orders() == orders else "another"
            )
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
    says="different numbers for every worker and epoch, and the same again in a second run",
    own_gpu=False,
    parameters=("dataset", "batch_size", "workers", "seed"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
