"""Counts the bytes that autograd saves in a forward pass for the backward pass.

It uses `torch.autograd.graph.saved_tensors_hooks`, so that the count is the same on the CPU, on a GPU, and on shapes
alone. It counts what is saved at the end; `GPUMemoryTracker` measures the peak during the pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from virtualgpu.units import mib

from .storages import storages

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ActivationBytes:
    """The bytes of whole storages that a forward pass leaves for backward, each counted once.

    `total` is saved by autograd beyond the model's parameters and buffers and the inputs. `by_module` splits it by the
    innermost module whose forward was running when a storage was first saved ("" for the model itself). `input_bytes`
    are saved inputs of the caller; `output_bytes` are outputs that autograd does not save, alive as long as the caller
    keeps them. `total + output_bytes` is what the pass adds to allocated memory, up to rounding and workspaces.
    """

    total: int
    input_bytes: int
    output_bytes: int
    by_module: dict[str, int]

    def __str__(self) -> str:
        return f"{mib(self.total)} kept for backward, besides {mib(self.input_bytes)} of the inputs"


def activation_bytes(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> ActivationBytes:
    """Run `model(*inputs, **kwargs)` once and count the bytes that autograd saves for backward.

    `model` is a module, or any function of tensors. `nn.Parameter`s and the module's buffers do not count. A storage
    counts whole and once, however many views of it are saved. Copies of weights that autocast makes count. Under
    `torch.no_grad()` or `inference_mode` the result is 0. Tensors that checkpointing drops do not count, nor those that
    other saved-tensor hooks within the model take away (offloading to the host).

    The pass is a real one, in the model's own train or eval mode, and needs its memory. It has no side effects: buffers
    (running statistics) change in copies only, and torch's random state is restored on every device of the inputs,
    parameters and buffers. An exception of the model passes through.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    if not callable(model):
        raise TypeError(f"model must be a module or a function, not {model!r} ({type(model).__name__})")
    own, buffers = _state(model)
    given = [leaf for leaf in tree_leaves((inputs, kwargs)) if isinstance(leaf, torch.Tensor)]
    stack: list[str] = [""]
    order: list[weakref.ref[_Saved]] = []

    def pack(tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor, stack[-1])
        order.append(weakref.ref(saved))
        return saved

    with (
        _random_state_kept([*given, *own, *buffers.values()]),
        _module_names(model, stack),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor),
    ):
        if buffers and isinstance(model, torch.nn.Module):
            out = torch.func.functional_call(model, buffers, inputs, kwargs)
        else:
            out = model(*inputs, **kwargs)

    # A lazy module makes its parameters in the pass.
    alive = [saved for ref in order if (saved := ref()) is not None]
    parameters = [saved.tensor for saved in alive if saved.is_parameter]
    known = storages([*own, *_state(model)[0], *buffers.values(), *parameters])
    of_inputs = {key: n for key, n in storages(given).items() if key not in known}
    counted: dict[Any, int] = {}
    by_module: dict[str, int] = {}
    input_bytes = 0
    for saved in alive:
        for key, nbytes in storages([saved.tensor]).items():
            if key in known or key in counted:
                continue
            counted[key] = nbytes
            if key in of_inputs:
                input_bytes += nbytes
            else:
                by_module[saved.module] = by_module.get(saved.module, 0) + nbytes
    results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    output_bytes = sum(n for key, n in storages(results).items() if key not in known | of_inputs | counted)
    return ActivationBytes(sum(by_module.values()), input_bytes, output_bytes, by_module)


class _Saved:
    """Autograd's reference in place of a saved tensor: alive as long as the graph needs the tensor."""

    __slots__ = ("__weakref__", "is_parameter", "module", "tensor")

    def __init__(self, tensor: torch.Tensor, module: str) -> None:
        import torch

        # Detached, or a node that saves its own output would be a reference cycle.
        self.tensor = tensor.detach()
        self.module = module
        base = tensor._base
        self.is_parameter = isinstance(tensor if base is None else base, torch.nn.Parameter)


def _state(model: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return parameters and buffers, and copies of the buffers for the pass to change."""
    import torch

    if not isinstance(model, torch.nn.Module):
        return [], {}
    lazy = torch.nn.parameter.is_lazy
    parameters = [p for p in model.parameters() if not lazy(p)]
    originals = {name: b for name, b in model.named_buffers() if not lazy(b)}
    with torch.no_grad():
        copies = {name: b.detach().clone() for name, b in originals.items()}
    return [*parameters, *originals.values()], copies


@contextlib.contextmanager
def _module_names(model: Any, stack: list[str]) -> Iterator[None]:
    """Keep the name of the module whose forward is running at the end of `stack`."""
    import torch

    handles = []
    try:
        for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():
            if name:
                enter, leave = _hooks(name, stack)
                handles.append(module.register_forward_pre_hook(enter, prepend=True))
                handles.append(module.register_forward_hook(leave, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(name: str, stack: list[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(*_: Any) -> None:
        stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    return enter, leave


@contextlib.contextmanager
def _random_state_kept(tensors: list[Any]) -> Iterator[None]:
    """Restore torch's random state afterwards, of the CPU and of the tensors' GPUs."""
    import torch

    places = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for type_ in {place.type for place in places}:
            indices = sorted({place.index or 0 for place in places if place.type == type_})
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=type_))
        yield
