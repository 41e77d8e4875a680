"""CPU and GPU as bars that race, and the speed-up over the number of tasks: draws a result of `model`."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PAPER, PURPLE, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, rect, text

from ..base.lanes import Axis, cursor, veil
from ..base.scene import END, Plot, Scale, beside_ends, keys, note, picture, pointer, small
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, duration, many, percent
from .model import CORE_LANES, MOST_AT_ONCE, MOST_TASKS, PLACES, TASK, WARP, Contest, Side

BARS_LEFT, BARS_RIGHT, BARS_TOP, BARS_BOTTOM = 196.0, 770.0, 34.0, 166.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 716.0, 244.0, 424.0  # of the plot
TASKS = Scale(LEFT, RIGHT, 1, MOST_TASKS, log=True)
COLOURS = {"serial": PURPLE, "copy in": YELLOW, "launch": VERMILLION, "copy out": YELLOW}


def draw(race: Contest) -> Picture:
    """The time of each, up to the moment; below it the speed-up over the number of tasks."""
    return picture(race, 462.0, _bars(race), _plot(race))


def _bars(race: Contest) -> list[str]:
    """A bar for each side, in the pieces that its time is made of, and one for the CPU with all its lanes."""
    cpu, gpu, simd = race.cpu, race.gpu_side, race.simd_cpu
    cores = count(race.cores, "core")
    axis = Axis(BARS_LEFT, BARS_RIGHT, max(cpu.seconds, gpu.seconds, simd.seconds))
    rows = (
        ("CPU", f"{cores} × {race.simd} of {CORE_LANES} lanes", cpu, _standing(race, cpu)),
        ("GPU", f"{many(race.warps, 'warp')} × {WARP} lanes", gpu, _standing(race, gpu)),
        *([("CPU, all lanes", f"{cores} × {CORE_LANES}: {simd.lanes:,} lanes", simd, "")] if simd != cpu else ()),
    )
    body = axis.draw(BARS_TOP - 12, BARS_BOTTOM)
    above = []
    for place, (name, lanes, side, standing) in enumerate(rows):
        top = BARS_TOP + place * (46 if simd != cpu else 64)
        body.append(text(MARGIN, top + 13, name, weight="bold"))
        body.append(note(MARGIN, top + 30, lanes))
        body += _pieces(side, axis, top, ORANGE if side is gpu else BLUE)
        x = axis.x(side.seconds) + 8
        above.append(text(x, top + 16, duration(side.seconds), weight="bold", halo=True))
        if standing:
            above.append(rect(BARS_LEFT, top + 24, length(standing, SMALL), 16, fill=PAPER))  # the moment's line stops
            above.append(note(BARS_LEFT, top + 36, standing))
    end = axis.x(max(cpu.seconds, gpu.seconds))
    now = grasp(axis.x(race.now) - 12, BARS_TOP - 16, 24, BARS_BOTTOM - BARS_TOP + 16)
    now += cursor(axis, race.now, BARS_TOP - 10, BARS_BOTTOM)
    moment = draggable(now, "Time in the race", Grip("time", BARS_LEFT, end, 0, 100))
    y, hatched = BARS_BOTTOM + 22, [("launch", VERMILLION, True), ("serial part", PURPLE, True)]
    return [
        *body,
        veil(axis, race.now, BARS_TOP - 4, BARS_BOTTOM),
        moment,
        *above,
        *keys(MARGIN, y, ("CPU’s tasks", BLUE), ("GPU’s", ORANGE), ("copy", YELLOW), *hatched[: 1 + bool(race.serial)]),
        note(END, y, f"virtual: toy tasks, {duration(TASK)} on a CPU lane", anchor="end"),
    ]


def _standing(race: Contest, side: Side) -> str:
    """How far it is; on the GPU whole warps run, and some of their lanes may have no task."""
    done, working = side.done(race.now), side.working(race.now)
    without = -working % WARP if side is race.gpu_side else 0
    idle = f", {without} of their warp idle" if without else ""
    return f"{done:,} of {many(side.tasks, 'task')} done = {percent(done / side.tasks)}; {race.doing(side)}{idle}"


def _pieces(side: Side, axis: Axis, top: float, tasks: str) -> list[str]:
    body = []
    for phase in side.phases:
        x, wide, hatched = axis.x(phase.start), axis.seen(phase.length), phase.name in ("serial", "launch")
        body.append(bar(x, top, wide, 22, fill=COLOURS.get(phase.name, tasks), hatched=hatched))
        if phase.name == "tasks" and 1 < side.rounds <= wide / 6:
            rounds = (x + wide * number / side.rounds for number in range(1, side.rounds))
            body += [line(at, top, at, top + 22, stroke=INK) for at in rounds]
    return body


STYLES = {"cpu": ("CPU", BLUE, 3.0, ""), "gpu": ("GPU", ORANGE, 4.0, ""), "simd": ("CPU, all lanes", BLUE, 2.0, "6 4")}


def _plot(race: Contest) -> list[str]:
    """Speed-up over one lane of the CPU, over the number of tasks, which is dragged."""
    plot = _field(race)
    body = [
        text(MARGIN, TOP - 28, "times as fast as one CPU lane, by the number of tasks (virtual)", weight="bold"),
        plot.frame(),
        *plot.levels({value: f"{value:,g}" for value in plot.y.decades()}),
        *TASKS.ticks(BOTTOM, {value: f"{value:,.0f}" + " task" * (value == 1) for value in TASKS.decades()}),
    ]
    ends = {}
    if race.serial:
        limit = plot.y.at(race.amdahl)
        body.append(line(LEFT, limit, RIGHT, limit, stroke=VERMILLION, width=2, dash="2 4"))
        ends["Amdahl’s limit"] = limit
    for side, (name, stroke, width, dash) in list(STYLES.items())[: 2 + (race.simd < CORE_LANES)]:
        values = race.curves[side]
        body.append(plot.curve(zip(PLACES, values, strict=True), stroke=stroke, width=width, dash=dash))
        ends[name] = plot.y.at(values[-1])
    return [*body, *beside_ends(RIGHT + 8, BOTTOM, ends), *_crossing(race), _tasks(race, plot)]


def _field(race: Contest) -> Plot:
    """Tasks to the right, and upwards as many powers of ten as the curves take."""
    values = [value for curve in race.curves.values() for value in curve]
    low, high = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
    return Plot(TASKS, Scale(BOTTOM, TOP, low, high, log=True))


def _crossing(race: Contest) -> list[str]:
    """From where on the GPU is ahead: a click goes there."""
    words = f"GPU ahead {race.crossing}"
    if race.crossover is None:
        return [small(RIGHT, TOP - 9, words, anchor="end")]
    x, right = TASKS.at(race.crossover), race.crossover > MOST_TASKS**0.5
    wide = length(words, SMALL) + 20
    mark = (
        grasp(x - wide if right else x - 8, TOP - 23, wide + 8, 21)
        + pointer(x, TOP - 4)
        + line(x, TOP - 4, x, BOTTOM, stroke=MUTED, dash="2 4")
    )
    mark += small(x + (-10 if right else 10), TOP - 9, words, anchor="end" if right else "start")
    return [clickable(mark, words, tasks=min(race.crossover, MOST_AT_ONCE))]


def _tasks(race: Contest, plot: Plot) -> str:
    x = TASKS.at(race.tasks)
    moved = grasp(x - 12, TOP, 24, BOTTOM - TOP) + line(x, TOP, x, BOTTOM, stroke=INK, width=1.5)
    for side, fill, radius in (("cpu", BLUE, 9), ("gpu", ORANGE, 6)):  # both are seen where they meet
        moved += dot(*plot.at(race.tasks, race.over_one_lane(race.tasks, side)), radius, fill=fill, stroke=INK)
    grip = Grip("tasks", LEFT, TASKS.at(MOST_AT_ONCE), 1, MOST_AT_ONCE, log=True)
    return draggable(moved, "Tasks, along the curves", grip)
