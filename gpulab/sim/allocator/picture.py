"""The script, the memory to scale with its segments and blocks, the counts: a result of `allocator` as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from virtualgpu.memory.blocks import MiB
from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Live,
    Picture,
    bar,
    code,
    dot,
    length,
    line,
    lines,
    rect,
    shape,
    text,
    wrap,
)

from ..base.lanes import round_step
from ..base.scene import END, Plot, Scale, chip, fitted, keys, line_key, note, picture, readouts, small
from ..base.touch import Grip, after, carried, clickable, command, draggable, grasp, named
from ..base.words import percent
from .model import Piece, Segment
from .result import Memory, mib

PALETTE, STRIP, STRIP_HEIGHT = 48.0, 82.0, 84.0
FAILED, LENS, LENS_HEIGHT = 194.0, 232.0, 24.0
COUNTS, CHART_LEFT, CHART_HEIGHT = 284.0, 500.0, 96.0
FOOT = COUNTS + CHART_HEIGHT + 8
LETTER = 0.61 * SMALL  # of a program
SIZES = ("1MiB", "8MiB", "12MiB", "24MiB", "60MiB")  # to be dropped into the memory


def draw(result: Memory) -> Picture:
    """What the script says, the whole memory to scale, the counts and how they went."""
    done = "; ".join(one.text for one in result.commands[: result.step])
    memory, sizes = [*_strip(result), *_small(result)], _palette(result)
    living = [after(memory, done, step=result.step + 1), Live(after(sizes, done, step=result.step + 1))]
    return picture(result, FOOT + 70, _script(result), living, _hint(), _counts(result), _chart(result), _foot(result))


def _script(result: Memory) -> list[str]:
    """The commands around the present one: done, present, to come. A click goes to its step."""
    if not result.commands:
        return [text(MARGIN, 16, "The script is empty: write one, such as a=12MiB; free a", fill=MUTED)]
    now = result.step - 1
    texts = [one.text for one in result.commands]
    first, last = _around(max(now, 0), [_wide(words) + 14 for words in texts], END - MARGIN - 120)
    x = MARGIN + 84.0
    body = [note(MARGIN, 16, f"step {result.step}/{len(texts)}"), *([note(x, 16, "…")] if first else [])]
    x += 18
    for place in range(first, last + 1):
        present, long = place == now, _wide(texts[place])
        box = rect(x - 5, 1, long + 10, 21, fill=PAPER, stroke=INK if present else PAPER, radius=3)
        words = code(x, 16, texts[place], fill=INK if place <= now else MUTED, weight="bold" if present else "")
        body.append(clickable(box + words, f"step {place + 1}: {texts[place]}", step=place + 1))
        x += long + 14
    return [*body, note(x, 16, "…")] if last + 1 < len(texts) else body


def _around(middle: int, widths: Sequence[float], room: float) -> tuple[int, int]:
    """The first and the last of as many neighbours as have room, `middle` among them."""
    first = last = middle
    while True:
        before = first, last
        if first and sum(widths[first - 1 : last + 1]) <= room:
            first -= 1
        if last + 1 < len(widths) and sum(widths[first : last + 2]) <= room:
            last += 1
        if (first, last) == before:
            return before


def _wide(words: str) -> float:
    """Of a program's letters, or of a font that takes their place."""
    return max(len(words) * LETTER, length(words, SMALL, bold=True))


def _palette(result: Memory) -> list[str]:
    """What is to be dropped into the memory, or clicked."""
    living = {piece.name for segment in result.run.segments for piece in segment.pieces}
    names = (*ascii_lowercase, *(f"t{number}" for number in range(len(living))))
    name = next(name for name in names if name not in living)
    body, x = [], MARGIN
    for words in SIZES:
        drawn, x = chip(x, PALETTE, words, fill=SKY)
        size = command(drawn, f"Allocate {words}", "script", f"{name}={words}")
        body.append(carried(size, MARGIN, STRIP - 20, END - MARGIN, STRIP_HEIGHT + 40))
    drawn, _ = chip(x, PALETTE, "empty_cache")
    return [*body, command(drawn, "Empty the cache", "script", "empty_cache()")]  # the bare word is an example


def _hint() -> list[str]:
    """What one can do here, beside what it is done with."""
    return [Live(note(END, PALETTE, "a click frees a block or allocates a size; or carry it down", anchor="end"))]


def _strip(result: Memory) -> list[str]:
    """All memory: segment beside segment with their blocks, then what the driver has, and what was asked in vain."""
    unit, body, x = (END - MARGIN) / result.capacity, [], MARGIN
    for segment in result.run.segments:
        long = segment.nbytes * unit
        body += _segment(segment, x, STRIP, STRIP_HEIGHT, unit)
        words = f"segment of {mib(segment.nbytes)}, {mib(segment.used)} allocated"
        body.append(fitted(x, long, STRIP - 7, words, words.split(",")[0], mib(segment.nbytes), fill=MUTED))
        x += long
    free = mib(result.run.free)
    body.append(bar(x, STRIP, END - x, STRIP_HEIGHT, fill=RULE, stroke=INK))
    body.append(fitted(x, END - x, STRIP + STRIP_HEIGHT / 2 + 5, f"{free} free on the device", f"{free} free", free))
    apart = round_step(result.capacity / MiB / 9)
    last = int(result.capacity / MiB / apart)
    sizes = {mark * apart: f"{mark * apart:g}{' MiB' * (0 < mark < last)}" for mark in range(last + 1)}
    body += Scale(MARGIN, END, 0, result.capacity / MiB).ticks(STRIP + STRIP_HEIGHT, sizes)
    return [*body, *_failed(result, x, unit)]


def _segment(segment: Segment, x: float, y: float, high: float, unit: float) -> list[str]:
    """Its blocks side by side in a strong frame."""
    body, at = [], x
    for piece in segment.pieces:
        body.append(_piece(piece, at, y, high, unit))
        at += piece.nbytes * unit
    return [*body, rect(x, y, at - x, high, stroke=INK, edge=2)]


def _failed(result: Memory, device: float, unit: float) -> list[str]:
    """What the last request wanted of the device, which begins at `device`, if in vain."""
    failed = result.run.now.error
    if not failed:
        return []
    tried = failed.shortage.tried
    x = END - min(tried, result.capacity) * unit  # what is longer than all memory is cut off
    asked = f"✗ {mib(failed.shortage.requested)} asked"
    words = f"{asked}: {mib(tried)} of the device needed"
    if tried == failed.shortage.requested:
        old = "a new segment may not begin inside an old one"
        words = f"{asked}: {old if tried <= result.free else f'only {mib(result.free)} are free'}"
    missing = f"{mib(tried - result.run.free)} are missing"
    beside = fitted(x, device - x, FAILED + 13, missing, halo=True)
    words += "" if beside else f", {missing}"
    return [
        bar(x, FAILED, device - x, 16, fill=VERMILLION, hatched=True, stroke=VERMILLION),
        shape([(0, FAILED + 8), (12, FAILED), (12, FAILED + 16)], fill=VERMILLION) if tried > result.capacity else "",
        rect(x, FAILED, END - x, 16, stroke=VERMILLION, dash="7 4"),
        beside,
        small(END, FAILED + 32, words, weight="bold", anchor="end"),
    ]


def _small(result: Memory) -> list[str]:
    """Segments of 2 MiB for what takes up to 1 MiB, drawn larger."""
    segments = [segment for segment in result.run.segments if segment.small]
    if not segments:
        return []
    body, x, wide = [note(MARGIN, LENS + 17, "small segments, enlarged")], 214.0, 160.0
    for segment in segments[:3]:
        body += _segment(segment, x, LENS, LENS_HEIGHT, wide / segment.nbytes)
        x += wide + 8
    more = len(segments) - 3
    return [*body, note(x, LENS + 17, f"+ {more:,} more")] if more > 0 else body


def _piece(piece: Piece, x: float, y: float, high: float, unit: float) -> str:
    """A block; a click frees a tensor's."""
    long, middle = piece.nbytes * unit, y + high / 2 + 5
    size = mib(piece.nbytes)
    if not piece.name:
        box = rect(x, y, long, high, fill=PAPER, stroke=MUTED, dash="4 3")
        words = fitted(x, long, middle, f"{size} free in the segment", f"{size} free", size, fill=MUTED)
        return named(box + words, f"free in a segment: {size}")
    wasted = (piece.nbytes - piece.requested) * unit
    box = rect(x, y, long, high, fill=SKY, stroke=INK)
    if wasted >= 2:
        box += bar(x + long - wasted, y, wasted, high, fill=ORANGE, hatched=True)
    two = high > 40
    box += fitted(x, long - wasted, middle - 9 * two, piece.name)
    box += fitted(x, long - wasted, middle + 9, size) if two else ""
    return named(command(box, f"Free {piece.name}, {size}", "script", f"free {piece.name}"), f"{piece.name}: {size}")


def _counts(result: Memory) -> list[str]:
    now = result.run.now
    rows = (
        ("allocated", mib(now.allocated)),
        ("reserved", mib(now.reserved)),
        ("free in segments and on the device", mib(result.free)),
        ("largest request that still fits", mib(result.largest)),
        ("fragmentation: free, but not in one piece", percent(result.fragmentation)),
    )
    told = readouts(MARGIN, CHART_LEFT - 50, COUNTS + 14, rows, apart=20)
    pieces = (piece for segment in result.run.segments for piece in segment.pieces if piece.name)
    rounded = [("rounded up", ORANGE, True)] if any(piece.nbytes > piece.requested for piece in pieces) else []
    legend = keys(CHART_LEFT - 50, COUNTS - 7, *rounded, ends=True)
    return [note(MARGIN, COUNTS - 7, "counts (virtual)"), *legend, *told]


def _chart(result: Memory) -> list[str]:
    """Allocated and reserved after each step, against all there is; the present step is dragged."""
    moments, last = result.run.moments, len(result.commands)
    plot = Plot(Scale(CHART_LEFT, END, 0, last + 1), Scale(COUNTS + CHART_HEIGHT, COUNTS, 0, result.capacity))

    def stairs(values: list[int]) -> list[tuple[float, float]]:
        return [(place + end, value) for place, value in enumerate(values) for end in (0, 1)]

    body = [
        plot.frame(),
        *plot.levels({0: "0", result.capacity: f"{result.capacity / MiB:g}"}),
        line_key(CHART_LEFT, COUNTS - 7, "reserved", stroke=VERMILLION, width=3, dash="5 3"),
        line_key(CHART_LEFT + 106, COUNTS - 7, "allocated, MiB", stroke=BLUE, width=3),
        *([note(END, COUNTS - 7, "✗ failed", anchor="end")] if any(moment.error for moment in moments) else ()),
        plot.curve(stairs([moment.allocated for moment in moments]), stroke=BLUE, width=3),
        plot.curve(stairs([moment.reserved for moment in moments]), stroke=VERMILLION, width=3, dash="5 3"),
    ]
    for place, moment in enumerate(moments):
        if moment.error:
            x, y = plot.x.at(place + 0.5), COUNTS + 12
            body.append(line(x - 4, y - 4, x + 4, y + 4, width=2) + line(x - 4, y + 4, x + 4, y - 4, width=2))
    x, bottom = plot.x.at(result.step + 0.5), plot.y.start
    moved = grasp(*plot.box()) + line(x, COUNTS + 22, x, bottom, dash="2 2") + dot(x, bottom, 7, fill=INK)
    grip = Grip("step", plot.x.at(0.5), plot.x.at(last + 0.5), 0, last)
    return [*body, draggable(moved, "Step", grip)]


def _foot(result: Memory) -> list[str]:
    """The error, shortened to what counts here."""
    error = result.run.now.error
    if error:
        words = str(error)
        start, end = words.index(" Including"), words.index(" Of the allocated")
        short = f"torch.OutOfMemoryError: {words[:start]} …{words[end:]}".split(" If reserved")[0].split(
            " expandable_"
        )[0]
        folded = lines(MARGIN + 12, FOOT + 19, wrap(short, END - MARGIN - 24, SMALL), size=SMALL)
        return [rect(MARGIN, FOOT, END - MARGIN, 62, stroke=VERMILLION, radius=6), folded]
    return []
