"""LSTM, GRU and RNN as cuDNN runs them: one operation for the sequence, with one reserve buffer.

The values are the CPU's; `recurrent_memory` knows how much cuDNN takes. Under autocast they are computed in float16
whatever dtype it has, bfloat16 too (aten/src/ATen/cudnn/AutocastRNN.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import release
from ..scope import in_force, ownership
from ..scope.in_force import backing
from ..scope.labels import device_of
from . import autocast, recurrent_memory
from .results import map_tensors, place
from .sixteen_bit import HALVES

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten

_SEED = "_gpulab_seed"  # of the dropout between the layers, on the reserve that stands for it
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's
_NAMES = {mode: name for name, mode in _MODES.items()}


def _mirror(name: str) -> Callable[..., Any]:
    """Run sequences of one length: (input, hx, params, biases, layers, dropout, train, bidirectional, batch_first)."""
    op = getattr(aten, name).input

    def run(tensor: Tensor, hx: Any, params: list[Tensor], *rest: Any) -> Any:
        if not _by_cudnn(tensor):
            with autocast.below(tensor):
                return op(tensor, hx, params, *rest)
        return _cudnn(name, tensor, hx, params, *rest)

    return run


def _mirror_packed(name: str) -> Callable[..., Any]:
    """Run a PackedSequence: (data, batch_sizes, hx, params, biases, layers, dropout, train, bidirectional)."""
    op = getattr(aten, name).data

    def run(tensor: Tensor, batch_sizes: Tensor, hx: Any, params: list[Tensor], *rest: Any) -> Any:
        if not _by_cudnn(tensor):
            with autocast.below(tensor):
                return op(tensor, batch_sizes, hx, params, *rest)
        return _cudnn(name, tensor, hx, params, *rest, batch_sizes=batch_sizes.tolist())

    return run


def _by_cudnn(tensor: Tensor) -> bool:
    here = in_force.current is not None and in_force.current.mirror and device_of(tensor) is not None
    return here and torch.backends.cudnn.enabled


def _cudnn(
    name: str, tensor: Tensor, hx: Any, params: list[Tensor], biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool = False, *, batch_sizes: Sequence[int] = (),
) -> Any:  # fmt: skip
    with autocast.below(tensor):
        flat = _flat(params)
        if torch.is_autocast_enabled("cuda") and params[0].dtype not in (torch.float16, torch.float64):
            flat, params = _halved(params)
        if torch.is_autocast_enabled("cuda"):
            tensor, hx = autocast.cast_last_first((tensor, hx), torch.float16)
        h, c = (hx[0], hx[1]) if name == "lstm" else (hx, None)
        hidden = params[1].shape[1] if c is None else c.shape[-1]
        projected = h.shape[-1] if name == "lstm" and h.shape[-1] != hidden else 0
        each = (4 if biases else 2) + bool(projected)
        out = aten._cudnn_rnn(
            tensor, params, each, flat, h, c, _MODES[name], hidden, projected, layers, batch_first, dropout, train,
            bidirectional, list(batch_sizes), None,
        )  # fmt: skip
        return out[:3] if name == "lstm" else out[:2]


def _flat(params: list[Tensor]) -> Tensor | None:
    """Return the buffer with all weights from `flatten_parameters`; None where they are separate."""
    first = params[0].untyped_storage()
    if any(p.untyped_storage()._cdata != first._cdata for p in params):
        return None
    total = first.nbytes() // params[0].element_size()
    return params[0].detach().as_strided((total,), (1,), 0)


def _halved(params: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return one buffer with all weights in float16, and its parts, whose copies autograd records."""
    with torch.no_grad():
        flat = torch.zeros(sum(p.numel() for p in params), dtype=torch.float16, device=params[0].device)
        parts = [part.view(p.shape) for part, p in zip(flat.split([p.numel() for p in params]), params, strict=True)]
    return flat, [part.detach().copy_(p) for part, p in zip(parts, params, strict=True)]


MIRRORS: dict[str, Callable[..., Any]] = {
    **{f"{name}.input": _mirror(name) for name in _MODES},
    **{f"{name}.data": _mirror_packed(name) for name in _MODES},
}


def _arguments(args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The CPU's operation, a function of input, states, weights and the rest, and these, from those of `_cudnn_rnn`."""
    tensor, weights, stride, _, h, c, mode, _, _, layers, batch_first, dropout, train, both, batch_sizes = args[:15]
    op = getattr(aten, _NAMES[mode])
    rest = [h, c] if c is not None else h, weights, stride >= 4, layers, dropout, train, both
    if not batch_sizes:
        return op.input, (tensor, *rest, batch_first)
    sizes = torch.tensor(batch_sizes, device="cpu")
    return lambda data, *others: op.data(data, sizes, *others), (tensor, *rest)


def _wide(tree: Any) -> Any:
    return map_tensors(lambda t: t.float() if t.dtype in HALVES else t, tree)


def forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """`_cudnn_rnn`: output, h, c, reserve, flat weights."""
    tensor, weights, _, flat, h, c, _, hidden, projected, _, batch_first, dropout, train, both = args[:14]
    layer = _layer(args)
    if dropout and train and device.plans_convolutions and device.dropout_state is None:
        # One for each GPU, and kept (dropout_state_cache in RNN.cpp).
        spec = device.spec
        device.dropout_state = device.allocate(recurrent_memory.dropout_state_bytes(spec.capability, spec.sms))
    with backing:
        if gpu.compute:
            seed = int(torch.randint(0, 2**62, (), generator=device.generator).item()) if dropout and train else 0
            op, cpu_args = _arguments(args)
            out = _seeded(seed, op, _wide(cpu_args))
            out = [t.to(tensor.dtype).contiguous() for t in out]
        else:
            seed = 0
            width = (projected or hidden) * (2 if both else 1)
            shape = (*tensor.shape[:-1], width)
            out = [torch.empty(shape, dtype=tensor.dtype, device="meta"), torch.empty_like(h)]
            out += [] if c is None else [torch.empty_like(c)]
        if batch_first:  # cuDNN works along the time and its result is turned
            out[0] = out[0].transpose(0, 1).contiguous().transpose(0, 1)
        size = recurrent_memory.reserve_bytes(layer) if train and device.plans_convolutions else 0
        reserve = torch.empty(size, dtype=torch.uint8, device=device.backing)
        setattr(reserve.untyped_storage(), _SEED, seed)
        cell = out[2] if c is not None else torch.empty(0, dtype=tensor.dtype, device=device.backing)
        if flat is None:
            flat = torch.empty(sum(w.numel() for w in weights), dtype=tensor.dtype, device=device.backing)
        else:
            flat = flat.view(-1)
    return out[0], out[1], cell, reserve, flat


def _layer(args: Any) -> recurrent_memory.Layer:
    """Return the layer described by the arguments of `_cudnn_rnn`."""
    tensor, _, _, _, _, _, mode, hidden, projected, layers, batch_first, dropout, train, both, batch_sizes = args[:15]
    if batch_sizes:  # how many sequences are left at each step
        batch, length = batch_sizes[0], len(batch_sizes)
    else:
        batch, length = tensor.shape[:2] if batch_first else tensor.shape[1::-1]
    return recurrent_memory.Layer(
        _NAMES[mode], length, batch, tensor.shape[-1], hidden, layers, 2 if both else 1, tensor.element_size(),
        float16=tensor.dtype is torch.float16, packed=bool(batch_sizes), projected=projected,
        dropout=bool(dropout and train), sizes=tuple(batch_sizes),
    )  # fmt: skip


def forward_temporaries(device: Device, args: Any, out: Any) -> list[Any]:
    """Return the temporaries: the input with time first, and the workspace."""
    return [*_turned(args[0], args[10]), *_workspace(device, _layer(args), training=args[12])]


def backward_temporaries(device: Device, args: Any, out: Any) -> list[Any]:
    """For the gradients of the weights, which come after those of the input."""
    return _of_backward(device, args, of_input=False) if args[21][3] else []


def _of_backward(device: Device, args: Any, *, of_input: bool) -> list[Any]:
    """The input with time first, for its own gradient the output's too, zeros for what the last states have no
    gradient of, and the workspace."""
    tensor, weights, stride, flat, h, c, _, of_output, of_h, of_c, *rest = args
    layer = _layer((tensor, weights, stride, flat, h, c, *rest[:9]))
    zeros = [state.nbytes for state, of in ((h, of_h), (c, of_c)) if state is not None and of is None]
    turned = _turned(tensor, rest[4])
    if of_input and of_output is not None:
        turned += _turned(of_output, rest[4])
    return [*zeros, *turned, *_workspace(device, layer, training=True, backward=True)]


def _turned(tensor: Tensor, batch_first: bool) -> list[int]:
    along_time = tensor.transpose(0, 1) if batch_first else tensor
    return [] if along_time.is_contiguous() else [tensor.nbytes]


def _workspace(device: Device, layer: recurrent_memory.Layer, *, training: bool, backward: bool = False) -> list[int]:
    if not device.plans_convolutions:
        return []
    algorithm = _algorithm(device, layer, backward=backward)
    older = device.release < release.SMALL_RECURRENT_WANTS_LESS
    return [
        recurrent_memory.workspace_bytes(
            layer, algorithm, device.spec.capability, training=training, more_where_small=older
        )
    ]


def _algorithm(device: Device, layer: recurrent_memory.Layer, *, backward: bool) -> str:
    return recurrent_memory.algorithm(layer, device.spec.capability, device.spec.sms, backward=backward)


def algorithm_of(device: Device, args: Any, *, backward: bool) -> str:
    """Return the cuDNN algorithm of a call of `_cudnn_rnn`, or of its backward."""
    return _algorithm(device, layer_of(args, backward=backward), backward=backward)


def layer_of(args: Any, *, backward: bool) -> recurrent_memory.Layer:
    """Return the layer described by the arguments of `_cudnn_rnn`, or of its backward."""
    return _layer((*args[:6], *args[10:19]) if backward else args)


def _seeded(seed: int, op: Any, args: Any) -> Any:
    if not seed:
        return op(*args)
    host = torch.default_generator
    kept = host.get_state()
    try:
        host.manual_seed(seed)
        return op(*args)
    finally:
        host.set_state(kept)


def backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """`_cudnn_rnn_backward`: gradients of the input, h, c and the weights."""
    tensor, weights, stride, flat, h, c, _, of_output, of_h, of_c, *rest = args
    forward_args = (tensor, weights, stride, flat, h, c, *rest[:9])
    reserve, wanted = args[20], args[21]
    if not rest[6]:  # of a layer in evaluation, which has kept nothing for it
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    with backing:
        if not gpu.compute:
            grads = [torch.empty_like(t) for t in (tensor, h, *([] if c is None else [c]), *weights)]
        else:
            op, cpu_args = _arguments(forward_args)
            grads = _gradients(
                op, _wide(cpu_args), (of_output, of_h, of_c), getattr(reserve.untyped_storage(), _SEED, 0)
            )
            grads = [g.to(tensor.dtype) for g in grads]
    cut = 3 if c is not None else 2
    place(device, grads[:cut])
    if gpu.mirror:
        device.touch(_of_backward(device, args, of_input=True))
    of_weights = grads[cut:] if wanted[3] else []
    if of_weights:
        with backing:
            whole = torch.empty(sum(w.numel() for w in weights), dtype=tensor.dtype, device=device.backing)
            start = 0
            for index, grad in enumerate(of_weights):
                part = whole[start : start + grad.numel()].view(grad.shape)
                if gpu.compute:
                    part.copy_(grad)
                of_weights[index] = part
                start += grad.numel()
    return grads[0], grads[1], grads[2] if c is not None else None, list(of_weights)


def _gradients(op: Any, args: Any, of_results: Any, seed: int) -> list[Tensor]:
    """Return the gradients of the floating-point inputs, by running the operation again with autograd."""
    tensor, hx, weights, *rest = args
    several = isinstance(hx, list)

    def run() -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in (tensor, *(hx if several else [hx]), *weights)]
        n = 3 if several else 2
        states = leaves[1:n]
        results = _seeded(seed, op, (leaves[0], states if several else states[0], leaves[n:], *rest))
        pairs = [(r, g.float()) for r, g in zip(results, of_results, strict=False) if g is not None]
        outputs, grads = [r for r, _ in pairs], [g for _, g in pairs]
        return list(torch.autograd.grad(outputs, leaves, grads, allow_unused=True, materialize_grads=True))

    return ownership.with_autograd(run)


def flatten(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """`_cudnn_rnn_flatten_weight`: all weights in one buffer, each parameter a view of it."""
    weights = args[0]
    with backing:
        flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype, device=device.backing)
    place(device, flat)
    start = 0
    with backing, torch.no_grad():
        for weight in weights:
            part = flat[start : start + weight.numel()].view(weight.shape)
            if gpu.compute:
                part.copy_(weight)
            start += weight.numel()
            aten.set_.source_Storage_storage_offset(
                weight, part.untyped_storage(), part.storage_offset(), part.shape, part.stride()
            )
    return flat
