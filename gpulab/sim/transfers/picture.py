"""Both memories, the bus, the console and what the copies cost: a result of `transfers` as a picture."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, code, key, line, lines, rect, shape, text, wrap

from ..base.words import count, duration
from .model import Held, Line
from .result import Crossings, size

# the rest of the text is where to read on, an address longer than a line
_TO_READ_ON = "  See documentation"

WIDTH, RIGHT = 860.0, 860.0 - MARGIN
PANEL, PANEL_HEIGHT = 290.0, 168.0
CONSOLE, SHOWN, STEP = 196.0, 7, 21.0
FOOT = CONSOLE + (SHOWN + 1) * STEP + 4
COPIED, BUS, SHARE, SHARE_WIDTH = 576.0, 656.0, 670.0, 72.0


def draw(result: Crossings) -> Picture:
    """Both memories with the bus between, the console, and below it what the copies cost or the error."""
    out = result.outcome
    body = [
        *_panel(MARGIN, "host memory", out.host, result.host_bytes, SKY, ""),
        *_panel(
            RIGHT - PANEL,
            f"{result.gpu}'s memory",
            out.gpu,
            result.gpu_bytes,
            GREEN,
            f"reserved {result.reserved}, free {out.free / 2**20:.0f} MiB",
        ),
        *_bus(result),
        *_console(result),
        *(_error(result.error) if result.error else _cost(result)),
    ]
    return Picture(WIDTH, FOOT + 112, result.finding, result.describe(), tuple(body))


def _panel(x: float, name: str, tensors: tuple[Held, ...], total: int, fill: str, more: str) -> list[str]:
    body = [rect(x, 0, PANEL, PANEL_HEIGHT, stroke=INK, radius=6)]
    body.append(text(x + 12, 24, name, weight="bold"))
    body.append(text(x + PANEL - 12, 24, size(total), weight="bold", anchor="end"))
    if not tensors:
        body.append(text(x + 12, 54, "empty", fill=MUTED))
    for place, held in enumerate(tensors):
        y = 54 + place * 22
        body.append(bar(x + 12, y - 12, 14, 14, fill=fill, hatched=held.pinned))
        body.append(text(x + 34, y, held.name))
        if held.pinned:
            body.append(text(x + 196, y, "pinned", size=SMALL, fill=MUTED, anchor="end"))
        body.append(text(x + PANEL - 12, y, size(held.nbytes), anchor="end"))
    body.append(text(x + 12, PANEL_HEIGHT - 10, f"{total:,} bytes", size=SMALL, fill=MUTED) if not more else "")
    if more:
        body.append(text(x + PANEL - 12, PANEL_HEIGHT - 10, more, size=SMALL, fill=MUTED, anchor="end"))
        body.append(text(x + 12, PANEL_HEIGHT - 27, f"{total:,} bytes", size=SMALL, fill=MUTED))
    return body


def _bus(result: Crossings) -> list[str]:
    """The link, and the copy of the last command, if it was one."""
    out = result.outcome
    left, right, middle = MARGIN + PANEL + 8, RIGHT - PANEL - 8, WIDTH / 2
    last = out.lines[-1]
    rates = out.rates

    def centred(y: float, words: str, weight: str = "", fill: str = INK) -> str:
        return text(middle, y, words, size=SMALL, anchor="middle", weight=weight, fill=fill)

    body = [
        centred(18, result.link, "bold"),
        centred(36, f"{out.link.one_way_gbps:.0f} GB/s one way (recorded)", fill=MUTED),
        centred(54, f"copies: {rates.pinned_gbps:.3g} GB/s pinned,", fill=MUTED),
        centred(71, f"{rates.pageable_gbps:.3g} pageable (virtual)", fill=MUTED),
    ]
    y = 104.0
    if not last.copies:
        body.append(line(left, y, right, y, stroke=RULE, width=10))
        body.append(centred(140, "no copy" if last.error or last.kind == "there" else "idle", fill=MUTED))
        return body
    to_gpu = last.way == "to GPU"
    tip, tail, back = (right, left, -20) if to_gpu else (left, right, 20)
    body.append(line(tail, y, tip + back, y, stroke=ORANGE, width=10))
    body.append(shape([(tip, y), (tip + back, y - 14), (tip + back, y + 14)], fill=ORANGE))
    body.append(centred(140, f"{size(last.nbytes)} {last.way}", "bold"))
    body.append(centred(158, f"in {duration(last.copy)} (virtual)"))
    return body


def _console(result: Crossings) -> list[str]:
    done = result.outcome.lines
    body = [
        text(MARGIN, CONSOLE, "console", size=SMALL, fill=MUTED),
        text(COPIED, CONSOLE, "copied", size=SMALL, fill=MUTED, anchor="end"),
        text(BUS, CONSOLE, "on the bus", size=SMALL, fill=MUTED, anchor="end"),
        text(SHARE, CONSOLE, "of it latency", size=SMALL, fill=MUTED),
        text(RIGHT, CONSOLE, "call returns", size=SMALL, fill=MUTED, anchor="end"),
        line(MARGIN, CONSOLE + 6, RIGHT, CONSOLE + 6, stroke=RULE),
    ]
    first = max(0, len(done) - SHOWN)
    y = CONSOLE + 24
    for step in range(first, len(done)):
        it = done[step]
        if step == first > 0:
            body.append(text(MARGIN, y, f"… {count(first + 1, 'line')} above", size=SMALL, fill=MUTED))
        else:
            newest = step == len(done) - 1
            body.append(code(MARGIN, y, it.code, weight="bold" if newest else ""))
            body += _costs(result, it, y)
        y += STEP
    return body


def _costs(result: Crossings, it: Line, y: float) -> list[str]:
    if it.error:
        return [text(RIGHT, y, "✗ error", size=SMALL, anchor="end", weight="bold")]
    body = []
    if it.copies:
        latency = it.copies * result.outcome.rates.copy_us * 1e-6 / it.copy
        body.append(text(COPIED, y, size(it.nbytes), size=SMALL, anchor="end"))
        body.append(text(BUS, y, duration(it.copy), size=SMALL, anchor="end"))
        body.append(rect(SHARE, y - 11, SHARE_WIDTH, 13, fill=SKY, stroke=INK))
        body.append(bar(SHARE, y - 11, SHARE_WIDTH * latency, 13, fill=ORANGE, hatched=True))
    elif it.kind in ("there", "freed"):
        words = "nothing copied" if it.kind == "there" else "freed"
        body.append(text(BUS, y, words, size=SMALL, anchor="end", fill=MUTED))
    if it.call is not None:
        body.append(text(RIGHT, y, duration(it.call), size=SMALL, anchor="end"))
    return body


def _error(words: str) -> list[str]:
    folded = wrap(words.split(_TO_READ_ON)[0], RIGHT - MARGIN - 24, SMALL)
    return [
        rect(MARGIN, FOOT, RIGHT - MARGIN, 104, stroke=VERMILLION, radius=6),
        lines(MARGIN + 12, FOOT + 20, folded, size=SMALL),
    ]


def _cost(result: Crossings) -> list[str]:
    """All that went over the bus, beside a look at the same bytes where the GPU has them."""
    if not result.copied:
        return [text(MARGIN, FOOT + 20, "Nothing has gone over the bus yet.", fill=MUTED)]
    rates = result.outcome.rates
    near = rates.memory_seconds(result.copied)
    left, unit = 300.0, 380 / result.copying
    top = FOOT + 16
    body = [
        text(MARGIN, top, f"the same {size(result.copied)} (virtual)", size=SMALL, fill=MUTED),
        key(left, top, "latency", fill=ORANGE, hatched=True),
        key(left + 92, top, "bytes", fill=SKY),
    ]
    rows = (("all copies over the bus", result.copying, result.floor), ("read in the GPU's own memory", near, 0.0))
    for place, (name, seconds, floor) in enumerate(rows):
        y = top + 36 + place * 36
        body.append(text(MARGIN, y, name))
        body.append(bar(left, y - 16, seconds * unit, 22, fill=SKY))
        body.append(bar(left, y - 16, floor * unit, 22, fill=ORANGE, hatched=True))
        times = f", {result.copying / near:.0f} × faster" if place else ""
        body.append(text(left + seconds * unit + 10, y, f"{duration(seconds)}{times}", weight="bold"))
    return body
