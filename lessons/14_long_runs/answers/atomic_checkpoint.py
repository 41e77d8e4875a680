"""Answers to "whole, or not there"."""

import io
import os
import tempfile
import zipfile

import torch
from banks.bank import Bank
from banks.edits import change, drop, move

BANK = Bank("atomic_checkpoint", "Checkpoints")
FSYNC, REPLACE = "os.fsync(file.fileno())", 'os.replace(temporary, self.folder / f"step{step}.pt")'
UNFINISHED, UNLINK = 'self.folder / "unfinished.tmp"', "            temporary.unlink(missing_ok=True)\n"
NEWER, KEPT = "        for old in self.files()[self.keep :]:", "self.folder, self.keep = folder, keep\n"
PRUNE = NEWER + "\n            old.unlink()"
READ, CATCH = (
    "content = path.read_bytes()",
    "except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)",
)
ASIDE, ANY = 'os.replace(path, path.with_suffix(".damaged"))', 'if any(self.folder.glob("*.damaged")):'
BY_PATH = (
    change(READ, "content = path"),
    change("zipfile.ZipFile(io.BytesIO(content))", "zipfile.ZipFile(content)"),
    change('torch.load(io.BytesIO(content), map_location="meta"', "torch.load(content"),
)


@BANK.right
class ByDescriptor:
    """A temporary file with a name of its own, and all by numbers of open files, and names."""

    def __init__(self, folder, keep):
        self.folder, self.keep = str(folder), keep

    def paths(self):
        steps = sorted(int(name[len("step") : -3]) for name in os.listdir(self.folder) if name.endswith(".pt"))
        return [os.path.join(self.folder, f"step{step}.pt") for step in steps[::-1]]

    def save(self, state, step):
        torch.save(state, buffer := io.BytesIO())
        for name in os.listdir(self.folder):
            if name.endswith(".part"):
                os.remove(os.path.join(self.folder, name))
        fd, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with open(fd, "wb", buffering=0) as file:
            file.write(buffer.getvalue())
            os.fsync(fd)
        os.rename(name, os.path.join(self.folder, f"step{step}.pt"))
        if os.name != "nt":
            os.fsync(folder := os.open(self.folder, os.O_RDONLY))
            os.close(folder)
        for old in self.paths()[self.keep :]:
            os.remove(old)

    def latest(self):
        for path in self.paths():
            with open(path, "rb") as file:
                data = file.read()
            try:
                if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:
                    return torch.load(io.BytesIO(data), weights_only=True)
            except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError):
                pass
            os.rename(path, path + ".bad")
        if any(name.endswith(".bad") for name in os.listdir(self.folder)):
            raise ValueError("no checkpoint is whole")


BANK.right((*BY_PATH, change('io.BytesIO(content), map_location="cpu"', "content"), drop("file.flush()")))
BANK.mistakes(
    ("the file is written piece by piece under its own name, and is there in part when the process is killed",
     "another name first, in the same folder; then os.replace, which changes the name in one step",
     (change(UNFINISHED, 'self.folder / f"step{step}.pt"'), drop("os.replace(temporary")),
     change(REPLACE, "import shutil\n\n        shutil.copy(temporary, self.folder / f\"step{step}.pt\")\n        "
     "temporary.unlink()")),
    ("a file cannot be renamed from one disk to another", "write in the same folder: then it is the same disk",
     change(UNFINISHED, 'pathlib.Path(tempfile.gettempdir(), f"unfinished-{os.getpid()}.tmp")')),
    ("the unfinished file ends in .pt", "programs that read *.pt find it: use another ending, such as .tmp",
     change('"unfinished.tmp"', '"unfinished.pt"')),
    ("after a power cut the new name may be there without its bytes", f"{FSYNC} before os.replace", drop(FSYNC),
     (change(FSYNC, "pass"), change(REPLACE, REPLACE + "\n        os.fsync(late := os.open(self.folder / "
     'f"step{step}.pt", os.O_RDWR))\n        os.close(late)'))),
    ("the folder is not fsynced after os.replace: after a power cut the new name may be gone",
     "a name is an entry of its folder: os.open(folder, os.O_RDONLY), os.fsync, os.close", drop("self.sync_folder()"),
     move("self.sync_folder()", before="os.replace(temporary")),
    ("the old file is removed before the new name is safe",
     "fsync the folder between os.replace and the first unlink: otherwise only the second change may be on the disk",
     (drop("self.sync_folder()"), change(PRUNE, PRUNE + "\n        self.sync_folder()"))),
    ("the oldest file is removed before the new one is there",
     "with keep=1 there is none for a moment: remove when the new one is safe",
     *(change(f"        {place}", NEWER.replace(" :]", " - 1 :]") + f"\n            old.unlink()\n        {place}")
       for place in ("temporary =", REPLACE))),
    ("all files stay", "remove what is beyond keep: files()[keep:]", change(PRUNE, "")),
    ("one file too many stays", "the new file counts towards keep", change("[self.keep :]", "[self.keep + 1 :]")),
    ("the newest are removed, and the oldest stay", "files()[keep:] of a list with the newest first",
     change(NEWER, NEWER.replace("files()", "files()[::-1]"))),
    ("what a killed save has left is never removed",
     "each save uses a new temporary name: use one name for all, or remove those of earlier saves",
     change('"unfinished.tmp"', 'f"step{step}.tmp"'),
     (change(UNFINISHED, 'pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "unfinished.tmp"\n        '
      'for part in self.folder.glob("*/unfinished.tmp"):\n            part.unlink()'),
      change(UNLINK, "            temporary.unlink()\n            temporary.parent.rmdir()\n"),
      change(REPLACE, REPLACE + "\n        temporary.parent.rmdir()"))),
    ("the files' names have the wrong form", 'other programs read f"step{step}.pt"; the order comes from int(…) of it',
     change('f"step{step}.pt"', 'f"step{step:06}.pt"'),
     (change('f"step{step}.pt"', 'f"step{step}.ckpt.pt"'), change("path.stem", "path.stem.removesuffix('.ckpt')"))),
    ("the step is read from the state", "a state need not contain it: step is an argument of save",
     change('f"step{step}.pt"', "f\"step{state['step']}.pt\"")),
    ("the saved state has an additional entry",
     "latest() must return the state as it was: the step is in the name",
     change("torch.save(state, file)", "torch.save(state | {'saved_step': step}, file)")),
    ("save changes the state that it is given", "the caller continues with it: the step is in the name",
     change("torch.save(state, file)", "torch.save(state, file)\n                state['saved_step'] = step")),
    ("the object keeps a list of files, and some of them are gone",
     "only the folder shows what is in it: list it each time",
     (change(KEPT, KEPT + "        self.known = self.listed()\n"),
      change("    def files(self):\n        steps =", "    def listed(self):\n        return"),
      change("        return [steps[", "    def files(self):\n        steps = self.known\n        return [steps["),
      change("        self.sync_folder()\n",
             "        self.sync_folder()\n        self.known[step] = self.folder / f'step{step}.pt'\n"))),
    ("latest() relies on what the object knew before",
     "another save has been made since, by this object or another process: list the folder in latest()",
     (change(KEPT, KEPT + "        self.known = self.files()\n"), change("in self.files():", "in self.known:")),
     change("    def latest(self):", "    @__import__('functools').cache\n    def latest(self):")),
    ("latest() returns what this object saved last", "another process may have saved since: look into the folder",
     (change(KEPT, KEPT + "        self.last = None\n"), change(PRUNE, PRUNE + "\n        self.last = state"),
      change("    def latest(self):", "    def latest(self):\n        if self.last:\n            return self.last"))),
    ("the newest is found by its name as a string", "as strings, step9 comes after step10: compare int(…) of it",
     change('int(path.stem.removeprefix("step")): path', "path.name: path")),
    ("the newest is found by the time of the file", "a copy of the folder has other times; the step is in the name",
     change("        return [steps[step] for step in sorted(steps, reverse=True)]",
            "        return sorted(steps.values(), key=lambda path: path.stat().st_mtime, reverse=True)")),
    ("the oldest is taken", "reverse=True, or the last of the list",
     change("for path in self.files():", "for path in self.files()[::-1]:")),
    ("an empty folder is an error", "a new run has no checkpoint: return None",
     change("        return None", "        raise FileNotFoundError(self.folder)")),
    ("latest() returns None after a damaged file",
     "continue with the one before it, and return None only after the loop",
     change(f"            {ASIDE}", f"            return None\n            {ASIDE}")),
    ("a damaged file raises an error",
     "catch zipfile.BadZipFile, or what torch.load raises, and continue with the one before it",
     change(f"{CATCH}:\n            return False", "except ZeroDivisionError:\n            pass")),
    ("zeros in the middle of a file are not detected",
     "torch.load does not compare the checksums: zipfile.ZipFile(path).testzip() does",
     change("archive.testzip()", "not archive.namelist()"), change("archive.testzip()", "bytes(512) in content")),
    ("zeros in the part that holds the numbers are not detected",
     "each part has a checksum: testzip() reads all of them, including data.pkl",
     change("archive.testzip()", "[archive.read(name) for name in archive.namelist() if '/data/' in name] and None")),
    ("a file whose list of parts is damaged raises an error",
     "testzip() finds nothing, since that list has no checksum; torch.load raises RuntimeError or another one: "
     "catch them", change(CATCH, "except zipfile.BadZipFile")),
    ("a file that could not be opened, or that torch.load refuses, is set aside as if it were damaged",
     "except Exception treats a missing disk as damage: catch only what damaged bytes raise",
     (*BY_PATH, change(CATCH, "except Exception"))),
    ("a file that could not be opened is set aside as if it were damaged",
     "an OSError says nothing about the file: let it pass",
     change(READ, "try:\n                content = path.read_bytes()\n            except OSError:\n                "
            "content = b''")),
    ("a file that could not be opened is skipped, and saved work is done again",
     "an OSError says nothing about the file: let it pass",
     change(READ, "try:\n                content = path.read_bytes()\n            except OSError:\n                "
            "continue")),
    ("a complete file that torch.load refuses is set aside as if it were damaged",
     "UnpicklingError comes from what was saved, such as NumPy's state: the checksums show that the file is complete",
     change(CATCH, "except Exception")),
    ("latest() returns None if all files are damaged, and the run starts at step 0",
     "raise: somebody has to look; None is for a folder without checkpoints", change(ANY, "if False:")),
    ("if all files are damaged latest() raises once, and returns None the next time",
     "a requeued job calls it again: look for files that were set aside before, too",
     (change("for path in self.files():", "for path in (found := self.files()):"), change(ANY, "if found:"))),
    ("latest() looks at no more than two files", "look at all of them, until one is complete",
     change("for path in self.files():", "for path in self.files()[:2]:")),
    ("a damaged file is overwritten by the next one", "give each a name of its own: path.with_suffix",
     change('path.with_suffix(".damaged")', 'self.folder / "last.damaged"')),
    ("save removes the damaged files that were set aside",
     "somebody may want to look at them: remove only checkpoints, and what a killed save has left",
     change(PRUNE, "        kept = self.files()[: self.keep]\n        for old in self.folder.iterdir():\n            "
            "if old not in kept:\n                old.unlink()")),
    ("latest() runs code from a file",
     "weights_only=False loads any object, and runs what it says; True builds tensors, numbers and containers",
     tuple(change(f'"{place}", weights_only=True', f'"{place}", weights_only=False') for place in ("meta", "cpu"))),
    ("a damaged file is left where it is", "with .pt it counts towards keep: rename it",
     (drop(ASIDE), change(ANY, "if self.files():"))),
    ("a damaged file is removed", "its parts, and the cause of the damage, may still be of interest: rename it",
     change(ASIDE, "path.unlink()")),
    ("a save that fails leaves its unfinished file behind", "unlink it, and raise again", change(UNLINK, "")),
    ("after some errors the unfinished file is left behind",
     "torch.save raises TypeError, AttributeError, PicklingError, or OSError where the disk is full: "
     "except BaseException", change("except BaseException:", "except TypeError:")),
    ("save raises its own error instead of torch.save's",
     "the caller must learn what cannot be saved: a bare raise passes on the same exception",
     change("            raise\n", "            raise TypeError('cannot save') from None\n")),
    ("a failed save raises nothing", "raise again: the caller must learn that there is no new checkpoint",
     change("            raise\n", "            return\n")),
)  # fmt: skip
