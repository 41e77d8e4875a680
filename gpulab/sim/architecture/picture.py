"""The GPU from afar and one SM from near: lanes, warps, waves of blocks. Draws a result of `model`."""

from __future__ import annotations

from virtualgpu.pictures.style import EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, boxes, length, line, marks, rect, text

from ..base.lanes import Axis, cursor, round_step
from ..base.scene import END, Box, Plot, Scale, between, fitted, keys, note, picture, pointer, small
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, many, percent
from .model import FRAMES, WARP, Kernel, Warp

MAP_WIDE, MAP_TOP, MAP_BOTTOM = 406.0, 48.0, 250.0
CLOSE_LEFT, CLOSE_WIDE = 464.0, 362.0  # of what is in the frame
CHART_LEFT, CHART_TOP, CHART_BOTTOM = 84.0, 334.0, 424.0


def draw(kernel: Kernel) -> Picture:
    """All SMs, one of them close up, and the waves of the whole kernel."""
    return picture(kernel, 452.0, _map(kernel), _close_up(kernel), _waves(kernel))


def _map(kernel: Kernel) -> list[str]:
    """Each SM a tile; with its lanes where there is room for them, else as full as its lanes are at work."""
    across = max(range(1, kernel.sms + 1), key=lambda columns: min(_wide(columns), 2.2 * _high(columns, kernel.sms)))
    wide, high = _wide(across), _high(across, kernel.sms)
    pitch = int((wide - 14) / WARP * 10) / 10
    with_lanes = pitch >= 3 and high >= 8 * kernel.rows_of_lanes
    lanes = f"{sum(map(sum, kernel.working)):,} of {kernel.all_lanes:,} at work{' now' if with_lanes else ''}"
    body = [text(MARGIN, 20, f"{count(kernel.sms, 'SM')} × {kernel.lanes} lanes: {lanes}", weight="bold")]
    lane = "a mark is a lane (“CUDA core”), filled while it works"
    body.append(note(MARGIN, 38, lane if with_lanes else "the level of an SM: the share of its lanes at work"))
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
            why = f": {many(here * kernel.warps_per_block, 'warp')} wait" if here else ": no block, no work"
            short = sum(working) or length(f"SM {sm + 1}{why}", SMALL) > wide - 12
            body.append(small(x + 7, y + 17, f"SM {sm + 1}{'' if short else why}"))
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
    """Rows of 32 marks: a lane at work is filled."""
    body = []
    for row in range(kernel.rows_of_lanes):
        y, lanes = top + row * high + 2, working[row] if row < len(working) else 0
        body.append(marks(x, y, lanes, pitch=pitch, height=high - 4, fill=ORANGE, gap=gap))
        rest = ((x + lane * pitch + 0.5, y + 0.5, pitch - gap - 1, high - 5) for lane in range(lanes, WARP))
        body.append(boxes(rest, stroke=RULE))
    return body


def _close_up(kernel: Kernel) -> list[str]:
    """The SM that is looked at: its rows of lanes, and its resident warps, of which a few issue."""
    warps, rows = kernel.warps_on(kernel.look - 1), kernel.rows_of_lanes
    across = min(kernel.room, 16)
    slot, top = (CLOSE_WIDE + 4) / across, MAP_TOP + 20 + 16 * rows
    high = min((MAP_BOTTOM - 48 - top) / -(-kernel.room // across) - 4, 116)
    corners = [(CLOSE_LEFT + place % across * slot, top + place // across * (high + 4)) for place in range(kernel.room)]
    slots = [(x, y, slot - 4, high) for x, y in corners]
    enough = "just enough to hide" if len(warps) == kernel.needed else f"{kernel.needed:,} would hide"
    words = f"SM {kernel.look}: {many(len(warps), 'warp')}, {enough} the wait"
    body = [
        text(CLOSE_LEFT - 16, 20, words, weight="bold"),
        note(CLOSE_LEFT - 16, 38, f"a warp is {WARP} threads: 1 clock on the lanes, then a wait"),
        rect(CLOSE_LEFT - 16, MAP_TOP, END - CLOSE_LEFT + 16, MAP_BOTTOM - MAP_TOP, stroke=INK, edge=3),
        *_lane_rows(kernel, kernel.working[kernel.look - 1], CLOSE_LEFT, MAP_TOP + 6, 8.5, 16, gap=2),
        note(CLOSE_LEFT + 280, MAP_TOP + 19, f"{rows} × {WARP} lanes" if rows > 1 else f"{WARP} lanes"),
        *(rect(*place, stroke=EDGE, dash="3 3") for place in slots[len(warps) :]),
    ]
    fills = {"issuing": ORANGE, "waiting": SKY, "ready": GREEN}
    for state, fill in fills.items():
        mine = [(place, warp) for place, warp in zip(slots, warps, strict=False) if warp.state == state]
        body += _warps(mine, fill, 1 + kernel.wait)
    number = {state: sum(warp.state == state for warp in warps) for state in fills}
    for (x, y, wide, _), warp in zip(slots, warps, strict=False):
        if warp.state == "issuing" and y == top:  # joined to the lanes
            body.append(pointer(x + wide / 2, top - 11, high=-9))
    told = ("issuing", "on the lanes"), ("ready", "ready")
    entries = [(f"{number[state]} {words}", fills[state]) for state, words in told if number[state]]
    low, waiting = MAP_BOTTOM - 28, f"{number['waiting']} waiting, clocks left: full means ready"
    if len(warps) < kernel.room and len(entries) < 2:
        body.append(note(CLOSE_LEFT + 356, low, f"dashed: room for {kernel.room - len(warps)} more", anchor="end"))
    return [*body, *keys(CLOSE_LEFT, low, *entries), *keys(CLOSE_LEFT, low + 18, (waiting, SKY))]


def _warps(warps: list[tuple[Box, Warp]], fill: str, turn: int) -> list[str]:
    """Warps in one state, each as full as its wait is over, with the clocks that are left of it; one that is ready has
    a second sign beside its colour."""
    level = [(x, y + high * (1 - (w.waited or 1)), wide, high * (w.waited or 1)) for (x, y, wide, high), w in warps]
    signs = [(x + wide / 2 - 3, y + high / 2 - 2, 6, 4) for (x, y, wide, high), w in warps if w.state == "ready"]
    body = [boxes(level, fill=fill), boxes((place for place, _ in warps), stroke=EDGE), boxes(signs, fill=PAPER)]
    for (x, y, wide, high), warp in warps:
        if warp.state == "waiting" and high > 20:
            over = warp.waited * high < 20  # the number is higher than the level
            left = str(round(turn * (1 - warp.waited)))
            body.append(fitted(x, wide, y + high - 6, left, fill=INK if over else ON, halo=over))
    return body


def _waves(kernel: Kernel) -> list[str]:
    """Time to the right: how many lanes are in an SM with a block, and how many of them work on average."""
    clocks, lanes = kernel.clocks, kernel.all_lanes
    plot = Plot(Scale(CHART_LEFT, END, 0, clocks), Scale(CHART_BOTTOM, CHART_TOP, 0, lanes))
    blocks = f"{many(kernel.blocks, 'block')} of {count(kernel.warps_per_block, 'warp')}"
    places = f"{kernel.places:,} places"
    places += f" ({count(kernel.sms, 'SM')} × {count(kernel.blocks_per_sm, 'block')})" if kernel.places < 1000 else ""
    way = (f"{kernel.elements:,} elements", blocks, places, count(len(kernel.waves), "wave"))
    now = plot.x.at(kernel.clock + 0.5)
    body = [
        text(MARGIN, CHART_TOP - 58, " → ".join(way), weight="bold"),
        note(MARGIN, CHART_TOP - 37, "lanes, averaged over each wave (virtual)"),
        *keys(END, CHART_TOP - 37, ("at work", ORANGE), ("warps that wait", SKY), ("no block", RULE), ends=True),
        rect(*plot.box(), fill=RULE),
        *plot.levels({0: "0", lanes: f"{lanes:,}"}),
        note(MARGIN, CHART_TOP - 12, "clocks"),
        between(CHART_LEFT - 16, END, now, CHART_TOP - 12, f"{kernel.clock:,}", size=SMALL, weight="bold"),
    ]
    apart = max(1, round(round_step(clocks / 10)))
    for mark in range(0, clocks, apart):
        x, half = plot.x.at(mark), length(f"{mark:,}", SMALL) / 2
        if abs(x - now) > half + length(f"{kernel.clock:,}", SMALL, bold=True) + 4:
            body.append(note(x, CHART_TOP - 12, f"{mark:,}", anchor="middle"))
    for index, wave in enumerate(kernel.waves):
        x, wide = plot.x.at(wave.start), plot.x.at(wave.clocks) - CHART_LEFT
        tops = [CHART_TOP, plot.y.at(min(1.0, wave.blocks / kernel.sms) * lanes), plot.y.at(wave.busy * lanes)]
        for y, fill in zip(tops[1:], (SKY, ORANGE), strict=True):
            body.append(bar(x, y, wide, CHART_BOTTOM - y, fill=fill))
        body.append(line(x, CHART_TOP, x, CHART_BOTTOM))
        parts = zip((CHART_BOTTOM, *tops[:0:-1]), tops[::-1], (ON, ON, INK), strict=True)
        low, ink = next(((low + high) / 2 + 5, ink) for low, high, ink in parts if low - high > 15)
        at, share = min(max(now, x), x + wide), percent(wave.busy)
        begin, room = max((x, at - x), (at, x + wide - at), key=lambda part: part[1])  # beside the moment
        body.append(fitted(begin, room, low, f"{share} at work on average", f"{share} on average", share, fill=ink))
        blocks = f"wave {index + 1}: {many(wave.blocks, 'block')}"
        names = f"{blocks} in {kernel.places:,} places", blocks, f"wave {index + 1}", str(index + 1)
        body.append(fitted(x, wide, CHART_BOTTOM + 17, *names, fill=MUTED))
    handle = cursor(Axis(CHART_LEFT, END, clocks), kernel.clock + 0.5, CHART_TOP - 6, CHART_BOTTOM + 2)
    handle += grasp(now - 12, CHART_TOP - 8, 24, CHART_BOTTOM - CHART_TOP + 10)
    grip = Grip("frame", plot.x.at(0.5), plot.x.at(clocks - 0.5), 0, min(clocks, FRAMES) - 1)
    return [*body, draggable(handle, "Time", grip)]
