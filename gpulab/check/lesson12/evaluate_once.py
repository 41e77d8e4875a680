"""The check of an evaluation on all ranks: real ranks, a length that they do not divide, modes that differ."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ..base import Trial, check
from ..contract import Clause, Contract, Facts, Near
from ..scenes import Scene
from ..wording import is_number, show
from .common import group
from .sections import DATA

CLASSES = 3
PROMISED = (
    (
        "The process group stays open",
        ["the process group"],
        "the process group is closed",
        "it is the script's, which goes on to train with it",
    ),
    (
        "in evaluation mode",
        ["forward passes in training mode"],
        "a forward pass is in training mode",
        "dropout draws, and batch norm normalises with the batch and learns from it, unless eval() is called",
    ),
    (
        "without a graph",
        ["forward passes with a graph"],
        "a forward pass records a graph",
        "nobody calls backward() here: torch.no_grad() keeps no activation",
    ),
    (
        "afterwards each module is in the mode in which it was",
        ["modes afterwards"],
        "a module is in another mode than before the call",
        "train() sets all modules, also those that were in evaluation mode: remember each, and set it back",
    ),
    (
        "Every sample goes through the model of one rank, once",
        ["samples that were left out", "samples that went through more than once"],
        "a sample is left out, or counted twice",
        "DistributedSampler pads, or drops: deal the indices without it",
    ),
    (
        "no rank takes more than its share, rounded up",
        ["samples of the busiest rank"],
        "one rank takes more than its share",
        "with N ranks each has an Nth of the samples, or one more",
    ),
    (
        "the most samples that go through the model at once",
        ["samples in the largest batch"],
        "a batch is larger than batch_size",
        "the whole part at once needs the memory of its activations",
    ),
    ("two floats", ["kind of what is returned"], "what is returned are not two floats", "item() makes one of a tensor"),
    (
        "The loss is the mean cross-entropy over the samples of all ranks",
        ["the loss"],
        "the loss is not the mean over all samples",
        "a short batch, or a rank with fewer samples, must not count as much as a full one: add up, and divide once",
    ),
    (
        "the accuracy the part of them whose largest logit is that of the label",
        ["the accuracy"],
        "the accuracy is not that over all samples",
        "a short batch, or a rank with fewer samples, must not count as much as a full one: add up, and divide once",
    ),
    (
        "the same on every rank",
        ["the ranks return the same"],
        "the ranks return different numbers",
        "a reduce brings the sums to one rank, an all-reduce to all",
    ),
)
CLAUSES = [Clause(*promised, DATA) for promised in PROMISED]
EDGES = {
    "ranks": (2, 3),
    "length": ("a multiple of the ranks", "one more", "one"),
    "last": ("a full batch", "a short one"),
    "mode": ("training", "evaluation", "a frozen part"),
}


class Noisy(nn.Module):
    """As dropout and batch norm: another output in training, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return x * (0.5 if self.training else 1.0)


def drawn(length: int) -> list[tuple[torch.Tensor, int]]:
    """Samples of five numbers, the first of which says which sample it is."""
    return [(torch.cat([torch.tensor([float(i)]), torch.randn(4)]), random.randrange(CLASSES)) for i in range(length)]


def on_rank(student: Callable[..., Any], mode: str, length: int, batch_size: int) -> dict[str, Any]:
    """What the call does here. All ranks draw the same."""
    data = drawn(length)
    first, noisy, last = nn.Linear(5, 8), Noisy(), nn.Linear(8, CLASSES)
    nn.init.zeros_(first.weight[:, :1])
    net = nn.Sequential(first, noisy, nn.Tanh(), last)
    with group() as device:
        model = DistributedDataParallel(net.to(device))
        model.train(mode != "evaluation")
        noisy.train(mode == "training")
        modes = [module.training for module in model.modules()]
        batches, training, graphs = list[list[int]](), 0, 0

        def look(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            nonlocal training, graphs
            batches.append([round(i) for i in args[0][:, 0].tolist()])
            training, graphs = training + noisy.training, graphs + out.requires_grad

        net.register_forward_hook(look)
        got = student(model, data, batch_size)
        opened = dist.is_initialized()
        after = [module.training for module in model.modules()]
        two = isinstance(got, tuple | list) and len(got) == 2
        numbers = two and all(is_number(x) or (torch.is_tensor(x) and x.numel() == 1) for x in got)
        net.eval()
        x, label = torch.stack([x for x, _ in data]).to(device), torch.tensor([y for _, y in data], device=device)
        with torch.no_grad():
            logits = last(torch.tanh(first(x)))  # without the hook
        return {
            "open": opened,
            "modes": after == modes,
            "batches": batches,
            "training": training,
            "graphs": graphs,
            "kind": "two floats" if two and all(isinstance(x, float) for x in got) else show(got, 60),
            "got": [float(x) for x in got] if numbers else None,
            "wanted": [F.cross_entropy(logits, label).item(), (logits.argmax(1) == label).double().mean().item()],
        }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    each = random.randint(3, 5)
    length = {"a multiple of the ranks": each * scene.ranks, "one more": each * scene.ranks + 1, "one": 1}[scene.length]
    batch_size = each if scene.last == "a full batch" else each - 1
    found = call(on_rank, *[(scene.mode, length, batch_size)] * scene.ranks)

    facts = Facts(f"{length} samples on {scene.ranks} ranks, batch_size {batch_size}")
    parts = [[i for batch in told["batches"] for i in batch] for told in found]
    times = Counter(i for part in parts for i in part)
    left_out, twice = length - len(times), sum(times.values()) - len(times)
    share = -(-length // scene.ranks)
    largest = max((len(batch) for told in found for batch in told["batches"]), default=0)
    training = sum(told["training"] for told in found)
    facts.add("the process group", ["open" if told["open"] else "closed" for told in found], ["open"] * len(found))
    facts.add("forward passes in training mode", training, 0)
    facts.add("forward passes with a graph", sum(told["graphs"] for told in found), 0)
    facts.add("modes afterwards", all(told["modes"] for told in found), True)
    facts.add("samples that were left out", left_out, 0)
    facts.add("samples that went through more than once", twice, 0)
    if not twice:
        facts.add("samples of the busiest rank", max(share, *map(len, parts)), share)
    facts.add("samples in the largest batch", max(largest, batch_size), batch_size)
    facts.add("kind of what is returned", [told["kind"] for told in found], ["two floats"] * len(found))
    got = [told["got"] for told in found]
    if got[0] and not (left_out or twice or training):  # else they are wrong for that reason
        for name, value, wanted in zip(("the loss", "the accuracy"), got[0], found[0]["wanted"], strict=True):
            facts.add(name, value, Near(wanted, 1e-5))
    facts.add("the ranks return the same", all(str(one) == str(got[0]) for one in got), True)
    return facts


CONTRACT = Contract(
    __file__,
    parameters=("model", "data", "batch_size"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": {"mode", "buffers", "settings"}},  # judged; and DDP keeps a setting when it is called
)


@check(lesson=12, says="each sample is evaluated once, the sums are divided once, and the modes are put back")
def evaluate_once(student: Any, trial: Trial) -> None:
    """Check a function of (model, data, batch_size), a model in DDP and a dataset of (x, label): called on real ranks,
    it returns (loss, accuracy) over the whole dataset, two floats."""
    CONTRACT.judge(student, trial)
