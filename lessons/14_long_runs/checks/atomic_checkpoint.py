"""Checks atomic checkpoints: after a kill at any operation, after a power cut, with damaged files."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gpulab import crash
from gpulab.exercise.base import SAVING
from gpulab.exercise.bound_names import globals_of
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_whole

from .common import is_class

WHOLE = "A file is whole or not there"
HANDED, NAMES, CODE = "the state that save was given", "the names of the files", "code that stands in a file"
NEWEST, NONE, ORDER = "latest()", "latest() of an empty folder", "latest() of a copied folder"
AT_ONCE, DISK = "latest() of an object that was asked before", "the rename"
KILLED, PARTS = (f"a file in .pt that is not whole after a {event}" for event in ("kill", "power cut"))
KILL, CUT = "latest() after a kill", "latest() after a power cut"
SAFE, FILES = "latest() after a power cut, when save has returned", "files after some saves"
LEFT = "files and folders more than before, after a save that was killed, and another"
RAISES, OLDER = "what a failed save raises", "latest() after a failed save"
DAMAGED, SEVERAL = "latest() with a damaged file", "latest() with all but the oldest damaged"
ALL, ASIDE = "latest() with damaged files alone, twice", "a damaged file"
LOOKED_AT = "the damaged files that are there after another save"
CLOSED, REFUSED = "latest() where a file cannot be opened", "latest() where torch.load refuses a whole file"
CLAUSES = [
    Clause(quote, facts, summary, rule, WHOLE)
    for facts, quote, summary, rule in (
        ([HANDED], "writes state", "save changes the state that it is given", "the caller continues with it"),
        ([NAMES], 'as f"step{step}.pt"', "a file has the wrong name", "step is an argument of save"),
        ([NEWEST, ORDER, AT_ONCE], "the state with the largest step", "latest() returns the wrong state",
         "the largest number among the files present at this moment, whoever saved them"),
        ([CODE], "weights_only=True", "latest() runs code from a file",
         "weights_only=True builds only tensors and containers"),
        ([NONE], "None if nothing was ever saved", "latest() of an empty folder is not None", ""),
        ([DISK], "a disk of its own", "a file is renamed from another disk", "a file cannot be renamed across disks"),
        ([KILLED, PARTS], "at every moment each file whose name ends in .pt is complete", "a file in .pt is incomplete",
         "a write takes many steps, a rename one; and data without fsync may not be on the disk"),
        ([KILL], "At whatever operation of save a process is killed", "a killed process leaves no usable checkpoint",
         "after any operation the old state or the new one must be there"),
        ([CUT], "The same holds after a power cut", "a power cut leaves no complete checkpoint",
         "data without fsync may be on the disk or not, in any order"),
        ([SAFE], "Once save has returned", "a power cut destroys a save that had returned",
         "by then both the bytes and the folder's entry must be on the disk"),
        ([FILES], "Only the keep newest files stay", "the wrong files stay",
         "after each save there are `keep` files, or fewer if fewer were saved"),
        ([LEFT], "the next save also removes what a killed save has left", "unfinished files pile up",
         "remove it by the end of the next save"),
        ([RAISES], "save raises what torch.save raises", "a failed save raises no exception",
         "raise the very same exception"),
        ([OLDER], "and all files are as before", "a failed save leaves something behind",
         "the same files must be there, with the same content"),
        ([DAMAGED, SEVERAL], "takes the one before it", "a damaged file is not skipped",
         "take the newest complete file, however many are damaged"),
        ([ASIDE], "set aside under a name with another ending", "a damaged file is not set aside",
         "keep its bytes under a name that does not end in .pt"),
        ([LOOKED_AT], "stays there", "a damaged file is gone later", "whatever happens later"),
        ([ALL], "If all are damaged, latest() raises at every call",
         "latest() does not raise if all files are damaged", "in any process, at every call"),
        ([CLOSED], "A file that cannot be opened is not damaged",
         "a file that could not be opened is skipped or set aside", "its content is not known"),
        ([REFUSED], "nor is a complete one that torch.load refuses",
         "a complete file is skipped or set aside", "its checksums are right"),
    )
]  # fmt: skip
EDGES = {
    "keep": (1, 3),
    "damage": (("cut off", "directory"), ("middle", "empty"), ("number", "cut off")),
    "steps": ("from 8 upwards", "far apart"),
}


class Unsavable:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class Program:
    """What a file can hold that runs when it is loaded."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Program, "ran", True)


def state_of(number: int) -> dict[str, Any]:
    """What is saved: large enough for several writes. The step has another name here: save is given it."""
    return {"done": number, "w": torch.arange(3000.0) + number, "losses": [float(number)] * 3}


def step(number: int) -> str:
    return f"the state of step {number}"


def words(state: Any) -> str:
    right = state_of(state["done"]) if isinstance(state, dict) and is_whole(state.get("done")) else {}
    if not right or state.keys() != right.keys():
        return brief(state, 40)
    same = torch.equal(state["w"], right["w"]) and state["losses"] == right["losses"]
    return step(state["done"]) if same else "a damaged state"


@dataclass
class Folder:
    """A folder, and the student's class in it; each call is made by a process that knows nothing of those before."""

    make: Callable[..., Any]
    path: Path
    keep: int

    def new(self) -> Any:
        return self.make(self.path, self.keep)

    def latest(self, of: Any = None) -> str:
        """What latest() gives, in words."""
        latest = (of or self.new()).latest
        try:
            return words(latest())
        except Exception as error:
            return f"an error ({type(error).__name__})"

    def raises(self) -> str:
        """Whether latest() raises, and what else it gives."""
        return self.latest().partition(" (")[0]

    def keeps(self, path: Path) -> str:
        """What latest() does about the newest, which it is not to pass over, and whether that keeps its name."""
        return f"{self.raises()}, and it {'keeps its name' if path.exists() else 'is set aside'}"

    def after(self, states: Iterable[crash.State]) -> set[str]:
        """What latest() gives after these crashes."""
        found = set()
        for state in states:
            with state.opened() as place:
                found.add(Folder(self.make, place, self.keep).latest())
        return found

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.path.rglob("*") if path.is_file()}

    def whole(self) -> list[Path]:
        """The checkpoints, the newest first."""
        return sorted(self.path.glob("*.pt"), key=lambda path: int(torch.load(path)["done"]), reverse=True)


def in_part(states: Iterable[crash.State], new: str) -> str:
    """Which file ends in .pt in one of these states, and is not whole: the `new` one, or another."""
    for name, data in {(path, data) for state in states for path, data in state.files.items() if path.endswith(".pt")}:
        try:
            whole = words(torch.load(io.BytesIO(data))).startswith("the state")
        except Exception:  # whatever it is that torch.load finds
            whole = False
        if not whole:
            return "the new one" if name == new else "another one"
    return "none"


def damage(path: Path, how: str) -> bytes:
    """The file's new content."""
    data, middle = path.read_bytes(), path.stat().st_size // 2
    at, count = {
        "middle": (middle, random.randint(8, 64)),
        "number": (data.index(struct.pack(">d", torch.load(path)["losses"][0])), 8),
        "directory": (data.rindex(b"PK\x06\x06") + 24, 16),  # how many parts there are: it has no checksum
    }.get(how, (0, 0))
    zeros = data[:at] + bytes(count) + data[at + count :]
    path.write_bytes(new := {"empty": b"", "cut off": data[:middle]}.get(how, zeros))
    return new


def regular_saves(folder: Folder, facts: Facts, steps: list[int], scene: Scene) -> Iterator[None]:
    """By an object that stays, as in a training script, and that is asked after each; the third by another process."""
    made = folder.new()
    facts.add(NONE, folder.latest(made), "None")
    for number in steps[:4]:
        try:
            (folder.new() if number == steps[2] else made).save(state := state_of(number), number)
        except FileNotFoundError as error:  # its text names a folder of this one call
            facts.add(AT_ONCE, f"save raises {type(error).__name__}", step(number))
            return
        facts.add(HANDED, words(state), step(number))
        facts.add(AT_ONCE, folder.latest(made), step(number))
        yield
    files = [*folder.contents()]
    facts.add(FILES, len(files), scene.keep)
    yield
    facts.add(NAMES, sorted(files), sorted(f"step{number}.pt" for number in steps[4 - scene.keep : 4]))


def crashes(folder: Folder, facts: Facts, steps: list[int], scene: Scene) -> Iterator[None]:
    """A save that is recorded, and killed or cut off from power at every moment."""
    old, new, before = step(steps[3]), step(steps[4]), len([*folder.path.rglob("*")])
    either = f"{old}, or {new}"

    def others(states: Iterable[crash.State]) -> str:
        return "; ".join(sorted(folder.after(states) - {old, new})) or either

    try:
        with crash.record(folder.path, own_disk=True, names=globals_of([folder.make])) as journal:
            folder.new().save(state_of(steps[4]), steps[4])
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        facts.add(DISK, "from another disk", "within the folder")
        return
    facts.add(DISK, "within the folder", "within the folder")
    facts.add(NEWEST, folder.latest(), new)
    killed, cut = journal.kills, journal.power_cuts
    facts.add(KILLED, in_part(killed, f"step{steps[4]}.pt"), "none")
    yield
    facts.add(PARTS, in_part(cut, f"step{steps[4]}.pt"), "none")
    yield
    facts.add(KILL, others(killed[:-1]), either)
    yield
    facts.add(SAFE, "; ".join(sorted(folder.after(state for state in cut if state.finished))), new)
    yield
    facts.add(CUT, others(state for state in cut if not state.finished), either)
    yield
    most = before
    for state in killed[1 : -1 : max(1, len(killed) // 4)]:
        with state.opened() as place:
            Folder(folder.make, place, folder.keep).new().save(state_of(steps[5]), steps[5])
            most = max(most, len([*place.rglob("*")]))
    facts.add(LEFT, most - before, 0)


def healthy(folder: Folder, facts: Facts, steps: list[int], scene: Scene) -> Iterator[None]:
    """Files with other times, as in a copy of the folder; one that cannot be opened; and a save that fails."""
    newest, kind = folder.whole()[0], random.choice([AttributeError, pickle.PicklingError, OSError])
    for path in folder.path.glob("*.pt"):
        os.utime(path, (0, 10**9 - torch.load(path)["done"]))
    facts.add(ORDER, folder.latest(), step(steps[4]))
    yield
    with crash.record(folder.path, fsync=False, unreadable=[newest.name], names=globals_of([folder.make])):
        facts.add(CLOSED, folder.keeps(newest), "an error, and it keeps its name")
    yield
    before = folder.contents()
    error = (TypeError if scene.steps == "far apart" else kind)(f"object {random.randint(100, 999)} is not to be saved")
    told = "nothing"
    try:
        folder.new().save({"w": torch.ones(3000), "bad": Unsavable(error)}, steps[5])
    except Exception as raised:
        told = "that of torch.save" if (type(raised), str(raised)) == (type(error), str(error)) else brief(raised)
    facts.add(RAISES, told, "that of torch.save")
    as_before = folder.contents() == before
    facts.add(OLDER, folder.latest() if as_before else "other files than before", step(steps[4]))


def damaged(folder: Folder, facts: Facts, steps: list[int], scene: Scene) -> Iterator[None]:
    """The newest is damaged; there is another save; then more are damaged at once."""
    twice, aside = "an error, and an error", "is kept, and ends in something else"
    data = [damage(folder.whole()[0], scene.damage[0])]
    if folder.keep == 1:
        facts.add(ALL, f"{folder.raises()}, and {folder.raises()}", twice)
    else:
        facts.add(DAMAGED, folder.latest(), step(steps[3]))
    yield
    kept = [Path(name).suffix for name, content in folder.contents().items() if content == data[0]]
    facts.add(ASIDE, "is gone" if not kept else "still ends in .pt" if ".pt" in kept else aside, aside)
    yield
    folder.new().save(state_of(steps[5]), steps[5])
    *newer, oldest = folder.whole()
    data += [damage(path, how) for path, how in zip(newer, scene.damage, strict=bool(newer))]
    facts.add(SEVERAL, folder.latest(), step(steps[2] if newer else steps[5]))
    yield
    data.append(damage(oldest, scene.damage[1]))
    facts.add(ALL, f"{folder.raises()}, and {folder.raises()}", twice)
    yield
    facts.add(LOOKED_AT, (Counter(folder.contents().values()) & Counter(data)).total(), len(data))
    torch.save({"w": Program()}, refused := folder.path / f"step{steps[5] + 1}.pt")
    Program.ran = False
    told = folder.keeps(refused)
    facts.add(CODE, "is run" if Program.ran else "is not run", "is not run")
    yield
    facts.add(REFUSED, told, "an error, and it keeps its name")


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    first = 8 if scene.steps == "from 8 upwards" else random.randint(2, 9)
    steps = [first + i if scene.steps == "from 8 upwards" else first * 10**i for i in range(6)]
    facts = Facts(f"keep {scene.keep}, steps {', '.join(map(str, steps))}, the damage: {', '.join(scene.damage)}")

    def through(make: Callable[..., Any]) -> None:
        """What happens to a folder, up to the first `yield`, or end of a part, where a fact does not hold."""
        names = globals_of([make])
        with TemporaryDirectory() as name, crash.record(name, fsync=False, names=names):  # a disk takes its time
            folder = Folder(make, Path(name, "run"), scene.keep)
            folder.path.mkdir()
            for part in (regular_saves, crashes, healthy, damaged):
                for _ in chain(part(folder, facts, steps, scene), [None]):
                    if not facts.hold():
                        return

    call(through=through)
    return facts


EXERCISE = Contract(
    __file__,
    says="killed at every operation, without power at every moment: a complete checkpoint each time",
    imports=[SAVING],
    own_gpu=False,
    parameters=("folder", "keep"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    accept=is_class,
    errors=dict.fromkeys(["attribute 'save'", "attribute 'latest'"], "two methods: one writes, the other reads"),
)
