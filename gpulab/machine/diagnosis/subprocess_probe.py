"""Probes PyTorch in a subprocess, so that a broken install can crash or hang without taking the caller with it.

The caller gets no CUDA context either. The subprocess prints its result as one line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..debugger import kept_out
from .finding import first_line
from .pytorch import Device, Torch, read_torch

_PATIENCE_SECONDS = 180.0


def probe_torch() -> Torch:
    """Return `read_torch()` of a subprocess; a crash or a timeout of it is returned as `Torch.broken`."""
    package_root = str(Path(__file__).parents[3])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        with kept_out():
            run = subprocess.run(
                [sys.executable, "-c", f"from {__name__} import print_torch; print_torch()"],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_PATIENCE_SECONDS,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"},
            )
    except subprocess.TimeoutExpired:
        return Torch(broken=f"importing it and starting CUDA takes more than {_PATIENCE_SECONDS:.0f} s")
    if run.returncode == 0 and run.stdout.strip():
        return from_json(run.stdout.strip().splitlines()[-1])
    last = (run.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return Torch(broken=f"a process that imports it ended with {_ending(run.returncode)}: {first_line(last)}")


def print_torch() -> None:
    """Print `read_torch()` as one line of JSON, for `probe_torch`."""
    print(json.dumps(dataclasses.asdict(read_torch())))


def from_json(text: str) -> Torch:
    """Parse the line that `print_torch` printed."""
    raw: dict[str, Any] = json.loads(text)
    devices = tuple(Device(**{**d, "capability": tuple(d["capability"])}) for d in raw.pop("devices"))
    builds = tuple((cuda, tuple(codes)) for cuda, codes in raw.pop("builds"))
    return Torch(**{**raw, "devices": devices, "builds": builds, "arch_list": tuple(raw["arch_list"])})


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
