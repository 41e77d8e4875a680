"""Runs a check: calls the student's object on fresh inputs, and reports a failure as expected, got and likely cause.

A check is a function `(student, trial)` under `@check(...)`. It calls the student's code through `trial.call`
and judges with `trial.expect`; it never reads the source. `guard` limits the student's code.
"""

from __future__ import annotations

import inspect
import os
import random
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, NoReturn

from ..course import lesson as course_lesson
from . import guard, settings
from .audit import Audit, Change, Kind, named
from .bound_names import of_this_gpu
from .measure import allocated, left_behind
from .wording import brief, clip, frames, is_students, parameters_of, signature_of, text_of

SAVING = "torch.utils.serialization.config"  # imported by the first torch.save or torch.load
OPTIMIZERS = "torch._dynamo"  # imported by the first optimizer of a process: some seconds, more from a slow disk
ATTENTION = "torch.utils.flop_counter"  # imported by the first attention that is timed

# For each limit that a call can exceed: the time in words, the state of the call, and the likely cause.
_OVER = {
    "processor": ("after {} of processor time", "was still computing", "a loop that never ends"),
    "idle": (
        "within {}",
        "was waiting and computed nothing",
        "a wait for something that never happens, such as a lock, an event or a queue; or a long sleep",
    ),
    "wall": (
        "within {}",
        "was still running",
        "a loop that sleeps and never ends, or a wait for another process",
    ),
    "import": ("within {}", "was still importing a module", "a module whose own code does not end"),
}


class NotAttempted(NotImplementedError):
    """Raised by the stub of an exercise that is still to be written. `shown` tells that a check has said so already."""

    shown = False

    def __str__(self) -> str:
        return super().__str__() or "not attempted yet: this exercise is not written yet"

    def _render_traceback_(self) -> list[str]:
        """Called by IPython where the error ends a cell: a cell that uses the stub gets a note, as a check has."""
        if not self.shown:  # IPython calls twice
            self.shown = True
            from ..notebook.check_output import not_attempted

            codes = [frame.f_code for frame, _ in walk_tb(self.__traceback__)]
            names = [code.co_qualname for code in codes if is_students(code.co_filename)]
            stub = names[-1].partition(".")[0] if names else "<module>"
            if stub.startswith("<"):
                not_attempted("this exercise: not attempted yet", "its cell above")
            else:
                not_attempted(f"{stub}: not attempted yet", f"the cell of {stub}")
        return [str(self)]


class CheckFailed(Exception):
    """The student's answer is wrong; prints the rows expected, got, likely, also, asked and read."""

    def __init__(
        self,
        check: str,
        summary: str,
        *,
        expected: str = "",
        got: str = "",
        likely: str = "",
        also: str = "",
        asked: str = "",
        read: str = "",
    ) -> None:
        self.check, self.summary = check, summary
        self.rows = {
            "expected": expected,
            "got": got,
            "likely": likely,
            "also": also,
            "asked": asked,
            "read": read,
        }
        self.notes: list[str] = []
        self.raised = ""  # the exception of the student's code, as "Type: text"
        self.hung = False  # True if the failure took seconds to detect
        self._shown = False
        super().__init__(summary)

    def __str__(self) -> str:
        lines = [f"✘ {self.check}: {self.summary}"]
        for label, text in self.rows.items():
            head = f"  {label:<9} " if text else ""
            lines += textwrap.wrap(clip(text), 110, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _render_traceback_(self) -> list[str]:
        """Called by IPython where the error ends a cell: the same as a card, which wraps to the window."""
        if not self._shown:  # IPython calls twice
            self._shown = True
            from ..notebook.check_output import failed

            rows = {label: clip(text) for label, text in self.rows.items()}
            failed(str(self), self.check, self.summary, rows, self.notes)
        return [str(self)]


class Trial:
    """One run of a check: its name and lesson, and the methods that a check calls the student's code and fails with."""

    def __init__(self, name: str, lesson: int) -> None:
        self.name, self.lesson = name, lesson
        self.called = False  # True once the student's code has run: before that, the seed does not matter
        self.ranks: Any = None  # the `Ranks` of a check whose calls run on real ranks
        self._guard = guard.Guard()
        self._judged: tuple[Any, Sequence[str]] = None, ()  # the student's function, and its parameters by name

    def fail(self, summary: str, *, read: str = "", **rows: str) -> NoReturn:
        where = f"lesson {self.lesson:02d}, “{read}”" if read else ""
        raise CheckFailed(self.name, summary, read=where, **rows)

    def expect(self, right: bool, summary: str, *, read: str = "", **rows: str) -> None:
        if not right:
            self.fail(summary, read=read, **rows)

    def function(self, student: Any, parameters: Sequence[str]) -> None:
        """Fail unless `student` is a function that can be called with these positional parameters."""
        wanted = f"a function of ({', '.join(parameters)})"
        self._judged = student, parameters
        if student is None:
            self.fail(
                "there is nothing to check: the object is None",
                expected=wanted,
                got="None",
                likely="the function was called and its result was passed: pass the function itself",
            )
        if inspect.isclass(student):
            got = f"the class {student.__name__}"
            self.fail("this is a class, not a function", expected=wanted, got=got)
        if not callable(student):
            self.fail("this cannot be called", expected=wanted, got=brief(student))
        if any(map(inspect.iscoroutinefunction, (student, type(student).__call__))):
            self.fail(
                "calling this function does not run its body",
                expected=wanted,
                got="an async function",
                likely="remove async: the call returns before the body has run",
            )
        try:
            signature = inspect.signature(student)
        except (TypeError, ValueError):  # a callable of C code has none; calling it will tell
            return
        got = signature_of(student, signature)
        try:
            signature.bind(*parameters)
        except TypeError:
            self.fail("the signature does not fit", expected=wanted, got=got)
        names = list(signature.parameters)
        if names != list(parameters) and sorted(names) == sorted(parameters):
            self.fail("the parameters are in a different order", expected=wanted, got=got)

    def call(
        self,
        student: Callable[..., Any],
        *args: Any,
        may_change: Mapping[str, Iterable[Kind]] = MappingProxyType({}),
        besides: Mapping[str, Any] = MappingProxyType({}),
        may_leave: tuple[str, ...] = (),
        may_seed: bool = False,
        leaves_nothing: bool = False,
        explain: Callable[[str], str] = lambda error: "",
        inside: AbstractContextManager[Any] | None = None,
        who: str = "your function",
    ) -> Any:
        """Call `student(*args)` inside the context `inside`, and return its result. Fails the check on an exception, an
        endless loop, a setting left changed, a seeded global generator and a changed argument.

        Arguments are named as `function` was given them, or else by the parameters; `besides` adds objects to watch.
        `may_change` gives the kinds of change that the exercise allows for each, or that the check judges itself:
        {"model": {"parameters", "grad"}}; `audit.ANYTHING` are all. `may_leave` allows settings, by the start of their
        text: "the current GPU". With `leaves_nothing` the call may leave nothing on the GPU but its result. `explain`
        returns the likely cause of an exception, given as "Type: text", or "".
        """
        judged, parameters = self._judged
        names = parameters if student is judged else parameters_of(student)
        audit = Audit({**named(args, names), **besides}, may_change)
        held = allocated() if leaves_nothing else {}
        self.called = True
        with of_this_gpu((student, judged)):
            outcome = self._guard.run(student, args, inside or nullcontext())
        if is_stub(outcome.error):
            raise NotAttempted(f"{self.name}: not attempted yet") from None
        left = [text for text in outcome.left_behind if not text.startswith(may_leave)]
        put_back = "; ".join(left) + " (now undone)" if left else ""
        if outcome.over:
            summary, got, likely = _OVER[outcome.over]
            on = "" if outcome.ended else ", and continues in the background until the kernel restarts"
            self.fail(
                f"{who} did not return {summary.format(f'{outcome.limit:g} s')}",
                expected="an answer at once: the inputs are tiny",
                got=f"a call that {got}{on}",
                likely=likely,
            )
        if outcome.error is not None:
            name, text = type(outcome.error).__name__, text_of(outcome.error)
            failed = CheckFailed(
                self.name,
                f"{who} raised {name}",
                got=f"{text or 'no message'}{put_back and f'; and it left {put_back}'}",
                likely=explain(f"{name}: {text}"),
            )
            failed.raised = f"{name}: {clip(text, 100)}"
            failed.notes += frames(outcome.error)
            raise failed from outcome.error
        if put_back:
            self.left(put_back, who)
        if not may_seed:
            self.unseeded(outcome.seeded, who)
        if inspect.iscoroutine(outcome.value) or inspect.isgenerator(outcome.value):
            outcome.value.close()
            self.fail(
                f"{who} has not run: it returned a {type(outcome.value).__name__}",
                expected="the work is done when the call returns",
                got="an object that does the work only when it is iterated over or awaited",
                likely="a yield or an await means that the call does not run the body",
            )
        self.unchanged(audit.changes(), who)
        if leaves_nothing:
            more = left_behind(held, outcome.value)
            self.expect(
                not more,
                f"{who} leaves memory on the GPU",
                expected="no new memory on the GPU except the result",
                got=", ".join(f"{nbytes:,} bytes more on cuda:{index}" for index, nbytes in more.items()),
                likely="a global, a list, a hook, an attribute or a graph still refers to a tensor",
            )
        return outcome.value

    def left(self, settings: str, who: str = "your function") -> None:
        self.fail(
            f"{who} left a setting changed",
            expected="the same settings as before the call",
            got=settings,
            likely="a switch was set and not reset: use it as a context manager",
        )

    def unseeded(self, calls: Sequence[str], who: str = "your function") -> None:
        """Fail if the call seeded global generators; `calls` names the functions that do so."""
        if not calls:
            return
        self.fail(
            f"{who} seeds a global random generator",
            expected="random numbers that continue the caller's",
            got=f"a new seed, as from {' and '.join(calls)} (now undone)",
            likely="with a seed inside, every call draws the same numbers, and so does all that the caller draws "
            "after it: use a generator of your own, torch.Generator().manual_seed(…), or torch.random.fork_rng()",
        )

    def unchanged(self, changes: Sequence[Change], who: str = "your function") -> None:
        """Fail with the first of the changes that an audit found, if there are any."""
        if not changes:
            return
        first = changes[0]
        own = [change.words for change in changes if change.name == first.name]
        more = f"; and {len(own) - 2} more" if len(own) > 2 else ""
        where = "" if first.kind in ("values", "items") else f": {first.words}"
        self.fail(
            f"{who} changed its argument {first.name}{where}",
            expected=f"{first.name} as it was: the caller still needs it",
            got=f"{'; '.join(own[:2])}{more}, after the call",
            likely=first.likely,
        )

    def printed(self) -> list[str]:
        text = self._guard.printed()
        return [f"(your function printed: {text})"] if text else [*(self.ranks.printed() if self.ranks else [])]


def home_of(file: str) -> tuple[int, str]:
    """Return lesson number and name of the check in this file, NN_topic/checks/NAME.py."""
    path = Path(file)
    return int(path.parent.parent.name.partition("_")[0]), path.stem


def check(
    *,
    lesson: int,
    says: str,
    imports: Sequence[str] = (),
    draws_once: bool = False,
    name: str = "",
    doc: str = "",
) -> Callable[[Callable[[Any, Trial], None]], Callable[..., None]]:
    """Decorate a function `(student, trial)`, which raises for a wrong answer, as a check of `lesson`.

    `says` is printed for a right answer. `imports` names modules that PyTorch imports lazily, such as `OPTIMIZERS`:
    they are imported before the time limit of the student's code runs. `name` and `doc` default to those of the
    function. The check takes the student's object and, to repeat the inputs, `seed=`. With `draws_once` it has the same
    inputs each time in a process, so that measurements of an answer can be cached.
    """

    def decorate(body: Callable[[Any, Trial], None], name: str = name) -> Callable[..., None]:
        name = name or body.__name__
        if name not in course_lesson(lesson).checks:
            raise ValueError(f"check {name!r} is not in the course table of lesson {lesson:02d}")

        def run(student: Any, *, seed: int | None = None) -> None:
            drawn = drawn_seed(once=draws_once) if seed is None else seed
            if not isinstance(drawn, int) or isinstance(drawn, bool):
                raise TypeError(f"seed must be a whole number, as a failed check prints it, not {brief(drawn)}")
            trial = Trial(name, lesson)
            for module in imports:
                import_module(module)
            try:
                settings.in_clean_state(lambda: body(student, trial), seed=drawn)
            except CheckFailed as failed:
                if trial.called:
                    failed.notes.append(f"the same inputs again: gpulab.check.{name}(…, seed={drawn})")
                failed.notes += trial.printed()
                raise
            except NotAttempted as todo:
                from ..notebook.check_output import not_attempted

                not_attempted(str(todo))
                todo.shown = True
                raise
            from ..notebook.check_output import passed
            from ..notebook.progress import record_passed

            passed(name, says, *trial.printed(), *record_passed("checks", lesson, name))

        run.__name__ = run.__qualname__ = name
        run.__doc__ = doc or body.__doc__
        return run

    return decorate


def drawn_seed(*, once: bool = False) -> int:
    """Return a new seed, or with `once` one for this process. GPULAB_CHECK_SEED overrides it, for tests."""
    fixed = os.environ.get("GPULAB_CHECK_SEED")
    if not fixed:
        return _seed_of_this_process() if once else random.SystemRandom().randrange(2**31)
    if not fixed.isdecimal():
        raise ValueError(f"the environment variable GPULAB_CHECK_SEED must be a whole number, not {fixed!r}")
    return int(fixed)


@cache
def _seed_of_this_process() -> int:
    return random.SystemRandom().randrange(2**31)


def is_stub(error: BaseException | None) -> bool:
    """Return True for `NotAttempted` and for a bare NotImplementedError, the stub of other graders."""
    return isinstance(error, NotAttempted) or (type(error) is NotImplementedError and not error.args)
