"""Formats durations with four digits and a fitting unit, and rates with three digits."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = (("s", 1e3), ("ms", 1.0), ("µs", 1e-3), ("ns", 1e-6))  # with their milliseconds


def durations(times_ms: Sequence[float], *, of: float | None = None) -> tuple[list[str], str]:
    """Return milliseconds as texts in one unit, and the unit: that of `of`, by default of the first."""
    size = abs(times_ms[0] if of is None else of)
    # Rounded to four digits first, so that 999.96 µs is 1.000 ms.
    size = float(f"{size:.4g}")
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if size >= scale), _UNITS[-1] if size else _UNITS[1])
    value = size / scale
    digits = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return [f"{time / scale:,.{digits}f}" for time in times_ms], unit


def duration(time_ms: float) -> str:
    """Return milliseconds with a fitting unit, such as "412.3 µs"."""
    (text,), unit = durations([time_ms])
    return f"{text} {unit}"


def rounded(value: float) -> str:
    """Return a rate with three digits: 77,712 is "77,700", 12.04 is "12.0"."""
    shown = float(f"{value:.3g}")
    return f"{shown:,.0f}" if abs(shown) >= 100 else f"{shown:#.3g}"
