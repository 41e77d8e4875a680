"""The script, the memory to scale with its segments and blocks, the counts: a result of `allocator` as a picture."""

from __future__ import annotations

from itertools import accumulate
from string import ascii_lowercase

from virtualgpu.memory.blocks import MiB
from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Live,
    Picture,
    bar,
    code,
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
from ..base.scene import (
    END,
    Plot,
    Scale,
    between,
    chip,
    fitted,
    keys,
    line_key,
    note,
    picture,
    pointer,
    readouts,
    small,
)
from ..base.touch import Grip, after, carried, clickable, command, draggable, grasp, named
from .model import Piece, Segment
from .result import Memory, mib

LABELS = 116.0  # where the commands and the sizes begin, right of their names
SCRIPT, PALETTE, STRIP, STRIP_HEIGHT = 20.0, 52.0, 88.0, 84.0
ASKED, LENS, LENS_HEIGHT = 199.0, 243.0, 22.0
COUNTS, CHART_LEFT, CHART_HEIGHT = 288.0, 500.0, 84.0
FOOT = COUNTS + CHART_HEIGHT + 26
LETTER = 0.61 * SMALL  # of a program
SIZES = (1, 8, 12, 24, 60)  # MiB, to be dropped into the memory


def draw(result: Memory) -> Picture:
    """What the script says, the whole memory to scale, the counts and how they went."""
    done = "; ".join(one.text for one in result.commands[: result.step])
    memory, sizes = [*_strip(result), *_small(result)], _palette(result)
    living = [after(memory, done, step=result.step + 1), Live(after(sizes, done, step=result.step + 1))]
    return picture(result, FOOT + 56, _script(result), living, _counts(result), _chart(result), _foot(result))


def _script(result: Memory) -> list[str]:
    """The commands around the present one: done, present, to come. A click goes to its step."""
    if not result.commands:
        return [text(MARGIN, SCRIPT, "The script is empty: write one, such as a=12MiB; free a", fill=MUTED)]
    now, texts = result.step - 1, [one.text for one in result.commands]
    signed = [words + " ✗" * ("=" in words) for words in texts]  # where it fails
    wide = max(max(len(words) * LETTER, length(words, SMALL)) for words in signed) + 14
    fit = int((END - LABELS - 32) // wide)
    first = max(0, min(now + 2, len(texts)) - fit)
    body, x = [note(MARGIN, SCRIPT, f"step {result.step} of {len(texts)}")], LABELS + 16
    body += [note(LABELS, SCRIPT, "…")] if first else []
    for place, words in list(enumerate(texts))[first : first + fit]:
        failed = place <= now and result.run.moments[place + 1].error
        box = rect(x, SCRIPT - 15, wide, 22, fill=RULE if place == now else PAPER, stroke=MUTED)
        written = code(x + 7, SCRIPT, words + " ✗" * bool(failed), fill=INK if place <= now else MUTED)
        body.append(clickable(box + written, f"step {place + 1}: {words}", step=place + 1))
        x += wide
    return [*body, note(x + 4, SCRIPT, "…")] if first + fit < len(texts) else body


def _palette(result: Memory) -> list[str]:
    """What is to be dropped into the memory, or clicked."""
    living = {piece.name for segment in result.run.segments for piece in segment.pieces}
    names = (*ascii_lowercase, *(f"t{number}" for number in range(len(living))))
    name = next(name for name in names if name not in living)
    body, x = [note(MARGIN, PALETTE, "allocate")], LABELS
    for number in SIZES:
        drawn, x = chip(x, PALETTE, f"+ {number} MiB")
        size = command(drawn, f"Allocate {number} MiB", "script", f"{name}={number}MiB")
        body.append(carried(size, MARGIN, STRIP - 20, END - MARGIN, STRIP_HEIGHT + 40))
    drawn, _ = chip(x + 24, PALETTE, "empty_cache")
    body.append(command(drawn, "Empty the cache", "script", "empty_cache()"))  # the bare word is an example
    return [*body, note(END, PALETTE, "click a block: free it", anchor="end")]


def _strip(result: Memory) -> list[str]:
    """All memory: segment beside segment with their blocks, then what the driver has, and what was asked for."""
    unit, body, x = (END - MARGIN) / result.capacity, [], MARGIN
    for segment in result.run.segments:
        body += _segment(segment, x, STRIP, STRIP_HEIGHT, unit) + _above(result, segment, x, unit)
        x += segment.nbytes * unit
    free, middle = mib(result.run.free), STRIP + STRIP_HEIGHT / 2 + 5
    body.append(rect(x, STRIP, END - x, STRIP_HEIGHT, stroke=MUTED, dash="5 3") if result.run.free else "")
    body.append(fitted(x, END - x, middle, f"{free} free on the device", f"{free} free", free, fill=MUTED))
    apart = round_step(result.capacity / MiB / 9)
    last = int(result.capacity / MiB / apart)
    sizes = {mark * apart: f"{mark * apart:g}{' MiB' * (0 < mark < last)}" for mark in range(last + 1)}
    ticks = Scale(MARGIN, END, 0, result.capacity / MiB).ticks(STRIP + STRIP_HEIGHT, sizes)
    return [*body, *ticks, *_asked(result, unit)]


def _above(result: Memory, segment: Segment, x: float, unit: float) -> list[str]:
    """Why an emptied cache has left a segment, or what has been added to it; else how much of it is allocated."""
    names = [piece.name for piece in segment.pieces if piece.name]
    now, end, y = result.run.now, x + segment.nbytes * unit, STRIP - 8
    if result.expandable and 0 < now.taken < segment.nbytes and names[-1:] == [result.commands[result.step - 1].name]:
        added = end - now.taken * unit
        mark = line(added, STRIP - 20, added, STRIP + STRIP_HEIGHT, width=2, dash="5 3")
        words = small(added - 7, y, "old end of the segment", anchor="end") if added - x > 190 else ""
        new = f"{mib(now.taken)} added, in pages of {2 if segment.small else 20} MiB"
        return [mark, words, fitted(added, end - added, y, new, new.split(",")[0], f"+ {mib(now.taken)}")]
    if result.emptied and names:
        starts = accumulate((piece.nbytes * unit for piece in segment.pieces), initial=x)
        sides = [(at, at + one.nbytes * unit) for at, one in zip(starts, segment.pieces, strict=False) if one.name]
        left, right = sides[0][0] + 1, sides[-1][1] - 1
        who = " and ".join(names) if len(names) < 4 else f"{len(names)} tensors"
        who += " hold" if names[1:] else " holds"
        bracket = polyline([(left, STRIP - 3), (left, y), (right, y), (right, STRIP - 3)], width=2)
        return [bracket, fitted(x, end - x, y - 5, f"{who} the whole segment", f"{who} it")]
    pairs = zip(result.commands, result.run.moments[1:], strict=False)
    took = [one.name for one, moment in pairs if moment.taken == segment.nbytes]
    old = len(took) == 1 and took[0] not in names and not result.expandable
    whose = f"{took[0]}’s old segment:" if old else "segment of"
    words = f"{whose} {mib(segment.nbytes)}, {mib(segment.used)} allocated"
    return [fitted(x, end - x, y, words, words.split(",")[0], mib(segment.nbytes), fill=MUTED)]


def _segment(segment: Segment, x: float, y: float, high: float, unit: float) -> list[str]:
    """Its blocks side by side in a strong frame."""
    body, at = [], x
    for piece in segment.pieces:
        body.append(_piece(piece, at, y, high, unit))
        at += piece.nbytes * unit
    return [*body, rect(x, y, at - x, high, stroke=INK, edge=3)]


def _asked(result: Memory, unit: float) -> list[str]:
    """What the present step asked for, to scale: below its block, or below the free memory that it does not fit."""
    one = result.commands[result.step - 1] if result.step else None
    if not one or not one.nbytes:
        return []
    failed, asked = result.run.now.error, mib(one.nbytes)
    left = MARGIN + _start(result, "" if failed else one.name) * unit
    if not failed:
        box = rect(left, ASKED, one.nbytes * unit, 20, stroke=GREEN, edge=2)
        return [box, fitted(left, one.nbytes * unit, ASKED + 15, f"✓ {asked} asked", "✓")]
    size, border = min(failed.shortage.tried, result.capacity) * unit, MARGIN + result.run.now.reserved * unit
    why = f"the segment grows by pages of {20 if one.nbytes > MiB else 2} MiB"
    words = f"no free piece is as long; {why if result.expandable else 'a block cannot cross a segment’s border'}"
    if failed.shortage.tried != failed.shortage.requested:
        words = f"it needs a new segment of {mib(failed.shortage.tried)}"
    elif failed.shortage.tried > result.free:
        words = f"only {mib(result.free)} are free"
    x, words = min(left, END - size), f"✗ {asked} asked: {words}"
    body = [rect(x, ASKED, size, 20, stroke=VERMILLION, dash="7 4", edge=2)]
    body.append(between(MARGIN, END, x + size / 2, ASKED + 37, words, size=SMALL, weight="bold"))
    if x == left and x < border < x + size:  # cut by the end of what is reserved
        within, beyond = (mib(round(wide / unit)) for wide in (border - x, x + size - border))
        body += [line(border, ASKED - 3, border, ASKED + 23, width=3), fitted(x, border - x, ASKED + 15, within)]
        body.append(fitted(border, x + size - border, ASKED + 15, f"{beyond} beyond the border", beyond))
    return body


def _start(result: Memory, name: str) -> int:
    """At which byte the block `name` begins; without a name, the longest stretch of free memory."""
    pieces = [piece for segment in result.run.segments for piece in segment.pieces]
    at, start, best = 0, 0, (0, 0)
    for piece in [*pieces, Piece("", result.run.free, 0)]:
        if name and piece.name == name:
            return at
        start = at + piece.nbytes if piece.name else start
        at += piece.nbytes
        best = max(best, (at - start, -start))
    return -best[1]


def _small(result: Memory) -> list[str]:
    """Segments of 2 MiB for what takes up to 1 MiB, drawn larger."""
    segments = [segment for segment in result.run.segments if segment.small]
    if not segments:
        return []
    body, x, wide = [note(MARGIN, LENS + 16, "small segments, enlarged")], 214.0, 160.0
    for segment in segments[:3]:
        body += _segment(segment, x, LENS, LENS_HEIGHT, wide / segment.nbytes)
        x += wide + 8
    more = len(segments) - 3
    return [*body, note(x, LENS + 16, f"+ {more:,} more")] if more > 0 else body


def _piece(piece: Piece, x: float, y: float, high: float, unit: float) -> str:
    """A block; a click frees a tensor's."""
    long, middle = piece.nbytes * unit, y + high / 2 + 5
    size = mib(piece.nbytes)
    if not piece.name:
        words = fitted(x, long, middle, f"{size} free in the segment", f"{size} free", size)
        return named(rect(x, y, long, high, fill=RULE, opacity=0.5) + words, f"free in a segment: {size}")
    wasted = (piece.nbytes - piece.requested) * unit
    box = rect(x, y, long, high, fill=SKY, stroke=EDGE)
    if wasted >= 2:
        box += bar(x + long - wasted, y, wasted, high, fill=ORANGE, hatched=True)
    two = high > 40
    box += fitted(x, long - wasted, middle - 9 * two, piece.name, fill=ON)
    box += fitted(x, long - wasted, middle + 9, size, fill=ON) if two else ""
    return named(command(box, f"Free {piece.name}, {size}", "script", f"free {piece.name}"), f"{piece.name}: {size}")


def _counts(result: Memory) -> list[str]:
    now, right = result.run.now, CHART_LEFT - 50
    rows = (
        ("allocated", mib(now.allocated), ""),
        ("reserved", mib(now.reserved), ""),
        ("free in segments and on the device", mib(result.free), ""),
        ("largest request that still fits", mib(result.run.largest), "bold"),
        ("out of reach of one request", f"{mib(result.free - result.run.largest)} of {mib(result.free)}", ""),
    )
    pieces = (piece for segment in result.run.segments for piece in segment.pieces if piece.name)
    rounded = [("rounded up", ORANGE, True)] if any(piece.nbytes > piece.requested for piece in pieces) else []
    legend, told = keys(right, COUNTS - 9, *rounded, ends=True), readouts(MARGIN, right, COUNTS + 13, rows, apart=20)
    return [note(MARGIN, COUNTS - 9, "counts (virtual)"), *legend, *told]


def _chart(result: Memory) -> list[str]:
    """Allocated and reserved after each step, against all there is; the present step is dragged."""
    moments, last = result.run.moments, len(result.commands)
    plot = Plot(Scale(CHART_LEFT, END, 0, last + 1), Scale(COUNTS + CHART_HEIGHT, COUNTS, 0, 1.15 * result.capacity))
    steps = [place for place in range(last + 1) if place % max(1, round(round_step((last + 1) / 8))) == 0]
    ends = [(place, moment, end) for place, moment in enumerate(moments) for end in (0, 1)]
    allocated = [plot.at(place + end, moment.allocated) for place, moment, end in ends]
    body = [
        *plot.levels({0: "0", result.capacity: f"{result.capacity / MiB:g}"}),
        *(note(plot.x.at(s + 0.5), plot.y.start + 17, str(s) if s else "step 0", anchor="middle") for s in steps),
        line_key(CHART_LEFT, COUNTS - 9, "reserved", width=3),
        *keys(CHART_LEFT + 106, COUNTS - 9, ("allocated, MiB", SKY)),
        shape([(plot.x.start, plot.y.start), *allocated, plot.at(len(moments), 0)], fill=SKY),
        plot.curve(((place + end, moment.reserved) for place, moment, end in ends), width=3),
    ]
    failed = [place for place, moment in enumerate(moments) if moment.error and last <= 20]
    body += [small(plot.x.at(place + 0.5) + 10, COUNTS + 14, "✗", anchor="middle", weight="bold") for place in failed]
    x, bottom = plot.x.at(result.step + 0.5), plot.y.start
    moved = grasp(*plot.box()) + line(x, COUNTS, x, bottom, width=1.5) + pointer(x, COUNTS + 8, fill=VERMILLION)
    grip = Grip("step", plot.x.at(0.5), plot.x.at(last + 0.5), 0, last)
    return [*body, draggable(moved, "Step", grip)]


def _foot(result: Memory) -> list[str]:
    """The error, shortened to what counts here; else that there is none."""
    words, stroke = "✓ no error" + ", with PYTORCH_ALLOC_CONF=expandable_segments:True" * result.expandable, GREEN
    if result.run.now.error:
        start, _, rest = str(result.run.now.error).partition(" Including")
        reserved = rest.partition("by PyTorch, and ")[2].partition("unallocated.")[0]
        words, stroke = f"torch.OutOfMemoryError: {start} … {reserved}unallocated.", VERMILLION
    folded = wrap(words, END - MARGIN - 24, SMALL)
    frame = rect(MARGIN, FOOT, END - MARGIN, 10 + 17.6 * len(folded), stroke=stroke, radius=6)
    return [frame, lines(MARGIN + 12, FOOT + 18, folded, size=SMALL)]
