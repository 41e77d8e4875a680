"""`activation_bytes()`: the bytes that autograd keeps for the backward pass of one forward pass.

Counted through `torch.autograd.graph.saved_tensors_hooks`, so the same on the CPU, on a GPU, and on shapes alone. It is
a count of what is kept at the end, not a peak: what comes and goes during the pass is the tracker's business.
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
    """What one forward pass leaves behind for backward, in bytes of whole storages, each counted once.

    `total` is what autograd keeps beyond the model's parameters and buffers and the inputs. `by_module` splits it by
    the innermost module whose forward was running when a storage was first saved ("" for the model itself).
    `input_bytes`: kept, but the caller's inputs. `output_bytes`: the outputs where autograd does not keep them: alive
    only as long as the caller holds them. `total + output_bytes` is thus what a forward pass adds to allocated memory,
    up to the allocator's rounding and to workspaces.
    """

    total: int
    input_bytes: int
    output_bytes: int
    by_module: dict[str, int]

    def __str__(self) -> str:
        return f"{mib(self.total)} kept for backward, besides {mib(self.input_bytes)} of the inputs"


def activation_bytes(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> ActivationBytes:
    """Run `model(*inputs, **kwargs)` once and count what autograd keeps for backward.

    `model` is a module, or any function of tensors. `nn.Parameter`s never count, nor do the module's buffers. A storage
    is counted whole and once, however many views of it are saved: that is what stays in memory. Copies of weights that
    autocast makes count. Under
    `torch.no_grad()` or `inference_mode` nothing is kept and the result is 0. What checkpointing does not keep is not
    counted, nor what other saved-tensor hooks take away within the model (offloading to the host).

    The pass is a real one: it takes the memory that it takes, in the model's own train or eval mode. It leaves no
    trace: buffers (running statistics) change in copies only, and torch's random state is put back on every device
    of the inputs, parameters and buffers. An exception of the model passes through.
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

    # A lazy module has made its parameters only now.
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
    """What autograd holds in a saved tensor's place: alive as long as the graph wants the tensor."""

    __slots__ = ("__weakref__", "is_parameter", "module", "tensor")

    def __init__(self, tensor: torch.Tensor, module: str) -> None:
        import torch

        # Detached, or a node that saves its own output would hold itself, for ever.
        self.tensor = tensor.detach()
        self.module = module
        base = tensor._base
        self.is_parameter = isinstance(tensor if base is None else base, torch.nn.Parameter)


def _state(model: Any) -> tuple[list[Any], dict[str, Any]]:
    """Parameters and buffers, and copies of the buffers for the pass to change."""
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
    """Keep the name of the module whose forward is running on top of `stack`."""
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
    """Put torch's random state back afterwards: the CPU's, and that of every GPU among the tensors."""
    import torch

    places = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for type_ in {place.type for place in places}:
            indices = sorted({place.index or 0 for place in places if place.type == type_})
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=type_))
        yield
