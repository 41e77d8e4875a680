"""The check of a training on all ranks: real ones, on one machine or each on its own, and samples that tell their index.

Which samples go through the model in which step is the answer's choice: what one process makes of the same steps is
computed from them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..base import Trial, check
from ..contract import Clause, Contract, Facts, Near, holds
from ..scenes import Scene
from ..wording import is_number, show
from .common import machine
from .sections import DATA, MISTAKES, PROCESSES

OPEN, CLOSED, GPU = "backend while it trains", "process group afterwards", "GPU of each rank"
STEP, LEFT_OUT = "samples in the largest step, on all ranks together", "samples left out of an epoch"
TWICE = "samples drawn beyond equal parts for all ranks"
UNEQUAL, ORDERS = "steps with unequally many samples on the ranks", "different orders of the epochs"
WEIGHTS, SAME_WEIGHTS = "the weights of rank 0", "all ranks have the same weights"
KIND, LOSSES, SAME_LOSSES = "kind of what is returned", "the mean losses", "the ranks return the same"
SAVED, NAMES, IN_FILE = "ranks that have saved", "names in the file", "the file holds the trained weights"
CLAUSES = [
    Clause(sentence, facts, summary, likely, read)
    for read, sentence, facts, summary, likely in (
        (
            PROCESSES,
            "uses the GPU of its LOCAL_RANK",
            [GPU],
            "a rank trains on another GPU than its own",
            'torch.device("cuda", int(os.environ["LOCAL_RANK"])), for the model and for every batch',
        ),
        (
            PROCESSES,
            "opens the process group, with NCCL",
            [OPEN],
            "the process group is not NCCL's",
            'dist.init_process_group("nccl") before the first collective',
        ),
        (
            DATA,
            "each rank takes its Nth",
            [STEP],
            "the ranks together do not take batch_size samples a step",
            "the DataLoader of a rank takes batch_size // N, where N is the number of ranks",
        ),
        (
            DATA,
            "Every epoch draws every sample",
            [LEFT_OUT],
            "an epoch leaves samples out",
            "the parts of all ranks must be parts of one order, and none may be dropped",
        ),
        (
            DATA,
            "no more of them twice than the ranks need for equal parts",
            [TWICE],
            "samples go through the model more often than needed",
            "the ranks take different samples; each part is the length by N, rounded up",
        ),
        (
            DATA,
            "In every step all ranks take equally many",
            [UNEQUAL],
            "the ranks take unequally many samples in a step",
            "DDP averages over ranks: with unequal parts samples count unequally, and a rank that is done is missed",
        ),
        (
            DATA,
            "in another order each time",
            [ORDERS],
            "two epochs have the same order",
            "a DistributedSampler needs set_epoch(epoch) before each epoch",
        ),
        (
            PROCESSES,
            "the weights that one process has after the same steps from rank 0's weights",
            [WEIGHTS, SAME_WEIGHTS],
            "the weights are not those of one process that makes the same steps",
            "equal weights at the start, averaged gradients, and the learning rate as it is",
        ),
        (
            MISTAKES,
            "a list of floats",
            [KIND],
            "what is returned is no list of floats, one for each epoch",
            "item() makes a float of a tensor",
        ),
        (
            MISTAKES,
            "the mean loss of each epoch over the samples of all ranks",
            [LOSSES],
            "the losses are not the means over the samples of all ranks",
            "add up the losses of samples, and the samples, over the ranks; then divide",
        ),
        (
            MISTAKES,
            "the same on every rank",
            [SAME_LOSSES],
            "the ranks return different losses",
            "a reduce brings the sums to one rank, an all-reduce to all",
        ),
        (MISTAKES, "rank 0 alone saves", [SAVED], "not rank 0 alone saves", "if dist.get_rank() == 0:"),
        (
            MISTAKES,
            "the state dict, with the names that model has",
            [NAMES, IN_FILE],
            "the file is not the state dict of the trained model",
            "model itself, without DDP around it, has the names that model had",
        ),
        (
            PROCESSES,
            "closes it at the end",
            [CLOSED],
            "the process group is left open",
            "dist.destroy_process_group() after the last collective",
        ),
    )
]
EDGES = {"ranks": (2, 3), "machines": ("one", "one for each rank"), "length": ("full steps", "a short step", "uneven")}


class Told(nn.Module):
    """Leaves out the first number of a sample, which is its index."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:]


def on_rank(student: Callable[..., Any], machines: str, *args: Any) -> dict[str, Any]:
    """What the call does here. Each rank draws other random numbers, as processes do."""
    model, path, rank = args[0], Path(args[-1]), int(os.environ["RANK"])
    torch.default_generator.manual_seed(torch.initial_seed() + rank)
    random.seed(rank)
    if machines != "one":
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"
    backends, gpus, batches = set[str](), set[str](), list[list[int]]()

    def look(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            batches.append([round(i) for i in args[0][:, 0].tolist()])
            gpus.add(str(args[0].device))
            config = str(dist.get_backend_config()) if dist.is_initialized() else "none"
            backends.add("nccl" if "nccl" in config else config)

    model.register_forward_pre_hook(look)
    with machine():
        got = student(*args)
        opened = dist.is_initialized()
        weights = [p.detach().flatten().tolist() for p in model.parameters()]
        kept = torch.load(path, map_location="cpu", weights_only=False) if path.exists() else None
        named = isinstance(kept, dict) and all(map(torch.is_tensor, kept.values()))
        numbers = isinstance(got, list | tuple) and all(is_number(x) or getattr(x, "numel", list)() == 1 for x in got)
        floats = numbers and isinstance(got, list) and all(isinstance(x, float) for x in got)
        return {
            "backend": ", ".join(sorted(backends)),
            "group": "open" if opened else "closed",
            "gpu": ", ".join(sorted(gpus)),
            "batches": batches,
            "weights": [x for part in weights for x in part],
            "kind": f"a list of {len(got)} floats" if floats else show(got, 60),
            "got": [float(x) for x in got] if numbers else None,
            "saved": bool(os.listdir(path.parent)),
            "names": ", ".join(kept) if named else show(kept, 60),
            "kept": named and [value.flatten().tolist() for value in kept.values()] == weights,
        }


def one_process(
    model: nn.Module, data: Sequence[Any], epochs: Sequence[Sequence[Sequence[int]]], rate: float
) -> tuple[torch.Tensor, list[float]]:
    """The weights after these steps, and the mean loss of each epoch."""
    optimizer, losses = torch.optim.SGD(model.double().parameters(), rate), list[float]()
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


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, each, epochs, rate = scene.ranks, random.randint(3, 4), random.randint(2, 3), random.uniform(0.2, 0.6)
    length = 3 * each * ranks - {"full steps": 0, "a short step": ranks, "uneven": ranks + 1}[scene.length]
    data = [(torch.cat([torch.tensor([float(i)]), torch.randn(4)]), random.randrange(3)) for i in range(length)]
    models = [nn.Sequential(Told(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)) for _ in range(ranks)]
    with TemporaryDirectory() as folder:
        homes = [Path(folder, f"rank{rank}") for rank in range(ranks)]
        for home in homes:
            home.mkdir()
        of_ranks = zip(models, homes, strict=True)
        rest = (data, epochs, each * ranks, rate)
        found = call(on_rank, *[(scene.machines, model, *rest, str(home / "model.pt")) for model, home in of_ranks])

    def all_of(what: str) -> list[Any]:
        return [told[what] for told in found]

    where = "one machine" if scene.machines == "one" else "a machine each"
    facts = Facts(f"{length} samples on {ranks} ranks, {where}, batch_size {each * ranks}, {epochs} epochs")
    facts.add(GPU, all_of("gpu"), [f"cuda:{rank if scene.machines == 'one' else 0}" for rank in range(ranks)])
    facts.add(OPEN, all_of("backend"), ["nccl"] * ranks)
    per = max(-(-len(batches) // epochs) for batches in all_of("batches"))
    steps = [  # of an epoch, of a step in it, of a rank
        [[batches[i] if i < len(batches) else [] for batches in all_of("batches")] for i in range(e * per, (e + 1) * per)]
        for e in range(epochs)
    ]
    drawn = [[[i for part in step for i in part] for step in epoch] for epoch in steps]
    times = [Counter(i for step in epoch for i in step) for epoch in drawn]
    equal = -(-length // ranks) * ranks
    facts.add(STEP, sum(max(map(len, batches), default=0) for batches in all_of("batches")), each * ranks)
    facts.add(LEFT_OUT, max(length - len(counted) for counted in times), 0)
    facts.add(TWICE, sum(max(0, counted.total() - equal) for counted in times), 0)
    unequal = sum(len(set(map(len, step))) > 1 for epoch in steps for step in epoch)
    facts.add(UNEQUAL, unequal, 0)
    facts.add(ORDERS, len({str(epoch) for epoch in steps}), epochs)
    if not unequal:
        weights, losses = one_process(models[0], data, drawn, rate)
        facts.add(WEIGHTS, torch.tensor(found[0]["weights"]), Near(weights, 1e-5))
        facts.add(SAME_WEIGHTS, len(set(map(str, all_of("weights")))) == 1, True)
    facts.add(KIND, all_of("kind"), [f"a list of {epochs} floats"] * ranks)
    if not unequal and holds(facts, WEIGHTS):
        if found[0]["got"]:
            facts.add(LOSSES, found[0]["got"], Near(losses, 1e-5))
        facts.add(SAME_LOSSES, len(set(map(str, all_of("got")))) == 1, True)
    facts.add(SAVED, [rank for rank, saved in enumerate(all_of("saved")) if saved], [0])
    facts.add(NAMES, found[0]["names"], ", ".join(models[0].state_dict()))
    facts.add(IN_FILE, found[0]["kept"], True)
    facts.add(CLOSED, all_of("group"), ["closed"] * ranks)
    return facts


CONTRACT = Contract(
    __file__,
    parameters=("model", "data", "epochs", "batch_size", "learning_rate", "path"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
)


@check(lesson=12, says="all ranks make the steps that one process makes, and each sample is drawn in every epoch")
def ddp_training(student: Any, trial: Trial) -> None:
    """Check a function of (model, data, epochs, batch_size, learning_rate, path), the body of a training script: called
    on real ranks, it trains model on all of them and returns the mean loss of each epoch, a list of floats."""
    CONTRACT.judge(student, trial)
