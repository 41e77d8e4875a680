"""Nodes of a CUDA graph recorded during stream capture; their time passes at the graph's launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A node of kind "kernel", "copy", "mark" (an event) or "wait" (for the mark with the number `after`)."""

    kind: str
    stream: int
    name: str = ""
    seconds: float = 0.0
    flops: float = 0.0
    joules: float = 0.0
    nbytes: int = 0
    way: str = ""
    after: int = 0


class Recording:
    """A stream capture: it begins on one stream, and others join when they wait for a captured event."""

    def __init__(self, stream: int) -> None:
        self.origin = stream
        self.streams = {stream}
        self.nodes: list[Node] = []
        self.loose: set[int] = set()  # streams whose work nothing in the graph waits for yet

    @property
    def wide(self) -> bool:
        """Return True if it holds more than kernels of one stream."""
        return len(self.streams) > 1 or any(node.kind == "copy" for node in self.nodes)

    @property
    def empty(self) -> bool:
        return not any(node.kind in ("kernel", "copy") for node in self.nodes)

    def kernel(self, stream: int, seconds: float, name: str, flops: float, joules: float, nbytes: int) -> None:
        self._add(Node("kernel", stream, name, seconds, flops, joules, nbytes))

    def copy(self, stream: int, nbytes: int, way: str, name: str) -> None:
        self._add(Node("copy", stream, name, nbytes=nbytes, way=way))

    def mark(self, stream: int) -> int:
        """Record an event in a stream; return its number."""
        self.nodes.append(Node("mark", stream))
        return len(self.nodes) - 1

    def wait(self, stream: int, after: int) -> None:
        """Let a stream wait for an event of this capture, which makes it part of the capture."""
        if stream not in self.streams:
            self.streams.add(stream)
            self.loose.add(stream)
        self.loose.discard(self.nodes[after].stream)
        self._add(Node("wait", stream, after=after))

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        if node.stream != self.origin:
            self.loose.add(node.stream)
