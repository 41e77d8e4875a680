"""CPU tensors without values in `torch.load`, `torch.save`, multiprocessing and modules.

Active in shapes-only mode. Large storages in files are not read.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ..operations import host_shapes
from ..scope.in_force import backing
from ..scope.labels import NAME, storage_of
from ..scope.patches import Patches
from . import storages
from .tensors import where

Tensor = torch.Tensor


def install(patches: Patches) -> None:
    """Replace the functions for as long as a virtual GPU without values is in force."""
    reader, writer = torch._C.PyTorchFileReader, torch._C.PyTorchFileWriter
    patches.set(reader, "get_storage_from_record", _reading(reader.get_storage_from_record))
    storage = torch.UntypedStorage
    patches.set(storage, "_set_from_file", _reading_old(storage._set_from_file))
    patches.set(writer, "write_record", _writing(writer.write_record))
    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    changed = {
        kind: _reducing(own) for kind, own in reducers.items() if own is torch.multiprocessing.reductions.reduce_tensor
    }
    patches.set(ForkingPickler, "_extra_reducers", reducers | changed)
    # Else `Module.to` would make new parameters: tied weights apart, optimizers without theirs.
    own: Any = torch._has_compatible_shallow_copy_type
    patches.set(torch, "_has_compatible_shallow_copy_type", _has_compatible_shallow_copy_type(own))
    patches.set(Tensor, "data", _data(torch._C.TensorBase.data))
    init = torch.nn.init
    patches.set(init, "_no_grad_trunc_normal_", _without_values(vars(init)["_no_grad_trunc_normal_"]))


def _reading(own: Any) -> Any:
    def get_storage_from_record(self: Any, name: str, nbytes: int, kind: Any) -> Tensor:
        if nbytes < host_shapes.LEAST or kind is not torch.UntypedStorage:
            return own(self, name, nbytes, kind)
        with backing:
            return host_shapes.shape_of(torch.empty(nbytes, dtype=torch.uint8, device="meta"), "torch.load")

    return get_storage_from_record


def _reading_old(own: Any) -> Any:
    """The old format is one stream, so its bytes are read."""

    def _set_from_file(self: Any, *args: Any) -> Any:
        out = own(self, *args)
        if self.nbytes() >= host_shapes.LEAST and getattr(self, NAME) is None:
            with backing:
                host_shapes.forget(torch.empty(0, dtype=torch.uint8).set_(self), "torch.load")
        return out

    return _set_from_file


def _writing(own: Any) -> Any:
    def write_record(self: Any, name: str, data: Any, *args: Any) -> Any:
        if isinstance(data, torch.UntypedStorage) and storages.shape_of_host(data) is not None:
            data = storages.zeros(data)
        return own(self, name, data, *args)

    return write_record


def _reducing(own: Any) -> Any:
    """Send only the shape to another process."""

    def reduce_tensor(tensor: Tensor) -> Any:
        if host_shapes.label_of(tensor) is None:
            return own(tensor)
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype
        return _rebuild, (type(tensor), *layout, tensor.requires_grad)

    return reduce_tensor


def _rebuild(kind: type, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, grad: bool) -> Tensor:
    with backing:
        made = host_shapes.shape_of(torch.empty_strided(shape, stride, dtype=dtype, device="meta"), "another process")
    return torch.nn.Parameter(made, grad) if kind is torch.nn.Parameter else made.requires_grad_(grad)


def _has_compatible_shallow_copy_type(own: Any) -> Any:
    """Return True if `.data` of a parameter may be set to another tensor, as from host to GPU.

    Of gradients not: they are assigned, since a parameter's own does not survive that its data goes elsewhere.
    """

    def _has_compatible_shallow_copy_type(input: Tensor, from_: Tensor) -> bool:  # torch._dynamo looks at the names
        parameter = isinstance(input, torch.nn.Parameter) and None not in (storage_of(input), storage_of(from_))
        return parameter or own(input, from_)

    return _has_compatible_shallow_copy_type


def _data(own: Any) -> property:
    """`Tensor.data`, which may be set to a tensor of another device; its hooks stay with the tensor."""

    def put(self: Tensor, value: Tensor) -> None:
        with backing:
            same = self.device == value.device
        if same:
            own.__set__(self, value)
            return
        hooks = {name: getattr(self, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")}
        with torch.no_grad():
            torch._C._swap_tensor_impl(self, value.detach().requires_grad_(self.requires_grad))
        for name, found in hooks.items():
            if found:
                setattr(self, name, found)

    return property(own.__get__, put, doc=own.__doc__)


def _without_values(own: Any) -> Any:
    """An initialisation that draws until its values will do, of tensors that have none."""

    def initialise(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        known = where(tensor) is None and host_shapes.label_of(tensor) is None
        return own(tensor, *args, **kwargs) if known else tensor

    return initialise
