"""Checks exercise 03.2, "a transfer benchmark": what is timed, which sizes are left out, and the fitted line.

The timer that the student's function is given looks at each copy, and answers with times on a line that it draws. In
some second calls the times scatter about the line: then the answer must be one of the lines of least squares.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.clocks import scope
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_finite
from virtualgpu.gpu import VirtualGPU
from virtualgpu.observe import observe

COST, PINNED = "What a copy costs", "Pinned memory"
LEFT = 24 * 2**20  # bytes that are free on a full GPU: room for the buffer of one large size, and not of two
LARGE = range(14_000_000, 15_000_000)
POWERS = [step / 4 for step in range(-8, 9)]  # of bytes, or of the time, by which least squares may divide a row
VIEWS = ("copy_", "detach", "alias", "view", "slice", "select", "narrow", "as_strided", "lift_fresh")
ALL, GPU, HOST = "all", "all but one on the GPU", "all but one on the host"
LOCKED, ERRORS = "all but one to pin", "errors"
FORM, INSIDE = "what is returned", "inside the clock"
BYTES, WAY, SOURCE = "bytes that were not asked for", "the way of the copies", "the source's memory"
KEYS, ROOM, TIMES = "sizes in the dict", "sizes that find room", "ms of the sizes"
LINE = "latency in µs", "bandwidth in GB/s"
SCATTERED = [f"{name}, where the times scatter" for name in LINE]
LOST, HELD = "errors that do not reach the caller", "what is still held"
CLAUSES = [
    Clause(quote, facts, summary, rule, PINNED if facts == [SOURCE] else COST)
    for quote, facts, summary, rule in (
        ("Returns (ms, latency_us, bandwidth_gbps)", [FORM], "the result has the wrong form",
         "a tuple of a dict, from bytes to milliseconds, and two numbers"),
        ("The timed function makes one copy and does nothing else", [INSIDE],
         "the timed function does not make exactly one copy",
         "timer(fn) times everything that fn does: make the buffers before, and let fn copy once"),
        ("copies of `sizes` bytes from the CPU to `device`", [BYTES, WAY], "the wrong copy is timed",
         "one torch.uint8 for each byte, to the device as it was given"),
        ("True: from page-locked memory; False: from ordinary memory. No effect if `device` is the CPU",
         [SOURCE], "the source is in the wrong kind of memory",
         "it must be pinned if `pinned` is True and `device` is a GPU"),
        ("a dict from size to milliseconds, in the order of `sizes`", [KEYS, TIMES], "the dict has the wrong contents",
         "its keys are the sizes as they were given, in their order, and its values are what timer returned for each"),
        ("A size for which the GPU or the host has no room is left out", [ROOM],
         "the dict does not hold exactly the sizes for which there is room",
         "it holds each size that fits by itself, also after one that did not fit, and no other"),
        ("in microseconds and in 10⁹ bytes per second", LINE, "the line is wrong",
         "time = latency + bytes / bandwidth goes through all of the times; its slope is in ms per byte"),
        ("that fits all of them best", SCATTERED, "the line is not that of least squares where the times scatter",
         "measured times scatter: fit both numbers of the line to all of them"),
        ("other errors pass through", [LOST], "an error that is not about room does not reach the caller",
         "raise errors again that have nothing to do with memory"),
        ("No memory is held when the function returns", [HELD], "buffers are still held afterwards",
         "release all buffers, on the GPU and on the host"),
    )
]  # fmt: skip
EDGES = {
    "place": (("cuda:0", 1), ("cuda:1", 0), ("cuda", 1), ("cpu", 0)),  # the device, and the current GPU
    "pinned": (True, False),
    "room": (ALL, GPU, HOST, LOCKED, ERRORS),  # for which sizes there is room, in a second call
}


def possible(scene: Scene) -> bool:
    on_gpu, room = scene.place[0] != "cpu", scene.room
    return room == ALL or (on_gpu != (room == HOST) and (room != LOCKED or bool(scene.pinned)))


class Operations(TorchDispatchMode):
    """What is copied while it is entered, as (bytes, from where to where, from which memory), and what else is done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies, self.others = list[tuple[int, str, str]](), set[str]()
        self.ends = list[weakref.ref[Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name in ("copy_", "_to_copy"):
            into, source = (args[0], args[1]) if name == "copy_" else (out, args[0])
            itself = into.untyped_storage()._cdata == source.untyped_storage()._cdata
            way = f"{source.device} to {'itself' if itself else into.device}"
            self.copies.append((into.nbytes, way, "pinned" if source.is_pinned() else "pageable"))
            self.ends += [weakref.ref(tensor.untyped_storage()) for tensor in (into, source)]
        if name not in VIEWS:
            made = isinstance(out, torch.Tensor) and all(out is not arg for arg in args)
            self.others.add(f"a tensor made on {'the GPU' if out.is_cuda else 'the host'}" if made else name)
        return out


class Timer:
    """A `timer` for the student's function, whose times are `latency` ms and the bytes by `rate`, a number per ms."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu, self.noise, self.calls = gpu, dict[int, float](), 0
        self.latency, self.rate = random.uniform(0.004, 0.04), random.uniform(2, 20) * 1e6
        self.inside, self.copies, self.ends = set[str](), set[tuple[int, str, str]](), list[weakref.ref[Any]]()

    def ms(self, nbytes: int) -> float:
        return (self.latency + nbytes / self.rate) * self.noise.get(nbytes, 1.0)

    def __call__(self, fn: Callable[[], object]) -> float:
        if not callable(fn):
            raise TypeError("timer takes a function without arguments, such as lambda: there.copy_(here)")
        self.calls, clock = self.calls + 1, self.gpu.clock
        for _ in range(2):
            began = clock.host - clock.waited
            with Operations() as done:
                fn()
            longer = clock.host - clock.waited - began > 1.01 * len(done.copies) * clock.costs.plain
            self.inside |= {"one copy" if len(done.copies) == 1 else f"{len(done.copies)} copies"} | done.others
            self.inside |= {"more of the host's time than copies take"} if longer else set()
            self.copies, self.ends = self.copies | {*done.copies}, self.ends + done.ends
        return self.ms(done.copies[0][0] if done.copies else self.calls * 10**5)


def allocated() -> int:
    return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))


def draw_sizes(count: int) -> list[int]:
    """Different sizes of up to 4 MB, in no order."""
    parts = [(4 + step * 2.6 / count, 4 + (step + 0.8) * 2.6 / count) for step in range(count)]
    return random.sample([round(10 ** random.uniform(*ends)) for ends in parts], count)


class Run:
    """One call of the student's function with these sizes and, if there is one, `one` more without room in `scene`."""

    def __init__(self, call: Callable[..., Any], scene: Scene, fits: list[int], one: int = 0, noise: float = 0) -> None:
        device, current = torch.device(scene.place[0]), scene.place[1]
        index, self.fits = current if device.index is None else device.index, fits

        def on(student: Any, sizes: Any, pinned: Any, device: Any, timer: Any) -> Any:
            with torch.cuda.device(current):
                return student(sizes, pinned, device, timer)

        def no_room(nbytes: int) -> None:
            if nbytes == one and scene.room == LOCKED:
                raise RuntimeError("CUDA error: out of memory")  # of cudaHostAlloc

        with scope(compute=False, count=2) as gpu, observe(gpu, pin=no_room):
            self.timer = Timer(gpu)
            for i, size in enumerate(sorted(fits)):  # neighbours lie on different sides: a line through two is far off
                self.timer.noise[size] = 1 + (-1) ** i * random.uniform(noise / 2, noise)
            full = torch.cuda.mem_get_info(index)[0] - LEFT if one and scene.room == GPU else 0
            filler = torch.empty(full, dtype=torch.uint8, device=f"cuda:{index}")
            before, sizes = allocated(), [*fits[:1], one, *fits[1:]] if one else [*fits]
            self.got = call(sizes, scene.pinned, device, self.timer, through=on)
            if self.holds(before):
                gc.collect()
            self.held = self.holds(before)
            del filler
        self.wanted = [self.timer.ms(size) for size in fits]

    def holds(self, before: int) -> list[str]:
        return ["the GPU"] if allocated() > before else ["the host"] * any(end() is not None for end in self.timer.ends)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    """A call in which all sizes find room; where it is right, one in which they do not, or the times scatter."""
    device, current = scene.place
    facts = Facts(f"to {device}, cuda:{current} is current, pinned={scene.pinned}")
    run = Run(call, scene, draw_sizes(5))
    facts.add(INSIDE, sorted(run.timer.inside) or ["nothing: the timer was never called"], ["one copy"])
    if facts.hold():
        copied, ways, sources = map(set, zip(*run.timer.copies, strict=True))
        way = f"cpu to {f'cuda:{current}' if device == 'cuda' else device}"
        facts.add(BYTES, sorted(copied - {*run.fits}), [])
        facts.add(WAY, sorted(ways), [way])
        if ways == {way}:
            facts.add(SOURCE, sorted(sources), ["pinned" if scene.pinned and device != "cpu" else "pageable"])
    judge(facts, run, KEYS, LINE)
    if facts.hold():
        facts.add(HELD, run.held, [])
    if facts.hold():
        facts.about += f", room for {scene.room}"
        if scene.room == ALL:
            judge(facts, Run(call, scene, draw_sizes(8), noise=0.08), KEYS, SCATTERED)
        else:
            (errors if scene.room == ERRORS else without_room)(facts, call, scene)
    return facts


def judge(facts: Facts, run: Run, keys: str, line: Sequence[str]) -> None:
    """What came back."""
    forms = [type(run.got).__name__]
    if isinstance(run.got, tuple):
        forms = ["a number" if is_finite(part) else type(part).__name__ for part in run.got]
    facts.add(FORM, forms, ["dict", "a number", "a number"])
    if facts.hold():
        facts.add(keys, list(run.got[0]), run.fits)
    if facts.hold():
        facts.add(TIMES, list(run.got[0].values()), Near(run.wanted, 1e-6))
    if facts.hold():
        for name, got, wanted in zip(line, run.got[1:], nearest(run.fits, run.wanted, run.got[1:]), strict=True):
            facts.add(name, got, Near(wanted, 5e-3))


def nearest(sizes: list[int], times: list[float], got: Any) -> tuple[float, float]:
    """Latency in µs and bandwidth in GB/s of the line of least squares that comes nearest to what came."""
    x, t = (torch.tensor(values, dtype=torch.float64) for values in (sizes, times))
    lines = []
    for by in (size**power for size in (x / x.mean(), t) for power in POWERS):
        rows = torch.stack([1 / by, x * 1e-6 / by], dim=1)
        latency, slope = torch.linalg.lstsq(rows, (t / by)[:, None]).solution.flatten().tolist()
        lines.append((latency * 1e3, 1 / slope))
    return min(lines, key=lambda line: max(abs(a / b - 1) for a, b in zip(got, line, strict=True)))


def without_room(facts: Facts, call: Callable[..., Any], scene: Scene) -> None:
    """Between two large sizes lie small ones: a loop may hold the buffers of one size until it has made the next."""
    fits, one = draw_sizes(2), 10**15 if scene.room == HOST else 10**6
    if scene.room == GPU:
        large = random.sample(LARGE, 2)
        fits, one = [large[0], *(size // 8 for size in draw_sizes(3)), large[1]], 2 * LARGE[-1]
    judge(facts, Run(call, scene, fits, one), ROOM, LINE)


def errors(facts: Facts, call: Callable[..., Any], scene: Scene) -> None:
    """Errors that have nothing to do with room: three of a timer's, and that for a GPU that is not there."""
    lost = []
    for name, own in (
        ("an error", ZeroDivisionError("the timer's own error")),
        ("a RuntimeError", RuntimeError("the timer's own error: its clock has stopped")),
        ("an illegal memory access", RuntimeError("CUDA error: an illegal memory access was encountered")),
        ("a GPU that is not there", None),
    ):
        timer, device = Mock(side_effect=own, return_value=1.0), torch.device("cuda", 0 if own else 1)
        with scope(compute=False):
            end = call(draw_sizes(3), scene.pinned, device, timer, through=caught)
        if not (own in (end, getattr(end, "__cause__", end)) if own else "device" in str(end).lower()):
            lost.append(name)
    facts.add(LOST, lost, [])


def caught(student: Any, *args: Any) -> Any:
    try:
        return student(*args) and None
    except Exception as error:
        return error


EXERCISE = Contract(
    __file__,
    says="one copy timed per size, sizes that do not fit left out, latency and bandwidth from the line",
    parameters=("sizes", "pinned", "device", "timer"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    imports=[OPTIMIZERS],
    errors={
        "out of memory": "leave out a size for which there is no room on the GPU or in page-locked memory: catch that "
                         "error",
        "DefaultCPUAllocator": "the host's allocator also raises when there is no room: a plain RuntimeError",
    },
)
