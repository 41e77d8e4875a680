"""Visual style of the course: palette, matplotlib settings, scale for a lecture hall.

A picture follows the theme of the page that shows it: SVG by `svg.both_themes`, a matplotlib figure by `figures`.
Nothing is drawn here; `show` puts a finished matplotlib figure on the page with its alt text.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .palette import (
    BLACK,
    BLUE,
    DARK,
    EDGE,
    GREEN,
    INK,
    MUTED,
    ON,
    ORANGE,
    PALETTE,
    PAPER,
    PURPLE,
    RULE,
    SEAM,
    SKY,
    VERMILLION,
    YELLOW,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Its colours are `gpulab.style`'s too: plots of the lessons take them from there.
__all__ = ["BLACK", "BLUE", "DARK", "EDGE", "GREEN", "INK", "MUTED", "ON", "ORANGE", "PALETTE", "PAPER", "PURPLE"]
__all__ += ["RULE", "SEAM", "SKY", "VERMILLION", "YELLOW", "lecture", "scale", "show", "use"]

_scale = 1.0


def scale() -> float:
    """Return the factor by which `lecture` enlarges figures and simulators; 1 at a desk."""
    return _scale


def lecture(scale: float = 1.4) -> None:
    """Enlarge every figure and simulator drawn from now on, for a hall; `lecture(1)` is the desk again."""
    global _scale
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"lecture(scale={scale!r}): scale must be a number from 0.5 to 3, such as 1.4")
    if not 0.5 <= scale <= 3:
        raise ValueError(f"lecture(scale={scale!r}): scale must be from 0.5 to 3, such as 1.4")
    _scale = float(scale)
    if "matplotlib" in sys.modules:
        use()


def use() -> None:
    """Set matplotlib's defaults: the palette, a quiet frame, letters of 11 points and more."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": MUTED,
            "axes.grid": True,
            "axes.labelcolor": INK,
            "axes.labelsize": 11,
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "figure.constrained_layout.h_pad": 0.1,  # inches of ground around: the page's may be another
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.1,
            "figure.dpi": 100 * _scale,  # enlarges letters and lines together
            "figure.facecolor": PAPER,
            "figure.figsize": (7.2, 3.6),
            "font.size": 11,
            "grid.color": RULE,
            "grid.linewidth": 0.6,
            "legend.fontsize": 11,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "savefig.dpi": "figure",
            "savefig.facecolor": PAPER,
            "text.color": INK,
            "xtick.color": MUTED,
            "xtick.labelcolor": INK,
            "xtick.labelsize": 11,
            "ytick.color": MUTED,
            "ytick.labelcolor": INK,
            "ytick.labelsize": 11,
        }
    )


def show(figure: Figure, *, alt: str) -> None:
    """Put `figure` on the page once, with `alt` as the text of it, and close it.

    The output is an HTML image, whose colours follow the page's theme: JupyterLab 4.6 and nbconvert 7.17 write no `alt`
    on an `image/png` output, whatever its metadata say. In a terminal the alt text is printed.
    """
    from .display import show as display_text_and_page

    if not hasattr(figure, "savefig"):
        raise TypeError(f"show(figure, alt=…): figure must be a matplotlib figure, not {type(figure).__name__}")
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"show(figure, alt={alt!r}): alt must say in words what the figure shows")
    page = _page(figure, alt.strip())
    _close(figure)
    display_text_and_page(alt.strip(), html=page)


def _page(figure: Figure, alt: str) -> str:
    import base64
    import html

    from .figures import image

    kind, content = image(figure)
    data = base64.b64encode(content).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:{kind};base64,{data}" style="max-width:100%">'


def _close(figure: Figure) -> None:
    # pyplot's inline back end shows every figure that is still open at the end of a cell, a second time.
    import matplotlib.pyplot as plt

    plt.close(figure)
