"""Scenes of trackers within trackers, in one thread and in two: who resets the one counter, and who knew it before."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ..wording import is_number, show
from . import mistakes
from .common import TRACKER
from .ground import Ground, sizes
from .scenes import Make, Scenes, read


def nested(scenes: Scenes) -> None:
    """One tracker within another; the highest moment before the inner one, in it, or after it."""
    for high in ("before it", "in it", "after it"):
        _nested(scenes, high)


def _nested(scenes: Scenes, high: str) -> None:
    spikes = {"before it": sizes(1, 45, 55)[0], "in it": sizes(1, 60, 70)[0], "after it": sizes(1, 20, 28)[0]}
    spikes[high] = sizes(1, 90, 110)[0]
    base, kept = sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        held, outer, inner = [ground.take(base)], make(), make()
        marks = [ground.note()]
        with outer:
            ground.spike(spikes["before it"])
            marks.append(ground.note())
            with inner:
                held.append(ground.take(kept))
                ground.spike(spikes["in it"])
                marks.append(ground.note())
            ground.spike(spikes["after it"])
            marks.append(ground.note())
        return read(outer), read(inner), ground, marks

    outer, inner, ground, (start, enter, leave, end) = scenes.play(scene)
    before, within, after = (ground.between(*pair).peak for pair in ((start, enter), (enter, leave), (leave, end)))
    scenes.judge(
        inner,
        ground.between(enter, leave),
        "the inner of two trackers",
        peak=(mistakes.INNER_KEEPS.at(max(before, within)),),
    )
    suspects = {
        "before it": (mistakes.ERASED.at(max(within, after)), mistakes.ONLY_AFTER.at(after)),
        "in it": (mistakes.ONLY_AFTER.at(after), mistakes.NOT_FOLDED.at(max(before, after))),
        "after it": (mistakes.FORGOTTEN_AFTER.at(max(before, within)), mistakes.FORGOTTEN_AFTER.at(before)),
    }
    where = f"the outer of two trackers; the highest moment is outside of the inner one, {high}"
    where = "the outer of two trackers; the highest moment is in the inner one" if high == "in it" else where
    scenes.judge(outer, ground.between(start, end), where, peak=suspects[high])


def deeply_nested(scenes: Scenes) -> None:
    """Three deep, two beside each other, and the highest moment of each level at another place."""
    least, low, middle, high = *sizes(1, 20, 30), *sizes(1, 40, 50), *sizes(1, 60, 80), *sizes(1, 90, 110)
    kept, also = sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        a, b, c, d = make(), make(), make(), make()
        held, marks = [], {"a": [ground.note()]}
        with a:
            ground.spike(high)
            marks["b"] = [ground.note()]
            with b:
                ground.spike(middle)
                held.append(ground.take(kept))
                marks["c"] = [ground.note()]
                with c:
                    ground.spike(low)
                    held.append(ground.take(also))
                    marks["c"].append(ground.note())
                marks["d"] = [ground.note()]
                with d:
                    ground.spike(least)
                    del held[0]
                    marks["d"].append(ground.note())
                marks["b"].append(ground.note())
            ground.spike(low)
            marks["a"].append(ground.note())
        return {name: (read(t), ground.between(*marks[name])) for name, t in zip("abcd", (a, b, c, d), strict=True)}

    seen = scenes.play(scene)
    words = {"a": "the outermost", "b": "the middle one", "c": "the first innermost", "d": "the second innermost"}
    for name, (got, want) in sorted(seen.items(), reverse=True):
        elsewhere = [got["peak_memory_mb"]] if is_number(got["peak_memory_mb"]) else []
        scenes.judge(
            got,
            want,
            f"{words[name]} of four trackers, up to three of them open",
            peak=[mistakes.NOT_ALL.at(value) for value in elsewhere],
            likely=mistakes.NOT_ALL.likely,
        )


def tower(scenes: Scenes) -> None:
    """Six deep; the highest moment stands next to the last."""
    spikes = [16.0 * level + size for level, size in enumerate(sizes(5, 3, 12), 1)] + [2.0]

    def scene(make: Make, ground: Ground) -> Any:
        with contextlib.ExitStack() as stack:
            start = ground.note()
            trackers = []
            for spike in spikes:
                trackers.append(stack.enter_context(make()))
                ground.spike(spike)
        return [read(tracker) for tracker in trackers], ground, start

    found, ground, start = scenes.play(scene)
    for level, got in enumerate(found):
        peak = got["peak_memory_mb"]
        scenes.judge(
            got,
            ground.between(start + 2 * level, len(ground.log) - 1),
            f"tracker {level + 1} of six, each inside the one before",
            peak=[mistakes.NOT_ALL.at(peak)] if is_number(peak) else [],
            likely=mistakes.NOT_ALL.likely,
        )


def entered_twice(scenes: Scenes) -> None:
    """One tracker, entered again while it is open, and when another has reset the counter since its peak."""
    spike, kept, late = *sizes(1, 40, 50), *sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        tracker, raised, held = make(), None, []
        start = ground.note()
        with tracker:
            ground.spike(spike)
            held.append(ground.take(kept))
            with make():
                pass
            try:
                tracker.__enter__()
            except Exception as error:
                raised = error
            else:
                tracker.__exit__(None, None, None)
            held.append(ground.take(late))
            end = ground.note()
        once = read(tracker)
        again = ground.note()
        with tracker:
            ground.spike(late)
            last = ground.note()
        return raised, once, ground.between(start, end), read(tracker), ground.between(again, last)

    raised, once, want, then, fresh = scenes.play(scene)
    scenes.trial.expect(
        isinstance(raised, RuntimeError),
        "one tracker can be entered twice at the same time",
        expected="RuntimeError from __enter__ while the tracker's own block is open",
        got="no error" if raised is None else f"{type(raised).__name__}: {raised}",
        likely="the second entry overwrites what the first has noted, and nobody is told. Refuse it: raise "
        "RuntimeError when the tracker is among the open ones",
        read=TRACKER,
    )
    seen = [once[name] if is_number(once[name]) else want.peak for name in ("peak_memory_mb", "memory_delta_mb")]
    peak, delta = ([mistakes.SPOILT.at(value)] for value in seen)
    scenes.judge(once, want, "the open block, after a second entry was refused", peak=peak, delta=delta)
    where = "the next block of a tracker whose second entry was refused"
    scenes.judge(then, fresh, where, likely=mistakes.SPOILT.likely)


def crossed(scenes: Scenes) -> None:
    """One in another thread, which begins within this one's block and ends after it."""
    high, low, kept = *sizes(1, 60, 80), *sizes(1, 20, 30), *sizes(1, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        first, second, held = make(), make(), []
        errors: list[BaseException] = []
        entered, first_is_over, marks = threading.Event(), threading.Event(), list[int]()

        def work() -> None:
            try:
                marks.append(ground.note())
                with second:
                    entered.set()
                    first_is_over.wait()
                    ground.spike(high)
                    held.append(ground.take(kept))
                    marks.append(ground.note())
            except BaseException as error:
                errors.append(error)
            finally:
                entered.set()

        start, thread = ground.note(), threading.Thread(target=work, daemon=True)
        try:
            with first:
                ground.spike(low)
                thread.start()
                entered.wait()
                end = ground.note()
        finally:
            first_is_over.set()
            if thread.ident is not None:  # it was started
                thread.join()
        for error in errors:
            raise error
        return read(first), read(second), ground, (start, end), marks

    first, second, ground, marks, others = scenes.play(scene)
    who = "of two trackers in two threads, of which the one that began later ends later"
    own = "at its exit a tracker takes itself off the list of open ones, which need not be the last"
    scenes.judge(second, ground.between(*others), f"the later {who}", likely=own)
    scenes.judge(first, ground.between(*marks), f"the earlier {who}", likely=own)


def another_thread(scenes: Scenes) -> None:
    """A tracker in another thread, while one is open in this."""
    high, low, kept = *sizes(1, 60, 80), *sizes(1, 20, 30), *sizes(1, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        outer, inner, held = make(), make(), []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with inner:
                    ground.spike(low)
                    held.append(ground.take(kept))
            except BaseException as error:
                errors.append(error)

        start = ground.note()
        with outer:
            ground.spike(high)
            middle = ground.note()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            end = ground.note()
        for error in errors:
            raise error
        return read(outer), ground, start, middle, end

    got, ground, start, middle, end = scenes.play(scene)
    scenes.judge(
        got,
        ground.between(start, end),
        "a tracker in this thread, while another thread uses one",
        peak=(mistakes.THREADS.at(ground.between(middle, end).peak),),
        likely=f"all threads share the GPU's one counter; the peak shown is {show(got['peak_memory_mb'])}",
    )
