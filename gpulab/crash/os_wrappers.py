"""Wraps functions of `os`, `open` and torch's zip writer so that each call is recorded."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .journal import Synced
from .recorder import Recorder

_PIECE, _MOST_PIECES = 4096, 16  # bytes of each write of torch.save, or its number of writes


def functions(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    real, lock = recorder.os, recorder.lock

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = recorder.place(path, dir_fd, follow=True)
        if place is None or recorder.done:
            return int(real["open"](path, flags, mode, dir_fd=dir_fd))
        recorder.refuse_unreadable(place)
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
        """Wrap a function by which the system writes into the file of its first argument."""

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
                real[name if recorder.fsync else "fstat"](number)
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
        """Wrap a function that makes a folder or a symbolic link."""

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
    """A raw file whose writes are calls of os.write."""

    def __init__(self, name: Any, fd: int, mode: str, closes: bool, recorder: Recorder) -> None:
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


def open_file(
    recorder: Recorder,
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[Any, int], int] | None = None,
) -> Any:
    """Open a file like `open()`, with a `_Raw` file if it is in the folder and for writing."""
    binary, plus = "b" in mode, "+" in mode
    inside = recorder.node(file) if isinstance(file, int) else recorder.place(file, follow=True)
    refused = (binary and (encoding, errors, newline) != (None, None, None)) or (not binary and buffering == 0)
    kind = "".join(letter for letter in mode if letter in "rwxa")
    fits = len(kind) == 1 and len(set(mode)) == len(mode) and not set(mode) - set("rwxabt+") and not {*"bt"} <= {*mode}
    if isinstance(inside, str) and not recorder.done:
        recorder.refuse_unreadable(inside)
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


class TorchWriter:
    """The writer of torch.save for a path: C++ writes a temporary file, whose bytes Python then writes to the path."""

    def __init__(self, recorder: Recorder, real: Callable[[str], Any], name: str) -> None:
        self._file: Any = None
        if not recorder.done and recorder.place(name, follow=True) is not None:
            with suppress(OSError):  # C++ raises its own error
                self._file = open(name, "wb", buffering=0)  # noqa: SIM115
        if self._file is not None:
            self._scratch = tempfile.TemporaryDirectory()
            self._written = os.path.join(self._scratch.name, os.path.basename(name))
            name = self._written  # the file contains its own name
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
