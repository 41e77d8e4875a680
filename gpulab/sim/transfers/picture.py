"""Both memories, the bus, the console and what the copies cost: a result of `transfers` as a picture."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, bar, code, hatch, line, rect, text, wrap

from ..base.scene import END, WIDTH, arrow, chip, keys, named_bar, note, picture, small
from ..base.touch import carried, clickable, command, grows
from ..base.words import count, duration
from .model import BYTES, PARAMETERS, Held, Line
from .result import Crossings, size

# the rest of the text is where to read on, an address longer than a line
_TO_READ_ON = "  See documentation"

PANEL, PANEL_HEIGHT = 290.0, 170.0
HOST, GPU = MARGIN, END - PANEL  # where the panels begin
CONSOLE, SHOWN, STEP = 196.0, 7, 20.0
FOOT = CONSOLE + 14 + SHOWN * STEP
COPIED, BUS, SHARE, SHARE_WIDTH = 576.0, 656.0, 670.0, 72.0


def draw(result: Crossings) -> Picture:
    """Both memories with the bus between, the console with the error, and below it what the copies cost."""
    out = result.outcome
    there = f"reserved {result.reserved}, free {out.free / 2**20:.0f} MiB"
    body = [
        *_panel(HOST, "host memory", result.host_bytes),
        Live(note(HOST + 12, PANEL_HEIGHT - 8, "click a tensor, or carry it over")),
        *_panel(GPU, f"{result.gpu}'s memory", result.gpu_bytes),
        note(GPU + 12, PANEL_HEIGHT - 8, there),
    ]
    last = out.lines[-1]
    wrong = last.code.split() if last.kind == "device" else []  # the names that do not go together
    tensors = [*_tensors(HOST, out.host, SKY, "GPU", GPU, wrong), *_tensors(GPU, out.gpu, GREEN, "CPU", HOST, wrong)]
    return picture(result, FOOT + 86, body, _bus(result), _console(result), _cost(result), tensors)


def _panel(x: float, name: str, total: int) -> list[str]:
    return [
        rect(x, 0.5, PANEL, PANEL_HEIGHT, stroke=INK, radius=6),
        text(x + 12, 22, name, weight="bold"),
        text(x + PANEL - 12, 22, size(total), weight="bold", anchor="end"),
        note(x + 12, PANEL_HEIGHT - 25, f"{total:,} bytes" if total else "empty"),
    ]


def _tensors(x: float, tensors: tuple[Held, ...], fill: str, to: str, other: float, wrong: list[str]) -> list[str]:
    """A chip for each: a click copies it to the other memory, whose panel begins at `other`; the ✕ deletes it. Those
    with a name in `wrong` have a strong edge."""
    body = []
    for place, held in enumerate(tensors):
        y = 32 + place * 26
        drawn = rect(x + 10, y, PANEL - 46, 22, fill=fill, stroke=INK, radius=4)
        drawn += rect(x + 10, y, PANEL - 46, 22, stroke=VERMILLION, radius=4, edge=3) if held.name in wrong else ""
        drawn += hatch(x + 10, y, 22, 22) if held.pinned else ""
        drawn += text(x + 18 + 20 * held.pinned, y + 16, held.name)
        drawn += small(x + 170, y + 16, "pinned", anchor="end") if held.pinned else ""
        drawn += text(x + PANEL - 44, y + 16, size(held.nbytes), anchor="end")
        if held.name == "out":  # which no command knows
            body.append(drawn)
            continue
        known = next(name for name in BYTES if name in held.name or PARAMETERS.get(name) == held.name[6:])
        moved = command(drawn, f"{held.name}: copy it to the {to}", "script", f"{known} to {to}")
        gone = held.name if "layer" not in held.name else known
        cross = rect(x + PANEL - 32, y, 24, 22, fill=PAPER) + text(x + PANEL - 20, y + 16, "✕", anchor="middle")
        deleted = command(cross, f"{held.name}: delete it", "script", f"del {gone}")
        body += [carried(moved, other, 0, PANEL, PANEL_HEIGHT), Live(deleted)]
    return body


def _bus(result: Crossings) -> list[str]:
    """The link, and the copy of the last command, if it was one."""
    out = result.outcome
    left, right, middle, y = MARGIN + PANEL + 8, END - PANEL - 8, WIDTH / 2, 104.0
    last, rates = out.lines[-1], out.rates
    body = [
        small(middle, 18, result.link, anchor="middle", weight="bold"),
        note(middle, 36, f"{out.link.one_way_gbps:.0f} GB/s one way (recorded)", anchor="middle"),
        note(middle, 54, f"copies: {rates.pinned_gbps:.3g} GB/s pinned,", anchor="middle"),
        note(middle, 71, f"{rates.pageable_gbps:.3g} pageable (virtual)", anchor="middle"),
    ]
    if not last.copies:
        words = "no copy" if last.error or last.kind == "there" else "idle"
        return [*body, line(left, y, right, y, stroke=RULE, width=10), note(middle, 140, words, anchor="middle")]
    start, tip, side = (left, right, "left") if last.way == "to GPU" else (right, left, "right")
    return [
        *body,
        grows(arrow(start, tip, y, stroke=ORANGE, width=10, head=20, wing=14), side),
        small(middle, 140, f"{size(last.nbytes)} {last.way}", anchor="middle", weight="bold"),
        small(middle, 158, f"in {duration(last.copy)} (virtual)", anchor="middle"),
    ]


def _console(result: Crossings) -> list[str]:
    done = result.outcome.lines
    add, after = chip(MARGIN + 62, CONSOLE, "weights + bias", stroke=MUTED)
    undo, _ = chip(after, CONSOLE, "undo", stroke=MUTED)
    body = [
        note(MARGIN, CONSOLE, "console"),
        Live(command(add, "Compute weights + bias", "script", "weights + bias")),
        *([Live(clickable(undo, "Undo", script=result.before))] if result.commands else []),
        note(COPIED, CONSOLE, "copied", anchor="end"),
        note(BUS, CONSOLE, "on the bus", anchor="end"),
        note(SHARE, CONSOLE, "latency"),
        note(END, CONSOLE, "call returns", anchor="end"),
        line(MARGIN, CONSOLE + 7, END, CONSOLE + 7, stroke=RULE),
    ]
    error = wrap(result.error.split(_TO_READ_ON)[0], END - MARGIN - 12, SMALL)
    first = max(0, len(done) + len(error) - SHOWN)
    y = CONSOLE + 24
    for step in range(first, len(done)):
        it = done[step]
        if step == first > 0:
            body.append(note(MARGIN, y, f"… {count(first + 1, 'line')} above"))
        else:
            newest = step == len(done) - 1
            body.append(code(MARGIN, y, it.code, weight="bold" if newest else ""))
            body += _costs(result, it, y)
        y += STEP
    for words in error:
        body.append(line(MARGIN + 2, y - 15, MARGIN + 2, y + 5, stroke=VERMILLION, width=4))
        body.append(small(MARGIN + 12, y, words))
        y += STEP
    return body


def _costs(result: Crossings, it: Line, y: float) -> list[str]:
    if it.error:
        return [small(END, y, "✗ error", anchor="end", weight="bold")]
    body = []
    if it.copies:
        latency = it.copies * result.outcome.rates.copy_us * 1e-6 / it.copy
        body.append(small(COPIED, y, size(it.nbytes), anchor="end"))
        body.append(small(BUS, y, duration(it.copy), anchor="end"))
        body.append(rect(SHARE, y - 11, SHARE_WIDTH, 13, fill=SKY, stroke=INK))
        body.append(bar(SHARE, y - 11, SHARE_WIDTH * latency, 13, fill=ORANGE, hatched=True))
    elif it.kind in ("there", "freed"):
        body.append(note(BUS, y, "nothing copied" if it.kind == "there" else "freed", anchor="end"))
    if it.call is not None:
        body.append(small(END, y, duration(it.call), anchor="end"))
    return body


def _cost(result: Crossings) -> list[str]:
    """All that went over the bus, or could, beside a look at the same bytes where the GPU has them."""
    rates, nbytes, seconds, floor = result.outcome.rates, result.copied, result.copying, result.floor
    if not nbytes:
        nbytes, floor = sum(BYTES.values()), len(BYTES) * rates.copy_us * 1e-6
        seconds = floor + nbytes / (rates.pageable_gbps * 1e9)
    near = rates.memory_seconds(nbytes)
    left, unit, top = 300.0, 380 / seconds, FOOT + 16
    over = "all copies over the bus" if result.copied else "over the bus, if all were copied"
    whole = ((floor * unit, ORANGE, True), ((seconds - floor) * unit, SKY, False))
    faster = f"{duration(near)}, {seconds / near:.0f} × faster"
    return [
        note(MARGIN, top, f"the same {size(nbytes)} (virtual)"),
        *keys(left, top, ("latency", ORANGE, True), ("bytes", SKY)),
        named_bar(left, top + 30, over, whole, duration(seconds)),
        named_bar(left, top + 60, "read in the GPU's own memory", [(near * unit, SKY, False)], faster),
    ]
