"""Judges the turns of lesson 12: a sampler's indices, a loss for unequal counts, the odd rank, a window's exchange."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief
from virtualgpu.gpu import VirtualGPU

Dealing = Callable[[int, int, int], list[int]]


def _dealt(rank: int, ranks: int, length: int) -> list[int]:
    """What PyTorch's sampler gives this rank, in its own words."""
    from torch.utils.data import DistributedSampler

    return list(DistributedSampler(range(length), ranks, rank, shuffle=False))  # type: ignore[arg-type]


def _chunk(rank: int, ranks: int, length: int) -> list[int]:
    each = length // ranks
    return list(range(rank * each, (rank + 1) * each))


def _padded_chunk(rank: int, ranks: int, length: int) -> list[int]:
    each = -(-length // ranks)
    return [i % length for i in range(rank * each, (rank + 1) * each)]


# Parts that readers cut: how, what comes of it, and why.
_PARTS: tuple[tuple[Dealing, str, str], ...] = (
    (lambda rank, ranks, length: list(range(rank, length, ranks)), "the ranks have unequal numbers of indices",
     "nothing is padded: repeat the first indices at the end, until the ranks divide the length"),
    (lambda rank, ranks, length: list(range(length))[: length - length % ranks][rank::ranks],
     "the last indices are left out",
     "that is drop_last=True: pad instead of dropping"),
    (_padded_chunk, "each rank has consecutive indices",
     "the padding is right; now take every ranks-th index, starting at rank: [rank::ranks]"),
    (lambda rank, ranks, length: (list(range(length)) + [length - 1] * (-length % ranks))[rank::ranks],
     "the last index is repeated", "the padding starts again with the first indices"),
    (lambda rank, ranks, length: (list(range(length)) + list(range(ranks - length % ranks)))[rank::ranks],
     "there is padding although the length divides evenly", "ranks - length % ranks is not 0 then; -length % ranks is"),
    (lambda rank, ranks, length: list(range(length)), "every rank has all indices",
     "the selection of one rank's part is missing"),
)  # fmt: skip


@turn("each rank gets every ranks-th index, and the first ones are repeated until all ranks have equally many")
def dealt_indices(answer: Any) -> None:
    """A function (rank, ranks, length) that gives a rank's indices as DistributedSampler does without a shuffle."""
    scenes = [(ranks, length) for ranks, length in (_uneven(), _uneven(), _even())]
    got = {(rank, *scene): answer(rank, *scene) for scene in scenes for rank in range(scene[0])}
    parts = {key: _as_list(part) for key, part in got.items()}
    wrong = [key for key, part in parts.items() if part != _dealt(*key)]
    if not wrong:
        return
    rank, ranks, length = wrong[0]
    asked = f"rank {rank} of {ranks}, {length} samples"
    if any(part is None for part in parts.values()):
        key = next(key for key, part in parts.items() if part is None)
        likely = "the return is missing" if got[key] is None else "return the indices themselves"
        raise NotYet(f"{brief(got[key])} for {asked}", expected="a list of whole numbers", likely=likely)
    if all(part == _chunk(*key) for key, part in parts.items()):
        raise AsGiven("each rank gets a chunk, and no rank gets the last indices")
    right = f"{_dealt(*wrong[0])} for {asked}"
    for dealing, told, likely in _PARTS:
        if all(part == dealing(*key) for key, part in parts.items()):
            raise NotYet(told, expected=right, likely=likely)
    raise NotYet(
        f"{parts[wrong[0]]}",
        expected=right,
        likely="take all indices, append the first ones as padding, then [rank::ranks]",
    )


def _as_list(part: Any) -> list[int] | None:
    """The indices, None for what is no row of whole numbers."""
    try:
        numbers = part.tolist() if isinstance(part, torch.Tensor) else list(part)
        return [int(number) for number in numbers] if all(int(n) == n for n in numbers) else None
    except (TypeError, ValueError):
        return None


def _uneven() -> tuple[int, int]:
    """Ranks, and a length that they do not divide, by more than one and less than all but one."""
    ranks = int(torch.randint(4, 8, ()))
    return ranks, ranks * int(torch.randint(2, 5, ())) + int(torch.randint(1, ranks - 1, ()))


def _even() -> tuple[int, int]:
    ranks = int(torch.randint(3, 8, ()))
    return ranks, ranks * int(torch.randint(2, 5, ()))


# What readers return for the loss of a rank, by the weight that it gives each of its samples, and why it is wrong.
_WEIGHTS: tuple[tuple[Callable[[int, int, int], float], str, str], ...] = (
    (lambda count, total, ranks: 1 / total, "all gradients are too small, by a factor of the number of ranks",
     "DDP divides the sum over the ranks by their number: multiply by it"),
    (lambda count, total, ranks: 1.0, "the gradient is that of a sum, not of a mean",
     "divide by total, and multiply by ranks, because DDP divides by it"),
    (lambda count, total, ranks: ranks, "the gradient is that of a sum, not of a mean", "divide by total"),
    (lambda count, total, ranks: ranks / count, "all ranks still count equally, and too much",
     "divide by the samples of all ranks, total, and not by this rank's"),
    (lambda count, total, ranks: ranks / total / count, "all ranks still count equally",
     "mean() has divided by this rank's samples already: sum()"),
    (lambda count, total, ranks: 1 / total / count, "all ranks still count equally",
     "mean() has divided by this rank's samples already: sum(), and DDP divides by ranks"),
)  # fmt: skip


@turn("every sample counts equally, whichever rank it is on")
def fair_loss(answer: Any) -> None:
    """A function (losses, total, ranks) that gives the loss with which DDP's average is right for unequal counts."""
    ranks = int(torch.randint(3, 6, ()))
    counts = [int(torch.randint(2, 9, ())) for _ in range(ranks - 1)]
    counts.append(sum(counts))  # one rank has half of the samples
    total = sum(counts)
    weights = [_weights(answer, count, total, ranks) for count in counts]
    if _all_are(weights, [ranks / total] * ranks):
        return
    if _all_are(weights, [1 / count for count in counts]):
        raise AsGiven("a sample counts more if its rank has fewer samples")
    where = f"{counts[0]} of {total} samples on a rank of {ranks}"
    right = f"each sample weighs {ranks}/{total} in its rank's loss"
    for weight, told, likely in _WEIGHTS:
        if _all_are(weights, [weight(count, total, ranks) for count in counts]):
            raise NotYet(f"{told} ({where})", expected=right, likely=likely)
    shown = ", ".join(f"{weight:.3g}" for weight in weights[0].tolist())
    likely = "divide the sum of this rank's losses by all samples, and multiply by ranks, because DDP divides by it"
    raise NotYet(f"the weights of the samples are {shown} ({where})", expected=right, likely=likely)


def _weights(answer: Any, count: int, total: int, ranks: int) -> torch.Tensor:
    """How much each of the rank's samples weighs in the loss that comes back: its gradient."""
    losses = (1 + torch.rand(count)).requires_grad_()
    got = answer(losses * 1, total, ranks)
    if not isinstance(got, torch.Tensor) or got.dim():
        likely = "the return is missing" if got is None else "sum() adds them to one number and keeps the graph"
        raise NotYet(brief(got), expected="a tensor of shape (), with its graph", likely=likely)
    if not got.requires_grad:
        likely = "item(), detach() or torch.tensor() has cut the graph: backward() comes next"
        raise NotYet("a tensor without a graph", expected="a loss that backward() can follow", likely=likely)
    got.backward()
    assert losses.grad is not None
    return losses.grad


def _all_are(weights: list[torch.Tensor], wanted: list[float]) -> bool:
    return all(torch.allclose(got, torch.full_like(got, right)) for got, right in zip(weights, wanted, strict=True))


# By job: which rank has diverged and in which number, and what the dumps show.
_PARTED: dict[str, tuple[tuple[int, int] | None, str]] = {
    "a": ((2, 7), "the waiting ranks have called what they should; rank 2 has not called number 7"),
    "b": ((1, 9), "only rank 1 waits in number 9, and no other rank has called it"),
    "c": ((3, 4), "rank 3 called number 4 with other sizes: the calls ended without an error"),
    "d": (None, "no rank waits in vain: ranks 1 and 2 are behind, and may still arrive"),
    "e": ((2, 3), "a rank without a dump has died: it has not called what the others wait in"),
}


@turn("the rank that waits is mostly not the one at fault, and the one at fault need not wait")
def odd_ranks(answer: Any) -> None:
    """A function that returns {job: (rank, number)}, or None for a job in which no rank has diverged."""
    got = answer()
    if not isinstance(got, dict) or set(got) != set(_PARTED):
        likely = "a key was changed, or the return is missing"
        raise NotYet(brief(got), expected="a dict with the keys a, b, c, d and e", likely=likely)
    if all(parted == "?" for parted in got.values()):
        raise AsGiven('all five are "?"')
    for job, (right, likely) in _PARTED.items():
        parted = tuple(got[job]) if isinstance(got[job], list) else got[job]
        if parted != right:
            if right and isinstance(parted, tuple) and parted[:1] == right[:1]:
                likely = f"the rank is right; give the number of the collective in which it diverged: {likely}"
            raise NotYet(f"{brief(parted)} for job {job}", expected=brief(right), likely=likely)


MICRO = 4


@dataclass(frozen=True)
class _Seen:
    """What came of a window: exchanges of all gradients, how often `no_sync` was entered, the forward passes that were
    not to be exchanged, and the weight's gradient."""

    exchanges: int
    entered: int
    quiet: int
    gradient: torch.Tensor | None


@turn("one exchange for the window, after which .grad is the gradient of its mean loss")
def one_exchange(answer: Any) -> None:
    """A function (model, window) that accumulates over the window's (x, y) with a single exchange of gradients."""
    window = [(torch.randn(6, 8), torch.randint(5, (6,))) for _ in range(MICRO)]
    plain = nn.Linear(8, 5)
    for x, y in window:
        (F.cross_entropy(plain(x), y) / MICRO).backward()
    assert plain.weight.grad is not None
    right = plain.weight.grad.clone()
    seen = _seen(answer, plain, window)
    told, likely = _judged(seen, right)
    if seen.gradient is not None and seen.exchanges == MICRO and not seen.entered and _same(seen.gradient, right):
        raise AsGiven(f"there are {MICRO} exchanges in a window of {MICRO}")
    if told:
        expected = "one exchange, with the last micro-batch, and the gradient of the mean loss"
        raise NotYet(told, expected=expected, likely=likely)


def _judged(seen: _Seen, right: torch.Tensor) -> tuple[str, str]:
    """What is wrong and why, empty where nothing is."""
    got, exchanges = seen.gradient, seen.exchanges
    if got is None:
        return "there is no gradient", "backward() is gone, or zero_grad() came after it"
    if exchanges == MICRO and seen.entered:
        return (
            f"no_sync() is used, but there are still {MICRO} exchanges",
            "the forward pass belongs inside no_sync() too: DDP decides in it",
        )
    if exchanges == 0:
        return "nothing is exchanged", "the last micro-batch has to run outside of no_sync()"
    if exchanges > 1:
        return f"there are {exchanges} exchanges", "all micro-batches but the last run within no_sync()"
    if _same(got, MICRO * right):
        return "the gradient is the sum of the micro-batches', not their mean", "the division by len(window) is missing"
    if not _same(got, right):
        return "one exchange, but the wrong gradient", "each micro-batch runs once, and nothing is cleared between them"
    if seen.quiet < MICRO - 1:
        return (
            "one exchange, of a single backward() for the whole window",
            "so the graphs of all micro-batches are alive at once: run each backward(), the first three in no_sync()",
        )
    return "", ""


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-5)


def _seen(answer: Any, plain: nn.Linear, window: list[Any]) -> _Seen:
    """What the answer does to a copy of `plain` on imagined ranks.

    Of two ranks this process is one, and the other's gradients equal its own: the mean of both is what it has.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = copy.deepcopy(plain)
    model.zero_grad()
    with warnings.catch_warnings(), VirtualGPU("T4", ranks=2) as gpu:
        warnings.filterwarnings("ignore", "rank 0 of 2 runs here")  # the reader has not asked for ranks
        dist.init_process_group("nccl")
        try:
            counted = _Counted(DistributedDataParallel(model.cuda()))
            there = [(x.cuda(), y.cuda()) for x, y in window]
            with gpu.timeline() as timeline:
                answer(counted.model, there)
            found = None if model.weight.grad is None else model.weight.grad.detach().cpu()
            entered, quiet = counted.entered, counted.quiet
            counted.close()
            del counted
        finally:
            dist.destroy_process_group()
            gc.collect()
    nbytes = sum(p.nbytes for p in plain.parameters())
    exchanges = sum(span.where == "ranks" and span.nbytes == nbytes for span in timeline.spans)
    return _Seen(exchanges, entered, quiet, found)


class _Counted:
    """A model in DDP that counts how often its `no_sync()` is entered, and forward passes that will not exchange."""

    def __init__(self, model: Any) -> None:
        self.model, self.entered, self.quiet = model, 0, 0
        self._own: Callable[[], AbstractContextManager[None]] = model.no_sync
        model.no_sync = self._no_sync
        model.module.register_forward_pre_hook(self._forward)

    def _no_sync(self) -> AbstractContextManager[None]:
        self.entered += 1
        return self._own()

    def _forward(self, module: nn.Module, args: Any) -> None:
        self.quiet += not self.model.require_backward_grad_sync

    def close(self) -> None:
        del self.model.no_sync
