"""What `run` is given, checked before a process starts: an error names the argument, its value, and what is right."""

from __future__ import annotations

import difflib
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_RANKS = 64


def checked_script(script: object) -> str:
    if callable(script):
        name = getattr(script, "__name__", "train")
        raise TypeError(
            f"script must be the path of a Python file, not the function {name}: a rank is a new process, and a "
            "function defined in a notebook exists only in the notebook's own process. Write the cell to a file: make "
            f"%%writefile {name}.py its first line, call {name}() in its last, and run {name}.py"
        )
    if not isinstance(script, (str, os.PathLike)):
        raise TypeError(f"script must be the path of a Python file, not {script!r} ({type(script).__name__})")
    path = os.fsdecode(script)
    if not path or "\0" in path:
        raise ValueError(f"script must be the path of a Python file, such as 'train.py', not {path!r}")
    if path.endswith(".ipynb"):
        raise ValueError(
            f"script={path!r} is a notebook; a rank runs a Python file. Write the code that the ranks run to one: make "
            "%%writefile train.py the first line of its cell"
        )
    if os.path.isdir(path):
        raise IsADirectoryError(f"script={path!r} is a folder; name the Python file in it")
    if not os.path.isfile(path):
        folder = Path(path).parent
        there = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
        close = difflib.get_close_matches(Path(path).name, there, n=1)
        hint = (
            f"Did you mean {str(folder / close[0])!r}?" if close else "%%writefile in a cell's first line writes one."
        )
        raise FileNotFoundError(f"script={path!r}: there is no such file. {hint}")
    return path


def checked_ranks(ranks: int) -> int:
    if isinstance(ranks, bool) or not hasattr(ranks, "__index__"):
        raise TypeError(f"ranks must be a whole number of processes, not {ranks!r} ({type(ranks).__name__})")
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks must be from 1 to {MOST_RANKS} (each is a separate process), not {ranks}")
    return ranks.__index__()


def checked_args(args: Sequence[str]) -> list[str]:
    if isinstance(args, str):
        raise TypeError(f"args must be a list of strings: {shlex.split(args)}, not {args!r}")
    if not isinstance(args, Sequence):
        raise TypeError(f"args must be a list of strings, not {args!r} ({type(args).__name__})")
    for index, value in enumerate(args):
        if not isinstance(value, str):
            raise TypeError(f"args[{index}] must be a string: '{value}', not {value!r} ({type(value).__name__})")
        if "\0" in value:
            raise ValueError(f"args[{index}]={value!r}: a command's arguments cannot hold the character \\0")
    return list(args)


def checked_timeout(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, or None for no limit, not {timeout!r}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout must be more than 0 seconds, or None for no limit, not {timeout!r}")
    return float(timeout)


def checked_env(env: Mapping[str, str] | None) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env must be a dict of strings such as {{'GPULAB_GPU': 'T4'}}, not {env!r}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env must be a dict of strings: {{'{name}': '{value}'}}, not {{{name!r}: {value!r}}}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env: {name!r}: {value!r} cannot be a variable of the environment")
    return dict(env)
