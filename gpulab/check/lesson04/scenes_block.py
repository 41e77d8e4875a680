"""Scenes of one tracker: a block, one that frees, a second block, and values that are read too early."""

from __future__ import annotations

from typing import Any

from ..wording import is_number, show
from . import mistakes, traces
from .common import TRACKER
from .ground import Ground, Stretch, sizes
from .scenes import NAMES, Make, Scenes, read, say, values


def one_block(scenes: Scenes) -> None:
    """A higher peak before, one between making and entering, a spike and a change inside, more afterwards."""
    low, before, kept, more, late = sizes(5, 3, 12)
    first, second, inside = *sizes(1, 90, 110), *sizes(1, 60, 80), *sizes(1, 30, 50)

    def scene(make: Make, ground: Ground) -> Any:
        held = [ground.take(low)]
        ground.spike(first)
        made = ground.note()
        tracker = make()
        held.append(ground.take(before))
        ground.spike(second)
        start = ground.note()
        with tracker as entered:
            held.append(ground.take(kept))
            ground.spike(inside)
            held.append(ground.take(more))
            end = ground.note()
        at_once = read(tracker)
        ground.spike(150)
        held.append(ground.take(late))
        return entered is tracker, at_once, read(tracker), ground, (made, start, end, ground.note())

    same, got, afterwards, ground, (made, start, end, last) = scenes.play(scene)
    scenes.has_all(got)
    scenes.trial.expect(
        same,
        "`with … as tracker` does not give the tracker",
        expected="the tracker itself, so that its values can be read after the block",
        got="another object, or None",
        likely="__enter__ has to return self",
        read=TRACKER,
    )
    want, since_made, later = ground.between(start, end), ground.between(made, end), ground.between(start, last)
    reserved = ground.between(start, end, reserved=True)
    where = f"one block on GPU 0, entered with {want.entry:.4g} MiB and left with {want.end:.4g}, a spike inside"
    scenes.judge(
        got,
        want,
        where,
        peak=(
            mistakes.NO_RESET.at(ground.between(0, end).peak),
            mistakes.RESET_IN_INIT.at(since_made.peak),
            mistakes.ABOVE_AS_PEAK.at(want.above),
            mistakes.END_AS_PEAK.at(want.end),
            mistakes.RESERVED_PEAK.at(reserved.peak),
        ),
        delta=(
            mistakes.END_AS_DELTA.at(want.end),
            mistakes.PEAK_AS_DELTA.at(want.above),
            mistakes.SIGN.at(-want.delta),
            mistakes.DELTA_FROM_INIT.at(since_made.delta),
            mistakes.RESERVED_DELTA.at(reserved.delta),
        ),
        above=(
            mistakes.PEAK_AS_ABOVE.at(want.peak),
            mistakes.DELTA_AS_ABOVE.at(want.delta),
            mistakes.ABOVE_END.at(want.peak - want.end),
        ),
    )
    scenes.trial.expect(
        afterwards.same_as(got),
        "the values change after the block",
        expected=f"peak {want.peak:.4g} MiB and change {want.delta:+.4g} MiB, also when more is allocated later",
        got=f"peak {say(afterwards['peak_memory_mb'])}, change {say(afterwards['memory_delta_mb'])}; the counters "
        f"give {later.peak:.4g} and {later.delta:+.4g} by then",
        likely="the counters are read when a value is asked for: read them in __exit__, and keep what they said",
        read=TRACKER,
    )
    scenes.trial.expect(
        got["available"] is True,
        "available is not True on a GPU",
        expected="available == True: there was a GPU to measure",
        got=show(got["available"]),
        likely="it says whether there was a GPU at entry",
        read=TRACKER,
    )
    scenes.judge_by_gpu(got, {0: want}, where)


def frees(scenes: Scenes) -> None:
    """The block frees more than it takes."""
    large, small, little = *sizes(1, 20, 30), *sizes(2, 3, 9)

    def scene(make: Make, ground: Ground) -> Any:
        held = [ground.take(large), ground.take(small)]
        tracker = make()
        start = ground.note()
        with tracker:
            del held[0]
            ground.note()
            held.append(ground.take(little))
            end = ground.note()
        return read(tracker), ground.between(start, end)

    got, want = scenes.play(scene)
    scenes.judge(
        got,
        want,
        f"a block that frees a tensor of {large:.4g} MiB and takes one of {little:.4g}",
        delta=(mistakes.CLAMPED.at(0.0), mistakes.ABSOLUTE.at(-want.delta)),
    )


def again(scenes: Scenes) -> None:
    """The same tracker, a second and a third time, each with less."""
    rounds = list(zip(sizes(1, 90, 110) + sizes(1, 50, 70) + sizes(1, 20, 30), sizes(3, 3, 12), strict=True))

    def scene(make: Make, ground: Ground) -> Any:
        tracker, held, seen = make(), [], []
        for spike, size in rounds:
            start = ground.note()
            with tracker:
                ground.spike(spike)
                held.append(ground.take(size))
                end = ground.note()
            seen.append((read(tracker), start, end))
            held.append(ground.take(1.0))
        return seen, ground

    seen, ground = scenes.play(scene)
    first = seen[0][1]
    for which, (_, begin, until), (got, start, end) in zip(("second", "third"), seen, seen[1:], strict=False):
        want, before = ground.between(start, end), ground.between(begin, until)
        scenes.judge(
            got,
            want,
            f"the {which} block of the same tracker",
            peak=(
                mistakes.STALE_PEAK.at(max(before.peak, want.entry)),
                mistakes.ADDED_PEAKS.at(before.peak + want.peak),
            ),
            delta=(
                mistakes.STALE_DELTA.at(before.delta),
                mistakes.FIRST_ENTRY.at(want.end - ground.between(first, first).end),
                mistakes.ADDED_DELTAS.at(before.delta + want.delta),
            ),
        )


def read_early(scenes: Scenes) -> None:
    """Before the first block, in the first one, and in the second, where another tracker has reset the counter since
    the peak: the values up to then, or RuntimeError."""
    first, second, (kept, more) = *sizes(1, 60, 70), *sizes(1, 30, 50), sizes(2, 3, 12)

    def scene(make: Make, ground: Ground) -> Any:
        held = [ground.take(kept)]
        tracker = make()
        seen: list[Any] = [(_one_by_one(tracker), None, None)]
        for spike, size, others in ((first, kept, 0), (second, more, 1)):
            start = ground.note()
            with tracker:
                ground.spike(spike)
                held.append(ground.take(size))
                for _ in range(others):
                    with make():
                        pass
                now = ground.note()
                counter = ground.between(now, now) if others else None
                seen.append((_one_by_one(tracker), ground.between(start, now), counter))
                ground.spike(2.0)
        return seen

    moments = ("before the first block", "inside the block", "inside the second block")
    for when, (seen, want, counter) in zip(moments, scenes.play(scene), strict=True):
        for name, value in seen.items():
            _judge_early(scenes, name, when, value, want and _all(want)[name], counter and _all(counter)[name])


def _all(stretch: Stretch) -> dict[str, Any]:
    """What a tracker of this stretch of GPU 0 has to say."""
    return values(stretch) | {"peak_by_gpu": {0: stretch.peak}, "delta_by_gpu": {0: stretch.delta}}


def _one_by_one(tracker: Any) -> dict[str, Any]:
    """Each value, or the error that came for it."""
    seen: dict[str, Any] = {}
    for name in NAMES[1:]:
        try:
            seen[name] = getattr(tracker, name)
        except Exception as error:
            seen[name] = error
    return seen


def _judge_early(scenes: Scenes, name: str, when: str, value: Any, right: Any, counter: Any) -> None:
    """`right` is the value up to now, None before the first block; `counter` is what PyTorch's counter gives, where
    that is another one."""
    if isinstance(value, RuntimeError):
        return
    if right is not None and traces.agree(value, right):
        return
    wanted = "RuntimeError" if right is None else f"{traces.text(right)}, the value up to now, or RuntimeError"
    got = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else show(value)
    rows = {"expected": f"{name} {when}: {wanted}", "got": got}
    if isinstance(value, Exception):
        scenes.trial.fail(
            f"reading {when} gives {type(value).__name__}",
            likely="whoever reads too early should be told so: let the values be properties that raise RuntimeError, "
            "or that give the value up to now",
            read=TRACKER,
            **rows,
        )
    if counter is not None and "peak" in name and traces.agree(value, counter):
        scenes.trial.fail(
            mistakes.RESET_INSIDE.summary, likely=mistakes.RESET_INSIDE.likely, read=mistakes.RESET_INSIDE.read, **rows
        )
    if "second" in when and value and (is_number(value) or isinstance(value, dict)):
        scenes.trial.fail(
            "inside the second block the values of the first are still there",
            likely="old values look like new ones: clear them in __enter__, or give the value up to now",
            read=TRACKER,
            **rows,
        )
    scenes.trial.fail(
        f"reading {when} gives {'None' if value is None else 'a number that was not measured'}"
        if not isinstance(value, dict)
        else f"reading {when} gives a dict that was not measured",
        likely="0, None or an empty dict from __init__ looks like a result: raise RuntimeError until there is a value, "
        "or give the value up to now",
        read=TRACKER,
        **rows,
    )
