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

from ..contract import Clause, Contract, Facts, Near
from ..scenes import Scene
from ..wording import as_float, is_number, show
from .common import MACHINES, Samples, group, others_used, spread
from .sections import DATA

CLASSES, MODES = 3, "modules in another mode afterwards"
OTHERS = "other ranks' GPUs on which something lay"
PROMISED = (
    (
        "The process group stays open",
        ["the process group"],
        "the process group is closed",
        "it is the script's, which goes on to train with it",
    ),
    (
        "Nothing is put on another rank's GPU",
        [OTHERS],
        "a rank uses the GPU of another",
        "NCCL refuses two ranks on one GPU: batches and sums belong where the model's parameters are",
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
        [MODES],
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
    "machines": MACHINES,
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


def on_rank(student: Callable[..., Any], machines: str, mode: str, length: int, batch_size: int) -> dict[str, Any]:
    """What the call does here. All ranks draw the same."""
    spread(machines)
    data = drawn(length)
    first, noisy, last = nn.Linear(5, 8), Noisy(), nn.Linear(8, CLASSES)
    nn.init.zeros_(first.weight[:, :1])
    net = nn.Sequential(first, nn.Sequential(noisy, nn.Tanh()), last)
    with group() as device:
        model = DistributedDataParallel(net.to(device))
        model.train(mode != "evaluation")
        noisy.train(mode == "training")
        last.train(mode == "training")
        modes = {name: module.training for name, module in model.named_modules()}
        batches, training, graphs = list[list[int]](), 0, 0

        def look(module: Any, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            nonlocal training, graphs
            batches.append([round(i) for i in args[0][:, 0].tolist()])
            training, graphs = training + module[1][0].training, graphs + out.requires_grad

        net.register_forward_hook(look)
        got = student(model, Samples(data), batch_size)
        opened = dist.is_initialized()
        others = [name for name, module in model.named_modules() if module.training != modes[name]]
        two = isinstance(got, tuple | list) and len(got) == 2
        numbers = two and all(is_number(x) or (torch.is_tensor(x) and x.numel() == 1) for x in got)
        net.eval()
        x, label = torch.stack([x for x, _ in data]).to(device), torch.tensor([y for _, y in data], device=device)
        with torch.no_grad():
            logits = last(torch.tanh(first(x)))  # without the hook
        return {
            "open": opened,
            "gpus": len(others_used()),
            "modes": others,
            "batches": batches,
            "training": training,
            "graphs": graphs,
            "kind": "two floats" if two and all(isinstance(x, float) for x in got) else show(got, 60),
            "got": [as_float(x) for x in got] if numbers else None,
            "wanted": [F.cross_entropy(logits, label).item(), (logits.argmax(1) == label).double().mean().item()],
        }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    each = random.randint(3, 5)
    length = {"a multiple of the ranks": each * scene.ranks, "one more": each * scene.ranks + 1, "one": 1}[scene.length]
    batch_size = each if scene.last == "a full batch" else each - 1
    found = call(on_rank, *[(scene.machines, scene.mode, length, batch_size)] * scene.ranks)

    facts = Facts(f"{length} samples on {scene.ranks} ranks, batch_size {batch_size}")
    parts = [[i for batch in told["batches"] for i in batch] for told in found]
    times = Counter(i for part in parts for i in part)
    left_out, twice = length - len(times), sum(times.values()) - len(times)
    share = -(-length // scene.ranks)
    largest = max((len(batch) for told in found for batch in told["batches"]), default=0)
    training = sum(told["training"] for told in found)
    facts.add("the process group", ["open" if told["open"] else "closed" for told in found], ["open"] * len(found))
    facts.add(OTHERS, sum(told["gpus"] for told in found), 0)
    facts.add("forward passes in training mode", training, 0)
    facts.add("forward passes with a graph", sum(told["graphs"] for told in found), 0)
    facts.add(MODES, sorted({name for told in found for name in told["modes"]}), [])
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


EXERCISE = Contract(
    __file__,
    says="each sample is evaluated once, the sums are divided once, and the modes are put back",
    parameters=("model", "data", "batch_size"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": {"mode", "buffers", "settings"}},  # judged; and DDP keeps a setting when it is called
)
