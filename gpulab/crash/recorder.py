"""Keeps one recording: translates file operations under a folder into its journal."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from .journal import ROOT, Disk, Journal, Named, Resized, Synced, Written

_WINDOWS = os.name == "nt"


class NotSeen(RuntimeError):
    """Raised if the folder was changed in a way that the journal missed, so that its states are incomplete."""


class Recorder:
    """Adds the operations that are reported to it to the `journal` of `root`; `os` and `open` are the originals."""

    def __init__(self, root: str, own_disk: bool, fsync: bool, unreadable: Collection[str]) -> None:
        self.root, self.own_disk, self.fsync, self.unreadable = root, own_disk, fsync, unreadable
        self.lock, self.done = threading.RLock(), False
        self.os = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}  # the originals
        self.open = io.open
        self._nodes: dict[tuple[int, int], int] = {}  # by device and inode
        self._outside: dict[tuple[int, int], tuple[int, int]] = {}  # files elsewhere: size and mtime at the fsync
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

    # Paths and nodes.

    def place(self, path: Any, dir_fd: int | None = None, *, follow: bool = False) -> str | None:
        """Return the path in the folder, with "/" between its parts; None if it is elsewhere. `follow` resolves the
        last part too, if it is a link."""
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
        """Return the node of an open file."""
        with suppress(OSError):
            return self._nodes.get(self._key(self.os["fstat"](fd)))
        return None

    def _entry(self, place: str) -> tuple[int, str]:
        above, _, name = place.rpartition("/")
        node = self.journal.now.node(above or ".")
        return -1 if node is None else node, name  # -1: made by another process, which `compare` finds

    def _real(self, place: str) -> str:
        return os.path.join(self.root, place)

    def refuse_other_disk(self, src: Any, dst: Any, old: str | None, new: str | None) -> None:
        if self.own_disk and (old is None) != (new is None):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fspath(src), None, os.fspath(dst))

    def refuse_unreadable(self, place: str | None) -> None:
        if place in self.unreadable:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._real(str(place)))

    # Operations.

    def gone(self) -> None:
        """Record names that vanished unseen, as by a function that a library imported from os earlier: a removal has no
        state in between, so that none is missed."""
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
        without = {node for node in before if now.path(node) is None}  # their inodes will be used again
        self._nodes = {key: node for key, node in self._nodes.items() if node not in without}

    def opened(self, place: str, before: int | None, fd: int, flags: int) -> None:
        """Record an open; `before` was the node at `place`."""
        entry = self.os["fstat"](fd)
        node = self._nodes.get(self._key(entry))
        if before is None and not stat.S_ISDIR(entry.st_mode):
            node = self._new(entry)
            self.journal.new_file(node)
            self.named(f"create {place}", (place, node))
        elif flags & os.O_TRUNC and node is not None and self.journal.now.data.get(node):
            self.journal.add(Resized(node, 0, f"empty {place}"))

    def left_open(self, fd: int) -> None:
        """Record bytes that C code wrote, as numpy does, as one write, before an fsync or a close."""
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
        if _through(fd):
            self.journal.add(Synced(node, "fsync by a write with O_SYNC"))

    def reread(self, place: str) -> None:
        """Record bytes that the system itself put into a file."""
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
            self._outside[self._key(entry)] = entry.st_size, entry.st_mtime_ns  # it may be moved into the folder
            return
        path = self.journal.now.path(node) or "a file without a name"
        self.journal.add(Synced(node, f"fsync {'the folder' if path == '.' else path}"))

    def adopt(self, place: str) -> int:
        """Add a file or tree that was moved into the folder, and return its node."""
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
        """Raise NotSeen unless the folder is as the journal says."""
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


def _words(tree: Mapping[str, Any], path: str) -> str:
    if path not in tree:
        return "nothing"
    content = tree[path]
    if isinstance(content, bytes):
        return f"a file of {len(content):,} bytes"
    return "a folder" if content is None else f"a link to {content}"


def _through(fd: int) -> bool:
    """Return True for a file opened with O_SYNC or O_DSYNC, whose writes wait for the disk."""
    if _WINDOWS:
        return False
    import fcntl  # not on Windows

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_SYNC | os.O_DSYNC))
