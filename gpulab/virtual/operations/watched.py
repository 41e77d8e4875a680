"""Which threads a virtual GPU watches: every one that is started while it is in force, and the one that starts it.

A watched thread stays so until it ends; without a GPU in force its operations pass through unchanged.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ..scope import in_force
from . import above_autograd
from .dispatch import MODE


def enter() -> None:
    """Watch the operations of this thread too; it stays watched, by whichever GPU is in force, until it is left."""
    if not in_force.thread.watched:
        in_force.thread.watched = True
        _push_mode(MODE)
        above_autograd.include(True)


def leave() -> None:
    """Watch this thread no longer."""
    if in_force.thread.watched:
        in_force.thread.watched = False
        _remove_mode(MODE)
        above_autograd.include(False)


def _remove_mode(mode: TorchDispatchMode) -> None:
    """Take a mode off this thread's stack, wherever it stands."""
    above = []
    while torch._C._len_torch_dispatch_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
