"""Judges the turns of lesson 04: a lean row, sizes for a segment, a frozen layer, the logits in a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number

MIB = 2**20


@turn("as many bytes as were requested from the allocator, with a frozen layer, in float32 and in bf16 (virtual T4)")
def held_bytes(answer: Any) -> None:
    """A function of a model that gives the bytes of its weights, gradients and Adam's moments on the GPU."""
    for dtype in (torch.float32, torch.bfloat16):
        with virtual_gpu():
            widths = [32 * int(size) for size in torch.randperm(8)[:3] + 2]
            before = _requested()
            model = nn.Sequential(nn.Linear(widths[0], widths[1]), nn.Linear(widths[1], widths[2]))
            model.to("cuda", dtype)
            model[0].requires_grad_(False)
            got = answer(model)
            optimizer = _stepped(model, torch.randn(4, widths[0], device="cuda", dtype=dtype))
            right = _requested() - before
            del optimizer  # and with it the moments
            if is_number(got) and got == right:
                continue
            weights = sum(p.nbytes for p in model.parameters())
            trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        likely = "the return is missing" if got is None else "return a number"
        if is_number(got):
            likely = _miscounted(got, weights, trained, dtype.itemsize)
        raise NotYet(
            f"{f'{got:,}' if is_number(got) else brief(got)} for a model of {weights:,} bytes in "
            f"{str(dtype).removeprefix('torch.')}, of which {trained:,} are trained",
            expected=f"{right:,} bytes (virtual T4)",
            likely=likely,
        )


def _requested() -> int:
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def _stepped(model: nn.Module, x: torch.Tensor) -> torch.optim.Optimizer:
    """AdamW over what is trained, after its first step; the gradients are still there."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model(x).square().mean().backward()
    optimizer.step()
    return optimizer


def _miscounted(got: float, weights: int, trained: int, itemsize: int) -> str:
    """Why a reader may have counted so many; `weights` and `trained` in bytes."""
    right = weights + 3 * trained
    why = {
        4 * weights: "a frozen layer has weights, but no gradient, and Adam keeps no moments for it",
        4 * trained: "a frozen layer is not trained, but its weights still take memory",
        weights + trained: "Adam's two moments are missing: each is as large as the trained weights",
        weights + 2 * trained: "one part is missing: either the gradients, or one of Adam's two moments",
        2 * weights + 2 * trained: "backward makes no gradient for a frozen layer",
        3 * weights + trained: "Adam gets the trained parameters only, and makes no moments for the others",
        weights + trained + 8 * trained // itemsize: "in bf16 Adam's moments are bf16, too: 2 bytes for each number",
        weights + 12 * trained // itemsize: "in bf16 gradients and moments are bf16, too: 2 bytes for each number",
        weights: "these are the weights; each trained one also has a gradient and two moments",
        right // itemsize: "these are numbers, not bytes: p.nbytes, or p.numel() * p.element_size()",
        right * 4 // itemsize: "this is 4 bytes for each number; in bf16 it has 2: p.nbytes, or p.element_size()",
        right / MIB: "this is in MiB; return bytes",
    }
    return why.get(got, "count the weights of all parameters, and one gradient and two moments for the trained ones")


@turn("accuracy and weights are the same, and the peak is lower by the size of the logits (virtual T4)")
def lean_step(answer: Any) -> None:
    """A function (model, optimizer, inputs, targets) that trains one step and returns the accuracy before it."""
    with virtual_gpu():
        model = nn.Sequential(nn.Embedding(16384, 16), nn.Linear(16, 16384)).to("cuda")
        inputs, targets = torch.randint(16384, (2, 2, 64), device="cuda")
        known = torch.rand(2, 64, device="cuda") < 0.4
        targets = torch.where(known, model(inputs).argmax(-1), targets).flatten()
        logits = inputs.numel() * 16384 * 4
        reference, ours = copy.deepcopy(model), copy.deepcopy(model)
        wanted, peak, _ = _measured(_given, reference, inputs, targets)
        after = _accuracy(reference(inputs), targets)
        got, own, calls = _measured(answer, ours, inputs, targets)
        _same_step(ours, reference, model)
        _same_accuracy(got, float(wanted), float(after))
    if calls > 1:
        raise NotYet(
            f"the model has run {calls} times",
            expected="one forward pass: a second one costs its time again",
            likely="the logits exist before backward: compute what you need from them there",
        )
    saved = (peak - own) / logits
    if abs(saved) < 0.1:
        raise AsGiven(f"the peak is {peak / MIB:.1f} MiB (virtual T4)")
    if saved < 0.9:
        raise NotYet(
            f"the peak is {own / MIB:.1f} MiB, against {peak / MIB:.1f} with the given code",
            expected=f"{logits / MIB:.0f} MiB less, the logits (virtual T4)",
            likely="when backward begins, the logits or another tensor of their size still exists",
        )


def _measured(step: Callable[..., Any], model: nn.Module, inputs: Any, targets: Any) -> tuple[Any, int, int]:
    """What the step returns, the most bytes that it has above what was there, and how often it runs the model."""
    calls: list[None] = []
    handle = model.register_forward_hook(lambda *_: calls.append(None))
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    returned = step(model, optimizer, inputs, targets)
    handle.remove()
    return returned, torch.cuda.max_memory_allocated() - before, len(calls)


def _given(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    logits = model(inputs).flatten(0, 1)
    F.cross_entropy(logits, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    return _accuracy(logits, targets)


def _accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.flatten(0, -2).argmax(-1) == targets).float().mean()


def _same_step(ours: nn.Module, right: nn.Module, before: nn.Module) -> None:
    if any(p.grad is not None and bool(p.grad.any()) for p in ours.parameters()):
        raise NotYet("gradients are left", expected="none, as before", likely="optimizer.zero_grad() is gone")
    got, wanted, start = (nn.utils.parameters_to_vector(m.parameters()) for m in (ours, right, before))
    if not torch.allclose(got, wanted, atol=1e-4):
        gone = torch.equal(got, start)
        raise NotYet(
            "no weight has moved" if gone else "the weights have other values",
            expected="the same step as before",
            likely="optimizer.step() is gone" if gone else "you changed more than the use of the logits",
        )


def _same_accuracy(got: Any, wanted: float, after: float) -> None:
    value = float(got) if is_number(got) or (isinstance(got, torch.Tensor) and got.numel() == 1) else None
    if value is None:
        raise NotYet(f"{brief(got)} came back", expected=f"{wanted:.3f}", likely="the return is missing or another")
    if abs(value - wanted) > 1e-4:
        raise NotYet(
            f"{value:.3f} came back",
            expected=f"{wanted:.3f}, the accuracy before the step",
            likely="it was computed with the weights after the step"
            if abs(value - after) < 1e-4
            else "return a share: correct predictions divided by all",
        )


@turn("the row is unchanged, and PyTorch reserves no more than the row needs (virtual T4)")
def lean_row(answer: Any) -> None:
    """A function that returns the first row, 1 MiB of ones, of a matrix of 100 MiB that it makes on the GPU."""
    with virtual_gpu():
        got = answer()
        reserved = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        is_row = isinstance(got, torch.Tensor) and got.shape == (2**18,) and bool((got == 1).all())
        on_gpu = is_row and got.is_cuda
    if not is_row:
        likely = "the return is missing" if got is None else "return the row itself"
        raise NotYet(brief(got), expected="the row, 262,144 ones", likely=likely)
    if not on_gpu:
        raise NotYet("the row is on the CPU", expected="a row on the GPU", likely="clone() copies it on the GPU")
    if reserved <= 2 * MIB:
        return
    if reserved == 100 * MIB and held == 100 * MIB:
        raise AsGiven(f"{reserved / MIB:.0f} MiB are reserved (virtual T4)")
    likely = "the matrix is freed, but PyTorch keeps its memory: another call returns it to the driver"
    if held > 2 * MIB:
        likely = "something still refers to the matrix: a view or a name"
    raise NotYet(f"{reserved / MIB:.0f} MiB are reserved", expected="2 MiB (virtual T4)", likely=likely)


@turn("four different sizes, 19 MiB or more, and exactly 20 MiB reserved (virtual T4)")
def four_sizes(answer: Any) -> None:
    """A function that returns four sizes in MiB."""
    sizes = answer()
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 4 or not all(is_number(n) and n > 0 for n in sizes):
        raise NotYet(brief(sizes), expected="a list of four sizes in MiB", likely="the return is missing or another")
    if list(sizes) == [0.5, 9, 8, 3]:
        raise AsGiven("the four reserve 22 MiB (virtual T4): one of them comes from another pool")
    if len(set(sizes)) < 4 or sum(sizes) < 19:
        raise NotYet(
            f"{sum(sizes):g} MiB in {len(set(sizes))} different sizes",
            expected="four different ones, together 19 MiB or more",
            likely="two are the same" if len(set(sizes)) < 4 else "the sizes should nearly fill the segment",
        )
    if sum(sizes) > 20:
        raise NotYet(
            f"{sum(sizes):g} MiB in all", expected="20 MiB reserved", likely="more than 20 MiB do not fit into 20"
        )
    with virtual_gpu():
        alive = [torch.empty(int(size * MIB), dtype=torch.uint8, device="cuda") for size in sizes]
        reserved = torch.cuda.memory_reserved()
        del alive
    if reserved != 20 * MIB:
        pools = "a tensor of up to 1 MiB comes from the small pool, in segments of 2 MiB"
        alone = "a tensor of 10 MiB or more that finds no free block gets a segment of its own size"
        likely = pools if min(sizes) <= 1 else alone
        raise NotYet(f"{reserved / MIB:g} MiB are reserved", expected="20 MiB (virtual T4)", likely=likely)
