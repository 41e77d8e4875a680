"""Six rows of bits, the number line around the value, and the updates: draws a result of `model`."""

from __future__ import annotations

import math
from collections.abc import Callable

from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Live,
    Picture,
    bar,
    length,
    letters,
    line,
    rect,
    text,
)

from ..base.floats import FORMATS, TF32
from ..base.scene import END, WIDTH, Scale, arrow, between, diamond, keys, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp, named
from .model import Number, Stored, flipped, show, spacings

ROW, CHOSEN_ROW, CELL = 23.0, 32.0, 14.0
NAME, SIGN, MANTISSA, VALUE, ERROR = 18.0, 92.0, 228.0, 559.0, 662.0
AXIS, TABLE_TOP, RANGE_TOP = 77.0, 137.0, 319.0
FIELDS = {"sign": GREEN, "exponent": ORANGE, "mantissa": SKY}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(number: Number) -> Picture:
    """The chosen format's number line, all formats under one another, and how far each format reaches."""
    return picture(number, 438.0, _number_line(number), _table(number, TABLE_TOP), _ranges(number, RANGE_TOP))


def _table(number: Number, top: float) -> list[str]:
    """A row for each format, which chooses it; the bits of the chosen one are switches."""
    heads = {"sign": SIGN - 9, "exponent": MANTISSA - 70, "mantissa": MANTISSA, "stored": VALUE, "error": ERROR}
    body = [note(x, top + 13, words) for words, x in heads.items()]
    body.append(note(END, top + 13, f"{number.steps:,} updates leave", anchor="end"))
    body.append(Live(note(VALUE - 40, top + 13, "click a bit or a row", anchor="end")))
    top += 18
    for name, stored in zip(FORMATS, number.all, strict=True):
        chosen = stored is number.chosen
        high = CHOSEN_ROW if chosen else ROW
        base, bold = top + high / 2 + 5, "bold" if chosen else ""
        words = [
            rect(MARGIN - 6, top + 1, END - MARGIN + 12, high - 2, fill=PAPER, stroke=INK if chosen else "", radius=4),
            small(NAME, base, stored.format.name, weight=bold),
            small(VALUE, base, show(stored.value)),
            small(ERROR, base, stored.outcome),
            _left(number, stored, base),
        ]
        fields = stored.format.fields(stored.value)
        lefts = (SIGN, MANTISSA - 5 - CELL * len(fields[1]), MANTISSA)
        place = sum(map(len, fields))
        bits = []
        for bit_field, left, (field, colour) in zip(fields, lefts, FIELDS.items(), strict=True):
            place -= len(bit_field)
            if chosen:
                bits += _switches(stored, left, top + 3, bit_field, field, place)
            else:
                bits += _cells(left, top + 2, bit_field, colour)
        row = "".join(words if chosen else words + bits)
        body.append(clickable(row, f"{stored.format.name}: {show(stored.value)}, error {stored.outcome}", format=name))
        body += bits if chosen else []
        top += high
    body.append(note(MARGIN, top + 17, f"{number.chosen.format.name}’s bits: {_parts(number.chosen)}"))
    return [*body, note(END, top + 17, f"exact: {round(100 * number.exact / number.asked)}%", anchor="end")]


def _left(number: Number, stored: Stored, base: float) -> str:
    """What the updates have left, and whether that is right."""
    if stored.format is TF32 or not stored.fits:
        return note(END, base, "as fp32" if stored.format is TF32 else stored.left, anchor="end")
    right = abs(stored.after - number.exact) < 0.005 * abs(number.asked)
    words = f"{'✓' if right else '✗'} {stored.left}"
    return small(END, base, words, anchor="end", weight="" if right else "bold")


def _cells(x: float, y: float, bits: str, colour: str) -> list[str]:
    body = [rect(x, y, CELL * len(bits), ROW - 4, fill=colour, stroke=EDGE)]
    body += [line(x + CELL * i, y, x + CELL * i, y + ROW - 4) for i in range(1, len(bits))]
    body.append(letters((x + CELL * (i + 0.5) for i in range(len(bits))), y + 14, "".join(bits)))
    return body


def _switches(stored: Stored, x: float, y: float, bits: str, field: str, place: int) -> list[str]:
    """A cell for each bit, which a click flips; `place` is that of the last one in the whole number."""
    body, high = [], CHOSEN_ROW - 6
    for i, bit in enumerate(bits):
        left, behind = x + CELL * i, len(bits) - 1 - i
        drawn = rect(left, y, CELL, high, fill=FIELDS[field], stroke=EDGE)
        drawn += small(left + CELL / 2, y + high / 2 + 5, bit, anchor="middle", weight="bold")
        worth = {"sign": "+ or −", "exponent": str(2**behind), "mantissa": f"1/{2 ** (i + 1)}"}[field]
        values = flipped(stored, place + behind)
        if values is None:
            body.append(named(drawn, f"{field}, {worth}: flipped it would be NaN"))
        else:
            label = f"{field}, {worth}: now {bit}"
            body.append(clickable(named(drawn, label), label, **values))
    return body


CENTRE, GAP = WIDTH / 2, 185.0  # of the number line, and the pixels of a spacing
LEFT, RIGHT = MARGIN, END
PAGE = 4  # spacings that one piece of the number line is for


def _page(it: Stored) -> tuple[float, float, float]:
    """The middle of the piece of the number line that holds the number, its spacing, and how far it goes towards 0.

    The pieces stand still, so that a number can be dragged along one.
    """
    kind, asked = it.format, min(abs(it.asked), it.format.largest)
    apart, towards = kind.spacing(asked), PAGE / 2
    middle = round(asked / (PAGE * apart)) * PAGE * apart
    if 0 < middle <= kind.largest and kind.spacing(middle) != middle - (kind.beside(middle)[0] or 0.0):
        apart, towards = kind.spacing(middle), PAGE / 4  # a power of two: below it all is half as large
    return middle, apart, towards * apart


def _number_line(number: Number) -> list[str]:
    it = number.chosen
    kind, sign = it.format, math.copysign(1, it.asked)
    middle, apart, towards = _page(it)
    reach = (RIGHT - LEFT) / 2 / GAP * apart
    scale = Scale(LEFT, RIGHT, sign * middle - reach, sign * middle + reach)
    at, here = scale.at, max(-kind.largest, min(it.value, kind.largest))  # where inf is stored, the largest value
    body = _captions(number)
    start, end = _basin(it)
    body.append(bar(at(start), AXIS - 20, at(end) - at(start), 40, fill=YELLOW, hatched=True, stroke=""))
    body.append(line(LEFT, AXIS, RIGHT, AXIS))
    ticks = [here]
    for side in (0, 1):
        value = kind.beside(here)[side]
        while value is not None and LEFT < at(value) < RIGHT:
            ticks.append(value)
            value = kind.beside(value)[side]
    body += [line(at(value), AXIS - 9, at(value), AXIS + 9, width=2) for value in ticks]
    body += _labels(it, here, at)
    if math.isinf(it.value):
        body.append(text((at(start) + at(end)) / 2, AXIS + 36, "stored as " + show(it.value), anchor="middle"))
    elif kind is not TF32 and it.fits:
        body.append(line(at(here), AXIS - 36, at(here), AXIS - 22, stroke=VERMILLION, width=3))
        body.append(arrow(at(here), at(here + number.change), AXIS - 29, stroke=VERMILLION, width=3))
    x = at(it.asked)
    if x in (LEFT, RIGHT):  # off the line
        words = f"{show(it.asked)} →" if x == RIGHT else f"← {show(it.asked)}"
        body.append(between(LEFT, RIGHT, x, AXIS - 26, words, weight="bold"))
    unit, over = 10.0**number.exponent, 0.1 * apart  # a little further, where the next piece begins
    low, high = middle - towards - over, middle + PAGE / 2 * apart + over
    step = 10.0 ** math.floor(math.log10(apart / unit / 16))
    grip = Grip("value", at(sign * low), at(sign * high), low / unit, high / unit, step=step)
    moved = grasp(x - 12, AXIS - 12, 24, 24) + diamond(x, AXIS, 9)
    return [*body, draggable(moved, "Number, along the number line", grip)]


def _basin(it: Stored) -> tuple[float, float]:
    """From where to where everything is stored as this value."""
    kind, far = it.format, math.copysign(math.inf, it.value)
    limit = math.copysign(kind.largest + kind.spacing(kind.largest) / 2, it.value)
    if math.isinf(it.value):
        return min(limit, far), max(limit, far)
    beyond = limit if kind.infinite else far  # of the largest value, beside which there is no other
    below, above = (beyond if value is None else (value + it.value) / 2 for value in kind.beside(it.value))
    return below, above


def _captions(number: Number) -> list[str]:
    it, x = number.chosen, LEFT + 18
    words = f"asked for: {show(number.asked)}"
    same = keys(x + length(words, SMALL) + 24, 13, (f"all of this is stored as {show(it.value)}", YELLOW, True))
    body = [diamond(LEFT + 6, 9, 6), note(x, 13, words), *same]
    if it.format is TF32:
        return [*body, text(LEFT, 34, "no weight is kept in tf32: the updates are those of fp32")]
    if not it.fits:
        return body
    ratio = abs(number.change) / spacings(it)[0]
    words = f"one update, {show(number.change)}, is {_times(ratio)}: "
    words += f"rounded back to {show(it.value)}" if it.stuck else f"the weight becomes {show(it.path[1])}"
    ends = (LEFT, LEFT + 16) if number.change > 0 else (LEFT + 16, LEFT)
    return [*body, arrow(*ends, 29, stroke=VERMILLION), text(LEFT + 24, 34, words, weight="bold")]


def _parts(it: Stored) -> str:
    """The value as its three fields say it: sign, significand, power of two."""
    if math.isinf(it.value):
        return f"{show(it.value)}, as the exponent is all 1"
    power = max(math.frexp(it.value)[1] - 1, 1 - it.format.bias) if it.value else 1 - it.format.bias
    significand = math.ldexp(abs(it.value), -power)
    sign = "−" if math.copysign(1, it.value) < 0 else "+"
    return f"{sign}{show(significand, 8)} × 2{str(power).translate(RAISED)}"


def _times(ratio: float) -> str:
    if ratio >= 1e6:
        return "over a million spacings"
    if ratio >= 1:
        number = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"
        return f"{number} spacing{'' if number == '1' else 's'}"
    return f"{show(ratio, 2)} of the spacing"


def _labels(it: Stored, here: float, at: Callable[[float], float]) -> list[str]:
    """The stored value and those beside it, and the distances between them."""
    digits, middle = 9 if it.format.mantissa > 16 else 6, at(here)
    body = [between(LEFT, RIGHT, middle, AXIS + 54, show(here, digits), weight="bold")]
    for value in it.format.beside(here):
        if value is None or at(value) in (LEFT, RIGHT):
            continue
        x, apart = at(value), abs(value - here)
        near = abs(x - middle) < GAP - 1  # half a spacing: the next smaller power of two begins here
        anchor, words = "end" if x < middle else "start", show(value + 0.0, digits)
        name = small(x, AXIS + 54, words, anchor=anchor)
        body.append(name if near else between(LEFT, RIGHT, x, AXIS + 54, words, size=SMALL))
        words = show(apart, 3) + ("" if near else " apart")
        body.append(note((x + middle) / 2, AXIS + 36, words, anchor="middle"))
        body.append(line(x, AXIS + 9, x, AXIS + 39, stroke=MUTED))
    body.append(line(middle, AXIS + 9, middle, AXIS + 39, stroke=MUTED))
    return body


RANGE = Scale(SIGN, RIGHT, 1e-46, 1e39, log=True)


def _ranges(number: Number, top: float) -> list[str]:
    """From the smallest to the largest of each format; the number is dragged from one power of ten to the next."""
    at, low = RANGE.at, top + 9 + 15 * len(number.all)
    body = [note(END - 100, top, "range, smallest to largest (hatched: subnormal)", anchor="end")]
    for place, stored in enumerate(number.all):
        kind, y, chosen = stored.format, top + 9 + 15 * place, stored is number.chosen
        body.append(small(NAME, y + 11, kind.name, weight="bold" if chosen else ""))
        a, b, c = at(kind.smallest), at(kind.smallest_normal), at(kind.largest)
        body.append(bar(a, y, b - a, 11, fill=PAPER, hatched=True))
        body.append(bar(b, y, c - b, 11, fill=PURPLE if chosen else RULE))
    x, beside = at(abs(number.asked)), at(abs(number.asked) / 10.0**number.exponent) - at(1)
    grip = Grip("exponent", at(1e-46) + beside, at(1e38) + beside, -46, 38)
    moved = grasp(x - 9, top + 5, 18, low - top + 6) + line(x, top + 5, x, low, width=2) + diamond(x, low + 2, 6)
    body.append(draggable(moved, "Power of ten, along all formats", grip))
    for power in range(-40, 39, 10):
        words = f"10{str(power).translate(RAISED)}" if power else "1"
        body.append(note(at(10.0**power), low + 20, words, anchor="middle"))
    return body
