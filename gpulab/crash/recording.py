"""Records the changes that Python makes under a folder, by wrapping `open` and functions of `os`.

Each wrapper does its work and then adds to the journal. A file opened for writing gets a raw file whose writes go
through `os.write`, so that buffering works as usual. Changes by C code or another process are detected at the end, when
the folder is compared with the journal.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from .journal import Journal
from .os_wrappers import TorchWriter, functions, open_file
from .recorder import Recorder

_KEEPS_OPEN = "IPython.core.interactiveshell"  # it has an open() of its own for cells, which calls io's


@contextmanager
def record(
    folder: str | os.PathLike[str],
    *,
    own_disk: bool = False,
    fsync: bool = True,
    unreadable: Collection[str] = (),
    names: Sequence[MutableMapping[str, Any]] = (),
) -> Iterator[Journal]:
    """Record the changes under the existing `folder` by all threads of this process until the end of the `with`.

    Recorded are open() and writes to its files, the functions of os, and all that uses them: pathlib, shutil, tempfile,
    pickle, json; also torch.save of a path, as at most 16 writes at its end. With `own_disk` a file can't be renamed
    into the folder or out of it, as on a separate mount: OSError (EXDEV). With `fsync=False` an fsync is recorded but
    not done, which saves time. Files whose paths are in `unreadable` can't be opened, as after the restart of a file
    server: OSError (ESTALE). Functions imported by name (`from os import replace`) are replaced in the notebook and in
    `names`, the globals of other code. Recordings may be nested, of one folder or of two.

    Raises NotADirectoryError, and at the end NotSeen if the folder is not as the journal says.
    """
    root = os.path.realpath(folder)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"folder must be one that exists, not {os.fspath(folder)!r}")
    recorder = Recorder(root, own_disk, fsync, unreadable)
    of_notebook = [vars(sys.modules[name]) for name in ("__main__", _KEEPS_OPEN) if name in sys.modules]
    undo = _install(recorder, [*of_notebook, *names])
    try:
        yield recorder.journal
        seen_all = True
    except BaseException:
        seen_all = False
        raise
    finally:
        for namespace, name, value in reversed(undo):
            _put(namespace, name, value)
        with recorder.lock:
            recorder.gone()
            recorder.done = True
    if seen_all:
        recorder.compare()


Namespace = Any  # a module, or the globals of one


def _put(namespace: Namespace, name: str, value: Any) -> None:
    if isinstance(namespace, MutableMapping):
        namespace[name] = value
    else:
        setattr(namespace, name, value)


def _install(recorder: Recorder, namespaces: Sequence[MutableMapping[str, Any]]) -> list[tuple[Namespace, str, Any]]:
    """Replace functions in their modules and in these globals; return what to restore."""
    new: dict[str, Callable[..., Any]] = {
        name: functools.wraps(recorder.os[name])(function)
        for name, function in functions(recorder).items()
        if name in recorder.os
    }
    undo: list[tuple[Namespace, str, Any]] = [(os, name, recorder.os[name]) for name in new]
    for name, function in new.items():
        setattr(os, name, function)
    file_open = functools.wraps(io.open)(functools.partial(open_file, recorder))
    undo += [(io, "open", io.open), (builtins, "open", builtins.open)]
    replaced = {id(recorder.os[name]): function for name, function in new.items()}
    replaced |= {id(io.open): file_open, id(builtins.open): file_open}
    io.open = builtins.open = file_open
    if hasattr(shutil, "_HAS_FCOPYFILE"):  # macOS copies within the system, unseen
        undo.append((shutil, "_HAS_FCOPYFILE", shutil._HAS_FCOPYFILE))
        shutil._HAS_FCOPYFILE = False
    for names in namespaces:
        for name, value in [(name, value) for name, value in names.items() if id(value) in replaced]:
            undo.append((names, name, value))
            names[name] = replaced[id(value)]
    torch: Any = sys.modules.get("torch.serialization")
    if torch is not None and hasattr(torch, "_open_zipfile_writer_file"):
        undo.append((torch, "_open_zipfile_writer_file", torch._open_zipfile_writer_file))
        torch._open_zipfile_writer_file = functools.partial(TorchWriter, recorder, torch._open_zipfile_writer_file)
    return undo
