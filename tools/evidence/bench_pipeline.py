"""The `pipeline` simulator beside a real DataLoader: figures for `bench.py`.

A data set that sleeps for a known time, PyTorch's own worker processes, and a copy and a GPU that sleep too. What is
compared is the time of a step far from the ends of an epoch; nothing was fitted to it.
"""

from __future__ import annotations

import gc
import queue
import threading
from dataclasses import replace
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from .bench_virtual import Figures

if TYPE_CHECKING:
    from gpulab.sim.pipeline.model import Work

MIB = 2**20


def figures(*, quick: bool) -> Figures:
    """How far the model's step is from the measured one, in %.

    Pageable memory, so that the loop waits for the GPU, then for the copy, then launches: the model has to get the
    order of all three right.
    """
    from gpulab.sim.base.words import count
    from gpulab.sim.pipeline.model import PERIOD, Work, steady

    plain = Work(0.040, 0.0, 0, 2, False, 48 * MIB, False, False, False, 0.024, "T4")
    cases = [replace(plain, workers=workers) for workers in ((0, 2) if quick else (0, 1, 2))]
    if not quick:
        cases += [replace(plain, workers=2, load=0.064, prefetch=prefetch, spread=0.9) for prefetch in (1, 4)]
        cases.append(replace(plain, workers=2, load=0.100))
    for work in cases:
        steps = PERIOD if quick else 2 * PERIOD
        measured, predicted = measure(work, warm_up=PERIOD, steps=steps), steady(work).step
        shape = count(work.workers, "worker") + (f", prefetch {work.prefetch}, loading ±90%" if work.spread else "")
        note = (
            f"measured {measured * 1e3:.1f} ms, virtual {predicted * 1e3:.1f} ms;"
            f" load {work.load * 1e3:.0f}, copy {work.copy * 1e3:.1f}, compute {work.compute * 1e3:.0f} ms"
        )
        name = f"pipeline beside a real DataLoader, {shape}, load {work.load * 1e3:.0f} ms"
        yield name, 100 * abs(predicted / measured - 1), "%", 10.0, note


def measure(work: Work, *, warm_up: int, steps: int) -> float:
    """Seconds of a step of the real loop: the mean between two batches computed, after `warm_up` of them.

    `work` is in pageable memory without a side stream, or a ValueError says so.
    """
    from torch.utils.data import DataLoader, Dataset

    from gpulab.sim.pipeline.model import AHEAD

    if work.pinned or work.side:
        raise ValueError("work is pinned or has a side stream; the stand-in for the GPU has neither")
    compute = work.compute

    class Sleeping(Dataset[int]):
        def __len__(self) -> int:
            return warm_up + steps + 1

        def __getitem__(self, index: int) -> int:
            sleep(work.loading(index))
            return index

    launched: queue.Queue[int | None] = queue.Queue(maxsize=AHEAD)
    computed: list[float] = []

    def gpu() -> None:
        while launched.get() is not None:
            sleep(compute)
            computed.append(perf_counter())
            launched.task_done()

    context = {"prefetch_factor": work.prefetch, "multiprocessing_context": "fork"} if work.workers else {}
    loader: DataLoader[int] = DataLoader(Sleeping(), batch_size=None, num_workers=work.workers, **context)  # type: ignore[arg-type]
    thread = threading.Thread(target=gpu, daemon=True)
    thread.start()
    try:
        for index in loader:
            launched.join()  # a pageable copy waits for the stream's work
            sleep(work.copy)
            launched.put(index)
        launched.join()
    finally:
        launched.put(None)
        thread.join()
        del loader
        gc.collect()  # ends the workers
    return (computed[warm_up + steps] - computed[warm_up]) / steps
