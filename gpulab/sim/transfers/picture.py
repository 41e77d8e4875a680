"""Both memories, the bus, the console and what the copies cost: a result of `transfers` as a picture."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Live, Picture, code, hatch, line, rect, text, wrap

from ..base.scene import END, WIDTH, arrow, chip, keys, named_bar, note, picture, small
from ..base.touch import carried, clickable, command, grows
from ..base.words import count, duration
from .machine import order
from .model import BYTES, PARAMETERS, Held, Line
from .result import Crossings, size

# the rest of the text is where to read on, an address longer than a line
_TO_READ_ON = "  See documentation"

PANEL, PANEL_HEIGHT = 290.0, 204.0
HOST, GPU = MARGIN, END - PANEL  # where the panels begin
ROWS, ROW, CHIP = 34.0, 33.0, 28.0  # a tensor and its copy side by side
CONSOLE, SHOWN, STEP = 228.0, 7, 19.0
FOOT = CONSOLE + 13 + SHOWN * STEP
BUS = 680.0


def draw(result: Crossings) -> Picture:
    """Both memories with the bus between, the console with the error, and below it what the copies cost."""
    out = result.outcome
    there = f"{out.free / 2**20:.0f} MiB free; a model fills the rest"
    body = [
        *_panel(HOST, "host memory", result.host_bytes, ""),
        Live(note(HOST + 12, PANEL_HEIGHT - 8, "click a tensor, or carry it over")),
        *_panel(GPU, f"{result.gpu}'s memory", result.gpu_bytes, f" in {result.reserved} reserved"),
        note(GPU + 12, PANEL_HEIGHT - 8, there),
    ]
    last = out.lines[-1]
    wrong = last.code.split() if last.kind == "device" else []  # the names that do not go together
    tensors = [*_tensors(HOST, out.host, SKY, "GPU", GPU, wrong), *_tensors(GPU, out.gpu, GREEN, "CPU", HOST, wrong)]
    return picture(result, FOOT + 84, body, _bus(result), _console(result), _cost(result), tensors)


def _panel(x: float, name: str, total: int, within: str) -> list[str]:
    return [
        rect(x, 0.5, PANEL, PANEL_HEIGHT, stroke=INK, radius=6),
        text(x + 12, 22, name, weight="bold"),
        text(x + PANEL - 12, 22, size(total), weight="bold", anchor="end"),
        note(x + 12, PANEL_HEIGHT - 25, f"{total:,} bytes{within}" if total else "empty"),
    ]


def _tensors(x: float, tensors: tuple[Held, ...], fill: str, to: str, other: float, wrong: list[str]) -> list[str]:
    """A chip for each: a click copies it to the other memory, whose panel begins at `other`; the ✕ deletes it. Those
    with a name in `wrong` have a strong edge."""
    body = []
    for held in tensors:
        y = ROWS + ROW * order(held.name)
        base = y + CHIP / 2 + 5
        drawn = rect(x + 10, y, PANEL - 46, CHIP, fill=fill, stroke=INK, radius=4)
        drawn += rect(x + 10, y, PANEL - 46, CHIP, stroke=VERMILLION, radius=4, edge=3) if held.name in wrong else ""
        drawn += hatch(x + 10, y, 22, CHIP) if held.pinned else ""
        drawn += text(x + 18 + 20 * held.pinned, base, held.name)
        drawn += small(x + 170, base, "pinned", anchor="end") if held.pinned else ""
        drawn += text(x + PANEL - 44, base, size(held.nbytes), anchor="end")
        if held.name == "out":  # which no command knows
            body.append(drawn)
            continue
        known = next(name for name in BYTES if name in held.name or PARAMETERS.get(name) == held.name[6:])
        moved = command(drawn, f"{held.name}: copy it to the {to}", "script", f"{known} to {to}")
        gone = held.name if "layer" not in held.name else known
        cross = rect(x + PANEL - 32, y, 24, CHIP, fill=PAPER) + text(x + PANEL - 20, base, "✕", anchor="middle")
        deleted = command(cross, f"{held.name}: delete it", "script", f"del {gone}")
        body += [carried(moved, other, 0, PANEL, PANEL_HEIGHT), Live(deleted)]
    return body


def _bus(result: Crossings) -> list[str]:
    """The link, and what the last command copied, if it was a copy."""
    out = result.outcome
    left, right, middle, y = MARGIN + PANEL + 8, END - PANEL - 8, WIDTH / 2, PANEL_HEIGHT - 58
    last, rates = out.lines[-1], out.rates
    body = [
        note(middle, y + 18, f"{result.link}: {out.link.one_way_gbps:.0f} GB/s", anchor="middle"),
        note(middle, y + 36, f"copies: {rates.pageable_gbps:.3g} GB/s pageable,", anchor="middle"),
        note(middle, y + 53, f"{rates.pinned_gbps:.3g} pinned (virtual)", anchor="middle"),
    ]
    if not last.copies:
        words = "no copy" if last.error or last.kind == "there" else "idle"
        return [*body, note(middle, y, words, anchor="middle")]
    start, tip, side = (left, right, "left") if last.way == "to GPU" else (right, left, "right")
    words = f"{size(last.nbytes)} {last.way} in {duration(last.copy)}"
    for held in out.gpu if last.way == "to GPU" else out.host:
        if held.name in last.code or ("layer" in last.code and "layer" in held.name):
            at = ROWS + ROW * order(held.name) + CHIP / 2
            body.append(grows(arrow(start, tip, at, stroke=ORANGE, width=10, head=20, wing=14), side))
    return [*body, small(middle, y, words, anchor="middle", weight="bold")]


def _console(result: Crossings) -> list[str]:
    done = result.outcome.lines
    add, after = chip(MARGIN + 62, CONSOLE, "weights + bias", stroke=MUTED)
    undo, _ = chip(after, CONSOLE, "undo", stroke=MUTED)
    body = [
        note(MARGIN, CONSOLE, "console"),
        Live(command(add, "Compute weights + bias", "script", "weights + bias")),
        *([Live(clickable(undo, "Undo", script=result.before))] if result.commands else []),
        note(BUS, CONSOLE, "on the bus", anchor="end"),
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
            body += _costs(it, y)
        y += STEP
    for words in error:
        body.append(line(MARGIN + 2, y - 15, MARGIN + 2, y + 5, stroke=VERMILLION, width=4))
        body.append(small(MARGIN + 12, y, words))
        y += STEP
    return body


def _costs(it: Line, y: float) -> list[str]:
    if it.error:
        return [small(END, y, "✗ error", anchor="end", weight="bold")]
    body = []
    if it.copies:
        body.append(small(BUS, y, duration(it.copy), anchor="end"))
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
    whole = ((floor * unit, VERMILLION, True), ((seconds - floor) * unit, ORANGE, False))
    faster = f"{duration(near)}, {seconds / near:.0f} × faster"
    return [
        note(MARGIN, top, f"the same {size(nbytes)} (virtual)"),
        *keys(left, top, ("latency", VERMILLION, True), ("bytes", ORANGE)),
        named_bar(left, top + 30, over, whole, duration(seconds)),
        named_bar(left, top + 60, "read in the GPU's own memory", [(near * unit, GREEN, False)], faster),
    ]
