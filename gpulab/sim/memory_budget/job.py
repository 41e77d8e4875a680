"""One rank's memory in a training step: a model's needs divided among ranks, and what the ranks send one another.

Shards are those of the ZeRO paper (Rajbhandari et al., arXiv 1910.02054). No GPU is chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .needs import Needs, Passes, States

PARALLEL = {
    "ddp": "DDP",
    "zero1": "ZeRO-1: optimizer state",
    "zero2": "ZeRO-2: gradients too",
    "zero3": "ZeRO-3: weights too",
    "fsdp": "FSDP: as ZeRO-3, prefetching",
}
PARALLEL_WORDS = {name: words.partition(":")[0] for name, words in PARALLEL.items()}
CONTEXT_BYTES = 300 << 20  # as the virtual GPU's
MOST = 1 << 20  # no larger batch is looked for


class Moment(NamedTuple):
    """Bytes of one rank at one of the two fullest moments of a step, by category."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    temporaries: int
    workspaces: int
    communication: int
    context: int = CONTEXT_BYTES

    @property
    def total(self) -> int:
        return sum(self)


CATEGORIES = {name: name for name in Moment._fields} | {"optimizer": "optimizer state", "context": "CUDA context"}


@dataclass(frozen=True)
class Job:
    """A training step on `ranks` GPUs, `batch` samples on each."""

    needs: Needs
    optimizer: str
    precision: str
    checkpointing: str
    length: int
    ranks: int
    parallel: str

    @property
    def sharded(self) -> int:
        """How much is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too."""
        return 0 if self.ranks == 1 else {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}[self.parallel]

    def part(self, nbytes: int, stage: int) -> int:
        """A rank's part of what is sharded from `stage` on."""
        return -(-nbytes // self.ranks) if self.sharded >= stage else nbytes

    @cached_property
    def states(self) -> States:
        """On one GPU."""
        return self.needs.states(self.optimizer, self.precision)

    @cached_property
    def buckets(self) -> int:
        """DDP reduces gradients in buckets of its own, as large as all of them (`gradient_as_bucket_view=False`)."""
        return self.states.gradients if self.parallel == "ddp" and self.ranks > 1 else 0

    @cached_property
    def gathered(self) -> int:
        """The largest layer's weights in full, with its gradients; FSDP has the next layer's weights there already."""
        if self.sharded < 3:
            return 0
        return self.needs.largest_layer * self.compute_bytes * (3 if self.parallel == "fsdp" else 2)

    @property
    def compute_bytes(self) -> int:
        return 4 if self.precision == "fp32" else 2

    def moments(self, batch: int) -> tuple[Moment, Moment]:
        """Where activations are most; where all gradients are there, in the backward pass or the optimizer's step."""
        # Sharded weights are gathered in 16 bit; autocast, which would copy them all, has nothing left to do.
        precision = "bf16" if self.precision == "amp" and self.sharded == 3 else self.precision
        wider = 2 if precision != self.precision else 1
        asked = precision, self.checkpointing, batch, self.length
        most, end = (
            self._moment(found._replace(gradients=wider * found.gradients), self.buckets + self.gathered)
            for found in (self.needs.passes(*asked), self.needs.end(*asked))
        )
        return most, max(end, self.stepping, key=lambda moment: moment.total)

    def peak(self, batch: int) -> int:
        if batch not in self._peaks:
            self._peaks[batch] = max(moment.total for moment in self.moments(batch))
        return self._peaks[batch]

    @cached_property
    def _peaks(self) -> dict[int, int]:
        return {}

    @cached_property
    def stepping(self) -> Moment:
        """The optimizer's step: all gradients, no activations."""
        states = self.states
        return self._moment(Passes(states.gradients, 0, 0, states.temporaries, 0), self.buckets)

    def _moment(self, found: Passes, communication: int) -> Moment:
        return Moment(
            weights=self.part(self.states.weights, 3),
            gradients=self.part(found.gradients, 2),
            optimizer=self.part(self.states.optimizer, 1),
            activations=found.activations,
            logits=found.logits,
            temporaries=found.temporaries,
            workspaces=found.workspaces,
            communication=communication,
        )

    def largest(self, memory: int) -> int:
        """The largest batch of a rank that fits into `memory` bytes; 0 if none does, at most MOST."""
        if self.peak(1) > memory:
            return 0
        low, high = 1, 2
        while self.peak(high) <= memory:
            low, high = high, 2 * high
            if low == MOST:
                return low
        while high - low > 1:
            # nearly a straight line, so that the first guess mostly hits
            rise = self.peak(high) - self.peak(low)
            guess = low + (memory - self.peak(low)) * (high - low) // rise
            guess = min(max(guess, low + 1), high - 1)
            low, high = (guess, high) if self.peak(guess) <= memory else (low, guess)
        return low

    @property
    def traffic(self) -> int:
        """Bytes that a rank sends in a step, and receives: with ring collectives, as the ZeRO paper counts (section 7).

        Gradients are reduced in their own precision, weights gathered in that of the arithmetic.
        """
        if self.ranks == 1:
            return 0
        parameters = self.needs.parameters
        gradients = parameters * (4 if self.precision in ("fp32", "amp") else 2)
        volume = gradients + (2 * parameters * self.compute_bytes if self.sharded == 3 else gradients)
        return volume * (self.ranks - 1) // self.ranks

    @property
    def volume(self) -> str:
        """The traffic in numbers of parameters Ψ, as the paper gives it."""
        return f"{3 if self.sharded == 3 else 2} Ψ × {self.ranks - 1}/{self.ranks}"
