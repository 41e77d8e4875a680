"""The script, the memory to scale with its segments and blocks, the counts: a result of `allocator` as a picture."""

from __future__ import annotations

from string import ascii_lowercase

from virtualgpu.memory.blocks import MiB
from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Picture,
    bar,
    code,
    dot,
    key,
    length,
    line,
    lines,
    polyline,
    rect,
    shape,
    text,
    wrap,
)

from ..base.lanes import round_step
from ..base.touch import Grip, after, carried, clickable, command, draggable, live, named
from ..base.words import count, percent
from .model import Piece
from .result import Memory, mib

WIDTH, LEFT, RIGHT = 860.0, MARGIN, 860.0 - MARGIN
PALETTE, STRIP, STRIP_HEIGHT = 32.0, 82.0, 60.0
FAILED, LENS, LENS_HEIGHT = 170.0, 210.0, 24.0
COUNTS, COUNT = 264.0, 20.0
CHART_LEFT, CHART_HEIGHT = 500.0, 96.0
FOOT = COUNTS + CHART_HEIGHT + 14
LETTER = 0.61 * SMALL  # of a program
SIZES = ("1MiB", "8MiB", "12MiB", "24MiB", "60MiB")  # to be dropped into the memory


def draw(result: Memory) -> Picture:
    """What the script says, the whole memory to scale, the counts and how they went."""
    touched = "".join([*_strip(result), *_small(result), *_palette(result)])
    done = "; ".join(one.text for one in result.commands[: result.step])
    body = (
        *_script(result),
        after(touched, done, step=result.step + 1),
        *_counts(result),
        *_chart(result),
        *_foot(result),
    )
    return Picture(WIDTH, FOOT + 64, result.finding, result.describe(), body)


def _script(result: Memory) -> list[str]:
    """The commands around the present one: done, present, to come. A click goes to its step."""
    if not result.commands:
        return [text(LEFT, 16, "The script is empty: write one, such as a=12MiB; free a", fill=MUTED)]
    now = result.step - 1
    first = last = max(now, 0)
    texts = [one.text for one in result.commands]
    # as many as fit, the present one in the middle
    room = RIGHT - LEFT - 120
    while True:
        grown = False
        for way in (-1, 1):
            new_first, new_last = (first - 1, last) if way < 0 else (first, last + 1)
            if new_first < 0 or new_last >= len(texts) or _long(texts[new_first : new_last + 1]) > room:
                continue
            first, last, grown = new_first, new_last, True
        if not grown:
            break
    body = [text(LEFT, 16, f"step {result.step}/{len(texts)}", size=SMALL, fill=MUTED)]
    x = LEFT + 84
    if first:
        body.append(text(x, 16, "…", size=SMALL, fill=MUTED))
    x += 18
    for place in range(first, last + 1):
        present = place == now
        long = _wide(texts[place])
        box = rect(x - 5, 1, long + 10, 21, fill=PAPER, stroke=INK if present else PAPER, radius=3)
        words = code(x, 16, texts[place], fill=INK if place <= now else MUTED, weight="bold" if present else "")
        body.append(clickable(box + words, f"step {place + 1}: {texts[place]}", step=place + 1))
        x += long + 14
    if last + 1 < len(texts):
        body.append(text(x, 16, "…", size=SMALL, fill=MUTED))
    return body


def _long(texts: list[str]) -> float:
    return sum(_wide(words) + 14 for words in texts)


def _wide(words: str) -> float:
    """Of a program's letters, or of a font that takes their place."""
    return max(len(words) * LETTER, length(words, SMALL, bold=True))


def _palette(result: Memory) -> list[str]:
    """What is to be dropped into the memory, or clicked; beside it what the parts of the memory are."""
    living = {piece.name for segment in result.run.segments for piece in segment.pieces}
    names = (*ascii_lowercase, *(f"t{number}" for number in range(len(living))))
    name = next(name for name in names if name not in living)
    body, x = [], LEFT
    for words in (*SIZES, "empty_cache"):
        wide = length(words, SMALL) + 12
        chip = rect(x, PALETTE, wide, 22, fill=SKY if words in SIZES else PAPER, stroke=INK, radius=4)
        chip += text(x + wide / 2, PALETTE + 16, words, size=SMALL, anchor="middle")
        if words in SIZES:
            chip = command(chip, f"Allocate {words}", "script", f"{name}={words}")
            body.append(live(carried(chip, LEFT, STRIP - 20, RIGHT - LEFT, STRIP_HEIGHT + 40)))
        else:
            body.append(
                live(command(chip, "Empty the cache", "script", "empty_cache()"))
            )  # the bare word is an example
        x += wide + 6
    x = RIGHT + 14.0
    for words, fill in (("on the device", RULE), ("free in a segment", PAPER), ("rounded up", ORANGE)):
        x -= length(words, SMALL) + 36
        body.append(key(x, PALETTE + 16, words, fill=fill, hatched=fill == ORANGE))
    return body


def _strip(result: Memory) -> list[str]:
    """All memory: segment beside segment with their blocks, then what the driver has, and what was asked in vain."""
    unit = (RIGHT - LEFT) / result.capacity
    bottom = STRIP + STRIP_HEIGHT
    body = []
    x = LEFT
    for segment in result.run.segments:
        for piece in segment.pieces:
            body.append(_piece(piece, x, STRIP, STRIP_HEIGHT, unit))
            x += piece.nbytes * unit
        long = segment.nbytes * unit
        body.append(rect(x - long, STRIP, long, STRIP_HEIGHT, stroke=INK).replace("/>", ' stroke-width="2"/>'))
        words = f"segment of {mib(segment.nbytes)}, {mib(segment.used)} allocated"
        body.append(_first_that_fits(x - long, long, STRIP - 7, words, words.split(",")[0], mib(segment.nbytes)))
    body.append(bar(x, STRIP, RIGHT - x, STRIP_HEIGHT, fill=RULE, stroke=INK))
    free = mib(result.run.free)
    body.append(
        _first_that_fits(x, RIGHT - x, STRIP + 35, f"{free} free on the device", f"{free} free", free, fill=INK)
    )
    apart = round_step(result.capacity / MiB / 9)
    for mark in range(int(result.capacity / MiB / apart) + 1):
        tick = LEFT + mark * apart * MiB * unit
        body.append(line(tick, bottom, tick, bottom + 5, stroke=MUTED))
        words = f"{mark * apart:g}{' MiB' * (mark == 1)}"
        body.append(text(tick, bottom + 18, words, size=SMALL, anchor="middle", fill=MUTED))
    return [*body, *_failed(result, x, unit)]


def _failed(result: Memory, device: float, unit: float) -> list[str]:
    """What the last request wanted of the device, which begins at `device`, if in vain."""
    failed = result.run.now.error
    if not failed:
        return []
    tried = failed.shortage.tried
    x = RIGHT - min(tried, result.capacity) * unit  # what is longer than all memory is cut off
    words = f"✗ {mib(failed.shortage.requested)} asked: {mib(tried)} of the device needed"
    words += f", {mib(tried - result.run.free)} are missing"
    return [
        bar(x, FAILED, device - x, 16, fill=VERMILLION, hatched=True, stroke=VERMILLION),
        shape([(0, FAILED + 8), (12, FAILED), (12, FAILED + 16)], fill=VERMILLION) if tried > result.capacity else "",
        rect(x, FAILED, RIGHT - x, 16, stroke=VERMILLION, dash="7 4"),
        text(RIGHT, FAILED + 32, words, size=SMALL, weight="bold", anchor="end"),
    ]


def _small(result: Memory) -> list[str]:
    """Segments of 2 MiB for what takes up to 1 MiB, drawn larger; where there are none, what one can do here."""
    segments = [segment for segment in result.run.segments if segment.small]
    if not segments:
        words = "click a block to free it, and a size to allocate it, or carry it into the memory"
        return [live(text(LEFT, LENS + 17, words, size=SMALL, fill=MUTED))]
    body, x, wide = [text(LEFT, LENS + 17, "small segments, enlarged", size=SMALL, fill=MUTED)], 214.0, 160.0
    for segment in segments[:3]:
        for piece in segment.pieces:
            unit = wide / segment.nbytes
            body.append(_piece(piece, x, LENS, LENS_HEIGHT, unit))
            x += piece.nbytes * unit
        body.append(rect(x - wide, LENS, wide, LENS_HEIGHT, stroke=INK).replace("/>", ' stroke-width="2"/>'))
        x += 8
    if len(segments) > 3:
        body.append(text(x, LENS + 17, f"+ {len(segments) - 3:,} more", size=SMALL, fill=MUTED))
    return body


def _piece(piece: Piece, x: float, y: float, high: float, unit: float) -> str:
    """A block; a click frees a tensor's."""
    long, middle = piece.nbytes * unit, y + high / 2 + 5
    size = mib(piece.nbytes)
    if not piece.name:
        box = rect(x, y, long, high, fill=PAPER, stroke=MUTED, dash="4 3")
        return named(box + _first_that_fits(x, long, middle, f"{size} free", size), f"free in a segment: {size}")
    wasted = (piece.nbytes - piece.requested) * unit
    box = rect(x, y, long, high, fill=SKY, stroke=INK)
    if wasted >= 2:
        box += bar(x + long - wasted, y, wasted, high, fill=ORANGE, hatched=True)
    two = high > 40
    box += _first_that_fits(x, long - wasted, middle - 9 * two, piece.name, fill=INK)
    box += _first_that_fits(x, long - wasted, middle + 9, size, fill=INK) if two else ""
    return named(command(box, f"Free {piece.name}, {size}", "script", f"free {piece.name}"), f"{piece.name}: {size}")


def _first_that_fits(x: float, wide: float, y: float, *words: str, fill: str = MUTED) -> str:
    for found in words:
        if length(found, SMALL) + 6 <= wide:
            return text(x + wide / 2, y, found, size=SMALL, anchor="middle", fill=fill)
    return ""


def _counts(result: Memory) -> list[str]:
    now = result.run.now
    rows = (
        ("allocated", mib(now.allocated)),
        ("reserved", mib(now.reserved)),
        ("free in segments and on the device", mib(result.free)),
        ("largest request that still fits", mib(result.largest)),
        ("fragmentation: free, but not in one piece", percent(result.fragmentation)),
    )
    body = [text(LEFT, COUNTS - 7, "counts (virtual)", size=SMALL, fill=MUTED)]
    for place, (name, value) in enumerate(rows):
        y = COUNTS + 14 + place * COUNT
        body.append(text(LEFT, y, name))
        body.append(text(CHART_LEFT - 50, y, value, weight="bold", anchor="end"))
    return body


def _chart(result: Memory) -> list[str]:
    """Allocated and reserved after each step, against all there is; the present step is dragged."""
    moments = result.run.moments
    width, bottom = RIGHT - CHART_LEFT, COUNTS + CHART_HEIGHT
    unit = CHART_HEIGHT / result.capacity
    step = width / (len(result.commands) + 1)
    body = [
        rect(CHART_LEFT, COUNTS, width, CHART_HEIGHT, stroke=RULE),
        line(CHART_LEFT, COUNTS - 11, CHART_LEFT + 16, COUNTS - 11, stroke=VERMILLION, width=3, dash="5 3"),
        text(CHART_LEFT + 22, COUNTS - 7, "reserved", size=SMALL, fill=MUTED),
        line(CHART_LEFT + 106, COUNTS - 11, CHART_LEFT + 122, COUNTS - 11, stroke=BLUE, width=3),
        text(CHART_LEFT + 128, COUNTS - 7, "allocated, by step", size=SMALL, fill=MUTED),
        text(RIGHT, COUNTS - 7, "✗ failed", size=SMALL, fill=MUTED, anchor="end"),
    ]

    def stairs(values: list[int]) -> list[tuple[float, float]]:
        points = []
        for place, value in enumerate(values):
            x, y = CHART_LEFT + place * step, bottom - value * unit
            points += [(x, y), (x + step, y)]
        return points

    body.append(polyline(stairs([m.allocated for m in moments]), stroke=BLUE, width=3))
    body.append(polyline(stairs([m.reserved for m in moments]), stroke=VERMILLION, width=3, dash="5 3"))
    for place, moment in enumerate(moments):
        if moment.error:
            x, y = CHART_LEFT + (place + 0.5) * step, COUNTS + 12
            body.append(line(x - 4, y - 4, x + 4, y + 4, width=2) + line(x - 4, y + 4, x + 4, y - 4, width=2))
    x = CHART_LEFT + (result.step + 0.5) * step
    cursor = rect(CHART_LEFT, COUNTS, width, CHART_HEIGHT, fill=PAPER).replace("/>", ' fill-opacity="0"/>')
    cursor += line(x, COUNTS + 22, x, bottom, dash="2 2") + dot(x, bottom, 7, fill=INK)
    grip = Grip("step", CHART_LEFT + step / 2, RIGHT - step / 2, 0, len(result.commands))
    return [*body, draggable(cursor, "Step of the script", grip)]


def _foot(result: Memory) -> list[str]:
    """The error, shortened to what counts here; else how often there was one."""
    error = result.run.now.error
    if error:
        words = str(error)
        start, end = words.index(" Including"), words.index(" Of the allocated")
        short = f"torch.OutOfMemoryError: {words[:start]} …{words[end:]}".split(" If reserved")[0].split(
            " expandable_"
        )[0]
        folded = wrap(short, RIGHT - LEFT - 24, SMALL)
        return [
            rect(LEFT, FOOT, RIGHT - LEFT, 62, stroke=VERMILLION, radius=6),
            lines(LEFT + 12, FOOT + 19, folded, size=SMALL),
        ]
    past = f"So far: {count(result.run.failures, 'request')} out of memory, "
    tries = "retry" if result.run.retries == 1 else "retries"
    past += f"{result.run.retries} {tries} with an emptied cache, at most {mib(result.run.peak)} reserved (virtual)."
    return [text(LEFT, FOOT + 19, past, size=SMALL, fill=MUTED)]
