"""One epoch with accumulation: a bar for each window of micro-batches, and what fills the memory."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, dot, length, line, rect, shape, text

from ..base.scene import END, fitted, keys, named_bar, note, picture, small
from ..base.touch import Grip, draggable, grasp, named
from ..base.words import count, percent, size
from .model import MOST_STEPS, RECORDED, STATE_BYTES, Epoch, Window

STRIP, STRIP_HIGH, STRIP_MOST = 20.0, 22.0, 64  # the epoch: where, how high, micro-batches drawn of it
ROWS, ROWS_TOP, ROWS_HEIGHT = 5, 92.0, 210.0
BAR_LEFT, BAR_RIGHT, STEP, SCALE, ERROR = 112.0, 560.0, 585.0, 618.0, 690.0
DECADE, LEAST = 31.0, -3  # of the errors: pixels for a factor of ten, and the power of ten that they begin with


def draw(epoch: Epoch) -> Picture:
    """The epoch; a row for each window, its middle left out where they are many; the memory below."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    unit = (BAR_RIGHT - BAR_LEFT) / max(sum(window.items) for window in windows)
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min(ROWS_HEIGHT / len(shown), 60)
    body, living = [*_strip(epoch, windows), *_heads(epoch)], _grip(epoch)
    for place, index in enumerate(shown):
        top = ROWS_TOP + place * high
        if index is None:
            middle = top + high / 2 - 5
            body.append(line(BAR_LEFT, middle, BAR_LEFT + 60, middle, stroke=MUTED, dash="2 6"))
            words = count(len(windows) - len(shown) + 1, "more window")
            body.append(text(BAR_LEFT + 72, middle + 5, words, fill=MUTED))
        else:
            body += _row(epoch, windows[index], index, top, high - 10, unit)
            area = grasp(MARGIN, top, END - MARGIN, high - 10)
            living.append(Live(named(area, _content(epoch, windows[index]))))
    return picture(epoch, 448.0, body, _memory(epoch, ROWS_TOP + ROWS_HEIGHT + 44), living)


def _strip(epoch: Epoch, windows: list[Window]) -> list[str]:
    """All micro-batches in a row, and after how many of them the optimizer steps."""
    wide, x = _pitch(epoch), BAR_LEFT
    body = [text(MARGIN, STRIP + 16, "one epoch")]
    for number, window in enumerate(windows):
        pieces = min(len(window.samples), STRIP_MOST - number * epoch.steps)
        odd = _is_odd(epoch, window)
        gap, start = min(4.0, wide / 2), x  # before the next window
        for piece in range(pieces):
            room = wide - gap * (piece == pieces - 1)
            fill, edge = ORANGE if odd else SKY, INK if wide > 12 else MUTED
            body.append(bar(x, STRIP, room, STRIP_HIGH, fill=fill, hatched=odd, stroke=edge))
            x += wide
        body.append(fitted(start, x - start - gap, STRIP - 5, str(number + 1)))
    at = _after(epoch, epoch.steps)
    left = epoch.micro_batches - STRIP_MOST
    words = f"… {left} more" if left > 0 else f"{count(epoch.steps, 'micro-batch')} a step"
    return [
        *body,
        line(at, STRIP - 6, at, STRIP + STRIP_HIGH + 6, stroke=VERMILLION, width=4),
        dot(at, STRIP + STRIP_HIGH + 6, 6, fill=VERMILLION),
        text(STEP - 13, STRIP + 16, words, fill=MUTED),
    ]


def _pitch(epoch: Epoch) -> float:
    return (BAR_RIGHT - BAR_LEFT) / min(epoch.micro_batches, STRIP_MOST)


def _after(epoch: Epoch, micro_batches: int) -> float:
    """The right edge of so many micro-batches."""
    return BAR_LEFT + micro_batches * _pitch(epoch)


def _grip(epoch: Epoch) -> list[Live]:
    """The end of the first window is dragged."""
    most = min(MOST_STEPS, epoch.micro_batches)
    if most == 1:
        return []
    ground = grasp(BAR_LEFT, 0, _after(epoch, most) - BAR_LEFT + 8, STRIP + STRIP_HIGH + 14)
    grip = Grip("steps", _after(epoch, 1), _after(epoch, most), 1, most)
    return [Live(draggable(ground, "Micro-batches per step", grip))]


def _heads(epoch: Epoch) -> list[str]:
    kind, base, foot = "tokens" if epoch.tokens else "samples", ROWS_TOP - 10, ROWS_TOP + ROWS_HEIGHT + 8
    body = [
        note(BAR_LEFT, base, f"its windows, in {kind}; the colour rises as .grad fills"),
        note(STEP, base, "step", anchor="middle"),
        note(SCALE, base, "scale"),
        note(END, base - 20, "gradient error (virtual)", anchor="end"),
    ]
    if any(window.scale < 1 for window in epoch.windows):
        body.append(dot(BAR_LEFT + 6, foot - 4, 5, fill=ORANGE, stroke=INK))
        body.append(note(BAR_LEFT + 18, foot, "the update is scaled: too few micro-batches"))
    if any(window.uneven for window in epoch.windows):
        body.append(bar(STEP - 115, foot - 9, 10, 10, fill=VERMILLION))
        body.append(note(STEP - 99, foot, "unequal micro-batches weigh alike"))
    for power in range(LEAST, 1):
        x = ERROR + (power - LEAST) * DECADE
        body += [note(x, base, f"{100 * 10.0**power:g}%", anchor="middle")] if power in (-2, 0) else []
        body.append(line(x, ROWS_TOP - 4, x, ROWS_TOP + ROWS_HEIGHT - 10, stroke=RULE))
    return body


def _is_odd(epoch: Epoch, window: Window) -> bool:
    return window is epoch.dropped or window.scale < 1


def _content(epoch: Epoch, window: Window) -> str:
    """What is in a window, in words."""
    samples = count(sum(window.samples), "sample")
    tokens = f" with {sum(window.items):,} tokens" if epoch.tokens else ""
    end = "no step follows" if window is epoch.dropped else f".grad is {percent(window.error)} off"
    pieces = ", ".join(map(str, window.items[:8])) + (", …" if len(window.items) > 8 else "")
    return f"{count(len(window.samples), 'micro-batch')} of {pieces}: {samples}{tokens}; {end}"


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float, unit: float) -> list[str]:
    dropped = window is epoch.dropped
    odd = _is_odd(epoch, window)
    middle = top + high / 2
    body = [text(MARGIN, middle + 5, "left over" if dropped else f"window {index + 1}")]
    x = BAR_LEFT
    for items, held in zip(window.items, window.held, strict=True):
        width, full = items * unit, high * held
        body.append(bar(x, top + high - full, width, full, fill=ORANGE if odd else SKY, hatched=odd, stroke=""))
        body.append(rect(x, top, width, high, stroke=INK, dash="4 3" if dropped else ""))
        if length(str(items), SMALL) + 4 < width:
            body.append(small(x + width / 2, middle + 5, str(items), anchor="middle", halo=True))
        x += width
    if dropped:
        words = f"no step: {count(sum(window.samples), 'sample')} unused."
        body.append(small(STEP - 13, middle - 4, words, halo=True))
        body.append(small(STEP - 13, middle + 13, "Zero .grad, or it joins the next epoch.", halo=True))
        return body
    body.append(shape([(STEP - 9, middle - 10), (STEP + 9, middle), (STEP - 9, middle + 10)], fill=GREEN, stroke=INK))
    body.append(text(SCALE, middle + 5, f"× {window.scale:.3g}", weight="bold" if window.scale < 1 else ""))
    body.append(text(END, middle + 5, percent(window.error), anchor="end", weight="bold" if window.error else ""))
    return body + _errors(window, middle)


def _errors(window: Window, middle: float) -> list[str]:
    """How far off, on a scale of powers of ten: by the scale of all, and by the weights of the pieces."""
    body = [] if window.error else [dot(ERROR, middle, 4, fill=RULE, stroke=MUTED)]
    both = window.scale < 1 and window.uneven > 0
    for error, fill, y in ((1 - window.scale, ORANGE, -5.0), (window.uneven, VERMILLION, 5.0)):
        if error > 0:
            x, y = ERROR + max(0.0, math.log10(error) - LEAST) * DECADE, middle + (y if both else 0)
            body.append(line(ERROR, y, x, y, stroke=fill, width=4))
            body.append(dot(x, y, 5, fill=fill, stroke=INK) if fill == ORANGE else bar(x - 5, y - 5, 10, 10, fill=fill))
    return body


def _memory(epoch: Epoch, top: float) -> list[str]:
    little, most = size(epoch.micro_batch_bytes), size(epoch.whole_batch_bytes)
    saved = f"why accumulate: {little}, not {most}" if little != most else f"nothing to accumulate: {most}"
    body = [
        text(MARGIN, top, saved, weight="bold"),
        *keys(END, top, ("weights, gradients, Adam", RULE), ("kept for backward", PURPLE, True), ends=True),
    ]
    at_once = (
        ("one micro-batch at a time", epoch.micro_batch_bytes),
        ("effective batch at once", epoch.whole_batch_bytes),
    )
    unit = 480 / epoch.whole_batch_bytes
    for name, total in at_once:
        top += 34
        parts = ((STATE_BYTES * unit, RULE, False), ((total - STATE_BYTES) * unit, PURPLE, True))
        body.append(named_bar(220, top, name, parts, size(total), high=24))
    return [*body, note(MARGIN, top + 26, RECORDED)]
