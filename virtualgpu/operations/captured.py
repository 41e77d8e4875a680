"""Replay the values of a CUDA graph: the captured operations run again on the same storages.

A graph keeps the bytes of tensors made in its capture, not their memory blocks: a tensor that dies during the capture
returns its block to the graph's pool. So the bytes of a new storage have two owners: the program's storage, with a
label, and the graph's, without one. Nothing runs on a GPU during a capture: existing tensors that the capture writes
to are restored at its end, and new ones are zero until the first replay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..clock.graphs import Recording
from ..scope.in_force import backing
from ..scope.labels import NAME, Label, storage_of
from ..scope.refusals import NotMirrored, warn_once
from . import autocast
from .results import map_tensors, tensors_in

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
Compute = Callable[["Device", tuple[Any, ...], dict[str, Any]], Any]
_Storage: Any = torch.UntypedStorage
_torch: Any = torch._C
BYTES = "_gpulab_bytes"  # on the program's storage: the graph's, of the same bytes
FREED = (
    "a CUDA graph reads memory that was freed since its capture: on a GPU it would find there whatever lies there now. "
    "Keep the tensors that a graph reads; here they are zero"
)
# They write to what their schema does not name: the running statistics.
_WRITE = {"aten::native_batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4), "aten::miopen_batch_norm": (3, 4),
          "aten::batch_norm_gather_stats_with_counts": (3, 4)}  # fmt: skip


class Capture:
    """The operations of one graph; `mode` is that of cudaStreamBeginCapture."""

    def __init__(self, gpu: VirtualGPU, device: Device, recording: Recording, mode: str) -> None:
        self.gpu, self.device, self.recording = gpu, device, recording
        self.mode, self.thread = mode, threading.get_ident()
        self.broken = False
        self.steps: list[_Step] = []
        self._own: dict[int, Any] = {}  # the graph's storages
        self._before: dict[int, tuple[StorageWeakRef, Tensor]] = {}  # values before the capture wrote to them
        self._random: Any = device.generator.get_state() if gpu.compute else None

    # -- called by the device ----------------------------------------------------------------------------------------

    def covers(self, stream: int) -> bool:
        return stream in self.recording.streams

    def forbids(self) -> bool:
        return self.mode == "global" or threading.get_ident() == self.thread

    def break_off(self) -> None:
        self.broken = True

    # -- while it is captured ----------------------------------------------------------------------------------------

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Save tensors that an operation will write to, if they existed before the capture."""
        if not self.gpu.compute:
            return
        schema = func._schema
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        for place in _WRITE.get(schema.name, ()):
            written[place] = True
        values = [*args, *(kwargs.get(a.name) for a in schema.arguments[len(args) :])]
        for value, into in zip(values, written, strict=True):
            for tensor in tensors_in(value) if into else ():
                self._keep(tensor)

    def _keep(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None:
            raise NotMirrored("a sparse tensor in a CUDA graph is not mirrored by the virtual GPU")
        mine = getattr(storage, BYTES, None)
        if storage._cdata not in self._before and (mine is None or mine._cdata not in self._own) and storage.nbytes():
            with backing:
                self._before[storage._cdata] = StorageWeakRef(storage), _bytes(storage).clone()

    def note(
        self, compute: Compute | None, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, *, live: bool = False
    ) -> Any:
        """Record an operation that has run, and put its results on storages that the graph shares.

        `compute` gives its results again; None is for what only allocates, and a replay finds there what the last one
        left. Tensors of the host are taken as they are now, unless a copy of them is what goes into the graph (`live`).
        """
        if not self.gpu.compute:
            return out
        given = {storage._cdata for t in tensors_in((args, tuple(kwargs.values()))) if (storage := storage_of(t))}
        with backing:
            found: Any = map_tensors(lambda t: _Place(self._operand(t, live)), (args, kwargs))  # type: ignore[arg-type,return-value]
            shared: dict[int, Any] = {}
            targets: list[Tensor | None] = []

            def share(tensor: Tensor) -> Tensor:
                storage = storage_of(tensor)
                if storage is None:
                    raise NotMirrored("a sparse tensor in a CUDA graph is not mirrored by the virtual GPU")
                if storage._cdata in given or not storage.nbytes() or getattr(storage, NAME, None) is None:
                    targets.append(None)
                    return tensor
                if storage._cdata not in shared:
                    shared[storage._cdata] = _for_the_program(storage)
                    self._own[storage._cdata] = storage
                targets.append(tensor)
                return _on(shared[storage._cdata], tensor)

            out = map_tensors(share, out)
        if compute is not None:
            self.steps.append(_Step(compute, found[0], found[1], targets))
        return out

    def float_(self, tensor: Tensor) -> Tensor:
        """Share the bytes of a tensor that C++ made without a device, in case it joins the GPU."""
        storage = storage_of(tensor)
        if storage is None or not storage.nbytes() or not self.gpu.compute:
            return tensor
        with backing:
            return _on(_for_the_program(storage), tensor)

    def join(self, storage: Any) -> None:
        """Record that such a tensor has joined the GPU: each replay fills it with its current values."""
        own = getattr(storage, BYTES, None)
        if own is not None and own._cdata not in self._own:
            self._own[own._cdata] = own
            with backing:
                values = _bytes(own).clone()
                self.steps.append(_Step(lambda device, args, kwargs: values, (), {}, [_bytes(own)]))

    def resized(self, tensor: Tensor) -> None:
        """Record that an operation resized a storage (`out=` of an empty tensor): its memory is the graph's."""
        storage = storage_of(tensor)
        if not self.gpu.compute or not storage.nbytes():
            return
        self._before.pop(storage._cdata, None)
        self._own[storage._cdata] = storage
        with backing, torch.no_grad():
            lies = _Layout.of(tensor)
            tensor.set_(_for_the_program(storage), lies.offset, lies.size, lies.stride)

    def copied(self, into: Tensor, source: Tensor) -> None:
        """Record a copy outside of operations: from the GPU to pinned memory."""
        self.note(lambda device, args, kwargs: args[0].copy_(args[1]), (into, source), {}, None, live=True)

    def _operand(self, tensor: Tensor, live: bool) -> _Operand:
        storage = storage_of(tensor)
        if storage is None:
            raise NotMirrored("a sparse tensor in a CUDA graph is not mirrored by the virtual GPU")
        mine = getattr(storage, BYTES, None)
        if mine is not None:  # of this graph, or of another, whose pool lasts
            return _Operand(_on(mine, tensor), None, None)
        if getattr(storage, NAME, None) is None or not storage.nbytes():  # the host's, or nothing that could be freed
            return _Operand(tensor if live else tensor.clone(), None, None)
        return _Operand(None, StorageWeakRef(storage), _Layout.of(tensor))

    def end(self) -> None:
        """End the capture, and restore the values from before it."""
        if not self.gpu.compute:
            return
        with backing, torch.no_grad():
            for storage in self._own.values():
                _bytes(storage).zero_()
            for reference, values in self._before.values():
                storage = _Storage._new_with_weak_ptr(reference.cdata)
                if storage is not None:
                    _bytes(storage).copy_(values)
            self.device.generator.set_state(self._random)
        self._before.clear()
        if self.broken:
            self.steps.clear()

    # -- afterwards --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Replay the values of all operations."""
        quiet: Any = _Quiet(self.device)
        shared: dict[int, Any] = {}
        with backing, torch.inference_mode(), autocast.below(), _below_modes(), torch._C.DisableTorchFunction():
            for step in self.steps:
                step.run(self.gpu, quiet, shared)


def refuse_to_resize(tensors: list[Tensor]) -> None:
    """Raise NotMirrored if one of them lies on memory of a graph, which keeps its size here."""
    if any(getattr(storage_of(tensor), BYTES, None) is not None for tensor in tensors):
        raise NotMirrored("a tensor made in the capture of a CUDA graph that changes its size is not mirrored")


@dataclass(frozen=True)
class _Place:
    """Marks an operand in an argument tree."""

    operand: _Operand


@dataclass(frozen=True)
class _Operand:
    """A tensor of the graph or of the host, or where one of the program's lies: what is freed it does not keep."""

    tensor: Tensor | None
    storage: StorageWeakRef | None
    layout: _Layout | None

    def find(self, gpu: VirtualGPU, shared: dict[int, Any]) -> Tensor:
        """The tensor; `shared` are other storages of the program's bytes, by the program's own: one for each replay."""
        if self.tensor is not None:
            return self.tensor
        assert self.storage is not None
        assert self.layout is not None
        place = self.storage.cdata
        alias = shared.get(place)
        if alias is None:
            storage = _Storage._new_with_weak_ptr(place)
            if storage is None:
                warn_once(gpu.warned, FREED)
                return torch.zeros(self.layout.size, dtype=self.layout.dtype, device="cpu")
            alias = shared[place] = _alias(storage) if storage.nbytes() else storage
        return self.layout.on(alias)


@dataclass(frozen=True)
class _Step:
    compute: Compute
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: list[Tensor | None]

    def run(self, gpu: VirtualGPU, device: Device, shared: dict[int, Any]) -> None:
        args, kwargs = _filled(gpu, self.args, shared), _filled(gpu, self.kwargs, shared)
        out = self.compute(device, args, kwargs)
        for target, value in zip(self.targets, tensors_in(out), strict=True) if self.targets else ():
            if target is not None and target._cdata != value._cdata:
                target.copy_(value)


class _Quiet:
    """A GPU on which nothing takes memory or time: all that a replay takes was settled by the capture."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> Label:
        return Label(self._device, None, nbytes)

    def put(self, storage: Any) -> None:
        """Leave the storage without a label."""

    def touch(self, sizes: Any) -> None:
        """Do nothing: the memory is in the graph's pool."""


def _filled(gpu: VirtualGPU, tree: Any, shared: dict[int, Any]) -> Any:
    kind = tree.__class__
    if kind is _Place:
        return tree.operand.find(gpu, shared)
    if issubclass(kind, dict):
        return {key: _filled(gpu, value, shared) for key, value in tree.items()} if tree else tree
    if issubclass(kind, list | tuple):
        return kind([_filled(gpu, item, shared) for item in tree])
    return tree


def _below_modes() -> Any:
    """A context in which operations pass no mode of `__torch_dispatch__`: no two of them pass on to each other."""
    return _torch._ExcludeDispatchKeyGuard(_torch.DispatchKeySet(_torch.DispatchKey.Python))


def _bytes(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _alias(storage: Any) -> Any:
    """Return another storage of the same bytes, which keeps them alive."""
    return _torch._from_dlpack(_torch._to_dlpack(_bytes(storage))).untyped_storage()


def _for_the_program(storage: Any) -> Any:
    """The program's storage of the bytes of one that is new, with its label."""
    alias = _alias(storage)
    setattr(alias, NAME, getattr(storage, NAME))
    setattr(storage, NAME, None)
    setattr(alias, BYTES, storage)
    return alias


@dataclass(frozen=True)
class _Layout:
    """Layout of a tensor on its storage."""

    dtype: torch.dtype
    offset: Any
    size: torch.Size
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Layout:
        return cls(
            tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.is_conj(), tensor.is_neg()
        )

    def on(self, storage: Any) -> Tensor:
        """Return a tensor with this layout on another storage."""
        plain: Any = torch.empty(0, dtype=self.dtype, device="cpu")
        out: Tensor = plain.set_(storage, self.offset, self.size, self.stride)
        out = out.conj() if self.conjugate else out
        return torch._neg_view(out) if self.negative else out


def _on(storage: Any, like: Tensor) -> Tensor:
    """Return a tensor on `storage` with the layout of `like`."""
    return _Layout.of(like).on(storage)
