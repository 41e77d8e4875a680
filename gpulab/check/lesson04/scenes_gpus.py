"""Scenes of several GPUs, of none, and of a GPU that is still at work."""

from __future__ import annotations

from typing import Any

import torch

from ..wording import is_number, show
from . import mistakes
from .common import MIB, TRACKER, Suspect, gpus, no_gpu
from .ground import GPUS, Ground, sizes
from .scenes import NAMES, Make, Scenes, explain, read
from .scenes_errors import Mishap

Device = int | str | None


def watched(device: Device, current: int) -> tuple[int, ...]:
    return GPUS if device == "all" else (current if device is None else int(device),)


def devices(scenes: Scenes) -> None:
    """A GPU by its number, the current one while the current one changes, and all of them."""
    spikes = *sizes(1, 30, 40), *sizes(1, 50, 60)
    kept, other, less = sizes(3, 3, 12)

    def scene(make: Make, ground: Ground, device: Device, current: int, then: int) -> Any:
        held = [ground.take(kept, 0), ground.take(other, 1)]
        ground.spike(100, 0)
        ground.spike(120, 1)
        tracker = make() if device is None else make(device=device)
        with torch.cuda.device(current):
            start = ground.note()
            with tracker:
                ground.spike(spikes[0], 0)
                held.append(ground.take(other, 0))
                torch.cuda.set_device(then)
                ground.spike(spikes[1], 1)
                held.append(ground.take(less, 1))
                end = ground.note()
            return read(tracker), ground, start, end

    cases: tuple[tuple[Device, int, int], ...] = ((1, 0, 0), (None, 1, 1), (None, 0, 1), (None, 1, 0), ("all", 0, 1))
    for device, current, then in cases:
        got, ground, start, end = scenes.play(scene, device, current, then)
        gpus = watched(device, current)
        moved = f" and GPU {then} at exit" if then != current else ""
        where = f"device={device!r}, GPU {current} current at entry{moved}"
        peak, delta = _of_others(ground, start, end, device, current, then)
        likely = "each GPU has counters of its own: ask for each by its number"
        scenes.judge(got, ground.between(start, end, *gpus), where, peak=peak, delta=delta, likely=likely)
        scenes.judge_by_gpu(got, {gpu: ground.between(start, end, gpu) for gpu in gpus}, where)


def _of_others(
    ground: Ground, start: int, end: int, device: Device, current: int, then: int
) -> tuple[list[Suspect], list[Suspect]]:
    """The peaks and the changes that a tracker shows which looks at another GPU than it should."""
    alone = [ground.between(start, end, gpu) for gpu in GPUS]
    if device == "all":
        at_once = max(sum(line[gpu][0] for gpu in GPUS) for line in ground.log[start : end + 1]) / MIB
        peaks = [mistakes.PEAK_OF_SUM.at(at_once), *(mistakes.ONE_OF_ALL.at(one.peak) for one in alone)]
        return peaks, [mistakes.ONE_OF_ALL.at(one.delta) for one in alone]
    both = ground.between(start, end, *GPUS)
    words = mistakes.FOLLOWS_CURRENT if device is None else mistakes.DEVICE_IGNORED
    if device is None and current == then:
        words, then = mistakes.GPU_WHEN_MADE, 0
    wrong = alone[then]
    since = ground.between(0, end, then)
    peaks = [words.at(wrong.peak), words.at(since.peak), mistakes.ALL_FOR_ONE.at(both.peak)]
    changes = [wrong.delta, wrong.end - alone[current].entry]
    return peaks, [*(words.at(change) for change in changes), mistakes.ALL_FOR_ONE.at(both.delta)]


def nested_devices(scenes: Scenes) -> None:
    """Trackers of different GPUs inside each other: what one resets and notes is its own GPU's business."""
    low, middle, high = *sizes(1, 30, 40), *sizes(1, 50, 60), *sizes(1, 70, 90)
    kept, less = sizes(2, 3, 12)

    def scene(make: Make, ground: Ground, outer_device: Device, inner_device: Device) -> Any:
        outer, inner, held = make(device=outer_device), make(device=inner_device), []
        a = ground.note()
        with outer:
            ground.spike(low, 0)
            ground.spike(high, 1)
            b = ground.note()
            with inner:
                held.append(ground.take(kept, 0))
                ground.spike(middle, 1)
                ground.spike(less, 0)
                c = ground.note()
            d = ground.note()
        return read(outer), read(inner), ground, (a, b, c, d)

    pairs: tuple[tuple[Device, Device], ...] = ((None, 0), (0, 1), (1, 0), ("all", 1), (1, "all"))
    for outer_device, inner_device in pairs:
        outer, inner, ground, (a, b, c, d) = scenes.play(scene, outer_device, inner_device)
        of_outer, of_inner = watched(outer_device, 0), watched(inner_device, 0)
        where = f"device={outer_device!r} outside, device={inner_device!r} inside"
        own = {gpu: ground.between(a, d, gpu) for gpu in of_outer}
        scenes.judge(inner, ground.between(b, c, *of_inner), f"the inner tracker, {where}")
        erased = sum(ground.between(b if gpu in of_inner else a, d, gpu).peak for gpu in of_outer)
        foreign = [ground.between(a, d, gpu).peak for gpu in GPUS] + [ground.between(b, c, gpu).peak for gpu in GPUS]
        words = mistakes.SAME_GPU if of_outer == of_inner else mistakes.ERASED_ELSEWHERE
        suspects = [words.at(erased), *(mistakes.ACROSS.at(peak) for peak in foreign)]
        scenes.judge(outer, ground.between(a, d, *of_outer), f"the outer tracker, {where}", peak=suspects)
        scenes.judge_by_gpu(outer, own, f"the outer tracker, {where}")


def without_a_gpu(scenes: Scenes) -> None:
    """No CUDA: the tracker does nothing, says so, and reports zeros."""

    def scene() -> Any:
        seen = []
        for device in (None, "all", 1):
            tracker = scenes.student() if device is None else scenes.student(device=device)
            with tracker, scenes.student():
                torch.ones(8)
            out = None
            try:
                with tracker:
                    raise Mishap
            except Mishap as error:
                out = error
            seen.append((read(tracker), out, tracker))
        return seen

    trial = scenes.trial
    found = trial.call(scene, who="your tracker", explain=_explain, inside=no_gpu())
    for got, out, tracker in found:
        rows = {"expected": "on a machine without a GPU: available False, 0.0 for every value, {} by GPU, no error"}
        trial.expect(
            out is not None, "without a GPU an exception in the block is swallowed", got="none", read=TRACKER, **rows
        )
        scenes.has_all(got)
        trial.expect(
            got["available"] is False,
            "without a GPU available is not False",
            got=f"available is {show(got['available'])}",
            likely="0 MiB measured and nothing measured are different things: available tells them apart",
            read=TRACKER,
            **rows,
        )
        numbers, dicts = ([got[name] for name in names] for names in (NAMES[1:4], NAMES[4:]))
        said = f"{', '.join(map(show, numbers))}; by GPU {' and '.join(map(show, dicts))}"
        trial.expect(
            all(value is None or (is_number(value) and value == 0) for value in numbers) and not any(dicts),
            "without a GPU there are values",
            got=said,
            likely="nothing was measured: 0.0 each, and no GPU in peak_by_gpu and delta_by_gpu",
            read=TRACKER,
            **rows,
        )
        trial.expect(
            None not in numbers and all(isinstance(value, dict) for value in dicts),
            "without a GPU a value is None",
            got=said,
            likely="whoever adds up or prints the values does so on a laptop, too: 0.0 and {}, with available False "
            "beside them",
            read=TRACKER,
            **rows,
        )
        with gpus(1):
            now = trial.call(lambda tracker=tracker: tracker.available, who="your tracker", explain=explain)
        trial.expect(
            now is False,
            "available is that of the moment in which it is read",
            expected="False for a block without a GPU, also where there is one by now",
            got=show(now),
            likely="what a tracker said at the end of its block it says from then on: note at entry whether there is a "
            "GPU",
            read=TRACKER,
        )


def _explain(error: str) -> str:
    if any(text in error for text in ("invalid argument to reset_peak_memory_stats", "NVIDIA driver", "not compiled")):
        return (
            "memory_allocated() answers 0 without a GPU; reset_peak_memory_stats(), current_device() and synchronize() "
            "raise. Ask torch.cuda.is_available() in __enter__, and do nothing where it is False"
        )
    return explain(error)


def synchronises(scenes: Scenes) -> None:
    """Work that is under way at entry and at exit, in the default stream of the watched GPU and in another."""

    def scene(make: Make, ground: Ground, device: Device, busy: int, current: int) -> Any:
        a = torch.empty(4096, 4096, device=f"cuda:{busy}")
        streams = [torch.cuda.default_stream(busy), torch.cuda.Stream(busy)]
        tracker = make(device=device)

        def work() -> None:
            for stream in streams:
                with torch.cuda.stream(stream):
                    for _ in range(4):
                        a @ a

        with torch.cuda.device(current):
            work()
            with tracker:
                entered = [stream.query() for stream in streams]
                work()
                torch.cuda.set_device(0)
            return entered, [stream.query() for stream in streams]

    blame = {
        "entry": "one from before the block is then not blamed on it",
        "exit": "one of this block then comes out of this block",
    }
    cases: tuple[tuple[Device, int, int, str, str], ...] = (
        (0, 0, 0, "", ""),
        (1, 1, 0, ", when it is not the current one", ". Without a number it waits for the current GPU only"),
        ("all", 1, 0, ', when device is "all"', ". Without a number it waits for the current GPU only: wait for each"),
        (None, 1, 1, ", when another one is current by then", ". Wait for the one that was current at entry"),
    )
    for device, busy, current, when, more in cases:
        for (what, whose), done in zip(blame.items(), scenes.play(scene, device, busy, current), strict=True):
            scenes.trial.expect(
                done[0],
                f"the tracker does not wait for the GPU at {what}{when}",
                expected=f"an idle GPU {busy} after {what}",
                got=f"GPU {busy} still at work",
                likely="torch.cuda.synchronize(gpu). The counts do not need it, for the allocator keeps its books on "
                f"the host; but an error in a kernel shows up at the next wait: {whose}{more}",
                read=TRACKER,
            )
            scenes.trial.expect(
                done[1],
                f"the tracker waits for one stream of the GPU at {what}, not for all",
                expected=f"an idle GPU {busy} after {what}",
                got=f"a stream of GPU {busy} still at work, and not the default one",
                likely="stream.synchronize() waits for what this stream has been given, torch.cuda.synchronize(gpu) "
                "for the whole GPU",
                read=TRACKER,
            )
