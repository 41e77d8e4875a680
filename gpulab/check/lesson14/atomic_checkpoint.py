"""The check of whole checkpoints: after a kill at any operation, after a power cut, with files that are damaged."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch

from ... import crash
from ..base import SAVING, Trial
from ..bound_names import globals_of
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import show
from .sections import WHOLE

METHODS, NEWEST, NONE, ORDER, AT_ONCE = (
    "methods that are missing",
    "latest()",
    "latest() of an empty folder",
    "which is the newest",
    "latest() of the object that has saved",
)
HANDED, NAMES, CODE = "the state that save was given", "the names of the files", "code that stands in a file"
DISK = "the rename"
PARTS = "files in .pt that are not whole, after a kill"
KILL, CUT, SAFE = (
    "latest() after a kill",
    "latest() after a power cut",
    "latest() after a power cut, when save has returned",
)
FILES, LEFT, FOLDERS, RAISES, OLDER = (
    "files after some saves",
    "files after a save that was killed, and another",
    "folders after a save that was killed, and another",
    "a failed save",
    "latest() after a failed save",
)
DAMAGED, SEVERAL, ONLY, ALL = (
    "latest() with a damaged file",
    "latest() with all but the oldest damaged",
    "latest() with the only file damaged, twice",
    "latest() with damaged files alone, twice",
)
CLOSED, REFUSED = "a file that cannot be opened", "a whole file that torch.load refuses"
ASIDE, LOOKED_AT = "a damaged file", "the damaged files, after another save"
OLD, NEW, OLDEST, STAYS = (
    "the state before",
    "the new state",
    "the oldest state",
    "is kept, and ends in something else",
)
TWICE, TOLD = "an error, and an error", "an error, and keeps its name"
CLAUSES = [
    Clause(quote, facts, summary, likely, WHOLE)
    for quote, facts, summary, likely in (
        ("with two methods", [METHODS], "a method is missing", "save(state, step) and latest()"),
        ("writes state", [HANDED], "save changes the state that it is given", "a copy of the dictionary"),
        ('as f"step{step}.pt"', [NAMES], "a file has another name", "step is an argument of save"),
        (
            "the state with the largest step",
            [NEWEST, ORDER, AT_ONCE],
            "latest() gives another state",
            "by step, as a number",
        ),
        ("weights_only=True", [CODE], "latest() runs code that stands in a file", "weights_only=True"),
        ("None where nothing was ever saved", [NONE], "latest() of an empty folder is not None", ""),
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
            [LEFT, FOLDERS],
            "unfinished files pile up",
            "one name for all unfinished files",
        ),
        ("save raises what torch.save raises", [RAISES], "a save that fails is not told", "no except without a raise"),
        ("and all is as it was before", [OLDER], "a save that fails leaves something behind", "remove its own file"),
        (
            "takes the one before it",
            [DAMAGED, SEVERAL],
            "a damaged file is not passed over",
            "read it, and look at its checksums",
        ),
        (
            "set aside under a name with another ending",
            [ASIDE],
            "a damaged file is not set aside",
            "rename it: somebody may look at it",
        ),
        (
            "stays there",
            [LOOKED_AT],
            "a damaged file is not there any more",
            "a name of its own for each, and save leaves them alone",
        ),
        (
            "Where all are damaged, latest() raises at every call",
            [ONLY, ALL],
            "latest() does not raise where all files are damaged",
            "None is for a folder that has no damaged file either",
        ),
        (
            "A file that cannot be opened is not damaged",
            [CLOSED],
            "a file that could not be opened is passed over or set aside",
            "catch what damaged bytes raise, and no OSError",
        ),
        (
            "nor is one that is whole and that torch.load refuses",
            [REFUSED],
            "a whole file is passed over or set aside",
            "catch what damaged bytes raise, and no UnpicklingError",
        ),
    )
]
CUT_OFF, EMPTY, ZEROS, MIDDLE, NUMBER, DIRECTORY = (
    "cut off",
    "empty",
    "zeros",
    "zeros in the middle",
    "zeros in a number",
    "zeros in the archive's directory",
)
EDGES = {
    "keep": (1, 3),
    "damage": ((CUT_OFF, DIRECTORY, EMPTY), (MIDDLE, ZEROS, CUT_OFF), (NUMBER, MIDDLE, DIRECTORY)),
    "steps": ("from 8 upwards", "far apart"),
}
OTHER_ERRORS = AttributeError, pickle.PicklingError, OSError


class Unsavable:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class Program:
    """What a file can hold that runs when it is loaded."""

    ran: ClassVar[list[bool]] = []

    def __reduce__(self) -> Any:
        return run_program, ()


def run_program() -> None:
    Program.ran.append(True)


def state_of(step: int) -> dict[str, Any]:
    """What is saved: large enough for several writes. The step has another name here: save is given it."""
    return {"done": step, "w": torch.arange(3000.0) + step, "losses": [float(step)] * 3}


def is_state(state: Any, step: int) -> bool:
    right = state_of(step)
    return bool(
        isinstance(state, dict)
        and state.keys() == right.keys()
        and torch.equal(state["w"], right["w"])
        and state["losses"] == right["losses"]
    )


class Folder:
    """A folder, and the student's class in it; each call is made by a process that knows nothing of those before."""

    def __init__(self, make: Callable[..., Any], path: Path, keep: int) -> None:
        self.make, self.path, self.keep = make, path, keep
        self.handed = "as it was"  # the states that save was given

    def save(self, step: int, state: Any = None, by: Any = None) -> None:
        """With the object `by`, or a new one."""
        handed = state_of(step) if state is None else state
        (by or self.make(self.path, self.keep)).save(handed, step)
        if not is_state(handed, step):
            self.handed = "is another one"

    def latest(self, known: dict[int, str], of: Any = None) -> str:
        """What latest() gives, in words; `known` are the states by step."""
        try:
            state = (of or self.make(self.path, self.keep)).latest()
        except Exception as error:
            return f"an error, {type(error).__name__}"
        if state is None:
            return "None"
        step = state.get("done") if isinstance(state, dict) else None
        if not isinstance(step, int) or not isinstance(state.get("w"), torch.Tensor):
            return show(state, 40)
        if state.keys() != state_of(step).keys():
            return "a state with other entries"
        return known.get(step, "a state before that") if is_state(state, step) else "a damaged state"

    def tried(self) -> str:
        """Whether latest() raises, and what else it gives."""
        got = self.latest({})
        return "an error" if got.startswith("an error") else got

    def keeps(self, path: Path) -> str:
        """What latest() does about the newest, which it is not to pass over, and whether that keeps its name."""
        return f"{self.tried()}, and {'keeps its name' if path.exists() else 'is set aside'}"

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def folders(self) -> int:
        return sum(path.is_dir() for path in self.path.rglob("*"))

    def whole(self) -> list[Path]:
        """The checkpoints, the newest first."""
        return sorted(self.path.glob("*.pt"), key=lambda path: int(torch.load(path)["done"]), reverse=True)


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
        return torch.equal(state["w"], state_of(state["done"])["w"])
    return False


def damage(path: Path, how: str) -> bytes:
    data = path.read_bytes()
    middle = len(data) // 2
    new = data[: middle if how == CUT_OFF else 0]
    if how not in (CUT_OFF, EMPTY):
        at, count = place_of(how, data)
        new = data[:at] + bytes(count) + data[at + count :]
    path.write_bytes(new)
    return new


def place_of(zeros: str, data: bytes) -> tuple[int, int]:
    """Where they begin in a file, and how many."""
    if zeros == MIDDLE:
        return len(data) // 2, random.randint(8, 64)
    if zeros == NUMBER:
        return data.index(struct.pack(">d", torch.load(io.BytesIO(data))["losses"][0])), 8
    if zeros == DIRECTORY:
        return data.rindex(b"PK\x06\x06") + 24, 16  # how many parts there are: it has no checksum
    return 0, len(data)


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
    most, folders, before = 0, 0, folder.folders()
    for state in killed[1 : -1 : max(1, len(killed) // 4)]:
        with state.opened() as place:
            again = Folder(folder.make, place, folder.keep)
            again.save(steps[-1])
            most, folders = max(most, len(again.files())), max(folders, again.folders())
    if facts.hold():
        facts.add(LEFT, most, folder.keep)
        facts.add(FOLDERS, folders, before)


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


def failed_save(folder: Folder, facts: Facts, step: int, known: dict[int, str], kind: type[Exception]) -> None:
    before = {path.name: path.read_bytes() for path in folder.files()}
    error = kind(f"object {random.randint(100, 999)} is not to be saved")
    try:
        folder.save(step, {"w": torch.ones(3000), "bad": Unsavable(error)})
        facts.add(RAISES, "returns", "raises what torch.save raises")
    except Exception as raised:
        same = type(raised) is type(error) and str(raised) == str(error)
        words = "raises what torch.save raises" if same else f"raises another {type(raised).__name__}"
        facts.add(RAISES, words, "raises what torch.save raises")
    now = {path.name: path.read_bytes() for path in folder.files()}
    facts.add(OLDER, folder.latest(known) if now == before else "other files than before", NEW)


def damaged(folder: Folder, facts: Facts, kinds: Sequence[str], steps: list[int]) -> None:
    """The newest is damaged; there is another save; then more are damaged at once."""
    files = folder.whole()
    data = [damage(files[0], kinds[0])]
    if folder.keep == 1:
        facts.add(ONLY, f"{folder.tried()}, and {folder.tried()}", TWICE)
    else:
        facts.add(DAMAGED, folder.latest({steps[-3]: OLD, steps[-2]: NEW}), OLD)
    if facts.hold():
        kept = [path.name for path in folder.files() if path.read_bytes() == data[0]]
        left = any(name.endswith(".pt") for name in kept)
        facts.add(ASIDE, "is gone" if not kept else "still ends in .pt" if left else STAYS, STAYS)
    if not facts.hold():
        return
    folder.save(steps[-1])
    *newer, oldest = folder.whole()
    data += [damage(path, how) for path, how in zip(newer, kinds[1:], strict=bool(newer))]
    facts.add(SEVERAL, folder.latest({steps[-1]: NEW, steps[-4]: OLDEST}), OLDEST if newer else NEW)
    if not facts.hold():
        return
    data.append(damage(oldest, kinds[1]))
    facts.add(ALL, f"{folder.tried()}, and {folder.tried()}", TWICE)
    if facts.hold():
        there = Counter(path.read_bytes() for path in folder.files())
        facts.add(LOOKED_AT, (there & Counter(data)).total(), len(data))
        torch.save({"w": Program()}, whole := folder.path / f"step{steps[-1] + 1}.pt")
        Program.ran.clear()
        told = folder.keeps(whole)
        facts.add(CODE, "is run" if Program.ran else "is not run", "is not run")
        if facts.hold():
            facts.add(REFUSED, told, TOLD)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    first = 8 if scene.steps == "from 8 upwards" else random.randint(2, 9)
    steps = [first + i if scene.steps == "from 8 upwards" else first * 10**i for i in range(6)]
    facts = Facts(f"keep {scene.keep}, steps {', '.join(map(str, steps))}, the damage: {', '.join(scene.damage)}")
    known = {steps[-3]: OLD, steps[-2]: NEW}
    error = TypeError if scene.steps == "far apart" else random.choice(OTHER_ERRORS)  # what torch.save raises

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
                try:
                    folder.save(step, by=made)  # as a training script does
                except FileNotFoundError as raised:
                    if step == steps[0]:
                        raise
                    facts.add(AT_ONCE, f"save raises {type(raised).__name__}", NEW)
                    return
            facts.add(AT_ONCE, folder.latest({steps[-3]: NEW}, of=made), NEW)
            files = folder.files()
            facts.add(FILES, len(files), min(scene.keep, len(steps) - 2))
            facts.add(HANDED, folder.handed, "as it was")
            if facts.hold():
                wanted = {f"step{step}.pt" for step in steps[:-2][-scene.keep :]}
                facts.add(
                    NAMES,
                    ", ".join(sorted({path.name for path in files} - wanted)) or "the right ones",
                    "the right ones",
                )
                crashes(folder, facts, steps, known)
            if not facts.hold():
                return
            now = max(path.stat().st_mtime for path in folder.files())
            for path in folder.files():  # as a copy of the folder leaves them
                os.utime(path, (now, now - torch.load(path)["done"]))
            facts.add(ORDER, folder.latest(known), NEW)
            newest = folder.whole()[0]
            with crash.record(folder.path, fsync=False, unreadable=[newest.name], names=names):
                told = folder.keeps(newest)
            facts.add(CLOSED, told, TOLD)
            if not facts.hold():
                return
            failed_save(folder, facts, steps[-1], known, error)
            if facts.hold():
                damaged(folder, facts, scene.damage, steps)

    call(through=through)
    return facts


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes the object with two methods: a class, or a function of (folder, keep)."""
    trial.expect(
        callable(student) and (isinstance(student, type) or not hasattr(student, "folder")),
        "this is not a class",
        expected="a class with the methods save and latest",
        got=show(student),
        likely="an object came: pass the class itself, without calling it",
    )
    make: Callable[..., Any] = student
    return make


EXERCISE = Contract(
    __file__,
    says="killed at every operation and cut off from power at every moment: a whole checkpoint each time",
    imports=[SAVING],
    own_gpu=False,
    parameters=("folder", "keep"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    accept=accept,
)
