"""Checks exercise 05.2, "read the message": its numbers in bytes, their sums, and the remedy that they call for."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_finite, text_in
from virtualgpu.memory.out_of_memory import Shortage, format_size

MESSAGE, SEGMENT, CAUSE = "The message, number by number", "“Tried to allocate” is a segment", "Which cause is it?"
GIB, MIB = 2**30, 2**20
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB}
UNKNOWN = "17179869184.00 GiB"  # 2**64 - 1 bytes: what NVML answers under Windows and WSL
NEEDED = ("tried", "capacity", "free", "allocated", "cached")  # without these a message is of no known form
KEYS = (*NEEDED, "process", "allowed", "pools", "others", "tensor", "need", "remedy")
SMALLER, LIMIT, EXPAND = "smaller request", "raise the limit", "expandable segments"
OTHER, FREE = "end the other process", "free tensors"
PLENTY, UNTOLD = "more is free than was tried", "nobody's share is told"  # here the remedy is None
CAUSES = {  # by the remedy: where it is the right one, and the row of the table
    SMALLER: ("one request is too large", "tried > capacity, or tried > allowed"),
    LIMIT: ("a limit failed", "free ≥ tried, and “allowed” is there; or the last sentence names the limit"),
    PLENTY: (PLENTY, "free > tried, and no limit is named: the message does not give the cause, so it is None"),
    EXPAND: ("the cache is enough", "cached ≥ tried, and expandable segments are not on"),
    UNTOLD: (UNTOLD, "and it may be what is missing: the message does not give the cause, so it is None"),
    OTHER: ("others hold what is missing", "others is more than 0, and at least tried − free"),
    FREE: ("live tensors fill the GPU", "no other row of the table holds"),
}
RESERVE = (
    " This allocation exceeds the expandable-segment reserve of 2.00 GiB for this stream, and a single allocation"
    " cannot span expandable segments."
)


@dataclass(frozen=True)
class Case:
    """Sizes in GiB; the one that is REST is what the others leave of the capacity. `lines` are those of the processes:
    THIS is “this process”; of the numbered ones OWN is this one's, ALL the others', a number that of one of them."""

    cause: str
    tried: float
    free: float
    cached: float
    live: float
    others: float = 0.0
    lines: tuple[float | str, ...] = ("this",)
    allowed: float | None = None
    pools: float = 0.0
    expandable: bool = False
    ending: str = ""
    total: float = 0.0  # a drawn one unless given


REST, CONTEXT, THIS, OWN, ALL, UNKNOWN_THIS = -1.0, 0.25, "this", "own", "all", "this, unknown"
# Sizes below 0.25 GiB are as they stand, and so are all where two are "just" the same; others vary by 1 %.
CASES = {
    "live tensors fill the GPU": Case(FREE, 20 / 1024, 0.0107, 0.0098, REST),
    "live tensors fill the GPU to the last byte": Case(FREE, 2 / 1024, 0.001, 0, REST),
    "the cache is more than was tried": Case(EXPAND, 1.5, 0.3, 3.5, REST),
    "neither what is free nor the cache is enough": Case(FREE, 0.5, 0.28, 0.28, REST),
    "others hold most, in the first line": Case(OTHER, 2.5, 0.8, 0.12, 2.5, REST, (ALL, THIS)),
    "others hold most, in the last line": Case(OTHER, 2.5, 0.8, 0.12, 2.5, REST, (THIS, ALL)),
    "others hold most, and one as much as is reserved here": Case(OTHER, 2.5, 0.8, 0.12, 2.5, REST, (2.75, ALL, THIS)),
    "more is free than was tried, under a limit": Case(LIMIT, 1, REST, 0.03, 3.7, allowed=4),
    "free and cached are more than was tried, under a limit": Case(LIMIT, 1, REST, 1.3, 2.3, allowed=4),
    "less is free than was tried, under a limit": Case(OTHER, 1, 0.3, 0.1, 2.2, REST, allowed=4),
    "more was tried than there is": Case(SMALLER, 120, REST, 0.004, 1),
    "more was tried than is allowed": Case(SMALLER, 5, REST, 0.004, 0.5, allowed=4),
    "the cache is enough, and others hold most": Case(EXPAND, 1.5, 0.3, 2, 2.5, REST),
    "others hold less than is missing": Case(FREE, 3.3, 0.3, 0.1, REST, 1),
    "others hold what is missing, and less than was tried": Case(OTHER, 2.5, 1.5, 0.1, REST, 1.5),
    "10 MiB were tried": Case(OTHER, 10 / 1024, 5 / 1024, 3 / 1024, 0.24, REST),
    "12 MiB were tried": Case(OTHER, 12 / 1024, 5 / 1024, 3 / 1024, 0.24, REST),
    "a container, and nobody else": Case(FREE, 20 / 1024, 0.0107, 0.0098, REST, lines=(OWN,)),
    "a container, this process last": Case(OTHER, 2.5, 0.5, 0.12, 4.5, REST, (0.7, ALL, OWN)),
    "a container, this process first": Case(OTHER, 2.5, 0.5, 0.12, 4.5, REST, (OWN, ALL, 0.7)),
    "a container, another process a bit smaller": Case(OTHER, 2.5, 0.5, 0.2, 2.2, REST, (2.3, ALL, OWN)),
    "no line of a process": Case(UNTOLD, 1.5, 0.4, 0.1, 3.5, REST, ()),
    "no line of a process, and the cache is enough": Case(EXPAND, 1.5, 0.3, 2, 3, REST, ()),
    "no line of a process, under a limit": Case(LIMIT, 1, REST, 0.03, 3.7, lines=(), allowed=4),
    "no line of a process, and little is left for others": Case(FREE, 1.5, 0.3, 1, REST, 0.45, ()),
    "processes of unknown size": Case(UNTOLD, 1.5, 0.4, 0.1, 3.5, REST, (UNKNOWN, UNKNOWN)),
    "more is allocated than there is": Case(FREE, 0.5, 0, 0.3, 81, lines=(UNKNOWN_THIS,)),
    "private pools": Case(OTHER, 1.5, 0.3, 0.1, 8.2, REST, pools=2.3),
    "private pools, in a container": Case(OTHER, 1.5, 0.3, 0.1, 5, REST, (3.5, ALL, OWN), pools=2.3),
    "expandable segments are on": Case(FREE, 1.5, 0.3, 2, REST, expandable=True),
    "the reserve of expandable segments": Case(LIMIT, 3, 5.5, 400 / 2**20, 1.5, REST, ending=RESERVE),
    "more is free than was tried": Case(PLENTY, 1.5, 4.5, 512 / GIB, 3.5, REST),
    "just as much is free as was tried, under a limit": Case(LIMIT, 1.5, 1.5, 0.25, 3.5, REST, allowed=4),
    "just as much is free as was tried": Case(FREE, 1.5, 1.5, 0.25, REST),
    "just as much is cached as was tried": Case(EXPAND, 1.5, 0.25, 1.5, 2, REST),
    "others hold just what is missing": Case(OTHER, 2.5, 0.5, 0.25, REST, 2),
    "just as much was tried as there is": Case(FREE, 16, 14.5, 0.25, 1, total=16),
    "just as much was tried as is allowed": Case(OTHER, 4, 0.5, 0.25, 2, REST, allowed=4),
    "no line of a process, and just what is missing is left": Case(UNTOLD, 3.5, 0.5, 0.5, REST, 2.75, ()),
    "figures that are just 51 MiB apart": Case(FREE, 1.51, 1.5, 0.1, REST, 0.05),
    "others hold just 64 MiB": Case(OTHER, 200 / 1024, 192 / 1024, 0, REST, 64 / 1024),
}
CUT_OUT = {  # to leave a figure out of a message
    "tried": r" Tried to allocate [^ ]+ \w+\.",
    "capacity": r" has a total capacity of [^ ]+ \w+",
    "free": r" of which [^ ]+ \w+ is free",
    "allocated": r" [^ ]+ \w+ is allocated by PyTorch,",
    "cached": r" and [^ ]+ \w+ is reserved by PyTorch but unallocated",
}
OTHER_FORMS = {
    "a message of PyTorch 1": "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; # total capacity; # already "
    "allocated; 11.75 MiB free; # reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.",
    "a message about more than any GPU has": "CUDA out of memory. Tried to allocate more than 1EB memory.",
}
WITHOUT = "a message without the figure for "
CONTAINER, NO_SHARE, NONE = "process, in a container", "process, where its size is not told", "{}, where none is named"
ROUNDED, BOUND = "others, of 64 MiB at most", "others, where process is not told"
TENSOR, TWO = "tensor: smallest, largest", "tensor: smallest, largest, of a segment of 2 or 20 MiB"
NEED_POOLS, REFUSES, NAMES = "need, with private pools", "what comes of another form", "missing figures in the error"
BOUNDS, NEED, OTHERS = "the tensor's bounds are not right", "the least need is not right", "others are not right"
CLAUSES = (
    Clause("What an out-of-memory message says, as a dictionary", ["what is returned", "keys that are missing"],
           "a dictionary with all keys is not returned"),
    Clause("the figures that belong to every message", NEEDED, "a figure of the message is not right",
           "sizes are in bytes, and KiB, MiB and GiB are 2**10, 2**20 and 2**30", MESSAGE),
    Clause("what “this process” has in use", ["process"], "what this process has is not right",
           "its line begins with “Including non-PyTorch memory”", MESSAGE),
    Clause("yours is the smallest of the “Process 123 has …” that is at least allocated + cached", [CONTAINER],
           "what this process has in a container is not right", read=MESSAGE),
    Clause("A figure above the capacity counts as None", [NO_SHARE],
    "a size of this process is returned though the message gives none",
           "17179869184.00 GiB are 2**64 bytes, which stand for “unknown”", MESSAGE),
    Clause("the limit on this process", ["allowed"], "the limit is not right", read=MESSAGE),
    Clause("what is “allocated in private pools”", ["pools"], "what private pools have is not right", read=MESSAGE),
    Clause("None is for what it does not say", [NONE.format("allowed"), NONE.format("pools")],
           "a figure is returned that is not in the message", read=MESSAGE),
    Clause("what other processes hold, computed from the figures", ["others"], OTHERS,
           "capacity = free + this process + others", MESSAGE),
    Clause("less than 64 MiB counts as 0", [ROUNDED], OTHERS, read=MESSAGE),
    Clause("None without `process`", [BOUND], "others is given though the message does not give this process's share",
    read=MESSAGE),
    Clause("(smallest, largest): the sizes of a tensor for which PyTorch tries a segment like this one", [TENSOR],
           BOUNDS, "from 10 MiB on the size is rounded up to 2 MiB", SEGMENT),
    Clause("Give the lower bound itself as the smallest", [TWO], BOUNDS, "2**20 for 20 MiB, 1 for 2 MiB", SEGMENT),
    Clause("the least that live tensors would take if the request had succeeded", ["need"], NEED,
           "it is what is allocated, plus the smallest tensor", MESSAGE),
    Clause("What is in pools is not live", [NEED_POOLS], NEED, "pools are counted as allocated", MESSAGE),
    *(Clause("from the table *Which cause is it?*", [f"remedy, where {where}"],
             f"the remedy is not right where {where}", row, CAUSE) for where, row in CAUSES.values()),
    Clause("Raises ValueError, with the names of what is missing", [REFUSES, NAMES],
           "a message in another form does not raise an error with the names of what is missing",
           "where one of the first five figures is not found", MESSAGE),
)  # fmt: skip


def shortage(case: Case, exact: bool) -> Shortage:
    """The numbers of this case. The GPU is drawn, and not GPU 0."""

    def drawn(size: float) -> float:
        return size if size < 0.25 or exact else size * random.uniform(0.99, 1.01)

    total = case.total or random.choice((14.75, 22.0, 39.5, 79.25))
    sizes = [drawn(size) for size in (case.free, case.cached, case.live, case.others)]
    rest = total - CONTEXT - sum(size for size in sizes if size != REST)
    free, cached, live, _ = (round(GIB * (rest if size == REST else size)) for size in sizes)
    pools, tried = round(drawn(case.pools) * GIB), round(drawn(case.tried) * GIB)
    return Shortage(
        device=random.randint(1, 7), requested=tried, tried=tried, total=round(total * GIB), free=free,
        process=live + cached + round(CONTEXT * GIB), allocated=live - pools, reserved=live + cached,
        allowed=round(case.allowed * GIB) if case.allowed else None, expandable_segments=case.expandable, private=pools,
    )  # fmt: skip


def sizes_of(short: Shortage) -> dict[str, int]:
    sizes = short.tried, short.total, short.free, short.allocated + short.private, short.unallocated
    return dict(zip(NEEDED, sizes, strict=True))


def text_of(case: Case, short: Shortage) -> str:
    """PyTorch's message, with the lines of processes and the last sentence of this case."""
    this = f"Including non-PyTorch memory, this process has {format_size(short.process)} memory in use. "
    named = sum(round(size * GIB) for size in case.lines if isinstance(size, float))
    sizes = {OWN: short.process, ALL: short.total - short.free - short.process - named}

    def line(of: float | str) -> str:
        if of in (THIS, UNKNOWN_THIS):
            return this if of == THIS else this.replace(format_size(short.process), UNKNOWN)
        size = UNKNOWN if of == UNKNOWN else format_size(sizes[of] if isinstance(of, str) else round(of * GIB))
        return f"Process {random.randint(1000, 4_000_000)} has {size} memory in use. "

    text = short.text().replace(this, "".join(map(line, case.lines)))
    return text.partition(" If reserved but")[0] + case.ending if case.ending else text


def written(size: float) -> float:
    """A number of bytes as the message has it: rounded to two decimals of its unit."""
    number, unit = format_size(round(size)).split()
    return float(number) * UNITS[unit]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    if scene.case not in CASES:
        return other_form(call, scene.case)
    short = shortage(case := CASES[scene.case], "just" in scene.case)
    read = {name: written(size) for name, size in sizes_of(short).items()}
    tried, allocated, pools = read["tried"], read["allocated"], written(short.private)
    own = written(short.process) if {THIS, OWN} & {*case.lines} else None
    others = None if own is None else read["capacity"] - read["free"] - own
    counted, known = others and others * (others >= 64 * MIB), short.tried in (2 * MIB, 20 * MIB)
    smallest = {2 * MIB: 1.0, 20 * MIB: float(MIB)}.get(short.tried, max(10 * MIB, tried - 2 * MIB))
    got = call(text_of(case, short))
    facts = Facts(f"{scene.case}: {', '.join(f'{format_size(size)} {name}' for name, size in sizes_of(short).items())}")
    facts.add("what is returned", "a dictionary" if isinstance(got, dict) else brief(got), "a dictionary")
    if facts.hold():
        facts.add("keys that are missing", [key for key in KEYS if key not in got], [])

    def compare(key: str, name: str, wanted: Any, within: float = 1e-5) -> None:
        """`within` is of a number: a byte, by which it may be rounded, is less."""
        numeric = wanted is not None and not isinstance(wanted, str)
        facts.add(name, plain(got[key]), Near(plain(wanted), within) if numeric else plain(wanted))

    if facts.hold():
        for key, wanted in read.items():
            compare(key, key, wanted)
        compare("process", NO_SHARE if own is None else CONTAINER if OWN in case.lines else "process", own)
        compare("allowed", "allowed" if case.allowed else NONE.format("allowed"), case.allowed and case.allowed * GIB)
        compare("pools", "pools" if pools else NONE.format("pools"), pools or None)
    if facts.hold():
        compare("others", BOUND if others is None else ROUNDED if others <= 64 * MIB else "others", counted)
        largest = MIB if short.tried == 2 * MIB else tried
        compare("tensor", TWO if known else TENSOR, [smallest, largest], 0 if known else 1e-5)
    if facts.hold():
        compare("need", NEED_POOLS if pools else "need", allocated - pools + smallest, 1e-8)
        remedy = None if case.cause in (PLENTY, UNTOLD) else case.cause
        compare("remedy", f"remedy, where {CAUSES[case.cause][0]}", remedy)
    return facts


def plain(value: Any) -> Any:
    """A number to the byte, NumPy's too; anything else in words, so that None and a text are told apart."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return round(value) if is_finite(value) else brief(text_in(value) if isinstance(value, str) else value)


def other_form(call: Callable[..., Any], form: str) -> Facts:
    """A message of another version, or one without a figure, is refused by the names of what is missing."""
    missing = NEEDED[1:] if form in OTHER_FORMS else (form.removeprefix(WITHOUT),)
    text = OTHER_FORMS.get(form, "").replace("#", "7.79 GiB")
    if not text:
        case = CASES["private pools"]
        text = re.sub(CUT_OUT[missing[0]], "", text_of(case, shortage(case, exact=False)))

    def refused(student: Callable[..., Any], message: str) -> tuple[str, str]:
        try:
            return brief(student(message)), ""
        except ValueError as error:
            return "ValueError", str(error)

    what, said = call(text, through=refused)
    facts = Facts(form)
    facts.add(REFUSES, what, "ValueError")
    if facts.hold():
        facts.add(NAMES, [name for name in missing if re.search(rf"\b{name}\b", said)], list(missing))
    return facts


EXERCISE = Contract(
    __file__,
    says="every figure in bytes, what they add up to, and the remedy that they call for",
    parameters=("message",),
    clauses=CLAUSES,
    edges={"case": (*CASES, *OTHER_FORMS, *(WITHOUT + name for name in NEEDED))},
    play=play,
    every=True,
    own_gpu=False,
    alike=1e-8,
    errors={
        "NoneType": "a search found nothing: not every message has every part, such as a limit or “this process”; one "
                    "that lacks any of the first five figures raises ValueError",
        "IndexError": "not every message has every part: “this process”, a limit and private pools may be missing",
        "could not convert": "a number was matched with something around it: match digits and dot only",
        "iB.'": "a unit was matched with the dot after it: units are bytes, KiB, MiB or GiB",
        "ValueError": "this message has all five figures: tried, capacity, free, allocated and cached",
    },
)
