"""Remedies applied to a script from outside: each changes PyTorch as one line in the script would.

The patches stay until `undo` is closed.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils.data import BatchSampler, DataLoader

Undo = contextlib.ExitStack
Around = Callable[[nn.Module], contextlib.AbstractContextManager[None]]
_SWITCHES = ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "set_grad_checkpointing")


def apply(name: str, undo: Undo) -> None:
    """Apply the remedy `name`, a key of REMEDIES."""
    REMEDIES[name](undo)


def put(undo: Undo, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def around_outermost(undo: Undo, around: Around) -> None:
    """Enter `around(module)` for each call of a module that no other module makes."""
    own: Any = nn.Module.__call__
    inside = False

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return own(self, *args, **kwargs)
        inside = True
        try:
            with around(self):
                return own(self, *args, **kwargs)
        finally:
            inside = False

    put(undo, nn.Module, "__call__", __call__)


def at_construction(undo: Undo, change: Callable[[Optimizer, dict[str, Any]], None]) -> None:
    """Call `change(optimizer, defaults)` while an optimizer is made, before it has its parameters."""
    own: Any = Optimizer.__init__

    def __init__(self: Optimizer, params: Any, defaults: dict[str, Any]) -> None:
        change(self, defaults)
        own(self, params, defaults)

    put(undo, Optimizer, "__init__", __init__)


# -- remedies --------------------------------------------------------------------------------------------------------


def _fused(undo: Undo) -> None:
    def change(optimizer: Any, defaults: dict[str, Any]) -> None:
        if "fused" in defaults and not defaults.get("differentiable"):
            defaults.update(fused=True, foreach=False)
            optimizer._step_supports_amp_scaling = True  # as the optimizers' own constructors do

    at_construction(undo, change)


def _no_foreach(undo: Undo) -> None:
    def change(optimizer: Any, defaults: dict[str, Any]) -> None:
        if "foreach" in defaults and not defaults.get("fused"):
            defaults["foreach"] = False

    at_construction(undo, change)


def _tf32(undo: Undo) -> None:
    undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")


def _autocast(undo: Undo, dtype: torch.dtype) -> None:
    """Autocast from the first call of a module to backward; without gradients around the call alone."""
    entered: list[torch.autocast] = []

    def leave(*_: Any) -> None:
        while entered:
            entered.pop().__exit__(None, None, None)

    @contextlib.contextmanager
    def around(module: nn.Module) -> Iterator[None]:
        if torch.is_grad_enabled():
            if not entered:
                entered.append(torch.autocast("cuda", dtype))
                entered[0].__enter__()
            yield
        else:
            with torch.autocast("cuda", dtype):
                yield

    own: Any = torch.autograd.backward

    @functools.wraps(own)
    def backward(*args: Any, **kwargs: Any) -> Any:
        leave()
        return own(*args, **kwargs)

    around_outermost(undo, around)
    put(undo, torch.autograd, "backward", backward)
    undo.callback(register_optimizer_step_pre_hook(leave).remove)
    undo.callback(leave)


def _half_batch(undo: Undo) -> None:
    """Let every DataLoader halve its batches, and every optimizer step, and clear gradients, every second time."""
    own_init: Any = DataLoader.__init__
    halved: weakref.WeakSet[BatchSampler] = weakref.WeakSet()
    waiting: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # have the gradients of a first half
    stepping = False

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        own_init(self, *args, **kwargs)
        sampler = batch_sampler_of(self.batch_sampler)
        if sampler is not None and sampler not in halved and sampler.batch_size > 1:
            sampler.batch_size //= 2
            halved.add(sampler)

    def second(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            nonlocal stepping
            if self in waiting or stepping:  # one within another, as ZeroRedundancyOptimizer's, steps with it
                waiting.discard(self)
                outer, stepping = stepping, True
                try:
                    return own(self, *args, **kwargs)
                finally:
                    stepping = outer
            waiting.add(self)
            closure = args[0] if args else kwargs.get("closure")
            with torch.enable_grad():
                return None if closure is None else closure()

        return step

    own_made: Any = Optimizer.__init__
    classes: set[type[Optimizer]] = set()

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        own_made(self, *args, **kwargs)
        made_class: Any = type(self)
        if made_class not in classes:
            classes.add(made_class)
            put(undo, made_class, "step", second(made_class.step))

    own_clear: Any = Optimizer.zero_grad
    own_clear_all: Any = nn.Module.zero_grad

    def clear(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        if self not in waiting:
            own_clear(self, *args, **kwargs)

    def clear_all(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not waiting:
            own_clear_all(self, *args, **kwargs)

    put(undo, DataLoader, "__init__", __init__)
    put(undo, Optimizer, "__init__", made)
    put(undo, Optimizer, "zero_grad", clear)
    put(undo, nn.Module, "zero_grad", clear_all)


def batch_sampler_of(sampler: Any) -> BatchSampler | None:
    """Return what makes the batches' indices, below accelerate's wrappers; None for a kind that cannot be halved."""
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    sized = isinstance(sampler, BatchSampler) and isinstance(getattr(sampler, "batch_size", None), int)
    return sampler if sized else None


def _checkpointing(undo: Undo) -> None:
    known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    @contextlib.contextmanager
    def around(module: nn.Module) -> Iterator[None]:
        if torch.is_grad_enabled() and module not in known:
            known.add(module)
            switched = find_switch(module)
            if switched is not None:
                model, name = switched
                how = {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if name == _SWITCHES[0] else {}
                getattr(model, name)(**how)
            else:
                for block in equal_blocks(module):
                    block.forward = _checkpointed(block)
        yield

    around_outermost(undo, around)


def _checkpointed(block: nn.Module) -> Callable[..., Any]:
    this: Any = weakref.ref(block)  # in its own attribute, more would keep it alive
    own = vars(block).get("forward")

    def call(*args: Any, **kwargs: Any) -> Any:
        forward = own or functools.partial(type(this()).forward, this())
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return call


def find_switch(module: nn.Module) -> tuple[nn.Module, str] | None:
    """Return the first model within `module` that has a method for checkpointing, and the method's name."""
    for model in module.modules():
        for name in _SWITCHES:
            if hasattr(model, name) and getattr(model, "supports_gradient_checkpointing", True):
                return model, name
    return None


def equal_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks to checkpoint: of the layers that stand in a list with others of their class, and have layers
    of their own, those of the class with most parameters. One within another is left out.
    """
    found: dict[type[nn.Module], dict[nn.Module, None]] = defaultdict(dict)
    for each in module.modules():
        if isinstance(each, (nn.Sequential, nn.ModuleList)):
            counts = Counter(type(child) for child in each)
            found_here = [child for child in each if counts[type(child)] > 1 and any(True for _ in child.children())]
            for child in found_here:
                found[type(child)][child] = None
    if not found:
        return []
    blocks = max(found.values(), key=lambda group: sum(p.numel() for block in group for p in block.parameters()))
    within = {inner for block in blocks for inner in block.modules() if inner is not block}
    return [block for block in blocks if block not in within]


REMEDIES: dict[str, Callable[[Undo], None]] = {
    "none": lambda undo: None,
    "foreach": _no_foreach,
    "fused": _fused,
    "tf32": _tf32,
    "autocast-fp16": lambda undo: _autocast(undo, torch.float16),
    "autocast-bf16": lambda undo: _autocast(undo, torch.bfloat16),
    "micro-batch": _half_batch,
    "checkpointing": _checkpointing,
}
