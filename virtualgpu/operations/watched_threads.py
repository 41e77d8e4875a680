"""Enable the dispatch mode in each thread that starts while a virtual GPU is in force.

A watched thread stays so until it ends; without a GPU in force its operations pass through unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ..scope import in_force
from . import above_autograd
from .dispatch import MODE


def enter() -> None:
    """Watch the operations of this thread, for any GPU in force, until `leave`."""
    if not in_force.thread.watched:
        in_force.thread.watched = True
        above = _above(None)  # of others' modes, such as a counter's: they see what is on the GPU
        _push_mode(MODE)
        _put_back(above)
        above_autograd.include(True)


def leave() -> None:
    """Stop watching this thread."""
    if in_force.thread.watched:
        in_force.thread.watched = False
        _put_back(_above(MODE))
        above_autograd.include(False)


@contextlib.contextmanager
def no_sanitizer() -> Iterator[None]:
    """For a while, without PyTorch's CUDA Sanitizer on this thread's stack: at each operation, the host's too, it asks
    CUDA for the current stream."""
    all_modes = _above(None)
    sanitizers = [mode for mode in all_modes if type(mode).__module__ == "torch.cuda._sanitizer"]
    _put_back([mode for mode in all_modes if mode not in sanitizers])
    try:
        yield
    finally:
        _put_back(sanitizers)


def _above(mode: TorchDispatchMode | None) -> list[TorchDispatchMode]:
    """Pop the modes above `mode` from this thread's stack, the uppermost first, and `mode` too."""
    above: list[TorchDispatchMode] = []
    while torch._C._len_torch_dispatch_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    return above


def _put_back(above: list[TorchDispatchMode]) -> None:
    for other in reversed(above):
        _push_mode(other)
