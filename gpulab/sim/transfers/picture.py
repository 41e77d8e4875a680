"""Both memories, the bus, the console and what the copies cost: a result of `transfers` as a picture."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Picture,
    bar,
    code,
    hatch,
    key,
    length,
    line,
    rect,
    shape,
    text,
    wrap,
)

from ..base.touch import carried, clickable, command, grows, live
from ..base.words import count, duration
from .model import BYTES, PARAMETERS, Held, Line
from .result import Crossings, size

# the rest of the text is where to read on, an address longer than a line
_TO_READ_ON = "  See documentation"

WIDTH, RIGHT = 860.0, 860.0 - MARGIN
PANEL, PANEL_HEIGHT = 290.0, 170.0
HOST, GPU = MARGIN, RIGHT - PANEL  # where the panels begin
CONSOLE, SHOWN, STEP = 196.0, 7, 20.0
FOOT = CONSOLE + 14 + SHOWN * STEP
COPIED, BUS, SHARE, SHARE_WIDTH = 576.0, 656.0, 670.0, 72.0


def draw(result: Crossings) -> Picture:
    """Both memories with the bus between, the console with the error, and below it what the copies cost."""
    out = result.outcome
    there = f"reserved {result.reserved}, free {out.free / 2**20:.0f} MiB"
    body = [
        *_panel(HOST, "host memory", result.host_bytes),
        live(text(HOST + 12, PANEL_HEIGHT - 8, "click a tensor, or carry it over", size=SMALL, fill=MUTED)),
        *_panel(GPU, f"{result.gpu}'s memory", result.gpu_bytes),
        text(GPU + 12, PANEL_HEIGHT - 8, there, size=SMALL, fill=MUTED),
        *_bus(result),
        *_console(result),
        *_cost(result),
        *_tensors(HOST, out.host, SKY, "GPU", GPU),
        *_tensors(GPU, out.gpu, GREEN, "CPU", HOST),
    ]
    return Picture(WIDTH, FOOT + 86, result.finding, result.describe(), tuple(body))


def _panel(x: float, name: str, total: int) -> list[str]:
    return [
        rect(x, 0.5, PANEL, PANEL_HEIGHT, stroke=INK, radius=6),
        text(x + 12, 22, name, weight="bold"),
        text(x + PANEL - 12, 22, size(total), weight="bold", anchor="end"),
        text(x + 12, PANEL_HEIGHT - 25, f"{total:,} bytes" if total else "empty", size=SMALL, fill=MUTED),
    ]


def _tensors(x: float, tensors: tuple[Held, ...], fill: str, to: str, other: float) -> list[str]:
    """A chip for each: a click copies it to the other memory, whose panel begins at `other`; the ✕ deletes it."""
    body = []
    for place, held in enumerate(tensors):
        y = 32 + place * 26
        chip = rect(x + 10, y, PANEL - 46, 22, fill=fill, stroke=INK, radius=4)
        chip += hatch(x + 10, y, 22, 22) if held.pinned else ""
        chip += text(x + 18 + 20 * held.pinned, y + 16, held.name)
        chip += text(x + 170, y + 16, "pinned", size=SMALL, anchor="end") if held.pinned else ""
        chip += text(x + PANEL - 44, y + 16, size(held.nbytes), anchor="end")
        if held.name != "out":  # which no command knows
            known = next(name for name in BYTES if name in held.name or PARAMETERS.get(name) == held.name[6:])
            chip = command(chip, f"{held.name}: copy it to the {to}", "script", f"{known} to {to}")
            chip = carried(chip, other, 0, PANEL, PANEL_HEIGHT)
            gone = held.name if "layer" not in held.name else known
            cross = rect(x + PANEL - 32, y, 24, 22, fill=PAPER) + text(x + PANEL - 20, y + 16, "✕", anchor="middle")
            chip += live(command(cross, f"{held.name}: delete it", "script", f"del {gone}"))
        body.append(chip)
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
    arrow = line(tail, y, tip + back, y, stroke=ORANGE, width=10)
    arrow += shape([(tip, y), (tip + back, y - 14), (tip + back, y + 14)], fill=ORANGE)
    body.append(grows(arrow, "left" if to_gpu else "right"))
    body.append(centred(140, f"{size(last.nbytes)} {last.way}", "bold"))
    body.append(centred(158, f"in {duration(last.copy)} (virtual)"))
    return body


def _console(result: Crossings) -> list[str]:
    done = result.outcome.lines
    add = command(_button(MARGIN + 62, "weights + bias"), "Compute weights + bias", "script", "weights + bias")
    body = [
        text(MARGIN, CONSOLE, "console", size=SMALL, fill=MUTED),
        live(add + clickable(_button(MARGIN + 200, "undo"), "Undo", script=result.before) if result.commands else add),
        text(COPIED, CONSOLE, "copied", size=SMALL, fill=MUTED, anchor="end"),
        text(BUS, CONSOLE, "on the bus", size=SMALL, fill=MUTED, anchor="end"),
        text(SHARE, CONSOLE, "of it latency", size=SMALL, fill=MUTED),
        text(RIGHT, CONSOLE, "call returns", size=SMALL, fill=MUTED, anchor="end"),
        line(MARGIN, CONSOLE + 7, RIGHT, CONSOLE + 7, stroke=RULE),
    ]
    error = wrap(result.error.split(_TO_READ_ON)[0], RIGHT - MARGIN - 12, SMALL)
    first = max(0, len(done) + len(error) - SHOWN)
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
    for words in error:
        body.append(line(MARGIN + 2, y - 15, MARGIN + 2, y + 5, stroke=VERMILLION, width=4))
        body.append(text(MARGIN + 12, y, words, size=SMALL))
        y += STEP
    return body


def _button(x: float, words: str) -> str:
    wide = length(words, SMALL) + 14
    box = rect(x, CONSOLE - 14, wide, 19, fill=PAPER, stroke=MUTED, radius=4)
    return box + text(x + wide / 2, CONSOLE, words, size=SMALL, anchor="middle")


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


def _cost(result: Crossings) -> list[str]:
    """All that went over the bus, or could, beside a look at the same bytes where the GPU has them."""
    rates, nbytes, seconds, floor = result.outcome.rates, result.copied, result.copying, result.floor
    if not nbytes:
        nbytes, floor = sum(BYTES.values()), len(BYTES) * rates.copy_us * 1e-6
        seconds = floor + nbytes / (rates.pageable_gbps * 1e9)
    near = rates.memory_seconds(nbytes)
    left, unit = 300.0, 380 / seconds
    top = FOOT + 16
    body = [
        text(MARGIN, top, f"the same {size(nbytes)} (virtual)", size=SMALL, fill=MUTED),
        key(left, top, "latency", fill=ORANGE, hatched=True),
        key(left + 92, top, "bytes", fill=SKY),
    ]
    over = "all copies over the bus" if result.copied else "over the bus, if all were copied"
    rows = ((over, seconds, floor), ("read in the GPU's own memory", near, 0.0))
    for place, (name, took, latency) in enumerate(rows):
        y = top + 30 + place * 30
        body.append(text(MARGIN, y, name))
        body.append(bar(left, y - 15, took * unit, 20, fill=SKY))
        body.append(bar(left, y - 15, latency * unit, 20, fill=ORANGE, hatched=True))
        times = f", {seconds / near:.0f} × faster" if place else ""
        body.append(text(left + took * unit + 10, y, f"{duration(took)}{times}", weight="bold"))
    return body
