"""Checks a loader for a machine: the loaders of all ranks together, and their batches. No worker starts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from gpulab.exercise.contract import Clause, Contract, Facts, holds
from gpulab.exercise.machines import with_cores, without_gpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_number

from .workers import none_started, quiet

EPOCHS = 5
CORES_HERE = 2  # of the machine that an answer may ask in place of its argument
KIND, DEFAULTS = "kind of what is returned", "without ranks, rank and train"
STRANGE = "items that are no samples of the dataset"
COUNT, LIVE, PINNED = "num_workers", "persistent_workers", "pin_memory"
SIZES, SMALL = "sizes of the batches in training", "sizes of the batches where a part is smaller than one"
PARTS, ORDERS, ALL = "samples of two ranks", "orders of the epochs", "samples of all epochs"
DEALT = "samples of one rank in all epochs"
ONCE, SORTED, SHARE = "samples that are not evaluated once", "order in evaluation", "samples of each rank in evaluation"
EVALUATED = "sizes of the batches in evaluation"
CLAUSES = [
    Clause(quote, facts, summary, rule, "Workers" if facts[0] in (COUNT, LIVE) else "Common mistakes")
    for facts, quote, summary, rule in (
        ([KIND], "The DataLoader of this rank", "what was returned is not a DataLoader",
         "the caller iterates over it in each epoch"),
        ([STRANGE], "The DataLoader of this rank, in batches of batch_size samples",
         "the loader does not yield the samples of dataset", "stacked as a DataLoader does by default"),
        ([COUNT], "One of these is for the rank's own process, and each other core for a worker",
         "the number of workers does not match the cores", "each rank has cores // ranks, rounded down"),
        ([LIVE], "Workers, if there are any, stay alive from epoch to epoch", "workers end with each epoch", ""),
        ([PINNED], "Memory is pinned if there is an accelerator, and only then",
         "memory is pinned without an accelerator, or not pinned with one", "with workers and without"),
        ([PARTS, ALL], "equally many to each rank, and none twice except the few that round the parts up to equal size",
         "in training the ranks do not share the samples", "in each epoch, and over the epochs all of them"),
        ([ORDERS, DEALT], "each epoch distributes all samples in a new order",
         "in training the order is not new in each epoch", "set_epoch is called before each"),
        ([SIZES], "All batches are full, and samples that do not fill one are left out",
         "in training the batches are not all full ones", ""),
        ([SMALL], "a rank's part that is smaller than a batch makes one batch",
         "if a rank's part is smaller than a batch, the batches are wrong", "one, with all samples of the part"),
        ([ONCE], "For evaluation every sample goes to one rank, once",
         "in evaluation samples are missing, or come twice", "over all ranks together"),
        ([SORTED], "in the order of the dataset", "in evaluation the samples come in the wrong order", "on each rank"),
        ([SHARE], "no rank has more than its part, rounded up", "in evaluation one rank has more than its part", ""),
        ([EVALUATED], "in batches of batch_size samples", "in evaluation the batches have wrong sizes",
         "batch_size is that of one rank; only the last batch may be smaller"),
        ([DEFAULTS], "train: whether the loader is for training or for evaluation",
         "called with the first three arguments it returns a different loader", "the signature has the defaults"),
    )
]  # fmt: skip
TRAINED = ("even", "a rest", "one batch and a rest", "less than a batch", "few")
EDGES = {
    "samples": (*TRAINED, "evaluated, even", "evaluated, a rest", "evaluated, fewer than ranks"),
    "ranks": (1, 2, 4),
    "cores": ("fewer than ranks", "for one worker each", "some", "many"),
    "gpu": (True, False),
}


class Numbers(Dataset[Any]):
    """Samples that are known by their value, which is not their index."""

    def __init__(self, size: int) -> None:
        self.values = random.sample(range(100, 1000), size)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self.values):
            raise IndexError(f"index {index} of a dataset of {len(self.values)} samples")
        return torch.tensor(self.values[index])


def value(item: Any) -> int:
    """Of one sample; -1, which none has, for what is no number."""
    return int(item) if is_number(item) or (isinstance(item, torch.Tensor) and item.numel() == 1) else -1


def drawn(scene: Scene, batch: int) -> tuple[int, int]:
    """Samples, and cores. A part has at least five samples in training, so that chance does not repeat an order."""
    ranks, full = scene.ranks, batch * random.randint(3, 5)
    short = random.randint(1, ranks) - ranks  # what the parts are padded with, where they are equal
    if scene.samples == "evaluated, a rest":
        short = -min(1, ranks - 1)  # so that more than one is left over
    sizes: dict[str, int] = {
        "even": full * ranks,
        "a rest": (full + random.randint(2, batch - 1)) * ranks + short,
        "one batch and a rest": (batch + random.randint(2, batch - 1)) * ranks + short,
        "less than a batch": (batch - 1) * ranks + short,
        "few": 5 * ranks + short,
        "evaluated, fewer than ranks": max(1, ranks - 1),
    }
    least, most = {
        "fewer than ranks": (1, max(1, ranks - 1)),
        "for one worker each": (2 * ranks, 3 * ranks - 1),
        "some": (3 * ranks, 6 * ranks),
        "many": (130 * ranks, 300 * ranks),
    }[scene.cores]
    samples = sizes[scene.samples if "fewer" in scene.samples else scene.samples.removeprefix("evaluated, ")]
    return samples, random.randint(least, most)


class Seen:
    """What one rank's loader is, and the batches of its epochs."""

    def __init__(self, loader: Any, epochs: int) -> None:
        self.kind = "a DataLoader" if isinstance(loader, DataLoader) else type(loader).__name__
        self.epochs: list[list[list[int]]] = []
        if isinstance(loader, DataLoader):
            self.workers, self.live = loader.num_workers, bool(loader.persistent_workers)
            self.pinned = bool(loader.pin_memory)
            self.as_ready = self.workers > 0 and not loader.in_order
            loader.num_workers, loader.pin_memory, loader.timeout = 0, False, 0  # so that none is started
            for epoch in range(epochs):
                if hasattr(loader.sampler, "set_epoch"):
                    loader.sampler.set_epoch(epoch)
                self.epochs.append([[*map(value, batch)] for batch in loader])

    def words(self, data: Numbers) -> str:
        shuffled = not all(in_order(joined(epoch), data.values) for epoch in self.epochs)
        said = f"{self.workers} workers, {len(joined(self.epochs[-1]))} samples" if self.epochs else self.kind
        return f"{said}, shuffled" if shuffled else f"{said}, in order"


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    batch, ranks, train = random.randint(6, 9), scene.ranks, scene.samples in TRAINED
    samples, cores = drawn(scene, batch)
    data = Numbers(samples)
    facts = Facts(
        f"{len(data)} samples, batches of {batch}, {cores} cores, ranks = {ranks}, train = {train}, "
        f"{'a' if scene.gpu else 'no'} GPU"
    )

    def looked_at(student: Callable[..., Any], *args: Any, **named: Any) -> Seen:
        with quiet(), none_started(), with_cores(CORES_HERE):
            return Seen(student(*args, **named), EPOCHS if train else 2)

    def of_rank(rank: int) -> Seen:
        torch.default_generator.manual_seed(torch.initial_seed() + 1)  # ranks are processes, each with its own seed
        one: Seen = call(data, batch, cores, ranks, rank, train, through=looked_at)
        return one

    with virtual_gpu() if scene.gpu else without_gpu():
        seen = [of_rank(rank) for rank in range(ranks)]
        through = looked_at if train else partial(looked_at, train=False)
        short = call(data, batch, cores, through=through) if ranks == 1 else seen[0]
    facts.add(KIND, [one.kind for one in seen], ["a DataLoader"] * ranks)
    if not facts.hold():
        return facts
    given = joined([batch for one in seen for epoch in one.epochs for batch in epoch])
    facts.add(STRANGE, len(set(given) - set(data.values)), 0)
    if not facts.hold():
        return facts
    workers = max(cores // ranks - 1, 0)
    facts.add(COUNT, [one.workers for one in seen], [workers] * ranks)
    facts.add(LIVE, [one.live for one in seen], [one.workers > 0 for one in seen])
    facts.add(PINNED, [one.pinned for one in seen], [scene.gpu] * ranks)
    facts.add(DEFAULTS, short.words(data), seen[0].words(data))
    (trained if train else evaluated)(facts, [one.epochs for one in seen], data.values, batch)
    if not train and any(one.as_ready for one in seen):
        facts.seen[SORTED] = "that in which workers are ready"
    return facts


def trained(facts: Facts, of_ranks: list[list[list[list[int]]]], data: list[int], batch: int) -> None:
    ranks, part = len(of_ranks), -(-len(data) // len(of_ranks))
    sizes = [[*map(len, epochs[-1])] for epochs in of_ranks]
    wanted = [batch] * (part // batch) or [part]
    name = SIZES if part >= batch else SMALL
    facts.add(name, sizes, [wanted] * ranks)
    if not holds(facts, name):
        return
    epochs = [[joined(epochs[number]) for epochs in of_ranks] for number in range(EPOCHS)]
    twice = max(sum((Counter(joined(epoch)) - Counter(data)).values()) for epoch in epochs)
    most = part * ranks - len(data)
    facts.add(PARTS, "dealt out" if twice <= most else f"{twice} of {len(data)} come twice", "dealt out")
    own = [epoch[0] for epoch in epochs]
    orders = len(set(map(tuple, own)))
    said = f"{orders} in {EPOCHS} epochs"
    if orders == 1:
        said = "the order of the dataset, each time" if in_order(own[0], data) else "one order, each time"
    few = len(own[0]) < 10  # of which chance may repeat an order
    facts.add(ORDERS, said if orders < (2 if few else EPOCHS) else "another one each", "another one each")
    if ranks > 1:
        fixed = len(set(map(frozenset, own))) == 1
        facts.add(DEALT, "always the same" if fixed else "others", "others")
    left_out = [set(data) - set(joined(epoch)) for epoch in epochs]
    if facts.hold():  # in one order those that fill no batch are always the same
        always = left_out.count(left_out[0]) == EPOCHS and bool(left_out[0])
        facts.add(
            ALL, f"{len(left_out[0])} are always left out" if always else "each has its turn", "each has its turn"
        )


def evaluated(facts: Facts, of_ranks: list[list[list[list[int]]]], data: list[int], batch: int) -> None:
    part = -(-len(data) // len(of_ranks))
    samples = [joined(epochs[-1]) for epochs in of_ranks]
    count = Counter(joined(samples))
    missing, twice = len(set(data) - set(count)), sum((count - Counter(data)).values())
    facts.add(ONCE, f"{missing} are missing, {twice} come twice" if missing or twice else "none", "none")
    ordered = all(in_order(own, data) for own in samples)
    facts.add(SORTED, "that of the dataset" if ordered else "another one", "that of the dataset")
    if facts.hold():
        facts.add(SHARE, "its part" if max(map(len, samples)) <= part else [*map(len, samples)], "its part")
    sizes = [[*map(len, epochs[-1])] for epochs in of_ranks]
    wanted = [[len(own[i : i + batch]) for i in range(0, len(own), batch)] for own in samples]
    facts.add(EVALUATED, sizes, wanted)


def joined(lists: Sequence[list[Any]]) -> list[Any]:
    return [*chain.from_iterable(lists)]


def in_order(samples: list[int], data: list[int]) -> bool:
    return samples == sorted(samples, key=data.index)


EXERCISE = Contract(
    __file__,
    says="the loaders of all ranks share the cores and the samples, in training and in evaluation",
    own_gpu=False,
    parameters=("dataset", "batch_size", "cores", "ranks", "rank", "train"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
