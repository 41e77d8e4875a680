"""One run from start to end: start the GPU, run the script, write the report once.

Only the process that started the run writes it: at the interpreter's exit, or earlier at SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from .. import lending
from ..clock.clock import Clock
from ..gpu import VirtualGPU
from ..ranks import rank_waits
from ..scope import in_force
from . import hints, report_text
from .child_processes import ChildProcesses
from .create_graph import CreateGraphCalls
from .early_host_access import EarlyHostAccess
from .loader_waits import LoaderWaits
from .memory_watch import MemoryWatch
from .meters import Meter, RealMeter, VirtualMeter
from .overrun import Overrun
from .real_gpus import RealGpus
from .report import Alone, Gpu, Report, as_json, json_path
from .source_lines import Line, SourceLines
from .steps import StepMarks
from .target import Ending, Target, execute
from .verdict import verdict
from .wall_clock_calls import WallClockCalls

_SPANS = 100_000  # of the clock's record: it covers the last steps of a run of any length


class Session:
    """A run of `target` on `gpu`, a virtual GPU that is not started yet, or on the real ones for None.

    `keep`: the script's own `gpulab.setup` stays on this GPU, whatever its argument. `json_to` is a file, or "-" for
    standard output.
    """

    def __init__(self, target: Target, gpu: VirtualGPU | None, *, keep: bool, json_to: str | None = None) -> None:
        self.target = target
        self.gpu = gpu
        self.rank, self.world_size = _rank()
        self._json_to = json_to if json_to in (None, "-") else json_path(json_to, self.rank)
        if gpu is not None and gpu.world is not None:
            self.rank, self.world_size = gpu.world.rank, gpu.world.size
        self.alone: Alone | None = None
        self._keep = keep
        self._process = os.getpid()
        self._places = SourceLines(target.first_on_path, os.getcwd())
        self._scopes: list[tuple[VirtualGPU, list[MemoryWatch], VirtualMeter]] = []
        self._overruns: list[Overrun] = []
        self._early: dict[VirtualGPU, EarlyHostAccess] = {}
        self._real: RealGpus | None = None
        self._ending: Ending | None = None
        self._outer = in_force.current
        self._done = False
        self._at: Line | None = None
        self._undo = contextlib.ExitStack()

    # -- start and end -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the GPU and all observers."""
        undo = self._undo
        recipe = None
        self._backwards = CreateGraphCalls(self._allocated, self._places)
        self._real_time = WallClockCalls(self._places)
        undo.callback(self._real_time.end)
        undo.callback(self._backwards.end)
        self._follow_scopes()
        if self.gpu is not None:
            self.gpu.start()
            undo.callback(self._stop)
            lending.lend(self.gpu, keep=self._keep)
            undo.callback(lending.lend, None)
            recipe = {"gpu": self.gpu.spec.name, "count": self.gpu.count, "compute": self.gpu.compute}
        else:
            self._real = RealGpus()
            undo.callback(self._real.end)
        waits = LoaderWaits(self._counting)
        undo.callback(waits.end)
        self._steps = StepMarks(self._meter, self._stepped, waits)
        undo.callback(self._steps.end)
        self._backwards.passing = partial(self._steps.passes, "backward")
        waits.passing = partial(self._steps.passes, "data")
        children = ChildProcesses(recipe, self._forget)
        undo.callback(children.end)
        self._take_sigterm()
        self._began = time.monotonic()

    def execute(self) -> int:
        """Run the target; return its exit code. Raises CannotRun where a file has no such function."""
        self._ending = execute(self.target, self._steps.took)
        for overrun in self._overruns:
            overrun.ended(self._ending)
        return self._ending.code

    def finish(self) -> None:
        """Write the report, if this is the process that started the run and it has not been written."""
        if self._done or os.getpid() != self._process:
            return
        self.write(self.report(), sys.stderr)

    def write(self, report: Report, stream: TextIO | None) -> None:
        """Write this report, and none at the interpreter's exit."""
        self.dismiss()
        found = hints.hints(report)
        written = json.dumps(as_json(report, verdict(report), found), indent=2) + "\n"
        if isinstance(self._json_to, Path):
            self._json_to.write_text(written, encoding="utf-8")
        _write(sys.stdout, written if self._json_to == "-" else "")
        _write(stream, "\n" + report_text.as_text(report, found))

    def dismiss(self) -> None:
        """Write no report."""
        self._done = True

    def close(self) -> None:
        """Undo all changes; for a process that goes on."""
        self._undo.close()

    # -- readings ----------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return the report of the run up to now."""
        with self._outside_scopes():
            on_real = self._real is not None and (not self._scopes or self._real.used())
            where = self._on_real() if on_real else self._on_virtual()
        return Report(
            name=self.target.name,
            argv=tuple(sys.argv),
            ending=self._ending or Ending(128 + signal.SIGTERM, "terminated", "SIGTERM"),
            steps=self._steps.steps(),
            host_steps=self._steps.elsewhere,
            host_seconds=time.monotonic() - self._began,
            rank=self.rank,
            world_size=self.world_size,
            torch=torch.__version__,
            alone=self.alone,
            cycles=self._backwards.cycles(),
            ended_at=self._at,
            waits_in="" if self._ending is not None and self._ending.code == 0 else rank_waits.here.text(),
            **where,
        )

    def _on_real(self) -> dict[str, Any]:
        assert self._real is not None
        return {"gpu": self._real.name(), "numbers": "measured", "shapes_only": False, "gpus": self._real.gpus()}

    def _on_virtual(self) -> dict[str, Any]:
        """Report the session's scope or, if that was not used, the script's own with the largest peak."""
        scope, watches, meter = self._scopes[0]
        if self._real is not None or not any(watch.peak for watch in watches):
            scope, watches, meter = max(self._scopes, key=lambda each: sum(watch.peak for watch in each[1]))
        spec = scope.spec
        own = f"The script put a virtual {spec.name} of its own in place: that is the one reported."
        return {
            "gpu": spec.name,
            "numbers": "virtual",
            "shapes_only": not scope.compute,
            "operations": 0 if scope.compute else scope.remembered.asked,
            "remembered": 0 if scope.compute else scope.remembered.found,
            "gpus": tuple(
                Gpu(watch.device.index, watch.memory(), meter.time(watch.device.index), watch.shortage)
                for watch in watches
            ),
            "tflops": tuple((dtype, rate) for dtype, rate in spec.tflops.items() if rate is not None),
            "imagined": scope.world is not None,
            "joined": "" if scope.world is None else scope.world.topology.describe(),
            "skipped_ddp": scope.skipped_ddp,
            "notes": (
                *(() if scope is self.gpu else (own,)),
                *self._early[scope].sentences(),
                *filter(None, [self._real_time.sentence()]),
            ),
        }

    def _outside_scopes(self) -> contextlib.AbstractContextManager[None]:
        """Suspend a virtual GPU of the script's while real ones are read."""
        inner = in_force.current
        if self._real is None or inner is None or inner is self._outer:
            return contextlib.nullcontext()
        return inner.suspended()

    def _meter(self) -> Meter | None:
        """Return the meter of the GPU that is in force."""
        if self._real is not None and in_force.current is self._outer:
            return RealMeter()
        return next((meter for scope, _, meter in self._scopes if scope is in_force.current), None)

    def _allocated(self) -> int | None:
        """Return the bytes allocated on all GPUs of the scope that is in force."""
        watches = next((watches for scope, watches, _ in self._scopes if scope is in_force.current), None)
        if watches is not None:
            return sum(watch.allocated for watch in watches)
        return torch.cuda.memory_allocated() if self._real is not None and torch.cuda.is_initialized() else None

    def _counting(self) -> Clock | None:
        """Return the clock of the GPU that is in force, if it counts the host's own time."""
        scope = in_force.current
        return scope.clock if scope is not None and scope.counts_host and self._meter() is not None else None

    def _stepped(self, optimizer: Any, device: Any, over: bool) -> None:
        """Pass on that an optimizer begins a step on the GPU that is in force, or has taken it."""
        for scope, watches, _ in self._scopes:
            if scope is in_force.current:
                watch = watches[device.index or 0]
                (watch.stepped if over else watch.stepping)(optimizer)

    # -- patches -----------------------------------------------------------------------------------------------------

    def _follow_scopes(self) -> None:
        """Watch every virtual GPU that starts: the run's, and the script's own."""
        own = vars(VirtualGPU)["start"]
        session = self

        def start(self: VirtualGPU) -> VirtualGPU:
            own(self)
            session._see_scope(self)
            return self

        for name in ("start", "__enter__"):
            before = vars(VirtualGPU)[name]
            setattr(VirtualGPU, name, start)
            self._undo.callback(setattr, VirtualGPU, name, before)

    def _see_scope(self, gpu: VirtualGPU) -> None:
        watches = [MemoryWatch(device, self._places, self._backwards, breaks_down=True) for device in gpu.devices]
        overrun = Overrun(gpu, watches)
        self._overruns.append(overrun)
        self._undo.callback(overrun.dismiss)
        for watch in watches:
            watch.overrun = overrun
            self._undo.callback(watch.end)
        if gpu.world is not None or self.world_size > 1:
            gpu.clock.record = deque(maxlen=_SPANS)
        self._scopes.append((gpu, watches, VirtualMeter(gpu, watches)))
        gpu.under_way = self._early[gpu] = EarlyHostAccess(gpu.clock, self._places)
        self._undo.callback(setattr, gpu, "under_way", None)

    def _stop(self) -> None:
        """Stop the scope, and inner ones that the script left in force."""
        inner = in_force.current
        while inner is not None and any(inner is scope for scope, _, _ in self._scopes):
            inner.stop()
            inner = in_force.current

    def _take_sigterm(self) -> None:
        """Write the report before SIGTERM ends the process, unless it is ignored or the script handles it."""
        try:
            before = signal.getsignal(signal.SIGTERM)
            if before is not signal.SIG_DFL:
                return
            signal.signal(signal.SIGTERM, self._terminated)
        except ValueError:  # not the main thread
            return
        self._undo.callback(self._give_sigterm)

    def _give_sigterm(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _terminated(self, number: int, frame: Any) -> None:
        self._give_sigterm()
        place = self._places.here()
        self._at = None if place is None else self._places.line(place)
        self.finish()
        os.kill(os.getpid(), number)

    def _forget(self) -> None:
        """Write no report in a forked child, and restore its default SIGTERM."""
        self.dismiss()
        with contextlib.suppress(ValueError):  # forked by another thread than the main one
            self._give_sigterm()


def _write(stream: TextIO | None, written: str) -> None:
    """Write in one piece, as other ranks write too, and flush."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed by the script or the reader
            stream.write(written)
            stream.flush()


def _rank() -> tuple[int | None, int]:
    """Return this process's rank under torchrun, and the number of ranks."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
