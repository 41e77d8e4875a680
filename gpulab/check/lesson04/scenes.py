"""Scenes for a tracker: the student's class tried on two fresh virtual GPUs, and its values judged in MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from ..base import Trial
from ..wording import is_number, is_whole, show
from .common import TRACKER, Suspect, gpus, judge_mib, near
from .ground import Ground, Stretch

Make = Callable[..., Any]
P = ParamSpec("P")
NAMES = ("available", "peak_memory_mb", "peak_above_entry_mb", "memory_delta_mb", "peak_by_gpu", "delta_by_gpu")
MISSING = object()


@dataclass(frozen=True)
class Reading:
    """What a tracker said, or an error that it raised when it was asked."""

    values: dict[str, Any]
    error: Exception | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def same_as(self, other: Reading) -> bool:
        return self.error is None and all(self[name] == other[name] for name in NAMES)


def read(tracker: Any) -> Reading:
    found: dict[str, Any] = {}
    first = None
    for name in NAMES:
        try:
            found[name] = getattr(tracker, name, MISSING)
        except Exception as error:  # a property that refuses
            found[name], first = MISSING, first or error
    return Reading(found, first)


def values(want: Stretch) -> dict[str, float]:
    """The numbers that a tracker of this stretch has to show, the most telling first."""
    return {"peak_memory_mb": want.peak, "memory_delta_mb": want.delta, "peak_above_entry_mb": want.above}


def say(value: Any) -> str:
    return "nothing" if value is MISSING else f"{value:.5g} MiB" if is_number(value) else show(value)


@dataclass(frozen=True)
class Scenes:
    """The student's class, and the verbs of a scene: play it, judge what the trackers in it said."""

    student: Any
    trial: Trial

    def play(self, scene: Callable[Concatenate[Make, Ground, P], Any], *args: P.args, **named: P.kwargs) -> Any:
        """What `scene(make, ground, *args)` returns, run on two fresh virtual GPUs in a thread of its own."""
        with gpus(2):
            return self.trial.call(
                lambda: scene(self.student, Ground(), *args, **named), who="your tracker", explain=explain
            )

    def judge(
        self,
        got: Reading,
        want: Stretch,
        where: str,
        *,
        peak: Iterable[Suspect] = (),
        delta: Iterable[Suspect] = (),
        above: Iterable[Suspect] = (),
        likely: str = "",
    ) -> None:
        """Fail unless the three numbers are those of `want`; the suspects of each are asked in their order."""
        self.has_all(got)
        suspects = {"peak_memory_mb": peak, "memory_delta_mb": delta, "peak_above_entry_mb": above}
        likely = likely or (
            "follow the block line by line: what is in the counter at each entry and exit, and who still needs it?"
        )
        for name, value in values(want).items():
            judge_mib(self.trial, name, got[name], value, where, suspects[name], likely=likely, read=TRACKER)

    def has_all(self, got: Reading) -> None:
        rows = {"expected": f"after the block, as numbers, dicts, True or False: {', '.join(NAMES)}"}
        methods = [name for name, value in got.values.items() if callable(value) and value is not MISSING]
        self.trial.expect(
            not methods,
            f"{methods[0] if methods else ''} is a method, not a value",
            got="a method",
            likely="put @property above it, or set it as an attribute: it is read without parentheses",
            read=TRACKER,
            **rows,
        )
        if got.error is not None:
            self.trial.fail(
                "a value cannot be read after the block",
                got=f"{type(got.error).__name__}: {got.error}",
                likely="a finished block has its values: only inside it, and before the first, may reading be refused",
                read=TRACKER,
                **rows,
            )
        missing = [name for name, value in got.values.items() if value is MISSING]
        self.trial.expect(
            not missing,
            f"the tracker has no {missing[0] if missing else ''}",
            got=f"no attribute {' and no '.join(missing)}",
            likely="set it in __exit__, or make it a @property: the docstring names all six",
            read=TRACKER,
            **rows,
        )

    def judge_by_gpu(self, got: Reading, want: dict[int, Stretch], where: str) -> None:
        """Fail unless the two dicts have the numbers of each GPU that was watched, and of no other."""
        for name, attribute in (("peak_by_gpu", "peak"), ("delta_by_gpu", "delta")):
            value, right = got[name], {gpu: getattr(stretch, attribute) for gpu, stretch in want.items()}
            table = isinstance(value, dict) and all(is_whole(gpu) and is_number(value[gpu]) for gpu in value)
            rows = {"expected": f"{_table(right)}: {where}", "got": _table(value) if table else show(value)}
            for wrong, summary, likely in (
                (
                    not table,
                    f"{name} is not a dict from GPU number to MiB",
                    "its keys are the numbers of the GPUs that were watched, as ints",
                ),
                (
                    table and set(value) != set(right),
                    f"{name} is about other GPUs than those that were watched",
                    'device=None watches the one that is current at entry, a number that one, "all" each of them',
                ),
                (
                    table and set(value) == set(right) and not all(near(value[gpu], right[gpu]) for gpu in right),
                    f"{name} is not what happened on each GPU",
                    "each GPU has counters of its own: ask for each by its number",
                ),
            ):
                self.trial.expect(not wrong, summary, likely=likely, read=TRACKER, **rows)


def _table(by_gpu: dict[int, float]) -> str:
    return "{" + ", ".join(f"{gpu}: {value:.5g}" for gpu, value in by_gpu.items()) + "}"


def explain(error: str) -> str:
    """What an exception of a tracker likely means; nothing where it speaks for itself."""
    if error.startswith("TypeError") and "unexpected keyword argument 'device'" in error:
        return 'the class takes one argument: GPUMemoryTracker(device=None); device is None, a number, or "all"'
    if error.startswith("TypeError") and "__exit__" in error:
        return "Python calls __exit__(self, kind, error, trace): three arguments besides self"
    if "device string: all" in error or "'all'" in error:
        return 'device="all" is no device that torch knows: ask for each GPU by its number'
    return ""
