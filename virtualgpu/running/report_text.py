"""Format a report as text of 80 columns: the verdict, memory, speed, and what to change."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from ..units import duration, mib, three_figures, with_prefix
from .report import Breakdown, Gpu, Planned, Report, Share, Steps, Tensors, ran_out
from .source_lines import Line
from .verdict import a_gpu, verdict

WIDTH = 80
_LABEL = 16
_SHARES = 3
_OPTIMIZERS = 3
_SMALL = 0.01  # of the bytes at the peak: smaller categories, and lines that hold less, are not shown
_PATH = 12  # characters of a module's path that are shown beside the operation
_BY_OPERATION = ("activations", "temporaries", "data")  # which are told apart by what made them
_PRODUCTS = ("fp32", "tf32", "fp16")  # whose peak rates are shown: bf16 has that of fp16
_WHAT_IF = (
    "--what-if tries one change at a time on the script (16 bits, checkpointing, half the batch, other GPUs, …), and "
    "shows the bytes and the time of each."
)
_LATE = 0.01  # of the time in collectives: shorter waits for other ranks are not shown
Rows = list[tuple[str, str]]
# Of steps recorded or published, the median error of the predicted time: docs/accuracy.md.
OFF = {
    "H100": "10 to 30%", "H200": "17 to 54%", "A100-80": "18%", "A100-40": "17%", "V100-16": "10%", "L40S": "11%",
    "RTX3090": "6%", "RTX4090": "8%", "RTX5090": "5%", "RTXPRO6000-MAXQ": "14%",
}  # fmt: skip


def as_text(report: Report, hints: Iterable[str]) -> str:
    """Return the report's lines."""
    lines = [*_wrap(_title(report)), *_wrap(f"Verdict: {verdict(report)}")]
    waits: Rows = [("at", _cut(str(report.ended_at)))] if report.ended_at is not None else []
    waits += [("waits in", report.waits_in)] if report.waits_in else []
    used = report.used
    most = max(used, key=lambda gpu: gpu.memory.peak_allocated, default=None)
    memory = [row for gpu in used for row in _memory(report, gpu, holders=gpu is most or gpu.shortage is not None)]
    speed = [row for at, steps in enumerate(report.steps[:_OPTIMIZERS]) for row in _steps(report, steps, first=not at)]
    if len(report.steps) > _OPTIMIZERS:
        speed.append(("", f"and of {len(report.steps) - _OPTIMIZERS} more optimizers: --json has all"))
    speed += [row for gpu in used for row in _time(report, gpu)]
    speed += _scaling(report)
    for heading, rows in (
        ("", waits),
        ("", [] if report.plan is None else _planned(report.plan)),
        (f"Memory ({report.numbers})", memory),
        (f"Speed ({report.numbers}{_rates(report)})", speed),
    ):
        lines += [heading] if heading and rows else []
        lines += [line for label, text in rows for line in _row(label, text)]
    found = [*report.notes, *hints]
    if report.numbers == "virtual" and (report.rank is None or report.imagined) and report.plan is None:
        found += [_WHAT_IF] if ran_out(report) or (report.ending.code == 0 and report.steps) else []
    lines += ["What to change"] if found else []
    for sentence in found:
        lines += _wrap(sentence, "  - ", "    ")
    return "\n".join(lines) + "\n"


def _title(report: Report) -> str:
    where = f"a virtual {report.gpu}" if report.numbers == "virtual" else report.gpu
    where += ", shapes only" if report.shapes_only else ""
    rank = "" if report.rank is None else f", rank {report.rank} of {report.world_size}"
    imagined = ", the others imagined" if report.imagined and report.world_size > 1 else ""
    command = "gpulab run" if report.plan is None else "virtualgpu plan"
    return f"{command}: {_cut(report.name, WIDTH // 2)} on {where}{rank}{imagined}"


def _planned(plan: Planned) -> Rows:
    answers = (("fits on", True, ""), ("not on", False, ""), ("perhaps on", None, " (plan for it)"))
    rows = [(label, _names(plan, answer) + more) for label, answer, more in answers if _names(plan, answer)]
    if plan.largest is not None:
        found = f"batch {plan.largest:,}" if plan.largest else "not even batch 1 fits"
        rows.append(("largest batch", f"{found} ({plan.tried} tried)"))
    return rows


def _names(plan: Planned, answer: bool | None) -> str:
    return ", ".join(name for name, fits in plan.fits_on if fits is answer)


def _row(label: str, text: str) -> list[str]:
    """Return a row's lines: the label, and the text beside it."""
    first = f"  {label:<{_LABEL}}"
    return [first + text] if len(first + text) <= WIDTH else _wrap(text, first, " " * len(first))


def _wrap(text: str, first: str = "", rest: str = "  ") -> list[str]:
    text = re.sub(r"(?<=\d) (?=[A-Za-zµ])", "\u00a0", text)  # a number and its unit stay together
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _cut(text: str, width: int = WIDTH - _LABEL - 2) -> str:
    return text if len(text) <= width else text[: width - 2] + " …"


def _on(report: Report, gpu: Gpu) -> str:
    return f"cuda:{gpu.index}: " if len(report.used) > 1 else ""


# -- memory ----------------------------------------------------------------------------------------------------------


def _memory(report: Report, gpu: Gpu, *, holders: bool) -> Rows:
    memory, short = gpu.memory, gpu.shortage
    allocated = mib(memory.peak_allocated)
    unit = " MiB" if allocated.endswith("MiB") else "none"  # said once where it is the same for all
    reserved, total = (mib(nbytes).removesuffix(unit) for nbytes in (memory.peak_reserved, memory.total))
    used = "" if memory.peak_used is None else ", " + mib(memory.peak_used).removesuffix(unit)
    text = f"{allocated} allocated, {reserved} reserved{used} of {total}{' used' if used else ''}"
    rows = [("peak", _on(report, gpu) + text)]
    if short is not None:
        asked = f"{mib(short.requested)}, of which {mib(short.missing)} were missing"
        rows.append(("ran out" if ran_out(report) else "ran out last", f"asked for {asked}"))
        rows.append(("asked at", _cut(f"{short.line}" if short.line else "PyTorch's own")))
        rows += _reached("asked in", report, short.breakdown)
        rows += _shares("held then by", short.shares, short.allocated, short.line)
    elif holders:
        rows += _reached("reached in", report, memory.breakdown)
        if report.plan is not None and report.plan.where:
            rows += [
                ("" if at else "reached at", line.strip()) for at, line in enumerate(report.plan.where.splitlines())
            ]
        elif memory.peak_line is not None:
            rows.append(("reached at", _cut(str(memory.peak_line))))
        rows += _shares("held by", memory.peak_shares, memory.peak_allocated, memory.peak_line)
    found = memory.breakdown if short is None else short.breakdown
    if found is None or not holders:
        return rows
    least = _SMALL * found.allocated
    parts = [f"{_name(role)} {mib(nbytes)}" for role, nbytes in found.categories if nbytes > least]
    rows.append(("categories", ", ".join(parts)))
    return rows + [("" if at else "largest", _tensors(report, each)) for at, each in enumerate(found.largest)]


def _name(category: str) -> str:
    return category.replace("_", " ")


def _reached(label: str, report: Report, found: Breakdown | None) -> Rows:
    if found is None or not found.phase:
        return []
    step = f" of step {found.step}" if report.steps and found.phase != "load" else ""
    by = " in ".join(filter(None, (found.operation, found.module)))
    return [(label, _cut(f"{found.phase}{step}" + (f": {by}" if by else "")))]


def _tensors(report: Report, each: Tensors) -> str:
    several = f"{each.count} x " if each.count > 1 else ""
    shape = "" if each.shape is None else f"{each.dtype} {'x'.join(map(str, each.shape)) or 'scalar'}  "
    begin = f"{several + mib(each.nbytes):>12}  {shape}"
    by = (each.operation if each.category in _BY_OPERATION else "") or _name(each.category)
    if each.module:
        room = max(2, WIDTH - _LABEL - 2 - len(begin))
        by = f"{by} in " if len(by) + min(len(each.module), _PATH) + 4 <= room else ""
        room -= len(by)
        path = each.module + (", …" if each.count > 1 else "")
        by += path if len(path) <= room else f"… {path[2 - room :]}" if room > 2 else "…"  # a path's end tells most
    elif each.line is not None:
        file = "line " if each.line.file.endswith(report.name) else f"{each.line.file}:"
        by += f", {file}{each.line.line}"
    return _cut(begin + by)


def _shares(label: str, shares: tuple[Share, ...], total: int, line: Line | None) -> Rows:
    """Show the lines that hold most, unless `line`, which is shown, holds all."""
    shown = [share for share in shares[:_SHARES] if share.nbytes >= _SMALL * total]
    rest = total - sum(share.nbytes for share in shown)
    if [share.line for share in shown] == [line] and rest < _SMALL * total:
        return []
    rows = [("", f"{mib(share.nbytes):>12}  {_cut(str(share.line), WIDTH - _LABEL - 16)}") for share in shown]
    if rest >= _SMALL * total and rows:
        rows.append(("", f"{mib(rest):>12}  other lines"))
    return [(label, rows[0][1]), *rows[1:]] if rows else []


# -- speed -----------------------------------------------------------------------------------------------------------


def _rates(report: Report) -> str:
    source = next((gpu.time.source for gpu in report.used if gpu.time), "")
    off = f"median error {OFF[report.gpu]}" if report.gpu in OFF else f"error for {a_gpu(report)} not known"
    return f", {source}; {off}" if source else ""


def _time(report: Report, gpu: Gpu) -> Rows:
    time = gpu.time
    if time is None or not time.kernels or (ran_out(report) and not report.steps):
        return []
    text = f"{duration(time.busy)} in {time.kernels:,} kernel{'s' * (time.kernels > 1)}"
    text += f", {time.busy / time.elapsed:.0%} of {duration(time.elapsed)}" if time.elapsed else ""
    for steps in report.steps[:1]:
        if steps.busy_share is not None and steps.device == f"cuda:{gpu.index}":
            text = f"{steps.busy_share:.0%} of the time from step to step"
    bound = ", launch-bound" if time.launching > time.busy else ", not launch-bound"
    rows = [("GPU busy", _on(report, gpu) + text + bound)]
    if time.flop_seconds:
        peaks = ", ".join(f"{name} {rate:,g}" for name, rate in report.tflops if name in _PRODUCTS)
        rate = f"{with_prefix(time.flops / time.flop_seconds)}FLOP/s in matrix products"
        rows.append(("", rate + (f"; peaks: {peaks}" if peaks else "")))
    return rows


def _steps(report: Report, steps: Steps, *, first: bool) -> Rows:
    text = f"{steps.count:,} without an optimizer ({steps.device})"
    if steps.optimizer:
        text = f"{steps.count:,} of {steps.optimizer} ({with_prefix(steps.parameters)} parameters, {steps.device})"
    if steps.median is not None and (steps.median > 0 or report.numbers == "measured"):
        text += f", every {duration(steps.median)}"
    more = _parts(report, steps) + _between(report, steps) if first else []
    return [("steps" if first else "", text), *more]


def _parts(report: Report, steps: Steps) -> Rows:
    """Show where the time of a step goes, and what it processes."""
    if not steps.median or not sum(seconds for _, seconds in steps.parts):
        return []
    names = {"forward": "forward and other"}
    parts = (f"{names.get(name, name)} {duration(seconds)}" for name, seconds in steps.parts if seconds)
    rows = [("a step", ", ".join(parts))]
    if steps.between is not None and steps.between.exposed:
        rows[0] = ("a step", f"{rows[0][1]}; of it other ranks {duration(steps.between.exposed)}")
    rates = [
        f"{three_figures(rate)} {name}" for rate, name in ((steps.samples, "samples"), (steps.tokens, "tokens")) if rate
    ]
    where = " on this rank" if report.world_size > 1 else ""
    return rows + ([("a second", ", ".join(rates) + where)] if rates else [])


def _between(report: Report, steps: Steps) -> Rows:
    """Show the communication of a step."""
    found = steps.between
    if found is None:
        return []
    text = (
        f"{duration(found.seconds)} of a step in {found.collectives:,.0f} collectives of {mib(round(found.nbytes))}, "
        f"{duration(found.exposed)} exposed, {duration(found.seconds - found.exposed)} beside kernels"
    )
    rows = [("between ranks", text)]
    if found.waited > _LATE * found.seconds:
        rows.append(("", f"in {duration(found.waited)} of it this rank is there and another is not yet"))
    if report.joined:
        rows.append(("", report.joined))
    return rows


def _scaling(report: Report) -> Rows:
    """Show the throughput of all ranks against the script on one GPU."""
    alone = report.alone
    if alone is None:
        return []
    if report.scaling is None or alone.median is None:
        return [("scaling", f"not known: {alone.why or 'no two steps of an optimizer on the GPU'}")]
    without = " without DistributedDataParallel" if alone.skipped_ddp else ""
    text = f"{report.scaling:.2f} of {report.world_size}: one GPU{without} takes a step every {duration(alone.median)}"
    return [("scaling", text)]
