"""Two bars of memory over the GPUs that may hold them: draws a result of `model`.

Two bars, for the two fullest moments of a step, over the memories of the GPUs on the same scale.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, key, length, line, rect, shape, text

from ..base.touch import Grip, clickable, draggable, live, named
from .job import CATEGORIES, PARALLEL_WORDS, Moment
from .model import UNITS, Budget, Fit, amount, billions, unit_of

WIDTH, HEIGHT = 860.0, 450.0
LEFT, RIGHT, ANSWER = 160.0, 580.0, 592.0
BARS, BAR, GPUS, KEY = 24.0, 38.0, 120.0, 360.0
ROW = 18.0
GIB = 2**30
MOST = 1024  # the largest batch of the control
COLOURS = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer": GREEN,
    "activations": PURPLE,
    "logits": YELLOW,
    "temporaries": VERMILLION,
    "workspaces": MUTED,
    "communication": PAPER,
    "context": RULE,
}


def draw(result: Budget) -> Picture:
    """The two moments above, the GPUs in the middle, below them what is too small for its name, and the sums."""
    full = axis(result.peak.total)
    body = (*_ticks(full), *_gpus(result, full), *_bars(result, full), *_key(result, full), *_sums(result))
    return Picture(WIDTH, HEIGHT, result.finding, result.describe(), body)


def axis(total: int) -> int:
    """The bytes at the right end: a power of two of GiB, so that the scale seldom changes."""
    return int(2 ** max(1, math.ceil(math.log2(1.02 * total / GIB)))) * GIB


def _x(nbytes: float, full: int) -> float:
    return LEFT + (RIGHT - LEFT) * min(nbytes / full, 1)


def _ticks(full: int) -> list[str]:
    unit = unit_of(full)
    body = [text(MARGIN, 14, f"one rank, {unit} (virtual)", size=SMALL, fill=MUTED)]
    bottom = GPUS - 4
    for part in range(5):
        x = LEFT + (RIGHT - LEFT) * part / 4
        body.append(line(x, BARS - 4, x, bottom, stroke=RULE))
        if part:
            words = f"{full / UNITS[unit] * part / 4:,.6g}"
            body.append(text(x, 14, words, size=SMALL, fill=MUTED, anchor="middle"))
    return body


def _bars(result: Budget, full: int) -> list[str]:
    body = []
    for place, (name, moment) in enumerate(zip(("most activations", "all gradients"), result.moments, strict=True)):
        top = BARS + place * (BAR + 8)
        at_peak = result.at_end == bool(place)
        weight = "bold" if at_peak else ""
        body.append(text(MARGIN, top + 24, name, weight=weight, size=SMALL))
        body += _stack(moment, top, full)
        words = f"{amount(moment.total)}{', the peak' if at_peak else ''}"
        body.append(text(ANSWER, top + 24, words, weight=weight))
    # The batch is pulled at the end of the first bar: its bytes grow with the batch in nearly a straight line.
    most = min(max(result.job.largest(full), result.batch + 1), MOST)
    at = {batch: LEFT + (RIGHT - LEFT) * result.job.moments(batch)[0].total / full for batch in (1, result.batch, most)}
    x = at[result.batch]
    handle = rect(x - 10, BARS - 2, 20, BAR + 4, fill=PAPER).replace("/>", ' fill-opacity="0"/>')
    handle += rect(x - 4, BARS + 4, 8, BAR - 8, fill=PAPER, stroke=INK, radius=4)
    return [*body, live(draggable(handle, "Batch per rank", Grip("batch", at[1], at[most], 1, most)))]


def _stack(moment: Moment, top: float, full: int) -> list[str]:
    body, done = [], 0
    for number, (name, nbytes) in enumerate(zip(CATEGORIES, moment, strict=True)):
        left, right = _x(done, full), _x(done + nbytes, full)
        if right - left >= 0.5:
            piece = bar(left, top, right - left, BAR, fill=COLOURS[name], hatched=number % 2 == 1)
            if _named(name, nbytes, full):
                for y, words in ((16, CATEGORIES[name]), (32, amount(nbytes))):
                    piece += text((left + right) / 2, top + y, words, size=SMALL, anchor="middle", halo=True)
            body.append(named(piece, f"{CATEGORIES[name]}: {amount(nbytes)}"))
        done += nbytes
    return body


def _named(name: str, nbytes: int, full: int) -> bool:
    """Whether a bar of so many bytes is long enough for its name and number."""
    return _x(nbytes, full) - LEFT > max(length(CATEGORIES[name], SMALL), length(amount(nbytes), SMALL)) + 8


def _gpus(result: Budget, full: int) -> list[str]:
    peak = result.peak.total
    body = [_gpu(fit, GPUS + place * ROW, peak, full) for place, fit in enumerate(result.fits)]
    if any(fit.ranks for fit in result.fits):
        body.append(text(WIDTH - MARGIN, GPUS - 3, "would fit with", size=SMALL, anchor="end", fill=MUTED))
    x = _x(peak, full)
    return [*body, line(x, BARS - 4, x, GPUS + len(result.fits) * ROW + 4, width=2, dash="5 3")]


def _gpu(fit: Fit, top: float, peak: int, full: int) -> str:
    """A row; a click sets the largest batch that fits, or the ranks with which it does."""
    memory, name = fit.spec.memory_bytes, fit.spec.name
    right = _x(memory, full)
    no = fit.answer == "no"
    y = top + 13
    row = rect(MARGIN - 6, top, WIDTH - 2 * MARGIN + 12, ROW, fill=PAPER)
    row += text(MARGIN, y, name + (" *" if fit.no_units else ""), size=SMALL)
    row += text(LEFT - 10, y, f"{memory / GIB:.1f}", size=SMALL, anchor="end")
    row += rect(LEFT, top + 2, right - LEFT, ROW - 5, fill=PAPER, stroke=INK)
    row += bar(LEFT, top + 2, _x(min(peak, memory), full) - LEFT, ROW - 5, fill=RULE if no else SKY, hatched=no)
    if memory > full:  # it goes on
        row += shape([(right - 8, top + 4), (right - 1, top + 8.5), (right - 8, top + 13)], fill=INK)
    row += text(ANSWER, y, fit.words, size=SMALL, weight="" if no else "bold")
    if fit.largest:
        batch = min(fit.largest, MOST)
        return clickable(row, f"{name}: set the largest batch that fits, {batch:,}", batch=batch)
    if not fit.ranks:
        return row
    row += text(WIDTH - MARGIN, y, f"FSDP × {fit.ranks:,}", size=SMALL, anchor="end", fill=MUTED)
    return clickable(row, f"{name}: set {fit.ranks:,} ranks with FSDP", ranks=fit.ranks, parallel="fsdp")


def _key(result: Budget, full: int) -> list[str]:
    """What no bar has room to name."""
    body, x, y = [], MARGIN, KEY
    for number, (name, words) in enumerate(CATEGORIES.items()):
        both = [getattr(moment, name) for moment in result.moments]
        if not any(both) or any(_named(name, nbytes, full) for nbytes in both):
            continue
        words = f"{words} {amount(max(both))}"
        wide = length(words, SMALL) + 38
        if x + wide - 16 > WIDTH - MARGIN:
            x, y = MARGIN, y + 20
        body.append(key(x, y, words, fill=COLOURS[name], hatched=number % 2 == 1))
        x += wide
    return body


def _sums(result: Budget) -> list[str]:
    """The model states as the ZeRO paper counts them, and for several ranks the ways to share them."""
    job, y = result.job, KEY + 46
    number = job.needs.parameters
    psi = f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
    words = f"model states: {billions(result.states)}, {result.states / number:.3g} bytes × {psi}"
    words += f"; a rank sends {billions(job.traffic)} a step" if job.ranks > 1 else ""
    words += "; * no bf16 units" if any(fit.no_units for fit in result.fits) else ""
    body = [text(MARGIN, y, words, size=SMALL)]
    if job.ranks == 1:
        hint = "pull the upper bar for more samples; click a GPU for all that it takes, or for the ranks it needs"
        return [*body, live(text(MARGIN, y + 26, hint, size=SMALL, fill=MUTED))]
    x = MARGIN
    for name, words in PARALLEL_WORDS.items():
        wide, chosen = length(words, SMALL, bold=True) + 20, name == job.parallel
        pill = rect(x, y + 11, wide, 22, fill=SKY if chosen else PAPER, stroke=INK, radius=4)
        pill += text(x + wide / 2, y + 27, words, size=SMALL, anchor="middle", weight="bold" if chosen else "")
        body.append(clickable(pill, words, parallel=name))
        x += wide + 6
    return body
