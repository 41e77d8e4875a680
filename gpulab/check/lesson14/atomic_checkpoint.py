"""The check of whole checkpoints: after a kill at any operation, after a power cut, with files that are damaged."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ... import crash
from ..base import SAVING, Trial, check
from ..bound_names import globals_of
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import show
from .sections import WHOLE

METHODS, NEWEST, NONE, ORDER = (
    "methods that are missing",
    "latest()",
    "latest() of an empty folder",
    "which is the newest",
)
DISK = "the rename"
PARTS = "files in .pt that are not whole, after a kill"
KILL, CUT, SAFE = (
    "latest() after a kill",
    "latest() after a power cut",
    "latest() after a power cut, when save has returned",
)
FILES, LEFT, RAISES, OLDER = (
    "files after some saves",
    "files after a save that was killed, and another",
    "a failed save",
    "latest() after a failed save",
)
DAMAGED, ASIDE, ALL = "latest() with a damaged file", "a damaged file", "latest() with damaged files alone"
OLD, NEW, STAYS = "the state before", "the new state", "is kept, and ends in something else"
CLAUSES = [
    Clause(quote, facts, summary, likely, WHOLE)
    for quote, facts, summary, likely in (
        ("with two methods", [METHODS], "a method is missing", "save(state, step) and latest()"),
        ("the state with the largest step", [NEWEST, ORDER], "latest() gives another state", "by step, as a number"),
        ("None where there is none", [NONE, ALL], "latest() of a folder without a whole file is not None", ""),
        ("a disk of its own", [DISK], "a file is renamed from another disk", "write in the same folder"),
        ("each file whose name ends in .pt is whole", [PARTS], "a kill leaves a part of a file", "another name first"),
        (
            "Whatever operation of save a process is killed at",
            [KILL],
            "a killed process leaves no checkpoint",
            "the old one goes when the new one is there",
        ),
        ("The same holds after a power cut", [CUT], "a power cut leaves no whole one", "fsync before os.replace"),
        ("Once save has returned", [SAFE], "a power cut takes a save that had returned", "fsync the folder as well"),
        ("The keep newest stay, in as many files, and nothing else", [FILES], "other files stay", "remove the oldest"),
        (
            "also what a killed save has left goes",
            [LEFT],
            "unfinished files pile up",
            "one name for all unfinished files",
        ),
        ("save raises what torch.save raises", [RAISES], "a save that fails is not told", "no except without a raise"),
        ("and all is as it was before", [OLDER], "a save that fails leaves something behind", "remove its own file"),
        (
            "takes the one before it",
            [DAMAGED],
            "a damaged file is not passed over",
            "read it, and look at its checksums",
        ),
        (
            "set aside under a name with another ending",
            [ASIDE],
            "a damaged file is not set aside",
            "rename it: somebody may look at it",
        ),
    )
]
EDGES = {
    "keep": (1, 3),
    "damage": ("cut off", "empty", "zeros in the middle", "zeros"),
    "steps": ("from 8 upwards", "far apart"),
}


class Unsavable:
    def __reduce__(self) -> Any:
        raise TypeError("this object is not to be saved")


def state_of(step: int) -> dict[str, Any]:
    """What is saved: large enough for several writes."""
    return {"step": step, "w": torch.arange(3000.0) + step, "losses": [float(step)] * 3}


class Folder:
    """A folder, and the student's class in it; each call is made by a process that knows nothing of those before."""

    def __init__(self, make: Callable[..., Any], path: Path, keep: int) -> None:
        self.make, self.path, self.keep = make, path, keep

    def save(self, step: int, state: Any = None) -> None:
        self.make(self.path, self.keep).save(state_of(step) if state is None else state, step)

    def latest(self, known: dict[int, str]) -> str:
        """What latest() gives, in words; `known` are the states by step."""
        try:
            state = self.make(self.path, self.keep).latest()
        except Exception as error:
            return f"an error, {type(error).__name__}"
        if state is None:
            return "None"
        step = state.get("step") if isinstance(state, dict) else None
        if not isinstance(step, int) or not isinstance(state.get("w"), torch.Tensor):
            return show(state, 40)
        whole = torch.equal(state["w"], state_of(step)["w"])
        return known.get(step, "a state before that") if whole else "a damaged state"

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())


def after(states: list[crash.State], make: Callable[..., Any], keep: int, known: dict[int, str]) -> list[str]:
    """What latest() gives after these crashes: each answer once."""
    found = set()
    for state in states:
        with state.opened() as place:
            found.add(Folder(make, place, keep).latest(known))
    return sorted(found)


def in_part(states: list[crash.State]) -> int:
    """How many files end in .pt in these states, and are not whole."""
    contents = {data for state in states for path, data in state.files.items() if path.endswith(".pt")}
    return sum(not is_whole(data) for data in contents)


def is_whole(data: bytes) -> bool:
    with suppress(Exception):  # whatever it is that torch.load finds
        state = torch.load(io.BytesIO(data))
        return torch.equal(state["w"], state_of(state["step"])["w"])
    return False


def damage(path: Path, how: str) -> bytes:
    data = path.read_bytes()
    middle = len(data) // 2
    zeros = data[: middle - 300] + bytes(600) + data[middle + 300 :]
    new = {"cut off": data[:middle], "empty": b"", "zeros in the middle": zeros, "zeros": bytes(len(data))}[how]
    path.write_bytes(new)
    return new


def crashes(folder: Folder, facts: Facts, steps: list[int], known: dict[int, str]) -> None:
    """A save that is recorded, and killed or cut off from power at every moment."""
    try:
        with crash.record(folder.path, own_disk=True, names=globals_of([folder.make])) as journal:
            folder.save(steps[-2])
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        facts.add(DISK, "from another disk", "within the folder")
        return
    facts.add(DISK, "within the folder", "within the folder")
    killed, cut = journal.kills, journal.power_cuts
    allowed = {OLD, NEW}
    facts.seen |= order_of(journal)
    facts.add(NEWEST, folder.latest(known), NEW)
    facts.add(PARTS, in_part(killed) > 0, False)
    if facts.hold():
        of_kills = after(killed[:-1], folder.make, folder.keep, known)
        facts.add(KILL, ", ".join(sorted({*of_kills} - allowed)) or "whole", "whole")
    if not facts.hold():
        return
    if in_part(cut):
        facts.add(CUT, "a file in .pt that is not whole", "whole")
        return
    at_the_end = after([state for state in cut if state.finished], folder.make, folder.keep, known)
    facts.add(SAFE, ", ".join(at_the_end), NEW)
    if not facts.hold():
        return
    of_cuts = after([state for state in cut if not state.finished], folder.make, folder.keep, known)
    facts.add(CUT, ", ".join(sorted({*of_cuts} - allowed)) or "whole", "whole")
    most = 0
    for state in killed[1 : -1 : max(1, len(killed) // 4)]:
        with state.opened() as place:
            again = Folder(folder.make, place, folder.keep)
            again.save(steps[-1])
            most = max(most, len(again.files()))
    if facts.hold():
        facts.add(LEFT, most, folder.keep)


def order_of(journal: crash.Journal) -> dict[str, str]:
    """How the new file came by its name, and whether it and the folder were fsynced before that or after it."""
    words = [operation.words for operation in journal.operations]
    named = [i for i, word in enumerate(words) if word.startswith("rename") and word.endswith(".pt")]
    other = any(word.startswith("create") and not word.endswith(".pt") for word in words)
    found = {"the new name": "a rename" if named else "none but its own" if not other else "a copy"}
    for what in ("a file", "the folder"):
        synced = [
            i
            for i, word in enumerate(words)
            if word.startswith("fsync") and ("the folder" in word) == (what != "a file")
        ]
        when = "never" if not synced else "before it" if named and synced[-1] < named[0] else "after it"
        found[f"{what} is fsynced"] = when
    return found


def failed_save(folder: Folder, facts: Facts, step: int, known: dict[int, str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.files()}
    try:
        folder.save(step, {"w": torch.ones(3000), "bad": Unsavable()})
        facts.add(RAISES, "returns", "raises TypeError")
    except Exception as error:
        facts.add(RAISES, f"raises {type(error).__name__}", "raises TypeError")
    now = {path.name: path.read_bytes() for path in folder.files()}
    facts.add(OLDER, folder.latest(known) if now == before else "other files than before", NEW)


def damaged(folder: Folder, facts: Facts, how: str, steps: list[int]) -> None:
    newest = max(folder.files(), key=lambda path: torch.load(path)["step"])
    data = damage(newest, how)
    facts.add(DAMAGED, folder.latest({steps[-3]: OLD, steps[-2]: NEW}), OLD if folder.keep > 1 else "None")
    if facts.hold():
        kept = [path.name for path in folder.files() if path.read_bytes() == data]
        left = any(name.endswith(".pt") for name in kept)
        facts.add(ASIDE, "is gone" if not kept else "still ends in .pt" if left else STAYS, STAYS)
    if facts.hold():
        for path in folder.files():
            if path.read_bytes() != data:
                damage(path, how)
        facts.add(ALL, folder.latest({}), "None")


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    first = 8 if scene.steps == "from 8 upwards" else random.randint(2, 9)
    steps = [first + i if scene.steps == "from 8 upwards" else first * 10**i for i in range(6)]
    facts = Facts(f"keep {scene.keep}, steps {', '.join(map(str, steps))}, the damage: {scene.damage}")
    known = {steps[-3]: OLD, steps[-2]: NEW}

    def through(make: Callable[..., Any]) -> None:
        names = globals_of([make])
        with TemporaryDirectory() as name, crash.record(name, fsync=False, names=names):  # a disk takes its time
            folder = Folder(make, Path(name, "run"), scene.keep)
            folder.path.mkdir()
            made = make(folder.path, scene.keep)
            missing = [method for method in ("save", "latest") if not callable(getattr(made, method, None))]
            facts.add(METHODS, missing, [])
            if missing:
                return
            facts.add(NONE, folder.latest({}), "None")
            for step in steps[:-2]:
                folder.save(step)
            facts.add(FILES, len(folder.files()), min(scene.keep, len(steps) - 2))
            crashes(folder, facts, steps, known)
            if not facts.hold():
                return
            now = max(path.stat().st_mtime for path in folder.files())
            for path in folder.files():  # as a copy of the folder leaves them
                os.utime(path, (now, now - torch.load(path)["step"]))
            facts.add(ORDER, folder.latest(known), NEW)
            failed_save(folder, facts, steps[-1], known)
            if facts.hold():
                damaged(folder, facts, scene.damage, steps)

    call(through=through)
    return facts


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes the object with two methods: a class, or a function of (folder, keep)."""
    trial.expect(
        callable(student) and not hasattr(student, "folder"),
        "this is not a class",
        expected="a class with the methods save and latest",
        got=show(student),
        likely="an object came: pass the class itself, without calling it",
    )
    make: Callable[..., Any] = student
    return make


CONTRACT = Contract(__file__, parameters=("folder", "keep"), clauses=CLAUSES, edges=EDGES, play=play, accept=accept)


@check(
    lesson=14,
    says="killed at every operation and cut off from power at every moment: a whole checkpoint each time",
    imports=[SAVING],
)
def atomic_checkpoint(student: Any, trial: Trial) -> None:
    """Check a class made with (folder, keep): save(state, step) writes a checkpoint that is whole or not there, and
    latest() reads the newest."""
    CONTRACT.judge(student, trial)
