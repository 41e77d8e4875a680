"""Two bars, for the two fullest moments of a step, over the memories of the GPUs on the same scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from virtualgpu.pictures.palette import MEMORY
from virtualgpu.pictures.style import BLUE, EDGE, INK, MUTED, ON, PAPER, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, key, length, line, rect, shape, text

from ..base.scene import END, Scale, chip, fitted, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp, named
from .job import CATEGORIES, PARALLEL_WORDS, Moment
from .model import UNITS, Budget, Fit, amount, unit_of

LEFT, RIGHT, ANSWER = 160.0, 640.0, 652.0
BARS, BAR, APART, GPUS, ROW = 24.0, 36.0, 44.0, 152.0, 18.0
GIB = 2**30
MOST = 1024  # the largest batch of the control
SLIVER = 12.0  # pixels: what is narrower has no name of its own


def draw(result: Budget) -> Picture:
    """The two moments with the names of their parts, the GPUs on the same scale, the sums."""
    full = Scale(LEFT, RIGHT, 0, axis(result.peak.total))
    return picture(result, 451.0, _ticks(result, full), _bars(result, full), _gpus(result, full), _sums(result))


def axis(total: int) -> int:
    """The bytes at the right end: a power of two of GiB, so that the scale seldom changes."""
    return int(2 ** max(-1, math.ceil(math.log2(1.02 * total / GIB))) * GIB)


def _ticks(result: Budget, full: Scale) -> list[str]:
    unit, bottom = unit_of(int(full.high)), GPUS + len(result.fits) * ROW + 4
    marks = {full.high * part / 4: f"{full.high * part / 4 / UNITS[unit]:,.6g}" for part in range(5)}
    return [*full.ticks(bottom, marks, top=BARS - 4), note(RIGHT + 34, bottom + 18, f"{unit}, one rank (virtual)")]


def _bars(result: Budget, full: Scale) -> list[str]:
    body, known = list[str](), set[str]()
    for place, (name, moment) in enumerate(zip(("backward begins", "backward ends"), result.moments, strict=True)):
        top, parts = BARS + place * APART, list(_parts(moment, full))
        weight = "bold" if result.at_end == bool(place) else ""
        body += [small(MARGIN, top + 24, name, weight=weight), *(part.draw(top) for part in parts)]
        body.append(text(full.at(moment.total) + 18, top + 24, amount(moment.total), weight=weight))
        body += _names([part for part in parts if part.name not in known], top + BAR + 16 if place else 14)
        known |= {part.name for part in parts}
    # The batch is pulled at the end of the first bar: its bytes grow with the batch in nearly a straight line.
    most = min(max(result.job.largest(int(full.high)), result.batch + 1), MOST)
    at = {batch: full.beyond(result.job.moments(batch)[0].total) for batch in (1, result.batch, most)}
    x = at[result.batch]
    handle = grasp(x - 10, BARS - 2, 24, BAR + 4) + rect(x, BARS + 4, 8, BAR - 8, fill=PAPER, stroke=INK, radius=4)
    words = note(x + 24 + length(amount(result.moments[0].total), bold=True), BARS + 24, "↔ batch", halo=True)
    return [*body, Live(draggable(handle, "Batch per rank", Grip("batch", at[1], at[most], 1, most)) + words)]


class Part(NamedTuple):
    """Of a bar: one category."""

    name: str
    nbytes: int
    left: float
    wide: float
    hatched: bool

    @property
    def told(self) -> str:
        return f"{self.name} {amount(self.nbytes)}"

    def inside(self, top: float) -> str:
        """Its name and bytes, or its name, if there is room."""
        fill = INK if self.halo else ON
        return fitted(self.left, self.wide, top + 23, self.told, self.name, fill=fill, halo=self.halo)

    @property
    def halo(self) -> bool:
        return self.hatched or MEMORY[self.name] in (BLUE, INK, MUTED)

    def draw(self, top: float) -> str:
        drawn = bar(self.left, top, self.wide, BAR, fill=MEMORY[self.name], hatched=self.hatched)
        return named(drawn + self.inside(top), self.told) if self.wide >= 0.5 else ""


def _parts(moment: Moment, full: Scale) -> Iterable[Part]:
    done = 0
    for number, (name, nbytes) in enumerate(zip(CATEGORIES.values(), moment, strict=True)):
        left, done = full.at(done), done + nbytes
        if nbytes:
            yield Part(name, nbytes, left, full.at(done) - left, number % 2 == 1)


def _names(parts: list[Part], base: float) -> list[str]:
    """A row with the parts whose name has no room inside, each as near to its own as the others leave it: the three
    largest, and the rest as one."""
    parts = [part for part in parts if part.wide >= 0.5 and not part.inside(0)]
    own = sorted((part for part in parts if part.wide >= SLIVER), key=lambda part: -part.wide)[:3]
    rest = [part for part in parts if part not in own]
    together = [Part("other", sum(part.nbytes for part in rest), rest[0].left, 0, False)] if rest[1:] else rest
    places, x = list[tuple[float, Part]](), 0.0
    for part in sorted([*own, *together], key=lambda part: part.left):
        places.append((max(x, part.left), part))
        x = places[-1][0] + length(part.told, SMALL) + 36
    body, end = [], END + 14
    for x, part in reversed(places):
        end = min(x, end - length(part.told, SMALL) - 36)
        words = ", ".join(one.told for one in rest) if part.name == "other" else part.told
        body.append(named(key(end, base, part.told, fill=MEMORY.get(part.name, PAPER), hatched=part.hatched), words))
    return body


def _gpus(result: Budget, full: Scale) -> list[str]:
    peak = result.peak.total
    x, y = full.at(peak), GPUS - 6
    return [
        line(x, BARS + result.at_end * APART + BAR, x, GPUS + len(result.fits) * ROW + 4, width=2, dash="5 3"),
        note(MARGIN, y, "GPU, GiB (recorded)"),
        small(x - 8, y, f"{amount(peak)} needed", anchor="end", weight="bold", halo=True),
        note(ANSWER, y, "is it enough?"),
        *(_gpu(fit, GPUS + place * ROW, peak, full) for place, fit in enumerate(result.fits)),
    ]


def _gpu(fit: Fit, top: float, peak: int, full: Scale) -> str:
    """A row; a click sets the largest batch that fits, or the ranks with which it does."""
    memory, name = fit.spec.memory_bytes, fit.spec.name
    right, y, no = full.at(memory), top + 13, fit.answer == "no"
    row = grasp(MARGIN - 6, top, END - MARGIN + 12, ROW)
    row += small(MARGIN, y, name + (" *" if fit.no_units else ""))
    row += small(LEFT - 10, y, f"{memory / GIB:.1f}", anchor="end")
    row += "" if no else rect(LEFT, top + 2, full.at(peak) - LEFT, ROW - 5, fill=RULE)
    row += rect(LEFT, top + 2, right - LEFT, ROW - 5, stroke=EDGE)
    if memory > full.high:  # it goes on: the bar is broken
        low, high = top + ROW - 2, top + 1
        row += shape([(right - 18, low), (right - 12, high), (right - 6, high), (right - 12, low)], fill=PAPER)
        row += "".join(line(right - x, low, right - x + 6, high, stroke=EDGE) for x in (18, 12))
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


def _sums(result: Budget) -> list[str]:
    """The model states as the ZeRO paper counts them, and for several ranks the ways to share them."""
    job, y = result.job, 416.0
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
            Live(note(MARGIN, y + 26, "click a GPU: the largest batch that it takes, or the ranks it needs")),
        ]
    body.append(text(MARGIN, y + 27, "How the ranks share:"))
    x = LEFT + 12
    for name, words in PARALLEL_WORDS.items():
        here = name == job.parallel
        drawn, x = chip(x, y + 27, words, fill=SKY if here else PAPER, weight="bold" if here else "")
        body.append(clickable(drawn, words, parallel=name))
    return [*body, small(END, y + 27, f"a rank sends {amount(job.traffic)} a step", anchor="end")]
