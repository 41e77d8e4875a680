"""Checks exercise 05.1, "find the leak": the loop returns the same, and no step leaves memory behind.

Each time a batch is asked for, the blocks that are alive are counted by their size, which tells what they are.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import TRAINED
from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import equal_tensors, virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

LEAKS, EVALUATION = "Leaks that are, and leaks that are not", "Evaluation keeps nothing, if you say so"
ROWS, SHORT, HELD_OUT, WIDTH, HIDDEN, CLASSES = 250, 50, 190, 128, 96, 32
SCALARS = 64  # bytes a step that a list of 0-dim tensors may take
EPOCHS = {  # rows of the batches, the GPU
    "6 batches of a loader": ([ROWS] * 6, 0),
    "7 batches of a generator, the last one short": ([ROWS] * 6 + [SHORT], 1),
}
Pair = tuple[torch.Tensor, torch.Tensor]

GROWS = "bytes that each step leaves, in pieces as large as "
BATCH, OUTPUTS, SCORED = GROWS + "a batch", GROWS + "its outputs", GROWS + "what a layer makes of the held-out rows"
ROW, OTHERS = GROWS + "a row", GROWS.removesuffix(" as large as ") + " of other sizes"
STEPS, AHEAD, KIND = "steps of the optimizer", "batches asked for before their turn", "what is returned"
VALUES = {"losses": "type of the losses", "scores": "type of the scores"}
GRAPH, TRAINING = "validations that build a graph", "validations in training mode"
EVALUATING, MODE = "training steps in evaluation mode", "models that come back in evaluation mode"
PLACE, LATE = "where the hardest rows are", "rows still on their way to the host"
KEEPS = "bytes of the host that a hardest row keeps"
CLAUSES = (
    Clause("take one at a time", [AHEAD], "several batches are on the GPU at once", read=LEAKS),
    Clause("with live memory that does not grow from step to step", [SCORED, BATCH, OUTPUTS, ROW, OTHERS],
           "live memory grows with every step", "something kept for each step holds GPU memory", LEAKS),
    Clause("with no graph built", [GRAPH], "the validation builds a graph", read=EVALUATION),
    Clause("in evaluation mode", [TRAINING], "the validation runs in training mode", read=EVALUATION),
    Clause("is in training mode and stays in it", [EVALUATING, MODE], "the model does not stay in training mode",
           read=EVALUATION),
    Clause("three lists with one entry for each batch", [KIND], "three such lists are not returned"),
    Clause("losses, floats", [*VALUES.values()], "losses or scores are not floats", read=LEAKS),
    Clause("the mse loss of the batch", ["losses"], "the losses are not those of train_leaky", read=LEAKS),
    Clause("the l1 loss on the held-out data after the step", ["scores"],
           "the scores are not those of train_leaky", read=LEAKS),
    Clause("Train for one epoch, as train_leaky does", [STEPS, "weights afterwards"],
           "the model is not trained as by train_leaky", read=LEAKS),
    Clause("tensors on the CPU", [PLACE, LATE], "the hardest rows are not on the CPU", read=LEAKS),
    Clause("the row of x whose squared error, by the outputs from before the step, is the largest", ["hardest rows"],
           "the hardest rows are not those of train_leaky", read=LEAKS),
    Clause("tensors on the CPU: the row of x", [KEEPS], "each hardest row keeps more than itself on the host",
           read=LEAKS),
)  # fmt: skip


def live(gpu: int) -> Counter[str]:
    """Bytes that are alive on this GPU, by what is of their size; without the rounding to blocks."""
    names = {ROWS * WIDTH: BATCH, ROWS * CLASSES: OUTPUTS, WIDTH: ROW}
    names |= {HELD_OUT * HIDDEN: SCORED, HELD_OUT * CLASSES: SCORED}
    found = Counter[str]()
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if segment["device"] == gpu and block["state"] == "active_allocated":
                found[names.get(block["requested_size"] / 4, OTHERS)] += block["requested_size"]
    return found


class Loader:
    """Batches on the GPU, made when they are asked for and kept by nobody; notes what is alive by then."""

    def __init__(self, data: list[Pair], optimizer: torch.optim.Optimizer, gpu: int) -> None:
        self.data, self.gpu = data, gpu
        self.live: list[Counter[str]] = []
        self.steps = self.ahead = 0
        optimizer.register_step_post_hook(lambda *of_step: setattr(self, "steps", self.steps + 1))

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Pair]:
        for asked, (x, y) in enumerate(self.data):
            self.live.append(live(self.gpu))
            self.ahead += self.steps < asked
            yield x.to(f"cuda:{self.gpu}"), y.to(f"cuda:{self.gpu}")

    def growth(self, name: str) -> int:
        """Bytes by which a step raises what lives, once the first two have made what stays."""
        return round((self.live[-1][name] - self.live[2][name]) / (len(self.live) - 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Loader, held_out: Pair) -> tuple[list[Any], ...]:
    """The right answer."""
    kept: tuple[list[Any], ...] = ([], [], [])
    for x, y in batches:
        output = model.train()(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            score = F.l1_loss(model.eval()(held_out[0]), held_out[1])
        row = (output.detach() - y).square().sum(1).argmax()
        for part, value in zip(kept, (loss.item(), score.item(), x[row].cpu()), strict=True):
            part.append(value)
    model.train()
    return kept


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    sizes, index = EPOCHS[scene.epoch]
    data = [(torch.randn(rows, WIDTH), torch.randn(rows, CLASSES)) for rows in (*sizes, HELD_OUT)]
    start = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Dropout(0.5), nn.Linear(HIDDEN, CLASSES))
    seen: Counter[str] = Counter()

    def note(model: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        if len(output) in sizes:
            seen[EVALUATING] += output.requires_grad and not model.training
        else:
            seen[GRAPH] += output.requires_grad
            seen[TRAINING] += model.training

    def run(function: Callable[..., Any]) -> tuple[Any, nn.Module, Loader]:
        """`function` on copies of everything, on the GPUs in force."""
        model = copy.deepcopy(start).to(f"cuda:{index}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        loader = Loader(data[:-1], optimizer, index)
        held_out = data[-1][0].to(f"cuda:{index}"), data[-1][1].to(f"cuda:{index}")
        torch.manual_seed(0)  # the GPU's too: dropout must draw the same
        model.register_forward_hook(note)
        got = function(model, optimizer, iter(loader) if "generator" in scene.epoch else loader, held_out)
        return got, model, loader

    with virtual_gpu(count=2):
        wanted, right, _ = run(train)
    seen.clear()
    with virtual_gpu(count=2) as gpu, gpu.timeline() as timeline:
        may_change = {"model": {*TRAINED, "mode"}, "optimizer": {"state"}}
        got, model, loader = run(lambda *args: call(*args, may_change=may_change))
        late = sum(span.where == "to host" and span.start + span.seconds > gpu.clock.host for span in timeline.spans)
        emptied = torch.cuda.memory_stats(index).get("segment.all.freed", 0) > 0
    facts = Facts(f"{scene.epoch}, on cuda:{index}")
    facts.add(STEPS, loader.steps, len(sizes))
    if facts.hold():
        facts.add(AHEAD, loader.ahead, 0)
    if facts.hold():
        for name in (SCORED, BATCH, OUTPUTS, ROW, OTHERS):
            growth = loader.growth(name)
            facts.add(name, growth if name != OTHERS or growth > SCALARS else 0, 0)
        facts.seen["the cache is emptied"] = emptied
    seen[MODE] = not model.training
    for name in (GRAPH, TRAINING, EVALUATING, MODE):
        facts.add(name, int(seen[name]), 0)
    trained = loader.steps == len(sizes) and not seen.total()
    compare(facts, got, wanted, trained)
    if trained:
        facts.add("weights afterwards", flat(model), Near(flat(right), 1e-3))
        if facts.seen.get(PLACE) == ["cpu"]:
            facts.add(LATE, late, 0)
    return facts


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def compare(facts: Facts, got: Any, wanted: tuple[list[Any], ...], trained: bool) -> None:
    """What came back; its values only if the model was trained as it should."""
    count = len(wanted[0])
    lists = isinstance(got, tuple | list) and len(got) == 3 and all(isinstance(part, tuple | list) for part in got)
    right = f"three lists, of {count}, {count} and {count}"
    facts.add(KIND, "three lists, of {}, {} and {}".format(*map(len, got)) if lists else brief(got), right)
    if facts.seen[KIND] != right:
        return
    for (name, kind), part, values in zip(VALUES.items(), got, wanted, strict=False):
        types = {"float" if isinstance(value, float) else type(value).__name__ for value in part}
        facts.add(kind, sorted(types), ["float"])
        if trained and facts.seen[kind] == ["float"]:
            facts.add(name, list(part), Near(values, 1e-4))
    rows = got[2]
    places = {str(row.device) if isinstance(row, torch.Tensor) else type(row).__name__ for row in rows}
    facts.add(PLACE, sorted(places), ["cpu"])
    if facts.seen[PLACE] != ["cpu"]:
        return
    storages = {row.untyped_storage()._cdata: row.untyped_storage().nbytes() for row in rows}
    facts.add(KEEPS, sum(storages.values()) // count, 4 * WIDTH)
    if trained:
        equal = sum(map(equal_tensors, wanted[2], rows))
        facts.seen["sums of the hardest rows"] = [float(row.float().sum()) for row in rows]
        facts.add("hardest rows", f"those of {equal} batches", f"those of {count} batches")


EXERCISE = Contract(
    __file__,
    says="the same numbers, and no step leaves more than the one before",
    imports=[OPTIMIZERS],
    parameters=("model", "optimizer", "batches", "held_out"),
    clauses=CLAUSES,
    edges={"epoch": tuple(EPOCHS)},
    play=play,
    errors={
        "does not require grad": "no_grad() covers more than the validation: the training step needs its graph",
        "can't convert cuda": "NumPy needs the host: .cpu() before .numpy()",
    },
)
