"""SVG primitives: text, rectangles, lines and bars from numbers.

Every function returns a piece of SVG; `Picture` joins them into a document. Coordinates are rounded to one
decimal, so that the same numbers give the same text on every machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from .style import DARK, EDGE, INK, MUTED, PAPER, RULE, SEAM

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
SMALL, BODY, HEAD = 13.0, 14.0, 18.0
MARGIN = 18.0
# Widths over the font's size in DejaVu Sans, the widest of the usual fonts, and a little more.
NARROW, WIDE = frozenset(" .,:;'()[]/|-fijlrtI"), frozenset("mwMWOQ%+<>=×÷→…")
NARROW_EM, LETTER_EM, WIDE_EM, BOLD = 0.41, 0.64, 0.9, 1.13


class Live(str):
    """A piece that only a living page has: a grip, a hint what to touch. A still picture leaves it out."""


@dataclass(frozen=True)
class Picture:
    """A drawing: its size in pixels, what a screen reader says of it, and its pieces of SVG.

    `title` says the finding in one sentence and is drawn as the head line; `body` is drawn below it, with
    y = 0 at the top of the body. Pieces that are `Live` are left out of a still picture.
    """

    width: float
    height: float
    title: str
    desc: str
    body: tuple[str, ...]
    head_lines: int = 2  # room kept for the title, so that the picture does not jump when the words change

    def text(self, *, note: str = "", scale: float = 1.0) -> str:
        """The SVG document, `note` in small letters at its foot, `scale` times its size."""
        room = self.width - 2 * MARGIN
        head = lines(MARGIN, MARGIN + HEAD, balance(self.title, room, HEAD, bold=True), size=HEAD, weight="bold")
        top = MARGIN + self.head_lines * HEAD * 1.35 + 8
        note_lines = wrap(note, room, SMALL) if note else ()
        foot = lines(MARGIN, top + self.height + SMALL, note_lines, size=SMALL, fill=MUTED)
        height = top + self.height + len(note_lines) * SMALL * 1.35 + MARGIN
        ground = rect(0.5, 0.5, self.width - 1, height - 1, fill=PAPER, stroke=RULE, radius=6)
        still = "".join(piece for piece in self.body if not isinstance(piece, Live))
        return both_themes(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {num(self.width)} {num(height)}"'
            f' width="{num(self.width * scale)}" height="{num(height * scale)}"'
            f' style="display:block;max-width:100%;height:auto" font-family="{FONT}">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.desc)}</desc>"
            f'{ground}{head}<g transform="translate(0 {num(top)})">{still}</g>{foot}</svg>'
        )

    def inner(self) -> str:
        """The SVG of the body alone, without a size: for a page that shows the title itself and fits the picture in."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="group" viewBox="0 0 {num(self.width)} {num(self.height)}"'
            f' font-family="{FONT}">{"".join(self.body)}</svg>'
        )


def image(document: str, alt: str) -> str:
    """An HTML image of an SVG document, with the alt text that JupyterLab does not show of an SVG output.

    The document stands in it nearly as it is: in base64 it would be a fifth longer.
    """
    # double quotes take three letters in a URI, single ones one
    singly = re.sub(r"<[^>]*>", lambda tag: _ATTRIBUTE.sub(_in_single_quotes, tag[0]), document)
    return f'<img alt={quoteattr(alt)} src="data:image/svg+xml,{quote(singly, safe=_AS_IT_IS)}" style="max-width:100%">'


_ATTRIBUTE = re.compile(r'="([^"]*)"')
_AS_IT_IS = " '<>/:=;,()!$*+?@[]{}|^`~"  # of ASCII all but " # % and &, which HTML or a URI reads otherwise


def _in_single_quotes(attribute: re.Match[str]) -> str:
    return "='" + attribute[1].replace("'", "&apos;") + "'"


def both_themes(document: str) -> str:
    """An SVG document that takes the dark palette where its page has a dark colour scheme, as JupyterLab's dark theme.

    Only colours of `style` in the attributes fill and stroke change; an image on a page follows that page's scheme.
    """
    style = f"<style>@media (prefers-color-scheme:dark){{{_dark_rules()}}}</style>"
    return f"{document.removesuffix('</svg>')}{style}</svg>"


@functools.cache
def _dark_rules() -> str:
    # of an image only: within a page the rules would be the page's
    rule = 'svg:root [{0}="{1}"]{{{0}:{2}}}'
    return "".join(rule.format(part, *pair) for pair in DARK.items() for part in ("fill", "stroke"))


def num(value: float) -> str:
    """Format `value` with at most one decimal."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = BODY,
    anchor: str = "start",
    weight: str = "",
    fill: str = INK,
    halo: bool = False,
) -> str:
    """Words with their base line at `y`; `anchor` is start, middle or end; a `halo` lifts them off a pattern."""
    extra = f' font-weight="{weight}"' if weight else ""
    extra += f' text-anchor="{anchor}"' if anchor != "start" else ""
    extra += f' stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return f'<text x="{num(x)}" y="{num(y)}" font-size="{num(size)}" fill="{fill}"{extra}>{escape(words)}</text>'


def lines(x: float, y: float, words: Iterable[str], *, size: float = BODY, weight: str = "", fill: str = INK) -> str:
    """Draw lines of text under one another, the first with its base line at `y`."""
    return "".join(
        text(x, y + i * size * 1.35, line, size=size, weight=weight, fill=fill) for i, line in enumerate(words)
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str = "none",
    stroke: str = "",
    dash: str = "",
    radius: float = 0,
    edge: float = 1,
    opacity: float = 1,
    takes_pointer: bool = False,
) -> str:
    """A rectangle; `edge` is its stroke's width. With `takes_pointer` it can be touched where nothing is filled."""
    extra = f' stroke="{stroke}"' if stroke else ""
    extra += f" stroke-dasharray={quoteattr(dash)}" if dash else ""
    extra += f' rx="{num(radius)}"' if radius else ""
    extra += f' stroke-width="{num(edge)}"' if edge != 1 else ""
    extra += f' fill-opacity="{num(opacity)}"' if opacity != 1 else ""
    extra += ' pointer-events="all"' if takes_pointer else ""
    return (
        f'<rect x="{num(x)}" y="{num(y)}" width="{num(max(width, 0))}" height="{num(max(height, 0))}"'
        f' fill="{fill}"{extra}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK, width: float = 1, dash: str = "") -> str:
    extra = f" stroke-dasharray={quoteattr(dash)}" if dash else ""
    return (
        f'<line x1="{num(x1)}" y1="{num(y1)}" x2="{num(x2)}" y2="{num(y2)}" stroke="{stroke}"'
        f' stroke-width="{num(width)}"{extra}/>'
    )


def shape(points: Iterable[tuple[float, float]], *, fill: str, stroke: str = "") -> str:
    """A filled polygon."""
    corners = " ".join(f"{num(x)},{num(y)}" for x, y in points)
    extra = f' stroke="{stroke}" stroke-width="1"' if stroke else ""
    return f'<polygon points="{corners}" fill="{fill}"{extra}/>'


def hatch(x: float, y: float, width: float, height: float, *, stroke: str = EDGE, gap: float = 7) -> str:
    """Fill a rectangle with diagonal strokes, so that colour alone need not distinguish it.

    They are cut to the rectangle here rather than by a pattern, whose id would clash with that of another
    picture on the same page.
    """
    strokes = []
    offset = gap
    while offset < width + height:
        # the stroke runs from (offset, 0) on the upper edge down to (0, offset) on the left one
        x1, y1 = (offset, 0.0) if offset <= width else (width, offset - width)
        x2, y2 = (0.0, offset) if offset <= height else (offset - height, height)
        strokes.append(f"M{num(x + x1)} {num(y + y1)}L{num(x + x2)} {num(y + y2)}")
        offset += gap
    return f'<path d="{"".join(strokes)}" stroke="{stroke}" stroke-width="1" fill="none"/>' if strokes else ""


def bar(x: float, y: float, width: float, height: float, *, fill: str, hatched: bool = False, stroke: str = "") -> str:
    """Draw a filled rectangle, hatched where colour alone must not distinguish it; nothing if it is empty."""
    if width <= 0 or height <= 0:
        return ""
    drawn = rect(x, y, width, height, fill=fill, stroke=stroke or edge(fill))
    return drawn + (hatch(x, y, width, height, stroke=edge(fill)) if hatched else "")


def edge(fill: str) -> str:
    """The colour of the edge around `fill` and of what hatches it."""
    return EDGE if fill in (PAPER, RULE, MUTED, "none") else SEAM


def key(x: float, y: float, words: str, *, fill: str, hatched: bool = False) -> str:
    """A legend's entry: a small bar and what it stands for."""
    return bar(x, y - 11, 16, 12, fill=fill, hatched=hatched) + text(x + 22, y, words, size=SMALL, fill=MUTED)


def length(words: str, size: float = BODY, *, bold: bool = False) -> float:
    """Estimate the width of `words`, on the generous side."""
    return _ems(words) * size * (BOLD if bold else 1)


@functools.lru_cache(maxsize=4096)  # lines are broken anew, word by word, until they are about equally long
def _ems(words: str) -> float:
    return sum(NARROW_EM if c in NARROW else WIDE_EM if c in WIDE else LETTER_EM for c in words)


def balance(words: str, width: float, size: float = BODY, *, bold: bool = False) -> tuple[str, ...]:
    """Wrap into lines of about equal length: for a title, whose last line would else be a single word."""
    fewest = len(wrap(words, width, size, bold=bold))
    while len(wrap(words, width - size, size, bold=bold)) == fewest > 1:
        width -= size
    return wrap(words, width, size, bold=bold)


def wrap(words: str, width: float, size: float = BODY, *, bold: bool = False) -> tuple[str, ...]:
    """Break `words` into lines that fit `width`."""
    done: list[str] = []
    current = ""
    for word in words.split():
        longer = f"{current} {word}".strip()
        if current and length(longer, size, bold=bold) > width:
            done.append(current)
            current = word
        else:
            current = longer
    return (*done, current) if current else tuple(done)


def dot(x: float, y: float, radius: float, *, fill: str, stroke: str = PAPER) -> str:
    """A filled circle, such as the marker of a point in a plot."""
    return f'<circle cx="{num(x)}" cy="{num(y)}" r="{num(radius)}" fill="{fill}" stroke="{stroke}"/>'


def polyline(points: Iterable[tuple[float, float]], *, stroke: str = INK, width: float = 1, dash: str = "") -> str:
    """A line through all points, not filled; `points` that would round to the one before are left out."""
    corners: list[str] = []
    for x, y in points:
        corner = f"{num(x)},{num(y)}"
        if not corners or corners[-1] != corner:
            corners.append(corner)
    extra = f" stroke-dasharray={quoteattr(dash)}" if dash else ""
    return (
        f'<polyline points="{" ".join(corners)}" fill="none" stroke="{stroke}" stroke-width="{num(width)}"'
        f' stroke-linejoin="round"{extra}/>'
    )


def boxes(rects: Iterable[tuple[float, float, float, float]], *, fill: str = "none", stroke: str = "") -> str:
    """Many rectangles (x, y, width, height) of one look as one piece of SVG; nothing if there are none."""
    path = "".join(f"M{num(x)} {num(y)}h{num(w)}v{num(h)}h{num(-w)}z" for x, y, w, h in rects if w > 0 and h > 0)
    extra = f' stroke="{stroke}"' if stroke else ""
    return f'<path d="{path}" fill="{fill}"{extra}/>' if path else ""


def marks(x: float, y: float, count: int, *, pitch: float, height: float, fill: str, gap: float = 2) -> str:
    """A row of `count` equal marks as one piece of SVG, their upper left corner at (x, y); nothing for no marks."""
    if count <= 0:
        return ""
    long = num(pitch - gap)
    return (
        f'<path d="M{num(x)} {num(y + height / 2)}h{num(count * pitch - gap)}" stroke="{fill}"'
        f' stroke-width="{num(height)}" stroke-dasharray="{long} {num(gap)}"/>'
    )


def code(x: float, y: float, words: str, *, size: float = SMALL, weight: str = "", fill: str = INK) -> str:
    """A line of a program, in letters of one width: about 0.61 of `size` each."""
    extra = f' font-weight="{weight}"' if weight else ""
    family = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
    return (
        f'<text x="{num(x)}" y="{num(y)}" font-size="{num(size)}" fill="{fill}" font-family={quoteattr(family)}'
        f' xml:space="preserve"{extra}>{escape(words)}</text>'
    )
