"""The remedies that `run --what-if` tries, and why one cannot be tried on a script.

What a remedy changes in PyTorch is in `remedy_patches`; this part needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..gpus.specs import SHOWN, SPECS, Spec

NAMES = ("expandable", "foreach", "fused", "tf32", "autocast", "micro-batch", "checkpointing", "gpu", "ranks")
SETTINGS = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE = "expandable_segments:True"
_RANKS = 8


@dataclass(frozen=True)
class Remedy:
    """One change. `why_not` says why it cannot be tried; `note` what it does and leaves out.

    `patch` is the key in `remedy_patches.REMEDIES`, `options` are those of the command that change, `settings` those of
    PyTorch's allocator.
    """

    name: str
    label: str
    why_not: str = ""
    patch: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: str = ""
    note: str = ""


AS_IT_IS = Remedy("none", "as it is")


def remedies(
    given: Mapping[str, Any], gpu: str, facts: Mapping[str, Any], enough: str | None = None, *, early: bool = False
) -> list[Remedy]:
    """Return the remedies for a script that was run on `gpu` with the options `given`, the cheapest first.

    `facts` are those of `remedy_patches.Seen`; `enough` is the smallest GPU for a run that was out of memory, and
    `early` tells that this was before a first step, so that the script may do what was not seen.
    """
    spec = SPECS[gpu]
    sixteen = "bf16" if spec.has("bf16") else "fp16"
    found = [
        _expandable(),
        Remedy("foreach", "foreach=False", _not_foreach(facts["optimizers"]), "foreach"),
        Remedy("fused", "fused=True", _not_fused(facts["optimizers"]), "fused"),
        Remedy("tf32", "TF32", "" if spec.has("tf32") else f"a {gpu} has none", "tf32"),
        Remedy(
            "autocast", f"autocast in {sixteen}", "the script uses autocast" if facts["autocast"] else "",
            f"autocast-{sixteen}", note=_AUTOCAST + (_NO_SCALER if sixteen == "fp16" else ""),
        ),
        Remedy("micro-batch", "half batch, accumulated", _not_halved(facts), "micro-batch", note=_HALVED),
        _checkpointing(facts),
        *_gpus(spec, enough),
        _ranks(given),
    ]  # fmt: skip
    return [
        replace(each, why_not=f"{each.why_not}, until it runs out of memory") if early and _unseen(each) else each
        for each in found
    ]


def _unseen(remedy: Remedy) -> bool:
    return remedy.why_not in (_NO_OPTIMIZER, _NO_LOADER, _NO_GRADIENTS)


_NO_OPTIMIZER = "the script makes no optimizer"
_NO_LOADER = "no DataLoader gives batches"
_NO_BLOCKS = "the model has no two layers of a kind, in one list and each of several layers"
_NO_GRADIENTS = "no module is called with gradients"
_AUTOCAST = "autocast: from the first call of a module to backward, as torch.autocast around forward and loss."
_NO_SCALER = " fp16 also needs a GradScaler, whose unscaling of the gradients is not in these figures."
_HALVED = (
    "half batch: each DataLoader gives half as many samples, and the optimizers step every second time. Clipping and "
    "exchange between ranks, where there are any, are done for each half."
)


def _expandable() -> Remedy:
    label = "expandable_segments"
    before = next((os.environ[name] for name in SETTINGS if os.environ.get(name)), "")
    if _EXPANDABLE.lower() in before.lower():
        return Remedy("expandable", label, "they are on")
    settings = ",".join([part for part in before.split(",") if part and "expandable" not in part] + [_EXPANDABLE])
    return Remedy("expandable", label, settings=settings, note=f"{label}: {SETTINGS[0]}={settings}")


def _not_foreach(optimizers: list[Any]) -> str:
    kinds = [kind for name, kind in optimizers if "foreach" in kind]
    if not kinds:
        return _no_such(optimizers, "foreach")
    if all(kind.get("fused") for kind in kinds):
        return "the optimizer is fused, and does without foreach"
    return "it is off" if all(kind["foreach"] is False for kind in kinds if not kind.get("fused")) else ""


def _not_fused(optimizers: list[Any]) -> str:
    kinds = [kind for _, kind in optimizers if "fused" in kind]
    if not kinds:
        return _no_such(optimizers, "fused")
    return "it is on" if all(kind["fused"] for kind in kinds) else ""


def _no_such(optimizers: list[Any], option: str) -> str:
    if not optimizers:
        return _NO_OPTIMIZER
    return f"{', '.join(dict.fromkeys(name for name, _ in optimizers))} has no {option}="


def _not_halved(facts: Mapping[str, Any]) -> str:
    if not facts["optimizers"]:
        return _NO_OPTIMIZER
    if not facts["batch"]:
        return _NO_LOADER
    if facts["batch"] == 1:
        return "a batch is one sample"
    return f"the batches are made by {facts['sampler']}" if facts["sampler"] else ""


def _checkpointing(facts: Mapping[str, Any]) -> Remedy:
    why_not = "" if facts["blocks"] else _NO_BLOCKS if facts["gradients"] else _NO_GRADIENTS
    if facts["checkpoints"]:
        why_not = "the script checkpoints itself"
    what = ", ".join(facts["blocks"])
    how = "" if what.endswith("()") else " by torch.utils.checkpoint, use_reentrant=False"
    return Remedy("checkpointing", "checkpointing", why_not, "checkpointing", note=f"checkpointing: {what}{how}")


def _gpus(spec: Spec, enough: str | None) -> list[Remedy]:
    """Return the next smaller and larger GPU of the table, among GeForce cards a GeForce card."""
    alike = [each for each in SHOWN.values() if ("GeForce" in each.product) == ("GeForce" in spec.product)]
    smaller = max((each for each in alike if each.memory_gb < spec.memory_gb), key=_size, default=None)
    larger = min((each for each in alike if each.memory_gb > spec.memory_gb), key=_size, default=None)
    if enough is not None:
        larger = SPECS[enough]
    return [
        Remedy("gpu", f"on {with_article(each.name)}", options={"gpu": each.name})
        if each is not None
        else Remedy("gpu", f"a {which} GPU", f"the table has none of the {spec.name}'s kind")
        for which, each in (("smaller", smaller), ("larger", larger))
    ]


def _size(spec: Spec) -> int:
    return spec.memory_gb


def with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AHLR' else 'a'} {name}"


def _ranks(given: Mapping[str, Any]) -> Remedy:
    number = 2 * given["ranks"] if given["ranks"] else _RANKS
    why_not = "--gpus is given, and an imagined rank has one GPU" if (given["gpus"] or 1) > 1 else ""
    note = f"{number} ranks: as torchrun starts them, a GPU and a batch for each; of them one is run here."
    return Remedy("ranks", f"{number} ranks", why_not, options={"ranks": number, "skip_ddp": False}, note=note)
