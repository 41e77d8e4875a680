"""Six rows of bits, the number line around the value, and the updates: draws a result of `model`."""

from __future__ import annotations

import math
from collections.abc import Callable

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import (
    BODY,
    MARGIN,
    SMALL,
    Picture,
    bar,
    key,
    length,
    letters,
    line,
    polyline,
    rect,
    shape,
    text,
)

from ..base.floats import TF32, weight
from .model import Number, Stored, show, spacings

WIDTH, BODY_HEIGHT = 860.0, 438.0
ROW, CELL = 24.0, 11.5
NAME, SIGN, MANTISSA, VALUE, ERROR, AFTER = 34.0, 114.0, 230.0, 508.0, 632.0, 716.0
LINE_TOP, LOWER_TOP = 174.0, 300.0
FIELDS = (GREEN, ORANGE, SKY)


def draw(number: Number) -> Picture:
    """The formats under one another, the chosen one's number line, its updates, and how far each format reaches."""
    body = [*_table(number), *_number_line(number, LINE_TOP), *_updates(number, LOWER_TOP), *_ranges(number, LOWER_TOP)]
    return Picture(WIDTH, BODY_HEIGHT, number.finding, number.describe(), tuple(body))


def _table(number: Number) -> list[str]:
    heads = {"sign": SIGN - 14, "exponent": MANTISSA - 83, "mantissa": MANTISSA + 2}
    heads |= {"stored": VALUE, "error": ERROR, "after updates": AFTER}
    body = [text(x, 13, words, size=SMALL, fill=MUTED) for words, x in heads.items()]
    for place, stored in enumerate(number.all):
        top = 18 + place * ROW
        base, bold = top + 17, "bold" if stored is number.chosen else ""
        if stored is number.chosen:
            body.append(rect(MARGIN - 6, top, WIDTH - 2 * MARGIN + 12, ROW, stroke=INK, radius=4))
            body.append(shape([(MARGIN + 2, top + 6), (MARGIN + 11, top + 12), (MARGIN + 2, top + 18)], fill=INK))
        body.append(text(NAME, base, stored.format.name, weight=bold))
        fields = stored.format.fields(stored.value)
        lefts = (SIGN, MANTISSA - 6 - CELL * len(fields[1]), MANTISSA)
        for bits, left, colour in zip(fields, lefts, FIELDS, strict=True):
            body += _cells(left, top + 2, bits, colour)
        body.append(text(VALUE, base, show(stored.value), weight=bold))
        body.append(text(ERROR, base, stored.outcome, size=SMALL))
        after = "kept in fp32" if stored.format is TF32 else show(stored.after)
        body.append(text(AFTER, base, after, weight=bold, size=SMALL if stored.format is TF32 else BODY))
    return body


def _cells(x: float, y: float, bits: str, colour: str) -> list[str]:
    body = [rect(x, y, CELL * len(bits), ROW - 4, fill=colour, stroke=INK)]
    body += [line(x + CELL * i, y, x + CELL * i, y + ROW - 4) for i in range(1, len(bits))]
    body.append(letters((x + CELL * (i + 0.5) for i in range(len(bits))), y + 15, "".join(bits)))
    return body


CENTRE, GAP = WIDTH / 2, 150.0  # of the number line: the place of the stored value, the pixels of a spacing
LEFT, RIGHT = MARGIN, WIDTH - MARGIN


def _number_line(number: Number, top: float) -> list[str]:
    it = number.chosen
    kind, outer = it.format, spacings(it)[1]
    middle = max(-kind.largest, min(it.value, kind.largest))  # where inf is stored, the largest value
    axis = top + 68

    def at(value: float) -> float:
        return min(max(CENTRE + (value - middle) / outer * GAP, LEFT), RIGHT)

    body = _captions(number, top)
    start, end = _basin(it)
    zone = at(end) - at(start)
    body.append(bar(at(start), axis - 11, zone, 22, fill=YELLOW, hatched=True, stroke=""))
    body.append(line(LEFT, axis, RIGHT, axis))
    ticks = [middle]
    for side in (0, 1):
        value = kind.beside(middle)[side]
        while value is not None and LEFT < at(value) < RIGHT:
            ticks.append(value)
            value = kind.beside(value)[side]
    body += [line(at(value), axis - 9, at(value), axis + 9, width=2) for value in ticks]
    body += _labels(it, middle, axis, at)
    if math.isinf(it.value):
        body.append(text((at(start) + at(end)) / 2, axis + 27, "stored as " + show(it.value), anchor="middle"))
    elif kind is not TF32:
        body.append(line(CENTRE, axis - 25, CENTRE, axis - 15, stroke=VERMILLION, width=2))
        body += _arrow(CENTRE, at(middle + number.change), axis - 20)
    x = at(it.asked)
    if x in (LEFT, RIGHT):  # off the line
        head = 9.0 if x == RIGHT else -9.0
        body.append(shape([(x, axis), (x - head, axis - 6), (x - head, axis + 6)], fill=INK))
        x -= 2 * head
    return [*body, _diamond(x, axis)]


def _basin(it: Stored) -> tuple[float, float]:
    """From where to where everything is stored as this value."""
    kind, far = it.format, math.copysign(math.inf, it.value)
    limit = math.copysign(kind.largest + kind.spacing(kind.largest) / 2, it.value)
    if math.isinf(it.value):
        return min(limit, far), max(limit, far)
    beyond = limit if kind.infinite else far  # of the largest value, beside which there is no other
    below, above = (beyond if value is None else (value + it.value) / 2 for value in kind.beside(it.value))
    return below, above


def _captions(number: Number, top: float) -> list[str]:
    it, x = number.chosen, LEFT
    words = f"the numbers of {it.format.name} here"
    body = [text(x, top + 13, words, size=SMALL, fill=MUTED)]
    x += length(words, SMALL) + 24
    words = f"asked for: {show(number.asked)}"
    body += [_diamond(x + 6, top + 9), text(x + 18, top + 13, words, size=SMALL, fill=MUTED)]
    x += length(words, SMALL) + 42
    body.append(key(x, top + 13, f"all of this is stored as {show(it.value)}", fill=YELLOW, hatched=True))
    if it.format is TF32:
        words = "no weight is kept in tf32: the updates are those of fp32"
        return [*body, text(LEFT, top + 33, words, size=SMALL)]
    if math.isinf(it.value):
        return [*body, text(LEFT, top + 33, f"{show(it.value)} stays {show(it.value)}, whatever is added", size=SMALL)]
    ratio = abs(number.change) / spacings(it)[0]
    words = f"one update, {show(number.change)}, is {_times(ratio)}: "
    words += f"rounded back to {show(it.value)}" if it.stuck else f"the weight becomes {show(it.path[1])}"
    y = top + 29
    return [
        *body,
        *_arrow(*((LEFT, LEFT + 16) if number.change > 0 else (LEFT + 16, LEFT)), y),
        text(LEFT + 24, y + 4, words, size=SMALL),
    ]


def _times(ratio: float) -> str:
    if ratio >= 1e6:
        return "over a million spacings"
    return (
        f"{ratio:,.0f} spacings"
        if ratio >= 100
        else f"{ratio:.2g} spacings"
        if ratio >= 1
        else f"{ratio:.2g} of the spacing"
    )


def _arrow(x1: float, x2: float, y: float) -> list[str]:
    """From `x1` to `x2`; where they are too near for a head, only the line."""
    head = 9.0 if x2 > x1 else -9.0
    body = [line(x1, y, x2, y, stroke=VERMILLION, width=2)]
    if abs(x2 - x1) > abs(head):
        body.append(shape([(x2, y), (x2 - head, y - 5), (x2 - head, y + 5)], fill=VERMILLION))
    return body


def _labels(it: Stored, middle: float, axis: float, at: Callable[[float], float]) -> list[str]:
    """The values of the three ticks in the middle, and the distances between them."""
    digits = 9 if it.format.mantissa > 16 else 6
    body = [text(CENTRE, axis + 46, show(middle, digits), anchor="middle", weight="bold")]
    for value in it.format.beside(middle):
        if value is None:
            continue
        x, apart = at(value), abs(value - middle)
        near = abs(x - CENTRE) < GAP - 1  # half a spacing: the next smaller power of two begins here
        anchor = "middle" if not near else "end" if x < CENTRE else "start"
        body.append(text(x, axis + 46, show(value + 0.0, digits), anchor=anchor, size=SMALL))
        words = show(apart, 3) + ("" if near else " apart")
        body.append(text((x + CENTRE) / 2, axis + 26, words, anchor="middle", size=SMALL, fill=MUTED))
        body.append(line(x, axis + 9, x, axis + 30, stroke=MUTED))
    body.append(line(CENTRE, axis + 9, CENTRE, axis + 30, stroke=MUTED))
    return body


def _diamond(x: float, y: float) -> str:
    return shape([(x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6)], fill=INK)


def _updates(number: Number, top: float) -> list[str]:
    it, name = number.chosen, weight(number.chosen.format).name
    left, right, high, low = 124.0, 424.0, top + 30, top + 110
    values = [value for value in (number.asked, number.exact, it.value, it.after) if math.isfinite(value)]
    most, least = max(values), min(values)

    def place(step: float, value: float) -> tuple[float, float]:
        return left + (right - left) * step / number.steps, low - (low - high) * (value - least) / (most - least)

    body = [text(LEFT, top + 13, number.updates, size=SMALL)]
    x = LEFT + length(number.updates, SMALL) + 20
    body += [line(x, top + 9, x + 18, top + 9, stroke=BLUE, width=4), text(x + 24, top + 13, name, size=SMALL)]
    x += length(name, SMALL) + 40
    body += [line(x, top + 9, x + 18, top + 9, dash="4 3", width=2), text(x + 24, top + 13, "exact", size=SMALL)]
    body.append(rect(left, high, right - left, low - high, stroke=RULE))
    if math.isfinite(it.value):
        every = max(1, len(it.path) // 100)
        points = [place(i, it.path[i]) for i in range(0, len(it.path), every)]
        points += [place(len(it.path) - 1, it.after), place(number.steps, it.after)]
        body.append(polyline(points, stroke=BLUE, width=4))
    else:  # in the corner that the line to zero leaves free
        x, anchor = (right - 10, "end") if number.asked > 0 else (left + 10, "start")
        body.append(text(x, high + 22, f"{name}: {show(it.value)} throughout", anchor=anchor))
    body.append(polyline([place(0, number.asked), place(number.steps, number.exact)], width=2, dash="4 3"))
    digits = 3
    while show(most, digits) == show(least, digits):
        digits += 1
    body.append(text(left - 8, high + 6, show(most, digits), size=SMALL, anchor="end"))
    body.append(text(left - 8, low + 4, show(least, digits), size=SMALL, anchor="end"))
    body.append(text(left, low + 18, "0", size=SMALL, fill=MUTED, anchor="middle"))
    return [*body, text(right, low + 18, f"{number.steps:,} updates", size=SMALL, fill=MUTED, anchor="end")]


def _ranges(number: Number, top: float) -> list[str]:
    names, left, lowest, highest = 464.0, 552.0, -46, 39

    def at(value: float) -> float:
        return left + (RIGHT - left) * (math.log10(value) - lowest) / (highest - lowest)

    body = [text(names, top + 13, "smallest to largest; hatched: subnormal", size=SMALL, fill=MUTED)]
    for place, stored in enumerate(number.all):
        kind, y = stored.format, top + 24 + 15 * place
        body.append(text(names, y + 11, kind.name, size=SMALL, weight="bold" if stored is number.chosen else ""))
        a, b, c = at(kind.smallest), at(kind.smallest_normal), at(kind.largest)
        body.append(bar(a, y, b - a, 11, fill=RULE, hatched=True, stroke=""))
        body.append(bar(b, y, c - b, 11, fill=PURPLE, stroke=""))
        body.append(rect(a, y, c - a, 11, stroke=INK))
    x, low = at(abs(number.asked)), top + 24 + 15 * len(number.all)
    body += [line(x, top + 20, x, low, width=2), _diamond(x, low)]
    for power in (-40, -20, 0, 20):
        words = f"1e{power}" if power else "1"
        body.append(text(at(10.0**power), low + 18, words, size=SMALL, fill=MUTED, anchor="middle"))
    return body
