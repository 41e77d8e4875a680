"""Draws a guess beside the actual number: as two bars, or on a logarithmic scale from a factor of three on.

Text and line colours are the page's, for light and dark themes. The line of text above has the same content.
"""

from __future__ import annotations

import html
import math

from virtualgpu.pictures.style import BLUE

_APART = 3  # from this factor on, the scale is logarithmic
_MOST_TICKS = 7


def as_html(line: str, guess: float, actual: float, source: str, because: str = "") -> str:
    """Return HTML: `line`, under it the finite numbers `guess` and `actual` to scale, and `because`."""
    comparable = guess > 0 < actual or guess < 0 > actual
    far = comparable and max(guess / actual, actual / guess) >= _APART
    rows = _points(abs(guess), abs(actual), source) if far else _bars(guess, actual, source)
    grid = "display:grid;grid-template-columns:max-content 1fr;column-gap:1em;row-gap:4px;align-items:center"
    reason = f'<div style="margin-top:.5em">{html.escape(because)}</div>' if because else ""
    return (
        f'<div style="max-width:40em;margin:.2em .5em .6em"><div style="margin-bottom:.4em">{html.escape(line)}</div>'
        f'<div aria-hidden="true" style="{grid}">{rows}</div>{reason}</div>'
    )


def _bars(guess: float, actual: float, source: str) -> str:
    """Return bars from zero, to the left for a negative number."""
    low, high = min(guess, actual, 0.0), max(guess, actual, 0.0)
    # halved, since the difference of two large numbers may overflow
    span = high / 2 - low / 2 or 1.0

    def bar(value: float, look: str) -> str:
        left, right = (100 * ((end / 2 - low / 2) / span) for end in (min(value, 0.0), max(value, 0.0)))
        return _box(f"left:{left:.4g}%;width:{right - left:.4g}%;min-width:2px;top:0;bottom:0;{look}")

    return _row("your prediction", bar(guess, _OUTLINE)) + _row(source, bar(actual, _FILLED))


def _points(guess: float, actual: float, source: str) -> str:
    """Return two positive numbers as points on decades, with a line between them."""
    low = math.floor(math.log10(min(guess, actual)))
    high = math.ceil(math.log10(max(guess, actual)))

    def place(exponent: float) -> float:
        return 3 + 94 * (exponent - low) / (high - low)

    at_guess, at_actual = place(math.log10(guess)), place(math.log10(actual))
    ticks = range(low, high + 1, -(-(high - low) // (_MOST_TICKS - 1)))
    rules = "".join(_box(f"left:{place(t):.4g}%;top:-2px;bottom:-2px;border-left:{_FAINT}") for t in ticks)
    way = f"left:{min(at_guess, at_actual):.4g}%;width:{abs(at_guess - at_actual):.4g}%"
    way = _box(f"{way};top:50%;border-top:2px solid currentColor;opacity:.6")
    dot = "width:12px;top:50%;height:12px;transform:translate(-50%,-50%);border-radius:50%"
    ring = _box(f"left:{at_guess:.4g}%;{dot};{_OUTLINE};background:var(--jp-layout-color0,Canvas)")
    full = _box(f"left:{at_actual:.4g}%;{dot};{_FILLED}")
    labels = "".join(
        f'<span style="position:absolute;left:{place(t):.4g}%;transform:translateX(-50%)">{_power(t)}</span>'
        for t in ticks
    )
    caption = _row("logarithmic scale", labels, height="1.4em", small=True)
    return _row("your prediction", rules + way + ring) + _row(source, rules + full) + caption


_OUTLINE = "box-sizing:border-box;border:2px solid currentColor"
_FILLED = f"background:{BLUE};box-sizing:border-box;border:1px solid {BLUE}"
_FAINT = "1px solid rgba(128,128,128,.5)"


def _box(style: str) -> str:
    return f'<div style="position:absolute;{style}"></div>'


def _row(label: str, drawn: str, *, height: str = "14px", small: bool = False) -> str:
    size = "font-size:.85em;" if small else ""
    return (
        f'<span style="{size}white-space:nowrap">{html.escape(label)}</span>'
        f'<div style="{size}position:relative;height:{height}">{drawn}</div>'
    )


def _power(exponent: int) -> str:
    if -3 <= exponent <= 6:
        return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:g}"
    return f"10<sup>{exponent}</sup>".replace("-", "−")
