"""Gradient accumulation over one epoch: micro-batches, the gradient in `.grad`, optimizer steps, memory.

The gradients are a toy: four whole numbers per sample from a formula, the same on every machine. It says how
wrong a way of averaging is, not how a network trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..base.simulator import Limit, Result, Row
from ..base.words import count, percent, size

LARGEST_DATA_SET, MOST_STEPS = 512, 32
# Recorded with torch 2.15 saved-tensor hooks on CPU tensors, torchvision's ResNet-50, training mode, float32,
# 224 x 224: the distinct storages kept for backward that are no parameters, the images among them. Batches of
# 1, 2 and 4 lie on this line to the byte.
KEPT_PER_IMAGE = 85_913_512
KEPT_ALWAYS = 424_964
# ResNet-50's parameters, 4 bytes each for the weight, its gradient and Adam's two moments.
STATE_BYTES = 25_557_032 * 4 * 4
RECORDED = "recorded: ResNet-50, 224 × 224, float32, Adam"
VIRTUAL = "virtual: toy gradients"


@dataclass(frozen=True)
class Window:
    """The micro-batches that one optimizer step is made of, or those left when the epoch ends."""

    samples: tuple[int, ...]  # in each micro-batch
    items: tuple[int, ...]  # what a loss is averaged over: samples, or their tokens
    weights: tuple[float, ...]  # of each micro-batch's mean gradient in .grad; 1 in all is a full mean gradient
    error: float  # |.grad at the end - true mean gradient| / |true mean gradient|
    uneven: float  # of it what is left once .grad is divided by its scale: the pieces weigh wrong

    @property
    def scale(self) -> float:
        # rounding leaves some 1e-16, which is cut off: an error shown is an error of the method
        return round(math.fsum(self.weights), 12)

    @property
    def shares(self) -> tuple[float, ...]:
        """What the weights ought to be."""
        return tuple(number / sum(self.items) for number in self.items)

    @property
    def misplaced(self) -> float:
        """The share of the weight that is on other micro-batches than it should be."""
        pairs = zip(self.shares, self.weights, strict=True)
        return round(math.fsum(max(0.0, share - weight / self.scale) for share, weight in pairs), 12)


@dataclass(frozen=True)
class Epoch(Result):
    """One pass over the data set."""

    samples: int
    batch: int
    steps: int
    divide: str
    tokens: bool
    windows: tuple[Window, ...]  # each ends in an optimizer step
    dropped: Window | None  # the rest, where no step follows it

    @property
    def micro_batches(self) -> int:
        return math.ceil(self.samples / self.batch)

    @property
    def effective_batch(self) -> int:
        return sum(self.windows[0].samples)

    @property
    def dropped_samples(self) -> int:
        return sum(self.dropped.samples) if self.dropped else 0

    @property
    def misplaced(self) -> float:
        """The most of it in a window."""
        return max(window.misplaced for window in self.windows)

    @property
    def worst_error(self) -> float:
        return max(window.error for window in self.windows)

    @property
    def micro_batch_bytes(self) -> int:
        """The peak with one micro-batch at a time."""
        return training_bytes(max(self.windows[0].samples))

    @property
    def whole_batch_bytes(self) -> int:
        """The peak with the effective batch in one piece."""
        return training_bytes(self.effective_batch)

    @property
    def finding(self) -> str:
        last, found = self.windows[-1], []
        there, steps = len(last.samples), self.steps
        uneven = max(window.uneven for window in self.windows)
        if self.dropped:
            rest = "sample is" if self.dropped_samples == 1 else f"{self.dropped_samples} samples are"
            found.append(f"the last {rest} not used in this epoch")
        elif last.scale < 1:
            why = "" if uneven else f": {count(there, 'micro-batch')}, divided by {steps}"
            found.append(f"the last update is {there}/{steps} of what it should be{why}")
        if self.tokens and uneven:
            why = "" if found else "every micro-batch counts the same: "
            found.append(f"{why}up to {percent(self.misplaced)} of the weight is misplaced")
        elif uneven:
            off = "" if last.scale < 1 else f"the last gradient is {percent(uneven)} off: "
            found.append(f"{off}its short micro-batch counts as a full one")
        elif self.worst_error == 0:
            found.append("each update is the exact mean gradient of its window")
        words = "; ".join(found)
        return words[0].upper() + words[1:]

    def rows(self) -> list[Row]:
        short = self.samples % self.batch
        rest = f", the last {short}" if short and self.micro_batches > 1 else ""
        error = f"gradient error over {'tokens' if self.tokens else 'samples'}"
        return [
            ("data set", count(self.samples, "sample"), ""),
            ("micro-batches", f"{self.micro_batches} of {count(self.batch, 'sample')}{rest}", ""),
            ("effective batch", count(self.effective_batch, "sample"), ""),
            ("updates per epoch", str(len(self.windows)), ""),
            ("samples not used", str(self.dropped_samples), ""),
            ("scale of the last update", f"{self.windows[-1].scale:.3g}", ""),
            ("weight misplaced, at most", percent(self.misplaced), ""),
            (f"{error}, worst", percent(self.worst_error), VIRTUAL),
            ("memory, one micro-batch at a time", size(self.micro_batch_bytes), RECORDED),
            ("memory, effective batch at once", size(self.whole_batch_bytes), RECORDED),
        ]


def simulate(samples: int, batch: int, steps: int, divide: str, last: str, tokens: bool) -> Epoch:
    """One epoch of `samples` in micro-batches of `batch`, an optimizer step after every `steps` of them.

    `divide` says what a micro-batch's loss is divided by: "steps" and "window" divide its mean by the number
    of micro-batches that a full window, or this window, has; "items" divides its sum by the number of samples
    (of tokens, where samples differ in length) that this window has. `last` says whether the optimizer steps
    at the end of an epoch that does not end with a full window ("step") or not ("drop").
    """
    toy = _toy(tokens)
    micros = [toy[start : min(start + batch, samples)] for start in range(0, samples, batch)]
    windows = [_window(micros[start : start + steps], steps, divide) for start in range(0, len(micros), steps)]
    rest = windows.pop() if last == "drop" and len(windows[-1].samples) < steps else None
    return Epoch(samples, batch, steps, divide, tokens, tuple(windows), rest)


def training_bytes(images: int) -> int:
    """Weights, gradients, Adam's moments, and what backward keeps for a batch of `images`."""
    return STATE_BYTES + KEPT_ALWAYS + KEPT_PER_IMAGE * images


# A sample of the toy: how many items it has, and the sum of their gradients.
Toy = tuple[int, tuple[int, ...]]


def _window(micros: Sequence[Sequence[Toy]], steps: int, divide: str) -> Window:
    items = [sum(number for number, _ in micro) for micro in micros]
    sums = [[sum(gradient[d] for _, gradient in micro) for d in range(4)] for micro in micros]
    if divide == "items":
        weights = [number / sum(items) for number in items]
    else:
        weights = [1 / (steps if divide == "steps" else len(micros))] * len(micros)
    means = [[part / number for part in micro] for micro, number in zip(sums, items, strict=True)]
    grad = [math.fsum(w * mean[d] for w, mean in zip(weights, means, strict=True)) for d in range(4)]
    true = [sum(micro[d] for micro in sums) / sum(items) for d in range(4)]
    scale = math.fsum(weights)

    def off(gradient: list[float]) -> float:
        return round(math.dist(gradient, true) / math.hypot(*true), 12)

    return Window(
        samples=tuple(len(micro) for micro in micros),
        items=tuple(items),
        weights=tuple(weights),
        error=off(grad),
        uneven=off([part / scale for part in grad]),
    )


@cache
def _toy(tokens: bool) -> tuple[Toy, ...]:
    """Every sample: a gradient that the whole data set shares, and a part of its own."""
    samples = []
    for i in range(LARGEST_DATA_SET):
        gradient = [shared + _mix(8 * i + d) % 201 - 100 for d, shared in enumerate((60, -40, 20, 10))]
        # from 16 to 254 tokens, many short samples and a few long ones, as with text
        number = 16 + (_mix(8 * i + 4) % 256) ** 2 * 240 // 256**2 if tokens else 1
        samples.append((number, tuple(number * part for part in gradient)))
    return tuple(samples)


def _mix(number: int) -> int:
    """A 32-bit number that looks random, the same everywhere."""
    for _ in range(2):
        number = ((number >> 16) ^ number) * 0x45D9F3B & 0xFFFFFFFF
    return (number >> 16) ^ number


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """An optimizer step cannot wait for more micro-batches than an epoch has."""
    samples, batch = values["samples"], values["batch"]
    most = math.ceil(samples / batch)
    words = f"{count(samples, 'sample')} in pieces of {batch} make {count(most, 'micro-batch')}"
    return {"steps": Limit(1, min(MOST_STEPS, most), words)}
