"""Two bars, for the two fullest moments of a step, over the memories of the GPUs on the same scale."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import (
    BLUE,
    EDGE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    RULE,
    SKY,
    VERMILLION,
    YELLOW,
)
from virtualgpu.pictures.svg import MARGIN, Live, Picture, bar, line, rect, shape, text

from ..base.scene import END, Scale, chip, fitted, keys, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp, named
from .job import CATEGORIES, PARALLEL_WORDS, Moment
from .model import UNITS, Budget, Fit, amount, unit_of

LEFT, RIGHT, ANSWER = 160.0, 640.0, 652.0
BARS, BAR, GPUS, KEY = 24.0, 36.0, 128.0, 363.0
ROW = 18.0
GIB = 2**30
MOST = 1024  # the largest batch of the control
COLOURS = dict(zip(CATEGORIES, (BLUE, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, MUTED, PAPER, RULE), strict=True))


def draw(result: Budget) -> Picture:
    """The two moments above, the GPUs in the middle, below them what is too small for its name, and the sums."""
    full = Scale(LEFT, RIGHT, 0, axis(result.reach))
    above, below = (_ticks(full), _bars(result, full)), (_gpus(result, full), _key(result), _sums(result))
    return picture(result, 451.0, *above, *below)


def axis(total: int) -> int:
    """The bytes at the right end: a power of two of GiB, so that the scale seldom changes."""
    return int(2 ** max(1, math.ceil(math.log2(1.02 * total / GIB)))) * GIB


def _ticks(full: Scale) -> list[str]:
    unit = unit_of(int(full.high))
    body = [note(MARGIN, 14, f"one rank, {unit} (virtual)")]
    for part in range(5):
        nbytes = full.high * part / 4
        x = full.at(nbytes)
        body.append(line(x, BARS - 4, x, GPUS - 18, stroke=RULE))
        body += [note(x, 14, f"{nbytes / UNITS[unit]:,.6g}", anchor="middle")] if part else []
    return body


def _bars(result: Budget, full: Scale) -> list[str]:
    body = []
    for place, (name, moment) in enumerate(zip(("backward begins", "backward ends"), result.moments, strict=True)):
        top = BARS + place * (BAR + 8)
        at_peak = result.at_end == bool(place)
        weight = "bold" if at_peak else ""
        body += [small(MARGIN, top + 24, name, weight=weight), *_stack(moment, top, full)]
        body.append(text(ANSWER, top + 24, f"{amount(moment.total)}{', the peak' if at_peak else ''}", weight=weight))
    # The batch is pulled at the end of the first bar: its bytes grow with the batch in nearly a straight line.
    most = min(max(result.job.largest(int(full.high)), result.batch + 1), MOST)
    at = {batch: full.beyond(result.job.moments(batch)[0].total) for batch in (1, result.batch, most)}
    x = at[result.batch]
    handle = grasp(x - 10, BARS - 2, 24, BAR + 4)
    handle += rect(x + 2, BARS + 4, 8, BAR - 8, fill=PAPER, stroke=INK, radius=4)
    return [*body, Live(draggable(handle, "Batch per rank", Grip("batch", at[1], at[most], 1, most)))]


def _stack(moment: Moment, top: float, full: Scale) -> list[str]:
    body, done = [], 0
    for number, (name, nbytes) in enumerate(zip(CATEGORIES, moment, strict=True)):
        left, right = full.at(done), full.at(done + nbytes)
        if right - left >= 0.5:
            piece = bar(left, top, right - left, BAR, fill=COLOURS[name], hatched=number % 2 == 1)
            piece += fitted(left, right - left, top + 23, CATEGORIES[name], halo=True)
            body.append(named(piece, f"{CATEGORIES[name]}: {amount(nbytes)}"))
        done += nbytes
    return body


def _gpus(result: Budget, full: Scale) -> list[str]:
    peak = result.peak.total
    body = [note(MARGIN, GPUS - 6, "GPU, GiB (recorded)"), note(ANSWER, GPUS - 6, "is it enough?")]
    body += [_gpu(fit, GPUS + place * ROW, peak, full) for place, fit in enumerate(result.fits)]
    x = full.at(peak)
    return [*body, line(x, GPUS - 4, x, GPUS + len(result.fits) * ROW + 4, width=2, dash="5 3")]


def _gpu(fit: Fit, top: float, peak: int, full: Scale) -> str:
    """A row; a click sets the largest batch that fits, or the ranks with which it does."""
    memory, name = fit.spec.memory_bytes, fit.spec.name
    right, y, no = full.at(memory), top + 13, fit.answer == "no"
    row = rect(MARGIN - 6, top, END - MARGIN + 12, ROW, fill=PAPER)
    row += small(MARGIN, y, name + (" *" if fit.no_units else ""))
    row += small(LEFT - 10, y, f"{memory / GIB:.1f}", anchor="end")
    row += rect(LEFT, top + 2, right - LEFT, ROW - 5, fill=PAPER, stroke=EDGE)
    row += "" if no else bar(LEFT, top + 2, full.at(peak) - LEFT, ROW - 5, fill=SKY)
    if memory > full.high:  # it goes on
        row += shape([(right - 8, top + 4), (right - 1, top + 8.5), (right - 8, top + 13)], fill=INK)
    words = fit.words
    if no and not fit.largest:
        words = f"✗ needs {fit.ranks:,} ranks, FSDP" if fit.ranks else "✗ even FSDP is not enough"
    elif no:
        words = f"✗ {words.partition(': ')[2]}"
    row += small(ANSWER, y, words, weight="" if no else "bold")
    if fit.largest:
        batch = min(fit.largest, MOST)
        return clickable(row, f"{name}: set the largest batch that fits, {batch:,}", batch=batch)
    if not fit.ranks:
        return row
    return clickable(row, f"{name}: set {fit.ranks:,} ranks with FSDP", ranks=fit.ranks, parallel="fsdp")


def _key(result: Budget) -> list[str]:
    """What the parts are, in their order, and how much each takes at most."""
    entries = []
    for number, (name, words) in enumerate(CATEGORIES.items()):
        if most := max(getattr(moment, name) for moment in result.moments):
            entries.append((f"{words} {amount(most)}", COLOURS[name], number % 2 == 1))
    return keys(MARGIN, KEY, *entries)


def _sums(result: Budget) -> list[str]:
    """The model states as the ZeRO paper counts them, and for several ranks the ways to share them."""
    job, y = result.job, KEY + 46
    number = job.needs.parameters
    psi = f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
    words = f"model states: {amount(result.states)} = {result.states / number:.3g} bytes × {psi} parameters"
    words += f"; a rank sends {amount(job.traffic)} a step" if job.ranks > 1 else ""
    words += "; * no bf16" if any(fit.no_units for fit in result.fits) else ""
    body = [small(MARGIN, y, words)]
    if job.ranks == 1:
        hint = "pull the upper bar for more samples; click a GPU for all that it takes, or for the ranks it needs"
        return [*body, Live(note(MARGIN, y + 26, hint))]
    body.append(text(MARGIN, y + 27, "How the ranks share:"))
    x = LEFT + 12
    for name, words in PARALLEL_WORDS.items():
        here = name == job.parallel
        drawn, x = chip(x, y + 27, words, fill=SKY if here else PAPER, weight="bold" if here else "")
        body.append(clickable(drawn, words, parallel=name))
    return body
