"""Records the operations on a folder, and computes the states that a crash between or within them can leave.

As in a file system, files, folders and links are numbered nodes (inodes), and names are entries of folders that point
to nodes, so that a file's bytes and its names reach the disk independently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

MOST = 400  # states of power cuts; of more, an evenly spaced selection
ROOT = 0  # the node of the folder itself
Tree = dict[str, bytes | str | None]  # by path: the bytes of a file, None for a folder, text for where a link leads


@dataclass(frozen=True)
class State:
    """A state of the folder: `files` by their path in it, with "/" between its parts; `about` says when it was left;
    `finished` is True if all recorded operations were done."""

    tree: Tree
    about: str
    finished: bool = False

    @property
    def files(self) -> dict[str, bytes]:
        return {path: content for path, content in self.tree.items() if isinstance(content, bytes)}

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yield a temporary folder with these files."""
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            for path, content in self.tree.items():  # a folder stands before what is in it
                if content is None:
                    (place / path).mkdir()
                elif isinstance(content, bytes):
                    (place / path).write_bytes(content)
                else:
                    (place / path).symlink_to(content)
            yield place


@dataclass(frozen=True)
class Written:
    """A write of bytes to a file at offset `at`."""

    node: int
    at: int
    data: bytes
    words: str

    def into(self, old: bytes) -> bytes:
        return old[: self.at].ljust(self.at, b"\0") + self.data + old[self.at + len(self.data) :]


@dataclass(frozen=True)
class Resized:
    """A truncation of a file, or an extension with zeros."""

    node: int
    size: int
    words: str

    def into(self, old: bytes) -> bytes:
        return old[: self.size].ljust(self.size, b"\0")


@dataclass(frozen=True)
class Named:
    """An atomic change of names: (folder, name, node), with None for a removed name."""

    entries: tuple[tuple[int, str, int | None], ...]
    words: str


@dataclass(frozen=True)
class Synced:
    """An fsync of a file or a folder; of everything if `node` is None."""

    node: int | None
    words: str


Operation = Written | Resized | Named | Synced


@dataclass
class Disk:
    """The entries and the bytes of files; a node in neither `data` nor `links` is a folder."""

    entries: dict[tuple[int, str], int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, str] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(dict(self.entries), dict(self.data), self.links)

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Named):
            for folder, name, node in operation.entries:
                if node is None:
                    self.entries.pop((folder, name), None)
                else:
                    self.entries[folder, name] = node
        elif not isinstance(operation, Synced):
            self.data[operation.node] = operation.into(self.data.get(operation.node, b""))

    def tree(self) -> Tree:
        inside: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in sorted(self.entries.items()):
            inside.setdefault(folder, []).append((name, node))
        found: Tree = {}

        def walk(folder: int, above: str) -> None:
            for name, node in inside.get(folder, ()):
                path = f"{above}{name}"
                found[path] = self.data[node] if node in self.data else self.links.get(node)
                if found[path] is None:
                    walk(node, f"{path}/")

        walk(ROOT, "")
        return found

    def node(self, path: str) -> int | None:
        """Return the node of a path in the folder, "." for itself; None if it does not exist."""
        node: int | None = ROOT
        for part in PurePosixPath(path).parts:
            node = None if node is None else self.entries.get((node, part))
        return node

    def path(self, node: int) -> str | None:
        """Return a path of the node, "." for the folder itself."""
        if node == ROOT:
            return "."
        above = next(((folder, name) for (folder, name), other in self.entries.items() if other == node), None)
        if above is None or (folder := self.path(above[0])) is None:
            return None
        return str(PurePosixPath(folder) / above[1])


class Journal:
    """The `operations` on a folder, from its state `start` on."""

    def __init__(self, start: Disk) -> None:
        self._start, self.now = start, start.copy()
        self.operations: list[Operation] = []

    def new_file(self, node: int) -> None:
        """Add an empty file without a name."""
        self._start.data[node] = self.now.data[node] = b""

    def add(self, operation: Operation) -> None:
        self.now.apply(operation)
        self.operations.append(operation)

    @property
    def kills(self) -> list[State]:
        """The states that a killed process can leave, in order: before the first operation, after each, and in the
        middle of each write. The last is the state at its normal end."""
        disk = self._start.copy()
        states = [State(disk.tree(), "killed before the first operation")]
        for number, operation in enumerate(self.operations, 1):
            of = f"operation {number} of {len(self.operations)}: {operation.words}"
            if isinstance(operation, Written) and len(operation.data) > 1:
                half = disk.copy()
                half.apply(_half(operation))
                states.append(State(half.tree(), f"killed in {of}"))
            disk.apply(operation)
            states.append(State(disk.tree(), f"killed after {of}"))
        states = [state for i, state in enumerate(states) if not i or state.tree != states[i - 1].tree]
        return [*states[:-1], replace(states[-1], finished=True)]

    @property
    def power_cuts(self) -> list[State]:
        """The states that a power cut can leave before each fsync and at the end, with what is not fsynced there
        missing or in part. (A cut between fsyncs leaves none that a later cut could not leave.) Each state is listed
        once, and once more if it is left at the end.

        Of names that are not fsynced: the first few, each alone, all but each. Of such bytes: none, the first write,
        half of the writes, all, and zeros in their place; for all files at once, and for each alone.
        """
        states: dict[object, State] = {}
        safe, names, writes = self._start.copy(), list[Named](), dict[int, list[Written | Resized]]()
        for number, operation in enumerate([*self.operations, None]):
            if operation is None or isinstance(operation, Synced):
                before = f"before operation {number + 1}: {operation.words}" if operation else "at the end"
                for chosen in _subsets(len(names)):
                    disk = safe.copy()
                    for i in chosen:
                        disk.apply(names[i])
                    lost = "; ".join(name.words for i, name in enumerate(names) if i not in chosen)
                    for data, left in _left_of(safe.data, writes):
                        disk.data = data
                        told = ", ".join(
                            [f"power cut {before}", *[f"without {lost}"] * bool(lost), *[left] * bool(left)]
                        )
                        state = State(disk.tree(), told, operation is None)
                        states.setdefault((*state.tree.items(), state.finished), state)
            if isinstance(operation, Synced):
                names, writes = _synced(operation.node, safe, names, writes)
            elif isinstance(operation, Named):
                names.append(operation)
            elif operation is not None:
                writes.setdefault(operation.node, []).append(operation)
        found = list(states.values())
        return found if len(found) <= MOST else [found[i * (len(found) - 1) // (MOST - 1)] for i in range(MOST)]


def _half(write: Written) -> Written:
    return Written(write.node, write.at, write.data[: len(write.data) // 2], write.words)


def _subsets(count: int) -> list[tuple[int, ...]]:
    """Return index sets of `count` changes: each prefix, each alone, all but each."""
    every = range(count)
    first = [tuple(range(n)) for n in range(count + 1)]
    return list(dict.fromkeys([*first, *((i,) for i in every), *(tuple(j for j in every if j != i) for i in every)]))


def _left_of(
    safe: dict[int, bytes], writes: dict[int, list[Written | Resized]]
) -> Iterator[tuple[dict[int, bytes], str]]:
    """Yield the bytes of all files with a part of the pending writes, and a description of the part."""
    ways = (
        "all that was written",
        "no byte that was written",
        "the first write alone",
        "half of what was written",
        "zeros for what was written",
    )
    left = {
        node: [_replayed(safe.get(node, b""), pending, way) for way in range(len(ways))]
        for node, pending in writes.items()
    }
    yield safe | {node: contents[0] for node, contents in left.items()}, ""
    for way in range(1, len(ways)):
        yield safe | {node: contents[way] for node, contents in left.items()}, ways[way]
        for one in left if len(left) > 1 else ():
            yield (
                safe | {node: contents[way * (node == one)] for node, contents in left.items()},
                f"{ways[way]} to one file",
            )


def _replayed(content: bytes, pending: Sequence[Written | Resized], way: int) -> bytes:
    kept = {1: 0, 2: 1, 3: len(pending) // 2}.get(way, len(pending))
    for number, operation in enumerate(pending[: kept + (way == 3)]):
        if isinstance(operation, Written):
            if way == 4:
                operation = Written(operation.node, operation.at, bytes(len(operation.data)), operation.words)
            if number == kept:
                operation = _half(operation)
        content = operation.into(content)
    return content


def _synced(
    node: int | None, safe: Disk, names: list[Named], writes: dict[int, list[Written | Resized]]
) -> tuple[list[Named], dict[int, list[Written | Resized]]]:
    """Apply an fsync to the disk `safe`; return the changes that are still pending."""
    for other in list(writes):
        if node in (None, other):
            for operation in writes.pop(other):
                safe.apply(operation)
    left = []
    for change in names:
        safe.apply(Named(tuple(entry for entry in change.entries if node in (None, entry[0])), ""))
        if rest := tuple(entry for entry in change.entries if node not in (None, entry[0])):
            left.append(Named(rest, change.words))
    return left, writes
