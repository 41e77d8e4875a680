"""Checks the bytes on each rank: every ZeRO stage, and tensors whose rows the ranks do not divide."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_number, is_whole

BYTES, PRACTICE = "Where the bytes go", "fully_shard in practice"
STAGES = tuple(f"stage {stage}" for stage in range(4))
UNEVEN, FEW = "rows that do not go round", "fewer rows than ranks"
KIND = "kind of what is returned"
NUMBERS = ((4, 4, 8), (2, 2, 12), (2, 4, 12), (4, 4, 2))  # bytes: AdamW, the paper, Megatron, state of 8 bits
CLAUSES = [
    Clause("0 cuts nothing", [STAGES[0]], "stage 0 does not have a full copy on each rank", "DDP keeps all on each",
    BYTES),
    *(
        Clause(quote, [fact], f"in {fact} the bytes are wrong", f"{fact} cuts {cut}; the rest is whole", BYTES)
        for quote, fact, cut in (
            ("1 the optimizer state", STAGES[1], "the optimizer state alone"),
            ("2 the gradients too", STAGES[2], "gradients and optimizer state"),
            ("3 the weights too", STAGES[3], "all three"),
        )
    ),
    Clause(
        "one may get fewer, later ones none",
        [UNEVEN],
        "if the rows do not divide evenly, the parts are wrong",
        "10 rows on 4 ranks are 3, 3, 3 and 1",
        PRACTICE,
    ),
    Clause(
        "until no row is left",
        [FEW],
        "with fewer rows than ranks the parts are wrong",
        "3 rows on 8 ranks: one on each of three ranks, none on five",
        PRACTICE,
    ),
    Clause(
        "a list of whole numbers",
        [KIND],
        "what is returned is not a list of whole numbers, one for each rank",
        "// divides whole numbers without turning them into floats",
    ),
]
EDGES = {
    "stage": (0, 1, 2, 3),
    "rows": ("even", "uneven", "few"),
    "ranks": ("two", "some", "many"),
    "numbers": NUMBERS,
}


def shapes_of(rows: str, ranks: int) -> list[tuple[int, ...]]:
    """Of matrices, vectors and a convolution's weights."""
    shapes = []
    for width in random.choices(
        [(), (random.randint(2, 9),), (3, 5), (random.randint(10, 30),)], k=random.randint(2, 3)
    ):
        each = random.randint(3, 9)
        count = each * ranks
        if rows == "uneven":
            count -= random.randint(1, each - 1)  # no rank is left without
        elif rows == "few":
            count = random.randint(1, ranks - 1)
        shapes.append((count, *width))
    return shapes


def held(shapes: Sequence[tuple[int, ...]], ranks: int, stage: int, *numbers: int) -> list[int]:
    """What the exercise asks for; its notebook compares it with fully_shard."""
    cut = [0] * ranks
    for rows, *rest in shapes:
        each = math.ceil(rows / ranks)
        for rank in range(ranks):
            cut[rank] += len(range(rows)[rank * each : (rank + 1) * each]) * math.prod(rest)
    whole = sum(map(math.prod, shapes))
    return [
        sum(n * (own if stage >= first else whole) for n, first in zip(numbers, (3, 2, 1), strict=True)) for own in cut
    ]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks = {"two": 2, "some": random.randint(3, 8), "many": random.choice([16, 24, 64])}[scene.ranks]
    facts = Facts(f"stage {scene.stage} on {ranks} ranks, {' + '.join(map(str, scene.numbers))} bytes")
    for name, rows in ((STAGES[scene.stage], "even"), ({"uneven": UNEVEN, "few": FEW}.get(scene.rows, ""), scene.rows)):
        if not name or not facts.hold():
            break
        shapes = shapes_of(rows, ranks)
        got = call(list(shapes), ranks, scene.stage, *scene.numbers)
        several = isinstance(got, list | tuple) and all(is_number(x) for x in got)
        wanted, whole = f"list of {ranks}: int", isinstance(got, list) and all(map(is_whole, got)) and len(got) == ranks
        facts.add(KIND, wanted if whole else kind(got), wanted)
        if several and len(got) == ranks:
            facts.add(
                name, [int(x) if x == x // 1 else x for x in got], held(shapes, ranks, scene.stage, *scene.numbers)
            )
            facts.about += f", shapes {', '.join(map(str, shapes))}" * (name in (UNEVEN, FEW))
    return facts


def kind(got: Any) -> str:
    if not isinstance(got, list | tuple):
        return type(got).__name__
    return f"{type(got).__name__} of {len(got)}: {', '.join(sorted({type(x).__name__ for x in got}))}"


EXERCISE = Contract(
    __file__,
    says="the bytes of each rank are right in every stage, even if the rows do not divide evenly",
    own_gpu=False,
    parameters=("shapes", "ranks", "stage", "weights", "gradients", "state"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)
