"""CPU and GPU as bars that race, and the speed-up over the number of tasks: draws a result of `model`."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, polyline, text

from ..base.lanes import Axis, beside, cursor, veil
from ..base.scene import END, Plot, Scale, beside_ends, diamond, keys, note, picture, small
from ..base.touch import Grip, clickable, draggable, grasp
from ..base.words import count, duration, many
from .model import CORE_LANES, MOST_TASKS, PLACES, TASK, TOY, WARP, Contest, Side, times

BARS_LEFT, BARS_RIGHT, BARS_TOP, BAR_HIGH, APART = 196.0, 770.0, 38.0, 28.0, 58.0
BARS_BOTTOM = BARS_TOP + 2 * APART
LEFT, RIGHT, TOP, BOTTOM = 78.0, 686.0, 244.0, 412.0  # of the plot
TASKS = Scale(LEFT, RIGHT, 1, MOST_TASKS, log=True)
FILLS = {"serial": GREEN, "copy in": PURPLE, "launch": VERMILLION, "copy out": PURPLE}
HATCHED = ("serial", "launch")


def draw(race: Contest) -> Picture:
    """The time of each, up to the moment; below it the speed-up over the number of tasks."""
    return picture(race, BOTTOM + 30, _bars(race), _plot(race))


def _bars(race: Contest) -> list[str]:
    """A bar for each side, in the pieces that its time is made of, and how far it is at the moment."""
    axis = Axis(BARS_LEFT, BARS_RIGHT, max(race.cpu.seconds, race.gpu_side.seconds))
    gpu = "toy GPU" if race.gpu == TOY else f"GPU: {race.gpu}"
    rows = ("CPU", TASK, race.cpu, BLUE), (gpu, TASK * race.ratio, race.gpu_side, ORANGE)
    body, above, now = axis.draw(BARS_TOP - 12, BARS_TOP), [], axis.x(race.now)
    for place, (name, task, side, fill) in enumerate(rows):
        top = BARS_TOP + place * APART
        lanes = f"{many(side.lanes, 'lane')}, {duration(task)} a task"
        body += [text(MARGIN, top + 14, name, weight="bold"), note(MARGIN, top + 31, lanes)]
        body += _pieces(side, axis, top, fill)
        end, value, standing = axis.x(side.seconds) + 8, duration(side.seconds), _standing(race, side)
        above.append(text(end, top + 19, value, weight="bold", halo=True))
        behind = max(end + length(value, bold=True) + 12, now + 8)
        if side.phase(race.now) or behind + length(standing, SMALL) > END:
            above += beside(now, top + BAR_HIGH + 16, standing)
        else:
            above.append(small(behind, top + 19, standing))
    grip = grasp(now - 12, BARS_TOP - 16, 24, BARS_BOTTOM - BARS_TOP + 16)
    grip += cursor(axis, race.now, BARS_TOP - 10, BARS_BOTTOM)
    shown = [name for name in FILLS if name != "copy out" and race.gpu_side.spent(name)]
    looks = [(name.removesuffix(" in"), FILLS[name], name in HATCHED) for name in shown]
    return [
        *body,
        veil(axis, race.now, BARS_TOP - 4, BARS_BOTTOM),
        draggable(grip, "Time in the race", Grip("time", BARS_LEFT, BARS_RIGHT, 0, 100)),
        *above,
        *keys(MARGIN, BARS_BOTTOM + 20, ("CPU’s tasks", BLUE), ("GPU’s tasks", ORANGE), *looks),
        note(END, BARS_BOTTOM + 20, "virtual: toy tasks, one on a lane at a time", anchor="end"),
    ]


def _standing(race: Contest, side: Side) -> str:
    """How far it is; on the GPU whole warps run, and some of their lanes may have no task."""
    done, working = side.done(race.now), side.working(race.now)
    without = -working % WARP if side is race.gpu_side else 0
    idle = f", {without} of their warp idle" if without else ""
    doing = f"; {race.doing(side)}{idle}" if side.phase(race.now) else ""
    return f"{done:,} of {many(side.tasks, 'task')} done{doing}"


def _pieces(side: Side, axis: Axis, top: float, tasks: str) -> list[str]:
    body = []
    for phase in side.phases:
        x, wide = axis.x(phase.start), axis.seen(phase.length)
        body.append(bar(x, top, wide, BAR_HIGH, fill=FILLS.get(phase.name, tasks), hatched=phase.name in HATCHED))
        if phase.name == "tasks" and 1 < side.rounds <= wide / 6:
            rounds = (x + wide * number / side.rounds for number in range(1, side.rounds))
            body += [line(at, top, at, top + BAR_HIGH) for at in rounds]
    return body


STYLES = {"cpu": ("CPU", BLUE, 3.0), "gpu": ("GPU", ORANGE, 4.0)}


def _plot(race: Contest) -> list[str]:
    """Speed-up over one lane of the CPU, over the number of tasks, which is dragged."""
    values = [value for curve in race.curves.values() for value in curve]
    low, high = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
    plot = Plot(TASKS, Scale(BOTTOM, TOP, low, high, log=True))
    body = [
        text(MARGIN, TOP - 32, "times as fast as one CPU lane, by the number of tasks (virtual)", weight="bold"),
        plot.frame(),
        *(note(LEFT - 7, plot.y.at(value) + 5, f"{value:,g}", anchor="end") for value in plot.y.decades()[1:]),
        *TASKS.ticks(BOTTOM, {value: f"{value:,.0f}" + " task" * (value == 1) for value in TASKS.decades()}),
    ]
    ends = {}
    if race.serial:
        limit = ends["Amdahl’s limit"] = plot.y.at(race.amdahl)
        body.append(line(LEFT, limit, RIGHT, limit, stroke=VERMILLION, width=2, dash="2 4"))
    for side, (name, stroke, width) in STYLES.items():
        curve = race.curves[side]
        body.append(plot.curve(zip(PLACES, curve, strict=True), stroke=stroke, width=width))
        used = f", {count(race.simd, 'lane')} per core" if side == "cpu" and race.simd < CORE_LANES else ""
        ends[name + used] = plot.y.at(curve[-1])
    return [*body, *beside_ends(RIGHT + 8, BOTTOM, ends), *_crossing(race, plot), *_tasks(race, plot)]


def _crossing(race: Contest, plot: Plot) -> list[str]:
    """From where on the GPU is ahead: a click goes there."""
    words = f"GPU {race.crossing}"
    if race.crossover is None:
        return [small(RIGHT, TOP - 9, words, anchor="end")]
    x, y = plot.at(race.crossover, race.over_one_lane(race.crossover, "gpu"))
    wide = length(words, SMALL) + 20
    right = x + wide > END
    mark = (
        grasp(x - wide if right else x - 8, TOP - 23, wide + 8, 21)
        + line(x, TOP - 4, x, y, stroke=MUTED, dash="2 4")
        + dot(x, y, 6, fill=PAPER, stroke=INK)
    )
    mark += small(x + (-10 if right else 10), TOP - 9, words, anchor="end" if right else "start")
    return [clickable(mark, words, tasks=race.crossover)]


def _tasks(race: Contest, plot: Plot) -> list[str]:
    values = [race.over_one_lane(race.tasks, side) for side in ("cpu", "gpu")]
    (x, cpu), (_, gpu) = (plot.at(race.tasks, value) for value in values)
    body = []
    if abs(cpu - gpu) > 10:
        aside, anchor = (16, "start") if x < RIGHT - 80 else (-16, "end")
        body.append(polyline([(x, cpu), (x + aside, cpu), (x + aside, gpu), (x, gpu)], width=1.5))
        ratio, base = times(max(race.speedup, 1 / race.speedup)), min((cpu + gpu) / 2, max(cpu, gpu) - 10) + 5
        body.append(text(x + 1.3 * aside, base, ratio, anchor=anchor, weight="bold", halo=True))
    below, above = min(max(cpu, gpu) + 20, BOTTOM - 8), max(min(cpu, gpu) - 9, TOP + 14)
    body.append(small(x + 10, below, times(min(values)), halo=True))
    if times(max(values)) != times(min(values)) and x > LEFT + 60:
        body.append(small(x - 5, above, times(max(values)), anchor="end", halo=True))
    moved = grasp(x - 12, TOP, 24, BOTTOM - TOP) + line(x, TOP, x, BOTTOM, stroke=INK, width=1.5)
    moved += dot(x, cpu, 7, fill=BLUE) + diamond(x, gpu, fill=ORANGE)  # seen where they meet
    return [*body, draggable(moved, "Tasks, along the curves", TASKS.grip("tasks"))]
