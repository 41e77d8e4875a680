"""Two bars, for the two fullest moments of a step, over the memories of the GPUs on the same scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from virtualgpu.pictures.palette import MEMORY
from virtualgpu.pictures.style import BLUE, EDGE, INK, MUTED, ON, PAPER, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, Live, Picture, bar, dot, line, rect, shape, text

from ..base.scene import END, Scale, chip, fitted, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp, named
from .job import CATEGORIES, PARALLEL_WORDS, Moment
from .model import UNITS, Budget, Fit, amount, unit_of

LEFT, RIGHT, ANSWER = 160.0, 624.0, 670.0
BARS, BAR, APART, GPUS, ROW = 44.0, 34.0, 52.0, 162.0, 18.0
GIB = 2**30
MOST = 1024  # the largest batch of the control
NAMED = ("weights", "gradients", "optimizer state", "activations", "communication")  # the others are small in most jobs
HATCHED = tuple(CATEGORIES.values())[1::2]


def draw(result: Budget) -> Picture:
    """The parts, the two moments, the GPUs on the same scale, the sums."""
    full = Scale(LEFT, RIGHT, 0, axis(result.peak.total))
    scaled = _ticks(result, full), _bars(result, full), _gpus(result, full)
    return picture(result, 451.0, _legend(result), *scaled, _sums(result))


def axis(total: int) -> int:
    """The bytes at the right end: a power of two of GiB, so that the scale seldom changes."""
    return int(2 ** max(-1, math.ceil(math.log2(1.02 * total / GIB))) * GIB)


def _ticks(result: Budget, full: Scale) -> list[str]:
    unit, bottom = unit_of(int(full.high)), GPUS + len(result.fits) * ROW + 2
    marks = {full.high * part / 4: f"{full.high * part / 4 / UNITS[unit]:,.6g}" for part in range(5)}
    larger = axis(replace(result.job, ranks=1).peak(result.batch)) // int(full.high)
    words = small(LEFT - 14, bottom + 18, f"scale × {larger}", anchor="end", weight="bold") if larger > 1 else ""
    return [*full.ticks(bottom, marks, top=GPUS), note(ANSWER, bottom + 18, f"{unit}, one rank (virtual)"), words]


def _legend(result: Budget) -> list[str]:
    """Each kind of part with the most that it takes, always in the same place; what is small in most jobs as one."""
    most = {name: max(pair) for name, *pair in zip(CATEGORIES.values(), *result.moments, strict=True)}
    other = [name for name in most if name not in NAMED and most[name]]
    body = []
    for place, name in enumerate((*NAMED, "other")):
        x, one = MARGIN + place * (END - MARGIN) / 6, [name] if name in NAMED else other
        wide = 16 / max(1, len(one))
        for number, each in enumerate(one):
            body.append(bar(x + number * wide, 3, wide, 12, fill=MEMORY[each], hatched=each in HATCHED))
        words = ", ".join(f"{each} {amount(most[each])}" for each in one)
        total = sum(most[each] for each in one)
        told = note(x + 22, 14, name) + small(x + 22, 31, f"≤ {amount(total)}" if total else "none")
        body.append(named(told, words))
    return body


def _bars(result: Budget, full: Scale) -> list[str]:
    body = list[str]()
    for place, (name, moment) in enumerate(zip(("backward begins", "backward ends"), result.moments, strict=True)):
        top, weight = BARS + place * APART, "bold" if result.at_end == bool(place) else ""
        body += [small(MARGIN, top + 22, name, weight=weight), *_parts(moment, full, top)]
        body.append(text(full.at(moment.total) + 18, top + 22, amount(moment.total), weight=weight))
    # The batch is pulled at the end of the first bar: its bytes grow with the batch in nearly a straight line.
    most = min(max(result.job.largest(int(full.high)), result.batch + 1), MOST)
    at = {batch: full.beyond(result.job.moments(batch)[0].total) for batch in (1, result.batch, most)}
    x, y = at[result.batch], BARS + BAR - 3
    handle = grasp(x - 12, BARS - 2, 24, BAR + 10) + dot(x, y, 7, fill=BLUE)
    words = small(x + 11, y + 12, "↔ batch", halo=True)
    return [*body, Live(draggable(handle, "Batch per rank", Grip("batch", at[1], at[most], 1, most)) + words)]


def _parts(moment: Moment, full: Scale, top: float) -> Iterable[str]:
    done = 0
    for name, nbytes in zip(CATEGORIES.values(), moment, strict=True):
        left, done = full.at(done), done + nbytes
        wide, halo = full.at(done) - left, name in HATCHED or MEMORY[name] in (BLUE, INK, MUTED)
        drawn = bar(left, top, wide, BAR, fill=MEMORY[name], hatched=name in HATCHED)
        drawn += fitted(left, wide, top + 22, name, fill=INK if halo else ON, halo=halo)
        if wide >= 0.5:
            yield named(drawn, f"{name} {amount(nbytes)}")


def _gpus(result: Budget, full: Scale) -> list[str]:
    peak = result.peak.total
    x, y = full.at(peak), GPUS - 6
    return [
        line(x, BARS + result.at_end * APART + BAR, x, GPUS + len(result.fits) * ROW + 2, width=2, dash="5 3"),
        note(MARGIN, y, "GPU, GiB (recorded)"),
        small(x - 8, y, f"{amount(peak)} needed", anchor="end", weight="bold", halo=True),
        note(ANSWER, y, "is it enough?"),
        *(_gpu(fit, GPUS + place * ROW, peak, full) for place, fit in enumerate(result.fits)),
    ]


def _gpu(fit: Fit, top: float, peak: int, full: Scale) -> str:
    """A row; a click sets the largest batch that fits, or the ranks with which it does."""
    memory, name = fit.spec.memory_bytes, fit.spec.name
    right, y, no = full.at(memory) + 38 * max(0, 1 - full.high / memory), top + 13, fit.answer == "no"
    row = grasp(MARGIN - 6, top, END - MARGIN + 12, ROW)
    row += small(MARGIN, y, name + (" *" if fit.no_units else ""))
    row += small(LEFT - 10, y, f"{memory / GIB:.1f}", anchor="end")
    row += "" if no else rect(LEFT, top + 2, full.at(peak) - LEFT, ROW - 5, fill=RULE)
    row += rect(LEFT, top + 2, right - LEFT, ROW - 5, stroke=EDGE)
    if memory > full.high:  # it goes on: the bar is broken
        low, high, x = top + ROW - 2, top + 1, RIGHT - 18
        row += shape([(x, low), (x + 6, high), (x + 12, high), (x + 6, low)], fill=PAPER)
        row += "".join(line(at, low, at + 6, high, stroke=EDGE) for at in (x, x + 6))
    words = fit.words
    if no and not fit.largest:
        words = f"✗ needs {fit.ranks:,} ranks, FSDP" if fit.ranks else "✗ not even with FSDP"
    elif no:
        words = f"✗ {words.partition(': ')[2]}"
    row += small(ANSWER, y, words, weight="" if no else "bold")
    if fit.largest:
        batch = min(fit.largest, MOST)
        return clickable(row, f"{name}: set the largest batch that fits, {batch:,}", batch=batch)
    if not fit.ranks:
        return row
    return clickable(row, f"{name}: set {fit.ranks:,} ranks with FSDP", ranks=fit.ranks, parallel="fsdp")


def _sums(result: Budget) -> list[str]:
    """The model states as the ZeRO paper counts them, and for several ranks the ways to share them."""
    job, y = result.job, 417.0
    number = job.needs.parameters
    psi = f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
    parts = job.states.optimizer, job.states.gradients, job.states.weights  # in the order in which they are sharded
    shared, whole = (sum(some) / number for some in (parts[: job.sharded], parts[job.sharded :]))
    each = [f"{whole:.3g} bytes"] * (whole > 0) + [f"{shared:.3g} bytes ÷ {job.ranks:,} ranks"] * (shared > 0)
    words = f"model states: {amount(result.states)} = {' + '.join(each)} for each of {psi} parameters"
    body = [small(MARGIN, y, words + "; * no bf16" * any(fit.no_units for fit in result.fits))]
    if job.ranks == 1:
        return [
            *body,
            Live(note(MARGIN, y + 24, "click a GPU: the largest batch that it takes, or the ranks it needs")),
        ]
    body.append(text(MARGIN, y + 26, "How the ranks share:"))
    x = LEFT + 12
    for name, words in PARALLEL_WORDS.items():
        here = name == job.parallel
        drawn, x = chip(x, y + 26, words, fill=SKY if here else PAPER, weight="bold" if here else "")
        body.append(clickable(drawn, words, parallel=name))
    return [*body, small(END, y + 26, f"a rank sends {amount(job.traffic)} a step", anchor="end")]
