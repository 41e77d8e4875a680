"""Both memories, the bus, the console and what the copies cost: a result of `transfers` as a picture."""

from __future__ import annotations

import itertools
import math

from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import HEAD, MARGIN, SMALL, Live, Picture, bar, code, dot, length, line, rect, text, wrap

from ..base.lanes import Axis
from ..base.scene import END, WIDTH, arrow, chip, fitted, keys, note, picture, small
from ..base.touch import carried, clickable, command, grows, named
from ..base.words import count, duration
from .machine import order
from .model import BYTES, PARAMETERS, Held, Line
from .result import Crossings, size

# the rest of the text is where to read on, an address longer than a line
_TO_READ_ON = "  See documentation"

PANEL, PANEL_HEIGHT = 290.0, 154.0
HOST, GPU = MARGIN, END - PANEL  # where the panels begin
ROWS, ROW, CHIP = 33.0, 29.5, 26.0  # a tensor and its copy side by side
CONSOLE, SHOWN, STEP = 178.0, 7, 18.0
LANES, LANE, LEFT, PINNED = CONSOLE + 38 + SHOWN * STEP, 20.0, 130.0, 112.0
LINK, READ = LANES + 25, LANES + 67  # the lanes of the bus and of the GPU
BUS, COSTS = 680.0, END - 12


def draw(result: Crossings) -> Picture:
    """Both memories with the bus between, the console with the error, and when Python waited and the bus copied."""
    out = result.outcome
    body = _panel(HOST, "host memory", result.host_bytes) + _panel(GPU, f"{result.gpu}’s memory", result.gpu_bytes)
    tensors = [*_tensors(HOST, out.host, SKY, "GPU", GPU), *_tensors(GPU, out.gpu, GREEN, "CPU", HOST)]
    return picture(result, READ + 43, body, _bus(result), _console(result), _lanes(result), tensors)


def _panel(x: float, name: str, total: int) -> list[str]:
    return [
        rect(x, 0.5, PANEL, PANEL_HEIGHT, stroke=EDGE, radius=6),
        text(x + 12, 22, name, weight="bold"),
        text(x + PANEL - 12, 22, size(total), weight="bold", anchor="end"),
    ]


def _tensors(x: float, tensors: tuple[Held, ...], fill: str, to: str, other: float) -> list[str]:
    """A chip for each, filled as far as its bytes are those of the largest: a click copies it to the other memory,
    whose panel begins at `other`."""
    body = []
    for held in tensors:
        y = ROWS + ROW * order(held.name)
        base, wide = y + CHIP / 2 + 5, PANEL - 54
        drawn = rect(x + 10, y, wide, CHIP, fill=PAPER, stroke=EDGE, radius=4)
        drawn += rect(x + 10, y, max(3.0, wide * held.nbytes / max(BYTES.values())), CHIP, fill=fill, radius=4)
        ink = ON if held.nbytes == max(BYTES.values()) else INK
        drawn += text(x + 28, base, held.name, fill=ink)
        drawn += small(x + 164, base, "pinned", anchor="end", fill=ink) if held.pinned else ""
        drawn += text(x + PANEL - 52, base, size(held.nbytes), anchor="end", fill=ink)
        if held.name == "out":  # which no command knows
            body.append(drawn)
            continue
        known = next(name for name in BYTES if name in held.name or PARAMETERS.get(name) == held.name[6:])
        moved = command(drawn, f"{held.name}: copy it to the {to}", "script", f"{known} to {to}")
        gone = held.name if "layer" not in held.name else known
        cross = rect(x + PANEL - 36, y + 2, 26, CHIP - 4, fill=PAPER, stroke=RULE, radius=4)
        cross += text(x + PANEL - 23, base, "×", anchor="middle")
        deleted = command(cross, f"{held.name}: delete it", "script", f"del {gone}")
        body += [carried(moved, other, 0, PANEL, PANEL_HEIGHT), Live(deleted)]
    return body


def _bus(result: Crossings) -> list[str]:
    """The link, and what the last command copied, or could not add."""
    out, middle = result.outcome, WIDTH / 2
    left, right, y = HOST + PANEL + 8, GPU - 8, PANEL_HEIGHT - 24
    last, rates = out.lines[-1], out.rates
    reached = [f"pageable {rates.pageable_gbps:.3g} GB/s", f"pinned {rates.pinned_gbps:.3g} GB/s"]
    pinned = last.pinned if last.copies else any(held.pinned for held in out.host)
    rate = ", ".join(reversed(reached) if pinned else reached)  # the one in force comes first
    body = [note(middle, 20, result.link, anchor="middle"), note(middle, y + 19, rate, anchor="middle")]
    words = {"device": "✗ on two devices", "there": "nothing copied", "copied": ""}.get(last.kind, "idle")
    if last.kind == "device":
        sign = ROWS + 1.5 * ROW + CHIP / 2
        names = last.code.split()[2::2]
        for held in (*out.host, *out.gpu):
            if held.name in names:
                at = ROWS + ROW * order(held.name) + CHIP / 2
                edge = right if held.name in result.on_gpu else left
                body.append(line(edge, at, middle, sign, stroke=VERMILLION, width=3))
        body.append(dot(middle, sign, 13, fill=PAPER, stroke=VERMILLION))
        body.append(text(middle, sign + 6, "+", size=HEAD, anchor="middle", weight="bold"))
    if last.copies:
        start, tip, side = (left, right, "left") if last.way == "to GPU" else (right, left, "right")
        for held in out.gpu if last.way == "to GPU" else out.host:
            if held.name in last.code or ("layer" in last.code and "layer" in held.name):
                at = ROWS + ROW * order(held.name) + CHIP / 2
                body.append(grows(arrow(start, tip, at, stroke=ORANGE, width=10, head=20, wing=14), side))
    return body + [small(middle, y, words, anchor="middle", weight="bold")] * bool(words)


def _console(result: Crossings) -> list[str]:
    done = result.outcome.lines
    add, after = chip(MARGIN + 62, CONSOLE, "weights + bias", stroke=MUTED)
    undo, _ = chip(after, CONSOLE, "undo", stroke=MUTED)
    body = [
        note(MARGIN, CONSOLE, "console"),
        Live(command(add, "Compute weights + bias", "script", "weights + bias")),
        *([Live(clickable(undo, "Undo", script=result.before))] if result.commands else []),
        Live(note(280, CONSOLE, "or click a tensor, or carry it over")),
        note(BUS, CONSOLE, "on the bus", anchor="end"),
        note(COSTS, CONSOLE, "call takes", anchor="end"),
    ]
    error = wrap(result.error.split(_TO_READ_ON)[0], COSTS - MARGIN - 18, SMALL)
    first = max(0, len(done) + len(error) - SHOWN)
    y = CONSOLE + 23
    for step in range(first, len(done)):
        it = done[step]
        if step == first > 0:
            body.append(note(MARGIN, y, f"… {count(first + 1, 'line')} above"))
        else:
            ink, weight = (INK, "bold") if step == len(done) - 1 else (MUTED, "")
            body.append(code(MARGIN, y, it.code, weight=weight, fill=ink))
            body += _costs(it, y)
        y += STEP
    for words in error:
        body += [line(MARGIN + 2, y - 14, MARGIN + 2, y + 4, stroke=VERMILLION, width=4), small(MARGIN + 12, y, words)]
        y += STEP
    return body


def _costs(it: Line, y: float) -> list[str]:
    if it.error:
        return [small(COSTS, y, "✗ error", anchor="end", weight="bold")]
    body = []
    if it.copies:
        body.append(small(BUS, y, duration(it.copy), anchor="end"))
    elif it.kind in ("there", "freed"):
        body.append(note(BUS, y, "nothing copied" if it.kind == "there" else "freed", anchor="end"))
    if it.call is not None:
        body.append(small(COSTS, y, duration(it.call), anchor="end"))
    return body


def _lanes(result: Crossings) -> list[str]:
    """When Python waited, when the bus copied which tensor, and how long the GPU reads; pinning is out of scale."""
    out, left = result.outcome, LEFT
    calls = [it for it in out.lines if it.call is not None and it.kind != "pinned"]
    body = [small(MARGIN, LANES + 15, "Python"), small(MARGIN, LINK + 15, "PCIe bus")]
    if result.pinning:
        left, cost = LEFT + PINNED, duration(result.pinning)
        body.append(bar(LEFT, LANES, PINNED - 16, LANE, fill=RULE) + text(LEFT + 9, LANES + 15, f"pins: {cost}"))
        body += [line(left - x, LANES + LANE + 2, left - x + 6, LANES - 2, width=2) for x in (14, 9)]
        pays = f"pays after {count(math.ceil(result.pinning / result.saved), 'time')}"
        words = f"pinning: {cost} once, {duration(result.saved)} saved each time; {pays}"
        body.append(small(END, READ + 38, words, anchor="end"))
    if not calls:
        return [*body, note(left, LANES + 15, "no copy yet")]
    begin, bus = calls[0].began, iter(out.bus)
    done = max(out.finished, out.went_on) - begin
    axis = Axis(left, END, done + result.reading)
    body += [note(MARGIN, LANES - 11, "virtual time"), *axis.draw(LANES - 6, READ + LANE)]
    x = min(axis.x(done), END - 3)
    words = f"{size(result.copied)} in {duration(result.reading)}"
    body += [small(MARGIN, READ + 15, "GPU reads it"), bar(x, READ, END - x, LANE, fill=GREEN)]
    body.append(small(x - 8, READ + 15, words, anchor="end", weight="bold", halo=True))
    free = left  # under the bus, where no name stands yet
    for it in calls:
        went_on, name = it.began + (it.call or 0.0), it.code.split(" = ")[-1].split(".to(")[0]
        body.append(named(bar(axis.x(it.began - begin), LANES, axis.seen(it.call or 0.0), LANE, fill=RULE), it.code))
        for start, end in itertools.islice(bus, it.copies):
            x, wide = axis.x(start - begin), axis.seen(end - start)
            if end <= went_on + 1e-9:
                body.append(bar(x, LANES, wide, LANE, fill=VERMILLION, hatched=True))
                body.append(fitted(x, wide, LANES + 15, "waits for the copy", "waits", halo=True))
            body.append(bar(x, LINK, wide, LANE, fill=ORANGE))
            body.append(fitted(x, wide, LINK + 15, f"{name}: {duration(end - start)}", name, fill=ON))
            room = length(name, SMALL)
            at = min(max(free, x + (wide - room) / 2), END - room)
            if not body[-1] and free <= at <= x + wide + 24:
                body.append(line(x + wide / 2, LINK + LANE, at + room / 2, LINK + 25, stroke=MUTED))
                body.append(small(at, LINK + 36, name))
                free = at + room + 6
    x = axis.x(out.went_on - begin)
    body.append(bar(x, LANES, END - x, LANE, fill=PAPER, stroke=EDGE))
    body.append(fitted(x, END - x, LANES + 15, "free to go on", "free"))
    return [*body, *keys(MARGIN, READ + 38, ("sets up the call", RULE))]
