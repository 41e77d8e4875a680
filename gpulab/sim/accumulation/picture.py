"""One epoch with accumulation: what each micro-batch weighs against what it should, and the memory that it saves."""

from __future__ import annotations

from virtualgpu.pictures.style import BLUE, EDGE, INK, MUTED, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, dot, length, line, rect, text

from ..base.lanes import beside
from ..base.scene import END, fitted, keys, named_bar, note, picture, pointer, small
from ..base.touch import Grip, draggable, grasp, named
from ..base.words import count, percent, size
from .model import MOST_STEPS, STATE_BYTES, Epoch, Window

LEFT, RIGHT = 100.0, 708.0  # of the epoch and of its windows
STRIP, STRIP_HIGH, STRIP_MOST = 18.0, 20.0, 64  # the epoch: where, how high, micro-batches drawn of it
ROWS, ROWS_TOP, ROWS_HIGH = 5, 94.0, 268.0
MOST = 1.6  # times the right weight: so high is a row
MEMORY = 392.0
WEIGHTS = {"steps": "1/{} each", "window": "all alike", "items": "by {}"}


def draw(epoch: Epoch) -> Picture:
    """The epoch, a row for each window, its middle left out where they are many, and the memory."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min(ROWS_HIGH / len(shown), 67)
    body, living = [*_strip(epoch, windows), *_heads(epoch), *_memory(epoch)], _grip(epoch)
    for place, index in enumerate(shown):
        top = ROWS_TOP + place * high
        if index is None:
            body.append(line(LEFT, top + high / 2, LEFT + 60, top + high / 2, stroke=MUTED, dash="2 6"))
            body.append(note(LEFT + 72, top + high / 2 + 5, count(len(windows) - len(shown) + 1, "more window")))
        else:
            body += _row(epoch, windows[index], index, top, high - 7)
            area = grasp(MARGIN, top, END - MARGIN, high - 7)
            living.append(Live(named(area, _content(epoch, windows[index]))))
    return picture(epoch, 452.0, body, living)


def _memory(epoch: Epoch) -> list[str]:
    """Why one accumulates."""
    unit, left = 420 / epoch.whole_batch_bytes, 180
    body = [note(MARGIN, MEMORY, "Why accumulate: memory of ResNet-50 (recorded)")]
    body += keys(END, MEMORY, ("weights, gradients, Adam", RULE), ("kept for backward", PURPLE, True), ends=True)
    pieces = (max(epoch.windows[0].samples), epoch.micro_batch_bytes), (epoch.effective_batch, epoch.whole_batch_bytes)
    for row, (samples, total) in enumerate(pieces):
        parts = ((STATE_BYTES * unit, RULE, False), ((total - STATE_BYTES) * unit, PURPLE, True))
        name = f"{count(samples, 'sample')} {'at once' if row else 'at a time'}"
        body.append(named_bar(left, MEMORY + 24 + 22 * row, name, parts, size(total), high=12))
    return body


def _strip(epoch: Epoch, windows: list[Window]) -> list[str]:
    """All micro-batches in a row, and after how many of them the optimizer steps."""
    body, x = [text(MARGIN, STRIP + 15, "one epoch")], LEFT
    for number, window in enumerate(windows):
        start, dropped = x, window is epoch.dropped
        for samples in window.samples[: max(0, STRIP_MOST - number * epoch.steps)]:
            wide = _pitch(epoch) * samples / epoch.batch
            body.append(bar(x, STRIP, wide, STRIP_HIGH, fill=RULE if dropped else SKY, hatched=dropped, stroke=MUTED))
            x += wide
        body.append(fitted(start, x - start, STRIP - 5, f"window {number + 1}", str(number + 1)))
        body += [line(start, STRIP, start, STRIP + STRIP_HIGH, width=3)] if number else []
    left = epoch.micro_batches - STRIP_MOST
    return [*body, note(END, STRIP + 15, f"… {left} more", anchor="end")] if left > 0 else body


def _pitch(epoch: Epoch) -> float:
    """How wide a full micro-batch is."""
    return (RIGHT - LEFT) / min(epoch.micro_batches, STRIP_MOST)


def _grip(epoch: Epoch) -> list[Live]:
    """The end of the first window is dragged."""
    most, pitch = min(MOST_STEPS, epoch.micro_batches), _pitch(epoch)
    if most == 1:
        return []
    at, low = LEFT + epoch.steps * pitch, STRIP + STRIP_HIGH
    words = f"↔ step after {count(epoch.steps, 'micro-batch')}"
    drawn = grasp(LEFT, STRIP - 12, most * pitch + 8, STRIP_HIGH + 26)
    drawn += line(at, STRIP - 4, at, low + 7, stroke=BLUE, width=4) + dot(at, low + 7, 7, fill=BLUE)
    grip = Grip("steps", LEFT + pitch, LEFT + most * pitch, 1, most)
    return [Live(draggable(drawn + "".join(beside(at + 4, low + 17, words)), "Micro-batches per step", grip))]


def _heads(epoch: Epoch) -> list[str]:
    base, kind = ROWS_TOP - 12, "tokens" if epoch.tokens else "samples"
    weight = WEIGHTS[epoch.divide].format(epoch.steps if epoch.divide == "steps" else kind)
    body = [note(MARGIN, base, f"width: share of the {kind}; full: weighs as much")]
    entries = [(f"weight in .grad: {weight}", SKY, False)]
    entries += [("too much", ORANGE, True)] if any(window.misplaced for window in epoch.windows) else []
    if any(window.error for window in epoch.windows):
        x = 410 + sum(length(words, SMALL) + 36 for words, *_ in entries)
        body += [rect(x, base - 11, 16, 12, stroke=INK, dash="3 3"), note(x + 22, base, "too little")]
    return [*body, *keys(410, base, *entries)]


def _content(epoch: Epoch, window: Window) -> str:
    """What is in a window, in words."""
    samples = count(sum(window.samples), "sample")
    tokens = f" with {sum(window.items):,} tokens" if epoch.tokens else ""
    end = "no step follows" if window is epoch.dropped else f".grad is {percent(window.error)} off"
    pieces = ", ".join(map(str, window.items[:8])) + (", …" if len(window.items) > 8 else "")
    return f"{count(len(window.samples), 'micro-batch')} of {pieces}: {samples}{tokens}; {end}"


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float) -> list[str]:
    """A window in its whole: a box for each micro-batch, as wide as its share and full if it weighs that much. What is
    too much of a weight stands hatched above its box, and what is too little is left open in it."""
    dropped, kind = window is epoch.dropped, "tokens" if epoch.tokens else "samples"
    full, words = (high - 18) / MOST, top + high - 2
    floor, middle = top + high - 18, top + high - 18 - full / 2 + 5
    body, x = [text(MARGIN, middle, "left over" if dropped else f"window {index + 1}")], LEFT
    for items, share, weight in zip(window.items, window.shares, window.weights, strict=True):
        wide, level, much = share * (RIGHT - LEFT), full * min(weight / share, MOST), weight - share > 1e-9
        if dropped:
            body.append(rect(x, floor - full, wide, full, stroke=EDGE))
        else:
            body += [rect(x, floor - full, wide, full, stroke=INK, dash="3 3")] if level < full - 1e-6 else []
            body.append(bar(x, floor - min(level, full), wide, min(level, full), fill=SKY))
            body += [bar(x, floor - level, wide, level - full, fill=ORANGE, hatched=True)] if much else []
            body += [pointer(x + wide / 2, top - 6, high=-5)] if weight > MOST * share else []
            ratio = percent(share) if abs(weight - share) < 1e-9 else f"{percent(share)} → {percent(weight)}"
            body.append(fitted(x, wide, words, f"{items:,} {kind}: {ratio}", ratio))
        x += wide
    if dropped:
        unused = f"no step: {count(sum(window.samples), 'sample')} unused. Zero .grad, or it joins the next epoch."
        return [*body, small(LEFT, words, unused)]
    off = f"{percent(1 - window.scale)} is missing" if window.scale < 1 else f"{percent(window.misplaced)} misplaced"
    if not window.error:
        return [*body, note(END, middle, "exact", anchor="end")]
    return [*body, text(END, middle, off, anchor="end", weight="bold")]
