"""Format a report as aligned terminal text, each number with its source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ..units import duration, mib, with_prefix
from .report import Gpu, Report, Share, Steps, ran_out

_LABEL = 18
_WIDTH = 118
_SHARES = 3
_OPTIMIZERS = 3
_LATE = 0.01  # of the time in collectives: shorter waits for other ranks are not shown


def as_text(report: Report, hints: Iterable[str]) -> str:
    """Return the report's lines."""
    rows = [("ended", _ending(report))]
    rows += [("at", _cut(str(report.ended_at)))] if report.ended_at is not None else []
    rows += [
        ("waits in" if not at else "", line)
        for at, line in enumerate(textwrap.wrap(report.waits_in, _WIDTH - _LABEL - 2))
    ]
    used = report.used
    several = len(used) > 1
    most = max(used, key=lambda gpu: gpu.memory.peak_allocated, default=None)
    for gpu in used:
        rows += _memory(report, gpu, f"cuda:{gpu.index}: " if several else "", holders=gpu is most)
    rows += [row for gpu in used if gpu.time for row in _time(report, gpu, f"cuda:{gpu.index}: " if several else "")]
    rows += [row for gpu in used[:1] for row in _categories(report, gpu)]
    rows += [("steps" if not at else "", _steps(report, steps)) for at, steps in enumerate(report.steps[:_OPTIMIZERS])]
    rows += [row for steps in report.steps[:1] for row in _waited(steps)]
    rows += [row for steps in report.steps[:1] for row in _between(report, steps)]
    rows += _scaling(report)
    if len(report.steps) > _OPTIMIZERS:
        rows.append(("", f"and of {len(report.steps) - _OPTIMIZERS} more optimizers: --json has all"))
    if report.operations:
        share = report.remembered / report.operations
        rows.append(("shapes", f"{share:.0%} of {report.operations:,} operations were remembered (counted)"))
    lines = [_title(report), *(f"  {label:<{_LABEL}}{value}".rstrip() for label, value in rows)]
    for sentence in (*report.notes, *hints):
        lines += textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _title(report: Report) -> str:
    where = f"a virtual {report.gpu}" if report.numbers == "virtual" else report.gpu
    where += ", shapes only" if report.shapes_only else ""
    rank = "" if report.rank is None else f", rank {report.rank} of {report.world_size}"
    imagined = ", the others imagined" if report.imagined and report.world_size > 1 else ""
    return f"gpulab run: {report.name} on {where}{rank}{imagined}"


def _categories(report: Report, gpu: Gpu) -> list[tuple[str, str]]:
    """Show the memory by category in one line."""
    if not gpu.memory.categories:
        return []
    parts = [f"{name.replace('_', ' ')} {mib(nbytes)}" for name, nbytes in gpu.memory.categories]
    wrapped = textwrap.wrap(", ".join(parts) + " (virtual)", _WIDTH - _LABEL - 2)
    return [("in the third step" if not at else "", line) for at, line in enumerate(wrapped)]


def _between(report: Report, steps: Steps) -> list[tuple[str, str]]:
    """Show the communication of a step."""
    found = steps.between
    if found is None:
        return []
    text = (
        f"{duration(found.seconds)} of a step in {found.collectives:,.0f} collectives of {mib(round(found.nbytes))}, "
        f"{duration(found.exposed)} exposed, {duration(found.seconds - found.exposed)} beside kernels (virtual)"
    )
    rows = [("between ranks", text)]
    if found.waited > _LATE * found.seconds:
        rows.append(("", f"in {duration(found.waited)} of it this rank is there and another is not yet (virtual)"))
    if report.joined:
        rows.append(("", report.joined))
    return rows


def _scaling(report: Report) -> list[tuple[str, str]]:
    """Show the throughput of all ranks against the script on one GPU."""
    alone = report.alone
    if alone is None:
        return []
    if report.scaling is None or alone.median is None:
        return [("scaling", f"not known: {alone.why or 'no two steps of an optimizer on the GPU'}")]
    without = " without DistributedDataParallel" if alone.skipped_ddp else ""
    text = f"{report.scaling:.2f} of {report.world_size}: one GPU{without} takes a step every {duration(alone.median)}"
    return [("scaling", f"{text} (virtual)")]


def _ending(report: Report) -> str:
    ending = report.ending
    text = f"exit code {ending.code} after {duration(report.host_seconds)} on this machine (measured)"
    if ending.kind == "terminated":
        text = f"by SIGTERM after {duration(report.host_seconds)} on this machine (measured)"
    elif ending.why and ending.code:
        text += f": {'out of memory' if ran_out(report) else ending.why}"
    return _cut(text)


def _cut(text: str, width: int = _WIDTH - _LABEL) -> str:
    return text if len(text) <= width else text[: width - 2] + " …"


def _memory(report: Report, gpu: Gpu, where: str, *, holders: bool) -> list[tuple[str, str]]:
    memory, short = gpu.memory, gpu.shortage
    numbers = f"({report.numbers})"
    text = f"{where}{mib(memory.peak_allocated)} allocated, {mib(memory.peak_reserved)} reserved"
    if memory.peak_used is not None:
        full = memory.peak_used / memory.total
        text += f"; with the context {mib(memory.peak_used)} of {mib(memory.total)}, {full:.0%}"
    else:
        text += f", of {mib(memory.total)}"
    rows = [("peak memory", f"{text} {numbers}")]
    if short is not None:
        at = f"{short.line}" if short.line else "PyTorch's own"
        rows.append(
            ("out of memory", f"{where}asked for {mib(short.requested)}, free {mib(short.free)}: {mib(short.missing)} "
                              f"missing {numbers}")
        )  # fmt: skip
        rows.append(("asked at", _cut(at)))
        if not ran_out(report):
            times = "once" if memory.failures == 1 else f"{memory.failures:,} times, the last of them here"
            rows.append(("", f"{times}, and the script went on"))
        rows += _shares("held then by", short.shares, short.allocated)
    else:
        rows += _holders(gpu) if holders else []
        text = f"{where}{mib(memory.end_allocated)} allocated, {mib(memory.end_reserved)} reserved {numbers}"
        rows.append(("at the end", text))
    return rows


def _holders(gpu: Gpu) -> list[tuple[str, str]]:
    memory = gpu.memory
    rows = [] if memory.peak_line is None else [("peak reached at", _cut(str(memory.peak_line)))]
    return rows + _shares("peak held by", memory.peak_shares, memory.peak_allocated)


def _shares(label: str, shares: tuple[Share, ...], total: int) -> list[tuple[str, str]]:
    shown = shares[:_SHARES]
    rows = []
    for at, share in enumerate(shown):
        rows.append(
            (label if at == 0 else "", f"{mib(share.nbytes):>12}  {_cut(str(share.line), _WIDTH - _LABEL - 14)}")
        )
    rest = total - sum(share.nbytes for share in shown)
    if rest and rows:
        rows.append(("", f"{mib(rest):>12}  other lines"))
    return rows


def _time(report: Report, gpu: Gpu, where: str) -> list[tuple[str, str]]:
    time = gpu.time
    if time is None or not time.kernels:
        return []
    share = f", {time.busy / time.elapsed:.0%} of {duration(time.elapsed)}" if time.elapsed else ""
    kernels = f"{time.kernels:,} kernel{'s' * (time.kernels > 1)}"
    rows = [("GPU time", f"{where}{duration(time.busy)} in {kernels}{share} (virtual, {time.source})")]
    if time.flop_seconds:
        peaks = ", ".join(f"{rate:g} {dtype}" for dtype, rate in report.tflops)
        rate = f"{with_prefix(time.flops / time.flop_seconds)}FLOP/s"
        reached = f"{rate} in matrix products, while they run (virtual)"
        rows.append(("", reached + (f"; peaks: {peaks}" if peaks else "")))
    return rows


def _steps(report: Report, steps: Steps) -> str:
    text = f"{steps.count:,} of {steps.optimizer} ({with_prefix(steps.parameters)} parameters, {steps.device})"
    if steps.median is not None and (steps.median > 0 or report.numbers == "measured"):
        text += f", every {duration(steps.median)} ({report.numbers} median)"
    if steps.host_median is not None:
        text += f", {duration(steps.host_median)} here (measured)"
    return text


def _waited(steps: Steps) -> list[tuple[str, str]]:
    """Show the time that the loop waited for data, which this machine loads, for a virtual GPU too."""
    if steps.waited is None or steps.waited_share is None:
        return []
    share = f"{steps.waited_share:.0%} of the time from step to step"
    return [("waited for data", f"{duration(steps.waited)} a step in DataLoader.__next__, {share} (measured here)")]
