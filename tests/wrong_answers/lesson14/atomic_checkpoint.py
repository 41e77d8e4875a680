"""Answers to "whole, or not there"."""

import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch

from ..bank import Bank
from ..edits import change, drop, move

BANK = Bank("atomic_checkpoint", "Checkpoints")
SOLUTION = BANK.solution
FSYNCED = """                file.flush()  # from Python to the system,
                os.fsync(file.fileno())  # from the system to the disk"""
WRITE = '            with open(temporary, "wb") as file:\n                torch.save(state, file)\n' + FSYNCED
REPLACE = 'os.replace(temporary, self.folder / f"step{step}.pt")'
PRUNE = "        for old in self.files()[self.keep :]:\n            old.unlink()"
READ = "content = path.read_bytes()  # raises where the disk does not answer, which says nothing of the file"
LOAD = 'return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)'
WHOLE = "            if self.whole(content):\n                " + LOAD
CATCH = "except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):  # what damaged bytes raise"
NONE_LEFT = """        if any(self.folder.glob("*.damaged")):
            raise RuntimeError(f"all checkpoints in {self.folder} are damaged")
"""
ASIDE = 'os.replace(path, path.with_suffix(".damaged"))'


@BANK.right
class ByDescriptor:
    """A list of what is there, a temporary file with a name of its own, and all by numbers of open files."""

    def __init__(self, folder, keep):
        self.folder, self.keep = str(folder), keep

    def steps(self):
        names = (name for name in os.listdir(self.folder) if name.startswith("step") and name.endswith(".pt"))
        return sorted((int(name[len("step") : -3]) for name in names), reverse=True)

    def path(self, step):
        return os.path.join(self.folder, f"step{step}.pt")

    def save(self, state, step):
        torch.save(state, buffer := io.BytesIO())
        for name in os.listdir(self.folder):
            if name.endswith(".part"):
                os.remove(os.path.join(self.folder, name))
        fd, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        data = memoryview(buffer.getvalue())
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
        os.close(fd)
        os.rename(name, self.path(step))
        if os.name != "nt":
            os.fsync(folder := os.open(self.folder, os.O_RDONLY))
            os.close(folder)
        for old in self.steps()[self.keep :]:
            os.remove(self.path(old))

    def latest(self):
        for step in self.steps():
            with open(self.path(step), "rb") as file:
                data = file.read()
            try:
                if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:
                    return torch.load(io.BytesIO(data), weights_only=True)
            except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError):
                pass
            os.rename(self.path(step), self.path(step) + ".bad")
        if any(name.endswith(".bad") for name in os.listdir(self.folder)):
            raise ValueError("no checkpoint is whole")
        return None


BANK.right((change(REPLACE, 'temporary.replace(self.folder / f"step{step}.pt")'),
           change(ASIDE, 'path.rename(path.with_name(f"{path.name}.bad"))'),
           change('self.folder.glob("*.damaged")', 'self.folder.glob("*.bad")')))  # fmt: skip
BANK.right(change(WRITE, "            torch.save(state, temporary)\n            with open(temporary, 'rb+') as "
           "file:\n                os.fsync(file.fileno())"))  # fmt: skip
BANK.right(drop("file.flush()"))
BANK.right((change(READ, "content = path"), change(LOAD, "return torch.load(path, weights_only=True)"),
           change("zipfile.ZipFile(io.BytesIO(content))", "zipfile.ZipFile(content)"),
           change('torch.load(io.BytesIO(content), map_location="meta"', "torch.load(content")))  # fmt: skip


@BANK.right
class WithDefaults(NamedTuple):
    """A class that has `folder` before any object of it is made."""

    folder: Path = Path()
    keep: int = 1

    def save(self, state, step):
        SOLUTION(self.folder, self.keep).save(state, step)

    def latest(self):
        return SOLUTION(self.folder, self.keep).latest()


@BANK.wrong("there is no latest", "two methods: one writes, the other reads")
class WritesOnly:
    def __init__(self, folder, keep):
        self.folder = folder

    def save(self, state, step):
        torch.save(state, self.folder / f"step{step}.pt")


BANK.mistakes(
    ("the file is written under its own name, and is there in part when the process is killed",
     "another name first, in the same folder; then os.replace",
     (change('self.folder / "unfinished.tmp"', 'self.folder / f"step{step}.pt"'), drop("os.replace(temporary"))),
    ("torch.save writes under the file's own name, and nothing is fsynced",
     "torch.save opens the file, and writes piece by piece: give it a file of another name, fsync, " "os.replace",
     (change(WRITE, '            torch.save(state, self.folder / f"step{step}.pt")'), drop("os.replace(temporary"),
     drop("self.sync_folder()"))),
    ("the finished file is copied to its name, and a copy is written in pieces",
     "os.replace changes the name in one step",
     change(REPLACE, "import shutil\n\n        shutil.copy(temporary, self.folder / f\"step{step}.pt\")\n        "
     "temporary.unlink()")),
    ("the unfinished file lies on another disk, so that moving it is a copy",
     "shutil.move copies where a rename is not possible: write in the same folder",
     (change('self.folder / "unfinished.tmp"', 'pathlib.Path(tempfile.gettempdir(), f"unfinished-{os.getpid()}.tmp")'),
     change(REPLACE, "import shutil\n\n        shutil.move(temporary, self.folder / f\"step{step}.pt\")"))),
    ("a file cannot be renamed from one disk to another", "write in the same folder: then it is the same disk",
     change('self.folder / "unfinished.tmp"', 'pathlib.Path(tempfile.gettempdir(), f"unfinished-{os.getpid()}.tmp")')),
    ("the unfinished file ends in .pt", "who reads *.pt finds it: another ending, as .tmp",
     change('"unfinished.tmp"', '"unfinished.pt"')),
    ("after a power cut the new name may be there, and the bytes not", "os.fsync(file.fileno()) before os.replace",
     drop("os.fsync(file.fileno())")),
    ("the bytes are fsynced after the new name is there", "first the bytes, then the name",
     (change(FSYNCED, "                pass"), change(REPLACE,
     REPLACE + '\n        os.fsync(late := os.open(self.folder / f"step{step}.pt", os.O_RDWR))\n        os.close(late)'))),
    ("the folder is not fsynced: after a power cut the new name may be gone",
     "a name is an entry of its folder: os.open(folder, os.O_RDONLY), os.fsync, os.close", drop("self.sync_folder()")),
    ("the folder is fsynced before the new name is there", "after os.replace: then the entry is the new one",
     move("self.sync_folder()", before="os.replace(temporary")),
    ("the old file goes before the new name is safe",
     "fsync the folder between os.replace and the first unlink: of two changes the second may be on the " "disk alone",
     (drop("self.sync_folder()"), change(PRUNE, PRUNE + '\n        self.sync_folder()'))),
    ("the oldest file goes before the new one is there",
     "with keep=1 there is none for a moment: remove when the new one is safe",
     change("        temporary = ",
     "        for old in self.files()[self.keep - 1 :]:\n            old.unlink()\n        temporary = ")),
    ("the oldest file goes when the new one is written, and has no name yet",
     "with keep=1 there is none for a moment: first os.replace",
     change('        ' + REPLACE,
     '        for old in self.files()[self.keep - 1 :]:\n            old.unlink()\n        ' + REPLACE)),
    ("all files stay", "remove what is beyond keep: files()[keep:]", change(PRUNE, "")),
    ("one file too many stays", "the new one is one of the keep", change("[self.keep :]", "[self.keep + 1 :]")),
    ("the newest are removed, and the oldest stay", "files()[keep:] of a list with the newest first",
     change("        for old in self.files()[self.keep :]:", "        for old in self.files()[::-1][self.keep :]:")),
    ("what a killed save has left stays for ever",
     "each save has a temporary file of a name of its own: take one name for all, or remove those of others",
     change('"unfinished.tmp"', 'f"step{step}.tmp"')),
    ("a folder that a killed save has made stays for ever",
     "each save has a temporary folder of a name of its own: take one file name for all",
     (change('self.folder / "unfinished.tmp"',
     "pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / \"unfinished.tmp\"\n        for part in "
     "self.folder.glob(\"*/unfinished.tmp\"):\n            part.unlink()"),
     change("            temporary.unlink(missing_ok=True)\n", "            shutil.rmtree(temporary.parent)\n"),
     change("        self.sync_folder()\n", "        shutil.rmtree(temporary.parent)\n        self.sync_folder()\n"),
     change("class Checkpoints:", "import shutil\n\n\nclass Checkpoints:"))),
    ("the step in a file's name has leading zeros",
     'other programs read f"step{step}.pt"; the order comes from int(…) of it',
     change('f"step{step}.pt"', 'f"step{step:06}.pt"')),
    ("the files have names of another form", 'other programs read f"step{step}.pt"',
     (change('f"step{step}.pt"', 'f"step{step}.ckpt.pt"'),
     change('path.stem.removeprefix("step")', 'path.name.removeprefix("step").removesuffix(".ckpt.pt")'))),
    ("the step is looked up in the state", "a state need not have it: save is given the step",
     change('f"step{step}.pt"', "f\"step{state['step']}.pt\"")),
    ("the state that is saved has an entry more",
     "what latest() gives is the state as it was: the step stands in the name",
     change("torch.save(state, file)", "torch.save(state | {'saved_step': step}, file)")),
    ("save changes the state that it is given", "the caller goes on with it: the step stands in the name",
     change("torch.save(state, file)", "torch.save(state, file)\n                state['saved_step'] = step")),
    ("the object keeps a list of files, and some of them are gone",
     "what is in the folder says the folder: list it each time",
     (change("        self.folder, self.keep = folder, keep\n",
     "        self.folder, self.keep = folder, keep\n        self.known = self.listed()\n"),
     change("    def files(self):\n        steps =", "    def listed(self):\n        return"),
     change("        return [steps[", "    def files(self):\n        steps = self.known\n        return [steps["),
     change("        self.sync_folder()\n",
     "        self.sync_folder()\n        self.known[step] = self.folder / f'step{step}.pt'\n"))),
    ("latest() goes by what was in the folder when the object was made",
     "the same object has saved since: list the folder in latest()",
     (change("        self.folder, self.keep = folder, keep\n",
     "        self.folder, self.keep = folder, keep\n        self.known = self.files()\n"),
     change("for path in self.files():", "for path in self.known:"))),
    ("the newest is found by its name as text", "as text step9 comes after step10: compare int(…) of it",
     change('steps = {int(path.stem.removeprefix("step")): path', "steps = {path.name: path")),
    ("the newest is found by the time of the file", "a copy of the folder has other times; the step stands in the name",
     change("        return [steps[step] for step in sorted(steps, reverse=True)]",
     "        return sorted(steps.values(), key=lambda path: path.stat().st_mtime, reverse=True)")),
    ("the oldest is taken", "reverse=True, or the last of the list",
     change("for path in self.files():", "for path in self.files()[::-1]:")),
    ("an empty folder is an error", "a run that begins has no checkpoint: return None",
     change("        return None", "        raise FileNotFoundError(self.folder)")),
    ("a damaged file is the end: latest() gives None", "go on with the one before it: return None after the loop",
     change("            os.replace(path, path.with_suffix",
     "            return None\n            os.replace(path, path.with_suffix")),
    ("a damaged file is an error",
     "catch zipfile.BadZipFile, or what torch.load raises, and go on with the one before it",
     change(CATCH + '\n            return False', CATCH + '\n            raise')),
    ("zeros in the middle of a file are not seen",
     "torch.load does not compare the checksums: zipfile.ZipFile(path).testzip() does",
     change("if archive.testzip():", "if not archive.namelist():"),
     change("archive.testzip()", "bytes(512) in content")),
    ("zeros in the part that holds the numbers are not seen",
     "a checksum for each part: testzip() reads all of them, also data.pkl",
     change("archive.testzip()", "[archive.read(name) for name in archive.namelist() if '/data/' in name] and None")),
    ("a file whose list of parts is damaged is an error",
     "testzip() finds nothing, since that list has no checksum; torch.load raises RuntimeError or "
     "another one: catch them", change(CATCH, "except zipfile.BadZipFile:")),
    ("a file that could not be opened, or that torch.load refuses, is set aside as if it were damaged",
     "except Exception takes a disk that is gone for damage: catch what damaged bytes raise",
     (change(READ, "content = path"), change("zipfile.ZipFile(io.BytesIO(content))", "zipfile.ZipFile(content)"),
     change('torch.load(io.BytesIO(content), map_location="meta"', "torch.load(content"),
     change(CATCH, "except Exception:"))),
    ("a file that could not be opened is set aside as if it were damaged",
     "an OSError says nothing of the file: let it out",
     change(READ, "try:\n                content = path.read_bytes()\n            except OSError:\n                "
     "content = b''")),
    ("a file that could not be opened is passed over, and work that is saved is done again",
     "an OSError says nothing of the file: let it out",
     change(READ, "try:\n                content = path.read_bytes()\n            except OSError:\n                "
     "continue")),
    ("a whole file that torch.load refuses is set aside as if it were damaged",
     "UnpicklingError comes from what was saved, as NumPy's state: the checksums have said that it is whole",
     change(CATCH, "except Exception:")),
    ("latest() gives None where all files are damaged, and the run begins at step 0",
     "raise: somebody has to look, and None is for a folder without any", change(NONE_LEFT, "")),
    ("where all files are damaged latest() raises once, and gives None the next time",
     "a job that is put back calls it again: look for files that were set aside before as well",
     (change("        for path in self.files():\n            content",
     "        found = self.files()\n        for path in found:\n            content"),
     change('        if any(self.folder.glob("*.damaged")):', "        if found:"))),
    ("two damaged files are the end: latest() looks at no other", "all of them, until one is whole",
     change("for path in self.files():", "for path in self.files()[:2]:")),
    ("a damaged file is written over by the next one", "a name of its own for each: path.with_suffix",
     change('path.with_suffix(".damaged")', 'self.folder / "last.damaged"')),
    ("save removes the damaged files that were set aside",
     "somebody may look at them: remove checkpoints, and what a killed save has left",
     change(PRUNE, "        kept = self.files()[: self.keep]\n        for old in self.folder.iterdir():\n            "
     "if old not in kept:\n                old.unlink()")),
    ("latest() runs code that stands in a file",
     "weights_only=False loads any object, and runs what it says; True builds tensors, numbers and containers",
     tuple(change(f'"{place}", weights_only=True', f'"{place}", weights_only=False') for place in ("meta", "cpu"))),
    ("a damaged file is left where it is", "with .pt it counts as one of the keep: rename it",
     (drop("os.replace(path, path.with_suffix"), change('any(self.folder.glob("*.damaged"))', "self.files()"))),
    ("a damaged file is removed", "a part may be wanted, and why it is damaged as well: rename it",
     change(ASIDE, "path.unlink()")),
    ("a save that fails leaves its unfinished file behind", "unlink it, and raise again",
     change("            temporary.unlink(missing_ok=True)\n", "")),
    ("after some errors the unfinished file is left behind",
     "torch.save raises TypeError, AttributeError, PicklingError, or OSError where the disk is full: "
     "except BaseException", change("        except BaseException:", "        except TypeError:")),
    ("save raises an error of its own in the place of torch.save's",
     "who calls must know what is not to be saved: raise alone goes on with the same one",
     change("            raise\n", "            raise TypeError('cannot save') from None\n")),
    ("a save that fails says nothing", "raise again: who calls must know that there is no new checkpoint",
     change("            raise\n", "            return\n")),
)  # fmt: skip
