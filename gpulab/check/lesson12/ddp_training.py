"""The check of a training on all ranks: real ones, on one machine or on several, and samples that tell their index.

Which samples go through the model in which step is the answer's choice: what one process makes of the same steps is
computed from them.
"""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..audit import MOVED
from ..contract import Clause, Contract, Facts, Near, holds
from ..scenes import Scene
from ..wording import as_float, is_number
from .common import MACHINES, Samples, machine, others_used, spread
from .sections import DATA, MISTAKES, PROCESSES

OPEN, CLOSED, GPU = "backend while it trains", "process group afterwards", "GPU of each rank"
OTHERS = "other ranks' GPUs on which something lay"
STEP, LEFT_OUT = "samples in the largest step, on all ranks together", "samples left out of an epoch"
TWICE = "samples drawn beyond equal parts for all ranks"
SHORT = "steps before the last of an epoch that are not full"
UNEQUAL, ORDERS = "steps with unequally many samples on the ranks", "different orders of the epochs"
WEIGHTS, ONE = "the weights of each rank", "those of one process"
KIND, LOSSES, SAME_LOSSES = "kind of what is returned", "the mean losses", "the ranks return the same"
SAVED, NAMES, IN_FILE = "ranks that have saved", "names in the file", "the file holds the trained weights"
LIKELY = {
    GPU: 'torch.device("cuda", int(os.environ["LOCAL_RANK"])), for the model and for every batch',
    SHORT: "what is left over comes at the end, as a DataLoader deals it out",
    OPEN: 'dist.init_process_group("nccl") before the first collective',
    STEP: "the DataLoader of a rank takes batch_size // N, where N is the number of ranks",
    LEFT_OUT: "the parts of all ranks must be parts of one order, and none may be dropped",
    TWICE: "the ranks take different samples; each part is the length by N, rounded up",
    UNEQUAL: "DDP averages over ranks: with unequal parts samples count unequally",
    ORDERS: "a DistributedSampler needs set_epoch(epoch) before each epoch",
    WEIGHTS: "equal weights at the start, averaged gradients, the learning rate as it is; and model itself is trained",
    KIND: "item() makes a float of a tensor; append one for each epoch",
    LOSSES: "add up the losses of samples, and the samples, over the ranks; then divide",
    SAME_LOSSES: "a reduce brings the sums to one rank, an all-reduce to all",
    SAVED: "if dist.get_rank() == 0:",
    NAMES: "model itself, without DDP around it, has the names that it had",
    CLOSED: "dist.destroy_process_group() after the last collective",
}
ONE_PROCESS = "the weights that one process has after the same steps from rank 0's weights"
MEAN_LOSS = "the mean loss of each epoch over the samples of all ranks"
CLAUSES = [
    Clause(sentence, facts, summary, LIKELY[facts[0]], read)
    for read, sentence, facts, summary in (
        (PROCESSES, "uses the GPU of its LOCAL_RANK", [GPU, OTHERS], "a rank trains on another GPU than its own"),
        (PROCESSES, "opens the process group, with NCCL", [OPEN], "the process group is not NCCL's"),
        (DATA, "each rank takes its Nth", [STEP], "the ranks together do not take batch_size samples a step"),
        (DATA, "Every epoch draws every sample", [LEFT_OUT], "an epoch leaves samples out"),
        (DATA, "no more of them twice than the ranks need for equal parts", [TWICE], "samples are drawn too often"),
        (DATA, "In every step all ranks take equally many", [UNEQUAL], "ranks take unequally many samples in a step"),
        (DATA, "the last step of an epoch may have fewer", [SHORT], "a step that is not the last is not full"),
        (DATA, "in another order each time", [ORDERS], "two epochs have the same order"),
        (PROCESSES, ONE_PROCESS, [WEIGHTS], "the weights are not those of one process that makes the same steps"),
        (MISTAKES, "a list of floats", [KIND], "what is returned is no list of floats, one for each epoch"),
        (MISTAKES, MEAN_LOSS, [LOSSES], "the losses are not the means over the samples of all ranks"),
        (MISTAKES, "floats, the same on every rank", [SAME_LOSSES], "the ranks return different losses"),
        (MISTAKES, "rank 0 alone saves", [SAVED], "it is not rank 0 alone that saves"),
        (MISTAKES, "the state dict, with the names that model has", [NAMES, IN_FILE], "the file is not the state dict"),
        (PROCESSES, "closes it at the end", [CLOSED], "the process group is left open"),
    )
]
EDGES = {
    "ranks": (2, 3),
    "machines": MACHINES,
    "length": ("full steps", "a short step", "uneven"),
    "epochs": (1, 2),
}


class Told(nn.Module):
    """Leaves out the first number of each sample, its index, and remembers what went through in training."""

    seen: ClassVar[list[tuple[list[int], str, str]]] = []  # indices, device and backend
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            config = str(dist.get_backend_config()) if dist.is_initialized() else "none"
            indices = [round(i) for i in x[:, 0].tolist()]
            self.seen.append((indices, str(x.device), "nccl" if "nccl" in config else config))
        return x[:, 1:] * self.scale


def on_rank(student: Callable[..., Any], machines: str, *args: Any) -> dict[str, Any]:
    """What the call does here. Each rank draws other random numbers, as processes do."""
    model, path, rank = args[0], Path(args[-1]), int(os.environ["RANK"])
    torch.default_generator.manual_seed(torch.initial_seed() + rank)
    random.seed(rank)
    spread(machines)
    Told.seen.clear()
    with machine():
        got = student(*args)
        opened = dist.is_initialized()
        weights = [p.detach().flatten().tolist() for p in model.parameters()]
        states = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
        kept: Any = None
        if path.exists():
            with suppress(Exception):  # whatever the file is
                kept = torch.load(path, map_location="cpu", weights_only=False)
        named = isinstance(kept, dict) and all(map(torch.is_tensor, kept.values()))
        several = isinstance(got, list | tuple)
        kinds = ", ".join(
            sorted({"float" if isinstance(x, float) else type(x).__name__ for x in got} if several else [])
        )
        numbers = several and all(is_number(x) or (torch.is_tensor(x) and x.numel() == 1) for x in got)
        return {
            "batches": [indices for indices, *_ in Told.seen],
            "gpu": ", ".join(sorted({device for _, device, _ in Told.seen})),
            "backend": ", ".join(sorted({backend for *_, backend in Told.seen})),
            "others": len(others_used()),
            "group": "open" if opened else "closed",
            "weights": [x for part in weights for x in part],
            "kind": f"{type(got).__name__} of {len(got)}: {kinds}" if several else type(got).__name__,
            "got": [as_float(x) for x in got] if numbers else None,
            "saved": bool(os.listdir(path.parent)),
            "names": ", ".join(map(str, kept)) if named else f"of a {type(kept).__name__}",
            "kept": named and [value.flatten().tolist() for value in kept.values()] == [*states.values()],
        }


def one_process(
    model: nn.Module, data: Sequence[Any], epochs: Sequence[Sequence[Sequence[int]]], rate: float
) -> tuple[torch.Tensor, list[float]]:
    """The weights after these steps, and the mean loss of each epoch."""
    model = copy.deepcopy(model).double()
    optimizer, losses = torch.optim.SGD(model.parameters(), rate), list[float]()
    for steps in epochs:
        total = 0.0
        for batch in steps:
            x, label = torch.stack([data[i][0] for i in batch]).double(), torch.tensor([data[i][1] for i in batch])
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / max(1, sum(map(len, steps))))
    return torch.cat([p.detach().flatten() for p in model.parameters()]), losses


def weights_of(
    rank: int, weights: list[float], models: Sequence[nn.Module], data: Sequence[Any], parts: Any, rate: float
) -> str:
    """By which steps a rank has come to these weights; `parts` are the batches, by epoch, step and rank."""
    together, own = joined(parts), [[step[rank] for step in part] for part in parts]
    ways = {
        ONE: (models[0], together, rate),
        "those of steps N times as long": (models[0], together, rate * len(models)),
        "those of steps an Nth as long": (models[0], together, rate / len(models)),
        "rank 0's, trained on its own samples": (models[0], own, rate),
        "its own, trained on its own samples": (models[rank], own, rate),
    }
    got = torch.tensor(weights, dtype=torch.float64)
    for way, (model, epochs, its_rate) in ways.items():
        right = one_process(model, data, epochs, its_rate)[0]
        if (got - right).norm() <= 1e-5 * right.norm():
            return way
    return "others"


def joined(parts: Any) -> list[list[list[int]]]:
    """The batches of all ranks together, by epoch and step."""
    return [[[i for batch in step for i in batch] for step in part] for part in parts]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, epochs, each, rate = scene.ranks, scene.epochs, random.randint(3, 4), random.uniform(0.2, 0.6)
    length = 3 * each * ranks - {"full steps": 0, "a short step": ranks, "uneven": ranks + 1}[scene.length]
    data = [(torch.cat([torch.tensor([float(i)]), torch.randn(4)]), random.randrange(3)) for i in range(length)]
    models = [nn.Sequential(Told(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)) for _ in range(ranks)]
    with TemporaryDirectory() as folder:
        homes = [Path(folder, f"rank{rank}") for rank in range(ranks)]
        for home in homes:
            home.mkdir()
        of_ranks = zip(models, homes, strict=True)
        rest = (Samples(data), epochs, each * ranks, rate)
        given = [(scene.machines, model, *rest, str(home / "model.pt")) for model, home in of_ranks]
        found = call(on_rank, *given, may_seed=True)  # the body of a script
    all_of = {name: [told[name] for told in found] for name in found[0]}
    where = "one machine" if scene.machines == "one" else "a machine each"
    facts = Facts(f"{length} samples on {ranks} ranks, {where}, batch_size {each * ranks}, epochs {epochs}")
    facts.add(GPU, all_of["gpu"], [f"cuda:{rank if scene.machines == 'one' else 0}" for rank in range(ranks)])
    facts.add(OTHERS, sum(all_of["others"]), 0)
    facts.add(OPEN, all_of["backend"], ["nccl"] * ranks)

    batches, equal = all_of["batches"], -(-length // ranks) * ranks
    per = max(-(-len(of_rank) // epochs) for of_rank in batches)
    steps = [*zip_longest(*batches, fillvalue=[])]
    parts = [steps[epoch * per : (epoch + 1) * per] for epoch in range(epochs)]  # by epoch, step and rank
    times = [Counter(i for step in part for batch in step for i in batch) for part in parts]
    left_out, enough = max(length - len(of) for of in times), all(of.total() >= equal for of in times)
    unequal = sum(len({*map(len, step)}) > 1 for step in steps)
    facts.add(STEP, sum(max(map(len, of_rank), default=0) for of_rank in batches), each * ranks)
    facts.add(LEFT_OUT, "some, and others twice" if left_out and enough else left_out, 0)
    facts.add(TWICE, sum(max(0, of.total() - equal) for of in times), 0)
    facts.add(UNEQUAL, unequal, 0)
    if facts.hold():
        full = [len(batch) == each * ranks for part in joined(parts) for batch in part[:-1]]
        facts.add(SHORT, full.count(False), 0)
    if epochs > 1:
        orders = len({*map(str, parts)})
        as_they_are = orders == 1 and all(batch == sorted(batch) for step in parts[0][:-1] for batch in step)
        facts.add(ORDERS, "none, the samples come as they are" if as_they_are else orders, epochs)
    if not unequal:
        made = [weights_of(rank, all_of["weights"][rank], models, data, parts, rate) for rank in range(ranks)]
        facts.add(WEIGHTS, made, [ONE] * ranks)
    facts.add(KIND, all_of["kind"], [f"list of {epochs}: float"] * ranks)
    if not unequal and holds(facts, WEIGHTS) and found[0]["got"]:
        facts.add(LOSSES, found[0]["got"], Near(one_process(models[0], data, joined(parts), rate)[1], 1e-5))
        facts.add(SAME_LOSSES, len({*map(str, all_of["got"])}) == 1, True)
    facts.add(SAVED, [rank for rank, saved in enumerate(all_of["saved"]) if saved], [0])
    facts.add(NAMES, found[0]["names"], ", ".join(models[0].state_dict()))
    facts.add(IN_FILE, found[0]["kept"], True)
    facts.add(CLOSED, all_of["group"], ["closed"] * ranks)
    return facts


EXERCISE = Contract(
    __file__,
    says="all ranks make the steps that one process makes, and each sample is drawn in every epoch",
    parameters=("model", "data", "epochs", "batch_size", "learning_rate", "path"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": MOVED},
)
