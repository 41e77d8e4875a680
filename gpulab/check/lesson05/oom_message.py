"""The check of a reader of out-of-memory messages: the figures in bytes, what they add up to, and the remedy."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...virtual.memory.out_of_memory import Shortage, format_size
from ..base import Trial, check
from ..wording import as_float, is_number, show
from .sections import MESSAGE

KIB, MIB, GIB = 2**10, 2**20, 2**30
FREE = "free tensors"
EXPAND = "expandable segments"
OTHER = "end the other process"
LIMIT = "raise the limit"
SMALLER = "smaller request"
REMEDIES = (FREE, EXPAND, OTHER, LIMIT, SMALLER)
NEEDED = ("tried", "capacity", "free", "allocated", "cached")  # without these a message is of no known form
FIGURES = ("tried", "capacity", "free", "allocated", "cached", "process", "allowed", "pools")
KEYS = (*FIGURES, "others", "tensor", "need", "remedy")
# The last sentences of PyTorch 2.15 where expandable segments are on, and where a request is larger than one of them.
ENABLED = (
    " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ),"
    " expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of"
    " streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve /"
    " expandable_segments_reserve_by_class."
)
RESERVE = (
    " This allocation exceeds the expandable-segment reserve of # for this stream, and a single allocation cannot span"
    " expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or"
    " expandable_segments_reserve_by_class (or unset it) so that a segment is at least # for it."
)
NOT_AVAILABLE = "17179869184.00 GiB"  # 2**64 - 1 bytes: what NVML answers under Windows and WSL


@dataclass(frozen=True)
class Case:
    """One message, and what must be read from it."""

    text: str
    figures: dict[str, int | None]
    others: int | None
    tensor: tuple[int, int]
    need: int
    remedy: str | None
    why: str  # what the figures say


def line(size: int | str) -> str:
    """What the message says of a process that it knows by its number."""
    written = size if isinstance(size, str) else format_size(size)
    return f"Process {random.randint(1000, 4_000_000)} has {written} memory in use. "


def case(
    short: Shortage,
    remedy: str | None,
    why: str,
    *,
    neighbour: int = 0,
    behind: bool = False,
    written: str = "",
    lines: tuple[int | str, ...] | None = None,
    known: bool = True,
    pools: int = 0,
    ending: str = "",
) -> Case:
    """The message of `short`.

    neighbour  the bytes of another process that has a line before this one's, or `behind` it
    written    what the message says that this process has
    lines      the lines of numbered processes that stand in place of all these, as in a container
    known      whether one of them can be told to be this process's
    pools      what of the allocated bytes lies in private pools
    ending     the last sentences, in place of the advice about fragmentation
    """
    text = short.text()
    own = f"Including non-PyTorch memory, this process has {format_size(short.process)} memory in use. "
    if neighbour:
        text = text.replace(own, own + line(neighbour) if behind else line(neighbour) + own)
    if written:
        text = text.replace(own, own.replace(format_size(short.process), written))
    if lines is not None:
        text = text.replace(own, "".join(map(line, lines)))
    if pools:
        said = f"is allocated by PyTorch, with {format_size(pools)} allocated in private pools (e.g., CUDA Graphs), and"
        text = text.replace("is allocated by PyTorch, and", said)
    if ending:
        text = text.partition(" If reserved but")[0] + ending
    figures: dict[str, int | None] = {
        "tried": short.tried,
        "capacity": short.total,
        "free": short.free,
        "allocated": short.allocated,
        "cached": short.unallocated,
        "process": short.process if known else None,
        "allowed": short.allowed,
        "pools": pools or None,
    }
    if short.tried == 2 * MIB:
        tensor = (1, MIB)
    elif short.tried == 20 * MIB:
        tensor = (MIB, 20 * MIB)
    else:
        tensor = (max(10 * MIB, short.tried - 2 * MIB), short.tried)
    left = short.total - short.free - short.process
    others = None if not known else left if left >= 64 * MIB else 0
    return Case(text, figures, others, tensor, short.allocated - pools + tensor[0], remedy, why)


def shortage(
    total: float,
    allocated: float,
    cached: float,
    tried: float,
    *,
    free: float,
    allowed: float | None = None,
    context: float = 0.35,
    device: int | None = None,
) -> Shortage:
    """The numbers of a failure, from GiB; `context` of the process are its context. The GPU is drawn, and not GPU 0."""
    reserved = round((allocated + cached) * GIB)
    return Shortage(
        device=random.randint(1, 7) if device is None else device,
        requested=round(tried * GIB),
        tried=round(tried * GIB),
        total=round(total * GIB),
        free=round(free * GIB),
        process=reserved + round(context * GIB),
        allocated=round(allocated * GIB),
        reserved=reserved,
        allowed=None if allowed is None else round(allowed * GIB),
        expandable_segments=False,
    )


def cases() -> list[Case]:
    """One message for each cause, one in which free and cached would be enough if they could be added, and those in
    which the rows of the table conflict, or the tolerances are small."""
    total = random.choice([14.74, 22.06, 39.39, 79.1])

    def rest(allocated: float, cached: float) -> float:
        return total - allocated - cached - 0.35

    def some(low: float, high: float) -> float:
        return round(random.uniform(low, high), 3)

    cached = some(0.004, 0.015)
    live = total - 0.35 - cached - 0.011
    full = shortage(total, live, cached, 20 / 1024, free=rest(live, cached), device=0)
    cached, tried = some(3.0, 4.0), some(1.2, 1.8)
    live = total - 0.35 - cached - 0.3
    pieces = shortage(total, live, cached, tried, free=rest(live, cached))
    cached, free, tried = some(0.26, 0.3), some(0.26, 0.3), 0.5
    live = total - 0.35 - cached - free
    sum_of_both = shortage(total, live, cached, tried, free=free)
    live, neighbour = some(2.0, 3.0), round(total - 4.5, 3)
    shared = shortage(total, live, 0.12, 2.5, free=total - neighbour - live - 0.12 - 0.35)
    live = some(3.5, 3.9)
    limited = shortage(total, live, 0.03, 1.0, free=rest(live, 0.03), allowed=4.0)
    tried = round(total * some(1.5, 4.0), 2)
    live = some(0.5, 1.5)
    outer = shortage(total, live, 0.004, tried, free=rest(live, 0.004))
    small = shortage(total, total - 0.351, 0.0, 2 / 1024, free=0.001)
    cached = some(1.2, 1.3)
    live = some(2.2, 2.3)
    limited_pieces = shortage(total, live, cached, 1.0, free=rest(live, cached), allowed=4.0)
    live = some(2.0, 2.3)
    no_limit = shortage(total, live, 0.1, 1.0, free=0.3, allowed=4.0)
    live = some(2.0, 3.0)
    pieces_and_others = shortage(total, live, 2.0, 1.5, free=0.3)
    live = total - 0.35 - 0.1 - 0.3 - 1.0
    few_others = shortage(total, live, 0.1, 3.3, free=0.3)
    live = total - 0.35 - 0.1 - 1.5 - 1.5
    enough_others = shortage(total, live, 0.1, 2.5, free=1.5)
    live = round(total - 0.35 - 0.1 - 1.5 - 0.03, 2)
    rounded = shortage(total, live, 0.1, 1.51, free=1.5)
    live = round(total - 0.35 - 0.1 - 1.5 - 0.05, 2)
    rounded_more = shortage(total, live, 0.1, 1.51, free=1.5)
    live = random.randint(200, 300) / 1024
    ten = shortage(total, live, 3 / 1024, 10 / 1024, free=5 / 1024)
    live = random.randint(200, 300) / 1024
    least = shortage(total, live, 3 / 1024, 20 / 1024, free=9 / 1024)
    live = random.randint(200, 300) / 1024
    twelve = shortage(total, live, 3 / 1024, 12 / 1024, free=5 / 1024)
    holds = "another process holds more than is missing"
    live = some(4.0, 5.0)  # of a container: this process, a larger and a smaller one
    large, little = round((total - live - 0.12 - 0.35 - 1.2) * GIB), round(0.7 * GIB)
    crowd = shortage(total, live, 0.12, 2.5, free=total - live - 0.12 - 0.35 - (large + little) / GIB)
    # Of a container, where another process has more than is live here, and less than is reserved.
    live = some(2.0, 2.3)
    near = round((live + 0.06) * GIB)
    most = round((total - live - 0.12 - 0.35 - 1.2) * GIB) - near
    alike = shortage(total, live, 0.12, 2.5, free=total - live - 0.12 - 0.35 - (most + near) / GIB)
    live, held = some(8.0, 8.5), some(2.1, 2.4)
    pooled = shortage(total, live, 0.1, 1.5, free=0.3)
    live = some(6.0, 6.5)
    enabled = shortage(total, live, 2.0, 1.5, free=0.3)
    enabled_alone = shortage(total, total - 0.35 - 2.0 - 0.3, 2.0, 1.5, free=0.3)
    reserve = shortage(total, some(1.0, 2.0), random.randint(200, 900) / 2**20, 3.0, free=some(5.0, 6.0))
    spilled = shortage(total, total + some(1.0, 2.0), 0.3, 0.5, free=0.0)
    silent = shortage(total, some(3.0, 4.0), 0.1, 1.5, free=0.4)
    silent_full = shortage(total, total - 0.4 - 1.0 - 0.3, 1.0, 1.5, free=0.3)
    live = some(0.4, 0.6)
    above_the_limit = shortage(total, live, 0.004, some(4.5, 6.0), free=rest(live, 0.004), allowed=4.0)
    plenty = shortage(total, some(3.0, 4.0), 512 / GIB, 1.5, free=some(4.0, 5.0))
    # Equal figures, which are exact in two decimals of a GiB.
    just = partial(shortage, 16.0, context=0.25)
    limit_just = just(3.5, 0.25, 1.5, free=1.5, allowed=4.0)
    cache_just = just(2.0, 1.5, 1.5, free=0.25)
    others_just = just(13.0, 0.25, 2.5, free=0.5)
    capacity_just = just(1.0, 0.25, 16.0, free=14.5)
    silent_just = just(12.0, 0.5, 3.5, free=0.5)
    far = RESERVE.replace("#", format_size(2 * GIB), 1).replace("#", format_size(3 * GIB), 1)
    unknown = "no line of a process, or none that can be this one's: the figures do not say who holds the rest"
    return [
        case(full, FREE, "live tensors are nearly all of the capacity; neither the cache nor anyone else holds 20 MiB"),
        case(pieces, EXPAND, "more is reserved but unallocated than was tried: it lies in pieces"),
        case(sum_of_both, FREE, "neither what is free nor the cache is enough alone, and they do not add up"),
        case(shared, OTHER, "another process holds most of the GPU", neighbour=round(neighbour * GIB)),
        case(limited, LIMIT, "more is free than was tried, and “allowed” says that a limit is what failed"),
        case(outer, SMALLER, "one request is larger than the whole GPU"),
        case(small, FREE, "live tensors are all of the capacity"),
        case(limited_pieces, LIMIT, "more is free than was tried, and a limit failed, whatever the cache has"),
        case(
            no_limit, OTHER, "less is free than was tried, and the limit is not reached: another process holds the GPU"
        ),
        case(pieces_and_others, EXPAND, "the cache would be enough, whoever else holds memory"),
        case(few_others, FREE, "others hold less than is missing, and live tensors nearly all"),
        case(enough_others, OTHER, "others hold what is missing, tried − free, though less than was tried"),
        case(rounded, FREE, "nobody else holds memory, but for roundings"),
        case(rounded_more, FREE, "nobody else holds memory, but for roundings"),
        case(least, OTHER, holds),
        case(ten, OTHER, holds),
        case(twelve, OTHER, holds),
        case(full, FREE, "this process, under its number outside the container, holds it all", lines=(full.process,)),
        case(crowd, OTHER, "of three numbered processes another holds most", lines=(little, large, crowd.process)),
        case(crowd, OTHER, "of three numbered processes another holds most", lines=(crowd.process, large, little)),
        case(pooled, OTHER, "others hold what is missing, whatever private pools hold", pools=round(held * GIB)),
        case(enabled, OTHER, "expandable segments are on already, and others hold what is missing", ending=ENABLED),
        case(enabled_alone, FREE, "expandable segments are on already: live tensors are in the way", ending=ENABLED),
        case(reserve, LIMIT, "one request exceeds the reserve of an expandable segment, which is a limit", ending=far),
        case(spilled, FREE, "PyTorch's own memory is all of the capacity", lines=(NOT_AVAILABLE,), known=False),
        case(silent, None, unknown, lines=(), known=False),
        case(silent_full, FREE, "whoever holds the rest, it is less than is missing", lines=(), known=False),
        case(above_the_limit, SMALLER, "one request is larger than this process may have"),
        case(silent, None, unknown, lines=(NOT_AVAILABLE, NOT_AVAILABLE), known=False),
        case(plenty, None, "more is free than was tried, and no limit is named: the figures do not explain it"),
        case(spilled, FREE, "the driver does not know what this process has", written=NOT_AVAILABLE, known=False),
        case(shared, OTHER, "another process holds most", neighbour=round(neighbour * GIB), behind=True),
        case(limit_just, LIMIT, "as much is free as was tried, and “allowed” says that a limit is what failed"),
        case(cache_just, EXPAND, "as much is reserved but unallocated as was tried"),
        case(others_just, OTHER, "others hold just what is missing, tried − free"),
        case(capacity_just, FREE, "the request is as large as the GPU, and not larger"),
        case(silent_just, None, "whoever holds the rest, it is just what is missing", lines=(), known=False),
        case(alike, OTHER, "of three numbered processes another holds most", lines=(near, most, alike.process)),
    ]


def others_forms() -> list[tuple[str, tuple[str, ...]]]:
    """Messages of other versions, allocators and moments, and such without one figure, each with the names of needed
    figures that are missing."""
    a, b, c = (f"{random.uniform(1, 20):.2f} GiB" for _ in range(3))
    whole = shortage(16, random.uniform(2, 3), 0.1, 20 / 1024, free=random.uniform(5, 6)).text()
    words = {
        "tried": r" Tried to allocate [^ ]+ \w+\.",
        "capacity": r" has a total capacity of [^ ]+ \w+",
        "free": r" of which [^ ]+ \w+ is free",
        "allocated": r" [^ ]+ \w+ is allocated by PyTorch,",
        "cached": r" and [^ ]+ \w+ is reserved by PyTorch but unallocated",
    }
    old = [
        f"CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; {a} total capacity; {b} already allocated; 11.75 MiB"
        f" free; {c} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
        " max_split_size_mb to avoid fragmentation.",
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        f"Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : {a}\n"
        f"Requested               : {b}\nDevice limit            : {c}\nFree (according to CUDA): 12.00 MiB",
    ]
    return [(text, NEEDED[1:]) for text in old] + [(re.sub(words[name], "", whole), (name,)) for name in NEEDED]


@check(lesson=5, says="every figure in bytes, what they add up to, and the remedy that they call for")
def oom_message(student: Any, trial: Trial) -> None:
    """Check a function of (message): it returns a dictionary with the figures of an out-of-memory message in bytes,
    the bytes of others, the bounds of the tensor's size, the least need, and one of five remedies; None for what the
    message does not say, and ValueError for one of another form."""
    trial.function(student, ("message",))
    for one in cases():
        got = trial.call(student, one.text, explain=partial(_explain, one))
        trial.expect(
            isinstance(got, dict),
            "what came back is no dictionary",
            expected=f"a dictionary with the keys {', '.join(KEYS)}",
            got=show(got),
            likely="the function ends without a return" if got is None else "",
        )
        missing = [key for key in KEYS if key not in got]
        trial.expect(not missing, "keys are missing", expected=", ".join(KEYS), got=f"no {', '.join(missing)}")
        for key in FIGURES:
            _judge_figure(trial, key, got[key], one)
        _judge_others(trial, got["others"], one)
        _judge_tensor(trial, got["tensor"], one)
        _judge_need(trial, got["need"], got["allocated"] - (got["pools"] or 0) + one.tensor[0], one)
        _judge_remedy(trial, got["remedy"], one)
    for text, names in others_forms():
        _judge_refusal(trial, student, text, names)


def _judge_refusal(trial: Trial, student: Any, text: str, missing: tuple[str, ...]) -> None:
    """A message without these figures is refused, by the name of at least one of them."""

    def ask(message: str) -> tuple[bool, Any]:
        try:
            return False, student(message)
        except ValueError as error:
            return True, str(error)

    one = f"any one of the five can be missing, here it is {missing[0]}: ask for each" if len(missing) == 1 else ""
    sign = one or "that a search found nothing is the sign: look for it"
    refused, got = trial.call(ask, text, explain=lambda error: sign)
    form = text.splitlines()[0][:60]
    trial.expect(
        refused,
        "a message of another form is not refused",
        expected=f"ValueError for “{form}…”",
        got=show(got),
        likely=one or "what is not found must not be passed over: an answer from half of the figures is silently wrong",
        read=MESSAGE,
    )
    trial.expect(
        any(name in got for name in missing),
        "the error does not say what was not found",
        expected=f"a ValueError whose text has the names of the missing figures, of {', '.join(NEEDED)}"
        if len(missing) > 1
        else f"a ValueError whose text has the name {missing[0]}",
        got=got or "no text",
        likely="a number that could not be made of a text raises ValueError too: look for what is missing yourself",
        read=MESSAGE,
    )


def _close(got: Any, want: int, slack: float = 0.0) -> bool:
    """Equal within the two decimals of the message."""
    number = is_number(got)
    return number and abs(as_float(got) - want) <= 0.006 * abs(want) + slack


def _judge_figure(trial: Trial, key: str, got: Any, one: Case) -> None:
    want = one.figures[key]
    if want is None:
        silent = "no line of this message can be this process's: none is there, or it holds more than the GPU"
        if NOT_AVAILABLE in one.text and is_number(got) and got > 2**60:
            silent = "17179869184.00 GiB are 2**64 bytes: what the driver says where it does not know (Windows, WSL)"
        summaries = {
            "allowed": "a message without a limit gives no “allowed”",
            "pools": "a message without private pools gives no “pools”",
            "process": "a message that does not say what this process has gives no “process”",
        }
        trial.expect(
            got is None,
            summaries[key],
            expected=f"None for {key}",
            got=show(got),
            likely={"process": silent}.get(key, ""),
            read=MESSAGE,
        )
        return
    likely = ""
    number = is_number(got)
    said, got = show(got), as_float(got) if number else got
    contained = "this process has" not in one.text
    if key == "process" and contained and got is None:
        likely = (
            "there is no “this process” in a container: the driver numbers processes as the host does, and yours is "
            "one of the “Process 123 has …”"
        )
    elif key == "process" and contained and not _close(got, want):
        likely = (
            "several processes may be listed: yours is the smallest that has at least what PyTorch has reserved, "
            "allocated + cached"
        )
    elif got is None:
        likely = "nothing was found in the text: look at what stands before and after this figure, and at its unit"
    elif key == "process" and (one.others or 0) > GIB and _close(got, one.others or 0):
        likely = "this is the line of another process; yours begins with “Including non-PyTorch memory”"
    elif isinstance(got, str):
        likely = "a text was cut out of the message: make a number of it, and multiply by its unit"
    elif number and want and any(_close(got * unit, want) for unit in (KIB, MIB, GIB)):
        likely = "the number stands in the message with a unit: multiply by it"
    elif number and want and any(_close(got * ratio, want) for ratio in (1.024, 1.048576, 1.073741824)):
        likely = "MiB is 2**20 bytes and GiB is 2**30; 10**6 and 10**9 are MB and GB"
    elif number and any(other is not None and other and _close(got, other) for other in one.figures.values()):
        name = next(k for k, other in one.figures.items() if other and _close(got, other))
        likely = f"this is the figure for {name}: anchor the search to the words around the number"
    trial.expect(
        _close(got, want, slack=1),
        f"the figure for {key} is wrong",
        expected=f"{want:,} bytes, to the two decimals of the message",
        got=said,
        likely=likely,
        read=MESSAGE,
    )


def _judge_others(trial: Trial, got: Any, one: Case) -> None:
    likely, figures = "", one.figures
    if one.others is None:
        trial.expect(
            got is None,
            "a message that does not say what this process has does not say what others have",
            expected="None for others",
            got=show(got),
            likely="capacity − free − allocated − cached is an upper bound: the context of this process is in it too",
            read=MESSAGE,
        )
        return
    process, allocated, cached = (figures[k] or 0 for k in ("process", "allocated", "cached"))
    capacity, free = figures["capacity"] or 0, figures["free"] or 0
    if _close(got, process - allocated - cached, 20 * MIB) or _close(got, process - allocated, 20 * MIB):
        likely = (
            "this process's own context and cache are taken for somebody else's: “this process has … in use” counts "
            "them in. Others are what is left of the capacity"
        )
    elif _close(got, capacity - allocated, 20 * MIB) or _close(got, capacity - allocated - free, 20 * MIB):
        likely = "what PyTorch has cached and the context are this process's own: take “this process has” away"
    elif not one.others and _close(got, capacity - free - process, 20 * MIB):
        likely = "the figures are rounded: less than 64 MiB counts as 0"
    elif got is None:
        likely = "it does not stand in the message as one number: it is what is left over in the first of the two sums"
    trial.expect(
        _close(got, one.others, 20 * MIB),
        "what other processes hold is wrong",
        expected=f"{max(one.others, 0) / GIB:.2f} GiB in bytes: capacity − free − this process",
        got=f"{as_float(got) / GIB:.2f} GiB" if is_number(got) else show(got),
        likely=likely,
        read=MESSAGE,
    )


def _judge_tensor(trial: Trial, got: Any, one: Case) -> None:
    low, high = one.tensor
    tried = one.figures["tried"] or 0
    pair = isinstance(got, tuple | list) and len(got) == 2
    slack, small = 0.006 * tried + 4096, tried in (2 * MIB, 20 * MIB)
    if pair and small and all(_number(v) for v in got):
        right = tuple(got) == (low, high)  # these are in the exercise
    else:
        right = pair and _close(got[0], low, slack) and _close(got[1], high, slack)
    likely = ""
    if not pair:
        likely = "the message names a segment, and several sizes lead to it: give the smallest and the largest"
    elif tried in (2 * MIB, 20 * MIB) and _close(got[0], tried, 0) and _close(got[1], tried, 0):
        likely = "“Tried to allocate” is the segment, not the tensor: one of 20 MiB is taken from just over 1 MiB on"
    elif small and all(_number(v) and abs(as_float(v) - want) <= 4096 for v, want in zip(got, one.tensor, strict=True)):
        likely = "give the lower bound itself, 2**20 for 20 MiB, and 1 for 2 MiB, as no tensor has 0 bytes"
    elif tried == 20 * MIB and _close(got[1], 10 * MIB, MIB):
        likely = "below 10 MiB is one way to it; from there on sizes are rounded up to 2 MiB: 18 to 20 is another"
    elif tried == 10 * MIB:
        likely = "below 10 MiB a tensor has no segment of its own, so this one has 10 MiB and no less"
    elif _close(got[0], tried, 0) and _close(got[1], tried, 0):
        likely = "the segment is the tensor's size rounded up to 2 MiB: the smallest that leads to it is 2 MiB below"
    elif tried not in (2 * MIB, 20 * MIB):
        likely = "from 10 MiB on the segment is the size itself, rounded up to 2 MiB"
    trial.expect(
        right,
        "the bounds of the tensor's size are wrong",
        expected=f"({low / MIB:.2f}, {high / MIB:.2f}) MiB in bytes, where {tried / MIB:.2f} MiB were tried",
        got=" and ".join(f"{as_float(v) / MIB:.6f}".rstrip("0").rstrip(".") for v in got) + " MiB"
        if pair and all(_number(v) for v in got)
        else show(got),
        likely=likely,
        read=MESSAGE,
    )


def _judge_need(trial: Trial, got: Any, want: float, one: Case) -> None:
    """`want` is reckoned with the figures as they were read, of which the roundings are larger than a small tensor."""
    tried = one.figures["tried"] or 0
    likely = ""
    if _close(got, tried) or _close(got, one.tensor[0], 4096):
        likely = "what was tried is for one tensor more; what is allocated already is needed too"
    elif tried == 2 * MIB and is_number(got) and want < as_float(got) <= want + MIB:
        likely = "the smallest tensor of this segment has 1 byte: what is needed at the least is that much more"
    elif _close(got, (one.figures["process"] or 0) + tried):
        likely = "the cache is no need: what this line needs is the live tensors and one more"
    elif one.figures["pools"] and _close(got, (one.figures["allocated"] or 0) + one.tensor[0], MIB):
        likely = "what private pools hold is counted as allocated, and is kept for CUDA graphs: no live tensor is in it"
    elif _close(got, (one.figures["allocated"] or 0) + tried):
        likely = "“Tried to allocate” is the segment: at the least, the tensor is the smallest that leads to it"
    elif _close(got, tried - (one.figures["free"] or 0)):
        likely = "that is what is missing, not what is needed"
    trial.expect(
        is_number(got) and abs(as_float(got) - want) <= 0.006 * tried + 4096,
        "the least need is wrong",
        expected=f"{one.need / GIB:.2f} GiB in bytes: what is allocated, and the smallest tensor that fits the message",
        got=f"{as_float(got) / GIB:.2f} GiB" if _number(got) else show(got),
        likely=likely,
        read=MESSAGE,
    )


def _number(value: Any) -> bool:
    return is_number(value)


def _judge_remedy(trial: Trial, got: Any, one: Case) -> None:
    tried, free, cached = (one.figures[key] or 0 for key in ("tried", "free", "cached"))
    on = "expandable_segments is enabled" in one.text
    reasons: dict[tuple[str, str | None], str] = {
        (EXPAND, FREE): "the last sentence of the message says that they are on: what is left lies between live tensors"
        if on
        else "free and cached are not one piece of memory: only where the cache alone is enough for the "
        "request do pieces explain the error",
        (OTHER, FREE): "what others hold must be at least what is missing, tried − free"
        if one.others
        else "nobody else holds memory here: capacity − free − this process is zero",
        (OTHER, EXPAND): "the cache alone would be enough: the table asks for that before it asks for others",
        (EXPAND, OTHER): "the last sentence of the message says that they are on"
        if on
        else "the cache alone is not enough for the request",
        (LIMIT, OTHER): "“allowed” is there, but less is free than was tried: the limit is not what failed",
        (FREE, EXPAND): "the cache alone would be enough for the request, if it were in one piece",
        (FREE, OTHER): "this process holds little; capacity − free − this process shows who holds the rest"
        if (one.others or 0) >= tried
        else "compare what others hold with what is missing, tried − free, and not with all that was tried",
        (FREE, LIMIT): "more is free than was tried: it is the limit that failed"
        if one.figures["allowed"] is not None
        else "the last sentence of the message names the limit: the reserve of an expandable segment",
        (
            EXPAND,
            LIMIT,
        ): "the driver has plenty, free ≥ tried: the table asks for the limit before it asks for the cache"
        if cached >= tried and free >= tried
        else "the cache is smaller than what was tried, and the driver has plenty",
        (FREE, SMALLER): "nothing that is freed makes room for a request larger than the GPU: look at its shape",
        (EXPAND, SMALLER): "no cache can hold a request larger than the GPU: look at its shape",
        (OTHER, SMALLER): "not even an empty GPU has room for this request: look at its shape",
    }
    likely = reasons.get((got if isinstance(got, str) else "", one.remedy), "")
    if one.remedy is None:
        likely = "where the message does not tell, the answer is None, and nvidia-smi or its last sentence is read next"
    elif isinstance(got, str) and "empty_cache" in got:
        likely = "empty_cache frees no tensor, and PyTorch has done it by itself before it raised the error"
    elif got is None:
        likely = "the figures do tell: None is for messages that name neither the process nor a limit that explains it"
    elif not isinstance(got, str) or got not in REMEDIES:
        likely = f"one of: {', '.join(REMEDIES)}"
    trial.expect(
        got is one.remedy or (isinstance(got, str) and got == one.remedy),
        f"the remedy is not what this message calls for: {one.why}",
        expected=show(one.remedy),
        got=show(got),
        likely=likely,
        read=MESSAGE,
    )


def _explain(one: Case, error: str) -> str:
    if error.startswith(("TypeError", "AttributeError", "IndexError")) and "this process has" not in one.text:
        return "“this process” is not in every message: in a container yours is one of “Process 123 has”"
    if error.startswith("IndexError") and one.figures["pools"]:
        return "“with … allocated in private pools” may stand between the figures: anchor each to its own words"
    if "NoneType" in error:
        return "a search found nothing: not every message has every part (“allowed” is there only with a limit)"
    if error.startswith("KeyError"):
        return "units are bytes, KiB, MiB or GiB; a dot or a semicolon may follow the unit"
    if error.startswith("ValueError: could not convert"):
        return "a number was cut out with something around it: take digits and dot only, and the unit apart from them"
    if error.startswith("ValueError") and " KiB" in one.text:
        return "sizes up to 1 MiB are in KiB, 2**10 bytes: this message has one"
    if error.startswith("ValueError") and re.search(r"[1-9]\d* bytes", one.text):
        return "a number of bytes has no decimal point: this message has one"
    if error.startswith("ValueError") and "GPU 0 has" not in one.text:
        return "this message has all that is needed, and it is about a GPU that need not be GPU 0"
    if error.startswith("ValueError"):
        return "this message has all that is needed: tried, capacity, free, allocated and cached"
    return ""
