"""Plots `Transfers`: time and bandwidth by size, with the fitted lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtualgpu.units import decimal_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .results import Series, Transfers


def show_plot(found: Transfers) -> None:
    """Plot it and show it in the notebook, with its description as alt text."""
    import matplotlib

    from virtualgpu.pictures import style

    with matplotlib.rc_context():
        style.use()
        style.show(plot(found), alt=found.describe())


def plot(found: Transfers) -> Figure:
    """Return the figure; its title states the largest bandwidth."""
    from matplotlib.figure import Figure

    from virtualgpu.pictures import style

    figure = Figure(figsize=(9.2, 4.0))
    times, rates = figure.subplots(1, 2)
    colors = {"pinned": style.BLUE, "pageable": style.ORANGE, "on the GPU": style.BLUE}
    for series in found.series:
        if series.copies:
            _draw(times, rates, series, colors[series.kind])
    for axes in (times, rates):
        axes.set_xscale("log")
        axes.set_xlabel("size of the copy")
        axes.xaxis.set_major_formatter(lambda value, position: decimal_size(value))
    times.set_yscale("log")
    times.set_ylabel(f"milliseconds, {found.numbers}")
    times.yaxis.set_major_formatter(lambda value, position: f"{value:,g}")
    rates.set_ylabel(f"GB/s, {found.numbers}")
    rates.set_ylim(bottom=0)
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    title = f"{found.finding()}\n{found.route} ({found.gpu})"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=style.INK)
    return figure


def _draw(times: Any, rates: Any, series: Series, color: str) -> None:
    sizes = [copy.nbytes for copy in series.copies]
    points: dict[str, Any] = {"marker": "o", "linestyle": "none", "color": color}
    times.plot(sizes, [copy.ms for copy in series.copies], label=series.kind, **points)
    rates.plot(sizes, [copy.gbps for copy in series.copies], **points)
    line = series.fit
    if line is None:
        return
    between = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
    times.plot(between, [line.ms(x) for x in between], color=color, linewidth=1.5, label=f"fit, {series.kind}")
    rates.plot(between, [x / line.ms(x) * 1e-6 for x in between], color=color, linewidth=1.5)
