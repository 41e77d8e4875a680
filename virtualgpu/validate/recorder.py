"""Record all sections in order into one JSON file, keeping the others where one fails.

It runs the functions of the other modules and stores their results; it compares nothing. It refuses to label a virtual
GPU's results "measured".
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..clock.rates import recording_name
from ..scope import in_force
from .effort import QUICK, Effort, Run, Tell, short
from .sections import SECTIONS

__all__ = [
    "MEASURED",
    "QUICK",
    "SECTIONS",
    "Effort",
    "NoRealGPU",
    "check",
    "chosen",
    "default_path",
    "failed",
    "record",
]

MEASURED = "measured on a real GPU"
MINUTES = 16.0  # with what begins shortly before the end, below 20


class NoRealGPU(RuntimeError):
    """There is no real GPU to measure; the text is one sentence."""


def check() -> None:
    """Raise NoRealGPU where no real GPU would be measured."""
    if in_force.current is not None:
        raise NoRealGPU(f"{in_force.current!r} is in force, and its predictions are not measurements: end it first.")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise NoRealGPU("PyTorch finds no CUDA GPU here, and `validate` measures a real one.")
    try:
        values = torch.arange(1024, device="cuda:0", dtype=torch.float32)
        right = values.mul(2).sum().item() == 1023 * 1024
    except RuntimeError as error:
        raise NoRealGPU(f"the GPU here does not work ({short(error)}), so nothing can be measured.") from error
    if not right:
        raise NoRealGPU("the GPU here runs no kernels (a sum came out wrong), so nothing can be measured.")


def record(
    path: Path,
    *,
    minutes: float = MINUTES,
    sections: tuple[str, ...] | None = None,
    kind: str = MEASURED,
    effort: Effort | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Record into `path` for about `minutes`, and return what was recorded.

    `kind` says what the numbers are; with the default one this raises NoRealGPU unless a real GPU works here. A section
    that fails leaves {"error": …}, the time that is up {"left_out": …} or the rows so far. Raises ValueError for
    `minutes` that are no time, FileNotFoundError where the folder of `path` is missing.
    """
    if not minutes > 0:
        raise ValueError(f"minutes is {minutes:g}; it must be above 0")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path is {path}; its folder does not exist")
    if kind == MEASURED:
        check()
    effort = effort or Effort()
    deadline = time.monotonic() + 60 * minutes
    recording: dict[str, Any] = {"kind": kind, "by": "gpulab validate"}

    def keep(name: str, value: Any) -> None:
        recording[name] = value
        _write(path, recording)

    for name in sections or tuple(SECTIONS):
        began = time.monotonic()
        run = Run(effort, deadline, lambda value, name=name: keep(name, value), tell)  # type: ignore[misc]
        if run.over and name != "device":
            keep(name, {"left_out": f"the {minutes:g} minutes were over"})
            tell(f"{name}: left out, the time is up")
            continue
        try:
            keep(name, SECTIONS[name](run))
            outcome = "done"
        except Exception as error:
            kept = recording.get(name)
            rows = {"rows": kept} if isinstance(kept, list) else kept if isinstance(kept, dict) else {}
            keep(name, rows | {"error": short(error)})
            outcome = f"failed: {short(error)}"
        tell(f"{name}: {outcome}, {time.monotonic() - began:.1f} s")
    return recording


def chosen(names: Sequence[str] | None) -> tuple[str, ...]:
    """The sections of these names, all for None, always with the device first; raises ValueError for an unknown one."""
    for name in names or ():
        if name not in SECTIONS:
            raise ValueError(f"section is {name!r}; there are {', '.join(SECTIONS)}")
    return tuple(dict.fromkeys(("device", *(names or SECTIONS))))


def default_path() -> Path:
    """In the current folder, named after the GPU."""
    return Path(recording_name(torch.cuda.get_device_name(0)))


def failed(recording: dict[str, Any]) -> list[str]:
    """The sections that ended in an error."""
    return [name for name, value in recording.items() if isinstance(value, dict) and "error" in value]


def _write(path: Path, recording: dict[str, Any]) -> None:
    """All or nothing: a recording that is cut short is still the one before it."""
    part = path.with_name(path.name + ".part")
    part.write_text(_as_text(recording), encoding="utf-8")
    os.replace(part, path)


def _as_text(recording: dict[str, Any]) -> str:
    """JSON with one row per line."""

    def lines(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        if isinstance(value, dict) and any(isinstance(v, (list, dict)) for v in value.values()):
            return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(v)}" for key, v in value.items()) + "\n}"
        return json.dumps(value)

    return lines(recording) + "\n"
