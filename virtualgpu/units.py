"""Format byte counts, durations, rates and counted nouns for people."""

from __future__ import annotations

from collections.abc import Sequence

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_TIME_UNITS = (("s", 1e3), ("ms", 1.0), ("µs", 1e-3), ("ns", 1e-6))  # with their milliseconds


def in_mib(nbytes: float) -> str:
    """Bytes as a number of MiB with one decimal, without the unit: "1,234.5"."""
    return f"{nbytes / MIB:,.1f}"


def mib(nbytes: int) -> str:
    """Bytes in MiB with one decimal, from 1000 on with none, below a tenth in bytes: "12.3 MiB", "512 bytes"."""
    size = nbytes / MIB
    if abs(size) < 0.1 and nbytes:
        return f"{nbytes:,} bytes"
    return f"{size:,.{0 if abs(size) >= 1000 else 1}f} MiB"


def gib(nbytes: int) -> str:
    """Bytes in GiB with one decimal: "15.8 GiB"."""
    return f"{nbytes / GIB:.1f} GiB"


def decimal_size(nbytes: float) -> str:
    """Bytes in the decimal units of data sheets, with three digits: "19.3 MB" is 19.3 * 10⁶ bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if float(f"{nbytes:.3g}") >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.3g} bytes"


def duration(seconds: float) -> str:
    """Seconds with three digits: "12.3 s", "164 ms", "850 µs"; from two minutes on "2 min 05 s"."""
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes:,} min {rest:02d} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        value = seconds * scale
        if value >= 0.9995:
            return f"{_three_digits(value)} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def duration_ms(time_ms: float) -> str:
    """Milliseconds with four digits, in the unit that suits them: "412.3 µs"."""
    (text,), unit = durations_ms([time_ms])
    return f"{text} {unit}"


def durations_ms(times_ms: Sequence[float], *, of: float | None = None) -> tuple[list[str], str]:
    """Milliseconds as texts in one unit, and the unit: the one that suits `of`, by default the first of them."""
    size = abs(times_ms[0] if of is None else of)
    # Rounded to four figures first, so that 999.96 µs is 1.000 ms.
    size = float(f"{size:.4g}")
    fitting = next(((unit, scale) for unit, scale in _TIME_UNITS if size >= scale), None)
    unit, scale = fitting or (_TIME_UNITS[-1] if size else _TIME_UNITS[1])
    value = size / scale
    digits = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return [f"{time / scale:,.{digits}f}" for time in times_ms], unit


def three_figures(value: float) -> str:
    """A rate rounded to three figures: 77,712 is "77,700", 12.04 is "12.0"."""
    shown = float(f"{value:.3g}")
    return f"{shown:,.0f}" if abs(shown) >= 100 else f"{shown:#.3g}"


def with_prefix(number: float) -> str:
    """A number with three digits and an SI prefix, to be followed by its unit: "1.31 T", "45.2 M", "850 "."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * scale:
            return f"{_three_digits(number / scale)} {prefix}"
    return f"{_three_digits(number)} "


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 batch", "3 batches", "2 GPUs"."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number} {noun}{ending}"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
