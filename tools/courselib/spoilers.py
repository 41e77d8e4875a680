"""Finds the texts of a lecture that tell the answer of a prediction to a reader who has not guessed yet.

The answer's number is what its `compare` printed when the lecture was built. A text tells it by a number that equals it
as a reader rounds, to as many significant digits as the text writes (one digit only where the two are equal), and that

- stands with the answer's unit (`3.5 times`, `3.5 ×`, `7 lines`, `seven lines`), or as in `seven of thirteen`,
  `line 11` where the question asks how many of thirteen, or which line; words are read from one to thirteen, and
  `twice as`, `twice the`; or
- is the same in the other form: `31 % more` for 1.31 times, `1.31 times` for 31 %; or
- has three significant digits or more; or two, if they are the whole answer and no other word stands behind them.

So a bare 2 tells nothing, nor does `64 rows` where the answer is 64 %. Nor does a number of the question itself, which
is given. A verdict in words alone (“all”, “none”, “the same”) is for the author's eye.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

WORDS = {
    **{"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7},
    **{"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13},
}
TIMES = r"times\b|×(?!\s*\d)|x\b|-?fold\b"
PERCENT = r"%|per\s?cent\b"
_WORD = "|".join(WORDS)
_ANSWER = re.compile(
    r"^(?:measured|virtual|recorded|computed): (-?[\d,.]+) ?(.*?) \(no prediction was typed\)", re.MULTILINE
)
_NUMBER = re.compile(r"(?<![\w^.,{=])(?<!\w[-–/])(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(\.\d+)?(?![\d^])(?!\.\d)")


@dataclass(frozen=True)
class Answer:
    """What `compare` printed for a question."""

    question: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:,.10g} {self.unit}".rstrip()

    @property
    def behind(self) -> str:
        """A pattern of what stands behind the number where it is the answer: its unit, or what the question counts."""
        if self.unit in ("%", "per cent"):
            return PERCENT
        if self.unit == "times" or re.search(r"how (?:many times|often)\b", self.question, re.IGNORECASE):
            return TIMES
        if self.unit:
            return rf"{re.escape(self.unit.removesuffix('s'))}s?(?!\w)"
        asked = re.search(r"how many\b(.*)", self.question, re.IGNORECASE | re.DOTALL)
        counted = asked.group(1) if asked else ""
        nouns = [rf"{noun}s?\b" for noun in re.findall(r"\b([a-z]{3,})s\b", counted)]
        totals = [rf"of (?:the |its |these )?(?:{number:g}|{_in_words(number)})\b" for number, *_ in _numbers(counted)]
        return "|".join(nouns + totals) or "(?!)"

    @property
    def before(self) -> str:
        """A pattern of what stands before it: `line` where the question is, which line."""
        asked = re.search(r"\bwhich (\w+)", self.question, re.IGNORECASE)
        return rf"\b{asked.group(1)} $" if asked else "(?!)"

    def told_in(self, sentence: str) -> bool:
        """Whether the sentence tells the number, by the rule of this module."""
        given = {number for number, *_ in _numbers(self.question)}
        often = re.search(r"\bhow often\b", self.question, re.IGNORECASE)
        twice = r"\btwice\b" if often else r"\btwice (?:as|the|what|that)\b|^twice\b"
        if self.behind == TIMES and self.value == 2 and 2 not in given and re.search(twice, sentence, re.IGNORECASE):
            return True
        for number, digits, before, behind in _numbers(sentence):
            if number in given:
                continue
            if _equal(number, self.value, digits):
                if re.match(rf"\s*(?:{self.behind})", behind, re.IGNORECASE) or re.search(
                    self.before, before, re.IGNORECASE
                ):
                    return True
                alone = not re.match(r"[\s-]*(?:[^\W\d_]|%|×|°)", behind) and not re.search(r"\blessons? $", before)
                if digits > 2 or (digits == 2 and alone and number == self.value):
                    return True
            other = self._other_form
            if other and re.match(rf"\s*(?:{other[1]})", behind, re.IGNORECASE) and _equal(number, other[0], digits):
                return True
        return False

    @property
    def _other_form(self) -> tuple[float, str] | None:
        """A factor below two as a percentage, and a percentage as a factor; with the pattern of its unit."""
        if self.behind == PERCENT:
            return 1 + self.value / 100, TIMES
        if self.behind == TIMES and 0 < self.value < 2 and self.value != 1:
            return 100 * (self.value - 1 if self.value > 1 else self.value), PERCENT
        return None


def _numbers(text: str) -> Iterator[tuple[float, int, str, str]]:
    """Each number of the text, its significant digits, and the text before and behind it."""
    for found in _NUMBER.finditer(text):
        whole, part = found.group(1).replace(",", ""), found.group(2) or ""
        digits = (whole + part[1:] if part else whole.rstrip("0")).lstrip("0")
        yield float(whole + part), len(digits), text[: found.start()], text[found.end() :]
    for found in re.finditer(rf"\b(?:{_WORD})\b", text, re.IGNORECASE):
        yield WORDS[found.group().lower()], 1, text[: found.start()], text[found.end() :]


def _in_words(number: float) -> str:
    return next((word for word, worth in WORDS.items() if worth == number), "(?!)")


def _equal(number: float, value: float, digits: int) -> bool:
    """Whether `number`, written with so many significant digits, is `value` rounded to them."""
    if digits < 2:
        return number == abs(value)
    return f"{number:.{digits - 1}e}" == f"{abs(value):.{digits - 1}e}"


def compared(outputs: str) -> list[tuple[float, str]]:
    """Number and unit of each `compare` of a cell, in order."""
    return [(float(number.replace(",", "")), unit) for number, unit in _ANSWER.findall(outputs)]


def tellers(answer: Answer, cells: list[NotebookNode], end: int) -> Iterator[tuple[NotebookNode, str]]:
    """The cells and sentences that tell the answer, which cell number `end` compares: texts and comments up to there,
    and the two texts below. What is folded in <details> tells nothing."""
    below = [cell for cell in cells[end + 1 :] if cell.cell_type == "markdown" and _open_text(cell.source)][:2]
    for cell in [*cells[: end + 1], *below]:
        text = _open_text(cell.source) if cell.cell_type == "markdown" else _comments(cell.source)
        for sentence in _sentences(text):
            if answer.told_in(sentence):
                yield cell, sentence


def _open_text(source: str) -> str:
    """The text without what is folded, and without the targets of links."""
    text = re.sub(r"<details>.*?</details>", "", source, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text).strip()


def _comments(source: str) -> str:
    """The comments of a cell, a line each; a magic in its first line is none."""
    python = re.sub(r"\A%%.*\n?", "", source)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(python).readline))
    except (tokenize.TokenError, IndentationError):  # a part of a script
        return "\n\n".join(re.findall(r"#.*", python))
    return "\n\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.)\s?)", text):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z“*`(])", " ".join(paragraph.split()))
