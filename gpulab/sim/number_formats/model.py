"""What six formats of `floats` make of one number, and of a weight of this size that updates should bring to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.floats import FORMATS, TF32, Format, walk, weight
from ..base.simulator import Result, Row
from ..base.words import percent

MOST_UPDATES = 1000
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Stored:
    """The number in one format."""

    format: Format
    asked: float
    value: float
    path: tuple[float, ...]  # a weight of this value before and after each update, cut off where it stands still

    @property
    def outcome(self) -> str:
        """What storing has done to the number, in a word or two: its error if it is of the same kind."""
        if math.isinf(self.value):
            return "overflow"
        if abs(self.asked) > self.format.largest + self.format.spacing(self.format.largest) / 2:
            return "clamped"
        if self.value == 0:
            return "underflow"
        error = self.value / self.asked - 1  # both are exact to 53 bits, a format has 24 or fewer
        # less comes of a number and a power of ten that are read together
        return "none" if abs(error) < 2**-50 else f"{'+' if error > 0 else '−'}{percent(abs(error))}".replace("-", "−")

    @property
    def fits(self) -> bool:
        """Whether the number lies between the smallest and the largest of the format."""
        return self.outcome not in ("overflow", "clamped", "underflow")

    @property
    def after(self) -> float:
        return self.path[-1]

    @property
    def stuck(self) -> bool:
        """Whether no update has moved it."""
        return len(self.path) == 1


@dataclass(frozen=True)
class Number(Result):
    """One number in all formats, one of them looked at closely."""

    asked: float
    share: float  # of the number that each update takes away
    steps: int
    chosen: Stored
    all: tuple[Stored, ...]
    exponent: int  # of the power of ten that it was given with

    @property
    def change(self) -> float:
        """What one update adds."""
        return -self.share * self.asked

    @property
    def exact(self) -> float:
        """Where the updates end without rounding."""
        return self.asked * (1 - self.steps / round(1 / self.share)) + 0.0

    @property
    def finding(self) -> str:
        it, kind = self.chosen, self.chosen.format
        asked, value = show(self.asked), show(it.value)
        after, exact = show(it.after, 3), show(self.exact, 3)
        if it.outcome in ("overflow", "clamped"):
            none = ", and it has no inf" if it.outcome == "clamped" else ""
            return f"The largest number of {kind.name} is {show(kind.largest)}{none}: {asked} becomes {value}"
        if it.outcome == "underflow":
            return f"The smallest number of {kind.name} above 0 is {show(kind.smallest, 3)}: {asked} becomes {value}"
        if kind is TF32:
            return f"tf32 is for products only: {asked} counts as {value} there; the weight stays fp32"
        found = f"{kind.name} stores {asked}"
        if it.outcome == "none":
            found += " exactly"
        elif value != asked:
            found += f" as {value}"
        if it.stuck:
            update = f"{value} {'+' if self.change > 0 else '−'} {show(abs(self.change))}"
            return f"{kind.name} rounds {update} back to {value}: {self.steps:,} such updates change nothing"
        if abs(it.after - self.exact) >= 0.001 * abs(self.asked):
            return f"{found}, but small updates bring it to {after}, not to {exact}"
        close = "" if after == exact else f", close to {exact}"
        return f"{found}; small updates bring it to {after}{close}"

    def rows(self) -> list[Row]:
        it = self.chosen
        rows: list[Row] = [
            ("number", show(self.asked), ""),
            ("updates", f"{self.steps:,} updates of −{share(self.share)}, exact end {show(self.exact)}", ""),
        ]
        for stored in self.all:
            bits = " ".join(stored.format.fields(stored.value))
            end = "weight kept in fp32" if stored.format is TF32 else f"after the updates {show(stored.after)}"
            rows.append((stored.format.name, f"{show(stored.value)}, error {stored.outcome}; {end}; bits {bits}", ""))
        inner, outer = spacings(it)
        apart = show(outer, 3) if inner == outer else f"{show(inner, 3)} towards 0, {show(outer, 3)} away from it"
        smallest = f"{show(it.format.smallest)}, normal {show(it.format.smallest_normal)}"
        return [
            *rows,
            (f"spacing of {it.format.name} here", apart, ""),
            (f"largest of {it.format.name}", show(it.format.largest), ""),
            (f"smallest of {it.format.name}", smallest, ""),
        ]


def simulate(value: float, exponent: int, format: str, update: float, negative: bool) -> Number:
    """`value` times ten to the `exponent` in every format, and after updates that each take away `update` of it:
    a thousand, or as many as would bring it to zero."""
    # read as a decimal: 7.0 * 10.0**-8 would already be rounded twice
    asked = float(f"{'-' if negative else ''}{value!r}e{exponent}")
    steps = min(MOST_UPDATES, round(1 / update))
    paths: dict[Format, tuple[float, ...]] = {}
    found = []
    for kind in FORMATS.values():
        kept = weight(kind)
        if kept not in paths:
            paths[kept] = walk(kept, kept.store(asked), -update * asked, steps)
        found.append(Stored(kind, asked, kind.store(asked), paths[kept]))
    return Number(asked, update, steps, found[list(FORMATS).index(format)], tuple(found), exponent)


def flipped(stored: Stored, bit: int) -> dict[str, float | int | bool] | None:
    """What to ask for so that the stored value has this bit flipped, 0 the last of the mantissa; None for NaN.

    There is no 0 and no inf to ask for: what is small enough becomes the one, what is too large the other.
    """
    kind = stored.format
    value = kind.value(kind.code(stored.value) ^ 1 << bit)
    if math.isnan(value):
        return None
    size = 2 * kind.largest if math.isinf(value) else abs(value) or 1e-46
    decimals = (f"{size:.{digits}e}" for digits in range(17))
    mantissa, _, power = next(d for d in decimals if float(d) == size).partition("e")
    return {"value": float(mantissa), "exponent": int(power), "negative": math.copysign(1, value) < 0}


def spacings(stored: Stored) -> tuple[float, float]:
    """The distances from the stored value, or the largest where that is inf, to the next towards zero and away."""
    kind, value = stored.format, min(abs(stored.value), stored.format.largest)
    inner = value - (kind.beside(value)[0] or 0.0) if value else kind.smallest
    return inner, kind.spacing(value)


def show(value: float, digits: int = 0) -> str:
    """`70,000`, `0.0221863`, `5.96 × 10⁻⁸`, `−0`, `inf`: so many digits, else six, or four beside a power of ten."""
    words = f"{value:,.{digits or 6}g}"
    if "e" in words:
        number, _, power = f"{value:.{(digits or 4) - 1}e}".partition("e")
        words = f"{number.rstrip('0').rstrip('.')} × 10{str(int(power)).translate(RAISED)}"
    return words.replace("-", "−")


def share(part: float) -> str:
    """`0.1%`, written out, however small."""
    return f"{100 * part:.8f}".rstrip("0").rstrip(".") + "%"
