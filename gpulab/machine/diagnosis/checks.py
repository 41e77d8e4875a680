"""Runs all checks of the doctor in order; a check that raises becomes a line of the report with its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from . import driver, host, jupyter, pytorch, subprocess_probe
from .finding import Finding, Report, first_line


@dataclass(frozen=True)
class Readers:
    """The function for each reading: of the machine by default, replaced in tests."""

    python: Callable[[], tuple[int, ...]] = host.read_python
    torch: Callable[[], pytorch.Torch] = subprocess_probe.probe_torch
    driver: Callable[[], driver.Driver] = driver.read_driver
    memory: Callable[[], host.Memory] = host.read_memory
    processors: Callable[[], host.Processors] = host.read_processors
    disk: Callable[[], host.Disk] = host.read_disk
    jupyter: Callable[[], jupyter.Jupyter] = jupyter.read_jupyter


def examine(readers: Readers | None = None) -> Report:
    of = readers or Readers()
    read_driver, read_torch, read_jupyter = cache(of.driver), cache(of.torch), cache(of.jupyter)
    checks: list[tuple[str, Callable[[], list[Finding] | Finding | None]]] = [
        ("Python", lambda: host.judge_python(of.python())),
        ("PyTorch", lambda: pytorch.judge_install(read_torch())),
        ("NVIDIA driver", lambda: driver.judge_driver(read_driver(), read_torch())),
        ("GPUs", lambda: driver.judge_gpus(read_driver())),
        ("CUDA devices", lambda: pytorch.judge_devices(read_torch())),
        ("GPU", lambda: driver.judge_none(read_driver(), read_torch())),
        ("Apple's GPU", lambda: pytorch.judge_apple(read_torch())),
        ("Memory", lambda: host.judge_memory(of.memory())),
        ("Processors", lambda: host.judge_processors(of.processors())),
        ("Disk", lambda: host.judge_disk(of.disk())),
        ("JupyterLab", lambda: jupyter.judge_jupyterlab(read_jupyter())),
        ("Widgets", lambda: jupyter.judge_widgets(read_jupyter())),
        ("Colab", lambda: jupyter.judge_colab(read_jupyter(), read_torch())),
    ]
    return Report(tuple(finding for name, check in checks for finding in _survive(name, check)))


def _survive(name: str, check: Callable[[], list[Finding] | Finding | None]) -> list[Finding]:
    try:
        found = check() or []
        return found if isinstance(found, list) else [found]
    except Exception as error:
        do = "The other lines are still valid. Please report this one, with its text, to the course's maintainers."
        if isinstance(error, ImportError):
            do = "A package of the course is missing: run make lab in the course folder, or pip install -e . there."
        what = f"this check itself failed: {type(error).__name__}: {first_line(error)}"
        return [Finding(name, "problem", what, do)]
