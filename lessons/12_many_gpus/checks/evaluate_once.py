"""Checks exercise 12.3, "each sample once": an evaluation on real ranks, of lengths that they do not divide."""

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

from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.groups import MACHINES, Samples, floats_of, group, others_used, spread
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

CLASSES = 3
GROUP, OTHERS = "the process group", "other ranks' GPUs on which something lay"
TRAINING, GRAPHS = "forward passes in training mode", "forward passes with a graph"
MODES, KIND = "modules in another mode afterwards", "kind of what is returned"
LEFT_OUT, TWICE = "samples that were left out", "samples that went through more than once"
BUSIEST, LARGEST = "samples of the busiest rank", "samples in the largest batch"
LOSS, ACCURACY, SAME = "the loss", "the accuracy", "the ranks return the same"
DIVIDE = "a short batch, or a rank with fewer samples, must have less weight than a full one: add up, and divide once"
CLAUSES = [
    Clause(quote, facts, summary, rule, "Data: who gets which sample")
    for facts, quote, summary, rule in (
        ([GROUP], "The process group stays open", "the process group is closed",
         "it belongs to the script, which continues training with it"),
        ([OTHERS], "Nothing is put on another rank's GPU", "a rank uses the GPU of another",
         "NCCL refuses two ranks on one GPU: put batches and sums where the model's parameters are"),
        ([TRAINING], "in evaluation mode", "a forward pass is in training mode",
         "without eval(), dropout is active, and batch norm uses and records the batch's statistics"),
        ([GRAPHS], "without a graph", "a forward pass records a graph",
         "backward() is not called here: torch.no_grad() keeps no activations"),
        ([MODES], "afterwards each module is in its former mode",
         "a module's mode differs from before the call",
         "train() changes all modules, even those that were in evaluation mode: remember each mode, and restore it"),
        ([LEFT_OUT, TWICE], "Every sample goes through the model of one rank, once",
         "a sample is left out, or counted twice", "DistributedSampler pads, or drops: split the indices without it"),
        ([BUSIEST], "no rank takes more than its share, rounded up", "one rank takes more than its share",
         "with N ranks each has an Nth of the samples, rounded up or down"),
        ([LARGEST], "the most samples that go through the model at once", "a batch is larger than batch_size",
         "the whole part at once would take too much memory for activations"),
        ([KIND], "two floats", "what is returned is not two floats", "item() turns a tensor into a float"),
        ([LOSS], "The loss is the mean cross-entropy over the samples of all ranks",
         "the loss is not the mean over all samples", DIVIDE),
        ([ACCURACY], "the accuracy the fraction of them whose largest logit is that of the label",
         "the accuracy is not that over all samples", DIVIDE),
        ([SAME], "the same on every rank", "the ranks return different numbers",
         "a reduce leaves the sums on one rank, an all-reduce on all"),
    )
]  # fmt: skip
EDGES = {
    "ranks": (2, 3),
    "length": ("a multiple of the ranks", "one less", "one"),
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


def on_rank(student: Callable[..., Any], machines: str, mode: str, length: int, batch_size: int) -> dict[str, Any]:
    """What the call does here. All ranks draw the same; the first number of a sample says which it is."""
    spread(machines)
    data = [(torch.cat([torch.tensor([float(i)]), torch.randn(4)]), random.randrange(CLASSES)) for i in range(length)]
    first, noisy, last = nn.Linear(5, 8), Noisy(), nn.Linear(8, CLASSES)
    nn.init.zeros_(first.weight[:, :1])
    net = nn.Sequential(first, nn.Sequential(noisy, nn.Tanh()), last)
    with group() as device:
        model = DistributedDataParallel(net.to(device))
        model.train(mode != "evaluation")
        for part in (noisy, last):
            part.train(mode == "training")
        modes = {name: module.training for name, module in model.named_modules()}
        passes = list[tuple[list[int], bool, bool]]()

        def look(module: Any, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            passes.append(([round(i) for i in args[0][:, 0].tolist()], module[1][0].training, out.requires_grad))

        net.register_forward_hook(look)
        got = student(model, Samples(data), batch_size)
        opened = dist.is_initialized()
        two = isinstance(got, tuple | list) and len(got) == 2
        modes_left = [name for name, module in model.named_modules() if module.training != modes[name]]
        net.eval()
        x, label = torch.stack([x for x, _ in data]).to(device), torch.tensor([y for _, y in data], device=device)
        with torch.no_grad():
            logits = last(torch.tanh(first(x)))  # without the hook
        return {
            GROUP: "open" if opened else "closed",
            OTHERS: len(others_used()),
            MODES: modes_left,
            "batches": [indices for indices, *_ in passes],
            TRAINING: sum(training for _, training, _ in passes),
            GRAPHS: sum(graph for *_, graph in passes),
            KIND: "two floats" if two and all(isinstance(x, float) for x in got) else brief(got, 60),
            "got": floats_of(got) if two else None,
            "wanted": [F.cross_entropy(logits, label).item(), (logits.argmax(1) == label).double().mean().item()],
        }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, each = scene.ranks, random.randint(3, 5)
    length = {"a multiple of the ranks": each * ranks, "one less": each * ranks - 1, "one": 1}[scene.length]
    batch_size = each if scene.last == "a full batch" else each - 1
    found = call(on_rank, *[(scene.machines, scene.mode, length, batch_size)] * ranks)

    facts = Facts(f"{length} samples on {ranks} ranks, batch_size {batch_size}")
    all_of = {name: [told[name] for told in found] for name in found[0]}
    parts = [[i for batch in batches for i in batch] for batches in all_of["batches"]]
    times, share = Counter(i for part in parts for i in part), -(-length // ranks)
    left_out, twice, training = length - len(times), times.total() - len(times), sum(all_of[TRAINING])
    facts.add(GROUP, all_of[GROUP], ["open"] * ranks)
    facts.add(OTHERS, sum(all_of[OTHERS]), 0)
    facts.add(TRAINING, training, 0)
    facts.add(GRAPHS, sum(all_of[GRAPHS]), 0)
    facts.add(MODES, sorted({name for names in all_of[MODES] for name in names}), [])
    facts.add(LEFT_OUT, left_out, 0)
    facts.add(TWICE, twice, 0)
    if not twice:
        facts.add(BUSIEST, max(share, *map(len, parts)), share)
    largest = max((len(batch) for batches in all_of["batches"] for batch in batches), default=0)
    facts.add(LARGEST, max(batch_size, largest), batch_size)
    facts.add(KIND, all_of[KIND], ["two floats"] * ranks)
    got = all_of["got"]
    if got[0] and not (left_out or twice or training):  # else they are wrong for that reason
        for name, value, wanted in zip((LOSS, ACCURACY), got[0], found[0]["wanted"], strict=True):
            facts.add(name, value, Near(wanted, 1e-5))
    facts.add(SAME, all(str(one) == str(got[0]) for one in got), True)
    return facts


EXERCISE = Contract(
    __file__,
    says="each sample is evaluated once, the sums are divided once, and the modes are restored",
    parameters=("model", "data", "batch_size"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": {"mode", "buffers", "settings"}},  # judged; and DDP keeps a setting when it is called
)
