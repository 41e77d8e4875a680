"""Checks a token-weighted loss: windows with padding anywhere, and micro-batches without a label."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import Kind
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import SavedBytes, virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_number, is_whole

from .common import BYTES, ERRORS, FOUR_PIECES, Batch, flat_gradient

TOKENS = "Token-weighted loss"
IGNORE = -100
CLASSES = 6
GRADIENTS = {"": "gradient", "all": "gradient of a window without a label"}  # by what is empty
KEPT = "results of each micro-batch are kept"
CLAUSES = (
    Clause("it stays on its device, in its dtype", ["device of the parameters", "dtype of the parameters"],
           "the model came back on another device, or in another dtype",
           "model.to(…), half() and float() change the caller's own model, whose optimizer steps next", FOUR_PIECES),
    Clause("the gradient of the mean loss over all labelled tokens of a window",
           ["gradient", "gradient where a micro-batch has no label"],
           "the gradient is not that of the mean over all labelled tokens",
           "compare one window by hand: the losses of all labelled tokens in one list, their mean, one backward",
           TOKENS),
    Clause("A micro-batch, or the whole window, may hold no labelled token: then it adds nothing", [GRADIENTS["all"]],
           "a window of nothing but padding leaves a gradient",
           "there is nothing to learn from: leave no gradient, or zeros; the mean over no tokens is 0/0", TOKENS),
    Clause("Only one micro-batch's activations are alive at a time",
           ["positions in one forward pass", "bytes kept for backward", "the gradients hold on to a graph", KEPT],
           "more than one micro-batch's activations are in memory at a time",
           "otherwise it takes the memory of the large batch, which does not fit", BYTES),
    Clause("no micro-batch goes through the model twice", ["positions that went through the model again"],
           "a micro-batch goes through the model more than once",
           "one forward pass gives the loss; the labels are counted without the model", BYTES),
    Clause("Returns the number of labelled tokens, an int", ["what is returned"], "what is returned is not an int",
           read=TOKENS),
    Clause("or -100: padding, not to be counted", ["the number returned"],
           "the number that is returned is not that of the labels that are not -100", read=TOKENS),
)  # fmt: skip
EDGES = {
    "device": ("cuda:1", "cpu"),  # cuda:0 is where an answer that never asks goes
    "dtype": (torch.float32, torch.float64),
    "empty": ("", "first", "middle", "last", "all"),  # which micro-batches have no label
    "batches": (1, 3),
    "padding": ("at the end", "anywhere"),
    "training": (True, False),
    "cleared": ("to None", "to zeros"),
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {"model": {"grad", "place"}}  # both are judged


def possible(scene: Scene) -> bool:
    return scene.batches > 1 or scene.empty in ("", "all")


class Texts(nn.Module):
    """Logits that depend on the whole text and on the mode; the activations are larger than any form of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(CLASSES, 4), nn.Linear(4, 32), nn.Linear(32, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(ids)
        out: torch.Tensor = self.head(torch.tanh(self.hidden(embedded + embedded.mean(1, keepdim=True))))
        return out * (0.5 if self.training else 1.0)  # as dropout does, and without chance


def draw(scene: Scene) -> list[Batch]:
    """Micro-batches in which padding is drawn. Among the labels of each that has any is class 0, so that who takes 0
    for padding is found."""
    shapes = [(2, 6), (1, 10), (2, 6)] if scene.batches > 1 else [(1, 1)]
    if scene.batches == 1 and scene.empty:
        shapes = random.choice([[(3, 6)], [(4, 1)]])
    empty = {"": [], "first": [0], "middle": [1], "last": [2], "all": range(len(shapes))}[scene.empty]
    batches = []
    for i, (rows, columns) in enumerate(shapes):
        labels = torch.randint(1, CLASSES, (rows, columns))
        real = torch.zeros(rows, columns, dtype=torch.bool)
        for row in range(rows):
            length = random.randint(1, max(1, columns - 1 - row))
            places = random.sample(range(columns), length) if scene.padding == "anywhere" else range(length)
            real[row, list(places)] = True
        first = int(real.flatten().int().argmax())
        labels.view(-1)[first] = 0
        labels[~real | (i in empty)] = IGNORE
        ids = torch.randint(0, CLASSES, (rows, columns))
        batches.append((ids.to(scene.device), labels.to(scene.device)))
    return batches


def count(batches: list[Batch]) -> int:
    return sum(int((labels != IGNORE).sum()) for _, labels in batches)


def reference(model: nn.Module, batches: list[Batch]) -> tuple[torch.Tensor, int]:
    """The gradient of the mean over all labelled tokens, as one vector; the most bytes that a micro-batch keeps."""
    parameters, total, saved = list(model.parameters()), torch.zeros(()), SavedBytes(model.parameters())
    for ids, labels in batches:
        with saved:
            loss = F.cross_entropy(model(ids)[labels != IGNORE], labels[labels != IGNORE], reduction="sum")
        total = total + torch.cat([g.flatten().cpu() for g in torch.autograd.grad(loss, parameters)])
    return total / max(count(batches), 1), saved.peak


def requested() -> int:
    found: int = torch.cuda.memory_stats(1)["requested_bytes.all.current"]
    return found


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with virtual_gpu(count=2):
        model, batches = Texts().to(scene.device, scene.dtype).train(scene.training), draw(scene)
        true, allowed = reference(model, batches)
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if scene.cleared == "to zeros" else None
        seen: list[int] = []
        model.register_forward_pre_hook(lambda _, args: seen.extend(a.numel() for a in args[:1]))
        alive: list[int] = []  # bytes when each forward pass begins, where there are several
        if scene.device != "cpu" and scene.batches > 1 and scene.empty in ("", "last"):
            model.register_forward_pre_hook(lambda *_: alive.append(requested()))
        backward: list[None] = []
        model.head.bias.register_hook(lambda _: backward.append(None))
        saved = SavedBytes(model.parameters())
        got = call(model, batches, may_change=MAY_CHANGE, inside=saved)
        tokens, sizes = count(batches), [ids.numel() for ids, _ in batches]
        empty = f", {scene.empty} without a label" if scene.empty else ""
        facts = Facts(f"{tokens} labels in {len(batches)} micro-batches{empty}, on {scene.device}")
        facts.add("device of the parameters", sorted({str(p.device) for p in model.parameters()}), [scene.device])
        facts.add("dtype of the parameters", sorted({str(p.dtype) for p in model.parameters()}), [str(scene.dtype)])
        name = GRADIENTS.get(scene.empty, "gradient where a micro-batch has no label")
        facts.add(name, flat_gradient(model.parameters()), Near(true, 1e-4))
        facts.add("positions in one forward pass", max(sizes + seen), max(sizes))
        if max(seen, default=0) <= max(sizes):
            facts.add("bytes kept for backward", max(saved.peak, allowed), Near(allowed, 0.5))
        if len(alive) == len(batches):  # what the second one left comes in the place of what the first one left
            facts.add(KEPT, alive[2] - alive[1] > 5 * CLASSES * scene.dtype.itemsize, False)
        graph = any(p.grad is not None and p.grad.requires_grad for p in model.parameters())
        facts.add("the gradients hold on to a graph", graph, False)
        facts.add("positions that went through the model again", max(0, sum(seen) - sum(sizes)), 0)
        whole = is_whole(got)
        returned = "a whole number" if whole else as_float(got) if is_number(got) else brief(got, 60)
        facts.add("what is returned", returned, "a whole number")
        if whole:
            facts.add("the number returned", int(got), tokens)
        facts.seen |= {"backward passes": len(backward), "bytes kept, in micro-batches": saved.peak / allowed}
        return facts


EXERCISE = Contract(
    __file__,
    says="every labelled token of the window counts once, padding never, and a window of padding gives no NaN",
    parameters=("model", "micro_batches"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    errors=ERRORS,
)
