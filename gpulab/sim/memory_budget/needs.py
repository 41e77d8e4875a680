"""Where the numbers of `memory_budget` come from: plans of known models, formulas for models of free size.

Plans are made beforehand by tools/plan_presets.py, at a few sizes; between two of them memory is taken to grow in a
straight line. All for one GPU without others; `model` shards it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

OPTIMIZERS = {
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "adam": "Adam, AdamW",
    "adam8": "AdamW, 8-bit state",
    "adafactor": "Adafactor",
}
PRECISIONS = {
    "fp32": "fp32 throughout",
    "amp": "AMP: fp32 weights, 16-bit ops",
    "bf16": "bf16 throughout",
    "master": "16-bit weights, fp32 master",
}
CHECKPOINTING = {
    "none": "none (fused attention)",
    "matrices": "none, s × s attention kept",
    "selective": "selective: attention again",
    "full": "full: every layer again",
}
WORDS = 50_257  # the vocabulary of a model of free size: GPT-2's
HEAD = 128  # the width of its attention heads


class States(NamedTuple):
    """Bytes that do not depend on the batch; `temporaries` those of the optimizer's step."""

    weights: int
    gradients: int
    optimizer: int
    temporaries: int


class Passes(NamedTuple):
    """Bytes at some moment of forward and backward pass, beside weights and optimizer state."""

    gradients: int
    activations: int
    logits: int
    temporaries: int
    workspaces: int


class Facts(NamedTuple):
    """What is known of a preset beside its plans; `pixels` where it takes images."""

    words: str
    layers: int
    hidden: int
    heads: int
    longest: int  # tokens; pixels a side
    pixels: bool = False


PRESETS = {
    "resnet50": Facts("ResNet-50", 16, 2048, 0, 512, True),
    "vit_b_16": Facts("ViT-B/16", 12, 768, 12, 224, True),
    "gpt2": Facts("GPT-2 small", 12, 768, 12, 1024),
    "llama_7b": Facts("Llama 7B", 32, 4096, 32, 4096),
    # The ZeRO paper gives no sizes; Narayanan et al., arXiv 2104.04473, have these for 7.5 billion.
    "gpt_7_5b": Facts("GPT 7.5B", 36, 4096, 32, 32_768),
}


def needs(model: str, layers: int, hidden: int) -> Needs:
    """A preset's, or with "custom" those of a GPT with so many layers of this width."""
    if model == "custom":
        return Formula("GPT of free size", layers, hidden, hidden // HEAD, gpt_parameters(layers, hidden))
    facts = PRESETS[model]
    if model == "gpt_7_5b":
        return Formula(facts.words, facts.layers, facts.hidden, facts.heads, 7_500_000_000)
    return _planned(model)


# -- planned ----------------------------------------------------------------------------------------------------------


@cache
def plans() -> Any:
    """What tools/plan_presets.py wrote."""
    return json.loads((files(__package__) / "plans.json").read_text(encoding="utf-8"))


@cache
def _planned(model: str) -> Planned:
    facts, found = PRESETS[model], plans()["presets"][model]
    return Planned(model, facts, found, _lines(facts, found, "passes"), _lines(facts, found, "ends"))


Line: TypeAlias = list[tuple[float, Passes]]  # how much data, and what it takes


def _lines(facts: Facts, found: Any, moment: str) -> dict[str, Line]:
    """For each kind of pass a line. Of the end the plans know only where it is the higher of the two moments."""
    lines = {}
    for kind, points in found["passes"].items():
        known: Line = [_point(facts, one, found["length"]) for one in found[moment][kind]]
        lines[kind] = known
        if moment == "ends":
            nothing = dict.fromkeys(Passes._fields, 0)
            nothing["gradients"] = found["states"]["bf16" if kind.startswith("bf16") else "fp32"]["sgd"]["gradients"]
            lines[kind] = [
                (size, dict(known).get(size) or _lower(known, size, other, Passes(**nothing)))
                for size, other in (_point(facts, one, found["length"]) for one in points)
            ]
    return lines


def _point(facts: Facts, one: Any, usual: int) -> tuple[float, Passes]:
    return _size(facts, one["batch"], one["length"], usual), Passes(*(one[name] for name in Passes._fields))


def _lower(known: Line, size: float, other: Passes, gradients: Passes) -> Passes:
    """An end that is lower than the `other` moment: on the line of the ends that are known, or gradients alone."""
    if not known:
        return gradients
    found = _between(known, size) if len(known) > 1 else known[0][1]
    beside, room = sum(found[1:]), max(0, sum(other) - found.gradients)
    part = min(1.0, room / beside) if beside else 0.0
    return Passes(found.gradients, *(int(part * value) for value in found[1:]))


def _size(facts: Facts, batch: int, length: int, usual: int) -> float:
    """How much data a batch is: samples of the usual length. Activations grow with tokens, or with pixels."""
    return batch * (length / usual) ** (2 if facts.pixels else 1)


@dataclass(frozen=True, eq=False)
class Planned:
    """A model that `gpulab.plan` was asked about."""

    model: str
    facts: Facts
    found: Any
    most: dict[str, Line]
    ends: dict[str, Line]
    source: str = "virtual: gpulab.plan"

    @property
    def words(self) -> str:
        return self.facts.words

    @property
    def parameters(self) -> int:
        return int(self.found["parameters"])

    @property
    def largest_layer(self) -> int:
        return int(self.found["largest_layer"])

    def states(self, optimizer: str, precision: str) -> States:
        kind = self.found["states"]["bf16" if precision in ("bf16", "master") else "fp32"]
        wide = self.found["states"]["fp32"]
        # what the optimizer works on: the weights, or their master copy
        own = kind if precision != "master" else wide
        master = wide["weights"] if precision == "master" else 0
        if optimizer == "adam8":
            return States(kind["weights"], kind["sgd"]["gradients"], self.found["adam8"] + master, 0)
        gradients, state, passing = kind[optimizer]["gradients"], own[optimizer]["state"], own[optimizer]["temporaries"]
        return States(kind["weights"], gradients, state + master, passing)

    def passes(self, precision: str, checkpointing: str, batch: int, length: int) -> Passes:
        found = self._found(self.most, precision, checkpointing, batch, length)
        if checkpointing == "matrices" and self.facts.heads:
            tokens = length if not self.facts.pixels else (length // 16) ** 2 + 1
            extra = matrices(self.facts.layers, self.facts.heads, tokens, batch, 4 if precision == "fp32" else 2)
            found = found._replace(activations=found.activations + extra)
        return found

    def end(self, precision: str, checkpointing: str, batch: int, length: int) -> Passes:
        return self._found(self.ends, precision, checkpointing, batch, length)

    def _found(self, lines: dict[str, Line], precision: str, checkpointing: str, batch: int, length: int) -> Passes:
        compute = "bf16" if precision == "master" else precision
        line = lines[compute + (" full" if checkpointing == "full" else "")]
        return _between(line, _size(self.facts, batch, length, self.found["length"]))


def _between(line: Line, size: float) -> Passes:
    """On the straight line between the two points around `size`; beyond the ends, on that of the last two. Before the
    first nothing grows towards less data."""
    place = min(max(bisect_left(line, size, key=lambda point: point[0]), 1), len(line) - 1)
    (low, one), (high, two) = line[place - 1], line[place]
    part = (size - low) / (high - low)
    return Passes(
        *(a if part < 0 and b < a else max(0, round(a + (b - a) * part)) for a, b in zip(one, two, strict=True))
    )


# -- formulas ---------------------------------------------------------------------------------------------------------


def gpt_parameters(layers: int, hidden: int) -> int:
    """Of a GPT without learned positions, its head tied to the embedding: 12 h² and 13 h a layer."""
    return layers * (12 * hidden**2 + 13 * hidden) + WORDS * hidden + 2 * hidden


def layer_activations(tokens: int, batch: int, hidden: int, each: int = 2) -> int:
    """Bytes that a layer keeps without its attention matrices: 34 s b h in 16 bit (Korthikanti et al., arXiv
    2205.05198), of which two bytes are dropout masks, which stay what they are in float32 (`each` 4).
    """
    return (16 * each + 2) * tokens * batch * hidden


def matrices(layers: int, heads: int, tokens: int, batch: int, each: int = 2) -> int:
    """Bytes of the attention matrices of all layers: 5 a s² b each in 16 bit (same paper), one of them a mask."""
    return layers * (2 * each + 1) * heads * tokens**2 * batch


@dataclass(frozen=True)
class Formula:
    """A GPT of any size, by formulas that leave out what no formula knows: temporaries and workspaces."""

    words: str
    layers: int
    hidden: int
    heads: int
    parameters: int
    source: str = "virtual: formula, Korthikanti et al."

    @property
    def largest_layer(self) -> int:
        return max(12 * self.hidden**2 + 13 * self.hidden, WORDS * self.hidden)

    def states(self, optimizer: str, precision: str) -> States:
        each = 2 if precision in ("bf16", "master") else 4
        own = 4 if precision == "master" else each
        passing = 0
        if optimizer == "adam8":
            # arXiv 2110.02861: two moments of a byte, a float32 for each block of 2048 of either
            state = 2 * (self.parameters + 4 * -(-self.parameters // 2048))
        elif optimizer == "adafactor":
            # rows and columns of each matrix, every element of a vector (arXiv 1804.04235)
            state = own * (self.layers * (16 + 13) * self.hidden + WORDS + 3 * self.hidden)
            passing = own * max(4 * self.hidden**2, WORDS * self.hidden)
        else:
            state = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer] * own * self.parameters
        master = 4 * self.parameters if precision == "master" else 0
        return States(each * self.parameters, each * self.parameters, state + master, passing)

    def passes(self, precision: str, checkpointing: str, batch: int, length: int) -> Passes:
        each = 4 if precision == "fp32" else 2
        layer = layer_activations(length, batch, self.hidden, each)
        copies = 2 * self.parameters if precision == "amp" else 0  # autocast's, kept for backward
        logits = 2 * 4 * length * batch * WORDS  # in float32, and their gradient
        if checkpointing == "full":
            # either the loss is highest, or the last layer, computed again when the logits are gone
            kept = self.layers * each * length * batch * self.hidden
            if layer > logits:
                return Passes(0, kept + layer + copies, 0, 0, 0)
            return Passes(0, kept + copies, logits, 0, 0)
        kept = self.layers * layer
        if checkpointing == "matrices":
            kept += matrices(self.layers, self.heads, length, batch, each)
        return Passes(0, kept + copies, logits, 0, 0)

    def end(self, precision: str, checkpointing: str, batch: int, length: int) -> Passes:
        return Passes(self.states("sgd", precision).gradients, 0, 0, 0, 0)


Needs: TypeAlias = (
    Planned | Formula
)  # what a model asks of a GPU: `passes` where activations are most, `end` after them
