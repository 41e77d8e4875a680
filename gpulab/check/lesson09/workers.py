"""A DataLoader's workers, played in this process: PyTorch's own seeds and fetcher, and memory that is a copy.

A worker has its own global generators, and copies of what a forked process would have copies of, as far as a random
augmentation and a worker_init_fn reach: the dataset's attributes, and what the function refers to. It leaves out when
batches are ready: they come in the order of their numbers, as a loader gives them.
"""

from __future__ import annotations

import copy
import functools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as of_torch
from torch.utils.data._utils import worker as in_worker

from .. import settings

_COPIED = (int, float, list, dict, set, random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class Workers:
    """Those of one loader; `epoch()` gives the batches of the next epoch, in their order."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._iterator: Any = None
        self._alive: list[_Worker] = []

    def epoch(self) -> list[Any]:
        loader = self._loader
        if self._alive and loader.persistent_workers:
            of_torch._BaseDataLoaderIter._reset(self._iterator, loader)
        else:
            self._iterator = of_torch._BaseDataLoaderIter(loader)
            seed = self._iterator._base_seed
            self._alive = [_Worker(loader, seed, number) for number in range(loader.num_workers)]
        indices = list(self._iterator._sampler_iter)
        batches: list[Any] = [None] * len(indices)
        for number, worker in enumerate(self._alive):
            with worker.at_work():
                for i in range(number, len(indices), len(self._alive)):
                    batches[i] = worker.fetcher.fetch(indices[i])
        return batches


class _Worker:
    """One of them: its generators and its memory while it is not at work."""

    def __init__(self, loader: DataLoader[Any], base_seed: int, number: int) -> None:
        self._states = settings.random_states()
        self._places = [*_places(loader)]
        memo = {id(data): data for data in _chain(loader)}  # they stay who they are, with attributes of their own
        self._memory = [copy.deepcopy(read(), memo) for read, _ in self._places]
        seed = base_seed + number
        self._info = in_worker.WorkerInfo(id=number, num_workers=loader.num_workers, seed=seed, dataset=loader.dataset)
        with self.at_work():
            random.seed(seed)
            torch.default_generator.manual_seed(seed)
            np.random.seed(in_worker._generate_state(base_seed, number))
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
            self.fetcher = of_torch._DatasetKind.create_fetcher(
                loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
            )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        states, memory = settings.random_states(), [read() for read, _ in self._places]
        self._enter(self._states, self._memory)
        in_worker._worker_info = self._info
        try:
            yield
        finally:
            in_worker._worker_info = None
            self._states, self._memory = settings.random_states(), [read() for read, _ in self._places]
            self._enter(states, memory)

    def _enter(self, states: dict[str, Any], memory: list[Any]) -> None:
        settings.put_back_random(states)
        for (_, write), value in zip(self._places, memory, strict=True):
            write(value)


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch warns of more workers than this machine has cores; here none is started."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


@contextmanager
def none_started() -> Iterator[None]:
    """A loader that the answer itself goes over has no workers: hundreds would start, over all scenes and ranks."""
    loaders: Any = DataLoader
    own = loaders._get_iterator

    def alone(loader: Any) -> Any:
        given = loader.num_workers, loader.pin_memory, loader.timeout
        loader.num_workers, loader.pin_memory, loader.timeout = 0, False, 0
        try:
            return own(loader)
        finally:
            loader.num_workers, loader.pin_memory, loader.timeout = given

    loaders._get_iterator = alone
    try:
        yield
    finally:
        loaders._get_iterator = own


Place = tuple[Callable[[], Any], Callable[[Any], None]]  # to read and to write what is there


def _places(loader: DataLoader[Any]) -> Iterator[Place]:
    """Where that lies which a process has a copy of."""
    for data in _chain(loader):
        yield functools.partial(_entries, vars(data)), functools.partial(_replace, vars(data))
    function: Any = loader.worker_init_fn
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell.cell_contents, _COPIED):
            yield functools.partial(getattr, cell, "cell_contents"), functools.partial(setattr, cell, "cell_contents")
    names, known = getattr(getattr(function, "__code__", None), "co_names", ()), getattr(function, "__globals__", {})
    for name in names:
        if isinstance(known.get(name), _COPIED):
            yield functools.partial(known.get, name), functools.partial(known.__setitem__, name)


def _chain(loader: DataLoader[Any]) -> Iterator[Any]:
    """The dataset, and what it is a Subset or a wrapper of."""
    data: Any = loader.dataset
    while hasattr(data, "__dict__"):
        yield data
        data = getattr(data, "dataset", None)


def _entries(names: dict[str, Any]) -> dict[str, Any]:
    return dict(names)


def _replace(names: dict[str, Any], values: dict[str, Any]) -> None:
    names.clear()
    names.update(values)
