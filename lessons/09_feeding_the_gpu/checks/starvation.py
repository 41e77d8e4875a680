"""Checks exercise 09.1, "how long a step waits": a loader and a step of known times, on a GPU with its own clock."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from gpulab.exercise.clocks import Clocks, clocks_here, scope
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_finite

NUMBERS, IN_ORDER = "three floats, and no other", "each batch after the other"
EARLIER, START, WARM, SHORT = "after earlier work", "with a slow start", "after a warm-up", "of a loader that ends"
LOADER, STEP, LEFT = "the loader fails", "step fails", "none left"
SPECIAL: dict[str, dict[str, Any]] = {
    EARLIER: {"earlier": 0.3}, START: {"start": 0.4}, WARM: {"start": 0.4}, SHORT: {"end": 0.5},
    LOADER: {"fails": LOADER}, STEP: {"fails": STEP}, LEFT: {},
}  # fmt: skip
WAITING, STEPPING, SHARE = "seconds of waiting", "seconds of stepping", "the share"
KIND, UNIT, CLOCK = "what is returned", "unit", "clocks other than time.perf_counter, by which a time is wrong"
TAKEN, ORDER, GONE = "batches that are taken", "what goes into step", "the loader's iterator afterwards"
STEPS, STARTED, NONE = "calls of step, with a warm-up", "how often the loader is started", "where no step can be timed"
ANY, RAISED, GRAD = (
    "the first batch that is not what goes into step",
    "an exception of loader or step",
    "gradients in step",
)
CLAUSES = [
    Clause(quote, facts, summary, rule, "Three numbers, and no clock inside")
    for facts, quote, summary, rule in (
        ([KIND], "three floats", "what was returned is not three floats", "(waiting, stepping, share)"),
        ([UNIT], "in seconds", "the times are in the wrong unit", "time.perf_counter counts seconds"),
        ([CLOCK], "A clock of the host, if one is read, is time.perf_counter", "the clock is not suited to this",
         "it is made for measuring intervals"),
        ([STARTED], "starts loader once", "the loader is not started once",
         "iter(loader) starts the workers, and a for loop calls it"),
        ([ANY], "yields batches of any kind, even None", "a batch of an unusual kind does not reach step unchanged",
         "a batch's value must not be taken as the loader's end"),
        ([GRAD], "queues the work of a training step", "step cannot train: autograd is switched off in it", ""),
        ([TAKEN], "Every batch taken goes into step unchanged", "too many batches are taken, or too few",
         "as many as there are steps"),
        ([ORDER], "when the step before it has finished",
         "step gets something other than the batch, or gets it too early",
         "one batch is fetched and goes into step; then the next is fetched"),
        ([STEPPING], "stepping: the time of step", "the time of the steps is wrong",
         "the mean, each from its call until all of its work on the GPU is done"),
        ([WAITING], "waiting: the time it takes to fetch the next batch", "the waiting time is wrong",
         "the mean of all timed steps"),
        ([SHARE, *(f"{SHARE} {words}" for words in (EARLIER, START, WARM, SHORT))],
         "the fraction of the total time that is waiting", "the share is wrong",
         "all waiting time, divided by all waiting and stepping time"),
        ([f"{WAITING} {START}", f"{STEPPING} {START}"], "Starting the loader does not count as waiting",
         "with a loader that starts slowly the times are wrong", "iter(loader) takes time, but fetches no batch"),
        ([f"{WAITING} {EARLIER}", f"{STEPPING} {EARLIER}"], "nor does work that was queued before the call",
         "with earlier work in the queue the times are wrong", "the GPU may be busy when the function is called"),
        ([STEPS, f"{WAITING} {WARM}", f"{STEPPING} {WARM}"], "how many steps run before them and are not timed",
         "with a warm-up the steps or the times are wrong",
         "run them like the other steps, but leave them out of the sums"),
        ([f"{STEPPING} {SHORT}"], "fewer, if the loader ends earlier", "if the loader ends early the times are wrong",
         "take the mean over the steps that were made"),
        ([f"{WAITING} {SHORT}"], "nor does its end", "if the loader ends early the waiting time is wrong",
         "the fetch that finds no batch takes its time too"),
        ([NONE], "raises a ValueError that names warm_up if no step can be timed",
         "if no step can be timed, no such ValueError is raised", "there is no mean of nothing"),
        ([GONE], "Afterwards nothing refers to the loader's iterator", "the iterator of the loader is still held",
         "its workers live as long as the iterator does"),
        ([RAISED], "An exception of loader or step reaches the caller", "an exception does not reach the caller",
         "a StopIteration from the loader's iterator is its end; one from step is an exception like any other"),
    )
]  # fmt: skip
EDGES = {
    "special": tuple(SPECIAL),
    "gpu": (0, 1),
    "stream": ("the current stream", "a stream of its own"),  # in which step works
    "step_waits": (False, True),
    "fetch_waits": (False, True),  # for the GPU, as a loader does that copies there
}
Times = list[tuple[float, float]]  # of each step: in which its batch is fetched, and its own


class Failed(RuntimeError):
    """What a loader of the check raises: of this kind is what a DataLoader says of a worker that was killed."""


class Stopped(Failed, StopIteration):
    """What a step of the check raises, as a next() in it would."""


class Feed:
    """A loader without a length: batch number i is there after `waits[i]` seconds; its start and its end take time too.
    The first batches are `others`, if there are some, and a Failed among them is raised."""

    def __init__(
        self, waits: list[float], spend: Callable[[float], None], start: float, end: float, others: Sequence[Any]
    ) -> None:
        self.waits, self.spend, self.start, self.end, self.others = waits, spend, start, end, others
        self.began, self.given, self.iterators = 0, list[Any](), list[weakref.ref[Any]]()

    def __iter__(self) -> Iterator[Any]:
        self.began += 1
        self.spend(self.start)
        iterator = self._batches()
        self.iterators.append(weakref.ref(iterator))
        return iterator

    def _batches(self) -> Iterator[Any]:
        for number, wait in enumerate(self.waits):
            self.spend(wait)
            x = torch.zeros(2)
            batch = self.others[number] if number < len(self.others) else (x, (x, x), {"x": x})[number % 3]
            if batch is Failed:
                raise Failed
            self.given.append(batch)
            yield batch
        self.spend(self.end)


def run(
    call: Callable[..., Any], scene: Scene, times: Times, batches: int, warm_up: int = 0, *, earlier: float = 0.0,
    start: float = 0.0, end: float = 0.0, others: Sequence[Any] = (), fails: str = "",
) -> SimpleNamespace:  # fmt: skip
    """One call of the student's function, and what was seen meanwhile."""
    seen, before = SimpleNamespace(steps=[], refused="", grad=True, clocks=set()), clocks_here()
    with scope(compute=False, count=2) as gpu:
        timer, clock = gpu.device(scene.gpu).timer, gpu.clock
        own = torch.cuda.Stream(scene.gpu).stream_id if scene.stream == "a stream of its own" else 0

        def fetching(seconds: float) -> None:
            if scene.fetch_waits:
                timer.synchronize()
            clock.wait(clock.host + seconds, "data")

        feed = Feed([wait for wait, _ in times], fetching, start, end, (0, Failed) if fails == LOADER else others)

        def step(batch: Any) -> None:
            seen.steps.append((batch, len(feed.given)))
            seen.grad &= torch.is_grad_enabled()
            if fails == STEP:
                raise Stopped
            seconds = times[min(len(seen.steps), len(times)) - 1][1]
            clock.spend(seconds / 5)
            gpu.device(None).timer.kernel(own, seconds * 4 / 5, "step")
            if scene.step_waits:
                timer.synchronize()

        def timed(student: Callable[..., Any], *args: Any) -> Any:
            with torch.cuda.device(scene.gpu), Clocks(student, before, clock) as clocks:
                if earlier:
                    timer.kernel(own, earlier, "earlier work")
                try:
                    return student(*args)
                except Failed:
                    seen.refused = "raised"
                except ValueError as error:
                    if feed.given[warm_up:] and not (others or fails):
                        raise
                    seen.refused = "ValueError" if "warm_up" in str(error) else "ValueError without a warm_up in it"
                finally:
                    seen.clocks = clocks.used

        seen.got = call(feed, step, batches, warm_up, through=timed)
    seen.came, seen.given, seen.began = seen.refused or f"{kind(seen.got)} came back", feed.given, feed.began
    seen.held = any(iterator() is not None for iterator in feed.iterators)
    return seen


def order(seen: SimpleNamespace) -> str:
    """Of the batches that went into step, and when they were taken."""
    for number, (batch, taken) in enumerate(seen.steps):
        if number >= len(seen.given) or batch is not seen.given[number]:
            return "another batch than the loader gave, or in another order"
        if taken != number + 1:
            return "batches that were taken before the step before them was done"
    return IN_ORDER


def drawn(count: int) -> Times:
    """Each step is the shorter, the longer its wait, so that every mean is another."""
    wait, step, factors = random.uniform(0.008, 0.011), random.uniform(0.04, 0.05), [1.0, 1.7, 2.9, 6.0]
    random.shuffle(factors)
    return [(wait * factor, step / factor) for factor in factors + random.choices(factors, k=count - 4)]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"step in {scene.stream} of cuda:{scene.gpu}")
    batches = random.randint(3, 4)
    times = drawn(batches + 2)
    seen = run(call, scene, times, batches)
    facts.add(KIND, kind(seen.got), NUMBERS)
    facts.add(STARTED, seen.began, 1)
    facts.add(TAKEN, len(seen.given), batches)
    facts.add(ORDER, order(seen), IN_ORDER)
    facts.add(GONE, "held" if seen.held else "gone", "gone")
    facts.add(GRAD, seen.grad, True)
    if facts.hold():
        others = random.sample([None, (), [0], "text"], 4)
        into_step = [batch for batch, _ in run(call, scene, times, 4, others=others).steps] + [Failed] * 4
        wrong = (repr(other) for other, batch in zip(others, into_step, strict=False) if batch is not other)
        facts.add(ANY, next(wrong, "no batch"), "no batch")
    if facts.hold():
        wanted = means(times[:batches])
        off = [compared(*pair) for pair in zip(seen.got, wanted, strict=True)]
        facts.add(UNIT, unit(seen.got[0], wanted[0]) or unit(seen.got[1], wanted[1]) or "seconds", "seconds")
        facts.seen["waiting and stepping"] = off[:2]  # tells one wrong stepping from another
        if facts.hold():
            facts.add(CLOCK, sorted(seen.clocks) if set(off) != {"right"} else [], [])
        add(facts, "", seen.got, wanted)
    if facts.hold():
        special(call, scene, facts, times, batches)
    return facts


def special(call: Callable[..., Any], scene: Scene, facts: Facts, times: Times, batches: int) -> None:
    """The scene's own difficulty, in a call of its own."""
    name, timed = scene.special, times[:batches]
    warm = [(1.1, 0.9), (0.7, 0.5)][: random.randint(1, 2)] if name == WARM else []
    given = [*warm, *times]
    if name == SHORT:
        warm, timed = [(1.1, 0.9)] * random.randint(0, 1), times[: random.randint(1, 2)]
        given = [*warm, *timed]
    if name == LEFT:
        warm = times[: random.randint(0, 2)]
        given = warm[: random.randint(0, len(warm))]
    seen = run(call, scene, given, batches, len(warm), **SPECIAL[name])
    if name == LEFT:
        facts.add(NONE, seen.came, "ValueError")
    elif name in (LOADER, STEP):
        facts.add(RAISED, seen.came, "raised")
    else:
        if name == WARM:
            facts.add(STEPS, len(seen.steps), len(warm) + batches)
        facts.add(STARTED, seen.began, 1)
        facts.add(KIND, kind(seen.got), NUMBERS)
        add(facts, f" {name}", seen.got, means(timed))


def add(facts: Facts, words: str, got: Any, wanted: tuple[float, float, float]) -> None:
    """Judge the times, then their share; what follows from one that is wrong is not judged as well."""
    for name, number in (STEPPING, 1), (WAITING, 0), (SHARE, 2):
        if facts.hold():
            facts.add(name + words, float(got[number]), Near(wanted[number]))


def means(times: Times) -> tuple[float, float, float]:
    """What the exercise asks for."""
    waiting, stepping = (math.fsum(column) / len(times) for column in zip(*times, strict=True))
    return waiting, stepping, waiting / (waiting + stepping)


def compared(seen: float, right: float) -> str:
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
    says="waiting and nothing else: neither the loader's start, nor its end, nor the GPU's work",
    parameters=("loader", "step", "batches", "warm_up"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
