"""Scores a script: each place is measured by its probe, on a virtual T4 of its own, independently of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from gpulab.capstone.places import PLACES
from gpulab.exercise.base import CheckFailed, Trial
from gpulab.exercise.measure import virtual_gpu
from virtualgpu.scope import in_force

from . import of_model, of_rest, of_run, of_training
from .bench import Finding, module_of
from .reach import Parts

Probe = Callable[[ModuleType], Finding]

# Each with the parts of the script that it calls.
PROBES: dict[str, tuple[Probe, tuple[str, ...]]] = {
    "attention": (of_model.attention, ("Block",)),
    "activation": (of_model.activation, ("Block",)),
    "recomputation": (of_model.recomputation, ("GPT",)),
    "log": (of_model.log, ("GPT",)),
    "history": (of_training.history, ("train",)),
    "graph": (of_rest.graph, ("evaluate",)),
    "search": (of_rest.search, ("largest_batch",)),
    "vocabulary": (of_model.vocabulary, ("GPT",)),
    "precision": (of_training.precision, ("train", "evaluate", "loss_of")),
    "optimizer": (of_training.optimizer, ("GPT", "make_optimizer")),
    "waits": (of_training.waits_of, ("train",)),
    "forward": (of_model.forward, ("GPT",)),
    "copies": (of_rest.copies, ("Text", "make_loader", "on_gpu")),
    "cache": (of_training.cache, ("train",)),
    "clock": (of_rest.speed, ("words_per_second",)),
    "clipping": (of_training.clipping, ("train",)),
    "overflow": (of_training.overflow, ("train",)),
    "window": (of_training.window, ("train", "loss_of")),
    "mean": (of_rest.mean, ("evaluate",)),
    "modes": (of_training.modes, ("train", "evaluate")),
    "parameters": (of_training.parameters, ("GPT", "make_optimizer")),
    "dealing": (of_rest.dealing, ("Text", "make_loader")),
    "resuming": (of_rest.resuming, ("save", "load", "main")),
}


# What a script may do to the process that is its own; all of it is put back after each call.
AS_A_PROCESS: dict[str, Any] = {"may_seed": True, "may_leave": ("torch.backends.", "the float32 matmul precision")}


def findings(text: str, path: str, trial: Trial, seed: int, places: Iterable[str] = PLACES) -> dict[str, Finding]:
    """What the probes of these places find in a script. Where a function of it raises, that is a finding; a script that
    cannot be loaded fails the check, and so does a function that never returns.

    What a probe has found with the same inputs and the same parts of a script is not measured again: after a repair,
    those that can come to it are.
    """
    with virtual_gpu():
        script: ModuleType = trial.call(lambda: module_of(text, path), who="your script", **AS_A_PROCESS)
    parts = _parts_of(text)
    found: dict[str, Finding] = {}
    for number, place in enumerate(PLACES):
        if place in places:
            probe, roots = PROBES[place]
            inputs = place, seed, in_force.current is None, parts.text(roots)
            if parts.apart and inputs in _known:
                found[place] = _known[inputs]
                continue
            torch.default_generator.manual_seed(seed + number)  # so that each draws the same, whichever are asked for
            printed = trial.printed()
            with virtual_gpu():
                found[place], ended = _finding(probe, script, trial, place)
            if ended and trial.printed() == printed:  # else there is more to say of this script
                _keep(inputs, found[place])
    return found


def of_the_run(text: str, path: str, trial: Trial, seed: int) -> Finding:
    """What `main` does as a whole, of a script in which every place is in order."""
    torch.default_generator.manual_seed(seed)
    with virtual_gpu():
        script: ModuleType = trial.call(lambda: module_of(text, path), who="your script", **AS_A_PROCESS)
        return _finding(of_run.run, script, trial, "main")[0]


_parts_of = lru_cache(maxsize=8)(Parts)  # the script as it was found comes with each check
Inputs = tuple[str, int, bool, str]  # the place, the seed, whether the notebook has no GPU, and the parts
_known: dict[Inputs, Finding] = {}
_MOST_KNOWN = 2000


def _keep(inputs: Inputs, finding: Finding) -> None:
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[inputs] = finding


def _finding(probe: Probe, script: ModuleType, trial: Trial, place: str) -> tuple[Finding, bool]:
    """What the probe finds, and whether it came to its end."""
    try:
        finding: Finding = trial.call(lambda: probe(script), who="your script", **AS_A_PROCESS)
    except CheckFailed as failed:
        if failed.hung or not (failed.raised or "setting" in failed.summary):
            failed.summary += f", while “{place}” was measured"
            raise
        what = failed.summary.removeprefix("your script ")
        last = failed.notes[-1].strip() if failed.notes else ""
        return Finding(False, failed.rows["got"], f"the script {what}", last), False
    return finding, True
