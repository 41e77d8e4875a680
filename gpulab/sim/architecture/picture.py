"""The GPU from afar and one SM from near: lanes, warps, waves of blocks. Draws a result of `model`."""

from __future__ import annotations

from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ORANGE, PAPER, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, Picture, bar, boxes, line, marks, rect, text

from ..base.lanes import Axis, cursor, round_step
from ..base.scene import END, Box, Plot, Scale, fitted, keys, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, many
from .model import FRAMES, WARP, Kernel, Warp

MAP_WIDE, MAP_TOP, MAP_BOTTOM = 406.0, 48.0, 250.0
CLOSE_LEFT, CLOSE_WIDE = 464.0, 362.0  # of what is in the frame
CHART_LEFT, CHART_TOP, CHART_BOTTOM = 68.0, 314.0, 406.0


def draw(kernel: Kernel) -> Picture:
    """All SMs, one of them close up, and the waves of the whole kernel."""
    return picture(kernel, 434.0, _map(kernel), _close_up(kernel), _waves(kernel))


def _map(kernel: Kernel) -> list[str]:
    """Each SM a tile; with its lanes where there is room for them, else as full as its lanes are at work."""
    across = max(range(1, kernel.sms + 1), key=lambda columns: min(_wide(columns), 2.2 * _high(columns, kernel.sms)))
    wide, high = _wide(across), _high(across, kernel.sms)
    pitch = int((wide - 14) / WARP * 10) / 10
    with_lanes = pitch >= 3 and high >= 8 * kernel.rows_of_lanes
    lanes = f"{sum(map(sum, kernel.working)):,} of {kernel.all_lanes:,} at work"
    body = [text(MARGIN, 20, f"{count(kernel.sms, 'SM')} × {kernel.lanes} lanes: {lanes}", weight="bold")]
    if with_lanes:
        body += [
            marks(MARGIN, 27, 1, pitch=10, height=12, fill=ORANGE),
            note(MARGIN + 14, 38, "lane (“CUDA core”) at work"),
        ]
        body += [marks(MARGIN + 230, 35, 1, pitch=10, height=4, fill=MUTED), note(MARGIN + 244, 38, "idle lane")]
    else:
        body += keys(MARGIN, 38, ("share of lanes at work", ORANGE), ("no block, no work", RULE))
    full: list[Box] = []
    empty: list[Box] = []
    levels: list[Box] = []
    grips = []
    for sm, working in enumerate(kernel.working):
        x, y, here = MARGIN + sm % across * wide, MAP_TOP + sm // across * high, kernel.blocks_on(sm)
        (full if here else empty).append((x + 1.5, y + 1.5, wide - 3, high - 3))
        if not with_lanes:
            part = sum(working) / kernel.lanes * (high - 3)
            levels.append((x + 1.5, y + high - 1.5 - part, wide - 3, part))
        elif here:
            top, room = (y + 20, high - 24) if high >= 40 else (y + 3, high - 6)
            row = min(room / kernel.rows_of_lanes, 84)
            body += _lane_rows(kernel, working, x + 7, top, pitch, row, gap=pitch // 5 + 1)
        if with_lanes and high >= 40:
            body.append(small(x + 7, y + 17, f"SM {sm + 1}{'' if here else ': no block, no work'}"))
        grips.append(clickable(grasp(x, y, wide, high), f"SM {sm + 1}", look=sm + 1))
    look = kernel.look - 1
    chosen = rect(MARGIN + look % across * wide, MAP_TOP + look // across * high, wide, high, stroke=INK, edge=3)
    tiles = [boxes(empty, fill=RULE), boxes(levels, fill=ORANGE), boxes(full, stroke=MUTED)]
    return [*tiles, *body, chosen, *grips]


def _wide(columns: int) -> float:
    return MAP_WIDE / columns


def _high(columns: int, tiles: int) -> float:
    return (MAP_BOTTOM - MAP_TOP) / -(-tiles // columns)


def _lane_rows(
    kernel: Kernel, working: list[int], x: float, top: float, pitch: float, high: float, gap: float
) -> list[str]:
    """Rows of 32: an idle lane is a low mark, one at work a high one."""
    body = []
    for row in range(kernel.rows_of_lanes):
        y, lanes = top + row * high, working[row] if row < len(working) else 0
        tall, low = high - 4, max(2, (high - 4) / 3)
        body.append(marks(x, y + 2, lanes, pitch=pitch, height=tall, fill=ORANGE, gap=gap))
        rest = x + lanes * pitch, y + 2 + tall - low
        body.append(marks(*rest, WARP - lanes, pitch=pitch, height=low, fill=MUTED, gap=gap))
    return body


def _close_up(kernel: Kernel) -> list[str]:
    """The SM that is looked at: its rows of lanes, and its resident warps, of which a few issue."""
    warps, rows = kernel.warps_on(kernel.look - 1), kernel.rows_of_lanes
    across = min(kernel.room, 16)
    slot, top = (CLOSE_WIDE + 4) / across, MAP_TOP + 12 + 16 * rows
    high = min((MAP_BOTTOM - 48 - top) / -(-kernel.room // across) - 4, 116)
    corners = [(CLOSE_LEFT + place % across * slot, top + place // across * (high + 4)) for place in range(kernel.room)]
    slots = [(x, y, slot - 4, high) for x, y in corners]
    free = slots[len(warps) :]
    words = f"SM {kernel.look}: {many(len(warps), 'warp')}; {kernel.needed:,} would hide the wait"
    body = [
        text(CLOSE_LEFT - 16, 20, words, weight="bold"),
        note(CLOSE_LEFT - 16, 38, f"a warp is {WARP} threads: 1 clock on lanes, {kernel.wait} waiting"),
        rect(CLOSE_LEFT - 16, MAP_TOP, END - CLOSE_LEFT + 16, MAP_BOTTOM - MAP_TOP, stroke=INK, edge=3),
        *_lane_rows(kernel, kernel.working[kernel.look - 1], CLOSE_LEFT, MAP_TOP + 6, 8.5, 16, gap=2),
        note(CLOSE_LEFT + 280, MAP_TOP + 19, f"{rows} × {WARP} lanes" if rows > 1 else f"{WARP} lanes"),
        boxes(free, stroke=RULE),
    ]
    if free:
        x, y, *_ = free[0]
        room = f"room for {count(len(free), 'more warp')}"
        body.append(fitted(x, CLOSE_LEFT + CLOSE_WIDE - x, y + high / 2 + 5, room, "free", fill=MUTED, halo=True))
    fills = {"issuing": ORANGE, "waiting": SKY, "ready": GREEN}
    for state, fill in fills.items():
        mine = [(place, warp) for place, warp in zip(slots, warps, strict=False) if warp.state == state]
        body += _warps(mine, fill)
    number = {state: sum(warp.state == state for warp in warps) for state in fills}
    ready = [(f"{number['ready']} ready", GREEN)] if number["ready"] else []
    issuing = f"{number['issuing']} issuing: on the lanes now"
    waiting = f"{number['waiting']} waiting: the level shows how far, of {count(kernel.wait, 'clock')}"
    body += keys(CLOSE_LEFT, MAP_BOTTOM - 28, (issuing, ORANGE), *ready)
    return [*body, *keys(CLOSE_LEFT, MAP_BOTTOM - 10, (waiting, SKY))]


def _warps(warps: list[tuple[Box, Warp]], fill: str) -> list[str]:
    """Warps in one state, each as full as its wait is over; one that is ready has a second sign beside its colour."""
    level = [(x, y + high * (1 - (w.waited or 1)), wide, high * (w.waited or 1)) for (x, y, wide, high), w in warps]
    signs = [(x + wide / 2 - 3, y + high / 2 - 2, 6, 4) for (x, y, wide, high), w in warps if w.state == "ready"]
    return [boxes(level, fill=fill), boxes((place for place, _ in warps), stroke=EDGE), boxes(signs, fill=PAPER)]


def _waves(kernel: Kernel) -> list[str]:
    """Time to the right: how many of the places have a block, and how much of the lanes' time is used."""
    clocks, lanes = kernel.clocks, kernel.all_lanes
    plot = Plot(Scale(CHART_LEFT, END, 0, clocks), Scale(CHART_BOTTOM, CHART_TOP, 0, lanes))
    entries = (("at work", ORANGE), ("a block, but its warps wait", SKY), ("no block", RULE))
    body = [
        text(MARGIN, CHART_TOP - 40, "lanes over the whole kernel (virtual)", weight="bold"),
        *keys(END, CHART_TOP - 40, *entries, ends=True),
        rect(*plot.box(), fill=RULE),
        *plot.levels({0: "0", lanes: f"{lanes:,}"}),
    ]
    apart = max(1, round(round_step(clocks / 10)))
    for mark in range(0, clocks, apart):
        words = f"{mark:,} clocks" if 0 < mark <= clocks - apart < mark + apart else f"{mark:,}"
        body.append(note(plot.x.at(mark), CHART_TOP - 12, words, anchor="middle"))
    for index, wave in enumerate(kernel.waves):
        x, wide = plot.x.at(wave.start), plot.x.at(wave.clocks) - CHART_LEFT
        for share, fill in ((wave.resident, SKY), (wave.busy, ORANGE)):
            y = plot.y.at(share * lanes)
            body.append(bar(x, y, wide, CHART_BOTTOM - y, fill=fill, stroke=""))
        body.append(line(x, CHART_TOP, x, CHART_BOTTOM))
        name, number = f"wave {index + 1}", str(index + 1)
        blocks = f"{name}: {many(wave.blocks, 'block')}"
        whole = f"{blocks} in {kernel.places:,} places"
        body.append(fitted(x, wide, CHART_BOTTOM + 17, whole, blocks, name, number, fill=MUTED))
    now = cursor(Axis(CHART_LEFT, END, clocks), kernel.clock + 0.5, CHART_TOP - 6, CHART_BOTTOM + 2)
    now += grasp(plot.x.at(kernel.clock + 0.5) - 12, CHART_TOP - 8, 24, CHART_BOTTOM - CHART_TOP + 10)
    grip = Grip("frame", plot.x.at(0.5), plot.x.at(clocks - 0.5), 0, min(clocks, FRAMES) - 1)
    return [*body, draggable(now, "Time", grip)]
