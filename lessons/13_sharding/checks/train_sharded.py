"""Checks a sharded training on real ranks, each with a virtual GPU, against one process with the same batches."""

from __future__ import annotations

import copy
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import ANYTHING
from gpulab.exercise.contract import Clause, Contract, Facts, holds
from gpulab.exercise.groups import MACHINES, group, spread
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, is_number

UNITS, PRACTICE = "Gather, compute, let go", "fully_shard in practice"
MOST, PARTS, WEIGHTS = "blocks whole on a GPU at once", "how the ranks share a batch", "the weights"
KIND, LOSSES, NORMS, SAME = "what is returned", "the losses", "the norms", "what the ranks return"
AFTER, GROUP = "each weight afterwards, on the ranks", "the process group"
TWO, EQUAL, ONE = "two at most", "an equal part each", "those of one process"
CLAUSES = [
    Clause(quote, [fact], summary, rule, read)
    for read, fact, quote, summary, rule in (
        (UNITS, MOST, "on none are more than two blocks whole at a time", "more than two blocks are whole at a time",
         "from the first line to the last, also in backward and in later steps"),
        (PRACTICE, PARTS, "Of each batch every rank takes an equal part", "the ranks do not take equal parts",
         "each sample goes to one rank"),
        (PRACTICE, WEIGHTS, "The weights become those that one process", "the weights are not those of one process",
         "they show which gradient was used, with which factor, and how often"),
        (PRACTICE, KIND, "a list of (loss, norm), floats", "what is returned is not a list of (loss, norm), floats",
         "a pair for each batch, of plain numbers"),
        (PRACTICE, LOSSES, "the mean over all samples of the batch", "the losses are not the means of the batches",
         "a rank's own loss is that of its part; the parts are equal"),
        (PRACTICE, NORMS, "of the whole gradient, before it is clipped", "the norms are not those of the gradients",
         "take the norm over the parts of all ranks"),
        (PRACTICE, SAME, "the same on every rank", "the ranks return different numbers",
         "each rank has a part of the gradient"),
        (PRACTICE, AFTER, "each rank has its part of every weight", "the model is not sharded afterwards",
         "a DTensor with this rank's rows, on its GPU"),
        (PRACTICE, GROUP, "the process group is open", "the process group is closed", "the script continues to use it"),
    )
]  # fmt: skip
EDGES = {
    "ranks": (2, 3),
    "rows": ("even", "uneven"),
    "steps": (1, 2),
    "batches": ("of equal length", "of different lengths"),
    "limit": ("below the norms", "above them"),
    "machines": MACHINES,
}
BLOCKS = 6
WIDTHS = {"even": 66, "uneven": 65}  # no others: for each new shape DTensor derives anew how an operation is cut
PAIR = "(float, float)"
WAYS: dict[str, Callable[[int], dict[str, Any]]] = {  # to other weights, on so many ranks
    "those that they were": lambda ranks: {"rate": 0.0},
    "those of gradients that are not clipped": lambda ranks: {"limit": math.inf},
    "those of gradients that add up": lambda ranks: {"adds": True},
    "those of gradients divided by N": lambda ranks: {"times": 1 / ranks},
}


def noting() -> bool:
    return dist.is_initialized() and torch.is_grad_enabled()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if noting():
            Net.within[-1].append(torch.cuda.memory_allocated())
        inner: torch.Tensor = F.gelu(self.up(x))
        if noting():
            here = Net.back[-1]
            inner.register_hook(lambda grad: here.append(torch.cuda.memory_allocated()))
        y: torch.Tensor = x + self.down(inner)
        return y


class Net(nn.Module):
    """In the form of the lecture's. It leaves out the first number of each sample, its index, and remembers it; and on
    a rank the bytes on its GPU."""

    indices: ClassVar[list[int]] = []
    until: ClassVar[list[int]] = []  # the most bytes before a pass
    within: ClassVar[list[list[int]]] = []  # of each pass: bytes when it begins, and at each of its blocks
    back: ClassVar[list[list[int]]] = []  # and at each of its blocks in backward, the last one first

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if noting():
            self.indices.extend(round(i) for i in x[:, 0].tolist())
            self.until.append(torch.cuda.max_memory_allocated())
            self.within.append([torch.cuda.memory_allocated()])
            self.back.append([])
        y: torch.Tensor = self.head(self.blocks(self.embed(x[:, 1:])))
        return y


def on_rank(student: Callable[..., Any], machines: str, model: Net, *args: Any) -> dict[str, Any]:
    """What the call does here."""
    spread(machines)
    block = sum(p.nbytes for p in model.blocks[0].parameters())
    part = sum(p.nbytes for p in model.parameters()) / int(os.environ["WORLD_SIZE"])
    for noted in (Net.indices, Net.until, Net.within, Net.back):
        noted.clear()
    with group():
        got = student(model, *args)
        kind = kind_of(got)
        own = [(p, getattr(p, "to_local", lambda p=p: p)().detach()) for p in model.parameters()]
        after = {f"{'a part' if len(rows) < len(p) else 'all'} of it on {rows.device}" for p, rows in own}
        return {
            "most": most(
                max(Net.until[:1], default=0) / block - part / block,
                [[(nbytes - part) / block for nbytes in noted] for noted in Net.within],
                [[nbytes / block for nbytes in noted] for noted in Net.back],
                int(os.environ["WORLD_SIZE"]),
            ),
            "indices": [*Net.indices],
            "weights": [(cuts(p), rows.cpu()) for p, rows in own],
            "kind": kind,
            "got": [[as_float(x) for x in pair] for pair in got] if kind.partition(" of ")[2] == PAIR else None,
            "after": ", ".join(sorted(after)),
            "open": "open" if dist.is_initialized() else "closed",
        }


def kind_of(got: Any) -> str:
    def kind(x: Any) -> str:
        several = isinstance(x, list | tuple)
        return f"({', '.join(map(kind, x))})" if several else "float" if is_number(x) else type(x).__name__

    several = isinstance(got, list | tuple)
    return f"{len(got)} of {' or '.join(sorted({*map(kind, got)}))}" if several else f"a {kind(got)}"


def most(until: float, within: Sequence[Sequence[float]], back: Sequence[Sequence[float]], ranks: int) -> str:
    """What is whole: up to the first pass and in it, in later ones, and in backward. All in blocks: the most
    `until` the first pass, and what is `within` the passes, without this rank's part."""
    first = within[0] if within else [0.0]
    begins, runs = first[0], [*first[1 : BLOCKS + 1], 0]
    if begins > 5 or runs[0] > 8:  # what is gathered has the buffer of its gather beside it
        return "all, as soon as the first one runs"
    if begins > 2.7:
        return "all, from the beginning"
    if runs[0] > 3.7:
        return "several, as soon as the first one runs"
    if until > 2.7:
        return "all, before they are cut"
    if max(runs) > 3.7:
        return "one more with each that runs"
    for begins, *runs in within[1:]:
        if runs and max(runs[:BLOCKS]) - begins > 3.5:
            return f"{'several at once' if runs[0] - begins > 3.5 else 'one more with each that runs'}, in a later step"
    return "more in backward" if any(ups_and_downs(i, noted, ranks) > 1.7 for i, noted in enumerate(back)) else TWO


def ups_and_downs(step: int, back: Sequence[float], ranks: int) -> float:
    """By how much what is whole differs from block to block in backward. With each block a rank's part of its gradient
    comes, unless a step before has left it there."""
    if len(back) != BLOCKS:  # where activations are computed anew
        return 0.0
    spreads = []
    for part in (1 / ranks, 0.0)[: 1 + bool(step)]:
        whole = [nbytes - block * part for block, nbytes in enumerate(back)]
        spreads.append(max(whole) - min(whole))
    return min(spreads)


def cuts(p: Any) -> list[tuple[int, int, int]]:
    """How a parameter is cut: for each cut its dimension, into how many parts, and which of them is here."""
    ways, mesh = enumerate(getattr(p, "placements", ())), getattr(p, "device_mesh", None)
    return [(way.dim, mesh.shape[i], mesh.get_coordinate()[i]) for i, way in ways if mesh and way.is_shard()]


def one_process(
    model: nn.Module, batches: Sequence[Any], rate: float, limit: float, times: float = 1.0, adds: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[float]]:
    """The weights after these steps; of each step the loss of each sample, and the norm. For other weights gradients
    are so many `times` as large, or those of all steps added up."""
    model, losses, norms = copy.deepcopy(model), list[torch.Tensor](), list[float]()
    state = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step, (x, label) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x), label, reduction="none")
        if not adds:
            model.zero_grad()
        (times * loss.mean()).backward()
        losses.append(loss.detach())
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        with torch.no_grad():  # AdamW by hand: torch's takes a second to import what it may need
            for p, mean, square in state:
                grad: Any = p.grad
                mean.lerp_(grad, 0.1)
                square.lerp_(grad**2, 0.001)
                by = (square / (1 - 0.999**step)).sqrt() + 1e-8
                p.mul_(1 - 0.01 * rate).sub_(rate * mean / (1 - 0.9**step) / by)
    return [p.detach() for p in model.parameters()], losses, norms


def are(found: Sequence[Any], right: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> bool:
    """Whether the ranks have their parts of these weights, to a ten-thousandth of what the steps have changed."""
    off = 0.0
    for told in found:
        for whole, (cut, rows) in zip(right, told["weights"], strict=True):
            for dim, count, index in cut:
                parts = whole.chunk(count, dim)
                whole = parts[index] if index < len(parts) else whole.narrow(dim, 0, 0)
            off += float((rows - whole).square().sum()) if rows.shape == whole.shape else math.inf
    return off <= 1e-8 * sum(float((new - old).square().sum()) for new, old in zip(right, before, strict=True))


def shared(found: Sequence[Any], lengths: Sequence[int]) -> str:
    """How the ranks share the batches."""
    times = [Counter(told["indices"]) for told in found]
    together, first, equal = sum(times, Counter[int]()), 0, True
    for length in lengths:
        equal &= len({sum(of[i] for i in range(first, first + length)) for of in times}) == 1
        first += length
    if all(of[i] == 1 for of in times for i in range(first)):
        return "each takes all of it"
    counts = {together[i] for i in range(first)}
    told = [word for word, so in (("left out", 0 in counts), ("taken twice", max(counts) > 1)) if so]
    if told:
        return f"samples are {' and others '.join(told)}"
    return EQUAL if equal else "the parts are unequal"


def once(told: Iterable[Any]) -> Any:
    """What all ranks tell, where it is the same."""
    told = [*told]
    return told[0] if len({*told}) == 1 else told


def differing(got: Sequence[Any]) -> str:
    """Which numbers are not those of rank 0."""
    columns = [[*zip(*pairs, strict=True)] if pairs else [(), ()] for pairs in got]
    others = [
        name
        for name, *of_ranks in zip(("losses", "norms"), *columns, strict=True)
        if not all(len(of) == len(of_ranks[0]) and near(of, of_ranks[0]) for of in of_ranks)
    ]
    return f"other {' and '.join(others)}" if others else "the same"


def near(got: Sequence[float], right: Sequence[float]) -> bool:
    return math.dist(got, right) <= 1e-5 * math.hypot(*right)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, width, rate = scene.ranks, WIDTHS[scene.rows], random.uniform(0.01, 0.03)
    times = random.sample(range(1, 4), scene.steps)
    lengths = [ranks * (n if scene.batches == "of different lengths" else times[0]) for n in times]
    batches = []
    for index in torch.arange(sum(lengths), dtype=torch.float64).split(lengths):
        x = torch.randn(len(index), 4, dtype=torch.float64) * random.uniform(0.5, 3)
        batches.append((torch.cat([index[:, None], x], 1), torch.randint(3, index.shape)))
    model = Net(width).double()
    before, norms = [p.detach() for p in model.parameters()], one_process(model, batches, rate, math.inf)[2]
    limit = 0.3 * min(norms) if scene.limit == "below the norms" else 5 * max(norms)
    found = call(on_rank, *[(scene.machines, model, batches, rate, limit)] * ranks)

    batch = "one batch" if scene.steps == 1 else f"{scene.steps} batches"
    facts = Facts(f"{ranks} ranks, {batch}, blocks of {width} columns, a limit {scene.limit}")
    facts.add(MOST, once(told["most"] for told in found), TWO)
    facts.add(PARTS, shared(found, lengths), EQUAL)
    given: dict[str, Any] = {"rate": rate, "limit": limit}
    weights, losses, norms = one_process(model, batches, **given)
    got = found[0]["got"]
    if holds(facts, PARTS):
        others = ((way, one_process(model, batches, **given | of(ranks))[0]) for way, of in WAYS.items())
        found_in = (way for way, its in chain([(ONE, weights)], others) if are(found, its, before))
        facts.add(WEIGHTS, next(found_in, "others"), ONE)
    facts.add(KIND, once(told["kind"] for told in found), f"{scene.steps} of {PAIR}")
    if got and len(got) == scene.steps:
        if facts.seen.get(WEIGHTS) == ONE:
            own, means = iter(found[0]["indices"]), [float(loss.mean()) for loss in losses]
            of_rank = [[next(own) - sum(lengths[:i]) for _ in range(n // ranks)] for i, n in enumerate(lengths)]
            of_losses = {
                "the means of the batches": means,
                "N times the means": [mean * ranks for mean in means],
                "those of its own samples": [float(of[i].mean()) for of, i in zip(losses, of_rank, strict=True)],
            }
            of_norms = {
                "those before clipping": norms,
                "those after clipping": [min(norm, limit) for norm in norms],
                "an Nth of them": [norm / ranks for norm in norms],
            }
            for fact, numbers, ways in zip((LOSSES, NORMS), zip(*got, strict=True), (of_losses, of_norms), strict=True):
                came = (way for way, right in ways.items() if near(numbers, right))
                facts.add(fact, next(came, "others"), next(iter(ways)))
        facts.add(SAME, differing([told["got"] for told in found]), "the same")
    gpus = range(ranks) if scene.machines == "one" else [0] * ranks
    facts.add(AFTER, [told["after"] for told in found], [f"a part of it on cuda:{gpu}" for gpu in gpus])
    facts.add(GROUP, once(told["open"] for told in found), "open")
    return facts


EXERCISE = Contract(
    __file__,
    says="the losses and norms of one GPU, and no GPU has held the whole model",
    parameters=("model", "batches", "learning_rate", "limit"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": ANYTHING - {"mode"}},
)
