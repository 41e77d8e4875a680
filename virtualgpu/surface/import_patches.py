"""Patch modules that a program may import only after a virtual GPU has started.

To import them here would take seconds, and some need not be there at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..scope.patches import Patches

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

Change = Callable[[ModuleType, Patches], None]
_UNSEEN = "torch.distributed.optim"  # as it is imported it compiles optimizers with TorchScript, from PyTorch's own


def install(gpu: VirtualGPU, patches: Patches, changes: Mapping[str, Change]) -> None:
    """Patch imported modules now, and others when they are imported, while `gpu` is in force."""
    waiting = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name], patches)
        else:
            waiting[name] = change
    finder = _Finder(gpu, patches, waiting)
    sys.meta_path.insert(0, finder)
    patches.undo(lambda: sys.meta_path.remove(finder))


class _Finder:
    """Lets the other finders find a module, and changes it once it has run."""

    def __init__(self, gpu: VirtualGPU, patches: Patches, waiting: dict[str, Change]) -> None:
        self.gpu, self.patches = gpu, patches
        self.waiting = waiting

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if name not in self.waiting and name != _UNSEEN:
            return None
        for other in sys.meta_path:
            find = None if other is self else getattr(other, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                if hasattr(loader, "exec_module"):
                    loader.exec_module = self._changing(name, loader, loader.exec_module)
                return spec
        return None

    def _changing(self, name: str, loader: Any, own: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # what hides its own
            if name == _UNSEEN:
                with self.gpu.suspended():
                    own(module)
                return
            own(module)
            if self in sys.meta_path:  # the GPU is still in force
                self.waiting.pop(name)(module, self.patches)

        return exec_module
