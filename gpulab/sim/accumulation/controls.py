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

from ...style import GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, VERMILLION
from ...svg import MARGIN, SMALL, Picture, bar, key, length, line, rect, shape, text
from ..base.simulator import Choice, Flag, Limit, Result, Row, Simulator, Slider
from ..base.words import count, percent, size

LARGEST_DATA_SET = 512

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
    held: tuple[float, ...]  # after each micro-batch: the weights summed in .grad, 1 being a full mean gradient
    error: float  # |.grad at the end - true mean gradient| / |true mean gradient|

    @property
    def scale(self) -> float:
        return self.held[-1]


@dataclass(frozen=True)
class Epoch(Result):
    """One pass over the data set."""

    samples: int
    batch: int
    steps: int
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
        verb = "makes" if self.micro_batches == 1 else "make"
        found = f"{count(self.micro_batches, 'micro-batch')} {verb} {count(len(self.windows), 'update')}"
        last = self.windows[-1]
        misweighted = max((window.error for window in self.windows if window.scale == 1), default=0)
        if self.dropped:
            rest = "sample is" if self.dropped_samples == 1 else f"{self.dropped_samples} samples are"
            found += f"; the last {rest} never used"
        elif last.scale < 1:
            found += f"; the last one is scaled by {len(last.samples)}/{self.steps}"
        if self.tokens and misweighted:
            found += f"; the mean of means is up to {percent(misweighted)} off"
        elif misweighted:
            found += f"; the short micro-batch puts the last one {percent(misweighted)} off"
        elif self.worst_error == 0:
            found += "; each is the true mean gradient"
        return found

    def rows(self) -> list[Row]:
        short = self.samples % self.batch
        rest = f", the last {short}" if short and self.micro_batches > 1 else ""
        error = f"gradient error over {'tokens' if self.tokens else 'samples'}"
        mean_error = math.fsum(window.error for window in self.windows) / len(self.windows)
        return [
            ("data set", count(self.samples, "sample"), ""),
            ("micro-batches", f"{self.micro_batches} of {count(self.batch, 'sample')}{rest}", ""),
            ("effective batch", count(self.effective_batch, "sample"), ""),
            ("updates per epoch", str(len(self.windows)), ""),
            ("samples not used", str(self.dropped_samples), ""),
            ("scale of the last update", f"{self.windows[-1].scale:.3g}", ""),
            (f"{error}, worst", percent(self.worst_error), VIRTUAL),
            (f"{error}, mean", percent(mean_error), VIRTUAL),
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
    return Epoch(samples, batch, steps, tokens, tuple(windows), rest)


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
    return Window(
        samples=tuple(len(micro) for micro in micros),
        items=tuple(items),
        # rounding leaves some 1e-16, which is cut off: an error shown is an error of the method
        held=tuple(round(math.fsum(weights[: i + 1]), 12) for i in range(len(weights))),
        error=round(math.dist(grad, true) / math.hypot(*true), 12),
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


ROWS, ROWS_TOP, ROWS_HEIGHT = 5, 26.0, 210.0
WIDTH, BAR_LEFT, BAR_RIGHT, STEP, SCALE, ERROR = 860.0, 112.0, 560.0, 585.0, 618.0, 690.0


def draw(epoch: Epoch) -> Picture:
    """A row for each window, its middle left out where they are many; the memory below."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    unit = (BAR_RIGHT - BAR_LEFT) / max(sum(window.items) for window in windows)
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min(ROWS_HEIGHT / len(shown), 60)
    kind = "tokens" if epoch.tokens else "samples"
    body = [
        text(BAR_LEFT, 14, f"micro-batches, in {kind}; the colour rises as .grad fills", size=SMALL, fill=MUTED),
        text(STEP, 14, "step", size=SMALL, fill=MUTED, anchor="middle"),
        text(SCALE, 14, "scale", size=SMALL, fill=MUTED),
        text(ERROR, 14, "gradient error (virtual)", size=SMALL, fill=MUTED),
    ]
    for place, index in enumerate(shown):
        top = ROWS_TOP + place * high
        if index is None:
            middle = top + high / 2 - 5
            body.append(line(BAR_LEFT, middle, BAR_LEFT + 60, middle, stroke=MUTED, dash="2 6"))
            words = count(len(windows) - len(shown) + 1, "more window")
            body.append(text(BAR_LEFT + 72, middle + 5, words, fill=MUTED))
        else:
            body += _row(epoch, windows[index], index, top, high - 10, unit)
    body += _memory(epoch, ROWS_TOP + ROWS_HEIGHT + 30)
    return Picture(WIDTH, ROWS_TOP + ROWS_HEIGHT + 132, epoch.finding, epoch.describe(), tuple(body))


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float, unit: float) -> list[str]:
    dropped = window is epoch.dropped
    odd = len(window.samples) < epoch.steps
    middle = top + high / 2
    body = [text(MARGIN, middle + 5, "left over" if dropped else f"window {index + 1}")]
    x = BAR_LEFT
    for items, held in zip(window.items, window.held, strict=True):
        width, full = items * unit, high * held
        body.append(bar(x, top + high - full, width, full, fill=ORANGE if odd else SKY, hatched=odd, stroke=""))
        body.append(rect(x, top, width, high, stroke=INK, dash="4 3" if dropped else ""))
        if length(str(items), SMALL) + 4 < width:
            body.append(text(x + width / 2, middle + 5, str(items), size=SMALL, anchor="middle", halo=True))
        x += width
    if dropped:
        words = f"no step: {count(sum(window.samples), 'sample')} unused."
        body.append(text(STEP - 13, middle - 4, words, size=SMALL))
        body.append(text(STEP - 13, middle + 13, "Zero .grad, or it joins the next epoch.", size=SMALL))
        return body
    body.append(shape([(STEP - 9, middle - 10), (STEP + 9, middle), (STEP - 9, middle + 10)], fill=GREEN))
    body.append(text(SCALE, middle + 5, f"× {window.scale:.3g}", weight="bold" if window.scale < 1 else ""))
    body.append(rect(ERROR, middle - 7, 90, 14, stroke=RULE))
    body.append(bar(ERROR, middle - 7, 90 * min(window.error, 1), 14, fill=VERMILLION, hatched=True, stroke=""))
    body.append(text(ERROR + 100, middle + 5, percent(window.error), weight="bold" if window.error else ""))
    return body


def _memory(epoch: Epoch, top: float) -> list[str]:
    body = [
        text(MARGIN, top, f"memory ({RECORDED})", size=SMALL, fill=MUTED),
        key(470, top, "weights, gradients, Adam", fill=RULE),
        key(672, top, "kept for backward", fill=PURPLE, hatched=True),
    ]
    left, unit = 220.0, 480 / epoch.whole_batch_bytes
    state = STATE_BYTES * unit
    for name, total in (
        ("one micro-batch at a time", epoch.micro_batch_bytes),
        ("effective batch at once", epoch.whole_batch_bytes),
    ):
        top += 34
        body.append(text(MARGIN, top, name))
        body.append(bar(left, top - 17, state, 24, fill=RULE))
        body.append(bar(left + state, top - 17, total * unit - state, 24, fill=PURPLE, hatched=True))
        body.append(text(left + total * unit + 10, top, size(total), weight="bold"))
    return body


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """An optimizer step cannot wait for more micro-batches than an epoch has."""
    samples, batch = values["samples"], values["batch"]
    most = math.ceil(samples / batch)
    words = f"{count(samples, 'sample')} in pieces of {batch} make {count(most, 'micro-batch')}"
    return {"steps": Limit(1, min(32, most), words)}


class Accumulation(Simulator[Epoch]):
    """A large batch in small pieces: where the pieces add up to the true gradient, and where they do not."""

    controls = (
        Slider("samples", "Data set", 16, LARGEST_DATA_SET, 100, unit="samples"),
        Slider("batch", "Micro-batch", 1, 64, 8, unit="samples"),
        Slider("steps", "Micro-batches per step", 1, 32, 4),
        Choice(
            "divide",
            "Loss of a micro-batch",
            {
                "steps": "mean ÷ micro-batches per step",
                "window": "mean ÷ those in this window",
                "items": "sum ÷ what the window holds",
            },
            "steps",
        ),
        Choice("last", "Incomplete last window", {"step": "step with it", "drop": "no step"}, "step"),
        Flag("tokens", "Samples differ in length (means over tokens)", False),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "The gradients are a toy, four numbers a sample. Left out: BatchNorm, which sees only a micro-batch; rounding;"
        " time; the allocator and the CUDA context."
    )
