"""After an out-of-memory error, continue in a forked copy to find the memory that the run would need.

It is forked where the allocation fails, waits there, and goes on only when the run has ended out of memory. It runs in
a `sandbox`, so it has no outside effect, and ends after an optimizer's second step, at the script's end, or after some
time. Its allocations until then are replayed (`replay`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import select
import signal
import threading
import time
import warnings
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import distributed as dist

from . import replay, sandbox

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from .memory_watch import MemoryWatch
    from .target import Ending

SECONDS = 60  # time limit of a copy
_SPARE = 10  # further seconds until the parent kills it
_GO, _NO = b"g", b"n"


class _Copy(NamedTuple):
    """A waiting copy: its process, its parent, the pipe to it and the pipe from it."""

    process: int
    of: int
    ask: int
    answer: int


class Overrun:
    """Handles failed allocations on the GPUs of one scope, which `watches` observe."""

    def __init__(self, gpu: VirtualGPU, watches: Sequence[MemoryWatch]) -> None:
        self._gpu, self._watches = gpu, watches
        self._copy: _Copy | None = None
        self._answer: Callable[[str], NoReturn] | None = None  # set within a copy
        self._failed: list[tuple[int, array[int]]] = []  # for each record its number of events, and the request
        self._reached: tuple[str, list[int]] = "", []  # within a copy: its progress, and the events until then
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def failed(self, watch: MemoryWatch, nbytes: int, stream: int) -> bool:
        """Handle a failed request. Returns True in a copy that goes on: from now on there is no limit."""
        if self._answer is not None:
            return False  # more than any GPU has
        self.dismiss()
        self._failed = [
            (len(each.record.events), replay.request_events(nbytes, stream) if each is watch else array("q"))
            for each in self._watches
        ]
        return self._can_copy() and self._fork()

    def stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step: the run goes on; a copy ends if it was not the optimizer's first."""
        if self._answer is not None:
            self._reached = "step", [len(watch.record.events) for watch in self._watches]
            if optimizer in self._optimizers:
                self._answer("step")
        self._optimizers.add(optimizer)
        self.dismiss()

    def ended(self, ending: Ending) -> None:
        """Handle the script's end: after out of memory, try other allocators for the shortage. A copy ends here."""
        if self._answer is not None:
            self._answer("" if ending.code else "end")  # after an error, its progress before that
        if ending.out_of_memory and self._failed and all(watch.record.whole for watch in self._watches):
            until, more = self._ask()
            if not until:
                more = [request for _, request in self._failed]
            runs = [
                (watch.record.events[:begin] + rest, watch.device.allocator)
                for watch, (begin, _), rest in zip(self._watches, self._failed, more, strict=True)
            ]
            tried = replay.try_allocators([run for run in runs if run[0]], until)
            for watch in self._watches:
                if watch.shortage is not None:
                    watch.shortage = replace(watch.shortage, tried=tried)
        self.dismiss()

    def dismiss(self) -> None:
        """End the copy, if there is one."""
        copy, self._copy = self._copy, None
        if copy is None or copy.of != os.getpid():
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(copy.ask, _NO)
        os.close(copy.ask)
        os.close(copy.answer)
        with contextlib.suppress(ChildProcessError):  # the script may have waited for all child processes
            os.waitpid(copy.process, 0)

    # -- the process that runs ---------------------------------------------------------------------------------------

    def _can_copy(self) -> bool:
        """Return True if a fork is complete: no other threads, no other processes that take part."""
        alone = self._gpu.world is not None or not (dist.is_available() and dist.is_initialized())
        here = threading.current_thread() is threading.main_thread() and os.getpid() == self._gpu.process
        whole = all(watch.record.whole for watch in self._watches)
        return alone and here and whole and sandbox.is_supported()

    def _fork(self) -> bool:
        (asked, ask), (answer, answered) = os.pipe(), os.pipe()
        parent, drawn = os.getpid(), random.getstate()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about other threads: a copy that hangs is killed
            try:
                process = os.fork()
            except OSError:  # no more processes, or no memory for one
                process = None
        if process is None:
            for end in (asked, ask, answer, answered):
                os.close(end)
            return False
        if process:
            os.close(asked)
            os.close(answered)
            self._copy = _Copy(process, parent, ask, answer)
            return False
        try:
            random.setstate(drawn)  # Python has seeded it anew
            self._wait_and_go_on(asked, ask, answer, answered)
        except BaseException:
            os._exit(1)
        return True

    def _ask(self) -> tuple[str, list[array[int]]]:
        """Let the copy go on; return its progress and its requests to each GPU, "" if it did not get far enough."""
        copy, said = self._copy, b""
        if copy is None:
            return "", []
        with contextlib.suppress(BrokenPipeError):
            os.write(copy.ask, _GO)
        last = time.monotonic() + SECONDS + _SPARE
        while (left := last - time.monotonic()) > 0 and select.select([copy.answer], [], [], left)[0]:
            part = os.read(copy.answer, 1 << 20)
            if not part:
                break
            said += part
        else:
            os.kill(copy.process, signal.SIGKILL)
            said = b""
        self.dismiss()
        until, more = pickle.loads(said) if said else ("", [])
        return until, more

    # -- a copy ------------------------------------------------------------------------------------------------------

    def _wait_and_go_on(self, asked: int, ask: int, answer: int, answered: int) -> None:
        sandbox.die_with_parent()
        os.close(ask)
        os.close(answer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if os.read(asked, 1) != _GO:
            os._exit(0)
        sandbox.confine(answered)

        def tell(until: str) -> NoReturn:
            ends = [len(watch.record.events) for watch in self._watches]
            if not until:
                until, ends = self._reached
            whole = all(watch.record.whole for watch in self._watches)
            more = [
                watch.record.events[begin:end]
                for watch, (begin, _), end in zip(self._watches, self._failed, ends, strict=False)
            ]
            said = memoryview(pickle.dumps((until if whole else "", more)))
            while said:
                said = said[os.write(answered, said) :]
            os._exit(0)

        self._answer = tell
        signal.signal(signal.SIGALRM, lambda *_: tell(""))
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        torch.set_num_threads(1)  # a fork has no other threads of a pool
        self._gpu.process = os.getpid()
        for device in self._gpu.devices:
            device.allocator.lift_limit()
