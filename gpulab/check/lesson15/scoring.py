"""A script is scored: each place is measured by its probe, on a virtual T4 of its own, whatever the others show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from ...capstone.places import PLACES
from ..base import CheckFailed, Trial
from ..measure import virtual_gpu
from . import of_model, of_rest, of_training
from .bench import Finding, module_of

Probe = Callable[[ModuleType], Finding]

PROBES: dict[str, Probe] = {
    "attention": of_model.attention,
    "recomputation": of_model.recomputation,
    "log": of_model.log,
    "history": of_training.history,
    "graph": of_rest.graph,
    "search": of_rest.search,
    "vocabulary": of_model.vocabulary,
    "precision": of_training.precision,
    "optimizer": of_training.optimizer,
    "waits": of_training.waits_of,
    "forward": of_model.forward,
    "copies": of_rest.copies,
    "cache": of_training.cache,
    "clock": of_rest.speed,
    "clipping": of_training.clipping,
    "overflow": of_training.overflow,
    "window": of_training.window,
    "mean": of_rest.mean,
    "modes": of_training.modes,
    "parameters": of_training.parameters,
    "dealing": of_rest.dealing,
    "resuming": of_rest.resuming,
}


# What a script may do to the process that is its own; all of it is put back after each call.
AS_A_PROCESS: dict[str, Any] = {"may_seed": True, "may_leave": ("torch.backends.", "the float32 matmul precision")}


def findings(text: str, path: str, trial: Trial, seed: int, places: Iterable[str] = PLACES) -> dict[str, Finding]:
    """What the probes of these places find in a script. Where a function of it raises, that is a finding; a script that
    cannot be loaded fails the check, and so does a function that never returns."""
    with virtual_gpu():
        script: ModuleType = trial.call(lambda: module_of(text, path), who="your script", **AS_A_PROCESS)
    found: dict[str, Finding] = {}
    for number, place in enumerate(PLACES):
        if place in places:
            torch.default_generator.manual_seed(seed + number)  # so that each draws the same, whichever are asked for
            with virtual_gpu():
                found[place] = _finding(PROBES[place], script, trial, place)
    return found


def _finding(probe: Probe, script: ModuleType, trial: Trial, place: str) -> Finding:
    try:
        finding: Finding = trial.call(lambda: probe(script), who="your script", **AS_A_PROCESS)
    except CheckFailed as failed:
        if failed.hung or not (failed.raised or "setting" in failed.summary):
            failed.summary += f", while “{place}” was measured"
            raise
        what = failed.summary.removeprefix("your script ")
        return Finding(
            False, failed.rows["got"], f"the script {what}", failed.notes[-1].strip() if failed.notes else ""
        )
    return finding
