"""One epoch with accumulation: a bar for each window of micro-batches, and what fills the memory."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, key, length, line, rect, shape, text

from ..base.words import count, percent, size
from .model import RECORDED, STATE_BYTES, Epoch, Window

ROWS, ROWS_TOP, ROWS_HEIGHT = 5, 26.0, 210.0
WIDTH, BAR_LEFT, BAR_RIGHT, STEP, SCALE, ERROR = 860.0, 112.0, 560.0, 585.0, 618.0, 690.0


def draw(epoch: Epoch) -> Picture:
    """A row for each window, its middle left out where they are many; the memory below."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    unit = (BAR_RIGHT - BAR_LEFT) / max(sum(window.items) for window in windows)
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min(ROWS_HEIGHT / len(shown), 60)
    kind = "tokens" if epoch.tokens else "samples"
    body = [
        text(BAR_LEFT, 14, f"micro-batches, in {kind}; the colour rises as .grad fills", size=SMALL, fill=MUTED),
        text(STEP, 14, "step", size=SMALL, fill=MUTED, anchor="middle"),
        text(SCALE, 14, "scale", size=SMALL, fill=MUTED),
        text(ERROR, 14, "gradient error (virtual)", size=SMALL, fill=MUTED),
    ]
    for place, index in enumerate(shown):
        top = ROWS_TOP + place * high
        if index is None:
            middle = top + high / 2 - 5
            body.append(line(BAR_LEFT, middle, BAR_LEFT + 60, middle, stroke=MUTED, dash="2 6"))
            words = count(len(windows) - len(shown) + 1, "more window")
            body.append(text(BAR_LEFT + 72, middle + 5, words, fill=MUTED))
        else:
            body += _row(epoch, windows[index], index, top, high - 10, unit)
    body += _memory(epoch, ROWS_TOP + ROWS_HEIGHT + 30)
    return Picture(WIDTH, ROWS_TOP + ROWS_HEIGHT + 132, epoch.finding, epoch.describe(), tuple(body))


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float, unit: float) -> list[str]:
    dropped = window is epoch.dropped
    odd = len(window.samples) < epoch.steps
    middle = top + high / 2
    body = [text(MARGIN, middle + 5, "left over" if dropped else f"window {index + 1}")]
    x = BAR_LEFT
    for items, held in zip(window.items, window.held, strict=True):
        width, full = items * unit, high * held
        body.append(bar(x, top + high - full, width, full, fill=ORANGE if odd else SKY, hatched=odd, stroke=""))
        body.append(rect(x, top, width, high, stroke=INK, dash="4 3" if dropped else ""))
        if length(str(items), SMALL) + 4 < width:
            body.append(text(x + width / 2, middle + 5, str(items), size=SMALL, anchor="middle", halo=True))
        x += width
    if dropped:
        words = f"no step: {count(sum(window.samples), 'sample')} unused."
        body.append(text(STEP - 13, middle - 4, words, size=SMALL))
        body.append(text(STEP - 13, middle + 13, "Zero .grad, or it joins the next epoch.", size=SMALL))
        return body
    body.append(shape([(STEP - 9, middle - 10), (STEP + 9, middle), (STEP - 9, middle + 10)], fill=GREEN))
    body.append(text(SCALE, middle + 5, f"× {window.scale:.3g}", weight="bold" if window.scale < 1 else ""))
    body.append(rect(ERROR, middle - 7, 90, 14, stroke=RULE))
    body.append(bar(ERROR, middle - 7, 90 * min(window.error, 1), 14, fill=VERMILLION, hatched=True, stroke=""))
    body.append(text(ERROR + 100, middle + 5, percent(window.error), weight="bold" if window.error else ""))
    return body


def _memory(epoch: Epoch, top: float) -> list[str]:
    body = [
        text(MARGIN, top, f"memory ({RECORDED})", size=SMALL, fill=MUTED),
        key(470, top, "weights, gradients, Adam", fill=RULE),
        key(672, top, "kept for backward", fill=PURPLE, hatched=True),
    ]
    left, unit = 220.0, 480 / epoch.whole_batch_bytes
    state = STATE_BYTES * unit
    for name, total in (
        ("one micro-batch at a time", epoch.micro_batch_bytes),
        ("effective batch at once", epoch.whole_batch_bytes),
    ):
        top += 34
        body.append(text(MARGIN, top, name))
        body.append(bar(left, top - 17, state, 24, fill=RULE))
        body.append(bar(left + state, top - 17, total * unit - state, 24, fill=PURPLE, hatched=True))
        body.append(text(left + total * unit + 10, top, size(total), weight="bold"))
    return body
