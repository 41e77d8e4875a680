"""The student's copies: `make lab` opens `work/`, which git ignores; an update overwrites nothing that was changed.

Each time the course's files are compared with what was copied before. What is new comes along; what the student has not
rewritten is brought up to date, its outputs included; of what was rewritten the newer one is put beside as `NAME.new`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .terminal import say

FOLDER = "work"
COPIED = ("notebooks", "exercises", "solutions", "docs")
RECORD = ".copied.json"  # in `work/`: of each file the bytes that were copied, and the text, as digests


def refresh(root: Path) -> Path:
    """Bring `work/` in the course folder `root` up to date; returns it. Says what it did to files that were there."""
    work = root / FOLDER
    work.mkdir(exist_ok=True)
    record = _read(work / RECORD)
    updated: list[str] = []
    for source in _files(root):
        name = source.relative_to(root).as_posix()
        target, news = work / name, _digest(source.read_bytes())
        before = record.get(name)
        if target.exists() and before is not None and before[0] == news:
            continue
        if target.exists() and target.read_bytes() != source.read_bytes():
            if before is None or text_digest(target) != before[1]:
                beside = target.with_suffix(f".new{target.suffix}")
                _copy(source, beside)
                say(f"{FOLDER}/{name} is yours and stays; the course's newer one is {beside.name} beside it.")
                record[name] = (news, before[1] if before else "")
                continue
            updated.append(name)
        _copy(source, target)
        record[name] = (news, text_digest(source))
    if updated:
        shown = ", ".join(updated[:4]) + (f" and {len(updated) - 4} more" if len(updated) > 4 else "")
        say(f"Brought up to date in {FOLDER}/: {shown}.")
    _write(work / RECORD, json.dumps(record, indent=1).encode())
    return work


def text_digest(path: Path) -> str:
    """What a student writes in a file: of a notebook its cells without their outputs, else all of it."""
    raw = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(raw)["cells"]]
        except (ValueError, KeyError, TypeError):
            return _digest(raw)  # damaged: no course's file
        while cells and cells[-1] == ("code", ""):  # JupyterLab adds one where the last cell is run
            cells.pop()
        raw = json.dumps(cells).encode()
    return _digest(raw)


def _files(root: Path) -> Iterator[Path]:
    for folder in COPIED:
        for path in sorted((root / folder).rglob("*")):
            hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
            if path.is_file() and not hidden:
                yield path


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _read(path: Path) -> dict[str, tuple[str, str]]:
    """What was copied before; nothing where that is not known, so that every file that differs stays."""
    try:
        return {str(name): (str(both[0]), str(both[1])) for name, both in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, IndexError, KeyError, TypeError):
        return {}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, part)
    os.replace(part, target)


def _write(path: Path, raw: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(raw)
    os.replace(part, path)
