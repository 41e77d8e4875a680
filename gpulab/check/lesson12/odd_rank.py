"""The check of what finds the rank that parted from the others: flight recorders as gloo's ranks write them, drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import is_whole, show
from .sections import MISTAKES

FACTS = {  # that hold a scene, by its kind
    "behind": "one has not called what others wait in",
    "one more": "one waits in what no other has called",
    "name": "one has called another operation",
    "sizes": "one has called it with other sizes",
    "dtypes": "one has called it with another dtype",
    "ended": "one has called something else, and all has ended",
    "died": "one has no dump",
    "same": "all have called the same",
    "late": "one is behind, and nobody waits for it",
}
DIFFER = {"name": "name", "sizes": "sizes", "dtypes": "dtypes", "ended": "name"}  # in what one call differs
TWO = "one of two has not called what the other waits in", "two have called different things"
MIXED, FULL = "another group beside it", "another group beside it, and full buffers"
PROMISED = (  # a sentence, the facts that hold it, what is told where it is broken and nobody knows why
    ("or None if nobody has", [FACTS["same"], FACTS["late"]], "where nobody has parted the answer is not None"),
    (
        "that they call differently (by name, input sizes or dtypes)",
        [FACTS["name"], FACTS["sizes"], FACTS["dtypes"]],
        "a rank that calls something else under the same number is not told as it should be",
    ),
    (
        "whether it has ended or not",
        [FACTS["ended"]],
        "different calls that met, and ended, are not told as they should be",
    ),
    (
        "or in which one waits that another has not called",
        [FACTS["behind"], FACTS["one more"]],
        "where one has not called what another waits in, the odd rank is not told as it should be",
    ),
    (
        "A rank without a dump has died: it has called what has ended on all other ranks",
        [FACTS["died"]],
        "a rank that died is not told with the first collective that has not ended",
    ),
    (
        "The rank is the one that stands alone. Of two it is the one that has not called; if both have called, the "
        "dumps do not tell which is wrong, and the answer is (None, group, number)",
        TWO,
        "of two ranks the answer is not the one that has not called, or (None, group, number) if both have",
    ),
    ("each numbers its own collectives", [MIXED], "the collectives of another group change the answer"),
    ("What a full buffer has dropped says nothing", [FULL], "what full buffers have dropped changes the answer"),
)
CLAUSES = [Clause(sentence, facts, summary, read=MISTAKES) for sentence, facts, summary in PROMISED]
EDGES = {
    "kind": tuple(FACTS),
    "ranks": ("two", "three", "many"),
    "waiting": ("all", "one", "none"),  # of those that called
    "more": (False, True),  # whether they went on, or queued more
    "before": ("nothing", "some"),  # collectives of the group
    "group": ("all ranks", "a part of them"),
}
MOST = 12  # collectives of another group
Call = tuple[str, list[int], str]  # operation, sizes of the input, its dtype
Entries = dict[int, list[dict[str, Any]]]  # by rank


def possible(scene: Scene) -> bool:
    """Those in which a mistake breaks one sentence alone."""
    if scene.ranks == "two" and scene.kind in ("sizes", "dtypes", "ended", "one more"):
        return False
    waiting = {"same": ("all", "one", "none"), "late": ("none",), "ended": ("none",), "one more": ("all",)}
    return scene.waiting in waiting.get(scene.kind, ("all", "one"))


def ahead(scene: Scene) -> int:
    """Collectives after the one in question; of who is ahead of a late rank so many that full buffers dropped that."""
    return (MOST + 2 if scene.kind == "late" else 2) if scene.more else 0


def some_call(unlike: Call | None = None, in_its: str = "") -> Call:
    """One in which only this differs, if it is to be unlike another."""
    rows = random.randint(2, 9)
    name, sizes, dtype = unlike or ("", [rows, rows + random.randint(1, 9)], "")
    if in_its in ("", "name"):
        name = random.choice([n for n in ("all_reduce", "broadcast", "reduce") if n != name])
    if in_its == "sizes":
        sizes = sizes[::-1]  # as many numbers in all
    if in_its in ("", "dtypes"):
        dtype = random.choice([d for d in ("Float", "Half", "BFloat16", "Long") if d != dtype])
    return name, sizes, dtype


def entry(group: str, number: int, call: Call, retired: bool) -> dict[str, Any]:
    description = "default_pg" if group == "0" else "undefined"
    told = {"process_group": (group, description), "collective_seq_id": number, "profiling_name": f"gloo:{call[0]}"}
    first = sum(call[1]) % 2  # where one of several tensors goes before, as those of all_gather_coalesced
    sizes, dtypes = [[4, 3]] * first + [call[1][:]], ["Float"] * first + [call[2]]
    if call[0] == "barrier":
        sizes, dtypes = [], []
    return told | {"input_sizes": sizes, "input_dtypes": dtypes, "state": "scheduled", "retired": retired}


def history(scene: Scene, group: str, ranks: list[int], odd: int, number: int) -> Entries:
    """What the ranks of a group recorded, if `odd` parts from the others in this number."""
    past, call, *more = [some_call() for _ in range(number - 1)], *[some_call() for _ in range(1 + ahead(scene))]
    past[1:2] = [("barrier", [0], "")] if past else []
    made = {rank: [entry(group, i, c, True) for i, c in enumerate(past, 1)] for rank in ranks}
    others = [rank for rank in ranks if rank != odd]
    callers = {"one more": [odd], "behind": others, "died": others, "late": others}.get(scene.kind, ranks)
    waiting = {"all": callers, "one": random.sample(callers, 1), "none": []}[scene.waiting]
    for rank in callers:
        calls = [call, *more]
        if rank == odd and scene.kind in DIFFER:
            calls = [some_call(call, DIFFER[scene.kind]), *more[::-1]]
        for i, one in enumerate(calls):
            made[rank].append(entry(group, number + i, one, rank not in waiting if i == 0 else not waiting))
    if scene.kind == "late" and scene.more:  # as the root of a reduce, which ends there last
        made[odd].append(entry(group, number, call, False))
    return made


def mixed(made: Entries, group: str, ranks: list[int]) -> Entries:
    """The same with another group's collectives at some places among them; all of those have ended."""
    calls, both = [some_call() for _ in range(random.randint(4, MOST))], dict[int, list[dict[str, Any]]]()
    for rank in made.keys() | set(ranks):
        left = [made.get(rank, []), [entry(group, i, c, True) for i, c in enumerate(calls, 1)] if rank in ranks else []]
        order = [which for which in (0, 1) for _ in left[which]]
        random.shuffle(order)
        queues = [*map(iter, left)]
        both[rank] = [next(queues[which]) for which in order]
    return both


def last(made: Entries, group: str, number: int) -> Entries:
    """The same with the last entries only, as many on each rank; what tells about this number of the group stays."""
    size = 0
    for entries in made.values():
        own = [i for i, e in enumerate(entries) if e["process_group"][0] == group]
        first = [i for i in own if entries[i]["collective_seq_id"] >= number] or own[-1:]
        size = max(size, len(entries) - first[0] if first else 0)
    return {rank: entries[-size:] for rank, entries in made.items()}


def told(answer: Any) -> str:
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return "nobody" if answer is None else show(answer, 60)
    rank, group, number = (str(int(x)) if is_whole(x) else show(x, 20) for x in answer)
    return f"rank {rank}, group {group}, number {number}"


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    count = {"two": 2, "three": 3, "many": random.randint(4, 16)}[scene.ranks]
    world = [*range(count if scene.group == "all ranks" else count + random.randint(1, 3))]
    ranks, number = sorted(random.sample(world, count)), 1 if scene.before == "nothing" else random.randint(5, 9)
    odd, (group, other) = random.choice(ranks), "01" if count == len(world) else "10"
    beside = world if other == "0" else sorted(random.sample(world, random.randint(2, count)))
    alone, two, differ = history(scene, group, ranks, odd, number), count == 2, scene.kind in DIFFER
    both = mixed(alone, other, beside)
    groups = dict(random.sample([(group, ranks), (other, beside)], 2))
    kept = last(both, group, number + ahead(scene) if scene.kind == "late" else number)

    wanted = told(None if scene.kind in ("same", "late") else (None if two and differ else odd, group, number))
    fact = TWO[differ] if two and (differ or scene.kind == "behind") else FACTS[scene.kind]
    facts = Facts(f"a group of {count} ranks{', each with a dump' * (scene.kind != 'died')}")
    for name, made in ((fact, alone), (MIXED, both), (FULL, kept)):
        living = [rank for rank in made if not (rank == odd and scene.kind == "died")]
        dumps = {r: {"entries": [e | {} for e in made[r]]} for r in random.sample(living, len(living))}
        got = call(dumps, {g: its[:] for g, its in groups.items() if g == group or made is not alone})
        facts.add(name, told(got), wanted)
        if not facts.hold():
            break
    return facts


EXERCISE = Contract(
    __file__,
    says="the rank that parted is found, with the group and the number, and nobody else is blamed",
    own_gpu=False,
    parameters=("dumps", "groups"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
)
