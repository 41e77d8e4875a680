"""Describes a student's objects and exceptions in a few words, without calling a student's own `__repr__`.

That could raise, print, or never return.
"""

from __future__ import annotations

import inspect
import math
import numbers
import reprlib
import sysconfig
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from virtualgpu import own_code

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def brief(value: Any, limit: int = 80) -> str:
    """Describe `value` on one line of at most `limit` characters."""
    return clip(" ".join(_Words().repr(value).split()), limit)


def is_number(value: Any) -> bool:
    """Return True for a real number, also of NumPy; bool does not count."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return a number as a float; infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_finite(value: Any) -> bool:
    """Return True for a real number that is finite as a float."""
    return is_number(value) and math.isfinite(as_float(value))


def is_whole(value: Any) -> bool:
    """Return True for an integer, also of NumPy; bool does not count."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def text_in(value: str) -> str:
    """Return the plain str of a text or of a member of a `str` enum."""
    return str.__str__(value)


def clip(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def text_of(error: BaseException, limit: int = 300) -> str:
    """Return the text of an exception on one line; it may be empty."""
    try:
        return clip(" ".join(str(error).split()), limit)
    except Exception as second:
        return f"its text is not available: __str__ raised {type(second).__name__}"


def frames(error: BaseException, most: int = 3) -> list[str]:
    """Describe the lines of the student's own code in the traceback of `error`, outermost first."""
    return own_frames(traceback.extract_tb(error.__traceback__), most)


def own_frames(stack: Sequence[traceback.FrameSummary], most: int = 3) -> list[str]:
    """Describe the lines of the student's own code in a stack, outermost first."""
    own = [frame for frame in stack if is_students(frame.filename)]
    return [f"in {frame.name}, line {frame.lineno}: {clip(frame.line or '', 90)}" for frame in own[-most:]]


def signature_of(function: Any, signature: inspect.Signature) -> str:
    """Return name and parameters, without the defaults, whose repr may be a student's."""
    star: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [star.get(parameter.kind, "") + name for name, parameter in signature.parameters.items()]
    if any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in signature.parameters.values()):
        names.append("some by keyword only")
    return clip(f"{getattr(function, '__name__', type(function).__name__)}({', '.join(names)})", 200)


def parameters_of(function: Any) -> list[str]:
    """Return the names of the positional parameters; empty without a signature, as for a callable of C code."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


class _Words(reprlib.Repr):
    """The repr of plain values and containers of them; a phrase for all other objects."""

    def repr1(self, value: Any, level: int) -> str:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            one = value.ndim == 0 and value.device.type != "meta"
            return f"tensor({value.item():.6g})" if one else f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
        if isinstance(value, nn.Module):
            return f"a {kind.__name__} (nn.Module)"
        if kind in (bool, float, type(None)):
            return repr(value)
        if isinstance(value, numbers.Real) and kind.__module__ == "numpy":
            return f"{value} (a NumPy {kind.__name__})"
        if kind in (int, str, list, tuple, dict, set, frozenset):
            return super().repr1(value, level)
        return f"an object of type {kind.__name__}"

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 10_000 else f"an int of {x.bit_length():,} bits"


def is_students(filename: str) -> bool:
    return not filename.startswith((*own_code.folders(), *_LIBRARIES, "<frozen")) and "-packages" not in filename
