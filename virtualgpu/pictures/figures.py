"""A matplotlib figure as an image: SVG that follows the theme of its page, or PNG where SVG would be large.

The rules for the dark theme name the colours that matplotlib has written: a program without style sheets shows the
light picture.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from .palette import BLACK, BLUE, DARK, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 110_000  # bytes of SVG, some 150 kB in a notebook; points by the thousand take more, and are PNG

# A plot's letters are light in the dark, on a filled shape too, which therefore is darker than a picture's; lines and
# letters need light colours: the palette's own are light enough, but for BLUE and black, and SKY beside that BLUE.
DIM = {ORANGE: "#926400", SKY: "#2273A6", GREEN: "#007D62", YELLOW: "#777000", VERMILLION: "#B84D00", PURPLE: "#A94E7C"}
SHAPES = DARK | DIM | {BLACK: DARK[INK]}
LETTERS = {colour: SHAPES[colour] for colour in (PAPER, INK, MUTED, RULE, BLACK, BLUE)}
LINES = LETTERS | {SKY: DARK[SKY]}


def image(figure: Figure) -> tuple[str, bytes]:
    """Return the MIME type and the data of `figure`. The same drawing gives the same data, at any time."""
    svg = themed(figure).encode()
    return ("image/svg+xml", svg) if len(svg) <= MOST else ("image/png", _png(figure))


def themed(figure: Figure) -> str:
    """Return `figure` as SVG, as wide as its PNG would be, with the dark theme's colours for a page that is dark."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpulab"}):
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = stream.getvalue()
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg[svg.index("<svg") :])
    width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'width="{width}" height="{height}"', svg, count=1)
    style = f"<style>@media (prefers-color-scheme:dark){{{dark_rules(svg)}}}</style>"
    return f"{svg.rstrip().removesuffix('</svg>')}{style}</svg>"


def dark_rules(svg: str) -> str:
    """Return the rules for the colours in `svg`; matplotlib writes them in small letters and leaves out black fills."""
    rules = [f"svg{{fill:{DARK[INK]}}}"]
    for light, dark in SHAPES.items():
        if f'fill="{light.lower()}"' in svg:  # the ground of a hatched shape
            rules.append(f'[fill="{light.lower()}"]{{fill:{dark}}}')
    for elements, part, colours in (
        (":not(text,tspan)", "fill", SHAPES),
        (":is(text,tspan)", "fill", LETTERS),
        ("", "stroke", LINES),
    ):
        for light, dark in colours.items():
            written = f"{part}: {light.lower()}"
            if written in svg:
                rules.append(f'{elements}[style*="{written}"]{{{part}:{dark}!important}}')
    return "".join(rules)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
