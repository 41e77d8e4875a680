"""Judges the turns of lesson 09: what to change first, the workers of a rank, their parts of a stream, batches without
a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset
from torch.utils.data._utils import worker as workers  # what `get_worker_info` reads stands there

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_whole

# Of trainings A to D, in the order of the table: what is changed first, the three numbers, and for each other answer
# why it is not.
_TRAININGS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "step",
        "51 ms together, 50 on one batch: the loader costs 1",
        {
            "loader": "the data time is the wait for the step before, in .to(): the loader alone needs 20 ms",
            "overlap": "one after the other would be 70 ms",
        },
    ),
    (
        "loader",
        "92 ms together, 50 on one batch: the loader costs 42, and alone it takes 90",
        {
            "step": "a shorter step changes nothing: the loader alone takes 90 ms",
            "overlap": "they overlap: one after the other they would take 140 ms",
        },
    ),
    (
        "overlap",
        "90 ms together are 40 + 50: each step waits, and there are no workers",
        {
            "loader": "the loader is faster than the step, and would cost nothing if they overlapped",
            "step": "the GPU does not compute all the time: both together take 40 ms more",
        },
    ),
    (
        "loader",
        "301 ms together, 40 on one batch: the loader costs 261, and alone it takes 300",
        {
            "step": "a shorter step changes nothing: the loader alone takes 300 ms",
            "overlap": "they overlap: one after the other they would take 340 ms",
        },
    ),
)
_WORDS = ("step", "loader", "overlap")


@turn("each training is judged by its three numbers, not by the clock inside the loop")
def change_first(answer: Any) -> None:
    """A function that returns four of "step", "loader", "overlap", for trainings A to D."""
    got = answer()
    if not isinstance(got, list | tuple) or len(got) != len(_TRAININGS):
        raise NotYet(brief(got), expected="a list of four words", likely="the return or one of the four is missing")
    if all(word is None for word in got):
        raise AsGiven("all four are None")
    for name, (right, numbers, wrong), word in zip("ABCD", _TRAININGS, got, strict=True):
        if word == right:
            continue
        likely = wrong.get(word, f"the three words are {', '.join(_WORDS)}") if isinstance(word, str) else ""
        likely = likely or f"the three words are {', '.join(_WORDS)}"
        raise NotYet(f"{brief(word)} for {name}", expected=f"{right}: {numbers}", likely=likely)


# (cores, quota, ranks): workers, and what a reader who has another number has likely overlooked.
_MACHINES: tuple[tuple[int, float | None, int, int, str], ...] = (
    (16, None, 4, 3, "16 cores for 4 ranks are 4 for each, and one of them is for the rank itself"),
    (16, 6.0, 2, 2, "the quota is less than the cores, and all ranks share it"),
    (8, 32.0, 2, 3, "the quota is more than the cores: the smaller of the two counts"),
    (64, 2.5, 1, 1, "a worker needs a whole core: round down"),
    (2, None, 8, 0, "the number may be 0, but not negative"),
    (8, 0.5, 1, 0, "the number may be 0, but not negative"),
    (8, None, 0, 7, "without a GPU ranks is 0: the only process has all cores"),
)


@turn("each rank's share of the cores minus one for the rank itself, by affinity and quota, with and without a GPU")
def workers_for(answer: Any) -> None:
    """A function (cores, quota, ranks) that gives the workers of one rank's loader."""
    if _as_given(answer):
        raise AsGiven("16 cores, a quota of 6 and 2 ranks give 8 workers each, and no GPU gives a ZeroDivisionError")
    for cores, quota, ranks, right, likely in _MACHINES:
        try:
            got = answer(cores, quota, ranks)
        except ZeroDivisionError:
            raise NotYet("a ZeroDivisionError for 0 ranks", expected="7 workers for 8 cores", likely=likely) from None
        if is_whole(got) and got == right:
            continue
        likely = "the return is missing" if got is None else likely
        if isinstance(got, float):
            likely = "DataLoader takes a whole number: // in place of /, and int(quota)"
        raise NotYet(f"{brief(got)} for {cores=}, {quota=}, {ranks=}", expected=str(right), likely=likely)


def _as_given(answer: Callable[[int, float | None, int], Any]) -> bool:
    """Whether it divides the cores by the ranks, and no more."""
    try:
        answer(8, None, 0)
    except ZeroDivisionError:
        return bool(answer(16, 6.0, 2) == 8)
    return False


class _Lines:
    """To be iterated over, and nothing else."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[int]:
        return iter(range(100, 100 + self.number))


@contextmanager
def _in_worker(id: int, number: int) -> Iterator[None]:
    """`get_worker_info()` answers as in this worker."""
    before = workers._worker_info
    workers._worker_info = workers.WorkerInfo(id=id, num_workers=number, seed=id, dataset=Dataset())
    try:
        yield
    finally:
        workers._worker_info = before


@turn("each line is read by one worker only, or by the main process if there are no workers")
def my_part(answer: Any) -> None:
    """A function (lines) that gives what this worker is to read."""
    number, count = int(torch.randint(10, 20, ())), 3
    parts = []
    for id in range(count):
        with _in_worker(id, count):
            parts.append(_read(answer(_Lines(number))))
    lines = list(_Lines(number))
    if all(part == lines for part in parts):
        raise AsGiven(f"each of {count} workers reads all the lines")
    everything, sizes = sorted(line for part in parts for line in part), [len(part) for part in parts]
    what = f"{count} workers read {', '.join(map(str, sizes))} of {number} lines"
    if len(set(everything)) < len(everything):
        likely = "a step is missing: from id on, every num_workers-th line"
        raise NotYet(f"{what}, some of them twice", expected="no line twice", likely=likely)
    if everything != lines:
        likely = "the parts begin at id, which counts from 0, and the last one goes to the end"
        raise NotYet(f"{what}, and some are missing", expected="none missing", likely=likely)
    if max(sizes) - min(sizes) > count:
        likely = "the result is right, but no faster than with one worker"
        raise NotYet(what, expected="about as many for each", likely=likely)
    got = _read(answer(_Lines(number)))
    if got != lines:
        likely = "get_worker_info() is None there: the main process reads all lines"
        raise NotYet(f"{len(got)} of {number} lines in the main process", expected="all", likely=likely)


def _read(part: Any) -> list[Any]:
    try:
        return list(part)
    except TypeError:
        likely = "the return is missing" if part is None else "DataLoader calls iter() on what comes back"
        raise NotYet(f"{brief(part)} came back", expected="something to iterate over", likely=likely) from None


_BATCH = 4


@turn("each sample once, in a new order at each call, and nothing crosses the bus")
def gpu_batches(answer: Any) -> None:
    """A function (images, labels, batch) that gives the batches of one epoch, from tensors on the GPU."""
    number = 6 * _BATCH + int(torch.randint(1, _BATCH, ()))
    with virtual_gpu() as gpu:
        labels = torch.arange(number, device="cuda")
        images = labels.float()[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
        gpu.clock.record = []
        first, second = (_batches(answer(images, labels, _BATCH)) for _ in range(2))
        crossing = {span.where for span in gpu.clock.record} & {"to GPU", "to host"}
        orders = [torch.cat([y for _, y in epoch]).tolist() for epoch in (first, second)]
        apart = any(not torch.equal(x[:, 0, 0, 0].long(), y) for x, y in first)
    order, sizes = orders[0], [len(y) for _, y in first]
    if apart:
        likely = "both are taken with the same indices: images[rows], labels[rows]"
        raise NotYet("images and labels do not belong together", expected="each image with its label", likely=likely)
    if order == sorted(order) and len(order) == number:
        raise AsGiven("the batches come in the order of the data")
    if len(set(order)) < len(order):
        likely = "randint can draw the same index again; torch.randperm does not"
        raise NotYet("some samples come twice", expected="each once", likely=likely)
    if len(order) < number:
        likely = "the last, shorter batch belongs to the epoch"
        raise NotYet(f"{len(order)} of {number} samples come", expected="all of them", likely=likely)
    if max(sizes) > _BATCH or sizes[:-1] != [_BATCH] * (number // _BATCH):
        likely = f"order.split(batch) gives {_BATCH} each, and the rest at the end"
        raise NotYet(f"batches of {', '.join(map(str, sizes))}", expected=f"of {_BATCH}", likely=likely)
    if all(y.diff().eq(1).all() for _, y in first):
        likely = "only the order of the batches is random: permute the samples"
        raise NotYet("the samples of a batch are neighbours", expected="samples in random order", likely=likely)
    if orders[0] == orders[1]:
        likely = "the permutation is seeded, or made once, outside"
        raise NotYet("the second epoch has the order of the first", expected="another", likely=likely)
    if crossing:
        likely = "the permutation is made on the CPU: torch.randperm(..., device=images.device)"
        raise NotYet("indices or samples cross the bus", expected="all on the GPU", likely=likely)


def _batches(epoch: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = _read(epoch)
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(t, torch.Tensor) for t in pair)):
            raise NotYet(f"{brief(pair)} for a batch", expected="(images, labels)", likely="yield both, as a pair")
        if any(t.device.type != "cuda" for t in pair):
            raise NotYet(
                "a batch on the CPU", expected="on the data's device", likely="the samples were moved to the CPU"
            )
    if not pairs:
        raise NotYet("no batch comes", expected="all of an epoch", likely="nothing is yielded")
    return pairs
