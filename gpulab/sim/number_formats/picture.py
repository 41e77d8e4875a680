"""Six rows of bits, the number line around the value, and the updates: draws a result of `model`."""

from __future__ import annotations

import math
from collections.abc import Callable

from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, dot, length, line, rect, text

from ..base.floats import FORMATS, TF32
from ..base.scene import END, WIDTH, Scale, arrow, between, diamond, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp, named
from .model import RAISED, Number, Stored, flipped, share, show, spacings

ROW, CHOSEN_ROW, CELL = 25.0, 52.0, 10.5
NAME, SIGN, MANTISSA, VALUE, AFTER = 18.0, 94.0, 198.0, 446.0, 684.0
AXIS, TABLE_TOP = 98.0, 200.0
FIELDS = {"sign": GREEN, "exponent": ORANGE, "mantissa": SKY}
RANGE = Scale(700.0, END - 10, 1e-46, 1e39, log=True)


def draw(number: Number) -> Picture:
    """The chosen format's number line; below it a row for each format: its bits, what is stored, how far it reaches."""
    return picture(number, 438.0, _number_line(number), _table(number, TABLE_TOP))


def _table(number: Number, top: float) -> list[str]:
    """A row for each format, which chooses it; the bits of the chosen one are switches."""
    after, exact = f"after {number.steps:,} updates", f"of −{share(number.share)} (exact: {show(number.exact, 3)})"
    heads = ("bits", NAME, "start"), ("stored", VALUE, "start"), (after, AFTER, "end"), ("range", RANGE.start, "start")
    body = [small(x, top, words, anchor=anchor, weight="bold") for words, x, anchor in heads]
    names = ("sign", SIGN + CELL, "end"), ("exponent", MANTISSA - 5, "end"), ("mantissa", MANTISSA, "start")
    more = (exact, AFTER, "end"), ("pale: subnormal", RANGE.start, "start")
    body += [note(x, top + 18, words, anchor=anchor) for words, x, anchor in (*names, *more)]
    first = top = top + 25
    for name, stored in zip(FORMATS, number.all, strict=True):
        chosen = stored is number.chosen
        high = CHOSEN_ROW if chosen else ROW
        middle, bold = top + (17 if chosen else high / 2), "bold" if chosen else ""
        words = [
            rect(MARGIN - 6, top, END - MARGIN + 12, high, fill=PAPER, stroke=INK if chosen else "", radius=4),
            small(NAME, middle + 5, stored.format.name, weight=bold),
            small(VALUE, middle + 5, show(stored.value) + ", clamped" * (stored.outcome == "clamped")),
            _after(number, stored, middle + 5),
            _reach(stored, middle, chosen),
            note(SIGN, top + 44, f"= {_parts(stored)}") if chosen else "",
            note(VALUE, top + 44, f"largest: {show(stored.format.largest)}") if chosen else "",
        ]
        bits, fields = [], stored.format.fields(stored.value)
        lefts = (SIGN, MANTISSA - 5 - CELL * len(fields[1]), MANTISSA)
        place = sum(map(len, fields))
        for bit_field, left, (field, colour) in zip(fields, lefts, FIELDS.items(), strict=True):
            place -= len(bit_field)
            if chosen:
                bits += _switches(stored, left, middle - 13, bit_field, field, place)
            else:
                words += _cells(left, middle - 8, len(bit_field), colour)
        body.append(clickable("".join(words), f"{name}: {show(stored.value)}, error {stored.outcome}", format=name))
        body += bits
        top += high
    return [*body, Live(note(NAME, top + 26, "click a bit or a row")), *_power(number, first, top)]


def _after(number: Number, it: Stored, base: float) -> str:
    """What the updates have left, and whether that is right: to half a per cent of the number."""
    if it.format is TF32 or not it.fits:
        return note(AFTER, base, "as fp32" if it.format is TF32 else f"starts at {show(it.value)}", anchor="end")
    sign = "✓" if abs(it.after - number.exact) < 0.005 * abs(it.asked) else "✗"
    left = it.after if it.stuck else float(f"{it.after:.3g}")
    return small(AFTER, base, f"{sign} {show(left if abs(left) >= 0.005 * abs(it.asked) else 0)}", anchor="end")


def _cells(x: float, y: float, count: int, colour: str) -> list[str]:
    """The bits of a format that is not chosen: how many they are."""
    body = [rect(x, y, CELL * count, 16, fill=colour, opacity=0.4)]
    return body + [line(x + CELL * i, y, x + CELL * i, y + 16, stroke=PAPER) for i in range(1, count)]


def _reach(stored: Stored, middle: float, chosen: bool) -> str:
    """From the smallest to the largest number of the format; paler where digits are lost."""
    kind, at, high = stored.format, RANGE.at, 14 if chosen else 8
    a, b, c = at(kind.smallest), at(kind.smallest_normal), at(kind.largest)
    fill = PURPLE if chosen else RULE
    drawn = rect(a, middle - high / 2, b - a, high, fill=fill, opacity=0.5)
    drawn += rect(b, middle - high / 2, c - b, high, fill=fill)
    return named(drawn, f"{show(kind.smallest)} to {show(kind.largest)}, subnormal below {show(kind.smallest_normal)}")


def _power(number: Number, top: float, low: float) -> list[str]:
    """The number across all ranges, dragged from one power of ten to the next."""
    at = RANGE.at
    x, beside = at(abs(number.asked)), at(abs(number.asked) / 10.0**number.exponent) - at(1)
    grip = Grip("exponent", at(1e-46) + beside, at(1e38) + beside, -46, 38)
    moved = grasp(x - 9, top, 18, low - top + 12) + line(x, top, x, low, width=2) + diamond(x, low + 4, 6)
    ticks = RANGE.ticks(low + 8, {1e-30: "10⁻³⁰", 1: "1", 1e30: "10³⁰"})
    return [*ticks, draggable(moved, "Power of ten, along all formats", grip)]


def _switches(stored: Stored, x: float, y: float, bits: str, field: str, place: int) -> list[str]:
    """A cell for each bit, which a click flips; `place` is that of the last one in the whole number."""
    body, high = [], 26.0
    for i, bit in enumerate(bits):
        left, behind = x + CELL * i, len(bits) - 1 - i
        drawn = rect(left, y, CELL, high, fill=FIELDS[field], stroke=EDGE)
        drawn += small(left + CELL / 2, y + high / 2 + 5, bit, anchor="middle", weight="bold", fill=ON)
        worth = {"sign": "+ or −", "exponent": str(2**behind), "mantissa": f"1/{2 ** (i + 1)}"}[field]
        values = flipped(stored, place + behind)
        if values is None:
            body.append(named(drawn, f"{field}, {worth}: flipped it would be NaN"))
        else:
            label = f"{field}, {worth}: now {bit}"
            body.append(clickable(named(drawn, label), label, **values))
    return body


CENTRE, GAP = WIDTH / 2, 370.0  # of the number line, and the pixels of a spacing
LEFT, RIGHT, PAGE = MARGIN, END, 2  # spacings that one piece of the number line is for


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
    start, end = map(at, _basin(it))
    body = [
        text(LEFT, 16, f"{kind.name}: {_sentence(number)}", weight="bold"),
        rect(start, AXIS - 48, end - start, 80, fill=YELLOW, stroke=MUTED, opacity=0.5),
        between(LEFT, RIGHT, (start + end) / 2, AXIS - 54, f"all of this is stored as {show(it.value)}", size=SMALL),
        line(LEFT, AXIS, RIGHT, AXIS),
        *_ticks(it, here, at),
    ]
    x, update = at(it.asked), _update(number, at) if kind is not TF32 and it.fits else ""
    if x in (LEFT, RIGHT):  # beyond a break of the line
        x += math.copysign(24, CENTRE - x)
        broken = x + math.copysign(26, CENTRE - x)
        body += [line(broken + i, AXIS + 9, broken + 5 + i, AXIS - 9, width=2) for i in (-3, 3)]
    unit, over = 10.0**number.exponent, 0.1 * apart  # a little further, where the next piece begins
    low, high = middle - towards - over, middle + PAGE / 2 * apart + over
    step = 10.0 ** math.floor(math.log10(apart / unit / 16))
    grip = Grip("value", at(sign * low), at(sign * high), low / unit, high / unit, step=step)
    moved = grasp(x - 12, AXIS - 12, 24, 24) + diamond(x, AXIS, 9)
    moved += between(LEFT + 6, RIGHT - 6, x, AXIS + 26, f"asked for: {show(it.asked)}", size=SMALL)
    return [*body, update, draggable(moved, "Number, along the number line", grip)]


def _update(number: Number, at: Callable[[float], float]) -> str:
    """Two arrows over the number line: to where an update leads, and from there to what is stored of it."""
    it = number.chosen
    here, tip, after = map(at, (it.value, it.value + number.change, it.path[-1 if it.stuck else 1]))
    if abs(tip - here) < 4:
        return ""
    drawn = line(tip, AXIS - 38, tip, AXIS, stroke=VERMILLION) + dot(tip, AXIS, 5, fill=PAPER, stroke=VERMILLION)
    rows = (here, tip, 36, show(number.change)), (tip, after, 18, f"rounded to {show(it.path[-1 if it.stuck else 1])}")
    for start, end, up, words in (row for row in rows if abs(row[0] - row[1]) > 4):
        drawn += arrow(start, end, AXIS - up, stroke=VERMILLION, width=2.5)
        away = math.copysign(16 + length(words, SMALL), it.value)  # updates lead towards 0
        beside = here + away / 2 if LEFT < here + away < RIGHT else tip - away / 2
        drawn += between(LEFT, RIGHT, beside, AXIS - up + 5, words, size=SMALL)
    return drawn


def _basin(it: Stored) -> tuple[float, float]:
    """From where to where everything is stored as this value."""
    kind, far = it.format, math.copysign(math.inf, it.value)
    limit = math.copysign(kind.largest + kind.spacing(kind.largest) / 2, it.value)
    if math.isinf(it.value):
        return min(limit, far), max(limit, far)
    beyond = limit if kind.infinite else far  # of the largest value, beside which there is no other
    below, above = (beyond if value is None else (value + it.value) / 2 for value in kind.beside(it.value))
    return below, above


def _sentence(number: Number) -> str:
    """What the number line shows, in one sentence."""
    it, value = number.chosen, show(number.chosen.value)
    if it.format is TF32:
        return "no weight is kept in tf32: the updates are those of fp32"
    if it.outcome == "underflow":
        return f"{show(it.asked)} is {_times(abs(it.asked) / spacings(it)[0])}, stored as {value}"
    if not it.fits:
        return f"{show(it.asked)} is beyond the last number, stored as {value}"
    words = f"rounded back to {value}" if it.stuck else f"the weight becomes {show(it.path[1])}"
    return f"update {show(number.change)} is {_times(abs(number.change) / spacings(it)[0])}, {words}"


def _parts(it: Stored) -> str:
    """The value as its three fields say it: sign, significand, power of two."""
    if math.isinf(it.value):
        return f"{show(it.value)}, as the exponent is all 1"
    power = max(math.frexp(it.value)[1] - 1, 1 - it.format.bias) if it.value else 1 - it.format.bias
    significand = math.ldexp(abs(it.value), -power)
    sign = "−" if math.copysign(1, it.value) < 0 else "+"
    return f"{sign}{show(significand, 8)} × 2{str(power).translate(RAISED)}"


def _times(ratio: float) -> str:
    return f"{show(ratio, 2 if ratio >= 0.001 else 1)} {'times' if ratio >= 0.995 else 'of'} the spacing"


def _ticks(it: Stored, here: float, at: Callable[[float], float]) -> list[str]:
    """The format's numbers, named as far as there is room, and the distances to those beside the stored one."""
    digits, middle, values = 8 if it.format.mantissa > 16 else 0, at(here), [here]
    for side in (0, 1):
        value = it.format.beside(here)[side]
        while value is not None and LEFT < at(value) < RIGHT:
            values.append(value + 0.0)
            value = it.format.beside(value)[side]
    taken: list[tuple[float, float]] = []
    body = []
    for value in values:
        x, words, weight = at(value), show(value, digits), "bold" if value == here else ""
        body.append(line(x, AXIS - 9, x, AXIS + 9, width=2))
        half = length(words, SMALL, bold=bool(weight)) / 2 + 4
        x = min(max(x, LEFT + half), RIGHT - half)
        if all(abs(x - other) > half + room for other, room in taken):
            body.append(small(x, AXIS + 70, words, anchor="middle", weight=weight))
            taken.append((x, half))
        if value in it.format.beside(here):
            body += _measure(middle, at(value), show(abs(value - here), 3))
    if math.isinf(it.value):
        limit = next(filter(math.isfinite, _basin(it)))
        words = f"{show(limit)}: from here {show(it.value)}"
        body.append(between(LEFT, RIGHT, at(limit), AXIS + 49, words, size=SMALL))
    return body


def _measure(start: float, end: float, words: str) -> list[str]:
    """The distance of two numbers, between arrows to both."""
    y, middle, half = AXIS + 45, (start + end) / 2, math.copysign(length(words, SMALL) / 2 + 2, end - start)
    body = [note(middle, y + 4, words, anchor="middle")]
    for x, aside in ((start, -half), (end, half)):
        body.append(line(x, y - 6, x, y + 6, stroke=MUTED))
        body.append(arrow(middle + aside, x, y, stroke=MUTED, width=1, head=7, wing=3))
    return body
