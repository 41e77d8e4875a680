"""CPU and GPU as bars that race, and the speed-up over the number of tasks: draws a result of `model`."""

from __future__ import annotations

from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, PURPLE, RULE, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, key, line, polyline, rect, shape, text

from ..base.lanes import Axis, cursor, veil
from ..base.scene import Scale
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, duration, many, percent
from .model import CORE_LANES, MOST_AT_ONCE, MOST_TASKS, PLACES, TASK, WARP, Contest, Side

WIDTH, HEIGHT = 860.0, 462.0
BARS_LEFT, BARS_RIGHT, BARS_TOP, BARS_BOTTOM = 196.0, 770.0, 34.0, 166.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 716.0, 244.0, 424.0  # of the plot
TASKS = Scale(LEFT, RIGHT, 1, MOST_TASKS, log=True)
FACTORS = Scale(BOTTOM, TOP, 0.01, 1e4, log=True)
COLOURS = {"serial": PURPLE, "copy in": YELLOW, "launch": VERMILLION, "tasks": ORANGE, "copy out": YELLOW}


def draw(race: Contest) -> Picture:
    """The time of each, up to the moment; below it the speed-up over the number of tasks."""
    return Picture(WIDTH, HEIGHT, race.finding, race.describe(), (*_bars(race), *_plot(race)))


def _bars(race: Contest) -> list[str]:
    """A bar for each side, in the pieces that its time is made of, and one for the CPU with all its lanes."""
    cpu, gpu, simd = race.cpu, race.gpu_side, race.simd_cpu
    cores = count(race.cores, "core")
    axis = Axis(BARS_LEFT, BARS_RIGHT, max(cpu.seconds, gpu.seconds, simd.seconds))
    rows = (
        ("CPU", f"{cores} × {race.simd} of {CORE_LANES} lanes", cpu, _standing(race, cpu)),
        ("GPU", f"{many(race.warps, 'warp')} × {WARP} lanes", gpu, _standing(race, gpu)),
        ("CPU, all lanes", f"{cores} × {CORE_LANES}: {simd.lanes:,} lanes", simd, ""),
    )
    body = axis.draw(BARS_TOP - 12, BARS_BOTTOM)
    above = []
    for place, (name, lanes, side, standing) in enumerate(rows):
        top = BARS_TOP + place * 46
        body.append(text(MARGIN, top + 13, name, weight="bold" if standing else "", fill=INK if standing else MUTED))
        body.append(text(MARGIN, top + 30, lanes, size=SMALL, fill=MUTED))
        body += _pieces(side, axis, top)
        x = axis.x(side.seconds) + 8
        above.append(text(x, top + 16, duration(side.seconds), weight="bold", halo=True))
        if standing:
            above.append(text(BARS_LEFT + 4, top + 38, standing, size=SMALL, fill=MUTED, halo=True))
    end = axis.x(max(cpu.seconds, gpu.seconds))
    now = grasp(axis.x(race.now) - 12, BARS_TOP - 16, 24, BARS_BOTTOM - BARS_TOP + 16)
    now += cursor(axis, race.now, BARS_TOP - 10, BARS_BOTTOM)
    moment = draggable(now, "Time in the race", Grip("time", BARS_LEFT, end, 0, 100))
    y = BARS_BOTTOM + 22
    return [
        *body,
        veil(axis, race.now, BARS_TOP - 4, BARS_BOTTOM),
        moment,
        *above,
        key(MARGIN, y, "tasks", fill=ORANGE),
        key(96, y, "copy", fill=YELLOW),
        key(166, y, "launch", fill=VERMILLION, hatched=True),
        key(250, y, "serial part, on one CPU lane", fill=PURPLE, hatched=True),
        text(
            WIDTH - MARGIN,
            y,
            f"virtual: toy tasks, {duration(TASK)} on a CPU lane",
            size=SMALL,
            fill=MUTED,
            anchor="end",
        ),
    ]


def _standing(race: Contest, side: Side) -> str:
    """How far it is; on the GPU whole warps run, and some of their lanes may have no task."""
    done, working = side.done(race.now), side.working(race.now)
    without = -working % WARP if side is race.gpu_side else 0
    idle = f", {without} of their warp idle" if without else ""
    return f"{done:,} of {many(side.tasks, 'task')} done = {percent(done / side.tasks)}; {race.doing(side)}{idle}"


def _pieces(side: Side, axis: Axis, top: float) -> list[str]:
    body = []
    for phase in side.phases:
        x, wide = axis.x(phase.start), axis.seen(phase.length)
        body.append(bar(x, top, wide, 22, fill=COLOURS[phase.name], hatched=phase.name in ("serial", "launch")))
        if phase.name == "tasks" and 1 < side.rounds <= wide / 6:
            rounds = (x + wide * number / side.rounds for number in range(1, side.rounds))
            body += [line(at, top, at, top + 22, stroke=INK) for at in rounds]
    return body


STYLES = {"cpu": ("CPU", BLUE, 3.0, ""), "gpu": ("GPU", ORANGE, 4.0, ""), "simd": ("CPU, all lanes", BLUE, 2.0, "6 4")}


def _plot(race: Contest) -> list[str]:
    """Speed-up over one lane of the CPU, over the number of tasks, which is dragged."""
    body = [text(MARGIN, TOP - 28, "times as fast as one CPU lane, by the number of tasks (virtual)", weight="bold")]
    body.append(rect(LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP, stroke=RULE))
    for value in (0.01, 1, 100, 1e4):
        y = FACTORS.at(value)
        body.append(line(LEFT, y, RIGHT, y, stroke=RULE))
        body.append(text(LEFT - 7, y + 5, f"{value:,g}", size=SMALL, fill=MUTED, anchor="end"))
    for value in TASKS.decades():
        x, words = TASKS.at(value), f"{value:,.0f}" + " task" * (value == 1)
        body.append(line(x, BOTTOM, x, BOTTOM + 4, stroke=MUTED))
        body.append(text(x, BOTTOM + 18, words, size=SMALL, fill=MUTED, anchor="middle"))
    ends = {}
    if race.serial:
        limit = FACTORS.at(race.amdahl)
        body.append(line(LEFT, limit, RIGHT, limit, stroke=VERMILLION, width=2, dash="2 4"))
        ends["Amdahl’s limit"] = limit
    for side, (name, stroke, width, dash) in STYLES.items():
        points = [(TASKS.at(tasks), FACTORS.at(value)) for tasks, value in zip(PLACES, race.curves[side], strict=True)]
        body.append(polyline(points, stroke=stroke, width=width, dash=dash))
        ends[name] = points[-1][1]
    return [*body, *_names(ends), *_crossing(race), _tasks(race)]


def _names(ends: dict[str, float]) -> list[str]:
    """The name of each curve at its right end, as near to it as the others leave room."""
    body, free = [], TOP
    for place, (name, y) in enumerate(sorted(ends.items(), key=lambda end: end[1])):
        y = min(max(y, free), BOTTOM - 17 * (len(ends) - 1 - place))
        free = y + 17
        body.append(text(RIGHT + 8, y + 5, name, size=SMALL))
    return body


def _crossing(race: Contest) -> list[str]:
    """From where on the GPU is ahead: a click goes there."""
    words = f"GPU ahead {race.crossing}"
    if race.crossover is None:
        return [text(RIGHT, TOP - 9, words, size=SMALL, anchor="end")]
    x, right = TASKS.at(race.crossover), race.crossover > MOST_TASKS**0.5
    mark = shape([(x - 6, TOP - 14), (x + 6, TOP - 14), (x, TOP - 4)], fill=INK)
    mark += line(x, TOP - 4, x, BOTTOM, stroke=MUTED, dash="2 4")
    mark += text(x + (-10 if right else 10), TOP - 9, words, size=SMALL, anchor="end" if right else "start")
    return [clickable(mark, words, tasks=min(race.crossover, MOST_AT_ONCE))]


def _tasks(race: Contest) -> str:
    x = TASKS.at(race.tasks)
    moved = grasp(x - 12, TOP, 24, BOTTOM - TOP)
    moved += line(x, TOP, x, BOTTOM, stroke=INK, width=1.5)
    for side, fill in (("cpu", BLUE), ("gpu", ORANGE)):
        moved += dot(x, FACTORS.at(race.over_one_lane(race.tasks, side)), 8, fill=fill, stroke=INK)
    grip = Grip("tasks", LEFT, TASKS.at(MOST_AT_ONCE), 1, MOST_AT_ONCE, log=True)
    return draggable(moved, "Tasks, along the curves", grip)
