"""Scenes of blocks that end with an error: the student's own, and the GPU's when memory is out."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch.nn import functional

from ..measure import virtual_gpu
from ..wording import is_number
from . import mistakes
from .common import TRACKER, gpus
from .ground import Ground, sizes
from .scenes import NAMES, Make, Scenes, explain, read, say


class Mishap(Exception):
    """What goes wrong in a block."""


def exception(scenes: Scenes) -> None:
    """An exception leaves the inner block; the outer one goes on, and the inner tracker is used again."""
    for later in (*sizes(1, 60, 80), 1.0):
        _exception(scenes, later)


def _exception(scenes: Scenes, later_spike: float) -> None:
    """The highest moment of the outer block is after the exception, or in the block that it ends."""
    spike, low = *sizes(1, 30, 50), *sizes(1, 14, 25)
    kept, more = sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        outer, inner, held, mishap = make(), make(), [], Mishap("out of patience")
        out: BaseException | None = None
        a = ground.note()
        with outer:
            b = ground.note()
            try:
                with inner:
                    ground.spike(spike)
                    held.append(ground.take(kept))
                    c = ground.note()
                    raise mishap
            except BaseException as error:
                out = error
            first = read(inner)
            ground.spike(later_spike)
            later = read(inner)
            d = ground.note()
        seen = read(outer), ground.between(a, d)
        refused = None
        e = f = ground.note()
        try:
            with inner:
                ground.spike(low)
                held.append(ground.take(more))
                f = ground.note()
        except RuntimeError as error:
            refused = error
        again = read(inner), ground.between(e, f)
        lost = max(ground.between(a, b).peak, ground.between(c, d).peak)
        return mishap, out, first, later, ground.between(b, c), (*seen, lost), refused, again

    mishap, out, first, later, want, (outer, whole, lost), refused, (again, fresh) = scenes.play(scene)
    trial = scenes.trial
    trial.expect(
        out is not None,
        "an exception in the block is swallowed",
        expected="the block's own exception, outside of the block too",
        got="no exception: the code after the block ran on as if nothing had happened",
        likely="__exit__ returns something true, which tells Python that the exception is dealt with: return False or "
        "nothing",
        read=TRACKER,
    )
    trial.expect(
        out is mishap,
        "another exception comes out of the block",
        expected="the block's own exception object",
        got=f"{type(out).__name__}: {out}",
        likely="__exit__ raises: it is called as __exit__(kind, error, trace), with an error or three times None",
        read=TRACKER,
    )
    where = "a block that ends with an exception"
    peak = first["peak_memory_mb"]
    trial.expect(
        first.error is None and is_number(peak),
        "after an exception there are no values",
        expected=f"peak {want.peak:.4g} MiB and change {want.delta:+.4g} MiB: {where}",
        got=f"{type(first.error).__name__}: {first.error}" if first.error else say(peak),
        likely="an exception ends the block too: __exit__ reads the counters whether or not there was one",
        read=TRACKER,
    )
    scenes.judge(
        first,
        want,
        where,
        likely="__exit__ does less when there is an exception: it has to read the counters and to close in any case",
    )
    trial.expect(
        later.same_as(first),
        "after an exception the tracker stays open",
        expected=f"{say(peak)}, the peak of the block that has ended",
        got=f"{say(later['peak_memory_mb'])}: it counts on",
        likely="take the tracker off the list of the open ones in any case, exception or not",
        read=TRACKER,
    )
    trial.expect(
        refused is None,
        "after an exception the tracker cannot be entered again",
        expected="a new block: the first one has ended",
        got=f"RuntimeError: {refused}",
        likely="what marks the tracker as open is put back only where no exception came: do it in any case",
        read=TRACKER,
    )
    where = "the outer tracker, after an exception in an inner block that was caught"
    scenes.judge(outer, whole, where, peak=[mistakes.LOST_BY_EXCEPTION.at(lost)])
    scenes.judge(again, fresh, "the second block of a tracker whose first ended with an exception")


def out_of_memory(scenes: Scenes) -> None:
    """A request inside the block that the GPU cannot meet."""
    spike, kept = *sizes(1, 30, 50), *sizes(1, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        tracker, held = make(), []
        out: BaseException | None = None
        start = end = ground.note()
        try:
            with tracker:
                ground.spike(spike)
                held.append(ground.take(kept))
                end = ground.note()
                ground.take(1 << 20)  # a TiB
        except BaseException as error:
            out = error
        return out, read(tracker), ground.between(start, end)

    out, got, want = scenes.play(scene)
    scenes.trial.expect(
        isinstance(out, torch.OutOfMemoryError),
        "OutOfMemoryError does not come out of the block",
        expected="torch.OutOfMemoryError, as the block raised it",
        got="no error" if out is None else f"{type(out).__name__}: {out}",
        likely="it is an exception like any other: __exit__ notes the values and returns False",
        read=TRACKER,
    )
    where = "a block in which a request for 1 TiB fails: it was never allocated, and does not count"
    scenes.judge(got, want, where, likely=f"after an OutOfMemoryError too, {', '.join(NAMES[1:4])} are what happened")


def kernel_error(scenes: Scenes) -> None:
    """A kernel's error comes out of the wait at exit; the tracker is used again where the GPU is well."""
    trial = scenes.trial

    def failing() -> Any:
        table, wrong = torch.zeros(4, 2, device="cuda"), torch.tensor([9], device="cuda")
        tracker, out = scenes.student(), None
        try:
            with contextlib.redirect_stderr(io.StringIO()), tracker:
                functional.embedding(wrong, table)
        except RuntimeError as error:
            out = error.with_traceback(None)
        return tracker, out

    def again(tracker: Any) -> Any:
        ground, refused = Ground(), None
        start = end = ground.note()
        try:
            with tracker:
                ground.spike(4.0)
                end = ground.note()
        except RuntimeError as error:
            refused = error
        return refused, read(tracker), ground.between(start, end)

    with virtual_gpu(count=2):  # with values: the index is looked at
        tracker, out = trial.call(failing, who="your tracker", explain=explain)
    trial.expect(
        out is not None,
        "a kernel's error does not come out of its block",
        expected="the error of an index out of range, raised at the latest by the wait at exit",
        got="no error",
        likely="the GPU is not waited for at exit, or what synchronize() raises is held back",
        read=TRACKER,
    )
    with gpus(2):
        refused, got, want = trial.call(lambda: again(tracker), who="your tracker", explain=explain)
    trial.expect(
        refused is None,
        "after a kernel's error the tracker stays open",
        expected="a block that has ended: the tracker can be used again",
        got=f"RuntimeError: {refused}",
        likely="synchronize() in __exit__ raises the kernel's error, and what stands after it never runs: close in a "
        "finally",
        read=TRACKER,
    )
    scenes.judge(got, want, "the next block of a tracker whose last one ended with a kernel's error")
