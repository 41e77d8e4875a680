"""Checks exercise 12.1, "from one GPU to all": a training on real ranks, with samples that contain their index.

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

from gpulab.exercise.audit import MOVED
from gpulab.exercise.contract import Clause, Contract, Facts, Near, holds
from gpulab.exercise.groups import MACHINES, Samples, floats_of, machine, others_used, spread
from gpulab.exercise.scenes import Scene

PROCESSES, DATA, MISTAKES = "One script, N processes", "Data: who gets which sample", "Common mistakes"
GPU, OTHERS, OPEN = "GPU of each rank", "other ranks' GPUs on which something lay", "backend while it trains"
STEP, LEFT_OUT = "samples in the largest step, on all ranks together", "samples left out of an epoch"
TWICE, UNEQUAL = "samples drawn beyond equal parts for all ranks", "steps with unequally many samples on the ranks"
SHORT, ORDERS = "steps before the last of an epoch that are not full", "different orders of the epochs"
WEIGHTS, ONE = "the weights of each rank", "those of one process"
KIND, LOSSES, SAME = "kind of what is returned", "the mean losses", "the ranks return the same"
SAVED, FILE, CLOSED = "ranks that have saved", "names in the file", "process group afterwards"
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for read, facts, quote, summary, rule in (
        (PROCESSES, [GPU, OTHERS], "uses the GPU of its LOCAL_RANK", "a rank trains on another GPU than its own",
         'torch.device("cuda", int(os.environ["LOCAL_RANK"])), for the model and for every batch'),
        (PROCESSES, [OPEN], "opens the process group, with NCCL", "the process group is not NCCL's",
         'dist.init_process_group("nccl") before the first collective'),
        (DATA, [STEP], "each rank takes an Nth of them", "the ranks together do not take batch_size samples a step",
         "give a rank's DataLoader batch_size // N, where N is the number of ranks"),
        (DATA, [LEFT_OUT], "Every epoch draws every sample", "an epoch leaves samples out",
         "the ranks' parts must come from the same order, and no sample may be dropped"),
        (DATA, [TWICE], "no more of them twice than the ranks need for equal parts", "samples are drawn too often",
         "the ranks take different samples; each part is the length divided by N, rounded up"),
        (DATA, [UNEQUAL], "In every step all ranks take equally many", "ranks take unequally many samples in a step",
         "DDP averages over ranks: with unequal parts, samples have unequal weights"),
        (DATA, [SHORT], "the last step of an epoch may have fewer", "a step that is not the last is not full",
         "the rest comes at the end, as from a DataLoader"),
        (DATA, [ORDERS], "in a different order each time", "two epochs have the same order",
         "a DistributedSampler needs set_epoch(epoch) before each epoch"),
        (PROCESSES, [WEIGHTS], "the weights that one process has after the same steps from rank 0's weights",
         "the weights are not those of one process that makes the same steps",
         "check: equal weights at the start, averaged gradients, an unchanged learning rate; and model itself must be "
         "trained"),
        (MISTAKES, [KIND], "a list of floats", "what is returned is not a list of floats, one for each epoch",
         "item() turns a tensor into a float; append one for each epoch"),
        (MISTAKES, [LOSSES], "the mean loss of each epoch over the samples of all ranks",
         "the losses are not the means over the samples of all ranks",
         "add up losses and number of samples over the ranks; then divide"),
        (MISTAKES, [SAME], "floats, the same on every rank", "the ranks return different losses",
         "a reduce leaves the sums on one rank, an all-reduce on all"),
        (MISTAKES, [SAVED], "rank 0 alone saves", "not exactly rank 0 saves", "if dist.get_rank() == 0:"),
        (MISTAKES, [FILE], "the state dict, under the same names as in model", "the file is not the state dict",
         "model itself, without DDP around it, keeps its names"),
        (PROCESSES, [CLOSED], "closes it at the end", "the process group is left open",
         "dist.destroy_process_group() after the last collective"),
    )
]  # fmt: skip
EDGES = {
    "ranks": (2, 3),
    "machines": MACHINES,
    "length": ("full steps", "a short step", "uneven"),
    "epochs": (1, 3),
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
        opened, kept, file = dist.is_initialized(), None, ""
        with suppress(Exception):  # there may be no file, or any other
            kept = torch.load(path, map_location="cpu", weights_only=False)
        if isinstance(kept, dict) and all(map(torch.is_tensor, kept.values())):
            trained = [value.tolist() for value in model.state_dict().values()]
            same = [value.tolist() for value in kept.values()] == trained
            file = ", ".join(map(str, kept)) + ("" if same else "; other weights than the trained ones")
        several = isinstance(got, list | tuple)
        kinds = sorted({"float" if isinstance(x, float) else type(x).__name__ for x in got} if several else [])
        return {
            "batches": [indices for indices, *_ in Told.seen],
            "gpu": ", ".join(sorted({device for _, device, _ in Told.seen})),
            "backend": ", ".join(sorted({backend for *_, backend in Told.seen})),
            "others": len(others_used()),
            "group": "open" if opened else "closed",
            "weights": torch.cat([p.detach().cpu().flatten() for p in model.parameters()]),
            "kind": f"{type(got).__name__} of {len(got)}: {', '.join(kinds)}" if several else type(got).__name__,
            "got": floats_of(got),
            "saved": bool(os.listdir(path.parent)),
            "file": file or f"of a {type(kept).__name__}",
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


def way_to(
    weights: torch.Tensor, rank: int, models: Sequence[nn.Module], data: Sequence[Any], parts: Any, rate: float
) -> str:
    """By which steps a rank has come to these weights; `parts` are the batches, by epoch, step and rank."""
    together, own = joined(parts), [[step[rank] for step in part] for part in parts]
    for way, model, epochs, its_rate in (
        (ONE, models[0], together, rate),
        ("those of steps N times as long", models[0], together, rate * len(models)),
        ("those of steps an Nth as long", models[0], together, rate / len(models)),
        ("rank 0's, trained on its own samples", models[0], own, rate),
        ("its own, trained on its own samples", models[rank], own, rate),
    ):
        right = one_process(model, data, epochs, its_rate)[0]
        if (weights - right).norm() <= 1e-5 * right.norm():
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
    rest = Samples(data), epochs, each * ranks, rate
    with TemporaryDirectory() as folder:
        given = []
        for rank, model in enumerate(models):
            (home := Path(folder, f"rank{rank}")).mkdir()
            given.append((scene.machines, model, *rest, str(home / "model.pt")))
        found = call(on_rank, *given, may_seed=True)  # the body of a script
    all_of = {name: [told[name] for told in found] for name in found[0]}
    one = scene.machines == "one"
    where = "one machine" if one else "a machine each"
    facts = Facts(f"{length} samples on {ranks} ranks, {where}, batch_size {each * ranks}, epochs {epochs}")
    facts.add(GPU, all_of["gpu"], [f"cuda:{rank if one else 0}" for rank in range(ranks)])
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
        facts.add(SHORT, sum(len(batch) != each * ranks for part in joined(parts) for batch in part[:-1]), 0)
    if epochs > 1:
        orders = len({*map(str, parts)})
        as_they_are = orders == 1 and all(batch == sorted(batch) for step in parts[0][:-1] for batch in step)
        facts.add(ORDERS, "none, the samples come as they are" if as_they_are else orders, epochs)
    if not unequal:
        ways = [way_to(weights, rank, models, data, parts, rate) for rank, weights in enumerate(all_of["weights"])]
        facts.add(WEIGHTS, ways, [ONE] * ranks)
    facts.add(KIND, all_of["kind"], [f"list of {epochs}: float"] * ranks)
    if not unequal and holds(facts, WEIGHTS) and found[0]["got"]:
        facts.add(LOSSES, found[0]["got"], Near(one_process(models[0], data, joined(parts), rate)[1], 1e-5))
        facts.add(SAME, len({*map(str, all_of["got"])}) == 1, True)
    facts.add(SAVED, [rank for rank, saved in enumerate(all_of["saved"]) if saved], [0])
    facts.add(FILE, found[0]["file"], ", ".join(models[0].state_dict()))
    facts.add(CLOSED, all_of["group"], ["closed"] * ranks)
    return facts


EXERCISE = Contract(
    __file__,
    says="the ranks together make the steps of one process, and each sample is drawn in every epoch",
    parameters=("model", "data", "epochs", "batch_size", "learning_rate", "path"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": MOVED},
)
