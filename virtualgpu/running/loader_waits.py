"""Measure how long a run waits for data: the time in `next()` of PyTorch's DataLoader.

The data set's code runs on this machine, so its time is real. Workers load while the main process computes values,
which takes much longer here than on a real GPU: so workers are timed, and the main process waits on the virtual clock
as long as it would for workers of that speed, each with a core of its own. The loader itself is unchanged.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import _utils, dataloader, get_worker_info

from ..clock.clock import Clock
from ..clock.processor import seconds_without_core


class LoaderWaits:
    """Counts, until `end`, the `seconds` of the main thread in `next()` of all loaders, and their `batches`. A loader
    within a data set does not count again.

    `clock` gives the virtual clock where it counts the host's own time; `seconds` are its seconds then, and this
    machine's where it gives None. `passing(begins)` is called before and after each batch.
    """

    def __init__(self, clock: Callable[[], Clock | None] = lambda: None) -> None:
        self.seconds, self.batches = 0.0, 0
        self.samples = self.tokens = 0  # in the batches whose form tells
        self.workers = 0  # of the loader that gave the last batch
        self.passing: Callable[[bool], None] = lambda begins: None
        self._clock = clock
        self._inside = False
        self._workers: weakref.WeakKeyDictionary[Any, _Workers] = weakref.WeakKeyDictionary()
        self._undo = contextlib.ExitStack()
        iterators: Any = dataloader._BaseDataLoaderIter  # all loaders' iterators are of it
        with_workers: Any = dataloader._MultiProcessingDataLoaderIter
        own_next, own_init = iterators.__next__, with_workers.__init__
        waits = self

        def __next__(self: Any) -> Any:
            if waits._inside or threading.current_thread() is not threading.main_thread():
                return own_next(self)
            return waits._next(self, own_next)

        def __init__(self: Any, loader: Any) -> None:
            times = torch.zeros(loader.num_workers, 2, dtype=torch.float64).share_memory_()
            own = loader.worker_init_fn
            loader.worker_init_fn = _Timing(times, own)
            try:
                own_init(self, loader)
            finally:
                loader.worker_init_fn = own
            waits._workers[self] = _Workers(times, loader.prefetch_factor)

        self._put(iterators, "__next__", __next__)
        self._put(with_workers, "__init__", __init__)

    def end(self) -> None:
        """Stop counting."""
        self._undo.close()

    def _put(self, owner: Any, name: str, function: Any) -> None:
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)

    def _next(self, iterator: Any, own: Callable[[Any], Any]) -> Any:
        clock, workers = self._clock(), self._workers.get(iterator)
        now = time.monotonic if clock is None else clock.perf_counter  # scopes do not replace time.monotonic
        self.passing(True)
        self._inside = True
        began = now()
        try:
            if clock is None or workers is None or workers.last is None:
                batch = own(iterator)
            else:
                with clock.stopped():
                    batch = own(iterator)
                    wait = workers.wait(began)
                clock.spend(wait)
            self.batches += 1
            self.workers = iterator._num_workers
            self.samples += samples_of(batch)
            self.tokens += _tokens(batch)
            return batch
        finally:
            ended = now()
            if workers is not None:
                workers.last = None if clock is None else ended  # the next batch may be timed by another clock
            self.seconds += ended - began
            self._inside = False
            self.passing(False)


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch, the first tensor's first dimension; 0 where there is none."""
    return next((len(tensor) for tensor in _tensors(batch)), 0)


def _tokens(batch: Any) -> int:
    """Return the tokens in a batch: whole numbers in two dimensions, called input_ids or first."""
    named = batch.get("input_ids", batch) if isinstance(batch, Mapping) else batch
    first = next(_tensors(named), None)
    return 0 if first is None or first.dim() != 2 or first.is_floating_point() else first.numel()


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor) and batch.dim():
        yield batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    for part in parts:
        yield from _tensors(part)


class _Workers:
    """Model of the batches that workers of the measured speed have ready on the virtual clock, up to their prefetch.

    `last` is the time of the loop's last batch. The first batch is waited for in real time: the workers are starting.
    """

    def __init__(self, times: torch.Tensor, prefetch: int) -> None:
        self._times = times
        self._most = len(times) * prefetch
        self._ready = 0.0
        self.last: float | None = None

    def wait(self, now: float) -> float:
        """Return the seconds until the next batch is ready, which the loop requests at `now`."""
        assert self.last is not None
        seconds, batches = map(float, self._times.sum(dim=0).tolist())
        each = seconds / max(batches, 1) / len(self._times)  # from one batch to the next, all workers at work
        passed = max(0.0, now - self.last)
        ready = min(self._ready + passed / each, self._most) if each else self._most
        self._ready = max(ready - 1, 0.0)
        return max(1 - ready, 0.0) * each


class _Timing:
    """The `worker_init_fn` of a timed loader: runs in each worker, and adds up its loading time."""

    def __init__(self, times: torch.Tensor, own: Callable[[int], Any] | None) -> None:
        self.times, self.own = times, own

    def __call__(self, worker: int) -> None:
        for fetcher in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
            fetcher.fetch = _timed(fetcher.fetch, self.times)  # type: ignore[method-assign]
        if self.own is not None:
            self.own(worker)


def _timed(own: Callable[[Any, Any], Any], times: torch.Tensor) -> Callable[[Any, Any], Any]:
    inside = False

    def fetch(self: Any, index: Any) -> Any:
        nonlocal inside
        info = get_worker_info()
        if inside or info is None:  # a loader within the data set
            return own(self, index)
        inside, began, before = True, time.monotonic(), seconds_without_core()
        try:
            batch = own(self, index)
        finally:
            inside = False
        took = time.monotonic() - began - (seconds_without_core() - before)
        times[info.id] += torch.tensor([took, 1.0])
        return batch

    return fetch
