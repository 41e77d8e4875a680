"""Writes a Chrome trace of a block, from the virtual GPU's clock or from PyTorch's profiler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from virtualgpu.scope import in_force


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a trace of the block to `path`, for chrome://tracing or https://ui.perfetto.dev.

        with timing.trace("step.json"):
            step()

    On a virtual GPU it has launches, waits, kernels and copies in virtual time, by stream, with the rate of each. On a
    real one, and without any, it is recorded by `torch.profiler`, with PyTorch's operations. The file is written at the
    end of the block, also after an exception, which passes through; an existing one is replaced. Raises
    FileNotFoundError if the folder of `path` is missing, before anything runs.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {str(path)!r}; the folder {str(target.parent)!r} does not exist")
    scope = in_force.current
    if scope is None:
        with _profiled(target):
            yield target
        return
    with scope.timeline() as timeline:
        try:
            yield target
        finally:
            timeline.save(target)


@contextlib.contextmanager
def _profiled(target: Path) -> Iterator[None]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    profiler = profile(activities=activities, acc_events=True)  # of one cycle; without it PyTorch 2.11 warns of others
    profiler.start()
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()
        profiler.export_chrome_trace(str(target))
