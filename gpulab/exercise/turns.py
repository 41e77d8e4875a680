"""Runs a turn of a lecture: tries the reader's function on fresh inputs, and shows the verdict without a grade.

A turn is a function of the reader's object under `@turn(...)`. It returns if the answer is right, raises `NotYet` if it
is wrong and `AsGiven` if nothing was changed. None of the three stops the notebook; an exception of the reader's code
does, and is shown as it is.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any

from virtualgpu import own_code
from virtualgpu.pictures.display import bundle, show

from . import settings
from .base import NotAttempted, drawn_seed
from .wording import brief

_ON = "the lecture goes on without it"
_COLORS = {"○": "var(--jp-brand-color2, #56B4E9)", "✘": "#E69F00", "✔": "#009E73"}
_CARD = '<div style="border-left: 3px solid {color}; padding: 0.2em 0.8em;">{lines}</div>'


class NotYet(Exception):
    """Raised for a wrong answer, with what came back, what was expected, and the likely reason."""

    def __init__(self, got: str, *, expected: str, likely: str) -> None:
        super().__init__(f"✘ not yet: {got}; expected: {expected}\n  likely: {likely}")


class AsGiven(Exception):
    """Raised for unchanged code; `text` says what it does."""

    def __init__(self, text: str) -> None:
        super().__init__(f"○ your turn: {text}, as in the code given; {_ON}")


def turn(says: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorate a function that judges the reader's object as a turn; `says` is printed for a right answer.

    It runs with a check's settings and its own random state, and restores the notebook's. An exception of the reader's
    code passes through, with the reader's lines alone in the traceback.
    """

    def decorate(judge: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(judge)
        def run(answer: Any) -> None:
            __tracebackhide__ = True  # IPython leaves this frame out
            try:
                _called_for(answer)
                settings.in_clean_state(lambda: judge(answer), seed=drawn_seed())
                text = _right(says)
            except NotAttempted:
                text = f"○ your turn: not tried yet; {_ON}"
            except (NotYet, AsGiven) as told:
                text = str(told)
            except Exception as error:
                raise error.with_traceback(_own_lines(error.__traceback__)) from error.__cause__
            show(text, html=_card(text))

        run.says = says  # type: ignore[attr-defined]
        return run

    return decorate


def right_output(name: str) -> dict[str, Any]:
    """Return the output of the turn `name` for a right answer, as a MIME bundle."""
    from importlib import import_module

    text = _right(getattr(import_module("gpulab.turn"), name).says)
    return bundle(text, html=_card(text))


def _right(says: str) -> str:
    return f"✔ {says}"


def _card(text: str) -> str:
    lines = re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False)).replace("\n  ", "<br>")
    return _CARD.format(color=_COLORS[text[0]], lines=lines)


def _called_for(answer: Any) -> None:
    if not callable(answer):
        raise NotYet(
            f"{brief(answer)} came",
            expected="what the cell defines",
            likely="it was called, or its name was reassigned: pass it without brackets",
        )


def _own_lines(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from its first line outside of this package on; all of it if there is none."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(own_code.folders()):
        inner = inner.tb_next
    return inner or traceback
