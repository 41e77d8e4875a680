"""What is alive in a GPU's memory during one training step, layer by layer, with and without checkpointing.

All layers are alike. Segments are cut as `torch.utils.checkpoint.checkpoint_sequential` cuts them, and tensors live
and die as they do with it (`use_reentrant=False`); the test runs it beside this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..base.simulator import Limit, Result, Row
from ..base.words import count, duration, percent, size

MIB = 2**20
FRAMES = 240
VIRTUAL = "virtual"
# Bytes of a parameter's weight, its gradient and Adam's two moments, of a 16-bit copy of it, and what a float32
# activation shrinks to.
PRECISIONS = {"fp32": (4, 4, 8, 0, 1), "amp": (4, 4, 8, 2, 2), "bf16": (2, 2, 4, 0, 2)}
PRECISION_WORDS = {"fp32": "float32", "amp": "mixed: 16-bit activations", "bf16": "all in bfloat16"}


class Moment(NamedTuple):
    """Something that happens, `layer` None for loss and optimizer, and the bytes alive meanwhile at most.

    `interior`: what layers keep beside their input; `boundary`: tensors between layers; `temporary`: the gradients of
    these, and the optimizer's copy of the weights.
    """

    kind: str  # "forward", "loss", "recompute", "backward", "optimizer"
    layer: int | None
    start: float
    seconds: float
    weights: int
    optimizer: int
    gradients: int
    boundary: int
    interior: int
    temporary: int

    @property
    def total(self) -> int:
        return sum(self[4:])

    @property
    def words(self) -> str:
        layer = self.layer if self.layer is None else self.layer + 1
        return {
            "forward": f"the forward pass of layer {layer}",
            "loss": "the loss",
            "recompute": f"computing layer {layer} again",
            "backward": f"the backward pass of layer {layer}",
            "optimizer": "the optimizer's step",
        }[self.kind]


class Layer(NamedTuple):
    """What a layer has in memory at some moment."""

    interior: bool
    input: bool


@dataclass(frozen=True)
class Sizes:
    """Bytes of one layer, and how often: `interior` is all it keeps, its input of `boundary` bytes included."""

    layers: int
    interior: int
    boundary: int
    weights: int
    gradients: int
    optimizer: int
    copies: int
    seconds: float
    micro_batches: int


@dataclass(frozen=True)
class Step(Result):
    """One training step, and what it would be without checkpointing."""

    sizes: Sizes
    segments: tuple[range, ...]  # the layers of each
    again: tuple[bool, ...]  # whether a segment is computed again
    moments: tuple[Moment, ...]
    at: int  # which moment is looked at
    state: tuple[Layer, ...]  # at that moment
    frame: int  # of FRAMES, at which it is looked at

    @property
    def moment(self) -> Moment:
        return self.moments[self.at]

    @property
    def now(self) -> float:
        return self.seconds * self.frame / FRAMES

    @property
    def seconds(self) -> float:
        return self.moments[-1].start + self.moments[-1].seconds

    @cached_property
    def peak(self) -> Moment:
        """The first moment of the most bytes."""
        return max(self.moments, key=lambda moment: moment.total)

    @cached_property
    def plain_peak(self) -> int:
        """Bytes at the peak without checkpointing."""
        return peak_with(self.sizes, 1)

    @cached_property
    def once_peak(self) -> int:
        """Bytes at the peak if the last segment is not computed again."""
        return peak_with(self.sizes, len(self.segments))

    @property
    def recomputed(self) -> int:
        """Layers computed again for a micro-batch."""
        return sum(len(layers) for layers, again in zip(self.segments, self.again, strict=True) if again)

    @property
    def extra(self) -> float:
        """Part of the arithmetic that comes on top: a backward pass counts as two forward passes."""
        return self.recomputed / (3 * self.sizes.layers)

    @property
    def kept(self) -> int:
        """Bytes of activations kept when most are."""
        return kept(self.sizes, len(self.segments))

    @property
    def formula(self) -> float:
        """The best number of segments if it could be any: √(layers · interior / boundary)."""
        return math.sqrt(self.sizes.layers * self.sizes.interior / self.sizes.boundary)

    @cached_property
    def best(self) -> int:
        """The number of segments that keeps the least, the fewest of them."""
        return min(range(1, self.sizes.layers + 1), key=lambda number: kept(self.sizes, number))

    @property
    def finding(self) -> str:
        number, peak, plain = len(self.segments), size(self.peak.total), size(self.plain_peak)
        compute = f"{percent(self.extra)} more compute"
        if not any(self.again):
            return f"Nothing is computed again: the peak is {plain}, at {self.peak.words}"
        if not self.again[-1] and rise(self.sizes, number) > 0:
            layers, fewer = self.sizes.layers, size(peak_with(self.sizes, number - 1))
            if fewer != peak:
                last = f"segment {number} keeps {in_last(layers, number)} layers"
                return f"{number} segments peak at {peak}, {number - 1} at {fewer}: {last}"
        if not self.again[-1]:
            saved = f"is {peak} instead of {plain}, for {compute}" if peak != plain else f"stays {peak}"
            return f"With {count(number, 'segment')} the peak {saved}"
        if number == 1:
            saved = "saves nothing: the peak stays" if peak == plain else "saves little: the peak is"
            return f"One segment of all layers {saved} {peak}, for {compute}"
        stays = "saves nothing: the peak stays" if peak == size(self.once_peak) else "saves little: the peak is"
        return f"Computing the last segment again {stays} {peak}, for {compute}"

    def rows(self) -> list[Row]:
        last = self.segments[-1]
        now, sizes = self.moment, self.sizes
        return [
            ("peak", f"{size(self.peak.total)}, at {self.peak.words}", VIRTUAL),
            ("peak without checkpointing", size(self.plain_peak), VIRTUAL),
            ("activations kept at most", size(self.kept), VIRTUAL),
            ("layers computed again", f"{self.recomputed} of {sizes.layers}", ""),
            ("extra compute", percent(self.extra), VIRTUAL),
            ("step", duration(self.seconds), VIRTUAL),
            ("√(layers · interior / boundary)", f"{self.formula:.1f} segments", VIRTUAL),
            ("segments that keep least", f"{self.best}, {size(kept(sizes, self.best))} of activations", VIRTUAL),
            ("last segment", f"layers {last[0] + 1} to {last[-1] + 1}, backward begins with it", ""),
            (f"now, at {since(now.start)}", now.words, ""),
            *((name, size(value), VIRTUAL) for name, value in now_alive(now)),
            ("total", size(now.total), VIRTUAL),
        ]


CATEGORIES = ("weights", "optimizer state", "gradients", "inputs of layers", "inside layers", "temporaries")


def now_alive(moment: Moment) -> list[tuple[str, int]]:
    """The bytes of each of CATEGORIES."""
    return list(zip(CATEGORIES, moment[4:], strict=True))


def since(seconds: float) -> str:
    """A time since the step began."""
    return duration(seconds) if seconds else "0 ms"


def cut(layers: int, segments: int) -> tuple[range, ...]:
    """The layers of each segment as `checkpoint_sequential` cuts them: equal, and the rest in the last."""
    each = layers // segments
    starts = [each * number for number in range(segments)]
    return tuple(range(start, end) for start, end in zip(starts, [*starts[1:], layers], strict=True))


def in_last(layers: int, segments: int) -> int:
    """The layers of the last segment."""
    return layers - (segments - 1) * (layers // segments)


def kept(sizes: Sizes, segments: int) -> int:
    """Bytes of activations that are kept when most are: each segment's input, and all of the last segment."""
    return (segments - 1) * sizes.boundary + in_last(sizes.layers, segments) * sizes.interior


def rise(sizes: Sizes, segments: int) -> int:
    """What more is kept than with one segment less, where that is because the last segment is longer; else 0."""
    longer = segments > 1 and in_last(sizes.layers, segments) > in_last(sizes.layers, segments - 1)
    return kept(sizes, segments) - kept(sizes, segments - 1) if longer else 0


def simulate(
    moment: int,
    layers: int,
    segments: int,
    again: bool,
    interior: int,
    boundary: int,
    parameters: int,
    cost: int,
    precision: str,
    micro_batches: int,
) -> Step:
    """A step of `layers` layers in `segments`; with `again` the last of them is computed again too.

    `interior` and `boundary` in MiB of float32 for the whole batch, the second being part of the first; `parameters`
    in millions and `cost`, the time of a forward pass over the whole batch, in ms, both of one layer; `moment` in
    FRAMES of the step.
    """
    weight, gradient, moving, copy, shrunk = PRECISIONS[precision]
    number = parameters * 1_000_000
    sizes = Sizes(
        layers=layers,
        interior=interior * MIB // shrunk // micro_batches,
        boundary=boundary * MIB // shrunk // micro_batches,
        weights=weight * number,
        gradients=gradient * number,
        optimizer=moving * number,
        copies=copy * number,
        seconds=cost * 1e-3 / micro_batches,
        micro_batches=micro_batches,
    )
    cuts = cut(layers, segments)
    recomputed = tuple([True] * (segments - 1) + [again])
    moments, state = _run(sizes, cuts, recomputed, moment)
    return Step(sizes, cuts, recomputed, moments, *state, moment)


@lru_cache(maxsize=256)
def peak_with(sizes: Sizes, segments: int) -> int:
    """Bytes at the peak with so many segments, the last of them not computed again."""
    sizes = replace(sizes, micro_batches=min(sizes.micro_batches, 2))  # all but the first are alike
    moments, _ = _run(sizes, cut(sizes.layers, segments), (*[True] * (segments - 1), False), 0)
    return max(moment.total for moment in moments)


def _run(
    sizes: Sizes, segments: tuple[range, ...], again: tuple[bool, ...], frame: int
) -> tuple[tuple[Moment, ...], tuple[int, tuple[Layer, ...]]]:
    """All moments of the step, which of them `frame` falls into, and the layers then."""
    weights, optimizer = sizes.layers * sizes.weights, sizes.layers * sizes.optimizer
    inside = sizes.interior - sizes.boundary
    recomputed = sum(len(layers) for layers, twice in zip(segments, again, strict=True) if twice)
    turns = sizes.micro_batches * (3 * sizes.layers + recomputed + 2)  # in forward passes of a layer
    until = turns * sizes.seconds * frame / FRAMES
    moments: list[Moment] = []
    interiors, inputs, copies = set[int](), set[int](), set[int]()  # layers; `layers` stands for the last one's result
    clock = gradients = 0.0
    found: tuple[int, tuple[Layer, ...]] | None = None

    def happens(kind: str, layer: int | None, turns: int, temporary: int) -> None:
        nonlocal clock, found
        seconds = turns * sizes.seconds
        alive = weights + len(copies) * sizes.copies, optimizer, int(gradients)
        kept_bytes = len(inputs) * sizes.boundary, len(interiors) * inside
        moments.append(Moment(kind, layer, clock, seconds, *alive, *kept_bytes, temporary))
        clock += seconds
        if found is None and (clock > until or kind == "optimizer"):
            state = tuple(Layer(i in interiors, i in inputs) for i in range(sizes.layers + 1))
            found = len(moments) - 1, state

    def forward(kind: str, layer: int, temporary: int) -> None:
        interiors.add(layer)
        inputs.add(layer + 1)
        copies.add(layer)
        happens(kind, layer, 1, temporary)

    for micro_batch in range(sizes.micro_batches):
        inputs.add(0)
        for layers, twice in zip(segments, again, strict=True):
            for layer in layers:
                forward("forward", layer, 0)
                if twice:
                    interiors.discard(layer)
                    inputs -= {layer} - {layers[0]}
        happens("loss", None, 1, sizes.boundary)
        inputs.discard(sizes.layers)
        copies &= interiors  # autocast forgets its own when it is left; those kept for backward stay
        for layers, twice in zip(reversed(segments), reversed(again), strict=True):
            for layer in layers if twice else ():
                forward("recompute", layer, sizes.boundary)
            inputs.discard(layers[-1] + 1)
            for layer in reversed(layers):
                gradients += 0 if micro_batch else sizes.gradients
                happens("backward", layer, 2, 2 * sizes.boundary)
                interiors.discard(layer)
                inputs.discard(layer)
                copies.discard(layer)
    happens("optimizer", None, sizes.micro_batches, weights)
    assert found is not None
    return tuple(moments), found


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """No more segments than layers; a layer's input is part of what it keeps."""
    return {
        "segments": Limit(1, values["layers"], f"there are {count(values['layers'], 'layer')}"),
        "boundary": Limit(1, min(200, values["interior"]), "a layer's input is part of what it keeps"),
    }
