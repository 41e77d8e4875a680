"""The script, the memory to scale, segments with their blocks, the counts: a result of `allocator` as a picture."""

from __future__ import annotations

from virtualgpu.memory.blocks import MiB
from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Picture,
    bar,
    code,
    key,
    length,
    line,
    lines,
    polyline,
    rect,
    text,
    wrap,
)

from ..base.words import count, percent
from .model import Piece, Segment
from .result import Memory, mib

WIDTH, LEFT, RIGHT = 860.0, MARGIN, 860.0 - MARGIN
STRIP, STRIP_HEIGHT = 66.0, 28.0
ROWS_TOP, ROWS, ROW = 116.0, 5, 30.0
BAR_LEFT, BAR_WIDTH, BAR_HEIGHT = 138.0, 504.0, 24.0
SMALL_SPAN = 5 * MiB  # what the bar's whole width stands for in the small pool: its segments of 2 MiB are drawn larger
COUNTS = ROWS_TOP + ROWS * ROW + 28
CHART_LEFT, CHART_HEIGHT = 500.0, 92.0
FOOT = COUNTS + 124
LETTER = 0.61 * SMALL  # of a program


def draw(result: Memory) -> Picture:
    """What the script says, the whole memory, its segments one by one, the counts and how they went."""
    body = [
        *_script(result),
        *_strip(result),
        *_segments(result),
        *_counts(result),
        *_chart(result),
        *_foot(result),
    ]
    return Picture(WIDTH, FOOT + 66, result.finding, result.describe(), tuple(body))


def _script(result: Memory) -> list[str]:
    """The commands around the present one, on a line each side of none: done, present, to come."""
    if not result.commands:
        return [text(LEFT, 14, "The script is empty: write one, such as a=12MiB; free a", fill=MUTED)]
    now = result.step - 1
    first = last = max(now, 0)
    texts = [command.text for command in result.commands]
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
    x = LEFT
    words = f"step {result.step}/{len(texts)}"
    body = [text(x, 14, words, size=SMALL, fill=MUTED)]
    x += 84
    if first:
        body.append(text(x, 14, "…", size=SMALL, fill=MUTED))
    x += 18
    for place in range(first, last + 1):
        present = place == now
        long = _wide(texts[place])
        if present:
            body.append(rect(x - 5, -2, long + 10, 22, fill=PAPER, stroke=INK, radius=3))
        fill = INK if place <= now else MUTED
        body.append(code(x, 14, texts[place], fill=fill, weight="bold" if present else ""))
        x += long + 14
    if last + 1 < len(texts):
        body.append(text(x, 14, "…", size=SMALL, fill=MUTED))
    return body


def _long(texts: list[str]) -> float:
    return sum(_wide(words) + 14 for words in texts)


def _wide(words: str) -> float:
    """Of a program's letters, or of a font that takes their place."""
    return max(len(words) * LETTER, length(words, SMALL, bold=True))


def _strip(result: Memory) -> list[str]:
    """All memory, to scale: segment beside segment, then what the driver has."""
    unit = (RIGHT - LEFT) / result.capacity
    body = [
        text(LEFT, STRIP - 8, f"GPU memory, {mib(result.capacity)}, to scale", size=SMALL, fill=MUTED),
        key(330, STRIP - 8, "allocated", fill=SKY),
        key(430, STRIP - 8, "rounded up", fill=ORANGE, hatched=True),
        key(546, STRIP - 8, "free in a segment", fill=PAPER),
        key(700, STRIP - 8, "free on the device", fill=RULE),
    ]
    x = LEFT
    for segment in result.run.segments:
        for piece in segment.pieces:
            if piece.name:
                body.append(rect(x, STRIP, piece.nbytes * unit, STRIP_HEIGHT, fill=SKY))
            x += piece.nbytes * unit
        long = segment.nbytes * unit
        body.append(rect(x - long, STRIP, long, STRIP_HEIGHT, stroke=INK))
    body.append(bar(x, STRIP, RIGHT - x, STRIP_HEIGHT, fill=RULE, stroke=INK))
    words = f"{mib(result.run.free)} free"
    if length(words, SMALL) + 12 < RIGHT - x:
        body.append(text(RIGHT - 8, STRIP + 19, words, size=SMALL, anchor="end"))
    return body


def _segments(result: Memory) -> list[str]:
    """A row for each segment, the last ones left out where they are many, and one for a request that failed."""
    segments, failed = result.run.segments, result.run.now.error
    body: list[str] = []
    if not segments:
        body.append(text(LEFT, ROWS_TOP + 17, "No segments: nothing has been taken from the driver.", fill=MUTED))
    room = ROWS - 2 if failed else ROWS
    shown = segments if len(segments) <= room else segments[: room - 1]
    tried = min(failed.shortage.tried, result.capacity) if failed else 0  # what is longer than all memory is cut off
    units = {
        False: BAR_WIDTH
        / max(40 * MiB, tried, result.run.free if failed else 0, *(s.nbytes for s in segments if not s.small), 0),
        True: BAR_WIDTH / max(SMALL_SPAN, *(s.nbytes for s in segments if s.small), 0),
    }
    for place, segment in enumerate(shown):
        body += _segment(segment, ROWS_TOP + place * ROW, units[segment.small])
    rest = segments[len(shown) :]
    if rest:
        y = ROWS_TOP + len(shown) * ROW + 17
        used, total = sum(s.used for s in rest), sum(s.nbytes for s in rest)
        words = f"{count(len(rest), 'more segment')}: {mib(used)} of {mib(total)} allocated"
        body.append(text(LEFT, y, words, size=SMALL, fill=MUTED))
    if failed:
        y = ROWS_TOP + max(len(shown) + bool(rest), 1) * ROW
        unit = units[False]
        body.append(text(LEFT, y + 17, f"device {mib(result.run.free)}", size=SMALL))
        body.append(bar(BAR_LEFT, y, result.run.free * unit, BAR_HEIGHT, fill=RULE))
        body.append(text(RIGHT, y + 17, "free on the device", size=SMALL, anchor="end"))
        y += ROW
        body.append(text(LEFT, y + 17, f"asked {mib(failed.shortage.requested)}", size=SMALL, weight="bold"))
        body.append(rect(BAR_LEFT, y, tried * unit, BAR_HEIGHT, stroke=VERMILLION, dash="7 4"))
        words = f"✗ needs {mib(failed.shortage.tried)} anew"
        body.append(text(RIGHT, y + 17, words, size=SMALL, weight="bold", anchor="end"))
    return body


def _segment(segment: Segment, y: float, unit: float) -> list[str]:
    kind = "small" if segment.small else "large"
    body = [text(LEFT, y + 17, f"{kind} {mib(segment.nbytes)}", size=SMALL)]
    x = BAR_LEFT
    for piece in segment.pieces:
        body += _piece(piece, x, y, piece.nbytes * unit, unit)
        x += piece.nbytes * unit
    body.append(rect(BAR_LEFT, y, segment.nbytes * unit, BAR_HEIGHT, stroke=INK))
    larger = ", drawn larger" if segment.small else ""
    body.append(text(RIGHT, y + 17, f"{mib(segment.used)} allocated{larger}", size=SMALL, anchor="end"))
    return body


def _piece(piece: Piece, x: float, y: float, long: float, unit: float) -> list[str]:
    if not piece.name:
        words, body = mib(piece.nbytes), [rect(x, y, long, BAR_HEIGHT, fill=PAPER, stroke=MUTED, dash="4 3")]
        fill = MUTED
    else:
        words, fill = piece.name, INK
        wasted = (piece.nbytes - piece.requested) * unit
        body = [rect(x, y, long, BAR_HEIGHT, fill=SKY, stroke=INK)]
        if wasted >= 2:
            body.append(bar(x + long - wasted, y, wasted, BAR_HEIGHT, fill=ORANGE, hatched=True))
        long -= wasted
    if length(words, SMALL) + 6 < long:
        body.append(text(x + long / 2, y + 17, words, size=SMALL, anchor="middle", fill=fill))
    return body


def _counts(result: Memory) -> list[str]:
    now = result.run.now
    rows = (
        ("allocated", mib(now.allocated), BLUE),
        ("reserved", mib(now.reserved), VERMILLION),
        ("free in segments and on the device", mib(result.free), ""),
        ("largest request that still fits", mib(result.largest), ""),
        ("fragmentation: free, but not in one piece", percent(result.fragmentation), ""),
    )
    body = [text(LEFT, COUNTS - 14, "counts (virtual)", size=SMALL, fill=MUTED)]
    for place, (name, value, _) in enumerate(rows):
        y = COUNTS + 8 + place * 22
        body.append(text(LEFT, y, name))
        body.append(text(CHART_LEFT - 50, y, value, weight="bold", anchor="end"))
    return body


def _chart(result: Memory) -> list[str]:
    """Allocated and reserved after each step, against all there is."""
    moments = result.run.moments
    width, bottom = RIGHT - CHART_LEFT, COUNTS + CHART_HEIGHT
    unit = CHART_HEIGHT / result.capacity
    step = width / max(len(result.commands), 1)
    body = [
        rect(CHART_LEFT, COUNTS, width, CHART_HEIGHT, stroke=RULE),
        line(CHART_LEFT, COUNTS - 10, CHART_LEFT + 16, COUNTS - 10, stroke=VERMILLION, width=3, dash="5 3"),
        text(CHART_LEFT + 22, COUNTS - 6, "reserved", size=SMALL, fill=MUTED),
        line(CHART_LEFT + 106, COUNTS - 10, CHART_LEFT + 122, COUNTS - 10, stroke=BLUE, width=3),
        text(CHART_LEFT + 128, COUNTS - 6, "allocated, by step", size=SMALL, fill=MUTED),
        text(RIGHT, COUNTS - 6, "✗ failed", size=SMALL, fill=MUTED, anchor="end"),
    ]

    def stairs(values: list[int]) -> list[tuple[float, float]]:
        points = []
        for place, value in enumerate(values[1:]):
            x, y = CHART_LEFT + place * step, bottom - value * unit
            points += [(x, y), (x + step, y)]
        return points

    if len(moments) > 1:
        body.append(polyline(stairs([m.allocated for m in moments]), stroke=BLUE, width=3))
        body.append(polyline(stairs([m.reserved for m in moments]), stroke=VERMILLION, width=3, dash="5 3"))
    for place, moment in enumerate(moments[1:]):
        if moment.error:
            x, y = CHART_LEFT + (place + 0.5) * step, COUNTS + 12
            body.append(line(x - 4, y - 4, x + 4, y + 4, width=2) + line(x - 4, y + 4, x + 4, y - 4, width=2))
    return body


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
