"""Derive advice from a report: only sentences that its own numbers prove.

After an error, hints concern only the error; before the first optimizer step, none concerns training.
"""

from __future__ import annotations

import math

from ..gpus.specs import SPECS
from ..units import duration, mib
from . import known_errors
from .report import Gpu, Report, Steps, Tried, ran_out
from .verdict import REACH, left

_GAP = 0.25  # of what is reserved
_GAP_BYTES = 256 << 20
_IDLE = 0.75  # of the time between steps
_RECOMPUTED = 0.5  # of the peak
_WAITS = 0.1  # of the time between steps
_STEPS = 3  # fewer say little
_CUT_SHORT = "These numbers go as far as the script came, and nothing else follows from them."
_NO_STEP = "No optimizer step was seen: what training takes is not in these numbers."


def hints(report: Report) -> tuple[str, ...]:
    """Return the sentences, the most important first."""
    if _failed(report):
        known = () if _values(report) else filter(None, [known_errors.explanation(report.ending.why)])
        return (*_values(report), *known, *((_CUT_SHORT,) if report.used else ()))
    if not report.used:
        return _unused(report)
    found = [] if report.trained or ran_out(report) else [_NO_STEP]
    for gpu in report.used:
        if gpu.shortage is not None and ran_out(report):
            found += _out_of_memory(report, gpu)
        found += _reserve(report, gpu)
        found += _recomputed(gpu)
    found += _growth(report)
    found += _starved(report)
    found += _idle(report)
    return tuple(dict.fromkeys(found))


def _failed(report: Report) -> bool:
    """Return True if the script ended by an error other than out of memory; a signal is none."""
    ending = report.ending
    return ending.code != 0 and ending.kind not in ("terminated", "interrupted") and not ran_out(report)


def _unused(report: Report) -> tuple[str, ...]:
    if report.ending.code:
        return ()
    return (
        "Nothing was put on the GPU. A script does that with .to('cuda'); torch.cuda.is_available() answers True here. "
        "What processes that it starts put on theirs is not in this report.",
    )


def _values(report: Report) -> tuple[str, ...]:
    if report.shapes_only and report.ending.why.startswith("NoValues"):
        return ("The script reads values, which --shapes-only does not have; without it, it runs on.",)
    if not report.shapes_only and report.numbers == "virtual" and report.ending.why.startswith("MemoryError"):
        return ("It is this machine's memory that ended, which holds the values; --shapes-only needs none of it.",)
    return ()


def _out_of_memory(report: Report, gpu: Gpu) -> list[str]:
    short = gpu.shortage
    assert short is not None
    if report.numbers != "virtual":
        return []
    found, tried = [], short.tried
    if short.fragmented:
        found.append(
            f"Memory is fragmented: {mib(short.allocated)} are allocated, {mib(short.requested)} were asked for, and "
            f"the allocator may have {mib(short.room)} (virtual); but what it has free is in pieces that are too small."
        )
    needed = [*filter(None, [_needed(report, gpu.memory.total - short.free + short.requested, tried)])]
    if tried is None:
        return [*found, *needed]
    if tried.expandable is not None:
        found.append(
            f"With PYTORCH_ALLOC_CONF=expandable_segments:True it fits on the {report.gpu}, with a peak of "
            f"{mib(tried.expandable)} (virtual): tried with the same allocations{REACH[tried.until]}."
        )
    elif not tried.expands and (short.fragmented or short.reserved - short.allocated >= short.requested):
        found.append(
            f"PYTORCH_ALLOC_CONF=expandable_segments:True does not help: tried with the same allocations"
            f"{REACH[tried.until]}, it runs out of memory, too."
        )
    return [*found, *needed]


def _needed(report: Report, nbytes: int, tried: Tried | None) -> str:
    """State the memory that the run needs (up to that line: `nbytes`), and the smallest GPU that has it."""
    early = "" if report.trained else ", before the first optimizer step,"
    verdict_says = tried is not None and tried.until
    what = "" if verdict_says else f"Up to that line{early} the run needs {mib(nbytes)} (virtual). "
    name = _smallest(nbytes) if tried is None else tried.gpu
    if name is None:
        return f"{what}No GPU of the table has so much."
    if report.plan is not None:  # which says where it fits
        return what.strip()
    has = f"{name} ({mib(SPECS[name].memory_bytes)})"
    return f"{what}The smallest GPU of the table with so much is {has}: --gpu {name} --shapes-only shows the whole run."


def _smallest(nbytes: int) -> str | None:
    """Return the GPU with the least memory of at least `nbytes`."""
    fitting = [spec for spec in SPECS.values() if spec.memory_bytes >= nbytes]
    return min(fitting, key=lambda spec: spec.memory_bytes).name if fitting else None


def _reserve(report: Report, gpu: Gpu) -> list[str]:
    memory, found = gpu.memory, []
    gap = memory.peak_reserved - memory.peak_allocated
    if gap >= max(_GAP_BYTES, _GAP * memory.peak_reserved, left(gpu)):  # where more is left, nothing is lacking
        found.append(
            f"{mib(gap)} more were reserved than ever allocated: pieces of the allocator's cache that did not fit what "
            "was asked for."
        )
    if memory.retries and not ran_out(report):
        times = "once" if memory.retries == 1 else f"{memory.retries:,} times"
        found.append(f"Memory was full {times}, and the allocator had to give its cache back first, which waits.")
    return found


def _recomputed(gpu: Gpu) -> list[str]:
    memory = gpu.memory
    if memory.recomputed < max(_GAP_BYTES, _RECOMPUTED * memory.peak_allocated):
        return []
    return [
        f"At the peak {memory.recomputed / memory.peak_allocated:.0%} of the memory, {mib(memory.recomputed)}, is what "
        "backward computes again for a checkpoint: a checkpoint around each block holds one block's at a time."
    ]


def _growth(report: Report) -> list[str]:
    cycles = report.cycles
    if cycles is not None:
        return [
            f"Allocated memory grows by {mib(cycles.growth)} a call of backward(create_graph=True) on average"
            f"{f', at {cycles.line.file}:{cycles.line.line}' if cycles.line else ''}: .grad keeps its graph, and the "
            "graph .grad. torch.autograd.grad(…, create_graph=True) makes none; or set .grad to None after its use."
        ]
    return [
        f"Allocated memory grows by {mib(steps.growth)} a step of {steps.optimizer} on average: "
        + (
            f"the optimizer's own state does, by {mib(steps.state_growth)}."
            if 2 * steps.state_growth >= steps.growth
            else "the script keeps tensors of its steps."
        )
        for steps in report.steps
        if steps.growth
    ]


def _starved(report: Report) -> list[str]:
    steps = max(filter(_waits, report.steps), key=lambda steps: steps.waited_share or 0.0, default=None)
    if steps is None:
        return []
    waited, share = steps.waited or 0.0, steps.waited_share or 1.0
    data = dict(steps.parts).get("data", 0.0)
    if steps.median and data / steps.median > share:  # on average it is less: workers load the first batches ahead
        waited, share = data, data / steps.median
    step = waited / share
    text = f"The loop waits for data {share:.0%} of the time, {duration(waited)} a step, as this machine loads it; the "
    text += f"rest of a step takes {duration(step - waited)}."
    if step > waited:  # workers that are waited for are always at work; without any, the loop is
        needed = math.ceil((steps.workers * step or waited) / (step - waited))
        text += f" From num_workers={needed} on, with a core for each, loading keeps up."
    return [text]


def _waits(steps: Steps) -> bool:
    return (steps.waited_share or 0.0) >= _WAITS and steps.count >= _STEPS


def _idle(report: Report) -> list[str]:
    """Explain why the GPU waits, if not for data."""
    known = [steps for steps in report.steps if steps.busy_share is not None and steps.count >= _STEPS]
    steps = min(known, key=lambda steps: steps.busy_share or 0.0, default=None)
    if steps is None or (steps.busy_share or 0.0) >= _IDLE or _waits(steps):
        return []
    times = [gpu.time for gpu in report.used if gpu.time is not None and gpu.time.kernels]
    launches = sum(t.launch * t.kernels for t in times) / steps.count
    waits = "From step to step the GPU waits for"
    if steps.python and steps.python > launches:
        takes = f"{duration(steps.python)} a step on the host (measured here)"
        return [f"{waits} Python between the operations, which takes {takes}."]
    if times and (mean := sum(t.busy for t in times) / sum(t.kernels for t in times)) < times[0].launch:
        kernel = f"a kernel takes {mean * 1e6:.1f} µs on average, its launch {times[0].launch * 1e6:.1f} µs"
        return [f"{waits} launches: {kernel}. Larger batches or fewer operations fill it."]
    return []
