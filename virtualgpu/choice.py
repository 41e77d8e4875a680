"""Parse the machine that a user asks for: the argument of `setup()`, else GPULAB_GPU, else "auto".

It parses names only; `gpulab.machine` checks that there is such a machine.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import Literal

from .gpus.specs import SPECS

DEFAULT = "T4"

# Names that people write for a choice that has another name.
_MEANT = {"CUDA": "real", "GPU": "real", "MPS": "real", "XPU": "real", "CPU": DEFAULT, "VIRTUAL": DEFAULT}
_MODES = {"AUTO": "auto", "REAL": "real"}


def choose(gpu: str | None) -> tuple[Literal["auto", "real", "virtual"], str]:
    """Return the kind of machine, and the spec of a virtual one, from the argument or else the environment."""
    where, value = ("gpu", gpu) if gpu is not None else ("GPULAB_GPU", os.environ.get("GPULAB_GPU", ""))
    if not isinstance(value, str):
        raise TypeError(f"gpu must be text such as 'T4', 'auto' or 'real', not {value!r} ({type(value).__name__})")
    folded = re.sub(r"[\s_]+", "", value).upper()
    if folded == "AUTO" or (gpu is None and not folded):
        return "auto", DEFAULT
    if folded == "REAL":
        return "real", DEFAULT
    name = folded.removeprefix("VIRTUAL:")
    if name in SPECS:
        return "virtual", name
    raise ValueError(
        f"{where}={value!r} names no machine.{_did_you_mean(name.rpartition(':')[2])} Known: {', '.join(SPECS)} "
        "(each also as virtual:NAME); 'auto' takes the real GPU if it works, 'real' requires it."
    )


def _did_you_mean(name: str) -> str:
    if name in _MEANT:
        close = [_MEANT[name]]
    else:
        close = [spec for spec in SPECS if name and spec.startswith(name)]  # A100: which of the two?
        close = close or difflib.get_close_matches(name, [*SPECS, *_MODES], n=1)
    return f" Did you mean {' or '.join(repr(_MODES.get(c, c)) for c in close)}?" if close else ""
