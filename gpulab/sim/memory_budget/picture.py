"""Two bars of memory over the GPUs that may hold them: draws a result of `model`.

Two bars, for the two fullest moments of a step, over the memories of the GPUs on the same scale.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, line, rect, shape, text

from .job import CATEGORIES, Moment
from .model import UNITS, Budget, Fit, amount, billions, unit_of

WIDTH, HEIGHT = 860.0, 480.0
LEFT, RIGHT, ANSWER = 168.0, 628.0, 640.0
BARS, GPUS, KEY = 24.0, 108.0, 338.0
ROW = 16.5
GIB = 2**30
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
    """The two moments above, the GPUs in the middle, the key with the numbers below."""
    full = axis(result.peak.total)
    body = (*_ticks(full), *_bars(result, full), *_gpus(result, full), *_key(result), *_sums(result))
    return Picture(WIDTH, HEIGHT, result.finding, result.describe(), body)


def axis(total: int) -> int:
    """The bytes at the right end: a power of two of GiB, so that the scale seldom changes."""
    return int(2 ** max(1, math.ceil(math.log2(1.02 * total / GIB)))) * GIB


def _x(nbytes: float, full: int) -> float:
    return LEFT + (RIGHT - LEFT) * min(nbytes / full, 1)


def _ticks(full: int) -> list[str]:
    unit = unit_of(full)
    body = [text(MARGIN, 14, f"one rank, {unit} (virtual)", size=SMALL, fill=MUTED)]
    bottom = GPUS + 12 * ROW + 4
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
        top = BARS + place * 36
        at_peak = result.at_end == bool(place)
        weight = "bold" if at_peak else ""
        body.append(text(MARGIN, top + 20, name, weight=weight, size=SMALL))
        body += _stack(moment, top, full)
        words = f"{amount(moment.total)}{', the peak' if at_peak else ''}"
        body.append(text(ANSWER, top + 20, words, weight=weight))
    return body


def _stack(moment: Moment, top: float, full: int) -> list[str]:
    body, done = [], 0
    for number, (name, nbytes) in enumerate(zip(CATEGORIES, moment, strict=True), 1):
        left, right = _x(done, full), _x(done + nbytes, full)
        if right - left >= 0.5:
            hatched = number % 2 == 0
            body.append(bar(left, top, right - left, 28, fill=COLOURS[name], hatched=hatched))
            if right - left > 14:
                body.append(_number(number, (left + right) / 2, top + 19))
        done += nbytes
    return body


def _number(number: int, x: float, y: float) -> str:
    dark = number in (1, 7)
    return text(x, y, str(number), size=SMALL, anchor="middle", weight="bold", fill=INK, halo=dark or number % 2 == 0)


def _gpus(result: Budget, full: int) -> list[str]:
    body = []
    peak = result.peak.total
    for place, fit in enumerate(result.fits):
        body += _gpu(fit, GPUS + place * ROW, peak, full)
    x = _x(peak, full)
    body.append(line(x, BARS - 4, x, GPUS + len(result.fits) * ROW + 4, width=2, dash="5 3"))
    return body


def _gpu(fit: Fit, top: float, peak: int, full: int) -> list[str]:
    memory = fit.spec.memory_bytes
    right = _x(memory, full)
    no = fit.answer == "no"
    y = top + 13
    body = [
        text(MARGIN, y, fit.spec.name + (" *" if fit.no_units else ""), size=SMALL),
        text(LEFT - 10, y, f"{memory / GIB:.1f}", size=SMALL, anchor="end"),
        rect(LEFT, top + 2, right - LEFT, ROW - 5, fill=PAPER, stroke=INK),
        bar(LEFT, top + 2, _x(min(peak, memory), full) - LEFT, ROW - 5, fill=RULE if no else SKY, hatched=no),
    ]
    if memory > full:  # it goes on
        body.append(shape([(right - 8, top + 4), (right - 1, top + 8.5), (right - 8, top + 13)], fill=INK))
    body.append(text(ANSWER, y, fit.words, size=SMALL, weight="" if no else "bold"))
    return body


def _key(result: Budget) -> list[str]:
    """Each category with its bytes at both moments."""
    body = [
        text(MARGIN, KEY, "bytes where activations are most | where all gradients are there", size=SMALL, fill=MUTED)
    ]
    for place, (name, words) in enumerate(CATEGORIES.items()):
        number = place + 1
        x, y = MARGIN + (place // 3) * 280, KEY + 23 + (place % 3) * 21
        body.append(bar(x, y - 13, 20, 17, fill=COLOURS[name], hatched=number % 2 == 0))
        body.append(_number(number, x + 10, y))
        body.append(text(x + 26, y, words, size=SMALL))
        for moment, right in zip(result.moments, (200, 271), strict=True):
            nbytes = getattr(moment, name)
            body.append(text(x + right, y, amount(nbytes) if nbytes else "–", size=SMALL, anchor="end"))
    return body


def _sums(result: Budget) -> list[str]:
    job = result.job
    number = job.needs.parameters
    psi = f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
    counted = f"{result.states / number:.3g} bytes × {psi} parameters"
    states = f"model states of a rank, as the ZeRO paper counts: {billions(result.states)}: {counted}"
    sent = f"a rank sends {billions(job.traffic)} in a step: {job.volume}" if job.ranks > 1 else ""
    if result.estimate is not None:
        sent += f"; by DeepSpeed's estimator its states are {billions(result.estimate)}"
    source = "formulas (Korthikanti et al.)" if "formula" in job.needs.source else "gpulab.plan"
    starred = "; * has no bf16 units" if any(fit.no_units for fit in result.fits) else ""
    origin = f"activations and logits of {job.needs.words}: {source}; memory of GPUs: recorded{starred}"
    lines = (states, sent or "one rank: nothing to send", origin)
    y = KEY + 3 * 21 + 32
    return [text(MARGIN, y + 19 * place, words, size=SMALL) for place, words in enumerate(lines)]
