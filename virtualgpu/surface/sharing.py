"""Share GPU tensors between processes as CUDA IPC does, and give spawned processes virtual GPUs.

The receiver has the same memory, not a copy, and its own allocator does not count it: on a GPU it belongs to the
sender. Processes that are spawned get the same virtual GPUs, unless `run` of a process's own class is what they do.
"""

from __future__ import annotations

import functools
import pickle
import uuid
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.labels import NAME, Label
from ..scope.numbering import current
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored
from . import distributed
from .storages import label_of

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

_Storage: Any = torch.UntypedStorage
_Process: Any = BaseProcess
_own_share = _Storage._share_cuda_
_SHARED = "_gpulab_shared"  # on a storage without values that was sent: what tells it from all others


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Let tensors be sent as long as `gpu` is in force, to processes that have the same GPUs."""
    patches.set(_Storage, "_share_cuda_", _share)
    patches.set(_Storage, "_new_shared_cuda", staticmethod(_received))
    patches.set(_Storage, "_release_ipc_counter_cuda", staticmethod(_released))
    patches.set(
        _Process, "start", _starting(_Process.start, functools.partial(_running, distributed.same_gpus_factory(gpu)))
    )


def _share(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the message that `torch.multiprocessing` sends in place of a storage on a GPU."""
    label = label_of(self)
    if label is None:
        return _own_share(self, *args, **kwargs)
    shared: Any = None
    if label.device.compute and self.nbytes():
        with backing:
            shared = self._share_filename_cpu_()
            self._shared_incref()
    elif not hasattr(self, _SHARED):
        setattr(self, _SHARED, uuid.uuid4().bytes)  # a receiver that gets it twice keeps one
    handle = pickle.dumps((shared, getattr(self, _SHARED, None)))
    return label.device.index, handle, self.nbytes(), 0, b"", 0, b"", False


def _received(index: int, handle: bytes, nbytes: int, *args: Any) -> Any:
    """The storage that another process has sent."""
    gpu = current()
    shared, _ = pickle.loads(handle)
    if gpu.compute != (shared is not None):
        raise NotMirrored("a tensor from a virtual GPU with values on one without, or the reverse")
    with backing:
        if shared is None:
            storage = _Storage(nbytes, device="meta")
        else:
            storage = _Storage._new_shared_filename_cpu(*shared)
            storage._shared_decref()
    setattr(storage, NAME, Label(gpu.device(index), None, nbytes))
    return storage


def _released(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the host counts references."""


def _starting(own: Callable[[Any], None], running: Callable[..., Any]) -> Callable[[Any], None]:
    @functools.wraps(own)
    def start(self: Any) -> None:
        target = getattr(self, "_target", None)
        if target is not None and self._start_method in ("spawn", "forkserver") and not distributed.is_child(target):
            self._target = functools.partial(running, target)
        own(self)

    return start


def _running(make: Callable[[], VirtualGPU], target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function of a process, with virtual GPUs around it."""
    with make():
        return target(*args, **kwargs)
