"""Renders the machine card, a heading and rows of label and text, as text, SVG and HTML.

Equal cards give equal bytes.
"""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, PAPER, RULE, scale
from virtualgpu.pictures.svg import both_themes, image

_WIDTH = 640  # px
_LINE = 18  # px from one line to the next
_LEFT, _COLUMN = 22, 92  # px: left edges of labels and texts
_CHARACTERS = 74  # of a row's text in a line; DejaVu Sans, the widest usual font, still fits


@dataclass(frozen=True)
class Card:
    """A heading and rows of (label, text); `real` chooses the colour of the edge."""

    heading: str
    rows: tuple[tuple[str, str], ...]
    real: bool = False


def as_text(card: Card) -> str:
    """Return the card for a terminal, at most 88 characters wide."""
    lines = [card.heading]
    for label, text in card.rows:
        lines += textwrap.wrap(text, 88, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)
    return "\n".join(lines)


def as_svg(card: Card) -> str:
    """Return the card as an SVG, 640 px wide."""
    parts, y = [], 30
    for label, text in card.rows:
        y += _LINE + 4
        parts.append(f'<text x="{_LEFT}" y="{y}" fill="{MUTED}">{_escape(label)}</text>')
        for number, line in enumerate(textwrap.wrap(text, _CHARACTERS)):
            y += _LINE if number else 0
            parts.append(f'<text x="{_COLUMN}" y="{y}" fill="{INK}">{_escape(line)}</text>')
    height = y + 16
    heading = textwrap.shorten(card.heading, 66, placeholder=" …")
    frame = f'x="0.5" y="0.5" height="{height - 1}"'
    edge = GREEN if card.real else BLUE
    return both_themes(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH * scale():.0f}" height="{height * scale():.0f}"><title>{_escape(_described(card))}</title>'
        f'<rect {frame} width="{_WIDTH - 1}" rx="6" fill="{PAPER}" stroke="{RULE}"/>'
        f'<rect {frame} width="7" rx="3" fill="{edge}"/>'
        '<g font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif" font-size="12.5">'
        f'<text x="{_LEFT}" y="28" font-size="15" font-weight="600" fill="{INK}">{_escape(heading)}</text>'
        f"{''.join(parts)}</g></svg>"
    )


def as_html(card: Card) -> str:
    """Return the card as an image with alt text, which an SVG output loses in JupyterLab."""
    return image(as_svg(card), _described(card))


def _described(card: Card) -> str:
    return ". ".join([card.heading, *(f"{label}: {text}".rstrip(".") for label, text in card.rows)]) + "."


def _escape(text: str) -> str:
    """Escape a text for XML, and remove control characters."""
    return html.escape("".join(c for c in text if c.isprintable()))
