"""One epoch with accumulation: what each micro-batch weighs against what it should, and the memory that it saves."""

from __future__ import annotations

from virtualgpu.pictures.style import BLUE, EDGE, INK, MUTED, ON, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, dot, hatch, length, line, rect, text

from ..base.lanes import beside
from ..base.scene import END, fitted, keys, named_bar, note, picture, pointer, small
from ..base.touch import Grip, draggable, grasp, named
from ..base.words import count, percent, size
from .model import MOST_STEPS, STATE_BYTES, Epoch, Window

LEFT, RIGHT = 100.0, 684.0  # of the epoch and of its windows
STRIP, STRIP_HIGH, STRIP_MOST = 18.0, 20.0, 64  # the epoch: where, how high, micro-batches drawn of it
ROWS, ROWS_TOP, MEMORY, THIN = 5, 94.0, 392.0, 28.0  # thin is an exact window beside wrong ones
MOST = 1.6  # times the right weight: no row is higher
KINDS = ("samples", "tokens")


def draw(epoch: Epoch) -> Picture:
    """The epoch, a row for each window, its middle left out where they are many, and the memory."""
    windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
    shown: list[int | None] = list(range(len(windows)))
    if len(windows) > ROWS:
        shown = [0, 1, None, len(windows) - 2, len(windows) - 1]
    wrong = [one for one in shown if one is not None and one < len(epoch.windows) and windows[one].error]
    thin, room = len(shown) - len(wrong) if wrong else 0, 348 if epoch.tokens else MEMORY - 30 - ROWS_TOP
    tall = min((room - thin * (THIN + 10)) / (len(shown) - thin), 90) - 10
    gap = min(10 + (room - thin * (THIN + 10) - (len(shown) - thin) * (tall + 10)) / len(shown), 24)
    ratios = (weight / share for one in epoch.windows for share, weight in zip(one.shares, one.weights, strict=True))
    most = min(max(1, *ratios), MOST)
    body, living, top = [*_strip(epoch, windows), *_heads(epoch, most)], _grip(epoch), ROWS_TOP
    body += [] if epoch.tokens else _memory(epoch)  # of images
    for index in shown:
        high = THIN if wrong and index not in wrong else tall
        if index is None:
            body.append(note(LEFT, top + high / 2 + 5, count(len(windows) - len(shown) + 1, "more window")))
        else:
            body += _row(epoch, windows[index], index, top, high, most)
            living.append(Live(named(grasp(MARGIN, top, END - MARGIN, high), _content(epoch, windows[index]))))
        top += high + gap
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


def _heads(epoch: Epoch, most: float) -> list[str]:
    """What the fill, the frame and the width of a box are, as far as they occur."""
    base, body = ROWS_TOP - 14, keys(LEFT, ROWS_TOP - 14, ("its weight in .grad", SKY))
    if any(window.error for window in epoch.windows):
        body += [rect(268, base - 11, 16, 12, stroke=INK, dash="3 3"), note(290, base, "the right weight")]
    body += keys(416, base, ("too much", ORANGE, True)) if most > 1 + 1e-9 else []
    return [*body, note(RIGHT, base, "width: share of tokens", anchor="end")] if epoch.tokens else body


def _content(epoch: Epoch, window: Window) -> str:
    """What is in a window, in words."""
    samples = count(sum(window.samples), "sample")
    tokens = f" with {sum(window.items):,} tokens" if epoch.tokens else ""
    end = "no step follows" if window is epoch.dropped else f".grad is {percent(window.error)} off"
    pieces = ", ".join(map(str, window.items[:8])) + (", …" if len(window.items) > 8 else "")
    return f"{count(len(window.samples), 'micro-batch')} of {pieces}: {samples}{tokens}; {end}"


def _row(epoch: Epoch, window: Window, index: int, top: float, high: float, most: float) -> list[str]:
    """A window in its whole: a box for each micro-batch, as wide as its share and full if it weighs that much. What is
    too much of a weight stands hatched above its box, and what is too little is hatched lightly in it."""
    thin, words, x, room = high == THIN, top + high - 2, LEFT, RIGHT - LEFT
    floor, pale = (top + high, 0.3) if thin else (top + high - 18, 1)
    full = (floor - top) / (1 if thin else most)
    middle, head = floor - full / 2 + 5, note if thin else text
    if window is epoch.dropped:
        why = f"no step: {count(sum(window.samples), 'sample')} unused. Zero .grad, or it joins the next epoch."
        return [head(MARGIN, middle, "left over"), small(LEFT, middle, why)]
    body, names = [head(MARGIN, middle, f"window {index + 1}")], [f"{n:,} {KINDS[epoch.tokens]}" for n in window.items]
    fit = all(length(name, SMALL) + 6 < share * room for name, share in zip(names, window.shares, strict=True))
    fit = fit and not (thin and index and window.items == epoch.windows[0].items)  # named there
    for name, share, weight in zip(names, window.shares, window.weights, strict=True):
        wide, level, is_now = share * room, full * min(weight / share, MOST), percent(weight)
        if level < full - 1e-6:
            body.append(rect(x, floor - full, wide, full, stroke=INK, dash="3 3"))
            body.append(hatch(x, floor - full, wide, full - level, stroke=RULE))
        body.append(rect(x, floor - min(level, full), wide, min(level, full), fill=SKY, stroke=EDGE, opacity=pale))
        body += [bar(x, floor - level, wide, level - full, fill=ORANGE, hatched=True)] if weight - share > 1e-9 else []
        body += [pointer(x + wide / 2, top - 6, high=-5)] if weight > MOST * share else []
        ratio = is_now if is_now == percent(share) else f"{is_now}, not {percent(share)}"
        body += [] if thin else [fitted(x - 5, wide + 10, words, ratio, is_now)]
        over = thin or level < full / 2 + 6  # its name goes beyond what is filled
        body.append(fitted(x, wide, middle, name, fill=INK if over else ON, halo=over and not thin) if fit else "")
        x += wide
    parts, x = epoch.steps if epoch.divide == "steps" else len(window.samples), RIGHT + 10
    sums = f"sum ÷ {sum(window.items):,} {KINDS[epoch.tokens]}"
    why = sums if epoch.divide == "items" else f"{len(window.samples)} × 1/{parts} = {window.scale:.3g}"
    if thin:
        return [*body, note(x, middle, f"{why}, exact")]
    off, look = f"{percent(1 - window.scale)} is missing", "bold" if window.error else ""
    if window.scale == 1:
        off = f"{percent(window.misplaced)} misplaced" if window.error else "exact"
        why = f"each counts 1/{parts}" if window.error else why
    return [*body, small(x, middle - 9, why, weight=look), text(x, middle + 9, off, weight=look)]
