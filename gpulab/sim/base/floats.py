"""Floating-point formats in plain Python: what each stores, with which bits, and where repeated updates end.

A value is rounded as torch rounds it; the tests compare every edge with torch's dtypes. TF32, which is no dtype,
follows NVIDIA's conversion instruction. Everything is exact in Python's floats, which hold all six formats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Format:
    """A sign bit, `exponent` bits and `mantissa` bits.

    `infinite` is False where the format has no infinity and a value that is too large becomes the largest one;
    `ties_away` where a value half-way between two others is rounded away from zero, and not to the even one.
    """

    name: str
    exponent: int
    mantissa: int
    infinite: bool = True
    ties_away: bool = False

    @cached_property
    def bias(self) -> int:
        return int(2 ** (self.exponent - 1) - 1)

    @cached_property
    def largest(self) -> float:
        """The largest finite value."""
        # IEEE formats keep the highest exponent for inf and NaN; one without inf only its last code, for NaN
        top, last = (self.bias, 1) if self.infinite else (self.bias + 1, 2)
        return math.ldexp(2 - math.ldexp(last, -self.mantissa), top)

    @cached_property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, 1 - self.bias)

    @cached_property
    def smallest(self) -> float:
        """The smallest value above zero: a subnormal one, and the spacing from zero up to the first binade's end."""
        return math.ldexp(1.0, 1 - self.bias - self.mantissa)

    @cached_property
    def _lowest(self) -> int:
        return 1 - self.bias

    def spacing(self, value: float) -> float:
        """The distance from `value` to the next one further from zero; `value` is finite."""
        if value == 0:
            return self.smallest
        return math.ldexp(1.0, max(math.frexp(value)[1] - 1, self._lowest) - self.mantissa)

    def nearest(self, value: float) -> float:
        """`value`, rounded once: the nearest value of the format, on a tie the one with an even mantissa."""
        if value == 0 or not math.isfinite(value):
            return math.copysign(self.largest, value) if math.isinf(value) and not self.infinite else value
        exponent = math.frexp(value)[1] - 1
        unit = math.ldexp(1.0, (exponent if exponent > self._lowest else self._lowest) - self.mantissa)
        count = value / unit  # a division by a power of two: exact
        whole = math.copysign(math.floor(abs(count) + 0.5), count) if self.ties_away else round(count)
        rounded = whole * unit
        if abs(rounded) > self.largest:
            return math.copysign(math.inf if self.infinite else self.largest, value)
        return rounded if rounded else math.copysign(0.0, value)

    def store(self, value: float) -> float:
        """`value` as a tensor of this format holds it: torch rounds a Python number to fp32, and that to the format."""
        return self.nearest(FP32.nearest(value))

    def code(self, value: float) -> int:
        """The bits of `value`, one that the format holds, as a whole number."""
        sign = (math.copysign(1.0, value) < 0) << (self.exponent + self.mantissa)
        value = abs(value)
        if math.isinf(value):
            return sign | ((1 << self.exponent) - 1) << self.mantissa
        exponent = max(math.frexp(value)[1] - 1, self._lowest) if value else self._lowest
        # a normal value has 2**mantissa units or more, which carries one into the exponent's field
        units = int(math.ldexp(value, self.mantissa - exponent))
        return int(sign + ((exponent - self._lowest) << self.mantissa) + units)

    def value(self, code: int) -> float:
        """The value that these bits stand for: the inverse of `code`, NaN included."""
        units = code & ((1 << self.mantissa) - 1)
        field = code >> self.mantissa & ((1 << self.exponent) - 1)
        sign = -1.0 if code >> (self.exponent + self.mantissa) else 1.0
        if field == (1 << self.exponent) - 1:
            if self.infinite:
                return math.nan if units else sign * math.inf
            if units == (1 << self.mantissa) - 1:
                return math.nan
        if field:
            units += 1 << self.mantissa
        return sign * math.ldexp(units, max(field, 1) - self.bias - self.mantissa)

    def fields(self, value: float) -> tuple[str, str, str]:
        """The bits of `value` as text: sign, exponent, mantissa."""
        bits = f"{self.code(value):0{1 + self.exponent + self.mantissa}b}"
        return bits[0], bits[1 : 1 + self.exponent], bits[1 + self.exponent :]

    def beside(self, value: float) -> tuple[float | None, float | None]:
        """The finite values next below and next above `value`, a finite one; None where there is none."""
        if value == 0:
            return -self.smallest, self.smallest
        code = self.code(abs(value))
        inner, outer = self.value(code - 1), self.value(code + 1) if abs(value) < self.largest else None
        if value > 0:
            return inner, outer
        return None if outer is None else -outer, -inner


FP32 = Format("fp32", 8, 23)
# Rounded by `cvt.rna.tf32.f32`, to the nearest, ties away from zero: operands so rounded were found to give the TF32
# products of torch on an A100 bit for bit (github.com/triton-lang/triton, issue 4574).
TF32 = Format("tf32", 8, 10, ties_away=True)
FP16 = Format("fp16", 5, 10)
BF16 = Format("bf16", 8, 7)
E4M3 = Format("fp8 e4m3", 4, 3, infinite=False)
E5M2 = Format("fp8 e5m2", 5, 2)
FORMATS = {"fp32": FP32, "tf32": TF32, "fp16": FP16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}


def weight(kind: Format) -> Format:
    """The format that a weight is kept in: no tensor is stored in TF32, it stays fp32."""
    return FP32 if kind is TF32 else kind


def walk(kind: Format, start: float, change: float, steps: int) -> tuple[float, ...]:
    """A weight kept in `kind`, before and after each of `steps` updates, cut off where nothing changes any more.

    The update is an fp32 number; the sum is fp32 and is then rounded to the format, as a GPU's `add_` does it. (On the
    CPU torch also rounds the update to the format first, which can be seen in the last digit.)
    """
    change = FP32.nearest(change)
    path = [start]
    for _ in range(steps):
        after = FP32.nearest(path[-1] + change)  # the sum of two fp32 numbers, rounded to 53 bits and then to 24: exact
        if kind is not FP32:
            after = kind.nearest(after)
        if after == path[-1]:
            break
        path.append(after)
    return tuple(path)
