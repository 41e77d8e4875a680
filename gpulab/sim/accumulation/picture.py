"""One epoch with accumulation: the memory that it saves, and what each micro-batch weighs against what it should."""

from __future__ import annotations

from virtualgpu.pictures.style import EDGE, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, Live, Picture, bar, dot, line, rect, text

from ..base.scene import END, fitted, keys, named_bar, note, picture, small
from ..base.touch import Grip, draggable, grasp, named
from ..base.words import count, percent, size
from .model import MOST_STEPS, STATE_BYTES, Epoch, Window

LEFT, RIGHT = 164.0, 752.0  # of the epoch and of its windows
STRIP, STRIP_HIGH, STRIP_MOST = 103.0, 22.0, 64  # the epoch: where, how high, micro-batches drawn of it
ROWS, ROWS_TOP, ROWS_HIGH = 5, 170.0, 290.0
WEIGHTS = {"steps": "1/{} each", "window": "all alike", "items": "by {}"}


def draw(epoch: Epoch) -> Picture:
    """The memory, the epoch, and a row for each window, its middle left out where they are many."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    high = min(ROWS_HIGH / len(shown), 74)
    body, living = [*_memory(epoch), *_strip(epoch, windows), *_heads(epoch)], _grip(epoch)
    for place, index in enumerate(shown):
        top = ROWS_TOP + place * high
        if index is None:
            body.append(line(LEFT, top + high / 2 - 9, LEFT + 60, top + high / 2 - 9, stroke=MUTED, dash="2 6"))
            body.append(note(LEFT + 72, top + high / 2 - 4, count(len(windows) - len(shown) + 1, "more window")))
        else:
            body += _row(epoch, windows[index], index, top, high - 17)
            area = grasp(MARGIN, top, END - MARGIN, high - 17)
            living.append(Live(named(area, _content(epoch, windows[index]))))
    return picture(epoch, 460.0, body, living)


def _memory(epoch: Epoch) -> list[str]:
    """Why one accumulates."""
    body, unit = [], 500 / epoch.whole_batch_bytes
    pieces = (max(epoch.windows[0].samples), epoch.micro_batch_bytes), (epoch.effective_batch, epoch.whole_batch_bytes)
    for row, (samples, total) in enumerate(pieces):
        parts = ((STATE_BYTES * unit, RULE, False), ((total - STATE_BYTES) * unit, PURPLE, True))
        name = f"{count(samples, 'sample')} {'at once' if row else 'at a time'}"
        body.append(named_bar(LEFT, 18 + 26 * row, name, parts, size(total), high=18))
    legend = keys(LEFT, 69, ("weights, gradients, Adam", RULE), ("kept for backward", PURPLE, True))
    return [*body, *legend, note(END, 69, "memory of ResNet-50, recorded", anchor="end")]


def _strip(epoch: Epoch, windows: list[Window]) -> list[str]:
    """All micro-batches in a row, and after how many of them the optimizer steps."""
    body, x = [text(MARGIN, STRIP + 16, "one epoch")], LEFT
    for number, window in enumerate(windows):
        start, dropped = x, window is epoch.dropped
        for samples in window.samples[: max(0, STRIP_MOST - number * epoch.steps)]:
            wide = _pitch(epoch) * samples / epoch.batch
            body.append(bar(x, STRIP, wide, STRIP_HIGH, fill=RULE if dropped else SKY, hatched=dropped, stroke=MUTED))
            x += wide
        body.append(fitted(start, x - start, STRIP - 5, str(number + 1)))
        body += [line(start, STRIP, start, STRIP + STRIP_HIGH, width=3)] if number else []
    left = epoch.micro_batches - STRIP_MOST
    if left > 0:
        return [*body, note(END, STRIP + 16, f"… {left} more", anchor="end")]
    return [*body, Live(note(END, STRIP + 16, "drag the dot", anchor="end"))]


def _pitch(epoch: Epoch) -> float:
    """How wide a full micro-batch is."""
    return (RIGHT - LEFT) / min(epoch.micro_batches, STRIP_MOST)


def _grip(epoch: Epoch) -> list[Live]:
    """The end of the first window is dragged."""
    most, pitch = min(MOST_STEPS, epoch.micro_batches), _pitch(epoch)
    if most == 1:
        return []
    at, low = LEFT + epoch.steps * pitch, STRIP + STRIP_HIGH
    drawn = grasp(LEFT, STRIP - 12, most * pitch + 8, STRIP_HIGH + 26)
    drawn += line(at, STRIP - 4, at, low + 6, stroke=VERMILLION, width=4) + dot(at, low + 6, 6, fill=VERMILLION)
    grip = Grip("steps", LEFT + pitch, LEFT + most * pitch, 1, most)
    return [Live(draggable(drawn, "Micro-batches per step", grip))]


def _heads(epoch: Epoch) -> list[str]:
    kind = "tokens" if epoch.tokens else "samples"
    weight = WEIGHTS[epoch.divide].format(epoch.steps if epoch.divide == "steps" else kind)
    entries = [(f"share of the window’s {kind}", PAPER, False), (f"weight in .grad: {weight}", SKY, False)]
    if any(window.error for window in epoch.windows):
        entries.append(("off", ORANGE, True))
    head = [note(END, ROWS_TOP - up, words, anchor="end") for up, words in ((30, "gradient"), (14, "off by (virtual)"))]
    return [*keys(LEFT, ROWS_TOP - 14, *entries), *head]


def _content(epoch: Epoch, window: Window) -> str:
    """What is in a window, in words."""
    samples = count(sum(window.samples), "sample")
    tokens = f" with {sum(window.items):,} tokens" if epoch.tokens else ""
    end = "no step follows" if window is epoch.dropped else f".grad is {percent(window.error)} off"
    pieces = ", ".join(map(str, window.items[:8])) + (", …" if len(window.items) > 8 else "")
    return f"{count(len(window.samples), 'micro-batch')} of {pieces}: {samples}{tokens}; {end}"


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float) -> list[str]:
    """A window in its whole: above, the share that each micro-batch has of it; below, the weight that it gets. What is
    too much of a weight, or missing, is hatched."""
    dropped, middle, above = window is epoch.dropped, top + high / 2 + 5, 0.4 * high
    low, below = top + above, high - above
    body = [text(MARGIN, middle, "left over" if dropped else f"window {index + 1}")]
    x, reached = LEFT, LEFT
    for items, share, weight in zip(window.items, window.shares, window.weights, strict=True):
        wide, filled = share * (RIGHT - LEFT), weight * (RIGHT - LEFT)
        body.append(rect(x, top, wide, above, stroke=EDGE))
        body.append(fitted(x, wide, top + above / 2 + 5, f"{items:,}"))
        x += wide
        if not dropped:
            odd = weight - share > 1e-9
            body.append(bar(reached, low, min(wide, filled), below, fill=SKY))
            body += [bar(reached + wide, low, filled - wide, below, fill=ORANGE, hatched=True)] if odd else []
            body.append(fitted(reached, filled, low + below / 2 + 5, percent(weight), halo=odd))
            reached += filled
    if dropped:
        words = f"no step: {count(sum(window.samples), 'sample')} unused. Zero .grad, or it joins the next epoch."
        return [*body, small(LEFT, low + below / 2 + 5, words)]
    if window.scale < 1:
        missing = f"{percent(1 - window.scale)} is missing"
        body.append(bar(reached, low, RIGHT - reached, below, fill=ORANGE, hatched=True))
        body.append(fitted(reached, RIGHT - reached, low + below / 2 + 5, missing, halo=True))
    bold = "bold" if window.error else ""
    return [*body, text(END, middle, percent(window.error), anchor="end", weight=bold)]
