"""Judges the turns of lesson 06: small segments, their best number, what is not trained, and what makes a job fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number

MOST = 0.6  # of the peak without checkpointing
WIDTH, ROWS, DEPTH = 64, 1024, 8


@turn("the peak is below 60 %, and every gradient is the same as without checkpointing")
def in_segments(answer: Any) -> None:
    """A function (model, x) that returns the output of an nn.Sequential of eight blocks with dropout."""
    with virtual_gpu():
        model, x, seed = _blocks(), torch.randn(ROWS, WIDTH, device="cuda"), int(torch.randint(10**6, ()))
        peak, wanted, _ = _run(lambda model, x: model(x), model, x, seed)
        low, got, calls = _run(answer, model, x, seed)
    if low / peak > MOST:
        share = f"a peak of {low / peak:.0%}"
        if set(calls) == {2} and low / peak > 0.9:
            raise AsGiven(f"{share} of that without checkpointing: one segment")
        again = sum(count > 1 for count in calls)
        likely = f"{again} of 8 blocks are recomputed, too many at once" if again else "no block is recomputed"
        raise NotYet(share, expected="less than 60 %", likely=f"{likely}; one `checkpoint` around each block")
    for number, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        if mine is None:
            raise NotYet(
                f"block {number // 4} of 0 to 7 gets no gradient",
                expected="a gradient for every parameter",
                likely="no_grad, detach or the reentrant implementation cuts the graph; use use_reentrant=False",
            )
        if not torch.allclose(mine, right, rtol=1e-3, atol=1e-6):
            raise NotYet(
                f"block {number // 4} of 0 to 7 gets another gradient",
                expected="the one without checkpointing, with the same dropout masks",
                likely="a block runs twice or is left out, or preserve_rng_state=False draws other masks",
            )


def _blocks() -> nn.Sequential:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))

    return nn.Sequential(*(block() for _ in range(DEPTH))).to("cuda")


def _run(run: Any, model: nn.Sequential, x: torch.Tensor, seed: int) -> tuple[int, list[Any], list[int]]:
    """Bytes at the peak above the start, the gradients on the host, and how often each block ran forward."""
    calls = [0] * DEPTH
    hooks = [block.register_forward_pre_hook(lambda *_, i=i: _count(calls, i)) for i, block in enumerate(model)]
    model.zero_grad()
    torch.manual_seed(seed)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = run(model, x)
    if not isinstance(out, torch.Tensor) or out.shape != x.shape:
        raise NotYet(f"{brief(out)} came back", expected="the output of the last block", likely="the return is missing")
    if not out.requires_grad:
        raise NotYet(
            "an output without a graph", expected="one that backward can begin from", likely="no_grad or detach cuts it"
        )
    out.square().mean().backward()
    peak = torch.cuda.max_memory_allocated() - before
    for hook in hooks:
        hook.remove()
    return peak, [None if p.grad is None else p.grad.cpu() for p in model.parameters()], calls


def _count(calls: list[int], number: int) -> None:
    calls[number] += 1


@turn("of all divisors, the one that keeps the fewest bytes")
def best_segments(answer: Any) -> None:
    """A function (layers, inside, given) that returns the number of equal segments."""
    cases = [_case(16, 1), _case(8, 15), _case(24, 3), _case(36, 34), _case(12, 0.2)]
    answers = [answer(*case) for case in cases]
    if answers == [round(layers**0.5) for layers, _, _ in cases]:
        raise AsGiven("√L, whatever a layer keeps")
    for (layers, inside, given), got in zip(cases, answers, strict=True):
        kept = {s: s * given + layers // s * inside for s in range(1, layers + 1) if layers % s == 0}
        best = min(kept, key=kept.__getitem__)
        if is_number(got) and got in kept and kept[int(got)] == kept[best]:
            continue
        raise NotYet(
            f"{brief(got)} for {layers} layers that keep {inside} bytes inside and are given {given}",
            expected=f"{best}, which keeps {kept[best]:,} bytes",
            likely=_why_not(got, layers, inside, given, kept),
        )


def _case(layers: int, ratio: float) -> tuple[int, int, int]:
    given = 100 * int(torch.randint(1, 50, ()))
    return layers, round(ratio * given), given


def _why_not(got: Any, layers: int, inside: int, given: int, kept: dict[int, int]) -> str:
    if not is_number(got):
        return "the return is missing" if got is None else "a number was asked for"
    if got not in kept:
        return f"it does not divide {layers}, so that the segments are not equal; compare the divisors"
    if got == max(kept, key=kept.__getitem__):
        return "that is the number that keeps the most bytes"
    return f"it keeps {kept[int(got)]:,} bytes: S inputs, and the inside of layers / S layers"


@turn("neither a frozen layer nor a gradient of zeros is a mistake")
def untrained(answer: Any) -> None:
    """A function (model) that returns the names of the parameters that are to be trained and have no gradient."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(5)))
    model[1].requires_grad_(False)
    model(torch.randn(2, 3)).sum().backward()
    lost = int(torch.randint(2, 4, ()))
    model[lost].zero_grad()
    model[4].weight.grad = torch.zeros(3, 3)
    wanted = {f"{lost}.weight", f"{lost}.bias"}
    got = answer(model)
    if not isinstance(got, list | tuple | set) or not all(isinstance(name, str) for name in got):
        raise NotYet(brief(got), expected="a list of names", likely="named_parameters() has names and parameters")
    if not got:
        raise AsGiven("no name, although a layer has no gradient")
    if set(got) != wanted:
        if any(name.startswith("1.") for name in got):
            likely = "layer 1 is frozen: its requires_grad is False"
        elif "4.weight" in got:
            likely = "a gradient of zeros is a gradient; ask whether it `is None`"
        else:
            likely = "look at p.requires_grad and p.grad of each parameter"
        raise NotYet(str(sorted(got)), expected=str(sorted(wanted)), likely=likely)


WEIGHTS, TEXT, INPUTS = 216, 198, 12  # MiB: of the eight blocks; kept for each text, and of that the blocks' inputs
BLOCKS, LARGEST = 8, 9  # MiB of the largest parameter
REMEDIES = ("fused AdamW", "autocast", "checkpoint", "Adafactor")
JOBS = ((1, 950), (8, 1900), (8, 1200), (1, 600))  # batch, MiB


def _moments(batch: int, remedy: str) -> tuple[float, float, float]:
    """MiB that are always there, that come on top at the end of forward, and those of the optimizer's step."""
    kept, state, temporaries = float(TEXT * batch), 2.0 * WEIGHTS, float(WEIGHTS)
    if remedy == "autocast":
        kept = kept / 2 + WEIGHTS / 2
    if remedy == "checkpoint":
        kept = (INPUTS + TEXT / BLOCKS) * batch
    if remedy == "fused AdamW":
        temporaries = 0
    if remedy == "Adafactor":
        state, temporaries = 0, 2 * LARGEST
    return WEIGHTS + state, kept, WEIGHTS + temporaries


def _peak(batch: int, remedy: str) -> float:
    always, forward, step = _moments(batch, remedy)
    return always + max(forward, step)


@turn("each job fits, with the cheapest remedy")
def must_fit(answer: Any) -> None:
    """A function that returns four of "fused AdamW", "autocast", "checkpoint", "Adafactor", for jobs 1 to 4."""
    got = answer()
    if not isinstance(got, list | tuple) or len(got) != len(JOBS):
        raise NotYet(brief(got), expected="a list of four remedies", likely="the return or one of the four is missing")
    if all(remedy is None for remedy in got):
        raise AsGiven("all four are None")
    for number, ((batch, budget), remedy) in enumerate(zip(JOBS, got, strict=True), 1):
        first = next(one for one in REMEDIES if _peak(batch, one) <= budget)
        if remedy == first:
            continue
        always, forward, step = _moments(batch, first)
        raise NotYet(
            f"{brief(remedy)} for job {number}, batch {batch} in {budget:,} MiB",
            expected=f"{first}: {always:,.0f} + max({forward:,.0f}, {step:,.0f}) MiB (computed)",
            likely=_likely(batch, budget, remedy),
        )


def _likely(batch: int, budget: int, remedy: Any) -> str:
    if remedy not in REMEDIES:
        return f"the four words are {', '.join(REMEDIES)}"
    peak, (_, forward, step) = _peak(batch, remedy), _moments(batch, remedy)
    if peak <= budget:
        return "it fits too, but costs more than one listed before it"
    moment = "the optimizer's step" if step > forward else "the end of the forward pass"
    return f"with it the peak is {peak:,.0f} MiB, at {moment}: a remedy for another moment does not lower it"
