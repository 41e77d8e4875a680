"""JupyterLab's debugger, which is debugpy, and the processes that are started while it is on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

IN_IT = (
    "A debugger is attached. In JupyterLab processes that a cell starts then wait for ever, such as a DataLoader's "
    "workers or a script: where a cell does not end, switch the debugger off and restart the kernel."
)


def is_attached() -> bool:
    """Whether debugpy is attached to this process."""
    pydevd = sys.modules.get("pydevd")
    return pydevd is not None and bool(pydevd._is_attached())


@contextmanager
def kept_out() -> Iterator[None]:
    """A process that is started within the block is not debugged.

    Debugpy has each Python that is started wait for a session of its own, which JupyterLab never opens.
    """
    patching = sys.modules.get("_pydev_bundle.pydev_monkey")
    if patching is None:
        yield
        return
    with patching.skip_subprocess_arg_patch():
        yield
