"""The check of a choice among four ways to train: each sample turns on one rule alone, which a wrong answer breaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import is_whole
from .sections import BYTES, CHOICE, PLANNED

KIND, FULL, ORDER, NONE = "kind of what is returned", "a GPU exactly full", "two ways on as few", "nothing that fits"
FEWEST = "the fewest GPUs, in whichever way"
MOST, ALL = "one GPU more than there are", "all GPUs that there are"
DDP, ZERO1, UNIT, SHARD, TENSOR = "bytes of ddp", "bytes of zero1", "fewer units whole", "the shard of fsdp", "tensor"
MORE, SAMPLES = "more units whole", "activations of tensor"
DIVIDES, MACHINE, WHOLE = "ranks that divide the batch", "one machine", "a batch that tensor need not divide"
FILLED = "tensor on all GPUs of a machine"
PAIR = "(ranks, way)"
CLAUSES = [
    Clause(quote, facts, summary, likely, read)
    for facts, quote, summary, likely, read in (
        ([KIND], "(ranks, way)", "what is returned is no (ranks, way)", "a tuple: a whole number, a name", PLANNED),
        ([NONE], "None if none of them fits", "None where a way fits, or a way where none does", "", PLANNED),
        ([MOST, ALL], "at most `most`", "the largest number of GPUs is another", "range(1, most + 1)", PLANNED),
        ([FEWEST], "the fewest GPUs", "fewer GPUs do", "ranks from 1 upwards, and for each all ways", PLANNED),
        ([ORDER], "the first way that fits there", "an earlier way fits on as few", "in the order given", CHOICE),
        ([DDP], "16 bytes for each parameter", "the bytes of ddp are others", "it cuts the batch alone", BYTES),
        ([ZERO1], "the 8 of optimizer state cut", "the bytes of zero1 are others", "8 of the 16 are cut", BYTES),
        ([SHARD, MORE], "all 16 cut", "fsdp counts too much", "16 bytes divided by the ranks, and four units", BYTES),
        ([UNIT], "four times one unit", "fsdp counts too little", "4 times unit, 4 bytes each", PLANNED),
        ([TENSOR], "no unit is whole", "the bytes of tensor are others", "activations are cut as well", CHOICE),
        (
            [SAMPLES],
            "the activations of the whole batch cut too",
            "the activations of tensor are others",
            "each rank has a part of every sample: activations * batch / ranks, whatever divides what",
            CHOICE,
        ),
        ([DIVIDES], "it must divide the batch", "a batch is cut that cannot be", "batch % ranks == 0", CHOICE),
        ([WHOLE], "whatever the batch", "tensor is left out for its batch", "it does not cut the batch", CHOICE),
        ([MACHINE], "within one machine", "tensor goes across machines", "ranks <= machine", CHOICE),
        ([FILLED], "GPUs in a machine", "tensor is left out on a whole machine", "ranks <= machine", CHOICE),
        ([FULL], "full to the last byte", "what does not fit is taken, or what just fits refused", "<=", BYTES),
    )
]
RULES = tuple(fact for clause in CLAUSES[1:] for fact in clause.facts)
EDGES = {"turns_on": RULES, "again": (0, 1)}
WAYS = ("ddp", "zero1", "fsdp", "tensor")
CHOSEN = (NONE, FEWEST, ORDER)  # seen in any scene
# Where the one decides, the others often do too.
BOUND = {
    TENSOR: (UNIT,),
    DIVIDES: (MACHINE, SHARD),
    FILLED: (SHARD,),
    FULL: (SHARD,),
    MORE: (SHARD,),
    SAMPLES: (WHOLE, TENSOR),
}
OF_WAY = {
    DDP: "ddp",
    ZERO1: "zero1",
    TENSOR: "tensor",
    SAMPLES: "tensor",
    FILLED: "tensor",
    UNIT: "fsdp",
    MORE: "fsdp",
    SHARD: "fsdp",
}
LARGER = (MORE, SHARD, SAMPLES)  # what breaks these needs more than is asked for
ROUND = 720720  # divides by all ranks up to 16, so that no share of bytes is a fraction


def needed(case: Mapping[str, int], ranks: int, but: str = "") -> dict[str, int]:
    """Bytes on each rank of each way that is possible, from the one that sends least."""
    count, unit = case["parameters"], case["unit"]
    shard, own = 16 * count // ranks, case["batch"] * case["activations"] // ranks
    rounded = -(-case["batch"] // ranks) * case["activations"]
    needs = {
        "ddp": (16 if but != DDP else 12) * count + own,
        "zero1": (8 if but != ZERO1 else 4) * count + shard // 2 + own,
        "fsdp": shard + (4 * count if but == SHARD else 0) + {UNIT: 12, MORE: 20}.get(but, 16) * unit + own,
        "tensor": shard + {TENSOR: own * ranks, SAMPLES: rounded}.get(but, own),
    }
    equal = case["batch"] % ranks == 0
    if not equal and but != DIVIDES:
        needs = {"tensor": needs["tensor"]}
    across = ranks > case["machine"] if but != FILLED else ranks >= case["machine"]
    if (across and but != MACHINE) or (not equal and but == WHOLE):
        needs.pop("tensor")
    return needs


def fewest(case: Mapping[str, int], but: str = "") -> tuple[int, str] | None:
    """What the exercise asks for; with `but`, by everything except that one rule."""
    memory, fits = case["memory"] - (but == FULL), list[tuple[int, str]]()
    for ranks in range(1, case["most"] + 1 + (but == MOST) - (but == ALL)):
        fits += [(ranks, way) for way, nbytes in needed(case, ranks, but).items() if nbytes <= memory]
        if fits and but != FEWEST:
            return fits[-1 if but == ORDER else 0]
    if fits:  # the first way that does, on however many
        return min(fits, key=lambda one: (WAYS.index(one[1]), one[0]))
    return (case["most"], "fsdp") if but == NONE else None


def drawn(turns_on: str) -> dict[str, int]:
    """A model and GPUs for which this rule alone decides."""
    seen = {*CHOSEN, *BOUND.get(turns_on, ())} - {turns_on}
    others = {*RULES} - {turns_on} - seen
    while True:
        count, ranks = ROUND * random.randint(2, 40), random.randint(1 + (turns_on == MOST), 6)
        case = {
            "parameters": count,
            "unit": count // random.randint(3, 40),
            "activations": ROUND * random.randint(1, 40),
            "batch": ranks * random.randint(1, 5) + (turns_on == SAMPLES or random.choice([0, 0, 1])),
            "memory": 0,
            "machine": ranks if turns_on == FILLED else random.choice([1, 2, 4, 8]),
            "most": {MOST: ranks - 1, ALL: ranks}.get(turns_on, ranks + random.randint(0, 8)),
        }
        fits = needed(case, ranks, turns_on if turns_on not in LARGER else "")
        spare = {FULL: 0, UNIT: 4 * case["unit"], MORE: 4 * case["unit"], SAMPLES: case["activations"]}.get(
            turns_on, 4 * count
        )
        case["memory"] = fits.get(OF_WAY.get(turns_on, "")) or random.choice([*fits.values(), 4 * count])
        case["memory"] += random.randint(0, spare)
        right, wrong = fewest(case), fewest(case, turns_on)
        if right == wrong or any(fewest(case, rule) != right for rule in others):
            continue
        if turns_on == SAMPLES and len({fewest(case, rule) for rule in (WHOLE, TENSOR, FEWEST)}) < 3:
            continue  # or it would not be known which of these a wrong answer breaks
        if wrong not in [fewest(case, rule) for rule in seen if (turns_on, rule) != (MORE, SHARD)]:
            return case


def broken(case: Mapping[str, int], got: Any, turns_on: str) -> str:
    """The rule that a wrong answer breaks: the one that decides, unless it resembles another that may."""
    may, right = (turns_on, *BOUND.get(turns_on, ()), *CHOSEN), fewest(case)
    about, unlike = OF_WAY.get(turns_on), turns_on
    if got and right and got[0] > right[0] and about and about not in (got[1], right[1]):
        unlike = FEWEST  # a rule about a way that nobody has chosen is not why
    return next((rule for rule in may if fewest(case, rule) == got), unlike)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    case = drawn(scene.turns_on)
    got, right = call(*case.values()), fewest(case)
    facts = Facts(", ".join(f"{name} {value:,}" for name, value in case.items()))
    pair = isinstance(got, tuple | list) and len(got) == 2 and is_whole(got[0]) and isinstance(got[1], str)
    facts.add(KIND, PAIR if pair or got is None else type(got).__name__, PAIR)
    if facts.hold():
        got = (int(got[0]), str(got[1])) if pair else None
        rule = broken(case, got, scene.turns_on) if got != right else ""
        for name in dict.fromkeys((*CHOSEN, *BOUND.get(scene.turns_on, ()), scene.turns_on)):
            facts.add(name, got if name == rule else right, right)
    return facts


EXERCISE = Contract(
    __file__,
    says="as few GPUs as do, and the way of training that sends least on them",
    own_gpu=False,
    parameters=("parameters", "unit", "activations", "batch", "memory", "machine", "most"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
