"""Numbers read from tensors without values: ordinary in arithmetic, shown as "unknown".

Results of Python's operators on one are unknown too; C code, such as that of `math`, sees a plain number.
"""

from __future__ import annotations

import re
from typing import Any

from .known_values import ORDINARY

_WIDTH = re.compile(r"(.?[<>=^])?[ +-]?z?#?0?(\d*)")  # of a format, up to its width
_OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "neg", "pos", "abs", "round"),
)


class _Unknown:
    """Common part of both kinds."""

    def __repr__(self) -> str:
        return "unknown"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        found = _WIDTH.match(form)
        width = found[2] if found else ""
        return f"{'unknown':>{width}}" if width else "unknown"


class UnknownFloat(_Unknown, float):
    """An unknown number of a floating dtype."""


class UnknownInt(_Unknown, int):
    """An unknown whole number."""


def _propagating(kind: type, name: str) -> Any:
    own = getattr(kind, name)

    def operate(self: Any, *others: Any) -> Any:
        return unknown(own(self, *others))

    return operate


def unknown(number: Any) -> Any:
    """Return `number` as an unknown one; other values unchanged."""
    if type(number) is float:
        return UnknownFloat(number)
    return UnknownInt(number) if type(number) is int else number


for _kind, _base in ((UnknownFloat, float), (UnknownInt, int)):
    for _name in _OPERATORS:
        if hasattr(_base, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _propagating(_base, f"__{_name}__"))

__all__ = ["ORDINARY", "UnknownFloat", "UnknownInt", "unknown"]
