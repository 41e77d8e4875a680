"""CPU and GPU side by side, cell by cell, and the speed-up over the number of tasks: draws a result of `model`."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, key, length, line, marks, polyline, rect, text

from ..base.words import count, duration, many, percent
from .model import (
    CORE_LANES,
    MOST_TASKS,
    PLACES,
    TASK,
    WARP,
    Contest,
    Side,
)

WIDTH, HEIGHT = 860.0, 374.0
PANEL, SECOND = 400.0, 442.0  # a side's width; where the right one begins
CELLS_TOP, CELLS_BOTTOM = 42.0, 138.0
LOWER, LEGEND = 174.0, 158.0


def draw(race: Contest) -> Picture:
    """The lanes of both at the moment, their time lines below, and the speed-up over the number of tasks."""
    body = [*_sides(race), *_legend(), *_time_lines(race), *_plot(race)]
    return Picture(WIDTH, HEIGHT, race.finding, race.describe(), tuple(body))


def _sides(race: Contest) -> list[str]:
    now, cpu, gpu = race.now, race.cpu, race.gpu_side
    cores = f"{count(race.cores, 'core')} × {race.simd} of {CORE_LANES} lanes"
    warps = f"{many(race.warps, 'warp')} × {WARP} lanes"
    body = []
    for x, name, side, lanes in ((MARGIN, "CPU", cpu, cores), (SECOND, "GPU", gpu, warps)):
        done = side.done(now)
        body.append(text(x, 14, f"{name}: {race.doing(side)}, {percent(done / side.tasks)} done", weight="bold"))
        body.append(text(x, 33, f"{done:,} of {many(side.tasks, 'task')} done; {lanes}", size=SMALL, fill=MUTED))
    a_warp = "a row is a warp" if race.warps <= MOST_ROWS else "a mark is a warp"
    body.append(text(WIDTH - MARGIN, LEGEND, a_warp, size=SMALL, fill=MUTED, anchor="end"))
    working = 1 if cpu.phase(now) == "serial" else cpu.working(now)
    used = [max(0, min(race.simd, working - core * race.simd)) for core in range(race.cores)]
    body += _rows(MARGIN, [(busy, 0, race.simd - busy) for busy in used])
    working = gpu.working(now)
    if race.warps <= MOST_ROWS:
        used = [max(0, min(WARP, working - warp * WARP)) for warp in range(race.warps)]
        return [*body, *_rows(SECOND, [(n, WARP - n, 0) if n else (0, 0, WARP) for n in used])]
    busy = -(-working // WARP)
    rows = []
    for first in range(0, race.warps, WARP):
        here = min(WARP, race.warps - first)
        at_work = max(0, min(here, busy - first))
        rows.append((at_work, 0, here - at_work))
    return [*body, *_rows(SECOND, rows)]


MOST_ROWS = 64


def _rows(x: float, rows: list[tuple[int, int, int]]) -> list[str]:
    """Rows of 32 marks: at work, masked, idle; on the left what is left over are lanes that the program ignores."""
    columns = -(-len(rows) // 16)
    deep = -(-len(rows) // columns)
    wide, high = PANEL / columns, min((CELLS_BOTTOM - CELLS_TOP) / deep, 16)
    pitch = int((wide - 8) / WARP * 10) / 10
    gap, tall = 2 if pitch > 6 else 1, max(2, high - 2.5)
    body = []
    for place, row in enumerate(rows):
        left, top = x + place // deep * wide, CELLS_TOP + place % deep * high
        ignored = WARP - sum(row) if x == MARGIN else 0
        for number, name in zip((*row, ignored), MARKS, strict=True):
            body += _marks(left, top, number, name, pitch=pitch, tall=tall, gap=gap)
            left += number * pitch
    return body


# The names of a lane's states, the colour of each, and the parts of its height that are filled.
MARKS = {
    "lane at work": (ORANGE, ((0, 1),)),
    "in a running warp, without a task": (SKY, ((0.4, 0.6),)),
    "idle": (MUTED, ((0.65, 0.35),)),
    "not used by the program": (MUTED, ((0, 0.1), (0.9, 0.1))),
}


def _marks(x: float, top: float, number: int, name: str, *, pitch: float, tall: float, gap: float) -> list[str]:
    fill, parts = MARKS[name]
    return [
        marks(x, top + tall * start, number, pitch=pitch, height=max(tall * part, 0.8), fill=fill, gap=gap)
        for start, part in parts
    ]


def _legend() -> list[str]:
    body, x = [], MARGIN
    for name in MARKS:
        body += _marks(x, LEGEND - 12, 1, name, pitch=12, tall=13, gap=2)
        body.append(text(x + 16, LEGEND, name, size=SMALL, fill=MUTED))
        x += 40 + length(name, SMALL) * 0.94
    return body


COLOURS = {"serial": PURPLE, "copy in": YELLOW, "launch": VERMILLION, "tasks": ORANGE, "copy out": YELLOW}
LINE_LEFT, LINE_RIGHT = 100.0, 350.0


def _time_lines(race: Contest) -> list[str]:
    """A bar for each side, in the pieces that its time is made of, and one for the CPU with all its lanes."""
    body = [text(MARGIN, LOWER + 14, f"after {duration(race.now)} (virtual: toy tasks)", weight="bold")]
    longest = max(race.cpu.seconds, race.gpu_side.seconds, race.simd_cpu.seconds)
    unit = (LINE_RIGHT - LINE_LEFT) / longest
    sides = (("CPU", race.cpu), ("GPU", race.gpu_side), ("CPU, SIMD", race.simd_cpu))
    now = LINE_LEFT + race.now * unit
    for place, (name, side) in enumerate(sides):
        top = LOWER + 34 + place * 36
        other = side is race.simd_cpu
        body.append(text(MARGIN, top + 16, name, fill=MUTED if other else INK))
        body += _pieces(side, top, unit)
    body.append(line(now, LOWER + 28, now, LOWER + 132, stroke=INK, width=2, dash="4 3"))
    for place, (_, side) in enumerate(sides):
        x, y = LINE_LEFT + side.seconds * unit + 8, LOWER + 50 + place * 36
        body.append(text(x, y, duration(side.seconds), weight="bold", halo=True))
    y = LOWER + 160
    body += [
        key(MARGIN, y, "tasks", fill=ORANGE),
        key(100, y, "serial part, on one CPU lane", fill=PURPLE, hatched=True),
        key(MARGIN, y + 20, "copy", fill=YELLOW),
        key(100, y + 20, "launch", fill=VERMILLION, hatched=True),
        text(190, y + 20, f"a task: {duration(TASK)} on a CPU lane", size=SMALL, fill=MUTED),
    ]
    return body


def _pieces(side: Side, top: float, unit: float) -> list[str]:
    body = []
    for phase in side.phases:
        x, wide = LINE_LEFT + phase.start * unit, phase.length * unit
        hatched = phase.name in ("serial", "launch")
        body.append(bar(x, top, wide, 22, fill=COLOURS[phase.name], hatched=hatched))
        if phase.name == "tasks" and 1 < side.rounds <= wide / 6:
            rounds = (x + wide * number / side.rounds for number in range(1, side.rounds))
            body += [line(at, top, at, top + 22, stroke=INK) for at in rounds]
    return body


LEFT, RIGHT = 492.0, 836.0
TOP, BOTTOM = LOWER + 44, LOWER + 154
LOW, HIGH = 0.01, 1e4


def _plot(race: Contest) -> list[str]:
    """Speed-up over one lane of the CPU, over the number of tasks."""
    body = [text(SECOND, LOWER + 14, "times as fast as one CPU lane (virtual)", weight="bold")]
    x = SECOND
    for name, stroke, width, dash in STYLES:
        body += [line(x, LOWER + 28, x + 22, LOWER + 28, stroke=stroke, width=width, dash=dash)]
        body.append(text(x + 27, LOWER + 33, name, size=SMALL, fill=MUTED))
        x += 50 + 8.2 * len(name)
    body.append(rect(LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP, stroke=RULE))
    for value, words in ((0.01, "0.01"), (1, "1"), (100, "100"), (1e4, "10,000")):
        y = _y(value)
        body.append(line(LEFT, y, RIGHT, y, stroke=RULE))
        body.append(text(LEFT - 6, min(max(y + 5, TOP + 9), BOTTOM), words, size=SMALL, fill=MUTED, anchor="end"))
    for value, words in ((1, "1 task"), (100, "100"), (1e4, "10,000"), (1e6, "1,000,000")):
        anchor = "end" if value == MOST_TASKS else "start" if value == 1 else "middle"
        body.append(text(_x(value), BOTTOM + 15, words, size=SMALL, fill=MUTED, anchor=anchor))
    if race.serial:
        limit = _y(race.amdahl)
        body.append(line(LEFT, limit, RIGHT, limit, stroke=VERMILLION, width=2, dash="2 4"))
    for curve, (_, stroke, width, dash) in zip(race.curves.values(), STYLES[:3], strict=True):
        points = ((across, _y(value)) for across, value in zip(ACROSS, curve, strict=True))
        body.append(polyline(points, stroke=stroke, width=width, dash=dash))
    here = _x(race.tasks)
    body.append(line(here, TOP, here, BOTTOM, stroke=INK, dash="4 3"))
    body += [
        dot(here, _y(race.over_one_lane(race.tasks, side)), 5, fill=fill)
        for side, fill in (("cpu", BLUE), ("gpu", ORANGE))
    ]
    body.append(text(SECOND, BOTTOM + 37, f"GPU ahead to stay: {race.crossing}", weight="bold"))
    return body


STYLES = (("CPU", BLUE, 2, ""), ("GPU", ORANGE, 4, ""), ("CPU, SIMD", BLUE, 2, "6 4"), ("Amdahl", VERMILLION, 2, "2 4"))


def _x(tasks: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(tasks) / math.log(MOST_TASKS)


def _y(times: float) -> float:
    share = math.log(min(max(times, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return BOTTOM - (BOTTOM - TOP) * share


ACROSS = tuple(_x(tasks) for tasks in PLACES)
