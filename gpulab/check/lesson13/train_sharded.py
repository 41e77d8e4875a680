"""The check of a training with a model that is cut: real ranks, a virtual GPU for each, and samples that tell their
index. What one process makes of the same batches is computed beside it.
"""

from __future__ import annotations

import copy
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..base import Trial, check
from ..contract import Clause, Contract, Facts, holds
from ..lesson12.common import group
from ..scenes import Scene
from ..wording import is_number
from .sections import PRACTICE, UNITS

MOST, PARTS, WEIGHTS = "blocks whole on a GPU at once", "how the ranks share a batch", "the weights"
KIND, LOSSES, NORMS, SAME = "what is returned", "the losses", "the norms", "the ranks return the same"
AFTER, GROUP = "the weights on each rank afterwards", "the process group"
TWO, EQUAL, ONE = "two at most", "an equal part each", "those of one process"
LIKELY = {
    MOST: "fully_shard for each block, which lies on the CPU until then, and then for the model",
    PARTS: "x[rank::ranks] takes each ranks-th sample, beginning with this rank's",
    WEIGHTS: "cut, then AdamW; zero_grad, backward, clip, step; fully_shard averages the gradients",
    KIND: "append (loss, norm) for each batch; item() makes a float of a tensor",
    LOSSES: "the mean of the ranks' losses, whose parts are equal: an all-reduce with ReduceOp.AVG",
    NORMS: "clip_grad_norm_ returns the norm as it was, in a DTensor",
    SAME: "each rank has the loss of its samples and the norm of its rows: an all-reduce, and full_tensor()",
    AFTER: "fully_shard leaves DTensors, each with this rank's rows",
    GROUP: "the script goes on with it",
}
CLAUSES = [
    Clause(sentence, [fact], summary, LIKELY[fact], read)
    for read, sentence, fact, summary in (
        (UNITS, "on none are more than two blocks whole at a time", MOST, "more than two blocks are whole at a time"),
        (PRACTICE, "Of each batch every rank takes an equal part", PARTS, "the ranks do not take equal parts"),
        (PRACTICE, "The weights become those that one process", WEIGHTS, "the weights are not those of one process"),
        (PRACTICE, "a list of (loss, norm), floats", KIND, "what is returned is no list of (loss, norm), floats"),
        (PRACTICE, "the mean over all samples of the batch", LOSSES, "the losses are not the means of the batches"),
        (PRACTICE, "of the whole gradient, before it is clipped", NORMS, "the norms are not those of the gradients"),
        (PRACTICE, "the same on every rank", SAME, "the ranks return different numbers"),
        (PRACTICE, "each rank has its part of every weight", AFTER, "the model is not cut afterwards"),
        (PRACTICE, "the process group is open", GROUP, "the process group is closed"),
    )
]
EDGES = {
    "ranks": (2, 3),
    "rows": ("even", "uneven"),
    "steps": (1, 3),
    "batches": ("of equal length", "of different lengths"),
    "limit": ("below the norms", "above them"),
}
BLOCKS = 6
PAIR = "(float, float)"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            Net.within.append(torch.cuda.memory_allocated())
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    """In the form of the lecture's. It leaves out the first number of each sample, its index, and remembers it; and on
    a rank the bytes on its GPU."""

    indices: ClassVar[list[int]] = []
    until: ClassVar[list[int]] = []  # the most bytes before a pass
    within: ClassVar[list[int]] = []  # bytes when a pass begins, and at each of its blocks

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized() and torch.is_grad_enabled():
            self.indices += [round(i) for i in x[:, 0].tolist()]
            self.until.append(torch.cuda.max_memory_allocated())
            self.within.append(torch.cuda.memory_allocated())
        y: torch.Tensor = self.head(self.blocks(self.embed(x[:, 1:])))
        return y


def on_rank(student: Callable[..., Any], model: Net, *args: Any) -> dict[str, Any]:
    """What the call does here."""
    block = sum(p.nbytes for p in model.blocks[0].parameters())
    part = sum(p.nbytes for p in model.parameters()) / int(os.environ["WORLD_SIZE"])
    for noted in (Net.indices, Net.until, Net.within):
        noted.clear()
    with group() as device:
        got = student(model, *args)
        kind = kind_of(got)
        own = [(p, getattr(p, "to_local", lambda p=p: p)().detach()) for p in model.parameters()]
        cut = {len(rows) < len(p) and rows.device == device for p, rows in own}
        return {
            "most": most(*[[(nbytes - part) / block for nbytes in noted] for noted in (Net.until, Net.within)]),
            "indices": [*Net.indices],
            "weights": [(cuts(p), rows.cpu()) for p, rows in own],
            "kind": kind,
            "got": [[float(x) for x in pair] for pair in got] if kind.endswith(PAIR) else None,
            "after": "a part of each" if cut == {True} else "not a part of each",
            "open": "open" if dist.is_initialized() else "closed",
        }


def kind_of(got: Any) -> str:
    if not isinstance(got, list | tuple) or not all(isinstance(pair, list | tuple) for pair in got):
        return f"a {type(got).__name__}"
    kinds = {", ".join("float" if is_number(x) else type(x).__name__ for x in pair) for pair in got}
    return f"{len(got)} of {' and '.join(f'({kind})' for kind in sorted(kinds))}"


def most(until: Sequence[float], within: Sequence[float]) -> str:
    """What is whole until the first step's gradients: `until` and `within` in blocks, without this rank's part."""
    if max(within[:1], default=0) > 3:
        return "all before the first one runs"
    if max(until[:1], default=0) > 3:
        return "all before they are cut"
    return "one more with each that runs" if max(within[: BLOCKS + 1], default=0) > 4.2 else TWO  # with its buffer


def cuts(p: Any) -> list[tuple[int, int, int]]:
    """How a parameter is cut: for each cut its dimension, into how many parts, and which of them is here."""
    placements = enumerate(getattr(p, "placements", ()))
    return [(way.dim, p.device_mesh.size(i), p.device_mesh.get_local_rank(i)) for i, way in placements if way.is_shard()]


def one_process(
    model: nn.Module, batches: Sequence[Any], rate: float, limit: float, adds: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[float]]:
    """The weights after these steps; of each step the loss of each sample, and the norm."""
    model, losses, norms = copy.deepcopy(model), list[torch.Tensor](), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for x, label in batches:
        losses.append(F.cross_entropy(model(x), label, reduction="none"))
        if not adds:
            optimizer.zero_grad()
        losses[-1].mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        optimizer.step()
    return [p.detach() for p in model.parameters()], [loss.detach() for loss in losses], norms


def are(found: Sequence[Any], right: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> bool:
    """Whether the ranks have their parts of these weights, to a thousandth of what the steps have changed."""
    off = 0.0
    for told in found:
        for whole, (cut, rows) in zip(right, told["weights"], strict=True):
            for dim, count, index in cut:
                parts = whole.chunk(count, dim)
                whole = parts[index] if index < len(parts) else whole.narrow(dim, 0, 0)
            off += float((rows - whole).square().sum()) if rows.shape == whole.shape else math.inf
    changed = sum(float((new - old).square().sum()) for new, old in zip(right, before, strict=True))
    return off <= 1e-6 * changed if changed else not off


def shared(found: Sequence[Any], lengths: Sequence[int]) -> str:
    """How the ranks share the batches."""
    times = [Counter(told["indices"]) for told in found]
    together, first, sizes = sum(times, Counter[int]()), 0, set[tuple[int, ...]]()
    for length in lengths:
        sizes.add(tuple(sum(of[i] for i in range(first, first + length)) * len(found) // length for of in times))
        first += length
    if all(of[i] == 1 for of in times for i in range(first)):
        return "each takes all of it"
    told = [word for word, some in (("left out", 0), ("taken twice", 2)) if any(together[i] == some for i in range(first))]
    if told:
        return f"samples are {' and others '.join(told)}"
    return EQUAL if sizes == {(1,) * len(found)} else "the parts are unequal"


def alike(got: Sequence[float], ways: dict[str, Sequence[float]]) -> str:
    """Which of these numbers came; "others" if none."""
    near = (way for way, right in ways.items() if math.dist(got, right) <= 1e-5 * math.hypot(*right))
    return next(near, "others")


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, width, rate = scene.ranks, 6 * random.randint(11, 12) - (scene.rows == "uneven"), random.uniform(0.01, 0.03)
    times = random.sample(range(1, 4), 3)[: scene.steps]
    lengths = [ranks * (n if scene.batches == "of different lengths" else times[0]) for n in times]
    order = iter(range(sum(lengths)))
    batches = []
    for length in lengths:
        index = torch.tensor([[next(order)] for _ in range(length)])
        x = torch.randn(length, 4, dtype=torch.float64) * random.uniform(0.5, 3)
        batches.append((torch.cat([index, x], 1), torch.randint(3, (length,))))
    model = Net(width).double()
    before, norms = [*model.parameters()], one_process(model, batches, rate, math.inf)[2]
    limit = 0.3 * min(norms) if scene.limit == "below the norms" else 3 * max(norms)
    found = call(on_rank, *[(model, batches, rate, limit)] * ranks)

    facts = Facts(f"{ranks} ranks, {scene.steps} batches, blocks of {width} columns, a limit {scene.limit}")
    facts.add(MOST, [told["most"] for told in found], [TWO] * ranks)
    facts.add(PARTS, shared(found, lengths), EQUAL)
    weights, losses, norms = one_process(model, batches, rate, limit)
    got = found[0]["got"]
    if holds(facts, PARTS):
        ways: dict[str, Any] = {
            ONE: weights,
            "those that they were": before,
            "those of gradients that are not clipped": one_process(model, batches, rate, math.inf)[0],
            "those of gradients that add up": one_process(model, batches, rate, limit, adds=True)[0],
        }
        facts.add(WEIGHTS, next((way for way, right in ways.items() if are(found, right, before)), "others"), ONE)
    facts.add(KIND, [told["kind"] for told in found], [f"{scene.steps} of {PAIR}"] * ranks)
    if got and len(got) == scene.steps:
        told_losses, told_norms = zip(*got, strict=True)
        if WEIGHTS in facts.wanted and holds(facts, WEIGHTS):
            own = iter(found[0]["indices"])
            of_rank = [[next(own) - sum(lengths[:i]) for _ in range(n // ranks)] for i, n in enumerate(lengths)]
            sums = [float(loss.sum()) for loss in losses]
            ways = {
                "the means of the batches": [float(loss.mean()) for loss in losses],
                "the sums of the batches": sums,
                "N times the means": [ranks * float(loss.mean()) for loss in losses],
                "those of this rank's samples": [float(loss[i].mean()) for loss, i in zip(losses, of_rank, strict=True)],
            }
            facts.add(LOSSES, alike(told_losses, ways), next(iter(ways)))
            ways = {
                "those before clipping": norms,
                "those after clipping": [min(norm, limit) for norm in norms],
                "an Nth of them": [norm / ranks for norm in norms],
                "N times as large": [norm * ranks for norm in norms],
            }
            facts.add(NORMS, alike(told_norms, ways), next(iter(ways)))
        else:
            facts.seen["the last step"] = got[-1]
        facts.add(SAME, len({str(told["got"]) for told in found}) == 1, True)
    facts.add(AFTER, [told["after"] for told in found], ["a part of each"] * ranks)
    facts.add(GROUP, [told["open"] for told in found], ["open"] * ranks)
    return facts


CONTRACT = Contract(
    __file__,
    parameters=("model", "batches", "learning_rate", "limit"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
)


@check(lesson=13, says="the losses and norms of one GPU, and none of them has held the whole model")
def train_sharded(student: Any, trial: Trial) -> None:
    """Check a function of (model, batches, learning_rate, limit): called on real ranks, it cuts model, trains it on
    all of them, and returns the loss and the norm of each step."""
    CONTRACT.judge(student, trial)
