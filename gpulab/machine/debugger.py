"""JupyterLab's debugger, which is debugpy, and the processes that are started while it is on."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

IN_IT = (
    "A debugger is attached. In JupyterLab processes that a cell starts then wait for ever, such as a DataLoader's "
    "workers or a script: where a cell does not end, switch the debugger off and restart the kernel."
)


def is_attached() -> bool:
    """Whether debugpy is attached to this process; PyCharm's debugger, of the same modules, waits for no session."""
    asked: Any = getattr(sys.modules.get("pydevd"), "_is_attached", bool)
    return bool(asked())


def kept_out() -> AbstractContextManager[None]:
    """A block in which a process that is started is not debugged.

    Debugpy has each Python that is started wait for a session of its own, which JupyterLab never opens.
    """
    patching = sys.modules.get("_pydev_bundle.pydev_monkey")
    block: AbstractContextManager[None] = getattr(patching, "skip_subprocess_arg_patch", nullcontext)()
    return block
