"""Merges the Chrome traces of several ranks into one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def merge_traces(paths: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]) -> Path:
    """Write one Chrome trace with the events of several files, of rank 0, rank 1 and so on; return its path.

        with timing.trace(f"step.rank{rank}.json"):  # on each rank
            step()
        timing.merge_traces(["step.rank0.json", "step.rank1.json"], "step.json")

    Times are not changed: those of virtual GPUs are on a common axis, since ranks exchange theirs; those of
    `torch.profiler` are each machine's own. Raises ValueError without files or for one that is no Chrome trace,
    FileNotFoundError if a file, or the folder of `path`, is missing; then nothing is written.
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ValueError(f"paths must be a list of trace files, one for each rank, not {paths!r}")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {str(path)!r}; the folder {str(target.parent)!r} does not exist")
    merged: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    numbers: dict[tuple[int, Any], int] = {}
    for rank, file in enumerate(paths):
        trace = _read(Path(file))
        merged = {**trace, **merged}
        named: set[int] = set()
        for event in trace["traceEvents"]:
            pid = numbers.setdefault((rank, event.get("pid", 0)), len(numbers))
            event = event | {"pid": pid}
            if event.get("ph") in ("s", "t", "f"):  # arrows, whose ids are unique in one file only
                event["id"] = f"{rank} {event.get('id')}"
            if event.get("ph") == "M" and event.get("name") == "process_name":
                event["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
                named.add(pid)
            events.append(event)
        unnamed = {pid for (of, _), pid in numbers.items() if of == rank} - named
        events += [{"ph": "M", "name": "process_name", "pid": n, "args": {"name": f"rank {rank}"}} for n in unnamed]
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps({**merged, "traceEvents": events}), encoding="utf-8")
    os.replace(part, target)
    return target


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"paths has {str(file)!r}, which is not a Chrome trace: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise ValueError(f"paths has {str(file)!r}, which is not a Chrome trace: it has no traceEvents")
    return found
