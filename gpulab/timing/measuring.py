"""Measures the time of a call repeatedly: `measure` returns a `Timing` with median, quartiles and origin."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers
from virtualgpu.units import duration_ms, durations_ms

from ..calls import check_function, check_result
from .clocks import clock_of

_UNSTEADY = 0.2  # of the median, between the quartiles: reported from there on
# Milliseconds, and part of the median, from which work of other streams is reported: synchronising takes time too.
_AFTER = (0.1, 0.1)


@dataclass(frozen=True, repr=False)
class Timing:
    """The times of one call, in milliseconds, in the order they were taken.

    `how` is the clock, `device` where the work was, `numbers` "measured" or "virtual". `median_ms` is the number to
    quote; `quartiles_ms` enclose the middle half of the times, `spread_ms` is the interquartile range, and
    `relative_spread` its part of the median. `after_ms` is how long other streams went on after the timed end, else 0:
    a time without it is too short.
    """

    times_ms: tuple[float, ...]
    how: str
    device: str
    numbers: Numbers
    label: str = ""
    after_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.times_ms or not all(math.isfinite(time) and time >= 0 for time in self.times_ms):
            raise ValueError(f"times_ms must be one or more numbers from 0 on, not {self.times_ms!r}")

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def min_ms(self) -> float:
        return min(self.times_ms)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        if len(self.times_ms) == 1:
            return self.times_ms[0], self.times_ms[0]
        first, _, third = statistics.quantiles(self.times_ms, n=4, method="inclusive")
        return first, third

    @property
    def spread_ms(self) -> float:
        first, third = self.quartiles_ms
        return third - first

    @property
    def relative_spread(self) -> float:
        return self.spread_ms / self.median_ms if self.median_ms else 0.0

    def __str__(self) -> str:
        start = f"{self.label}: " if self.label else ""
        after = f"; other streams went on for {duration_ms(self.after_ms)} more" if self.after_ms else ""
        return f"{start}{duration_ms(self.median_ms)}, {self._spread()} ({self.numbers}, {self.how}){after}"

    def _spread(self) -> str:
        runs = len(self.times_ms)
        if runs == 1:
            return "one run"
        (first, third), unit = durations_ms(self.quartiles_ms, of=self.median_ms)
        if first == third:
            low, high = durations_ms((min(self.times_ms), max(self.times_ms)), of=self.median_ms)[0]
            return f"median of {runs} runs, {'all alike' if low == high else 'half of them alike'}"
        unsteady = f", unsteady: {self.relative_spread:.0%} apart" if self.relative_spread > _UNSTEADY else ""
        return f"median of {runs} runs, half of them from {first} to {third} {unit}{unsteady}"

    __repr__ = __str__


def measure(
    fn: Callable[[], object],
    *,
    repeat: int = 20,
    warm_up: int = 3,
    setup: Callable[[], object] | None = None,
    device: DeviceLike = None,
    label: str = "",
) -> Timing:
    """Call `fn` `warm_up` times untimed, then time `repeat` calls; return a `Timing`.

        took = timing.measure(lambda: model(x))
        print(took)          # 1.234 ms, median of 20 runs, half of them from 1.230 to 1.241 ms (measured, CUDA events)

    Every call starts when the GPU is idle and ends when it has done the call's work: the time is that between two
    events on the current stream, including the launch. Work of `fn` on other streams counts as far as the current
    stream waits for it; if it goes on longer, the `Timing` says so. `setup` is called before every call, untimed.
    `device` is the GPU whose clock is read: None (the current one), a number, a text such as "cuda:1" or a
    torch.device; "cpu", and a machine without a GPU, use the host's clock, for work that the CPU does in the call.

    Time the shapes, dtypes and data that you will use (a GPU is faster on zeros, and on data still in its cache from
    the call before). A call of a few microseconds is mostly launch: repeat it a hundred times in `fn`. A virtual GPU's
    times are equal at every call; they do not include the host's own computing between two operations, but a call that
    uses no GPU at all has the host's time.

    PyTorch's own `torch.utils.benchmark.Timer` times blocks of calls by the host's clock, synchronised at both ends,
    chooses their number, sets the number of threads to one, and compares results in tables: use it for CPU code and for
    operations of a few microseconds. This function times single calls by the GPU's clock, and keeps all times.

    Exceptions of `fn` and `setup` pass through. Raises TypeError if `fn` is no function without arguments, or returns a
    coroutine or generator (which has not run yet), ValueError for numbers of runs that make no sense.
    """
    check_function(fn, "fn", "timing.measure")
    if setup is not None:
        check_function(setup, "setup", "timing.measure")
    check_count("repeat", repeat, 1)
    check_count("warm_up", warm_up, 0)
    if not isinstance(label, str):
        raise TypeError(f"label must be a text, not {label!r} ({type(label).__name__})")
    clock = clock_of(device, "timing.measure")
    pairs = [clock.pair() for _ in range(repeat)]
    for pair in [clock.pair() for _ in range(warm_up)] + pairs:
        if setup is not None:
            setup()
        clock.synchronize()
        pair.start()
        result = fn()
        pair.end()
        check_result(result, "fn", "time")
        del result
        clock.synchronize()
        pair.idle()
    like = next((pair for pair in pairs if pair.numbers == "virtual"), pairs[0])
    times = tuple(pair.ms() for pair in pairs)
    after = statistics.median(pair.idle_after_ms() for pair in pairs)
    if after < max(_AFTER[0], _AFTER[1] * statistics.median(times)):
        after = 0.0
    return Timing(times, like.how, like.device, like.numbers, label, after)


def check_count(name: str, value: object, least: int) -> None:
    """Raise TypeError or ValueError unless `value` is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number from {least} on, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
