"""Maps the driver's physical GPUs to the `cuda:N` of this program.

The driver numbers all GPUs in the order of the bus; CUDA numbers those in CUDA_VISIBLE_DEVICES, by default sorted by
speed. Where the mapping is not certain there is none.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from virtualgpu.nvml import attempt

from .reading import Reading, Readings


def with_device_names(readings: Readings, torch: Any = None, environ: Mapping[str, str] = os.environ) -> Readings:
    """Return the readings with the `device` of each GPU and slice that is known to be this program's.

    torch is used only if this program has imported it and initialised CUDA, so that reading has no side effect.
    """
    torch = torch or sys.modules.get("torch")
    names = attempt(lambda: _cuda_names(torch))[0] if torch is not None else None
    if names is None:
        names = _predicted_names(readings, environ)
    return Readings((_name(reading, names) for reading in readings), readings.reason)


def is_mine(reading: Reading) -> bool:
    """Return True if this program is known to see the GPU, or a slice of it."""
    return reading.device is not None or any(part.device for part in reading.slices)


def _name(reading: Reading, names: Mapping[str, str]) -> Reading:
    if not names:
        return reading
    slices = tuple(replace(part, device=names.get(_bare(part.uuid))) for part in reading.slices)
    return replace(reading, device=names.get(_bare(reading.uuid)), slices=slices)


def _bare(uuid: str | None) -> str:
    """Return the UUID without NVML's prefix GPU- or MIG-, as torch has it."""
    return re.sub("^(GPU|MIG)-", "", uuid or "?").lower()


def _cuda_names(torch: Any) -> dict[str, str] | None:
    """Return CUDA's own mapping, None before it is initialised. May raise during an import in another thread."""
    if not torch.cuda.is_initialized():
        return None
    uuids = [torch.cuda.get_device_properties(i).uuid for i in range(torch.cuda.device_count())]
    return {_bare(str(uuid)): f"cuda:{i}" for i, uuid in enumerate(uuids)}


def _predicted_names(readings: Readings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping that CUDA will have, from the environment alone; empty if that does not determine it."""
    uuids = [reading.uuid for reading in readings]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if any(reading.mig for reading in readings):
        uuids = [part.uuid for reading in readings for part in reading.slices]
        if chosen is None or not chosen.startswith("MIG-"):
            return {}
    elif not (chosen or "").startswith("GPU-") and not _in_order(readings, environ):
        return {}
    found: list[str] = []
    for choice in map(str, range(len(uuids))) if chosen is None else chosen.split(","):
        uuid = _chosen(choice.strip(), uuids)
        if uuid is None:  # CUDA ignores all from the first unknown one on
            break
        found.append(_bare(uuid))
    if len(set(found)) != len(found):  # and all if one is named twice
        return {}
    return {uuid: f"cuda:{i}" for i, uuid in enumerate(found)}


def _in_order(readings: Readings, environ: Mapping[str, str]) -> bool:
    """Return True if CUDA sorts the GPUs as the driver does: in bus order, or all of one model."""
    same = len({reading.name for reading in readings}) == 1 and readings[0].name is not None
    return len(readings) == 1 or same or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _chosen(choice: str, uuids: list[str | None]) -> str | None:
    if choice.isdecimal():
        return uuids[int(choice)] if int(choice) < len(uuids) else None
    fitting = [uuid for uuid in uuids if uuid and choice and uuid.startswith(choice)]
    return fitting[0] if len(fitting) == 1 else None
