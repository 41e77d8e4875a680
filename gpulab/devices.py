"""Reports the devices of tensors and modules, and verifies that a model is on one device.

`.to` of PyTorch moves them, `torch.accelerator.current_accelerator` chooses a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from virtualgpu.readings.counters import parse_device
from virtualgpu.readings.source import numbers
from virtualgpu.units import count, mib

from .memory.storages import storages

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's data: `nbytes` of its elements, `storage_bytes` of the memory that it keeps alive."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    storage_bytes: int
    requires_grad: bool
    virtual: bool = False

    def __str__(self) -> str:
        where = f"{self.device} (virtual)" if self.virtual else self.device
        size = mib(self.nbytes)
        if self.storage_bytes != self.nbytes:
            size += f" of a storage of {mib(self.storage_bytes)}"
        grad = "requires grad" if self.requires_grad else "no grad"
        return f"{self.name}: shape {self.shape}, {self.dtype} on {where}, {size}, {grad}"


@dataclass(frozen=True)
class Share:
    """The number of a module's tensors of one dtype on one device; `nbytes` counts each storage once."""

    device: str
    dtype: str
    parameters: int
    buffers: int
    nbytes: int


@dataclass(frozen=True)
class Placement:
    """A module's parameters and buffers by device and dtype.

    `tied` are further names of a tensor, which is counted under its first name only.
    """

    shares: tuple[Share, ...]
    tied: tuple[str, ...] = ()
    virtual: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(share.device for share in self.shares))

    @property
    def nbytes(self) -> int:
        return sum(share.nbytes for share in self.shares)

    def __str__(self) -> str:
        if not self.shares:
            return "no parameters and no buffers"
        lines = [
            f"{share.device:8} {share.dtype:10} {mib(share.nbytes):>14}  "
            f"{count(share.parameters, 'parameter')}, {count(share.buffers, 'buffer')}"
            for share in self.shares
        ]
        if self.tied:
            lines.append(f"tied, counted once: {', '.join(self.tied)}")
        if self.virtual:
            lines.append("the GPU is virtual")
        return "\n".join(lines)


class WrongDevice(ValueError):
    """Raised if tensors of a module are on another device; `elsewhere` maps their names to devices."""

    def __init__(self, expected: str, elsewhere: dict[str, str], kinds: Mapping[str, str]) -> None:
        self.expected = expected
        self.elsewhere = elsewhere
        listed = [f"{kinds[name]} {name} on {place}" for name, place in list(elsewhere.items())[:_LISTED]]
        more = len(elsewhere) - len(listed)
        super().__init__(
            f"{count(len(elsewhere), 'tensor')} of the model not on {expected}: {', '.join(listed)}"
            f"{f' and {more} more' if more else ''}. model.to({expected.split()[0]!r}) moves registered parameters and "
            "buffers; a tensor kept as a plain attribute needs register_buffer."
        )


_LISTED = 8


def tensor_info(tensor: torch.Tensor, name: str = "tensor") -> TensorInfo:
    """Return shape, dtype, device and size in bytes of a tensor; TypeError for anything else."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, not {tensor!r:.80} ({type(tensor).__name__})")
    held = sum(storages([tensor]).values())
    return TensorInfo(
        name=name,
        shape=tuple(tensor.shape),
        dtype=_dtype(tensor),
        device=str(tensor.device),
        nbytes=tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else held,
        storage_bytes=held,
        requires_grad=tensor.requires_grad,
        virtual=_virtual([str(tensor.device)]),
    )


def print_tensor_info(tensor: torch.Tensor, name: str = "tensor") -> None:
    """Print shape, dtype, device, size and requires_grad of a tensor in one line."""
    print(tensor_info(tensor, name))


def placement(module: torch.nn.Module) -> Placement:
    """Return a module's parameters and buffers by device and dtype, with their bytes."""
    shares: dict[tuple[str, str], list[int]] = {}
    tied, tensors, stored = [], set(), set()
    for name, kind, tensor in _tensors(module):
        if id(tensor) in tensors:
            tied.append(name)
            continue
        tensors.add(id(tensor))
        share = shares.setdefault((str(tensor.device), _dtype(tensor)), [0, 0, 0])
        share[0 if kind == "parameter" else 1] += 1
        for key, nbytes in _bytes(tensor).items():
            if key not in stored:
                stored.add(key)
                share[2] += nbytes
    found = tuple(Share(device, dtype, *counts) for (device, dtype), counts in sorted(shares.items()))
    return Placement(found, tuple(tied), _virtual([share.device for share in found]))


def verify_model_device(model: torch.nn.Module, expected: torch.device | str | int) -> Placement:
    """Verify that every parameter and buffer is on `expected`, and return the placement.

    `expected` is a text such as "cuda:1", a torch.device, or a GPU's number; "cuda" is the current GPU, so "cuda" and
    "cuda:0" agree where that is number 0. Raises WrongDevice (a ValueError) that names the tensors elsewhere,
    TypeError or ValueError if `model` is no module or `expected` no device.
    """
    place = _indexed(expected)
    elsewhere, kinds = {}, {}
    for name, kind, tensor in _tensors(model):
        if not _same(tensor.device, place):
            elsewhere[name], kinds[name] = str(tensor.device), kind
    if elsewhere:
        raise WrongDevice(str(place), elsewhere, kinds)
    return placement(model)


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, Literal["parameter", "buffer"], Any]]:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {module!r:.80} ({type(module).__name__})")
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, "parameter", parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield name, "buffer", buffer


def _bytes(tensor: Any) -> dict[int, int]:
    import torch

    return {} if torch.nn.parameter.is_lazy(tensor) else storages([tensor])


def _indexed(expected: Any) -> torch.device:
    """Return the device with its index, if its type has indices."""
    import torch

    if expected is None or expected == "all":
        raise TypeError(f'expected must name one device, such as "cuda", "cuda:1" or "cpu", not {expected!r}')
    try:
        place = parse_device(expected)
    except (TypeError, ValueError):
        wrong = ValueError if isinstance(expected, (str, int)) and not isinstance(expected, bool) else TypeError
        raise wrong(
            f'expected must be a text such as "cuda", "cuda:1" or "cpu", a torch.device or a number, not {expected!r}'
        ) from None
    if place.index is not None or place.type in ("cpu", "meta"):
        return torch.device(place)
    found = torch.accelerator.current_accelerator(check_available=True)
    here = found is not None and found.type == place.type
    return torch.device(place.type, torch.accelerator.current_device_index() if here else 0)


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.type in ("cpu", "meta") or (one.index or 0) == other.index)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _virtual(devices: list[str]) -> bool:
    return numbers() == "virtual" and any(device.startswith("cuda") for device in devices)
