"""A stack of blocks that writes down what is done with it, and what its plain pass comes to, on the GPU in force."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ...memory import activation_bytes, timeline
from ..lesson08.common import flat_gradient

MIB = 2**20
Run = Callable[[nn.ModuleList, torch.Tensor], torch.Tensor]


class Call(NamedTuple):
    """One forward pass of a block."""

    grad: bool  # whether autograd recorded it
    fed: bool  # whether its input was part of a graph
    training: bool
    mask: float  # a sum that tells dropout's masks apart


class Block(nn.Module):
    """A residual MLP with dropout; `calls` has each of its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(32, 128), nn.Linear(128, 32), nn.Dropout(0.2)
        self.calls: list[Call] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dropout(F.gelu(self.up(x)))
        with torch.no_grad():
            mask = float(h.sum())  # before the last tensor is saved, where computing again may stop
        self.calls.append(Call(torch.is_grad_enabled(), x.requires_grad, self.training, mask))
        out: torch.Tensor = x + self.down(h)
        return out


@dataclass
class Recording:
    """What a call does on the current GPU: the bytes allocated, whatever it does with PyTorch's own counters;
    and the random numbers, of the CPU and of the GPU, that come next."""

    curve: Any = None
    drawn: tuple[float, float] = 0.0, 0.0
    _timeline: Any = field(default=None, repr=False)
    _entered: ExitStack = field(default_factory=ExitStack, repr=False)
    _gpu: int = field(default_factory=torch.cuda.current_device)

    def __enter__(self) -> Self:
        self._entered.enter_context(torch.cuda.device(self._gpu))  # the student's thread begins with the first one
        self._timeline = self._entered.enter_context(timeline())
        return self

    def __exit__(self, *error: Any) -> None:
        with self._entered:
            pass
        self.curve = self._timeline.curve
        self.drawn = torch.rand(()).item(), torch.rand((), device=f"cuda:{self._gpu}").item()

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        """The loss that is passed to the student; it marks when forward was over."""
        self._timeline.mark("loss")
        return output.square().sum() / 256

    @property
    def before(self) -> int:
        return int(self.curve.allocated_bytes[0])

    @property
    def peak(self) -> int:
        return int(self.curve.peak_allocated_bytes) - self.before

    @property
    def forward_peak(self) -> int:
        point = self.curve.marks[0].point if self.curve.marks else 0
        return int(max(self.curve.allocated_bytes[: point + 1])) - self.before

    @property
    def left(self) -> int:
        return int(self.curve.allocated_bytes[-1]) - self.before


class Stack:
    """Blocks, an input and a budget on the GPU in force, and what a plain pass and the best one take."""

    def __init__(self, length: int, room: int, exact: bool, earlier: bool) -> None:
        self.layers = [Block() for _ in range(length)]
        self.blocks = nn.ModuleList(self.layers).to("cuda")
        self.x = torch.randn(256, 32, device="cuda")
        self.inside = activation_bytes(self.blocks[0], self.x).total
        # almost room for one more, so that who counts the inputs wrongly finds it
        almost = self.inside - 1 - random.randrange(self.inside // 20)
        self.budget = length * self.x.nbytes + room * self.inside + (0 if exact else almost)
        self.again = max(length - room, 0)
        for p in self.blocks.parameters():
            p.grad = torch.randn_like(p) / 10 if earlier else None  # of an earlier micro-batch; must stay in the sum
        self.earlier = flat_gradient(self.blocks.parameters())
        self.plain_peak = 0  # `gradient` finds it
        self.best_peak, _ = self.run(lambda blocks, x: self.best(blocks, x, self.again))
        for block in self.layers:
            block.calls.clear()

    def run(self, forward: Run) -> tuple[int, torch.Tensor]:
        """Peak and gradient of a pass over a copy."""
        twin = copy.deepcopy(self.blocks, {id(block.calls): list[Call]() for block in self.layers})
        for new, old in zip(twin.parameters(), self.blocks.parameters(), strict=True):
            new.grad = None if old.grad is None else torch.zeros_like(old.grad)
        with Recording() as record:
            record.loss(forward(twin, self.x)).backward()
        self.masks = [block.calls[-1].mask for block in twin if isinstance(block, Block)]
        return record.peak, flat_gradient(twin.parameters())

    @staticmethod
    def best(blocks: nn.ModuleList, x: torch.Tensor, again: int) -> torch.Tensor:
        for i, block in enumerate(blocks):
            x = checkpoint(block, x, use_reentrant=False) if i < again else block(x)
        return x

    def gradient(self) -> torch.Tensor:
        """What a plain pass from the random state of now adds to the gradients; `masks` are its masks, and `plain_peak`
        is its peak."""
        self.plain_peak, gradient = self.run(lambda blocks, x: self.best(blocks, x, 0))
        return gradient
