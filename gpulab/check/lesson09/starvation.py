"""The check of how long a training step waits for its batch: a loader whose waits are known, on a GPU with a clock of
its own."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..contract import Clause, Contract, Facts, Near
from ..lesson03.common import Clocks, clocks_here, scope
from ..scenes import Scene
from ..wording import is_finite
from .sections import FETCH

NUMBERS = "three floats, and no other"
IN_ORDER = "each batch after the other"
_FACTORS = (1.0, 1.7, 2.9, 6.0)  # of waits; a step is the shorter, the longer its wait, so that every mean is another
SPECIAL = {
    "earlier": "after earlier work",
    "start": "with a slow start",
    "warm-up": "after a warm-up",
    "short": "of a loader that ends",
}
WAITING, STEPPING, SHARE = "seconds of waiting", "seconds of stepping", "the share"
KIND, UNIT, CLOCK = "kind of what is returned", "unit", "a wrong time, by another clock than time.perf_counter"
TAKEN, ORDER, GONE = "batches that are taken", "what goes into step", "the loader's iterator afterwards"
STEPS, STARTED, NONE = "calls of step, with a warm-up", "how often the loader is started", "where no step can be timed"
ANY, RAISED, GRAD = "a batch of another kind", "an exception of loader or step", "gradients in step"
CLAUSES = [
    Clause(quote, facts, summary, likely, FETCH)
    for quote, facts, summary, likely in (
        ("three floats", [KIND], "what came back is not three floats", "return waiting, stepping, share"),
        ("in seconds", [UNIT], "the times are in another unit", "time.perf_counter counts seconds"),
        (
            "A clock of the host, if one is read, is time.perf_counter",
            [CLOCK],
            "the clock that was read is not fit for this",
            "use time.perf_counter",
        ),
        (
            "loader is started once",
            [STARTED],
            "the loader is not started once",
            "iter(loader) starts the workers: call it once, before the first step",
        ),
        (
            "gives batches of any kind, None too",
            [ANY],
            "a batch of another kind is not what goes into step",
            "what a batch is says nothing: StopIteration is the end",
        ),
        (
            "queues the work of a training step",
            [GRAD],
            "step cannot train: no gradients are recorded in it",
            "no torch.no_grad() around step",
        ),
        (
            "No batch is taken that does not go into step",
            [TAKEN],
            "batches are taken and not used, or not enough are taken",
            "whoever stops after a fetch has waited for a batch in vain",
        ),
        (
            "each goes into it as it is, when the step before it is done",
            [ORDER],
            "what goes into step, or when, is another thing",
            "next(iterator), then step(batch) with what came, whatever it is",
        ),
        ("stepping the time of step", [STEPPING], "the time in step is another one", "wait for the GPU after step"),
        (
            "waiting the time in which the next batch is fetched",
            [WAITING],
            "the time of waiting is another one",
            "the clock starts before next(iterator), and stops when it has returned",
        ),
        (
            "the part of waiting in all that time",
            [SHARE, *(f"{SHARE} {words}" for words in SPECIAL.values())],
            "the share is another one",
            "sum of the waits / sum of waits and steps",
        ),
        (
            "Starting the loader is no waiting",
            [f"{name} {SPECIAL['start']}" for name in (WAITING, STEPPING)],
            "the start of the loader is in the times",
            "iter(loader) starts the workers: call it before the clock",
        ),
        (
            "nor is work that was queued before the call",
            [f"{name} {SPECIAL['earlier']}" for name in (WAITING, STEPPING)],
            "with earlier work in the queue the times are others",
            "wait for the GPU before the first fetch",
        ),
        (
            "how many steps go before them and are not timed",
            [STEPS, *(f"{name} {SPECIAL['warm-up']}" for name in (WAITING, STEPPING))],
            "the warm-up is not what it should be",
            "the first warm_up steps are made as all others, and are in no sum",
        ),
        (
            "fewer, if the loader ends before",
            [f"{name} {SPECIAL['short']}" for name in (STEPPING,)],
            "where the loader ends early the times are others",
            "divide by the steps that there were",
        ),
        (
            "nor is its end",
            [f"{name} {SPECIAL['short']}" for name in (WAITING,)],
            "where the loader ends early the waiting is another one",
            "the fetch that finds no batch is no waiting",
        ),
        (
            "ValueError that names warm_up if no step can be timed",
            [NONE],
            "where no step can be timed there is no such ValueError",
            "a mean of nothing is no number: say that the loader is too short",
        ),
        (
            "Afterwards nobody holds the iterator of loader",
            [GONE],
            "the iterator of the loader is still held",
            "its workers live as long as it does",
        ),
        (
            "An exception of loader or step reaches the caller",
            [RAISED],
            "an exception does not reach the caller",
            "except StopIteration around next(iterator) alone",
        ),
    )
]
EDGES = {
    "special": (*SPECIAL, "none left", "the loader fails", "step fails"),
    "gpu": (0, 1),
    "stream": ("the current stream", "a stream of its own"),  # in which step works
    "batch": ("a tensor", "a pair", "a dict"),
    "other": (None, (), [0], "text"),  # a batch of another kind, in a call of its own
    "sized": (True, False),  # whether the loader has a length
    "step_waits": (False, True),
    "fetch_waits": (False, True),  # for the GPU, as a loader does that copies there
}


class Failed(RuntimeError):
    """What a loader of the check raises: of this kind is what a DataLoader says of a worker that was killed."""


class Stopped(Failed, StopIteration):
    """What a step of the check raises, as a next() in it would."""


class Feed:
    """A loader: batch number i is there after `waits[i]` seconds. Its start and its end take their time too. `other`,
    if there is one, holds batch number 1; number `fails` is none, but an exception."""

    def __init__(
        self, waits: list[float], spend: Callable[[float], None], *, start: float, end: float, kind: str
    ) -> None:
        self.waits, self.spend, self.start, self.end, self.kind = waits, spend, start, end, kind
        self.other, self.fails = list[Any](), -1
        self.began, self.given, self.iterators = 0, list[Any](), list[weakref.ref[Any]]()

    def __iter__(self) -> Iterator[Any]:
        self.began += 1
        self.spend(self.start)
        iterator = _Iterator(self)
        self.iterators.append(weakref.ref(iterator))
        return iterator


class Sized(Feed):
    def __len__(self) -> int:
        return len(self.waits)


class _Iterator:
    def __init__(self, feed: Feed) -> None:
        self.feed, self.at = feed, 0

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        feed = self.feed
        if self.at >= len(feed.waits):
            feed.spend(feed.end)
            raise StopIteration
        feed.spend(feed.waits[self.at])
        if self.at == feed.fails:
            raise Failed
        self.at += 1
        x = torch.zeros(2)
        if feed.other and self.at == 2:
            feed.given += feed.other
            return feed.given[-1]
        feed.given.append({"a tensor": x, "a pair": (x, x), "a dict": {"x": x}}[feed.kind])
        return feed.given[-1]


class Run:
    """One call of the student's function, and what was seen meanwhile."""

    def __init__(
        self,
        call: Callable[..., Any],
        scene: Scene,
        times: list[tuple[float, float]],
        batches: int,
        warm_up: int = 0,
        *,
        earlier: float = 0.0,
        start: float = 0.0,
        end: float = 0.0,
        other: list[Any] | None = None,
        fails: str = "",
    ) -> None:
        before, self.steps, self.refused, self.grad = clocks_here(), list[Any](), "", True
        with scope(compute=False, count=2) as gpu:
            device, clock = gpu.device(scene.gpu), gpu.clock
            own = torch.cuda.Stream(scene.gpu).stream_id if scene.stream == "a stream of its own" else 0

            def fetching(seconds: float) -> None:
                if scene.fetch_waits:
                    device.timer.synchronize()
                clock.wait(clock.host + seconds, "data")

            feed = (Sized if scene.sized else Feed)(
                [waiting for waiting, _ in times], fetching, start=start, end=end, kind=scene.batch
            )
            feed.other, feed.fails = other or [], 1 if fails == "the loader fails" else -1

            def step(batch: Any) -> None:
                self.steps.append((batch, len(feed.given)))
                self.grad &= torch.is_grad_enabled()
                if fails == "step fails":
                    raise Stopped
                seconds = times[min(len(self.steps), len(times)) - 1][1]
                clock.spend(seconds / 5)
                gpu.device(None).timer.kernel(own, seconds * 4 / 5, "step")
                if scene.step_waits:
                    device.timer.synchronize()

            def timed(student: Callable[..., Any], *args: Any) -> Any:
                with torch.cuda.device(scene.gpu), Clocks(student, before, clock) as clocks:
                    if earlier:
                        device.timer.kernel(own, earlier, "earlier work")
                    try:
                        return student(*args)
                    except Failed:
                        self.refused = "raised"
                    except ValueError as error:
                        if feed.given[warm_up:] and not (other or fails):
                            raise
                        self.refused = "ValueError" if "warm_up" in str(error) else "ValueError without a warm_up in it"
                    finally:
                        self.clocks = clocks.used

            self.got = call(feed, step, batches, warm_up, through=timed)
        self.feed = feed
        self.held = any(iterator() is not None for iterator in feed.iterators)

    def order(self) -> str:
        """Of the batches that went into step, and when they were taken."""
        for number, (batch, taken) in enumerate(self.steps):
            if number >= len(self.feed.given) or batch is not self.feed.given[number]:
                return "another batch than the loader gave, or in another order"
            if taken != number + 1:
                return "batches that were taken before the step before them was done"
        return IN_ORDER


def means(times: list[tuple[float, float]]) -> tuple[float, float, float]:
    """What the exercise asks for."""
    waiting, stepping = (math.fsum(column) / len(times) for column in zip(*times, strict=True))
    return waiting, stepping, waiting / (waiting + stepping)


def drawn(count: int) -> list[tuple[float, float]]:
    wait, step = random.uniform(0.008, 0.011), random.uniform(0.04, 0.05)
    factors = random.sample(_FACTORS, min(count, 4)) + random.choices(_FACTORS, k=max(0, count - 4))
    return [(wait * factor, step / factor) for factor in factors]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    sized = "with" if scene.sized else "without"
    facts = Facts(f"{scene.batch} as a batch, step in {scene.stream} of cuda:{scene.gpu}, a loader {sized} len()")
    batches = random.randint(3, 4)
    times = drawn(batches + 2)
    run = Run(call, scene, times, batches)
    facts.add(KIND, kind(run.got), NUMBERS)
    facts.add(STARTED, run.feed.began, 1)
    facts.add(TAKEN, len(run.feed.given), batches)
    facts.add(ORDER, run.order(), IN_ORDER)
    facts.add(GONE, "held" if run.held else "gone", "gone")
    facts.add(GRAD, run.grad, True)
    if not facts.hold():
        return facts
    odd = Run(call, scene, times, batches, other=[scene.other])
    facts.add(ANY, "another" if odd.order() != IN_ORDER or len(odd.steps) < batches else "as it is", "as it is")
    if not facts.hold():
        return facts
    wanted = means(times[:batches])
    facts.add(UNIT, unit(run.got[0], wanted[0]) or unit(run.got[1], wanted[1]) or "seconds", "seconds")
    if facts.hold():
        off = any(compared(*pair) != "right" for pair in zip(run.got, wanted, strict=True))
        facts.add(CLOCK, off and bool(run.clocks), False)
    facts.seen["waiting and stepping"] = [*map(compared, run.got, wanted[:2])]  # tells one wrong stepping from another
    if facts.hold():
        add(facts, "", run.got, wanted)
    if facts.hold():
        special(call, scene, facts, times, batches)
    return facts


def special(
    call: Callable[..., Any], scene: Scene, facts: Facts, times: list[tuple[float, float]], batches: int
) -> None:
    """The scene's own difficulty, in a second call."""
    words = SPECIAL.get(scene.special, "")
    if scene.special == "earlier":
        run, timed = Run(call, scene, times, batches, earlier=0.3), times[:batches]
    elif scene.special == "start":
        run, timed = Run(call, scene, times, batches, start=0.4), times[:batches]
    elif scene.special == "warm-up":
        warm = [(1.1, 0.9), (0.7, 0.5)][: random.randint(1, 2)]
        run, timed = Run(call, scene, [*warm, *times], batches, len(warm), start=0.4), times[:batches]
        facts.add(STEPS, len(run.steps), len(warm) + batches)
    elif scene.special == "short":
        short = random.randint(1, 2)
        warm = [(1.1, 0.9)] * random.randint(0, 1)
        run, timed = Run(call, scene, [*warm, *times[:short]], batches + 6, len(warm), end=0.5), times[:short]
    elif scene.special.endswith("fails"):
        run = Run(call, scene, times, batches, fails=scene.special)
        facts.add(RAISED, run.refused or f"{kind(run.got)} came back", "raised")
        return
    else:
        warm_up = random.randint(0, 2)
        run = Run(call, scene, times[: random.randint(0, warm_up)], batches, warm_up)
        facts.add(NONE, run.refused or f"{kind(run.got)} came back", "ValueError")
        return
    facts.add(KIND, kind(run.got), NUMBERS)
    if facts.hold():
        add(facts, f" {words}", run.got, means(timed))


def add(facts: Facts, words: str, got: Any, wanted: tuple[float, float, float]) -> None:
    """Judge the times, then their share; what follows from one that is wrong is not judged as well."""
    for name, number in (STEPPING, 1), (WAITING, 0), (SHARE, 2):
        if facts.hold():
            facts.add(name + words, float(got[number]), Near(wanted[number]))


def compared(seen: Any, right: float) -> str:
    return "right" if math.isclose(seen, right, rel_tol=0.02) else "too long" if seen > right else "too short"


def kind(got: Any) -> str:
    if not isinstance(got, tuple | list):
        return "nothing" if got is None else f"one {type(got).__name__}"
    if len(got) == 3 and all(map(is_finite, got)):
        return NUMBERS
    return f"{type(got).__name__} of {', '.join(type(x).__name__ for x in got) or 'nothing'}"


def unit(got: float, want: float) -> str:
    """That in which `got` is the right time, if it is one."""
    units = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
    return next((name for name, times in units.items() if abs(got / times - want) <= 0.02 * want), "")


EXERCISE = Contract(
    __file__,
    says="the waiting and nothing else: neither the start, nor the end, nor the GPU's work",
    parameters=("loader", "step", "batches", "warm_up"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
