"""`torch.save` of GPU storages, whose bytes C++ reads itself; unknown numbers are saved as plain ones.

`GradScaler` puts its scale into checkpoints, and `torch.load` accepts no foreign classes.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch

from ..operations import copies
from ..operations.unknown import UnknownFloat, UnknownInt
from ..scope.patches import Patches

_own: Any = pickle._Pickler  # in Python: the one in C does not ask how other kinds of float are written
_ways = {**_own.dispatch, UnknownFloat: _own.save_float, UnknownInt: _own.save_long}

# Writes unknown numbers as the ordinary ones that they are taken for.
_PlainPickler = type("_PlainPickler", (_own,), {"dispatch": _ways})


class _Writer:
    """PyTorch's file writer; reports the storages that it reads."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def write_record(self, name: str, data: Any, nbytes: int) -> None:
        if isinstance(data, torch.UntypedStorage):
            copies.used_on_host(data)
        self._own.write_record(name, data, nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def install(patches: Patches, compute: bool) -> None:
    """Replace the function for as long as a virtual GPU, with values or not (`compute`), is in force."""
    own: Any = vars(torch.serialization)["_save"]
    plain = SimpleNamespace(Pickler=_PlainPickler)

    def _save(obj: Any, zip_file: Any, pickle_module: Any, *args: Any) -> Any:
        unknown = not compute and pickle_module is pickle
        return own(obj, _Writer(zip_file), plain if unknown else pickle_module, *args)

    patches.set(torch.serialization, "_save", _save)
