"""Grades answers that are numbers, and names the mistake where the numbers come from a known wrong formula.

A mistake is a formula for one number. It is named if the student's number equals it in every job in which the formula
is wrong; the tests hand in each formula as a student would.
"""

from __future__ import annotations

import math
import numbers
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, NoReturn, TypeVar

import torch

from .base import CheckFailed, Trial, check, home_of
from .scenes import Pairs, Scene
from .wording import as_float, brief, is_number, is_whole

J = TypeVar("J")  # a job: the arguments of one call, as attributes
Reading = Callable[[Trial, Any, str, str], Any]  # (trial, returned, name, section) -> value; fails the check
_WITHIN = 1e-6  # relative tolerance
_NOTHING = 1e-12  # absolute tolerance
_APART = 1e-3  # least relative difference of two mistakes that a job distinguishes


def number(trial: Trial, value: Any, name: str, read: str) -> float:
    """Return `value` if it is a number (also of NumPy) and not NaN; else fail the check."""
    plain = is_number(value) and not math.isnan(as_float(value))
    trial.expect(
        plain,
        f"{name} is not a number",
        expected=f"{name} as a plain number",
        got=brief(value),
        likely=_kind_of(value),
        read=read,
    )
    near = as_float(value)
    return int(value) if isinstance(value, numbers.Integral) and math.isfinite(near) else near


def whole(trial: Trial, value: Any, name: str, read: str) -> int:
    """Return `value` if it is an integer by type; else fail the check."""
    trial.expect(
        is_whole(value),
        f"{name} is not a whole number",
        expected=f"{name} as an int",
        got=brief(value),
        likely=_kind_of(value) or "/ makes floats, // divides whole numbers",
        read=read,
    )
    return int(value)


def _kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "arithmetic on a tensor gives a tensor on its device: shapes and .numel() give plain ints"
    if isinstance(value, str):
        return "this is a text, not a number: formatting is for printing"
    if value is None:
        return "there is a number for a value that does not exist: read what the exercise says about it"
    return ""


@dataclass(frozen=True)
class Part(Generic[J]):
    """One number of the answer: the `right` formula, the lecture's section to `read`, the function that checks its
    type, the relative tolerance `within`, and the unit for messages. `same(job, got)` replaces the comparison."""

    right: Callable[[J], Any]
    read: str = ""
    reading: Reading = number
    within: float = _WITHIN
    same: Callable[[J, Any], bool] | None = None
    unit: str = ""

    def holds(self, job: J, got: Any) -> bool:
        return self.same(job, got) if self.same else close(got, self.right(job), self.within)


@dataclass(frozen=True)
class Clause(Generic[J]):
    """A sentence of the exercise, quoted word for word, about one `part` in the jobs of `where`. An answer that breaks
    it by an unknown mistake gets `summary`, the quote and `rule`, which must be true whatever the mistake is."""

    quote: str
    part: str
    summary: str
    rule: str = ""
    where: Callable[[J], bool] = lambda job: True


@dataclass(frozen=True)
class Mistake(Generic[J]):
    """A wrong answer to one `part`, in one or more formulas."""

    part: str
    summary: str
    likely: str
    formulas: tuple[Callable[[J], Any], ...]


class Numbers(Generic[J]):
    """An exercise whose function returns the numbers `parts`: a single one, several as a tuple in this order, or a dict
    with these keys if `keyed`.

    `file` is the check's `__file__`. `job(*args)` makes a job, with the attributes `parameters`; `draw(scene)` makes
    one from a choice of the `edges`. All `possible` choices are tried or, unless `every`, so many that any two values
    of two edges meet; `hides` returns the edges that have no effect in a choice. `clauses` are tried in their order,
    and so are the rows of `mistakes`: (part, summary, likely, formula, …). `explain(job, error)` returns the likely
    cause of an exception, given as "Type: text". Jobs are drawn and tried inside `scope()`, the call is made inside
    `around(job)` with the options `call` of `Trial.call`. `own_gpu`: the function never runs on the notebook's GPU.
    `about(job)` describes a job in a message, in place of its arguments. `imports` is as in `check`.
    """

    def __init__(
        self,
        file: str,
        *,
        says: str,
        parameters: Sequence[str],
        job: Callable[..., J],
        edges: Mapping[str, Sequence[Any]],
        draw: Callable[[Scene], J],
        parts: Mapping[str, Part[J]],
        clauses: Sequence[Clause[J]],
        mistakes: Iterable[tuple[Any, ...]],
        possible: Callable[[Scene], bool] = lambda scene: True,
        hides: Callable[[Scene], Iterable[str]] = lambda scene: (),
        every: bool = True,
        keyed: bool = False,
        explain: Callable[[J, str], str] = lambda job, error: "",
        scope: Callable[[], AbstractContextManager[Any]] = nullcontext,
        around: Callable[[J], AbstractContextManager[Any]] = lambda job: nullcontext(),
        call: Mapping[str, Any] | None = None,
        own_gpu: bool = False,
        about: Callable[[J], str] | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        self.lesson, self.name = home_of(file)
        self.says, self.parameters, self.job, self.draw = says, tuple(parameters), job, draw
        self.edges, self.possible, self.hides, self.every = dict(edges), possible, hides, every
        self.parts, self.clauses, self.keyed = dict(parts), tuple(clauses), keyed
        self.mistakes = [
            Mistake(part, summary, likely, tuple(formulas)) for part, summary, likely, *formulas in mistakes
        ]
        self.explain, self.scope, self.around, self.call = explain, scope, around, dict(call or {})
        self.own_gpu, self.about, self.imports = own_gpu, about or self._arguments, imports

    @cached_property
    def check(self) -> Callable[..., None]:
        doc = f"Check a function of ({', '.join(self.parameters)}): {self.says}."
        made = check(lesson=self.lesson, says=self.says, name=self.name, doc=doc, imports=self.imports)
        return made(self.judge)

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.edges, self.possible, self.hides, every=self.every)

    def jobs(self) -> Iterator[J]:
        """Yield the jobs to try, first one that distinguishes all mistakes, if there is one."""
        rows = self._pairs.draw(random.Random(random.randrange(2**31)))
        drawn = [self.draw(row) for row in rows]
        first = next((job for job in drawn if self._told_apart(job)), drawn[0])
        yield first
        yield from (job for job in drawn if job is not first)

    def judge(self, student: Any, trial: Trial) -> None:
        """Fail with the first wrong number, and with the mistake that gives it in all jobs."""
        trial.function(student, self.parameters)
        with self.scope():
            self._try(student, trial)

    def _try(self, student: Any, trial: Trial) -> None:
        seen: list[tuple[J, dict[str, Any]]] = []
        try:
            for job in self.jobs():
                asked = [getattr(job, name) for name in self.parameters]
                explain = partial(self.explain, job)
                got = trial.call(student, *asked, inside=self.around(job), explain=explain, **self.call)
                values = self._values(trial, got)
                read = {name: part.reading(trial, values[name], name, part.read) for name, part in self.parts.items()}
                seen.append((job, read))
        except CheckFailed:
            self._judge(seen, trial)  # a wrong number before the error comes first
            raise
        self._judge(seen, trial)

    def _judge(self, seen: list[tuple[J, dict[str, Any]]], trial: Trial) -> None:
        wrong = {
            name: [(job, got) for job, got in seen if not part.holds(job, got[name])]
            for name, part in self.parts.items()
        }
        broken = [name for name in self.parts if wrong[name]]
        if not broken:
            return
        names = list(self.parts)
        turned = dict(zip(names, reversed(names), strict=True))
        if len(names) == 2 and all(p.holds(job, got[turned[n]]) for n, p in self.parts.items() for job, got in seen):
            trial.fail("the two numbers are swapped", expected=", ".join(names), got=", ".join(turned.values()))
        told = {name: made for name in broken if (made := self._made(name, seen))}
        self._fail(trial, broken[0], *wrong[broken[0]][0], told)

    def _fail(self, trial: Trial, name: str, job: J, got: dict[str, Any], told: dict[str, Mistake[J]]) -> NoReturn:
        clause = next(c for c in self.clauses if c.part == name and c.where(job))
        made = told.pop(name, None)
        part = self.parts[name]
        expected, came = _shown(part.right(job)), _shown(got[name])
        if expected == came:
            expected, came = repr(part.right(job)), repr(got[name])
        unit = part.unit and f" {part.unit}"
        trial.fail(
            made.summary if made else clause.summary,
            expected=f"{name} {expected}{unit} for {self.about(job)}",
            got=f"{name} {came}{unit}",
            likely=made.likely if made else "",
            also="; ".join(other.summary for other in told.values()),
            asked="" if made else asked_for(clause),
            read=part.read,
        )

    def _arguments(self, job: J) -> str:
        return ", ".join(f"{p}={_shown(getattr(job, p))}" for p in self.parameters)

    def _values(self, trial: Trial, got: Any) -> Mapping[str, Any]:
        names, read = list(self.parts), next(iter(self.parts.values())).read
        if len(names) == 1 and not self.keyed:
            return {names[0]: got}
        wanted = f"{{{', '.join(map(repr, names))}}}" if self.keyed else f"({', '.join(names)})"
        likely = ""
        if got is None:
            likely = "the function ends without a return"
        elif is_number(got):
            likely = f"one number came back; return {' and '.join(names)}"
        if self.keyed:
            right = isinstance(got, dict) and set(got) == set(names)
            trial.expect(right, "return a dict with these keys", expected=wanted, got=brief(got), likely=likely)
            return dict(got)
        if isinstance(got, dict):
            likely = "a dict came back: return the values themselves, in this order"
        count = {2: "two", 3: "three"}.get(len(names), str(len(names)))
        right = isinstance(got, tuple | list) and len(got) == len(names)
        wanted = f"a tuple {wanted}"
        trial.expect(right, f"{count} values are wanted", expected=wanted, got=brief(got), likely=likely, read=read)
        return dict(zip(names, got, strict=True))

    def _told_apart(self, job: J) -> bool:
        for name, part in self.parts.items():
            right = part.right(job)
            told: list[tuple[Any, Mistake[J]]] = []
            for mistake in self.mistakes:
                for formula in mistake.formulas if mistake.part == name else ():
                    value = _value_of(formula, job)
                    if value is None or close(value, right):  # other jobs show it
                        continue
                    if any(other is not mistake and close(value, seen, _APART) for seen, other in told):
                        return False
                    told.append((value, mistake))
        return True

    def _made(self, name: str, seen: list[tuple[J, dict[str, Any]]]) -> Mistake[J] | None:
        """Return the mistake with a formula that gives the student's number wherever one of the two is wrong."""

        holds = self.parts[name].holds

        def gives(formula: Callable[[J], Any]) -> bool:
            values = [(job, got[name], value) for job, got in seen if (value := _value_of(formula, job)) is not None]
            wrong = [(v, got) for job, got, v in values if not (holds(job, v) and holds(job, got))]
            return bool(wrong) and all(close(got, value) for value, got in wrong)

        return next((m for m in self.mistakes if m.part == name and any(map(gives, m.formulas))), None)

    def answers(self) -> Iterator[tuple[Mistake[J], Callable[..., Any]]]:
        """Yield each formula of each mistake as a student's function, whose other parts are right."""
        for mistake in self.mistakes:
            for formula in mistake.formulas:
                yield mistake, self.answer(**{mistake.part: formula})

    def answer(self, **instead: Callable[[J], Any]) -> Callable[..., Any]:
        """Return a function like a student's, with formulas for these parts and the right ones for the others."""
        formulas = {name: instead.get(name, part.right) for name, part in self.parts.items()}

        def student(*args: Any) -> Any:
            job = self.job(*args)
            values = {name: formula(job) for name, formula in formulas.items()}
            if self.keyed:
                return values
            return tuple(values.values()) if len(values) > 1 else next(iter(values.values()))

        return student


def asked_for(clause: Clause[Any]) -> str:
    return f"“{clause.quote}”" + (f": {clause.rule}" if clause.rule else "")


def close(got: Any, want: Any, within: float = _WITHIN) -> bool:
    """Return True if equal, or numbers or lists of numbers within this relative tolerance."""
    if isinstance(got, list | tuple) and isinstance(want, list | tuple):
        return len(got) == len(want) and all(close(a, b, within) for a, b in zip(got, want, strict=True))
    if is_number(got) and is_number(want):
        return bool(got == want or math.isclose(got, want, rel_tol=within, abs_tol=_NOTHING))
    return type(got) is type(want) and bool(got == want)


def _value_of(formula: Callable[[J], Any], job: J) -> Any:
    """Return the value of a mistake, None where it cannot be computed."""
    try:
        value = formula(job)
    except (ArithmeticError, LookupError, ValueError, TypeError):
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        items = ", ".join(map(_shown, value))
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"
    return f"{value:,}" if is_whole(value) else brief(value)
