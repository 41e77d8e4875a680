"""Draws the samples of a watch as SVG: for each GPU utilization and memory over time, and its other numbers."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Sequence

from virtualgpu.pictures import style
from virtualgpu.pictures.svg import BODY, HEAD, MARGIN, SMALL, Picture, image, lines, rect, shape, text, wrap

from .reading import Reading, Slice, amount, memory, power
from .summary import GPUSummary, Sample, Series, series_of, summarise

WIDTH = 830.0
CHART, GAP, HEIGHT = 284.0, 16.0, 46.0
COLUMNS = 118  # most steps of a curve
LINE = SMALL * 1.45

NOTE = (
    "Busy: percent of the time in which at least one kernel was running. Memory: all that is in use, with the CUDA "
    "context and PyTorch's cache."
)

Step = tuple[float, float, float | None]  # from, to, and the value between


def render(samples: Sequence[Sample], *, running: bool) -> Picture:
    """Return the picture of these samples, with `running` of the last numbers, else of the summary."""
    summary = summarise(samples)
    body: list[str] = []
    y = 0.0
    series = series_of(samples) if samples else []
    for gpu, one in zip(summary.gpus, series, strict=True):
        pieces, height = _gpu(gpu, one, samples, running, y)
        body += pieces
        y += height
    if not summary.gpus:
        body.append(text(MARGIN, BODY, "Nothing to draw.", fill=style.MUTED))
        y = 2 * BODY
    title = _title(summary.gpus, series, running) if summary.gpus else f"No GPU is read: {summary.reason}"
    head_lines = len(wrap(title, WIDTH - 2 * MARGIN, HEAD, bold=True))
    return Picture(WIDTH, y, title, str(summary), tuple(body), head_lines=head_lines)


def as_svg(picture: Picture) -> str:
    """Return the picture as an SVG document in the size of `style.lecture`."""
    return picture.text(note=NOTE, scale=style.scale())


def as_html(picture: Picture, words: str) -> str:
    """Return picture and text as HTML, since an SVG output would have no alt text."""
    return (
        image(as_svg(picture), f"{picture.title}. {picture.desc}")
        + f"<details><summary>The same as text</summary><pre>{html.escape(words)}</pre></details>"
    )


def _title(gpus: Sequence[GPUSummary], series: Sequence[Series], running: bool) -> str:
    if len(gpus) == 1:
        gpu, (readings, _) = gpus[0], series[0]
        busy = readings[-1][1].utilization if running else gpu.mean_utilization
        if busy is None:
            said = f"at most {memory(gpu.peak_used_bytes, gpu.total_bytes)} in use"
        else:
            said = f"busy {busy:.0f} % {'now' if running else 'of the time'}"
        return f"{gpu.label}, {gpu.numbers}: {said}"
    means = [gpu.mean_utilization for gpu in gpus if gpu.mean_utilization is not None]
    kinds = " and ".join(dict.fromkeys(gpu.numbers for gpu in gpus))
    if not means:
        return f"{len(gpus)} GPUs, {kinds}"
    low, high = f"{min(means):.0f} %", f"{max(means):.0f} %"
    some = "" if len(means) == len(gpus) else f", {len(means)} of them told"
    return f"{len(gpus)} GPUs, {kinds}: busy {low if low == high else f'{low} to {high}'} of the time{some}"


def _gpu(
    gpu: GPUSummary, series: Series, samples: Sequence[Sample], running: bool, y: float
) -> tuple[list[str], float]:
    """Return the elements of one GPU with the upper edge at `y`, and their height."""
    readings = series[0]
    last = readings[-1][1]
    span = samples[0].at_s, samples[-1].at_s
    left, right, beside = MARGIN, MARGIN + CHART + GAP, MARGIN + 2 * (CHART + GAP)
    top = y + BODY + 8 + LINE
    pieces = [text(left, y + BODY, f"{gpu.label}, {gpu.name or 'of unknown name'}, {gpu.numbers}", weight="bold")]
    busy = f"busy {amount(last.utilization, '%')}" if running else gpu.busy
    held = memory(last.used_bytes if running else gpu.peak_used_bytes, gpu.total_bytes)
    pieces += [
        text(left, top - 6, busy, size=SMALL),
        text(right, top - 6, f"memory {'' if running else 'at most '}{held}", size=SMALL),
        *_chart(left, top, _steps(readings, lambda r: r.utilization, _mean), span, 100.0, style.BLUE),
        *_chart(right, top, _steps(readings, lambda r: r.used_bytes, max), span, gpu.total_bytes, style.GREEN),
        lines(beside, top - 6, _beside(gpu, last, running), size=SMALL),
    ]
    axis = f"0 to {span[1]:.3g} s" + (" of the virtual host's clock" if gpu.numbers == "virtual" else "")
    pieces.append(text(left, top + HEIGHT + SMALL + 2, axis, size=SMALL, fill=style.MUTED))
    height = top + HEIGHT + SMALL + 2 - y
    under = [_slice(part, running) for part in (last.slices if running else gpu.slices)]
    pieces.append(lines(left, y + height + LINE, under, size=SMALL))
    return pieces, height + LINE * len(under) + 16


def _slice(part: Slice, running: bool) -> str:
    at_most = "" if running else "at most "
    return f"{part.label}, {part.name or 'of unknown name'}: {at_most}{memory(part.used_bytes, part.total_bytes)}"


def _beside(gpu: GPUSummary, last: Reading, running: bool) -> list[str]:
    if gpu.numbers == "virtual":
        return ["temperature, power, clock:", "not modelled"]
    watts = power(last.power_w, last.power_limit_w)
    if not running and gpu.mean_power_w is not None:
        watts = f"{gpu.mean_power_w:,.0f} W on average"
    return [
        f"temperature {amount(last.temperature_c, '°C')}",
        f"power {watts}",
        f"clock {amount(last.sm_clock_mhz, 'MHz')}",
        f"energy {amount(gpu.energy_j, 'J')}",
    ]


def _steps(
    readings: Sequence[tuple[float, Reading]],
    field: Callable[[Reading], float | None],
    join: Callable[[list[float]], float],
) -> list[Step]:
    """Return each reading as a step since the one before; more than COLUMNS readings are joined."""
    size = -(-len(readings) // COLUMNS)
    steps: list[Step] = []
    before = readings[0][0]
    for start in range(0, len(readings), size):
        group = readings[start : start + size]
        told = [value for _, reading in group if (value := field(reading)) is not None]
        steps.append((before, group[-1][0], join(told) if told else None))
        before = group[-1][0]
    return steps


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _chart(
    x: float, y: float, steps: Sequence[Step], span: tuple[float, float], full: float | None, fill: str
) -> list[str]:
    """Return a small area chart over `span`, from 0 to `full`, with gaps for missing values."""
    frame = rect(x, y, CHART, HEIGHT, stroke=style.RULE)
    width = span[1] - span[0]
    if not full or width <= 0:
        return [frame]
    pieces = []
    for told, run in itertools.groupby(steps, lambda step: step[2] is not None):
        if not told:
            continue
        edge: list[tuple[float, float]] = []
        for start, end, value in run:
            level = y + HEIGHT * (1 - min(1.0, max(0.0, (value or 0.0) / full)))
            edge += [(x + CHART * (at - span[0]) / width, level) for at in (start, end)]
        pieces.append(shape([(edge[0][0], y + HEIGHT), *edge, (edge[-1][0], y + HEIGHT)], fill=fill))
    return [frame, *pieces]
