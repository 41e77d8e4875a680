"""Find the row of docs/errors.md that explains an error: the longest of its messages that the error has."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_HERE = Path(__file__).parent
_PLACES = _HERE / "errors.md", _HERE.parents[1] / "docs" / "errors.md"  # in a wheel, and in the repository
_SHORT = 12  # characters without digits: a message with no longer piece says too little
_PYTHONS = "invalid literal for int()", "range() arg 3", "[Errno 22]"  # which have many causes
_NUMBER = re.compile(r"\d+(\\\.\d+)?")  # in a pattern; whole numbers stand for any, an amount such as 20.00 for itself


def explanation(error: str) -> str | None:
    """Return cause, repair and lesson of an error, given as "TypeError: …"; None for an unknown one."""
    found = [(len(pattern), row) for pattern, row in _rows() if re.search(pattern, error, re.DOTALL)]
    if not found:
        return None
    cause, repair, lesson = max(found)[1]
    more = f" Lesson {lesson[:2]}." if lesson[:2].isdigit() else ""
    return f"A known cause of this message (docs/errors.md): {cause} What to do: {repair}{more}"


@functools.cache
def _rows() -> list[tuple[str, tuple[str, str, str]]]:
    """Return a pattern for each message of the table, with the other cells of its row."""
    text = next(place for place in _PLACES if place.exists()).read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [
        (pattern, (_plain(cells[1]), _plain(cells[2]), cells[3].strip()))
        for cells in rows
        if len(cells) == 4 and "without a GPU" not in cells[1]  # here is one
        for at, message in enumerate(re.findall(r"(?<!`)`(?!`)([^`]+)`", cells[0]))
        if (pattern := _pattern(message)) and (not at or " " in message)  # a single word in brackets is no message
    ]


def _pattern(message: str) -> str:
    """Return what matches a message, in which … stands for anything; "" for one that says too little."""
    pieces = [piece.strip() for piece in re.sub(r"^(\w+\.)+(?=[A-Z]\w+:)", "", message).split("…") if piece.strip(" .")]
    longest = max((len(re.sub(r"\d", "", piece)) for piece in pieces), default=0)
    if longest <= _SHORT or any(each in message for each in _PYTHONS):
        return ""
    return ".*".join(_NUMBER.sub(lambda found: found[0] if found[1] else r"\d+", re.escape(piece)) for piece in pieces)


def _plain(cell: str) -> str:
    return re.sub(r"`|\[|\]\([^)]*\)|(?<!\S)\*(?=\S)|(?<=\S)\*(?!\w)", "", cell).strip()
