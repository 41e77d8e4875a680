"""Starting ranks, by torchrun and by the warm server: figures for `bench.py`.

The script sums one number over two ranks by gloo. What is compared is measured in turns, since the machine may be busy.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import psutil

from gpulab import distributed
from gpulab.distributed.warm import server_pid, stop

from .bench_virtual import Figures

SCRIPT = """
import psutil
import torch, torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
print(psutil.Process().memory_full_info().uss)
dist.destroy_process_group()
"""


def started(warm: bool) -> tuple[float, float]:
    """Seconds from the call to the result, and the most MB that a rank has for itself (its unique set size)."""
    began = perf_counter()
    run = distributed.run("sum.py", 2, timeout=None, warm=warm)
    seconds = perf_counter() - began
    return seconds, max(int(rank.output) for rank in run.ranks) / 1e6


def _median(values: Iterable[float]) -> float | None:
    values = [*values]
    return statistics.median(values) if values else None


def figures(*, quick: bool) -> Figures:
    """With `quick` torchrun starts none."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("sum.py").write_text(SCRIPT, encoding="utf-8")
        first, cold, later = [], [], []
        for _ in range(1 if quick else 7):
            stop()
            first.append(started(warm=True))
            if not quick:
                cold.append(started(warm=False))
            later.append(started(warm=True))
        server = psutil.Process(server_pid()).memory_full_info().uss / 1e6
    by_torchrun, at_first, warm_later = (_median(seconds for seconds, _ in runs) for runs in (cold, first, later))
    ratio = _median(a[0] / b[0] for a, b in zip(cold, later, strict=not quick))
    left_out = "--quick" if quick else ""
    yield "2 ranks that all-reduce, by torchrun", by_torchrun, "s", None, left_out
    yield "2 ranks that all-reduce, by the warm server's first", at_first, "s", None, "the server starts"
    compared = "" if ratio is None else f"torchrun takes {ratio:.1f} times as long"
    yield "2 ranks that all-reduce, by the warm server", warm_later, "s", None, compared
    most = max((mb for _, mb in cold), default=None)
    yield "memory of a rank, by torchrun", most, "MB", None, left_out or "its own, without what it shares"
    most = max(mb for _, mb in later)
    yield "memory of a rank, by the warm server", most, "MB", None, f"the server itself: {server:.0f} MB"
