"""Watches which of Python's clocks a student's code reads, on a virtual GPU whose own clock is exact."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from virtualgpu.clock.clock import Clock
from virtualgpu.clock.clock import real as real_clock
from virtualgpu.gpu import VirtualGPU

from .measure import virtual_gpu
from .wording import is_students

_OTHERS = tuple(
    f"{name}{unit}"
    for name in ("time", "monotonic", "process_time", "thread_time", "clock_gettime")
    for unit in ("", "_ns")
    if hasattr(time, f"{name}{unit}")
)
_TICK = 1e-7  # seconds


class Clocks:
    """A context manager that replaces Python's clocks for a student's code.

    `from time import perf_counter` keeps the real clock: it is replaced by that of the virtual GPU's scope, in the
    globals of `student` and in the defaults and closures of the functions there. `own` is True once a clock of the
    scope was read. `used` names the other clocks that were read, `time.time` and the like, which know nothing of a
    virtual GPU: they run while the host of `clock` works and stand still while it waits, as on an idle machine, where
    waiting for a virtual GPU takes no time.
    """

    def __init__(self, student: Callable[..., Any], before: tuple[Any, ...], clock: Clock) -> None:
        function = inspect.unwrap(student)
        self._function = getattr(function, "__func__", function)
        self._globals = getattr(self._function, "__globals__", {})
        self._before, self._clock = before, clock
        self.own = False
        self._undo: list[Callable[[], object]] = []
        self.used: set[str] = set()
        self._read = 0

    def __enter__(self) -> Clocks:
        self._now = now = tuple(map(self._noted, clocks_here()))
        others = {name: getattr(time, name) for name in _OTHERS}
        watched = {name: self._watched(name, own) for name, own in others.items()}

        def here(value: Any) -> Any:
            """Return the replacement of a clock; any other object is returned as it is."""
            if inspect.ismethod(value) and value.__func__ is Clock.perf_counter:  # perhaps of an earlier scope
                return now[0]
            clocks = [
                new for old, new in zip((*self._before, real_clock), (*now, now[0]), strict=True) if value is old
            ] or [watched[clock] for clock, own in others.items() if value is own]
            return clocks[0] if clocks else value

        for name, value in list(self._globals.items()):
            if here(value) is not value:
                self._globals[name] = here(value)
                self._undo.append(lambda name=name, value=value: self._globals.__setitem__(name, value))  # type: ignore[misc]
        own_code = [f for f in (self._function, *self._globals.values()) if isinstance(f, FunctionType)]
        for students in {id(f): f for f in own_code if is_students(f.__code__.co_filename)}.values():
            self._replace_kept(students, here)
        before = clocks_here()
        _set_clocks(now)
        self._undo.append(lambda: _set_clocks(before))
        for function in (timeit.Timer.__init__, timeit.timeit, timeit.repeat):  # their default is the real clock
            defaults: Any = function.__defaults__
            self._undo.append(lambda f=function, d=defaults: setattr(f, "__defaults__", d))  # type: ignore[misc]
            replaced = tuple(now[2] if callable(value) else value for value in defaults)
            setattr(function, "__defaults__", replaced)  # noqa: B010 - no attribute of a callable, for mypy
        for name, own in others.items():
            setattr(time, name, watched[name])
            self._undo.append(lambda name=name, own=own: setattr(time, name, own))  # type: ignore[misc]
        return self

    def _replace_kept(self, function: FunctionType, here: Callable[[Any], Any]) -> None:
        defaults, by_name = function.__defaults__, function.__kwdefaults__
        if any(here(value) is not value for value in (*(defaults or ()), *(by_name or {}).values())):
            function.__defaults__ = defaults and tuple(map(here, defaults))
            function.__kwdefaults__ = by_name and {name: here(value) for name, value in by_name.items()}
            self._undo.append(lambda: setattr(function, "__defaults__", defaults))
            self._undo.append(lambda: setattr(function, "__kwdefaults__", by_name))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                value = cell.cell_contents
                if here(value) is not value:
                    cell.cell_contents = here(value)
                    self._undo.append(lambda cell=cell, value=value: setattr(cell, "cell_contents", value))  # type: ignore[misc]

    def _noted(self, clock: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            self.own = True
            return clock()

        return read

    def _watched(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        began: dict[Any, Any] = {}

        def clock(*args: Any) -> Any:
            if not is_students(sys._getframe(1).f_code.co_filename):
                return own(*args)
            first = began.setdefault(args, own(*args))
            self.used.add(f"time.{name}")
            self._read += 1  # so that a loop until some time has passed ends
            passed = self._clock.host - self._clock.waited + self._read * _TICK
            return first + (round(passed * 1e9) if name.endswith("_ns") else passed)

        return clock

    def __exit__(self, *error: object) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def clocks_here() -> tuple[Any, ...]:
    """Return the current clocks of those that a virtual GPU replaces."""
    return time.perf_counter, time.perf_counter_ns, timeit.default_timer


def _set_clocks(clocks: tuple[Any, ...]) -> None:
    time.perf_counter, time.perf_counter_ns, timeit.default_timer = clocks


@contextlib.contextmanager
def scope(name: str = "T4", *, compute: bool, count: int = 1) -> Iterator[VirtualGPU]:
    """A virtual GPU whose clock ignores the time that this machine computes: only the GPU's work counts."""
    with virtual_gpu(name, compute=compute, count=count) as gpu:
        gpu.clock.ignores_own = True
        yield gpu
