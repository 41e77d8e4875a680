"""Plain tables: columns of texts, numbers to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Lines of aligned columns; the first `numbers` columns are aligned to the right."""
    every = [head, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    sides = [str.rjust] * numbers + [str.ljust] * (len(head) - numbers)
    lines = (
        "  ".join(side(text, width) for side, text, width in zip(sides, row, widths, strict=True)) for row in every
    )
    return "\n".join(line.rstrip() for line in lines)


def clipped(text: str, length: int) -> str:
    """The text in one line of at most `length` letters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
