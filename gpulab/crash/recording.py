"""Write down what Python changes under a folder, while it does so.

The functions of `os` that change files, and `open`, are replaced: each does its work and then adds to the journal. A
file that is opened for writing is given a raw file whose writes go through `os.write`, so that its buffer works as
ever. What goes another way (C code, another process) is found at the end: the folder is compared with the journal.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .journal import ROOT, Disk, Journal, Named, Resized, Synced, Written

_WINDOWS = os.name == "nt"
_PIECE, _MOST_PIECES = 4096, 16  # of what torch.save writes: bytes in each, or so many of them


class NotSeen(RuntimeError):
    """The folder was changed in a way that the journal did not see, so that its states are not all there are."""


@contextmanager
def record(
    folder: str | os.PathLike[str], *, own_disk: bool = False, names: Sequence[MutableMapping[str, Any]] = ()
) -> Iterator[Journal]:
    """What Python does under `folder`, which is there, until the end of the `with`; from all threads of this process.

    Seen are open() and what is written to its files, the functions of os, and what is made of them: pathlib, shutil,
    tempfile, pickle, json; also torch.save of a path, whose bytes come in at most 16 pieces when it is through. With
    `own_disk` a file can't be renamed into the folder or out of it, as where it is mounted by itself: OSError (EXDEV).
    A function that a notebook has imported by its name (`from os import replace`) is seen, also where it stands in one
    of `names`, the globals of other code. Recordings may be nested, of one folder or of two.

    Errors: NotADirectoryError; NotSeen at the end, where the folder is not what the journal says.
    """
    root = os.path.realpath(folder)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"folder must be one that exists, not {os.fspath(folder)!r}")
    recorder = _Recorder(root, own_disk)
    undo = recorder.install([vars(sys.modules["__main__"]), *names])
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


class _Recorder:
    """One recording: the folder, its journal, and which file on the disk is which node."""

    def __init__(self, root: str, own_disk: bool) -> None:
        self.root, self.own_disk, self.lock, self.done = root, own_disk, threading.RLock(), False
        self.os = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}  # as they were
        self.open = io.open
        self._nodes: dict[tuple[int, int], int] = {}  # by device and number on it
        self._outside: dict[tuple[int, int], tuple[int, int]] = {}  # files elsewhere: size and time when fsynced
        self._count = ROOT
        start = Disk()
        self._nodes[self._key(os.lstat(root))] = ROOT
        self._scan(start, root, ROOT)
        self.journal = Journal(start)

    def _scan(self, disk: Disk, place: str, folder: int) -> None:
        for name in sorted(os.listdir(place)):
            path = os.path.join(place, name)
            entry = os.lstat(path)
            known = self._nodes.get(self._key(entry))
            node = disk.entries[folder, name] = self._new(entry) if known is None else known
            if known is None and stat.S_ISDIR(entry.st_mode):
                self._scan(disk, path, node)
            elif known is None:
                self._read(disk, path, entry, node)

    def _read(self, disk: Disk, path: str, entry: os.stat_result, node: int) -> None:
        if stat.S_ISLNK(entry.st_mode):
            disk.links[node] = os.readlink(path)
        else:
            disk.data[node] = self.content(path)

    @staticmethod
    def _key(entry: os.stat_result) -> tuple[int, int]:
        return entry.st_dev, entry.st_ino

    def _new(self, entry: os.stat_result) -> int:
        self._count += 1
        self._nodes[self._key(entry)] = self._count
        return self._count

    def content(self, path: str) -> bytes:
        with self.open(path, "rb") as file:
            data: bytes = file.read()
        return data

    # Where something is.

    def place(self, path: Any, dir_fd: int | None = None, *, follow: bool = False) -> str | None:
        """The path in the folder, with "/" between its parts; None where it is elsewhere. `follow` the last part too,
        if it is a link."""
        if isinstance(path, int):
            return None
        path = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(path):
            node = self.node(dir_fd)
            above = None if node is None else self.journal.now.path(node)
            if above is None:
                return None
            path = os.path.join(self.root, above, path)
        head, name = os.path.split(os.path.abspath(path))
        whole = os.path.realpath(path) if follow else os.path.join(os.path.realpath(head), name)
        inside = whole == self.root or whole.startswith(os.path.join(self.root, ""))
        return os.path.relpath(whole, self.root).replace(os.sep, "/") if inside else None

    def node(self, fd: int) -> int | None:
        """Of what is open there."""
        with suppress(OSError):
            return self._nodes.get(self._key(self.os["fstat"](fd)))
        return None

    def _entry(self, place: str) -> tuple[int, str]:
        above, _, name = place.rpartition("/")
        node = self.journal.now.node(above or ".")
        return -1 if node is None else node, name  # -1: made by somebody else meanwhile, which is found at the end

    def _real(self, place: str) -> str:
        return os.path.join(self.root, place)

    def refuse_other_disk(self, src: Any, dst: Any, old: str | None, new: str | None) -> None:
        if self.own_disk and (old is None) != (new is None):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fspath(src), None, os.fspath(dst))

    # What was done.

    def gone(self) -> None:
        """Names that have gone unseen, as by a function that a library took out of os long ago: there is no state
        between before and after, so that nothing is missed."""
        for path in self.journal.now.tree():
            if not os.path.lexists(self._real(path)) and self.journal.now.node(path) is not None:
                self.named(f"remove {path}", (path, None))

    def named(self, words: str, *changes: tuple[str, int | None]) -> None:
        now, entries = self.journal.now, tuple((*self._entry(place), node) for place, node in changes)
        before = {now.entries[entry[:2]] for entry in entries if entry[:2] in now.entries}
        self.journal.add(Named(entries, words))
        if _WINDOWS:
            for folder in {folder for folder, _, _ in entries}:
                self.journal.add(Synced(folder, words))
        without = {node for node in before if now.path(node) is None}  # their numbers on the disk go to other files
        self._nodes = {key: node for key, node in self._nodes.items() if node not in without}

    def opened(self, place: str, before: int | None, fd: int, flags: int) -> None:
        """A file that was opened; `before` was its node then."""
        entry = self.os["fstat"](fd)
        node = self._nodes.get(self._key(entry))
        if before is None and not stat.S_ISDIR(entry.st_mode):
            node = self._new(entry)
            self.journal.new_file(node)
            self.named(f"create {place}", (place, node))
        elif flags & os.O_TRUNC and node is not None and self.journal.now.data.get(node):
            self.journal.add(Resized(node, 0, f"empty {place}"))

    def left_open(self, fd: int) -> None:
        """Before a file is fsynced or closed: bytes that C code has written into it, as numpy does, are one write."""
        node = self.node(fd)
        if node is not None and node in self.journal.now.data and (place := self.journal.now.path(node)):
            self.reread(place)

    def wrote(self, fd: int, count: int, data: Any, at: int | None) -> None:
        node = self.node(fd)
        if node is None or not count:
            return
        at = self.os["lseek"](fd, 0, os.SEEK_CUR) - count if at is None else at
        words = f"write {count:,} bytes to {self.journal.now.path(node) or 'a file without a name'}"
        self.journal.add(Written(node, at, bytes(data)[:count], words))

    def reread(self, place: str) -> None:
        """What was put into a file by the system itself."""
        node = self.journal.now.node(place)
        if node is None:
            return
        data, old = self.content(self._real(place)), self.journal.now.data.get(node, b"")
        if len(data) < len(old):
            self.journal.add(Resized(node, len(data), f"cut {place} to {len(data):,} bytes"))
            old = old[: len(data)]
        if data != old:
            same = next(
                (i for i, (a, b) in enumerate(zip(data, old, strict=False)) if a != b), min(len(data), len(old))
            )
            self.journal.add(Written(node, same, data[same:], f"write {len(data) - same:,} bytes to {place}"))

    def resized(self, node: int | None, size: int) -> None:
        if node is not None:
            place = self.journal.now.path(node) or "a file without a name"
            self.journal.add(Resized(node, size, f"cut {place} to {size:,} bytes"))

    def synced(self, fd: int) -> None:
        node = self.node(fd)
        if node is None:
            entry = self.os["fstat"](fd)
            self._outside[self._key(entry)] = entry.st_size, entry.st_mtime_ns  # it may be renamed into the folder
            return
        path = self.journal.now.path(node) or "a file without a name"
        self.journal.add(Synced(node, f"fsync {'the folder' if path == '.' else path}"))

    def adopt(self, place: str) -> int:
        """The node of what came from outside; a whole tree of it."""
        path = self._real(place)
        entry = os.lstat(path)
        node, new = self._new(entry), Disk()
        if stat.S_ISDIR(entry.st_mode):
            self._scan(new, path, node)
        else:
            self._read(new, path, entry, node)
        self.journal.now.links.update(new.links)
        for number, data in new.data.items():
            self.journal.new_file(number)
            self.journal.add(Written(number, 0, data, f"write {len(data):,} bytes elsewhere"))
            if self._outside.get(self._key(entry)) == (entry.st_size, entry.st_mtime_ns):
                self.journal.add(Synced(number, "fsync elsewhere"))
        for (folder, name), number in new.entries.items():
            self.journal.add(Named(((folder, name, number),), f"create {name} elsewhere"))
        return node

    def compare(self) -> None:
        """Raise NotSeen unless the folder is what the journal says."""
        real, told = Disk(), self.journal.now.tree()
        self._nodes = {self._key(os.lstat(self.root)): ROOT}
        self._scan(real, self.root, ROOT)
        found = real.tree()
        for path in sorted(found.keys() | told.keys()):
            if path in found and path in told and found[path] == told[path]:
                continue
            raise NotSeen(
                f"{path} was changed in a way that this recording does not see: on the disk is {_words(found, path)}, "
                f"in the journal {_words(told, path)}. It sees what Python does with open and os in this process; C "
                "code and other processes write past it: give them a file that Python has opened"
            )

    # The functions that stand in the place of others.

    def install(self, namespaces: Sequence[MutableMapping[str, Any]]) -> list[tuple[Namespace, str, Any]]:
        """Put them there; what to put back."""
        new: dict[str, Callable[..., Any]] = {
            name: functools.wraps(self.os[name])(function)
            for name, function in _functions(self).items()
            if name in self.os
        }
        undo: list[tuple[Namespace, str, Any]] = [(os, name, self.os[name]) for name in new]
        for name, function in new.items():
            setattr(os, name, function)
        file_open = functools.wraps(io.open)(functools.partial(_open, self))
        undo += [(io, "open", io.open), (builtins, "open", builtins.open)]
        replaced = {id(self.os[name]): function for name, function in new.items()}
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
            torch._open_zipfile_writer_file = functools.partial(_TorchWriter, self, torch._open_zipfile_writer_file)
        return undo


def _words(tree: Mapping[str, Any], path: str) -> str:
    if path not in tree:
        return "nothing"
    content = tree[path]
    if isinstance(content, bytes):
        return f"a file of {len(content):,} bytes"
    return "a folder" if content is None else f"a link to {content}"


def _functions(recorder: _Recorder) -> dict[str, Callable[..., Any]]:
    """Those of os, by name."""
    real, lock = recorder.os, recorder.lock

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = recorder.place(path, dir_fd, follow=True)
        if place is None or recorder.done:
            return int(real["open"](path, flags, mode, dir_fd=dir_fd))
        with lock:
            recorder.gone()
            before = recorder.journal.now.node(place)
            fd = int(real["open"](path, flags, mode, dir_fd=dir_fd))
            recorder.opened(place, before, fd, flags)
            return fd

    def writes(name: str, taken: Callable[..., tuple[Any, int | None]]) -> Callable[..., int]:
        def write(fd: int, *args: Any) -> int:
            with lock:
                count = int(real[name](fd, *args))
                recorder.wrote(fd, count, *taken(*args))
                return count

        return write

    def puts(name: str) -> Callable[..., Any]:
        """The system writes into the file that is the first argument."""

        def put(fd: int, *args: Any, **options: Any) -> Any:
            with lock:
                value = real[name](fd, *args, **options)
                recorder.left_open(args[0] if name == "copy_file_range" else fd)
                return value

        return put

    def syncs(name: str) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            with lock:
                number = fd if isinstance(fd, int) else fd.fileno()
                recorder.left_open(number)
                real[name](fd)
                recorder.synced(number)

        return sync

    def sync_all() -> None:
        with lock:
            real["sync"]()
            recorder.journal.add(Synced(None, "sync"))

    def truncate(path: Any, length: int) -> None:
        with lock:
            real["truncate"](path, length)
            place = recorder.place(path, follow=True)
            if isinstance(path, int):
                recorder.resized(recorder.node(path), length)
            elif place is not None:
                recorder.resized(recorder.journal.now.node(place), length)

    def ftruncate(fd: int, length: int) -> None:
        with lock:
            real["ftruncate"](fd, length)
            recorder.resized(recorder.node(fd), length)

    def renames(name: str) -> Callable[..., None]:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            with lock:
                recorder.gone()
                old, new = recorder.place(src, src_dir_fd), recorder.place(dst, dst_dir_fd)
                recorder.refuse_other_disk(src, dst, old, new)
                there = None if new is None else recorder.journal.now.node(new)
                node = None if old is None else recorder.journal.now.node(old)
                real[name](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                if new is None:
                    if old is not None:
                        recorder.named(f"move {old} out of the folder", (old, None))
                elif node is None:
                    recorder.named(f"rename a file from elsewhere to {new}", (new, recorder.adopt(new)))
                elif node != there and old is not None:  # two names of one file: nothing is done
                    recorder.named(f"rename {old} to {new}", (new, node), (old, None))

        return rename

    def link(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **more: Any) -> None:
        with lock:
            old, new = recorder.place(src, src_dir_fd, follow=True), recorder.place(dst, dst_dir_fd)
            recorder.refuse_other_disk(src, dst, old, new)
            real["link"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)
            if new is not None:
                node = None if old is None else recorder.journal.now.node(old)
                node = recorder.adopt(new) if node is None else node
                recorder.named(f"link {old or 'a file from elsewhere'} as {new}", (new, node))

    def makes(name: str) -> Callable[..., None]:
        """A folder, or a symbolic link."""

        def make(*args: Any, dir_fd: int | None = None, **options: Any) -> None:
            with lock:
                real[name](*args, dir_fd=dir_fd, **options)
                place = recorder.place(args[name == "symlink"], dir_fd)
                if place is not None:
                    recorder.named(f"create {place}", (place, recorder.adopt(place)))

        return make

    def removes(name: str) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            with lock:
                place = recorder.place(path, dir_fd)
                real[name](path, dir_fd=dir_fd)
                if place is not None:
                    recorder.named(f"remove {place}", (place, None))

        return remove

    return {
        "open": os_open,
        "write": writes("write", lambda data: (memoryview(data).cast("B"), None)),
        "pwrite": writes("pwrite", lambda data, offset: (memoryview(data).cast("B"), offset)),
        "writev": writes("writev", lambda buffers: (b"".join(buffers), None)),
        "pwritev": writes("pwritev", lambda buffers, offset, flags=0: (b"".join(buffers), offset)),
        **{name: puts(name) for name in ("sendfile", "copy_file_range", "posix_fallocate", "splice")},
        **{name: syncs(name) for name in ("fsync", "fdatasync")},
        "sync": sync_all,
        "truncate": truncate,
        "ftruncate": ftruncate,
        **{name: renames(name) for name in ("rename", "replace")},
        "link": link,
        **{name: makes(name) for name in ("mkdir", "symlink")},
        **{name: removes(name) for name in ("remove", "unlink", "rmdir")},
    }


class _Raw(io.RawIOBase):
    """A file whose every write is one call of os.write. `flags` are those it was opened with."""

    def __init__(self, name: Any, fd: int, mode: str, closes: bool, recorder: _Recorder) -> None:
        self.name, self.mode, self._fd, self._closes, self._recorder = name, mode, fd, closes, recorder
        self._reads, self._writes = "r" in mode or "+" in mode, mode != "rb"

    def fileno(self) -> int:
        self._checkClosed()
        return self._fd

    def _checkClosed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        data = os.read(self.fileno(), len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        return os.write(self.fileno(), data)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self.fileno(), position, whence)

    def tell(self) -> int:
        return os.lseek(self.fileno(), 0, os.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self.fileno(), size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._recorder.lock:
                if not self._recorder.done:
                    self._recorder.left_open(self._fd)
            if self._closes:
                os.close(self._fd)


def _open(
    recorder: _Recorder,
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[Any, int], int] | None = None,
) -> Any:
    """open(), with a raw file of ours where it is in the folder, and for writing."""
    binary, plus = "b" in mode, "+" in mode
    inside = recorder.node(file) if isinstance(file, int) else recorder.place(file, follow=True)
    refused = (binary and (encoding, errors, newline) != (None, None, None)) or (not binary and buffering == 0)
    kind = "".join(letter for letter in mode if letter in "rwxa")
    fits = len(kind) == 1 and len(set(mode)) == len(mode) and not set(mode) - set("rwxabt+") and not {*"bt"} <= {*mode}
    if recorder.done or inside is None or mode.strip("bt") == "r" or refused or not fits:
        return recorder.open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    flags = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}[kind]
    flags |= (os.O_RDWR if plus else os.O_WRONLY) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = file if isinstance(file, int) else opener(file, flags) if opener else os.open(file, flags, 0o666)
    raw = _Raw(file, fd, f"{kind}b{'+' * plus}", closefd, recorder)
    if kind == "a":
        raw.seek(0, os.SEEK_END)
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffer: Any = (io.BufferedRandom if plus else io.BufferedWriter)(raw, size)
    if binary:
        return buffer
    text: Any = io.TextIOWrapper(buffer, io.text_encoding(encoding), errors, newline, line_buffering=buffering == 1)
    text.mode = mode
    return text


class _TorchWriter:
    """What torch.save opens for a path: C++ writes it elsewhere, and then Python its bytes to where they belong."""

    def __init__(self, recorder: _Recorder, real: Callable[[str], Any], name: str) -> None:
        self._file: Any = None
        if not recorder.done and recorder.place(name, follow=True) is not None:
            with suppress(OSError):  # C++ has its own words for that
                self._file = open(name, "wb", buffering=0)  # noqa: SIM115
        if self._file is not None:
            self._scratch = tempfile.TemporaryDirectory()
            self._written = os.path.join(self._scratch.name, os.path.basename(name))
            name = self._written  # its name stands in the file
        self._writer = real(name)

    def __enter__(self) -> Any:
        return self._writer.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._writer.__exit__(*error)
        finally:
            if self._file is not None:
                with self._file, self._scratch:
                    data = Path(self._written).read_bytes()
                    piece = max(_PIECE, -(-len(data) // _MOST_PIECES))
                    for at in range(0, len(data), piece):
                        self._file.write(data[at : at + piece])
