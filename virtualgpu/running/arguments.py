"""The options of `run` that other processes get too, and the check of where a report is written."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from .target import CannotRun

VIRTUAL = ("gpus", "shapes_only", "repeatable", "ranks", "nodes", "link", "adapters", "skip_ddp")  # not for a real GPU


def again(options: argparse.Namespace, report: Path, **changed: Any) -> list[str]:
    """Return the command that runs the same script again, with other options and a report in JSON."""
    command = [sys.executable, "-m", "gpulab", "run", "--json", str(report)]
    for name in (*VIRTUAL, "gpu", "trial", "batch"):
        value = {**vars(options), **changed}[name]
        if value is not None and value is not False:
            values = [] if value is True else value if isinstance(value, tuple) else [value]
            command += [f"--{name.replace('_', '-')}", *map(str, values)]
    if options.module is not None:
        return [*command, "-m", *options.module]
    return [*command, "--", *(options.script[1:] if options.script[:1] == ["--"] else options.script)]


def check_json(path: str | None) -> None:
    """Raise CannotRun if the report cannot be written, before the script runs for hours."""
    if path is None or path == "-":
        return
    from .report import json_path

    where = json_path(path, None)
    folder = where.parent
    if where.is_dir():
        why = "it is a directory"
    elif not folder.is_dir():
        why = f"there is no directory {str(folder)!r}"
    elif not os.access(where if where.exists() else folder, os.W_OK):
        why = "it may not be written"
    else:
        return
    raise CannotRun(f"--json {path!r} cannot be written: {why}.")
