"""One epoch with accumulation: what each micro-batch weighs against what it should, and the memory that it saves."""

from __future__ import annotations

from virtualgpu.pictures.style import BLUE, EDGE, INK, MUTED, ON, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, dot, hatch, length, line, polyline, rect, text

from ..base.lanes import beside
from ..base.scene import END, fitted, keys, named_bar, note, picture, pointer, small
from ..base.touch import Grip, draggable, grasp, named
from ..base.words import count, percent, size
from .model import MOST_STEPS, STATE_BYTES, Epoch, Window

LEFT, RIGHT = 100.0, 708.0  # of the epoch and of its windows
STRIP, STRIP_HIGH, STRIP_MOST = 18.0, 20.0, 64  # the epoch: where, how high, micro-batches drawn of it
ROWS, ROWS_TOP = 5, 94.0
MOST = 1.6  # times the right weight: so high is a row
MEMORY = 392.0
KINDS = ("samples", "tokens")


def draw(epoch: Epoch) -> Picture:
    """The epoch, a row for each window, its middle left out where they are many, and the memory."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min((348 if epoch.tokens else MEMORY - 30 - ROWS_TOP) / len(shown), 86 if epoch.tokens else 67)
    body, living = [*_strip(epoch, windows), *_heads(epoch, high - 7)], _grip(epoch)
    body += [] if epoch.tokens else _memory(epoch)  # of images
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
    body, x, pitch = [text(MARGIN, STRIP + 15, "one epoch")], LEFT, _pitch(epoch)
    for number, window in enumerate(windows):
        start, dropped = x, window is epoch.dropped
        for _ in window.samples[: max(0, STRIP_MOST - number * epoch.steps)]:
            body.append(bar(x, STRIP, pitch, STRIP_HIGH, fill=RULE if dropped else SKY, hatched=dropped, stroke=MUTED))
            x += pitch
        names = (f"window {number + 1}", "last" if window is windows[-1] else str(number + 1))
        body.append(fitted(start, x - start, STRIP - 5, *names))
        body += [line(start, STRIP, start, STRIP + STRIP_HIGH, width=3)] if number else []
    left = epoch.micro_batches - STRIP_MOST
    return [*body, note(END, STRIP + 15, f"… {left} more", anchor="end")] if left > 0 else body


def _pitch(epoch: Epoch) -> float:
    """How wide a micro-batch is."""
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


def _heads(epoch: Epoch, high: float) -> list[str]:
    """What width, height and frame of a box are, the first two with a bracket at the first box."""
    base, floor, first = ROWS_TOP - 14, ROWS_TOP + high - 18, epoch.windows[0]
    right, x = LEFT + first.shares[0] * (RIGHT - LEFT), LEFT - 8
    top = floor - min(first.weights[0] / first.shares[0], 1) * (high - 18) / MOST
    body = [note(LEFT, base, f"↔ its share of {KINDS[epoch.tokens]}"), note(298, base, "↕ its weight in .grad")]
    body.append(polyline([(LEFT, base + 13), (LEFT, base + 9), (right, base + 9), (right, base + 13)], stroke=MUTED))
    body.append(polyline([(x + 4, floor), (x, floor), (x, top), (x + 4, top)], stroke=MUTED))
    if any(window.error for window in epoch.windows):
        body += [rect(470, base - 11, 16, 12, stroke=INK, dash="3 3"), note(492, base, "the right weight")]
    return [*body, *keys(628, base, ("too much", ORANGE, True))] if any(w.misplaced for w in epoch.windows) else body


def _content(epoch: Epoch, window: Window) -> str:
    """What is in a window, in words."""
    samples = count(sum(window.samples), "sample")
    tokens = f" with {sum(window.items):,} tokens" if epoch.tokens else ""
    end = "no step follows" if window is epoch.dropped else f".grad is {percent(window.error)} off"
    pieces = ", ".join(map(str, window.items[:8])) + (", …" if len(window.items) > 8 else "")
    return f"{count(len(window.samples), 'micro-batch')} of {pieces}: {samples}{tokens}; {end}"


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float) -> list[str]:
    """A window in its whole: a box for each micro-batch, as wide as its share and full if it weighs that much. What is
    too much of a weight stands hatched above its box, and what is too little is hatched lightly in it."""
    full, floor, words, x = (high - 18) / MOST, top + high - 18, top + high - 2, LEFT
    middle, room = floor - full / 2 + 5, RIGHT - LEFT
    if window is epoch.dropped:
        why = f"no step: {count(sum(window.samples), 'sample')} unused. Zero .grad, or it joins the next epoch."
        frame = rect(LEFT, floor - full, room, full, stroke=EDGE)
        return [text(MARGIN, middle, "left over"), frame, small(LEFT, words, why)]
    body, names = [text(MARGIN, middle, f"window {index + 1}")], [f"{n:,} {KINDS[epoch.tokens]}" for n in window.items]
    fit = all(length(name, SMALL) + 6 < share * room for name, share in zip(names, window.shares, strict=True))
    for name, share, weight in zip(names, window.shares, window.weights, strict=True):
        wide, level = share * room, full * min(weight / share, MOST)
        if level < full - 1e-6:
            body.append(rect(x, floor - full, wide, full, stroke=INK, dash="3 3"))
            body.append(hatch(x, floor - full, wide, full - level, stroke=RULE))
        body.append(bar(x, floor - min(level, full), wide, min(level, full), fill=SKY))
        body += [bar(x, floor - level, wide, level - full, fill=ORANGE, hatched=True)] if weight - share > 1e-9 else []
        body += [pointer(x + wide / 2, top - 6, high=-5)] if weight > MOST * share else []
        ratio = percent(share) if abs(weight - share) < 1e-9 else f"{percent(share)} → {percent(weight)}"
        body.append(fitted(x, wide, words, ratio))
        over = level < full / 2 + 6  # its name goes beyond what is filled
        body.append(fitted(x, wide, middle, name, fill=INK if over else ON, halo=over) if fit else "")
        x += wide
    if not window.error:
        return [*body, note(RIGHT + 10, middle, "exact")]
    off = f"{percent(1 - window.scale)} is missing" if window.scale < 1 else f"{percent(window.misplaced)} misplaced"
    first = window is next(one for one in epoch.windows if one.error)
    body.append(text(RIGHT + 10, middle, off, weight="bold"))
    return [*body, note(RIGHT + 10, words, "should → does")] if first else body
