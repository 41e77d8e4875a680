"""Plots a `MemoryCurve`: allocated memory as an area, reserved memory as a line, the marks by name."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from virtualgpu.readings.curve import Mark, MemoryCurve
from virtualgpu.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 3  # of names above the plot; names without room are in the alt text only
_ROW = 14  # points from one to the next


def show_plot(curve: MemoryCurve) -> None:
    """Plot the curve and show it in the notebook, with its description as alt text."""
    import matplotlib

    from virtualgpu.pictures import style

    with matplotlib.rc_context():
        style.use()
        style.show(plot(curve), alt=curve.describe())


def plot(curve: MemoryCurve) -> Figure:
    """Return the figure. Its title states the peak in MiB, its axis whether that is measured or virtual."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from virtualgpu.pictures import style

    figure = Figure()
    axes = figure.add_subplot()
    allocated = [n / MIB for n in curve.allocated_bytes]
    reserved = [n / MIB for n in curve.reserved_bytes]
    steps = range(len(allocated))
    line: dict[str, Any] = {"drawstyle": "steps-post"} if curve.every_event else {"marker": "o", "markersize": 4}
    axes.plot(steps, reserved, color=style.ORANGE, label="reserved by PyTorch", **line)
    axes.plot(steps, allocated, color=style.BLUE, label="allocated to tensors", **line)
    area: dict[str, Any] = {"step": "post"} if curve.every_event else {}
    axes.fill_between(steps, allocated, color=style.BLUE, alpha=0.18, linewidth=0, **area)
    peak = allocated.index(max(allocated))
    axes.plot([peak], [allocated[peak]], "o", color=style.BLUE, markersize=7)
    axes.set_xlim(0, max(len(allocated) - 1, 1))
    axes.set_ylim(0, max(*reserved, *allocated, 1 / 64) * 1.08)
    axes.set_ylabel(f"MiB on {curve.device}, {curve.numbers}")
    axes.set_xlabel("event: an allocation, a free, or a change of the reserve" if curve.every_event else "mark")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:,g}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    rows = _write(figure, axes, curve.marks, style.MUTED)
    axes.set_title(textwrap.fill(curve.finding(), 60), pad=6 + _ROW * rows)
    return figure


def _write(figure: Figure, axes: Any, marks: tuple[Mark, ...], color: str) -> int:
    """Draw a line for each mark, and its name above the plot in the first row with room; return the rows used."""
    figure.draw_without_rendering()
    ends = [0.0] * _ROWS
    used = 0
    for mark in marks:
        axes.axvline(mark.point, color=color, linewidth=0.8, linestyle=(0, (4, 3)))
        text = axes.annotate(
            mark.name, (mark.point, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
            color=color, fontsize="small", annotation_clip=False,
        )  # fmt: skip
        width = text.get_window_extent().width
        left = axes.transData.transform((mark.point, 0))[0]
        if left + width > axes.bbox.x1:
            left -= width
            text.set_horizontalalignment("right")
        row = next((row for row, end in enumerate(ends) if left >= end), None)
        if row is None:
            text.remove()
            continue
        text.xyann = (0, 3 + _ROW * row)
        ends[row] = left + width + 6
        used = max(used, row + 1)
    return used
