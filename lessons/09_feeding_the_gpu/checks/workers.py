"""Simulates a DataLoader's workers in this process: PyTorch's own seeds and fetcher, and copied memory.

A worker has its own global generators, and copies of what a forked process would have copies of, as far as a random
augmentation and a worker_init_fn reach: the dataset's attributes, and what functions refer to. It leaves out the
attributes of classes, and when batches are ready: they come in the order of their numbers, as a loader gives them.
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as of_torch
from torch.utils.data._utils import worker as in_worker

from gpulab.exercise import settings

# What is theirs counts nothing for a student.
_LIBRARIES = {"torch", "numpy", "gpulab", "virtualgpu", *sys.stdlib_module_names}


class Workers:
    """Those of one loader; `epoch()` gives the batches of the next epoch, in their order."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def epoch(self) -> list[Any]:
        with _iterators(_Played):
            return list(self._loader)

    def after_each_init(self, look: Callable[[], Any]) -> tuple[Any, Any]:
        """What `look()` sees in one worker, whose seed and memory stay, when its worker_init_fn has run once and when
        it has run twice."""
        with _Worker(self._loader, 0, 0).at_work():
            once = look()
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(0)
            return once, look()


class _Played(of_torch._BaseDataLoaderIter):
    """The iterator of a loader, with workers that are played."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        seed = int(self._base_seed)
        self._alive = [_Worker(loader, seed, number) for number in range(loader.num_workers)]
        self._batches: Iterator[Any] | None = None

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._batches = None

    def _next_data(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._epoch())
        return next(self._batches)

    def _epoch(self) -> list[Any]:
        indices = list(self._sampler_iter)
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
        found = _Found(loader)
        self._places = found.places
        memo = {id(holder): holder for holder in found.holders}  # they stay who they are, with contents of their own
        self._memory = [_copied(place, memo) for place in self._places]
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
        settings.restore_random(states)
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
    own: Any = DataLoader._get_iterator

    def alone(loader: Any) -> Any:
        given = loader.num_workers, loader.pin_memory, loader.timeout
        loader.num_workers, loader.pin_memory, loader.timeout = 0, False, 0
        try:
            return own(loader)
        finally:
            loader.num_workers, loader.pin_memory, loader.timeout = given

    with _iterators(alone):
        yield


@contextmanager
def _iterators(make: Callable[[Any], Any]) -> Iterator[None]:
    """Loaders have the iterators that `make` gives of them."""
    loaders: Any = DataLoader
    own = loaders._get_iterator
    loaders._get_iterator = lambda loader: make(loader)
    try:
        yield
    finally:
        loaders._get_iterator = own


Place = tuple[Callable[[], Any], Callable[[Any], None]]  # to read and to write what is there


def _copied(place: Place, memo: dict[int, Any]) -> Any:
    """A copy of what is there, for a worker. An iterator that cannot be copied becomes two; all else that cannot is one
    object for all."""
    read, write = place
    value = read()
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # as each object has its own
        if not isinstance(value, Iterator):
            return value
        kept, given = itertools.tee(value)
        write(kept)
        return given


class _Found:
    """What a process has a copy of, as far as a loader's functions and dataset reach: `places`, each of a holder that
    stays one object for all."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.places: list[Place] = []
        self.holders: list[Any] = []
        for data in _chain(loader):
            self._hold_names(data)
        for data in _chain(loader):
            self._visit_methods(type(data))
        self._visit(loader.worker_init_fn)
        self._visit(loader.collate_fn)

    def _visit(self, value: Any) -> None:
        if any(value is holder for holder in self.holders):
            return
        if isinstance(value, types.MethodType):
            self._visit(value.__func__)
            self._visit(value.__self__)
        elif isinstance(value, functools.partial):
            self.holders.append(value)
            state: Any = value  # its types are not known to be pickled in place
            self.places.append((lambda: state.__reduce__()[2], state.__setstate__))
            for held in (value.func, *value.args, *value.keywords.values()):
                self._visit(held)
        elif isinstance(value, types.FunctionType) and _is_own(value.__module__):
            self._visit_function(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type) and _is_own(type(value).__module__):
            self._hold_names(value)
            self._visit_methods(type(value))

    def _visit_function(self, function: types.FunctionType) -> None:
        self._hold_names(function)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self._hold(functools.partial(getattr, function, name), functools.partial(setattr, function, name))
        for cell in function.__closure__ or ():
            if cell not in self.holders and _is_filled(cell):
                self.holders.append(cell)
                self._hold(
                    functools.partial(getattr, cell, "cell_contents"), functools.partial(setattr, cell, "cell_contents")
                )
        known = function.__globals__
        for name in _globals(function.__code__):
            if name in known and not isinstance(known[name], types.ModuleType | type):
                self._hold(functools.partial(known.get, name), functools.partial(known.__setitem__, name))

    def _visit_methods(self, kind: type) -> None:
        for each in kind.__mro__:
            for value in vars(each).values() if _is_own(each.__module__) else ():
                if isinstance(value, types.FunctionType):
                    self._visit(value)

    def _hold_names(self, holder: Any) -> None:
        self.holders.append(holder)
        if vars(holder):
            names = vars(holder)
            self.places.append((functools.partial(dict, names), functools.partial(_replace, names)))
            for value in names.values():
                self._visit(value)

    def _hold(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.places.append((read, write))
        self._visit(read())


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _LIBRARIES


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True


@functools.cache
def _globals(code: types.CodeType) -> frozenset[str]:
    """The global names of a function, and of those within it."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    return frozenset(own).union(*map(_globals, inner))


def _chain(loader: DataLoader[Any]) -> Iterator[Any]:
    """The dataset, and what it is a Subset or a wrapper of."""
    data: Any = loader.dataset
    while hasattr(data, "__dict__"):
        yield data
        data = getattr(data, "dataset", None)


def _replace(names: dict[str, Any], values: dict[str, Any]) -> None:
    names.clear()
    names.update(values)
