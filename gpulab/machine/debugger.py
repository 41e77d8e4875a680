"""Detects JupyterLab's debugger (debugpy), and starts processes without it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

IN_IT = (
    "A debugger is attached. In JupyterLab, processes that a cell starts then hang, such as a DataLoader's "
    "workers or a script: if a cell does not end, switch the debugger off and restart the kernel."
)


def is_attached() -> bool:
    """Return True if debugpy is attached to this process; PyCharm's debugger, of the same modules, does not count."""
    asked: Any = getattr(sys.modules.get("pydevd"), "_is_attached", bool)
    return bool(asked())


def kept_out() -> AbstractContextManager[None]:
    """Return a context in which processes are started without the debugger.

    Debugpy makes each Python that is started wait for a session of its own, which JupyterLab never opens.
    """
    patching = sys.modules.get("_pydev_bundle.pydev_monkey")
    block: AbstractContextManager[None] = getattr(patching, "skip_subprocess_arg_patch", nullcontext)()
    return block
