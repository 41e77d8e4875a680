"""Checks exercise 04.3, `GPUMemoryTracker`: trackers alone and nested, on three GPUs and on none, ended by errors."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from gpulab.exercise.base import Trial
from gpulab.exercise.bound_names import of_this_gpu
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.machines import on_the_cpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_number, is_whole

from .common import MIB


class Mishap(Exception):
    """What goes wrong in a block."""


class Entered(Exception):
    """A tracker was entered while it was open."""


class Stop(BaseException):
    """What ends a block as KeyboardInterrupt does."""


ALONE, INSIDE, THREAD = "A*a", "AB*ba", "A*Tat"
ORDERS = {  # a capital enters, a small letter leaves; memory rises after each, highest at the star; T: in a thread
    ALONE: "tracker A alone",
    "A*Bba": "tracker B inside A, the highest moment before it",
    INSIDE: "tracker B inside A, the highest moment in it",
    "ABb*Dda": "trackers B and D inside A, the highest moment between them",
    "ABCD*Eedcba": "trackers A to E inside each other, the highest moment in D",
    THREAD: "tracker T in another thread, from within A's block until after it",
}
ONE, MANY, NONE = (1, 1, 1), (2, 1, 0), ()  # the GPU that is current when trackers are made, when they enter, and later
WHERE = {ONE: "GPU 1 is current", MANY: "GPUs 2, 1 and 0 are current in turn", NONE: "there is no GPU"}
NOTHING, READ, AGAIN = "nothing else", "A is read meanwhile", "A is entered again meanwhile"
ERROR, STOP, MEMORY, KERNEL = "an exception", "an exception such as Ctrl-C's", "OutOfMemoryError", "a kernel's error"
ENDS = {ERROR: Mishap, STOP: Stop, MEMORY: torch.OutOfMemoryError, KERNEL: RuntimeError}  # of the first block that ends
EDGES = {
    "device": (None, 0, 1, "all"),  # of A, C and E
    "other": (None, 1, "all"),  # of the others
    "current": (ONE, MANY, NONE),
    "order": tuple(ORDERS),
    "event": (NOTHING, READ, AGAIN, *ENDS),
}
ROUNDS = {NOTHING: 3, AGAIN: 1, THREAD: 1}  # of blocks before the event; else two
NAMES = ("available", "peak_by_gpu", "delta_by_gpu", "peak_memory_mb", "memory_delta_mb", "peak_above_entry_mb")
BUSY, NOW, RIGHT, REFUSED, OWN = "streams at work after exit", "", "as measured", "RuntimeError", "the block's own"
CLAUSES = [
    Clause(quote, facts, summary, "".join(rule), "A tracker of your own")
    for quote, facts, summary, *rule in (
        ("`with ... as tracker` gives the tracker itself", ["what `as` gives"], "`as` does not give the tracker"),
        ("After the block, as attributes or properties", ["unreadable"], "a value cannot be read after the block"),
        ("before the first block reading one raises RuntimeError", ["early"],
         "reading before the first block raises no RuntimeError"),
        ("even if another is current later; a number: that GPU", ["GPUs watched"], "the wrong GPUs are watched"),
        ("True if there was a GPU at entry, else False", ["available"], "available is not True on a GPU"),
        ("the most that was allocated at any moment of the block", ["peak_by_gpu"], "the peak is not right"),
        ("allocated at the end less allocated at entry", ["delta_by_gpu"], "the change is not right"),
        ("the sum of peak_by_gpu", ["peak_memory_mb"], "peak_memory_mb is not the sum of peak_by_gpu"),
        ("the sum of delta_by_gpu", ["memory_delta_mb"], "memory_delta_mb is not the sum of delta_by_gpu"),
        ("peak_memory_mb less what was allocated at entry", ["peak_above_entry_mb"], "peak_above_entry_mb is wrong"),
        ("At entry and at exit the tracker waits for each watched GPU", ["at work after entry", BUSY],
         "the tracker does not wait for a watched GPU", "all its streams, whichever GPU is current"),
        ("The current GPU stays current", ["current GPU"], "another GPU is current after the entry"),
        ("Its values at the end of the block do not change afterwards", ["values later", "values elsewhere"],
         "the values change after the block", "also where there are other GPUs, or none"),
        ("Trackers nest to any depth, on the same GPU or on others", ["beside others"],
         "with other trackers open, a tracker's values are wrong",
         "each GPU has one peak counter, and every tracker resets it"),
        ("in one thread or in several: none loses its peak", ["beside another thread"],
         "with a tracker in another thread, a tracker's values are wrong", "all threads share the counters"),
        ("A tracker can be used again, and starts afresh", ["second block", "third block"],
         "a later block of a tracker has wrong values"),
        ("and passes through", ["exception"], "the block's exception does not pass through"),
        ("An exception (OutOfMemoryError too) ends the block like its normal end", ["ended so", "around it",
         "next block"],
         "after an exception in a block the values are wrong",
         "it and the blocks around it must have the values up to then"),
        ("Inside the block a value covers the block up to that moment", ["a number inside the block"],
         "a value read inside the block does not cover the block up to then"),
        ("Entering one whose block is open raises RuntimeError", ["second entry"], "an open tracker can be entered"),
        ("the open block continues unharmed", ["open block"], "a refused entry changes the block that is open"),
        ("so that a kernel's error is raised by the block that it belongs to", ["error"],
         "a kernel's error does not reach the caller"),
        ("That ends the block, too", ["block with the error", "block after the error"],
         "a block in which a kernel fails does not end like others", "the counts are kept on the host"),
        ("if the wait at entry raises, the block has not begun", ["block after a failed entry"],
         "a failed entry has left a block open"),
        ("available is False, the numbers are 0.0, the dicts empty", ["without a GPU"],
         "without a GPU the values are wrong"),
    )
]  # fmt: skip
Block = SimpleNamespace  # a tracker of the student's, and the block that it was entered for last


class Blocks:
    """The student's trackers of one order, entered and left as often as `go` is called; beside a log of all memory.
    What is `held` on each GPU outlives them, so that nothing is let go of unseen."""

    def __init__(
        self, make: Callable[..., Any], scene: Scene, held: dict[int, torch.Tensor], order: str, thread: Any = None
    ) -> None:
        self.order, self.thread, self.current = order, thread, scene.current
        self.gpus, self.watched = range(3) if scene.current else range(0), set[int]()
        self.log, self.held = list[dict[int, float]](), held
        streams = {gpu: (torch.cuda.default_stream(gpu), torch.cuda.Stream(gpu)) for gpu in self.gpus}
        self.streams = [(gpu, f"stream {i} of GPU {gpu}", pair[i]) for gpu, pair in streams.items() for i in (0, 1)]
        if order == ALONE:
            self.rise(40, self.gpus)
        self.set_current(0)
        self.blocks = {}
        for letter in filter(str.isupper, order):
            device = scene.device if letter in "ACE" else scene.other
            tracker = make() if device is None else make(device=device)
            self.blocks[letter] = Block(letter=letter, device=device, tracker=tracker)
        self.a = self.blocks["A"]

    def set_current(self, when: int) -> None:
        if self.current:
            torch.cuda.set_device(self.current[when])

    def where_t_is(self, step: Callable[[], Any]) -> Any:
        return self.thread.submit(step).result() if self.thread else step()

    def note(self) -> int:
        self.log.append({gpu: torch.cuda.memory_allocated(gpu) / MIB for gpu in self.gpus})
        return len(self.log) - 1

    def take(self, mib: float, gpu: int) -> torch.Tensor:
        """Sizes of which the allocator rounds up what is asked for."""
        tensor = torch.empty(int(mib * 64) * MIB // 64 - 100, dtype=torch.uint8, device=f"cuda:{gpu}")
        self.note()
        return tensor

    def rise(self, mib: float, gpus: Iterable[int]) -> None:
        """Take about so much on these for a moment, and hold another amount than before from then on."""
        for gpu in gpus:
            self.take(mib + 10 * gpu + random.random(), gpu)
            self.held[gpu] = self.take(1 + random.random(), gpu)
            self.note()

    def work(self) -> None:
        """Alone it finds all streams at work, and leaves them so; no two GPUs for the same time."""
        times = random.sample((1, 2, 3), 3)
        for gpu, _, stream in self.streams if self.order == ALONE else ():
            with torch.cuda.stream(stream):
                torch.cuda._sleep(times[gpu] * 10**9)

    def at_work(self, block: Block) -> list[str]:
        return [name for gpu, name, stream in self.streams if gpu in block.gpus and not stream.query()]

    def values(self, block: Block) -> dict[str, Any]:
        """What a tracker has to say of this block; up to now, if it is open."""
        rows = self.log[block.start : block.end and block.end + 1]
        peaks = {gpu: max(row[gpu] for row in rows) for gpu in block.gpus}
        deltas = {gpu: rows[-1][gpu] - rows[0][gpu] for gpu in block.gpus}
        above = sum(peaks[gpu] - rows[0][gpu] for gpu in block.gpus)
        values = str(bool(self.gpus)), peaks, deltas, sum(peaks.values()), sum(deltas.values()), above
        return dict(zip(NAMES, values, strict=True)) | {BUSY: []}

    def go(self, mib: float, end: str = "", meanwhile: Callable[[], None] = lambda: None) -> list[Block]:
        """The blocks in the order in which they were left, the first by this `end`; `meanwhile` is called in A's."""
        letters, star, left = self.order.replace("*", ""), self.order.index("*") - 1, list[Block]()
        self.set_current(1)
        for place, letter in enumerate(letters):
            block = self.blocks[letter.upper()]
            step = partial(self.enter, block) if letter.isupper() else partial(self.leave, block, "" if left else end)
            self.where_t_is(step) if letter in "Tt" else step()
            left += [block] if letter.islower() else []
            if letters[place + 1 :].islower():
                self.set_current(2)
            if end == KERNEL and left:  # no memory can be had there any more
                break
            self.rise(mib - 3 * abs(place - star), self.watched)
            if self.a not in left:
                meanwhile()
        for block in left:
            block.said += ((", later", read(block.tracker)),)
        return left

    def enter(self, block: Block) -> None:
        gpus, here = self.gpus, torch.cuda.current_device() if self.gpus else None
        block.gpus = gpus if block.device == "all" or not gpus else (here if block.device is None else block.device,)
        self.watched.update(block.gpus)
        self.work()
        block.start, block.end, block.stack = self.note(), None, contextlib.ExitStack()
        block.given = block.stack.enter_context(block.tracker)
        block.at_work, block.moved = self.at_work(block), bool(gpus) and torch.cuda.current_device() != here

    def leave(self, block: Block, end: str) -> None:
        self.work()
        block.end, block.out = self.note(), "none"
        try:
            with block.stack:
                if end == KERNEL:
                    device = f"cuda:{block.gpus[-1]}"
                    functional.embedding(torch.tensor([9], device=device), torch.zeros(4, 2, device=device))
                elif end == MEMORY:
                    self.take(2**20, 0)
                elif end:
                    raise ENDS[end]
        except (Exception, Stop) as out:
            if not end:
                raise
            block.out = OWN if isinstance(out, ENDS[end]) else f"another {type(out).__name__}"
        at_work = [] if end == KERNEL else self.at_work(block)
        block.said, block.wanted = ((NOW, read(block.tracker) | {BUSY: at_work}),), self.values(block)


def read(tracker: Any) -> dict[str, Any]:
    """Each value, or the exception that came for it."""
    found: dict[str, Any] = {}
    for name in NAMES:
        try:
            value = getattr(tracker, name)
            found[name] = brief(value) if name == NAMES[0] else value
        except Exception as error:
            found[name] = error
    return found


def words(value: Any) -> str:
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, dict):
        keys = sorted(value) if all(map(is_whole, value)) else [*value]
        return f"{{{', '.join(f'{brief(key)}: {words(value[key])}' for key in keys)}}}"
    if is_number(value):
        return f"{as_float(value) + 0.0:.10g} MiB"
    return "a method" if callable(value) else value if isinstance(value, str) else brief(value)


def differ(blocks: Iterable[Block]) -> tuple[str, str]:
    """The first value of these that is not what was measured, as it was said, and as it is."""
    for block in blocks:
        for when, said in block.said:
            for name, value in said.items():
                one, other = words(value), words(block.wanted[name])
                if one != other:
                    where = f"{name} of tracker {block.letter}{when} is "
                    return where + one, where + other
    return RIGHT, RIGHT


def alone(blocks: Blocks, facts: Facts) -> None:
    """One block of one tracker, with all that is asked of it."""
    early = read(blocks.a.tracker)
    blocks.rise(35, blocks.gpus)
    (a,) = blocks.go(30)
    said = a.said[0][1]
    facts.add("what `as` gives", "the tracker" if a.given is a.tracker else brief(a.given), "the tracker")
    unread = [f"{name}: {words(v)}" for name, v in said.items() if isinstance(v, Exception) or callable(v)]
    facts.add("unreadable", unread, [])
    if unread:
        return
    numbers = [f"{name} {words(early[name])}" for name in NAMES[1:] if not isinstance(early[name], RuntimeError)]
    facts.add("early", (numbers or [REFUSED])[0], REFUSED)
    if not blocks.gpus:
        facts.add("without a GPU", *differ([a]))
        return
    by_gpu = said["peak_by_gpu"]
    facts.add("GPUs watched", sorted(by_gpu) if isinstance(by_gpu, dict) else words(by_gpu), [*a.gpus])
    facts.add("at work after entry", a.at_work, [])
    facts.add(BUSY, said[BUSY], [])
    facts.add("current GPU", "another" if a.moved else "the same", "the same")
    for names in (NAMES[:3], NAMES[3:]):
        for name in names if facts.hold() else ():
            facts.add(name, words(said[name]), words(a.wanted[name]))
    if facts.hold():
        facts.add("values later", *differ([a]))


def beside(blocks: Blocks, rounds: int, facts: Facts) -> None:
    """So many blocks of each tracker, each with less."""
    others = "beside another thread" if blocks.thread else "beside others"
    for name, mib in ((others, 30), ("second block", 26), ("third block", 22))[:rounds]:
        left = blocks.go(mib)
        if facts.hold() and (blocks.order != ALONE or name != others):
            facts.add(name, *differ(left))


def eventful(blocks: Blocks, event: str, facts: Facts) -> None:
    """Two blocks of each tracker; something happens in the first, or in both."""
    a, seen = blocks.a, [(RIGHT, RIGHT)]

    def look() -> None:
        numbers = {name: v for name, v in read(a.tracker).items() if not isinstance(v, RuntimeError)}
        numbers.pop(NAMES[0], None)
        seen.append(differ([Block(letter="A", said=((NOW, numbers),), wanted=blocks.values(a))]))

    def enter() -> None:
        try:
            blocks.where_t_is(a.tracker.__enter__)
        except RuntimeError:
            return
        except Exception as error:
            raise Entered(type(error).__name__) from error
        raise Entered("no error")

    if event == READ:
        for mib in (30, 26):
            blocks.go(mib, meanwhile=look)
        facts.add("a number inside the block", *max(seen, key=lambda pair: pair[0] != pair[1]))
    elif event == AGAIN:
        try:
            facts.add("open block", *differ(blocks.go(30, meanwhile=enter)))
            facts.add("second entry", REFUSED, REFUSED)
        except Entered as entered:
            facts.add("second entry", str(entered), REFUSED)
    else:
        first, *others = blocks.go(30, event)
        facts.add("error" if event == KERNEL else "exception", first.out, OWN)
        facts.add("block with the error" if event == KERNEL else "ended so", *differ([first]))
        if others:
            facts.add("around it", *differ(others))
        if facts.hold() and event != KERNEL:
            once_more(blocks, "next block", facts)


def once_more(blocks: Blocks, name: str, facts: Facts) -> None:
    try:
        facts.add(name, *differ(blocks.go(26)))
    except RuntimeError as error:
        facts.add(name, type(error).__name__, RIGHT)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    order, event, no_matter = scene.order, scene.event, contextlib.nullcontext()
    devices = f"device={scene.device!r}" + f", others {scene.other!r}" * (order != ALONE)
    facts = Facts(f"{ORDERS[order]}; {devices}; {WHERE[scene.current]}; {event}")

    def through(make: Callable[..., Any]) -> None:
        held = dict[int, torch.Tensor]()
        with (
            ThreadPoolExecutor(1) if order == THREAD else no_matter as thread,
            torch.cuda.device(0) if scene.current else no_matter,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            for device in dict.fromkeys((scene.device, scene.other) if scene.current else EDGES["device"]):
                single = Blocks(make, Scene(**vars(scene) | {"device": device}), held, ALONE)
                if facts.hold():
                    alone(single, facts)
            if facts.hold():
                beside(Blocks(make, scene, held, order, thread), ROUNDS.get(order, ROUNDS.get(event, 2)), facts)
            if not facts.hold():
                return
            if event != NOTHING:
                several, late = Blocks(make, scene, held, order, thread), Blocks(make, scene, held, ALONE)
                eventful(several, event, facts)
            else:
                with on_the_cpu() if scene.current else virtual_gpu(count=3):
                    single.a.said = ((", there", read(single.a.tracker)),)
                    facts.add("values elsewhere", *differ([single.a]))
            if event == KERNEL and facts.hold():
                with contextlib.suppress(RuntimeError), late.a.tracker:  # on the GPU that has failed
                    pass
                with virtual_gpu(count=3, compute=False), of_this_gpu((make,)), torch.cuda.device(0):
                    for name, a in {"block after the error": several.a, "block after a failed entry": late.a}.items():
                        once_more(Blocks(lambda a=a, **_: a.tracker, scene, {}, ALONE), name, facts)

    with virtual_gpu(count=3, compute=event == KERNEL) if scene.current else no_matter:
        call(through=through, inside=no_matter if scene.current else on_the_cpu(), who="your tracker")
    return facts


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes trackers: a class, or a function of a device."""
    trial.expect(
        callable(student) and (inspect.isclass(student) or not hasattr(type(student), "__enter__")),
        "an object was passed, not the class",
        expected="the class GPUMemoryTracker, to be used as `with GPUMemoryTracker() as tracker:`",
        got=brief(student),
        likely="pass GPUMemoryTracker itself, without parentheses: the check makes trackers of its own",
    )
    make: Callable[..., Any] = student
    return make


def possible(scene: Scene) -> bool:
    """Alone there is no other device; beside others an exception shows where they watch the same GPUs. Without a GPU
    all devices are tried, and neither memory nor a kernel fails."""
    device, other, order, event = scene.device, scene.other, scene.order, scene.event
    if not scene.current:
        return (device, other, order) == (None, None, INSIDE) and event not in (MEMORY, KERNEL)
    if order in (ALONE, THREAD):
        return (order == THREAD or other is None) and (order == ALONE or event in (NOTHING, AGAIN))
    return event not in ENDS or (event != KERNEL and (device == other or "all" in (device, other)))


def hides(scene: Scene) -> Sequence[str]:
    """In B's own block A's peak needs nobody to be told."""
    if not scene.current:
        return ("device", "other", "order")
    return ("other",) if scene.order in (ALONE, INSIDE) else ()


NO_GPU = "call torch.cuda.is_available() in __enter__, and do nothing if it is False"
EXERCISE = Contract(
    __file__,
    says="exact when nested, in threads, on several GPUs, on none, and after errors",
    parameters=("device",),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    hides=hides,
    accept=accept,
    errors={
        "unexpected keyword argument 'device'": "the class takes one argument: GPUMemoryTracker(device=None)",
        "positional argument": "Python calls __exit__(self, kind, error, trace): three arguments besides self",
        "context manager protocol": "`with` calls __enter__ and __exit__: two underscores on both sides",
        "device string: all": 'torch knows no device "all": query each GPU by its number',
        "No CUDA GPUs": NO_GPU,
        "NVIDIA driver": NO_GPU,
    },
)
