"""What every turn is made of: it tries the reader's own function on fresh inputs, and says at once what came of it.

A turn is a function of the reader's object under `@turn(...)`. It returns where the answer is right, raises `NotYet`
where it is wrong and `AsGiven` where nothing has changed. None of the three stops the notebook; the reader's own
exception does, and is shown as it is.
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
    """The answer is wrong: what came back, what was expected, and the likely reason."""

    def __init__(self, got: str, *, expected: str, likely: str) -> None:
        super().__init__(f"✘ not yet: {got}; expected: {expected}\n  likely: {likely}")


class AsGiven(Exception):
    """The code that was given does still what it did, which `text` says."""

    def __init__(self, text: str) -> None:
        super().__init__(f"○ your turn: {text}, as in the code given; {_ON}")


def turn(says: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Make a turn out of a function that judges the reader's object; `says` is what a right answer is told.

    It runs with a check's settings and with random numbers of its own: those of the notebook go on as if it had not
    been there. Raises what the reader's code raises, with the reader's lines alone in the traceback.
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
    """What the turn of this name displays in a notebook for a right answer, as a MIME bundle."""
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
            likely="it was called, or its name was given to something else: pass it without brackets",
        )


def _own_lines(traceback: TracebackType | None) -> TracebackType | None:
    """The part of the traceback from the first line outside of this package on; all of it where there is none."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(own_code.folders()):
        inner = inner.tb_next
    return inner or traceback
