"""Probes a whole run: `main` at a small size, against that of the script without faults."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from gpulab.exercise.wording import is_finite

from .bench import Finding, found, sound_module

SIZES: dict[str, Any] = {"width": 64, "depth": 1, "length": 16, "batch": 4, "accumulate": 2, "updates": 3}
EPOCHS = 2


def run(script: ModuleType) -> Finding:
    """What `main` returns, and the model, optimizer, scaler and schedule that it saves."""
    got, again, wanted = _run(script), _run(script), _run(sound_module())
    losses, kept = got
    rows = isinstance(losses, list | tuple) and len(losses) == EPOCHS
    numbers = rows and all(
        isinstance(row, list | tuple) and len(row) == 3 and all(map(is_finite, row)) for row in losses
    )
    far = numbers and any(
        not math.isclose(one, other, rel_tol=0.1)
        for row, right in zip(losses, wanted[0], strict=True)
        for one, other in zip((*row[:2], 1 + row[2]), (*right[:2], 1 + right[2]), strict=True)
    )
    said = ", ".join(f"{row[0]:.2f}" for row in losses) if numbers else type(losses).__name__
    if len(kept) < 4:
        return found(f"losses by epoch {said}", (True, "main() does not save all four parts", "model, optimizer, …"))
    optimizer, schedule = kept[1], kept[3]
    groups = [(group["initial_lr"], group["weight_decay"]) for group in optimizer.param_groups]
    steps = {int(state["step"]) for state in optimizer.state.values() if "step" in state}
    return found(
        f"losses by epoch {said}, {schedule.last_epoch} updates",
        (not numbers, "main() does not return its losses by epoch", "(trained, held out, share guessed) of each epoch"),
        (
            not isinstance(optimizer, torch.optim.AdamW) or sorted(groups) != sorted(_groups(wanted)),
            "main() does not train with make_optimizer()'s optimizer",
            "AdamW at 3e-4, and no decay for norms and biases",
        ),
        (
            steps != {EPOCHS * SIZES["updates"]} or schedule.last_epoch != EPOCHS * SIZES["updates"],
            "main() does not make the number of updates asked for",
            "make `updates` in each epoch, each of them one window",
        ),
        (
            [group["lr"] for group in optimizer.param_groups] != [group["lr"] for group in wanted[1][1].param_groups],
            "main() ends with another learning rate",
            "it rises over four updates, one step for each that was made",
        ),
        (
            {name: value.shape for name, value in kept[0].state_dict().items()}
            != {name: value.shape for name, value in wanted[1][0].state_dict().items()},
            "main() trains a model of another size, or with other names",
            "width, depth, length and words are arguments; a head for each 64 numbers of width",
        ),
        (losses != again[0], "main() gives other losses each time", "call torch.manual_seed(0) at its beginning"),
        (
            far,
            "main() returns other losses",
            "return those of training and of the part that is held out, and the share of words guessed",
        ),
    )


def _run(script: ModuleType) -> tuple[Any, tuple[Any, ...]]:
    kept: list[tuple[Any, ...]] = []
    instead: dict[str, Any] = {"save": lambda path, *parts: kept.append(parts), "print": lambda *words, **options: None}
    with mock.patch.dict(vars(script), instead):
        losses = script.main(**SIZES, epochs=EPOCHS, words=128)
    return losses, kept[-1] if kept else ()


def _groups(wanted: tuple[Any, tuple[Any, ...]]) -> list[tuple[float, float]]:
    return [(group["initial_lr"], group["weight_decay"]) for group in wanted[1][1].param_groups]
