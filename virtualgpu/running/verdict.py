"""The first line of a report: whether the run fits on its GPU, by how much, or what ended it."""

from __future__ import annotations

from ..units import duration, mib
from .remedies import with_article
from .report import Gpu, Report, ran_out

_WHY = 80  # characters of an error
REACH = {"": " up to that line", "step": " to the end of a step", "end": " to the script's end"}
_WHOLE = {"step": "a whole step", "end": "the whole run"}


def verdict(report: Report) -> str:
    """Return the line, without "Verdict"."""
    ending = report.ending
    if ran_out(report):
        return next((_too_little(report, gpu) for gpu in report.used if gpu.shortage), "ended out of memory")
    after = f"after {duration(report.host_seconds)} here (measured)"
    if ending.code:
        code = "" if ending.why.startswith("sys.exit") or ending.kind == "terminated" else f"exit code {ending.code}, "
        why = ending.why if len(ending.why) <= _WHY else ending.why[: _WHY - 2] + " …"
        return f"ended by {why}, {code}{after}"
    if not report.used:
        return f"nothing was put on the GPU; ended {after}"
    gpu = min(report.used, key=lambda gpu: left(gpu) / gpu.memory.total)
    what = "fits on" if report.trained else "what ran fits on"
    fullest = f"; cuda:{gpu.index} is the fullest" if len(report.used) > 1 else ""
    beside = "" if gpu.memory.peak_used is not None else " beside the context"
    spare = f"{mib(left(gpu))} to spare{beside} ({left(gpu) / gpu.memory.total:.0%}, {report.numbers})"
    failed = sum(each.memory.failures for each in report.used)
    times = "once" if failed == 1 else f"{failed:,} times"
    return f"{what} {a_gpu(report)} with {spare}{fullest}" + (f"; ran out {times}, and went on" if failed else "")


def left(gpu: Gpu) -> int:
    """Return the bytes that the peak leaves free."""
    memory = gpu.memory
    return memory.total - (memory.peak_reserved if memory.peak_used is None else memory.peak_used)


def a_gpu(report: Report) -> str:
    """Return the GPU's name with an article: "a T4", "an H100"."""
    return with_article(report.gpu) if report.numbers == "virtual" else report.gpu


def _too_little(report: Report, gpu: Gpu) -> str:
    short, text = gpu.shortage, f"does not fit on {a_gpu(report)}: "
    assert short is not None
    tried = short.tried
    if tried is None or not tried.until:
        return f"{text}{mib(short.missing)} missing{REACH['']} ({report.numbers})"
    more = mib(tried.used - gpu.memory.total)
    text += f"{_WHOLE[tried.until]} takes {mib(tried.used)}, {more} more than it has (virtual)"
    if tried.expandable is not None:
        text += f"; in expandable segments it fits, with {mib(gpu.memory.total - tried.expandable)} to spare"
    return text
