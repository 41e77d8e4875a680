"""Checks exercise 06.1, "checkpoint within a budget": the blocks recomputed, their gradients, and the peak."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_finite, is_whole
from gpulab.memory import activation_bytes, timeline

AGAIN, SEGMENTS, MISTAKES = "Keep the input, compute the rest again", "How many segments", "Common mistakes"
MIB = 2**20
RUN, MODE = "blocks that run forward, in their order", "blocks that ran in evaluation mode"
MASKS, OTHER = "blocks whose first pass draws other masks", "blocks computed again with other masks than before"
NONE, GRADIENT = "blocks without a gradient of this pass", "gradient in .grad"
PEAK, COUNT = "insides at the peak for which there is no room", "blocks computed again, at most"
AWAY, KIND, BYTES = "copies of activations to elsewhere", "kind of what is returned", "bytes returned"
CLAUSES = (
    Clause("Forward and backward through `blocks`, one after the other", [RUN],
           "the blocks do not all run, one after the other",
           "block 0 gets x, each other block the output of the one before it", AGAIN),
    Clause("in training mode", [MODE], "the blocks do not run in training mode",
           "the blocks are in training mode, with dropout, and both passes must run in it", AGAIN),
    Clause("with the same dropout masks", [OTHER, MASKS], "the dropout masks are not those of a plain pass",
           "the first pass must draw the masks of a plain pass, and a recomputed block must draw the same ones again",
           AGAIN),
    Clause("Adds to .grad what a plain forward and backward pass would add, up to rounding", [NONE, GRADIENT],
           "the gradient is not that of a plain pass", "compare with a pass without checkpoint, from the same seed",
           MISTAKES),
    Clause("with the activations within `budget`", [PEAK], "the activations do not fit the budget",
           "keep an input for each block and the insides that fit; what backward recomputes comes on top of what is "
           "still kept then", SEGMENTS),
    Clause("Recomputes no more blocks than it must", [COUNT], "more blocks are recomputed than must be",
           "a block whose inside fits is computed once", SEGMENTS),
    Clause("nothing leaves the GPU", [AWAY], "activations leave the GPU",
           "copy no activation to the host or to another GPU", AGAIN),
    Clause("an int", [KIND], "what is returned is not a whole number", "return a number of bytes"),
    Clause("the most bytes allocated on the GPU during the call, less those allocated before it", [BYTES],
           "the number that is returned is not the peak",
           "max_memory_allocated() after backward, from a counter that the call has reset, less memory_allocated() "
           "at entry", MISTAKES),
)  # fmt: skip
EDGES = {
    "cut": ((5, 2), (4, 1), (3, 4), (2, 2)),  # blocks, and how many of their insides have room
    "spare": (0.0, 0.65),  # more than that, in parts of an inside: some mistakes need it, and none makes use of it
    "calls": (2, 1),  # in a row: in the second there are gradients from before
    "kind": (("cuda:1", torch.float32), ("cuda:0", torch.float64)),
}


class Pass(NamedTuple):
    """One forward pass of a block; `mask` counts in each column what dropout has left."""

    block: int
    training: bool
    mask: list[int]


class Block(nn.Module):
    """A residual MLP with dropout that writes its forward passes into `log`, one list for all blocks."""

    def __init__(self, number: int, log: list[Pass]) -> None:
        super().__init__()
        self.number, self.log = number, log
        self.up, self.down, self.dropout = nn.Linear(32, 64), nn.Linear(64, 32), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dropout(F.gelu(self.up(x)))
        # Before `down` keeps h, which is the last thing kept: there computing again may stop.
        self.log.append(Pass(self.number, self.training, h.detach().count_nonzero(0).tolist()))
        out: torch.Tensor = x + self.down(h)
        return out


class Seen(NamedTuple):
    """One call: what it returned, the passes of the blocks, and what the GPU did."""

    returned: Any
    passes: list[Pass]
    peak: int  # bytes allocated at the most, less those before the call
    away: int  # copies to the host, of an activation's size, or to another GPU


def loss_fn(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum() / 256


def best(blocks: nn.ModuleList, x: torch.Tensor, loss_fn: Any, inside: int, budget: int) -> None:
    again = len(blocks) - (budget - len(blocks) * x.nbytes) // inside
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i < again else block(x)
    loss_fn(x).backward()


def watch(
    step: Any, blocks: Any, x: torch.Tensor, loss_fn: Any, inside: int, budget: int, calls: int, gpu: Any
) -> list[Seen]:
    """Calls in a row, the second with half of the rows, by other counters than PyTorch's, which the student resets."""
    found = []
    for half in range(calls):
        blocks[0].log.clear()
        rows = x[: len(x) // 2] if half else x
        with torch.cuda.device(x.device), gpu.timeline() as work, timeline() as memory:
            returned = step(blocks, rows, loss_fn, inside >> half, budget >> half)
        away = [s for s in work.spans if "copy to cuda" in s.name or (s.where == "to host" and s.nbytes >= rows.nbytes)]
        peak = memory.curve.peak_allocated_bytes - memory.curve.allocated_bytes[0]
        found.append(Seen(returned, list(blocks[0].log), peak, len(away)))
    return found


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    (length, room), (place, dtype) = scene.cut, scene.kind
    insides = f"{room} inside{'s' * (room > 1)}"
    facts = Facts(f"{length} blocks, room for {insides}, {str(dtype)[6:]}, virtual {place}")
    with virtual_gpu(count=2) as gpu, torch.cuda.device(place):
        log: list[Pass] = []
        blocks = nn.ModuleList(Block(i, log) for i in range(length)).to("cuda", dtype)
        x = torch.randn(256, 32, device="cuda", dtype=dtype)
        inside = activation_bytes(blocks[0], x).total
        budget = length * x.nbytes + room * inside + int(scene.spare * random.uniform(1, 1.05) * inside)
        job, twin = (x, loss_fn, inside, budget, scene.calls, gpu), copy.deepcopy(blocks)
        earlier = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")  # what the caller has there
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # a peak of before the call
        state = torch.cuda.get_rng_state()
        right = watch(best, twin, *job)
        torch.cuda.set_rng_state(state)
        calls = call(blocks, *job, through=watch, may_change={"blocks": {"grad"}})
        del earlier
        for seen, plain in zip(calls, right, strict=True):
            if facts.hold():
                compare_passes(facts, seen.passes, plain.passes, length)
        if facts.hold():
            got, want = gradients(blocks), gradients(twin)
            facts.add(NONE, [i for i, gradient in enumerate(got) if not gradient.any()], [])
            if facts.hold():
                facts.add(GRADIENT, torch.cat(got), Near(torch.cat(want), 1e-5))
        as_right = facts.hold()
        for half, (seen, plain) in enumerate(zip(calls, right, strict=True)):
            if as_right and facts.hold():
                again, must = len(seen.passes) - length, max(length - room, 0)
                facts.add(PEAK, max(round((seen.peak - plain.peak) / (inside >> half)), 0), 0)
                facts.add(COUNT, max(again, must), must)
                facts.add(AWAY, seen.away, 0)
                facts.seen["blocks computed again"] = [one.block for one in seen.passes[length:]]
        seen = calls[-1]
        finite, is_int = is_finite(seen.returned), is_whole(seen.returned)
        facts.add(KIND, "int" if is_int else "float" if finite else brief(seen.returned), "int")
        if finite:
            facts.add(BYTES, int(seen.returned) if is_int else as_float(seen.returned), Near(seen.peak, 2e-4))
        return facts


def compare_passes(facts: Facts, seen: list[Pass], plain: list[Pass], length: int) -> None:
    """The passes forward of one call; in `plain` the first ones are those of a plain pass."""
    facts.add(RUN, [one.block for one in seen[:length]], list(range(length)))
    if facts.hold():
        facts.add(MODE, sorted({one.block for one in seen if not one.training}), [])
    if facts.hold():
        facts.add(OTHER, sorted({one.block for one in seen if one.mask != seen[one.block].mask}), [])
        facts.add(MASKS, [i for i in range(length) if seen[i].mask != plain[i].mask], [])


def gradients(blocks: nn.ModuleList) -> list[torch.Tensor]:
    """Those of each block in one piece, on the CPU; zeros where there is none."""
    found = [[torch.zeros_like(p) if p.grad is None else p.grad for p in block.parameters()] for block in blocks]
    return [torch.cat([gradient.flatten() for gradient in own]).cpu() for own in found]


EXERCISE = Contract(
    __file__,
    says="within the budget, with the gradient of a plain pass, and no block recomputed needlessly",
    parameters=("blocks", "x", "loss_fn", "inside", "budget"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    hides=lambda scene: ("spare",) if scene.cut[1] >= scene.cut[0] else (),
    alike=3e-3,  # a tensor more or less is alive at the peak
    errors={
        "does not require grad": "the loss has no graph. With use_reentrant=True, the default, a checkpoint whose "
        "input needs no gradient gives an output without one, and x is data. Say use_reentrant=False",
        "NoneType": "if there is no gradient yet, .grad is None: backward() makes one, or adds to an existing one",
        "must not be zero": "checkpoint_sequential was given more segments than there are layers",
        "backward through the graph a second time": "backward runs twice on the same graph",
        "ModuleList": "a ModuleList cannot be called: run its blocks one after the other, or put them into "
        "nn.Sequential",
        "out of memory": "more is allocated than the virtual T4 has",
    },
)
