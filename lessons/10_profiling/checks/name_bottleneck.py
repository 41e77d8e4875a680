"""Checks exercise 10.1, "name the bottleneck": of each kind a plain trace, and then one with a misleading detail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import text_in

JOBS, ROOF = "Four jobs, four bottlenecks", "The job under the roof"
GAPS, ROOFS = ("input", "waits", "launches"), ("compute", "bandwidth", "latency")
WORD = "one of six words"
NEAR, STREAMS, GPUS, COPIES = "gaps of nearly 30 %", "kernels on several streams", "another GPU's kernels", "copies"
WAITED, LOADED, HALF = (
    "waits elsewhere than at a gap's begin",
    "loads that lie behind kernels",
    "loads for half of a gap",
)
CATS, NAMES, WINDOW = "events of other cats", "events of other names", "kernels and gaps outside of the steps"
STEPS, NUMBER, ORDER = "steps unlike each other", "many short gaps or kernels", "events in another order"
PEAKS, LACKS, SHORT, NONE = "another ridge", "kernels that tell only FLOPs or bytes", "gaps of 2 µs", "no kernel at all"
MIXED = "kernels at one roof beside kernels at the other"
CLAUSES = [
    Clause('"compute", "bandwidth" or "latency"', [WORD], "what is returned is not one of the six words",
           "one of the six, as a string", JOBS),
    *(Clause(quote, [kind], f"a job that is bound by {kind} is called something else", "",
    JOBS if kind in GAPS else ROOF)
      for kind, quote in (
        ("input", '"input" if the host loads'), ("waits", '"waits" if the host is in a wait'),
        ("launches", 'else "launches"'), ("compute", 'FLOPs at the peak, "compute"'),
        ("bandwidth", 'bytes at theirs, "bandwidth"'), ("latency", 'neither roof is near: "latency"'))),
    *(Clause(quote, [fact], f"with {fact} the answer is wrong", rule, ROOF if fact in (PEAKS, LACKS) else JOBS)
      for fact, quote, rule in (
        (NEAR, "more than 30 % of the steps", "that of all gaps together"),
        (WAITED, "a wait when the gap begins", "no other wait matters"),
        (LOADED, "Each gap goes to", "by what the host does in it, not before or after"),
        (HALF, "for more than half of the gap", "all loads in it together"),
        (CATS, "of the cats named above, and of no other", "loads: user_annotation; waits: cuda_runtime"),
        (NAMES, "Loads and waits are events of the cats named above", "a wait's name ends in Synchronize"),
        (STREAMS, "on none of its streams", "while one of them runs a kernel there is no gap"),
        (GPUS, "kernels of other GPUs do not count", 'args["device"] says whose a kernel is'),
        (COPIES, "copies are not kernels", 'a kernel is of cat "kernel"'),
        (WINDOW, "from the first step's begin to the last one's end",
         "all of it, including the time between two steps"),
        (STEPS, "of all steps together", "count everything in this time, in whichever step"),
        (NUMBER, "by their time, not their number", "times are added up, of gaps and of kernels"),
        (ORDER, "in any order", "ts says when they begin"),
        (PEAKS, "the peaks of this GPU", "no other number of the GPU is needed"),
        (LACKS, "the larger of two times does", "of all kernels; a missing number is 0"),
        (MIXED, "the longer of a kernel's own two times", "the longer one of each kernel, and then the sum"),
        (SHORT, "A gap is an interval in it", "of any length"),
        (NONE, "in which the GPU runs a kernel on none of its streams", "then all of the time is a gap"))),
]  # fmt: skip
ONLY = {  # the kinds for which a twist is
    WAITED: ("waits", "launches"), HALF: GAPS, CATS: ("waits", "launches"), NAMES: ("launches",), SHORT: GAPS,
    NONE: GAPS, PEAKS: ROOFS[:2], LACKS: ROOFS[:2], MIXED: ROOFS[:2],
    COPIES: (*GAPS, "compute"), ORDER: (*GAPS, "compute"),
}  # fmt: skip
TWISTS = [fact for clause in CLAUSES[7:] for fact in clause.facts]
SHEETS = ((312e12, 2.039e12), (165e12, 1.008e12), (125e12, 0.9e12))  # bf16 or fp16, with ridges of 139 to 164
LOW, HIGH = ((19.5e12, 2.039e12), (8.1e12, 0.32e12)), ((989e12, 3.35e12), (1979e12, 3.35e12))  # fp32; bf16, fp8
LOADERS = [f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__" for kind in ("SingleProcess", "MultiProcessing")]
WAITS = [f"cuda{kind}Synchronize" for kind in ("Device", "Stream", "Event")]
Host = tuple[list[tuple[float, float]], list[tuple[float, float]]]
# When the host loads, and when it waits, in parts of a gap: below 0 is before it, and above 1 behind it.
HOST: dict[str, Host] = {
    "input": ([(0.1, 0.8)], [(-0.1, 0.05)]), "waits": ([], [(-0.5, 0.3)]), "launches": ([], []),
}  # fmt: skip
MISLEADING: dict[tuple[str, str], Host] = {
    (WAITED, "launches"): ([], [(-0.3, -0.02), (0.4, 0.5), (0.6, 1.2)]),
    (WAITED, "waits"): ([], [(-0.5, 0.02)]),
    (LOADED, "input"): ([(-0.4, 0.4), (0.5, 0.8)], []),
    (LOADED, "waits"): ([(0.8, 2.0)], [(-0.2, 0.1)]),
    (LOADED, "launches"): ([(-1.2, 0.2)], []),
    (HALF, "input"): ([(0.0, 0.3), (0.35, 0.5), (0.7, 0.77)], []),
    (HALF, "waits"): ([(0.5, 0.98)], [(-0.5, 0.1)]),
    (HALF, "launches"): ([(0.5, 0.98)], []),
}


class Trace:
    """Events as torch.profiler writes them: a GPU whose kernels run one after the other, up to `now`, and a host."""

    def __init__(self, gpu: int, peaks: tuple[float, float], number: int) -> None:
        self.gpu, self.peaks, self.now = gpu, peaks, random.uniform(1e6, 1e9)
        self.load = "user_annotation", LOADERS[number % 2]
        self.wait = "cuda_runtime", WAITS[number % 3]
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]

    def event(self, cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        tid = args.get("stream", 1)
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def kernel(
        self, us: float, parts: tuple[float, float] = (0.2, 0.25), stream: int = 7, gpu: int | None = None
    ) -> None:
        """`parts` of the peaks that it reaches, FLOPs and bytes; what is 0 is not told. `now` stays."""
        self.event("cpu_op", "aten::addmm", self.now - 12, 10)
        self.event("cuda_runtime", "cudaLaunchKernel", self.now - 6, 3)
        self.events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": self.now - 5})
        counts = zip(("flops", "bytes"), parts, self.peaks, strict=True)
        told = {key: part * peak * us / 1e6 for key, part, peak in counts if part}
        self.event("kernel", "addmm", self.now, us, device=self.gpu if gpu is None else gpu, stream=stream, **told)

    def busy(self, us: float, parts: tuple[float, float] = (0.2, 0.25), streams: Iterable[int] = (7,)) -> None:
        for stream in streams:
            self.kernel(us, parts, stream)
        self.now += us

    def beside(self, us: float, parts: tuple[float, float]) -> None:
        """Kernels of two other GPUs, over all of the last `us`."""
        self.now -= us
        for gpu in (0, self.gpu % 3 + 1):
            self.kernel(us, parts, gpu=gpu)
        self.now += us

    def gap(self, us: float, host: Host) -> None:
        for what, parts in zip((self.load, self.wait), host, strict=True):
            for begin, end in parts:
                self.event(*what, self.now + begin * us, (end - begin) * us)
        self.now += us

    def step(self, number: int, begin: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin)


def gaps_step(t: Trace, kind: str, twist: str, us: float) -> None:
    """A step in which the GPU has much to wait for."""
    begin, us, host = t.now, us / 5, MISLEADING.get((twist, kind), HOST[kind])
    share = random.uniform(*{NEAR: (0.305, 0.315), LOADED: (0.37, 0.38)}.get(twist, (0.5, 0.6)))
    gap, count = us * share / (1 - share), 5
    if twist == NONE:
        return t.gap(us, host)
    if twist == SHORT:
        us, gap, count = 1.5, 2.0, 60
    if twist == NUMBER:  # in all they are short
        count, another = 3, HOST["waits" if kind == "launches" else "launches"]
        for _ in range(3 if kind == "launches" else 45):
            t.busy(4.0)
            t.gap(1.0, another)
        t.busy(us)
        t.gap(1.6 * gap, another)  # the longest of all
    for _ in range(count):
        t.busy(us, streams=(7, 13, 14, 15, 16) if twist == STREAMS else (7,))
        if twist == NAMES:
            t.event("cuda_runtime", "cuSynchronizePolicySet", t.now - 2, 4)
        t.gap(gap, host)
    if twist == CATS:
        for cat, name in (
            ("gpu_user_annotation", t.load[1]),
            ("cpu_op", "DataLoader"),
            ("user_annotation", "a Synchronize"),
        ):
            t.event(cat, name, begin, t.now - begin)
    if twist == COPIES:
        t.event(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin, t.now - begin, device=t.gpu, stream=20, bytes=9e7
        )
    if twist == GPUS:
        t.beside(t.now - begin, (0.2, 0.25))
    return None


def roof_step(t: Trace, kind: str, twist: str, us: float) -> None:
    """A step of kernels with short gaps, of which the loader is the reason."""
    near, far, others = random.uniform(0.8, 0.92), random.uniform(0.05, 0.2), (0.42, 0.5)
    if twist == PEAKS:
        near, far = random.uniform(0.72, 0.82), random.uniform(0.46, 0.52)
    if kind == "latency":
        near, far, others = random.uniform(0.52, 0.57), random.uniform(0.2, 0.4), (0.3, 0.4)

    def of(near: float, far: float) -> tuple[float, float]:
        return (near, far) if kind == "compute" else (far, near)

    parts, opposite = of(near, far), of(far, near)
    share = random.uniform(*((0.285, 0.295) if twist == NEAR else (0.03, 0.08)))
    begin, kernels = t.now, [(us / 5, parts)] * 5
    if twist == NUMBER:
        kernels = [(0.4 * us, parts)] * 2 + [(0.2 * us / 60, opposite)] * 60
    if twist in (STEPS, STREAMS):  # the longest kernel, and most of those on one stream, are nearer to the other roof
        kernels = [(0.28 * us, of(*others)), *[(0.24 * us, parts), (0.24 * us, of(*others))] * 2][:4]
    if twist == LACKS:
        kernels = [(0.4 * us, of(near, 0.0))] * 2 + [(0.1 * us, of(0.1, 0.9 * near))] * 2
    if twist == MIXED:  # of the whole, neither roof explains 60 %
        near = random.uniform(0.74, 0.8)
        kernels = [(0.14 * us, of(near, 0.1)), (0.11 * us, of(0.1, near))] * 4
    for number, (us_of_one, of_one) in enumerate(kernels):
        t.busy(us_of_one, of_one, (13,) if twist == STREAMS and number % 2 else (7,))
        if twist == STREAMS:  # beside it, and over before it
            t.now -= 0.9 * us_of_one
            t.kernel(0.1 * us_of_one, of_one, stream=20)
            t.now += 0.9 * us_of_one
    if twist == LOADED:
        t.event(*t.load, begin, t.now - begin)
    if twist == COPIES:
        copied = t.peaks[1] * us / 1e6
        t.event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", begin, us, device=t.gpu, stream=20, bytes=copied)
    if twist == GPUS:
        t.beside(us, (9 * opposite[0], 9 * opposite[1]))
    t.gap(us * share / (1 - share), HOST["input"])


def window(t: Trace, kind: str, us: float) -> None:
    """Two steps, and what is around them. Gaps decide with that before the first kernel, that after the last and that
    between the steps, and with no two of these. A roof decides because a kernel runs between the steps, and another, of
    which a part is in the last one; there is a gap before the first step, and kernels under the other roof."""
    parts = {"compute": (0.6, 0.1), "bandwidth": (0.1, 0.6)}.get(kind, (0.2, 0.25))
    if kind in GAPS:
        pieces = [("busy", 20.0), ("step", 0), ("gap", 0.12), ("busy", 0.32), ("end", 5), ("gap", 0.12)]
        pieces += [("step", 0), ("busy", 0.32), ("gap", 0.12), ("end", 6), ("busy", 20)]
    else:
        pieces = [("other", 20.0), ("gap", 20), ("step", 0), ("busy", 0.55), ("gap", 0.45), ("end", 5), ("busy", 1.5)]
        pieces += [("step", 0), ("gap", 0.45), ("busy", 1.5), ("back", 0.95), ("end", 6)]
    begins = list[float]()
    for what, part in pieces:
        if what in ("busy", "other"):
            t.busy(part * us, parts if what == "busy" else parts[::-1])
        elif what == "gap":
            t.gap(part * us, HOST.get(kind, HOST["input"]))
        elif what == "step":
            begins.append(t.now)
        elif what == "back":
            t.now -= part * us
        else:
            t.step(int(part), begins[-1])
    t.event("gpu_user_annotation", "ProfilerStep#6", begins[0], 30 * us, stream=7)


def drawn(kind: str, twist: str, number: int) -> tuple[list[dict[str, Any]], int, float, float]:
    """The events of a job of this kind, its GPU and the peaks of that; `twist` is what might mislead, if anything."""
    sheets = SHEETS if twist != PEAKS else LOW if kind == "compute" else HIGH
    t, us = Trace(random.randint(1, 3) if twist else 0, random.choice(sheets), number), random.uniform(600, 1100)
    if twist == WINDOW:
        window(t, kind, us)
    else:
        for n in range(5 if twist == STEPS else 2):
            begin, unlike = t.now, twist == STEPS and n % 2 == 0
            of_step = ("compute" if kind in GAPS else "input") if unlike else kind
            (gaps_step if of_step in GAPS else roof_step)(t, of_step, twist, us / 20 if unlike else us)
            t.step(n + 8, begin)
    t.events.sort(key=lambda e: e.get("ts", 0.0))
    if twist == ORDER:
        random.shuffle(t.events)
    return t.events, t.gpu, *t.peaks


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"a job bound by {scene.kind}")
    for name, twist in ((scene.kind, ""), (scene.twist, scene.twist)):
        got, held = call(*drawn(scene.kind, twist, TWISTS.index(scene.twist))), facts.hold()
        word = text_in(got) if isinstance(got, str) else type(got).__name__
        if not held:  # it tells mistakes apart that look alike in a plain trace
            facts.seen[f"{name}, also"] = word
            break
        facts.add(WORD, "one" if word in (*GAPS, *ROOFS) else word, "one")
        if facts.hold():
            facts.add(name, word, scene.kind)
    return facts


EXERCISE = Contract(
    __file__,
    says="all six kinds are distinguished, by what the host does in the gaps and by the nearer roof, if one is near",
    own_gpu=False,
    parameters=("events", "gpu", "peak_flops", "peak_bandwidth"),
    clauses=CLAUSES,
    edges={"kind": (*GAPS, *ROOFS), "twist": TWISTS},
    play=play,
    possible=lambda scene: scene.kind in ONLY.get(scene.twist, (*GAPS, *ROOFS)),
)
