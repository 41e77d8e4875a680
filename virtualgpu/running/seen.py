"""See what a script does that decides which remedies it can take, and run it with one of them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import statistics
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint
from torch.utils.data import dataloader

from . import remedy_patches
from .loader_waits import samples_of
from .remedy_patches import Undo, around_outermost, at_construction, batch_sampler_of, equal_blocks, find_switch, put


def begin(name: str, facts: str) -> None:
    """Apply a remedy for the rest of this process, and write at its end what was seen to the file `facts`."""
    undo, process = contextlib.ExitStack(), os.getpid()
    remedy_patches.apply(name, undo)
    seen = Seen(undo)

    def write() -> None:
        if os.getpid() == process:
            Path(facts).write_text(json.dumps(seen.facts()), encoding="utf-8")

    facts = os.path.abspath(facts)  # the script may change the directory
    atexit.register(write)


class Seen:
    """Watches, until `undo` is closed, what decides whether the script can take a remedy."""

    def __init__(self, undo: Undo) -> None:
        self.optimizers: list[tuple[str, dict[str, Any]]] = []  # classes, and their defaults for fused and foreach
        self.autocast = self.checkpoints = self.inside = False
        self.gradients = False  # whether a module was called with them
        self.blocks: dict[str, None] = {}
        self.batch = self.samples = 0  # the largest batch of a DataLoader in training, and samples until now
        self.sampler = ""  # what makes batches that cannot be halved
        self._marks: list[int] = []  # samples at each step of the first optimizer
        self._first: weakref.ref[Any] | None = None
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        at_construction(undo, self._made)
        around_outermost(undo, self._around)
        undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
        iterators: Any = dataloader._BaseDataLoaderIter
        put(undo, iterators, "__next__", self._counting(iterators.__next__))
        put(undo, checkpoint, "checkpoint", self._noting(checkpoint.checkpoint))
        own_enter: Any = torch.autocast.__enter__

        def __enter__(context: Any) -> Any:
            self.autocast |= bool(context._enabled and context.device == "cuda")
            return own_enter(context)

        put(undo, torch.autocast, "__enter__", __enter__)

    def facts(self) -> dict[str, Any]:
        """Return what was seen, for JSON."""
        steps = [b - a for a, b in zip([0, *self._marks], self._marks, strict=False)]
        samples = statistics.median(steps[1:] or steps) if steps else 0
        names = "optimizers", "autocast", "checkpoints", "gradients", "batch", "sampler"
        return {**{name: getattr(self, name) for name in names}, "blocks": list(self.blocks), "samples": samples}

    def _made(self, optimizer: Any, defaults: dict[str, Any]) -> None:
        self.optimizers.append(
            (type(optimizer).__name__, {name: defaults[name] for name in ("fused", "foreach") if name in defaults})
        )

    @contextlib.contextmanager
    def _around(self, module: nn.Module) -> Iterator[None]:
        if torch.is_grad_enabled() and module not in self._modules:
            self.gradients = True
            self._modules.add(module)
            switch, blocks = find_switch(module), equal_blocks(module)
            if switch is not None:
                self.blocks[f"{type(switch[0]).__name__}.{switch[1]}()"] = None
            elif blocks:
                self.blocks[f"{len(blocks)} x {type(blocks[0]).__name__}"] = None
        yield

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self._marks.append(self.samples)

    def _noting(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.checkpoints = True
            return own(*args, **kwargs)

        return call

    def _counting(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:
            if self.inside:  # a loader within a data set
                return own(iterator)
            self.inside = True
            try:
                batch = own(iterator)
            finally:
                self.inside = False
            number = samples_of(batch)
            self.samples += number
            if torch.is_grad_enabled() and number > self.batch:
                self.batch = number
                known = batch_sampler_of(iterator._index_sampler) is not None
                self.sampler = "" if known else type(iterator._index_sampler).__name__
            return batch

        return __next__
