"""The check of a bottleneck named from a trace: first a plain one of its kind, then one with something misleading."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import text_in
from .sections import JOBS, ROOF
from .traces import Machine

WORDS = ("input", "waits", "launches", "compute", "bandwidth")
GAPS = WORDS[:3]
WORD = "one of five words"
NEAR, HIDDEN, CATS, STREAMS, GPUS, COPIES, WINDOW, STEPS, NUMBER, ORDER, PEAKS, SHORT, NONE = TWISTS = (
    "gaps of nearly 30 %",
    "a host that loads and waits elsewhere too",
    "events of other cats",
    "kernels on several streams",
    "another GPU's kernels",
    "copies",
    "what lies outside of the steps",
    "steps unlike the others",
    "the number of kernels",
    "events out of order",
    "a GPU with another ridge",
    "short gaps behind waits that are over",
    "no kernel of this GPU",
)
CLAUSES = [
    Clause(quote, facts, summary, likely, read)
    for facts, quote, summary, likely, read in (
        (
            [WORD],
            '"input", "waits", "launches", "compute" or "bandwidth"',
            "what is returned is no such word",
            "",
            JOBS,
        ),
        (["input"], '"input" if the host loads', "a job that waits for its loader is called another", "", JOBS),
        (["waits"], '"waits" if the host is in a wait', "a job whose host waits is called another", "", JOBS),
        (["launches"], 'else "launches"', "a job whose host launches too slowly is called another", "", JOBS),
        (["compute"], 'FLOPs at the peak, "compute"', "a job near the roof of arithmetic is called another", "", ROOF),
        (["bandwidth"], 'bytes at theirs, "bandwidth"', "a job near the roof of memory is called another", "", ROOF),
        ([NEAR], "more than 30 % of the steps", "gaps of nearly 30 % are judged otherwise", "compare gaps, all", JOBS),
        ([HIDDEN], "Each gap goes to", "gaps are put down to other kinds", "what counts is in a gap", JOBS),
        (
            [CATS],
            "of the cats named above, and of no other",
            "events of other cats count",
            "ask for the cat, too",
            JOBS,
        ),
        ([STREAMS], "on none of its streams", "streams side by side are added up", "the union of intervals", JOBS),
        ([GPUS], "kernels of other GPUs do not count", "another GPU's kernels count", 'args["device"]', JOBS),
        ([COPIES], "copies are no kernels", "copies count as kernels", 'cat is "kernel"', JOBS),
        ([WINDOW], "from the first step's begin to the last one's end", "other times are looked at", "", JOBS),
        ([STEPS], "of all steps together", "the steps are not judged together", "sums over all steps", JOBS),
        ([NUMBER], "by their time, not their number", "kernels or gaps are counted", "sum their times", JOBS),
        ([ORDER], "in any order", "the order of the events in the file counts", "sort them by ts", JOBS),
        ([PEAKS], "the peaks of this GPU", "on a GPU with another ridge another word comes", "use the peaks", ROOF),
        ([SHORT], "in a wait when the gap begins", "short gaps are judged otherwise", "all gaps count", JOBS),
        ([NONE], "A gap is a stretch of it", "a GPU without any kernel is judged otherwise", "it is one gap", JOBS),
    )
]
EDGES = {"kind": WORDS, "twist": TWISTS}
SHEETS = ((312e12, 2.039e12), (165e12, 1.008e12), (125e12, 0.9e12))  # bf16 or fp16, with ridges of 139 to 164
LOW, HIGH = ((19.5e12, 2.039e12), (8.1e12, 0.32e12)), ((989e12, 3.35e12), (1979e12, 3.35e12))  # fp32; bf16, fp8


def possible(scene: Scene) -> bool:
    if scene.twist == SHORT:
        return bool(scene.kind == "launches")
    if scene.twist == NONE:
        return scene.kind in ("launches", "input")
    if scene.twist == CATS:
        return scene.kind in ("launches", "waits")
    if scene.kind in GAPS:
        return bool(scene.twist != PEAKS)
    return bool(scene.twist != COPIES or scene.kind == "compute")


def drawn(kind: str, twist: str = "") -> tuple[list[dict[str, Any]], int, float, float]:
    """The events of a job of this kind, its GPU and the peaks of that; `twist` is what might mislead."""
    sheets = SHEETS if twist != PEAKS else LOW if kind == "compute" else HIGH
    gpu = random.randint(1, 3) if twist else 0
    machine = Machine(gpu, *random.choice(sheets))
    other = random.choice([n for n in range(4) if n != gpu])
    if twist == WINDOW:  # before the first step
        machine.now += 1e5
        near = {"compute": (0.1, 0.6), "bandwidth": (0.6, 0.1)}.get(kind)  # the other roof
        machine.work(40, 9e4 if near else 90, *(near or ()))
        machine.wait()
        machine.host("user_annotation", machine.loader, 1e5 if kind not in GAPS else 50)
    count = {STEPS: 4, WINDOW: 3, NONE: 1, SHORT: 1}.get(twist, 3 if kind == "input" else 2)
    if kind == "input" and twist in ("", HIDDEN):
        count = 1 if twist else random.choice([1, 3])
    scale = random.choice([0.5, 1, 3])
    for number in range(count):
        begin = machine.now
        if twist == STEPS and number in (0, count - 1):
            step(machine, "compute" if kind in GAPS else "input", "", 0.05 * scale, other)
        else:
            step(machine, kind, twist, scale, other)
        if twist == WINDOW and number == count - 1 and kind in GAPS:  # launched in the last step, and run after it
            machine.work(9, 2e5, 0.5, 0.1)
        elif twist == WINDOW and number == count - 1:  # the same, and a good part of it within
            machine.work(9, 6e3 * scale, *((0.6, 0.1) if kind == "compute" else (0.1, 0.6)))
            machine.now += 2.5e3 * scale
        machine.event("user_annotation", f"ProfilerStep#{number + 5}", begin, machine.now - begin)
        if twist == WINDOW and kind == "compute" and number < count - 1:  # as an evaluation between two steps
            machine.work(9, 2400 * scale, 0.6, 0.1)
            machine.wait()
        if twist == WINDOW:  # the range of the step's kernels, as the profiler draws it on the GPU's lane
            machine.event(
                "gpu_user_annotation", f"ProfilerStep#{number + 5}", begin + 9, machine.now + 1e5 - begin, "7"
            )
    machine.wait()  # the profiler's own, at its end
    events = sorted(machine.events, key=lambda e: e.get("ts", 0.0))
    if twist == ORDER:
        random.shuffle(events)
    return events, gpu, *machine.peaks


def step(machine: Machine, kind: str, twist: str, scale: float, other: int) -> None:
    """One step of the job; at its end the host waits, as for a loss that is printed. Kernels between gaps are nearer to
    one roof: where both are as near, a wrong answer's word would hang on how Python sums."""
    near = twist == NEAR
    busy = random.uniform(*((0.55, 0.6) if near else (0.3, 0.5))) if kind in GAPS else random.uniform(0.92, 0.97)
    if near and kind not in GAPS:
        busy = random.uniform(0.6, 0.65)
    if twist == WINDOW and kind == "compute":  # with what is between the steps: more than 0.7
        busy = random.uniform(0.52, 0.55)
    count, begin = random.randint(6, 9), machine.now
    if twist == NUMBER:
        count = random.randint(2, 3) if kind == "launches" else 30
    size = 1500 * scale * random.uniform(0.8, 1.2)  # µs of kernels
    kernel, streams = size / count, [(machine.gpu, 7)]
    if kind in GAPS and twist == STREAMS:
        streams += [(machine.gpu, 13 + n) for n in range(4)]
    if kind in GAPS and twist == GPUS:
        machine.work(5, size / busy, 0.3, 0.36, (other, 7))
    if twist == COPIES:
        machine.copy(0.9 * size / busy, within=kind not in GAPS)
    if twist == NONE:
        part = 0.55 if kind == "input" else 0.46
        before = 0.2 * size if kind == "input" else 0.0  # the step begins while the host loads
        machine.event("user_annotation", machine.loader, begin - before, before + part * size)
        machine.now += part * size
        machine.host("cpu_op", "aten::linear", (1 - part) * size)
        return
    if twist == SHORT:
        for _ in range(20):
            machine.work(15, 4, 0.2, 0.25)
            machine.host("cuda_runtime", "cudaEventSynchronize", 2)  # for an event that is over
    elif kind == "launches":
        pace = size / count / busy
        if twist == HIDDEN:  # one kernel, behind which the host loads and then waits
            machine.work(9, 0.9 * size / busy, 0.3, 0.36)
            machine.host("user_annotation", machine.loader, 0.4 * size / busy)
            machine.wait("cudaStreamSynchronize")
            kernel = 0.6 * pace
        for _ in range(count):
            machine.work(pace, kernel, 0.2, 0.25, *streams)
            if twist == HIDDEN:  # from behind the kernel into the gap, of which it fills a third
                machine.host("user_annotation", machine.loader, 0.74 * pace + 4)
                machine.wait("cudaStreamSynchronize")  # for what is done already
    elif kind == "waits":
        if twist == HIDDEN:
            machine.work(9, size / busy, 0.3, 0.36)
            machine.host("user_annotation", machine.loader, 0.97 * size / busy)
            kernel *= 0.3
        for _ in range(count):
            pause = size / count / busy - size / count - 13
            machine.work(8, kernel, 0.2, 0.25, *streams)
            machine.wait(machine.waits)
            machine.host("cpu_op", "aten::item", 1.0)
            machine.now += max(pause, 1.0)  # Python, which no operation shows
    elif kind == "input":
        gap = size * (1 / busy - 1)
        pieces, rest = [0.7 * gap], 0.3 * gap
        if twist == HIDDEN:  # the batch is fetched last, in pieces, the first from behind the kernel into the gap
            machine.work(9, size, 0.2, 0.25)
            machine.now += size - 0.2 * gap
            pieces, rest, count = [0.45 * gap, 0.22 * gap, 0.22 * gap], 0.31 * gap, 0
        for us in pieces:
            machine.host("user_annotation", machine.loader, us)
            machine.now += 4.0
        machine.now += rest  # what Python does with the batch
        for _ in range(count):
            # Where there are many, each comes a little too late.
            machine.work(1.03 * kernel if twist == NUMBER else min(9.0, 0.5 * kernel), kernel, 0.2, 0.25, *streams)
    else:
        of_roof(machine, kind, twist, size, count, busy, other)
    if near:
        machine.fill(begin, random.uniform(*((0.305, 0.315) if kind in GAPS else (0.285, 0.295))))
    machine.wait()
    if twist == CATS:  # the shadow of a range of an earlier step's, and a range of the user's own
        machine.event("gpu_user_annotation", machine.loader, begin, machine.now - begin, "7")
        machine.event("user_annotation", "work to Synchronize", begin, machine.now - begin)


def of_roof(machine: Machine, kind: str, twist: str, size: float, count: int, busy: float, other: int) -> None:
    """Kernels without gaps but for one at the step's begin, under one of the two roofs."""
    near, far = random.uniform(0.5, 0.8), random.uniform(0.05, 0.2)
    if twist == NUMBER and kind == "bandwidth":  # all of them short
        size, count = 840.0, 60
    if twist == PEAKS:
        near, far = random.uniform(0.22, 0.28), random.uniform(0.14, 0.17)
    elif kind == "bandwidth" and random.random() < 0.3:
        far = 0.0  # norms and activations alone
    high = (near, far) if kind == "compute" else (far, near)
    machine.host("user_annotation", machine.loader, size * (1 / busy - 1))
    if twist == GPUS:
        machine.work(5, 9 * size, high[1], high[0], (other, 7))
    if twist == NUMBER and kind == "compute":  # few that take most of the time, and many of the other kind
        for _ in range(2):
            machine.work(9, 0.4 * size, *high)
        for _ in range(count):
            machine.work(min(9.0, 0.1 * size / count), 0.2 * size / count, *high[::-1])
        return
    for n in range(count):
        counts = (high[0], 0.0) if kind == "compute" and n % 3 == 0 else high
        if n % 3 == 1:
            counts = (0.0, max(high[1], 0.1))  # of which no FLOPs are known, as of a norm
        stream = 13 if twist == STREAMS and kind == "compute" and n % 2 else 7
        machine.work(9, size / count, *counts, (machine.gpu, stream))
        if twist == STREAMS and kind == "compute":  # the other stream's begins when this is nearly over
            machine.now += 0.9 * size / count - 9
        elif twist == STREAMS:  # beside a short one
            machine.work(9, 0.1 * size / count, 0.0, 0.1, (machine.gpu, 13))
            machine.now += 0.9 * size / count - 18
    if twist == HIDDEN:
        machine.host("user_annotation", machine.loader, 0.7 * size)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"a job of kind {scene.kind}")
    for name, twist in ((scene.kind, ""), (scene.twist, scene.twist)):
        if facts.hold():
            got = call(*drawn(scene.kind, twist))
            word = text_in(got) if isinstance(got, str) else type(got).__name__
            facts.add(WORD, "one" if word in WORDS else word, "one")
            if word in WORDS:
                facts.add(name, word, scene.kind)
    return facts


EXERCISE = Contract(
    __file__,
    says="five kinds told apart, by what the host does in the gaps and by the nearer roof",
    own_gpu=False,
    parameters=("events", "gpu", "peak_flops", "peak_bandwidth"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
)
