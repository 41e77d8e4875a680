"""`torch.save` where numbers may be unknown: files hold plain ones, so that they can be loaded anywhere.

In force on shapes alone only. What `GradScaler` says of its scale goes into checkpoints, and `torch.load` takes no
classes of others.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch

from ..operations.unknown import UnknownFloat, UnknownInt
from ..scope.patches import Patches

_own: Any = pickle._Pickler  # in Python: the one in C does not ask how other kinds of float are written
_ways = {**_own.dispatch, UnknownFloat: _own.save_float, UnknownInt: _own.save_long}

# Writes unknown numbers as the ordinary ones that they are taken for.
_PlainPickler = type("_PlainPickler", (_own,), {"dispatch": _ways})


def install(patches: Patches) -> None:
    """Replace the function for as long as a virtual GPU without values is in force."""
    own: Any = vars(torch.serialization)["_save"]
    plain = SimpleNamespace(Pickler=_PlainPickler)

    def _save(obj: Any, zip_file: Any, pickle_module: Any, *args: Any) -> Any:
        return own(obj, zip_file, plain if pickle_module is pickle else pickle_module, *args)

    patches.set(torch.serialization, "_save", _save)
