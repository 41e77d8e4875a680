"""The GPU from afar and one SM from near: lanes, warps, waves of blocks. Draws a result of `model`."""

from __future__ import annotations

from collections.abc import Iterable

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, Picture, bar, boxes, line, marks, rect, text

from ..base.scene import END, Box, fitted, keys, note, picture, pointer
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, many
from .model import FRAMES, WARP, Kernel

MAP_RIGHT, MAP_TOP, MAP_BOTTOM = 424.0, 40.0, 246.0
CLOSE_LEFT = 448.0
CHART_TOP, CHART_BOTTOM = 296.0, 428.0


def draw(kernel: Kernel) -> Picture:
    """All SMs, one of them close up, and the waves of the whole kernel."""
    return picture(kernel, 454.0, _map(kernel), _close_up(kernel), _waves(kernel))


def _map(kernel: Kernel) -> list[str]:
    """Each SM a tile; with its lanes where there is room for them."""
    working = kernel.working
    lanes = sum(map(sum, working))
    across = max(range(1, kernel.sms + 1), key=lambda columns: _fit(columns, kernel.sms))
    wide, high = _tile(across, kernel.sms)
    pitch = int((wide - 14) / WARP * 10) / 10
    with_lanes = pitch >= 3 and high >= 8 * kernel.rows_of_lanes
    body = [
        text(MARGIN, 14, f"clock {kernel.clock:,}: {lanes:,} of {kernel.all_lanes:,} lanes at work", weight="bold"),
        _lane_key(MARGIN, 32, "lane at work" if with_lanes else "share of lanes at work; grey: no block", busy=True),
    ]
    if with_lanes:
        cores = f"{kernel.sms} × {kernel.lanes} = {kernel.all_lanes:,} “CUDA cores”"
        body += [_lane_key(130, 32, "idle lane", busy=False), note(MAP_RIGHT, 32, cores, anchor="end")]
    corners = [(MARGIN + sm % across * wide, MAP_TOP + sm // across * high) for sm in range(kernel.sms)]
    full: list[Box] = []
    empty: list[Box] = []
    levels: list[Box] = []
    for sm, (x, y) in enumerate(corners):
        (full if kernel.blocks_on(sm) else empty).append((x + 1.5, y + 1.5, wide - 3, high - 3))
        if with_lanes:
            named = high >= 40
            top, room = y + (20 if named else 3), high - (24 if named else 6)
            words = "" if kernel.blocks_on(sm) else ": no block, no work"
            body += [note(x + 7, y + 17, f"SM {sm + 1}{words}")] if named else []
            row = min(room / kernel.rows_of_lanes, 84)
            rows = _lane_rows(kernel, working[sm], x + 7, top, pitch, row, gap=pitch // 5 + 1)
            body += [] if words else rows
        else:
            part = sum(working[sm]) / kernel.lanes * (high - 3)
            levels.append((x + 1.5, y + high - 1.5 - part, wide - 3, part))
    lay = [boxes(levels, fill=ORANGE), boxes(full, stroke=INK), boxes(empty, fill=RULE)]
    drawn = [*lay, *body] if with_lanes else [*body, *lay]
    for sm, (x, y) in enumerate(corners, 1):
        drawn += [rect(x, y, wide, high, stroke=VERMILLION, edge=3)] if sm == kernel.look else []
        drawn.append(clickable(grasp(x, y, wide, high), f"SM {sm}", look=sm))
    return drawn


def _fit(columns: int, tiles: int) -> float:
    wide, high = _tile(columns, tiles)
    return min(wide, 2.2 * high)


def _tile(columns: int, tiles: int) -> tuple[float, float]:
    return (MAP_RIGHT - MARGIN) / columns, (MAP_BOTTOM - MAP_TOP) / -(-tiles // columns)


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


def _lane_key(x: float, y: float, words: str, *, busy: bool) -> str:
    high = 12 if busy else 4
    return marks(x, y - high + 1, 1, pitch=10, height=high, fill=ORANGE if busy else MUTED) + note(x + 14, y, words)


SLOTS_ACROSS = 16


def _close_up(kernel: Kernel) -> list[str]:
    """The SM that is looked at: its rows of lanes, and its resident warps, of which a few issue."""
    warps = kernel.warps_on(kernel.look - 1)
    states = [warp.state for warp in warps]
    words = f"SM {kernel.look}: {many(len(warps), 'warp')}; {kernel.needed:,} would hide the wait"
    across = min(kernel.room, SLOTS_ACROSS)
    slot = 356 / across
    wide = slot - 4
    body = [
        text(CLOSE_LEFT, 14, words, weight="bold"),
        rect(CLOSE_LEFT, 24, END - CLOSE_LEFT, MAP_BOTTOM - 24, stroke=INK),
        *_lane_rows(kernel, kernel.working[kernel.look - 1], CLOSE_LEFT + 14, 30, 11, 16, gap=2),
    ]
    top = 34 + 16 * kernel.rows_of_lanes
    low = MAP_BOTTOM - 64
    high = min((low - top - 4) / -(-kernel.room // across) - 4, 116)
    rows = [divmod(place, across) for place in range(kernel.room)]
    corners = [(CLOSE_LEFT + 14 + column * slot, top + 4 + row * (high + 4)) for row, column in rows]
    taken = list(zip(corners, warps, strict=False))
    others = [(x, y, warp) for (x, y), warp in taken if warp.state != "issuing"]
    levels: dict[str, list[Box]] = {
        state: [(x, y + high * (1 - w.waited), wide, high * w.waited) for x, y, w in others if w.state == state]
        for state in ("waiting", "ready")
    }
    body += [
        boxes(((x + 5, y + high / 2, wide - 10, 0.8) for x, y in corners[len(warps) :]), fill=MUTED),
        boxes(levels["waiting"], fill=SKY),
        boxes(levels["ready"], fill=GREEN),
        *_hollow(levels["ready"]),
        boxes(((x, y, wide, high) for x, y, _ in others), stroke=INK),
        boxes(((x, y - 3, wide, high + 3) for (x, y), w in taken if w.state == "issuing"), fill=ORANGE, stroke=INK),
    ]
    said = {
        "issuing": (ORANGE, ": an instruction in this clock"),
        "waiting": (SKY, f": the level shows how far, of {count(kernel.wait, 'clock')}"),
        "ready": (GREEN, ": others have the lanes"),
    }
    for place, (state, (fill, meaning)) in enumerate(said.items()):
        y = MAP_BOTTOM - 46 + 18 * place
        sample = (CLOSE_LEFT + 14, y - 11.0, 16.0, 12.0)
        body += [boxes([sample], fill=fill, stroke=INK), *(_hollow([sample]) if state == "ready" else ())]
        body.append(note(CLOSE_LEFT + 36, y, f"{states.count(state)} {state}{meaning}"))
    y = MAP_BOTTOM - 10
    body.append(boxes([(CLOSE_LEFT + 290, y - 5, 8, 0.8)], fill=MUTED))
    body.append(note(CLOSE_LEFT + 304, y, "free"))
    return body


def _hollow(slots: Iterable[Box]) -> list[str]:
    """A second sign of the warps that are ready, beside their colour."""
    return [boxes(((x + wide / 2 - 3, y + high / 2 - 2, 6, 4) for x, y, wide, high in slots), fill=PAPER)]


def _waves(kernel: Kernel) -> list[str]:
    """Time to the right: how many of the places have a block, and how much of the lanes' time is used."""
    high, unit = CHART_BOTTOM - CHART_TOP, (END - MARGIN) / kernel.clocks
    waits = ("a block, but its warps wait", SKY)
    body = [
        text(MARGIN, CHART_TOP - 12, f"the whole GPU over {many(kernel.clocks, 'clock')} (virtual)", weight="bold"),
        *keys(END, CHART_TOP - 12, waits, ("lanes at work", ORANGE), ("no block", RULE), ends=True),
        rect(MARGIN, CHART_TOP, END - MARGIN, high, fill=RULE),
    ]
    for index, wave in enumerate(kernel.waves):
        x, wide = MARGIN + wave.start * unit, wave.clocks * unit
        body.append(bar(x, CHART_BOTTOM - high * wave.resident, wide, high * wave.resident, fill=SKY, stroke=""))
        busy = high * wave.busy
        body.append(bar(x, CHART_BOTTOM - busy, wide, busy, fill=ORANGE, stroke=""))
        body.append(line(x, CHART_TOP, x, CHART_BOTTOM, stroke=INK))
        blocks = f"wave {index + 1}: {many(wave.blocks, 'block')}"
        whole = f"{blocks} in {kernel.places:,} places"
        body.append(fitted(x, wide, CHART_BOTTOM + 16, whole, blocks, str(index + 1), fill=MUTED))
    now = MARGIN + (kernel.clock + 0.5) * unit
    moment = [
        grasp(now - 12, CHART_TOP - 8, 24, high + 10),
        line(now, CHART_TOP - 4, now, CHART_BOTTOM + 2, stroke=PAPER, width=6),
        line(now, CHART_TOP - 4, now, CHART_BOTTOM + 2, stroke=INK, width=2.5),
        pointer(now, CHART_TOP + 2, fill=VERMILLION),
    ]
    grip = Grip("frame", MARGIN + unit / 2, END - unit / 2, 0, min(kernel.clocks, FRAMES) - 1)
    return [*body, draggable("".join(moment), "Time", grip)]
