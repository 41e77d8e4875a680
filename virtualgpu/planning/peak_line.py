"""Find the source line at which a step reaches its peak, from the Python stack at that moment.

A peak in the backward pass has two lines: the one that calls `backward()`, and the line of the forward pass whose
gradient is being computed, which autograd's anomaly mode records.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from .. import own_code
from .ledger import Phase

_SHOWN = 80  # characters of a line


@dataclass(frozen=True)
class Line:
    """A line of Python: `source` is its text, "" where the file is not there to read."""

    file: str
    number: int
    function: str
    source: str

    def __str__(self) -> str:
        # The file of a notebook's cell has a name that means nothing, and another one each time.
        cell = "ipykernel" in self.file or self.file.startswith("<ipython")
        name = "the cell" if cell else os.path.basename(self.file)
        source = self.source if len(self.source) <= _SHOWN else self.source[: _SHOWN - 1] + "…"
        return f"{name}, line {self.number}" + (f": {source}" if source else "")


@dataclass(frozen=True)
class Where:
    """The moment of the peak.

    `phase` is "forward", "backward", "optimizer", or "no_grad" for other code without autograd. `line` is the
    innermost line of the user's own code, `forward` the line of the forward pass whose backward is running, `library`
    the line within a library (not torch) that the last of them leads to. `operation` is PyTorch's name of the operation
    that allocates, `node` that of the autograd node that runs it. Unknown fields are None.
    """

    phase: Phase
    operation: str | None
    line: Line | None
    forward: Line | None = None
    library: Line | None = None
    node: str | None = None

    def __str__(self) -> str:
        during = {
            "forward": "in the forward pass",
            "backward": "in the backward pass",
            "optimizer": "in the optimizer's step",
            "no_grad": "outside of autograd",
        }[self.phase]
        operation = " of ".join(name for name in (self.operation, self.node) if name)
        parts = [during + (f" ({operation})" if operation else "")]
        if self.line is not None:
            parts.append(f"  {self.line}")
        if self.forward is not None:
            parts.append(f"  backward of {self.forward}")
        if self.library is not None:
            parts.append(f"  within it {self.library}")
        return "\n".join(parts)


@dataclass(frozen=True)
class Moment:
    """Raw record of a moment that may be the peak: small, for there are thousands; `where` interprets it."""

    phase: Phase
    operation: str | None
    stack: tuple[tuple[CodeType, int], ...]  # innermost first
    node: str | None
    forward: tuple[str, ...]  # as traceback.format_stack writes it

    def where(self) -> Where:
        line, library = lines_of((code.co_filename, number, code.co_name) for code, number in self.stack)
        forward = None
        if self.forward:
            frames = (match.groups() for text in reversed(self.forward) if (match := _FRAME.match(text)))
            forward, library = lines_of((file, int(number), function) for file, number, function in frames)
        return Where(self.phase, self.operation, line, forward, library, self.node)


class StackRecorder:
    """Records a `Moment` when called; frames below the code `outermost` are the user's."""

    def __init__(self, outermost: CodeType) -> None:
        self._outermost = outermost

    def __call__(self, phase: Phase) -> Moment:
        import torch

        stack: list[tuple[CodeType, int]] = []
        operation: str | None = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._outermost:
            code = frame.f_code
            if operation is None:
                operation = operation_of(frame)
            if _owner(code.co_filename) is not None:
                stack.append((code, frame.f_lineno))
            frame = frame.f_back
        node: Any = torch._C._current_autograd_node() if phase == "backward" else None
        if node is None:
            return Moment(phase, operation, tuple(stack), None, ())
        # Only texts are kept: the node holds a whole graph.
        outer = f'  File "{self._outermost.co_filename}", line '
        texts = list(node.metadata.get("traceback_", ()))
        within = next((i for i in reversed(range(len(texts))) if texts[i].startswith(outer)), -1)
        return Moment(phase, operation, tuple(stack), node.name(), tuple(texts[within + 1 :]))


def operation_of(frame: FrameType) -> str | None:
    """Return the name of the operation that a frame runs, None for any other frame."""
    from ..operations.dispatch import Dispatch

    if frame.f_code is not Dispatch.__torch_dispatch__.__code__:
        return None
    return str(own_code.local_of(frame, "func").name()).partition(".")[0].replace("::", ".")


_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')


def lines_of(frames: Iterable[tuple[str, int, str]]) -> tuple[Line | None, Line | None]:
    """Return the user's innermost line in a stack (innermost first), and the library's line that it called.

    Without a line of the user's, the library's takes its place.
    """
    library = None
    for file, number, function in frames:
        owner = _owner(file)
        if owner == "own":
            return _line(file, number, function), library
        if owner == "library" and library is None:
            library = _line(file, number, function)
    return library, None


def _line(file: str, number: int, function: str) -> Line:
    return Line(file, number, function, linecache.getline(file, number).strip())


@functools.cache
def _owner(file: str) -> str | None:
    """Return "own" for the user's code, "library" for installed packages, None for torch, Python and this package."""
    import torch

    path = os.path.abspath(file)
    if path.startswith((os.path.dirname(torch.__file__) + os.sep, *own_code.folders())) or file.startswith("<frozen"):
        return None
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return "library"
    return None if path.startswith(sysconfig.get_path("stdlib") + os.sep) else "own"
