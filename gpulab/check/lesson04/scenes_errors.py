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


class Stop(BaseException):
    """What ends a block as KeyboardInterrupt does: no Exception."""


def exception(scenes: Scenes) -> None:
    """An exception leaves the inner block; the outer one goes on, and the inner tracker is used again."""
    _exception(scenes, sizes(1, 60, 80)[0], Mishap("out of patience"))
    _exception(scenes, 1.0, Stop("Ctrl-C"))


def _exception(scenes: Scenes, later_spike: float, mishap: BaseException) -> None:
    """The highest moment of the outer block is after the exception, or in the block that it ends."""
    spike, low = *sizes(1, 30, 50), *sizes(1, 14, 25)
    kept, more = sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        outer, inner, held = make(), make(), []
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
        return out, first, later, ground.between(b, c), (*seen, lost), refused, again

    out, first, later, want, (outer, whole, lost), refused, (again, fresh) = scenes.play(scene)
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
    ends = "an exception" if isinstance(mishap, Exception) else "an exception such as KeyboardInterrupt"
    where = f"a block that ends with {ends}"
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
        likely="__exit__ does less when there is an exception: it has to read the counters and to close in any case"
        if isinstance(mishap, Exception)
        else "KeyboardInterrupt and SystemExit are no Exception, and end a block too: __exit__ has to read the "
        "counters and to close whatever comes",
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
    """A kernel's error comes out of the wait at exit, or of one at entry, before the block; the trackers are used
    again where the GPU is well."""
    trial = scenes.trial
    spike, kept = *sizes(1, 4, 6), *sizes(1, 1, 3)

    def failing() -> Any:
        table, wrong = torch.zeros(4, 2, device="cuda"), torch.tensor([9], device="cuda")
        tracker, late, ground, held = scenes.student(), scenes.student(), Ground(), []
        out: list[RuntimeError | None] = [None, None]
        start = end = ground.note()
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                with tracker:
                    held.append(ground.take(kept))
                    ground.spike(spike)
                    end = ground.note()
                    functional.embedding(wrong, table)
            except RuntimeError as error:
                out[0] = error.with_traceback(None)
            got = read(tracker)
            try:
                with late:
                    pass
            except RuntimeError as error:
                out[1] = error.with_traceback(None)
        return tracker, late, out, got, ground.between(start, end)

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
        tracker, late, out, failed, whole = trial.call(failing, who="your tracker", explain=explain)
    trial.expect(
        out[0] is not None,
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
    trial.expect(
        failed.error is None,
        "after a kernel's error a block has no values",
        expected=f"peak {whole.peak:.4g} MiB and change {whole.delta:+.4g} MiB: the block has ended",
        got=f"{type(failed.error).__name__}: {failed.error}",
        likely=_IN_FINALLY,
        read=TRACKER,
    )
    scenes.judge(failed, whole, "a block that ended with a kernel's error", likely=_IN_FINALLY)
    with gpus(2):
        refused, got, want = trial.call(lambda: again(late), who="your tracker", explain=explain)
    trial.expect(
        out[1] is None or refused is None,
        "a tracker whose wait at entry raises is open for ever",
        expected="a block that has not begun: the tracker can be used again",
        got=f"RuntimeError: {refused}",
        likely="the tracker marks itself as open before it waits, and what synchronize() raises comes out of "
        "__enter__: no __exit__ follows. Wait first, then mark it as open",
        read=TRACKER,
    )
    scenes.judge(
        got, want, "the first block of a tracker whose entry had failed before", likely="wait before you begin"
    )


_IN_FINALLY = (
    "synchronize() in __exit__ raises the kernel's error, and what stands after it never runs. The counters are kept "
    "on the host and can be read all the same: before the wait, or in a finally"
)
