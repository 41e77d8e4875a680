"""LSTMCell and GRUCell as CUDA runs them: two matrix products, then one fused kernel for the gates.

The kernels' formulas are those of PyTorch 2.15, ATen/native/cuda/RNN.cu; both run on shapes and on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..scope import in_force
from ..scope.in_force import backing
from ..scope.labels import device_of
from . import autocast
from .sixteen_bit import HALVES

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten


def _lstm(
    tensor: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Any:
    if not _fused(4, tensor, hx[0], w_ih, w_hh, b_ih, b_hh, hx[1]):
        return autocast.kernel("lstm_cell", autocast.lowered)(tensor, hx, w_ih, w_hh, b_ih, b_hh)
    if autocast.casting():
        tensor, hx, w_ih, w_hh, b_ih, b_hh = autocast.lower((tensor, list(hx), w_ih, w_hh, b_ih, b_hh))
    with autocast.below(tensor):
        gates = aten.matmul(tensor, w_ih.t()), aten.matmul(hx[0], w_hh.t())
        h, c, _ = aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)
        return h, c


def _gru(
    tensor: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    if not _fused(3, tensor, hx, w_ih, w_hh, b_ih, b_hh):
        return autocast.kernel("gru_cell", autocast.lowered)(tensor, hx, w_ih, w_hh, b_ih, b_hh)
    if autocast.casting():
        tensor, hx, w_ih, w_hh, b_ih, b_hh = autocast.lower((tensor, hx, w_ih, w_hh, b_ih, b_hh))
    with autocast.below(tensor):
        gates = aten.matmul(tensor, w_ih.t()), aten.matmul(hx, w_hh.t())
        return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


MIRRORS: dict[str, Callable[..., Any]] = {"lstm_cell": _lstm, "gru_cell": _gru}


def _fused(gates: int, tensor: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, *others: Tensor | None) -> bool:
    """Return True if CUDA's kernel runs; PyTorch's own function refuses mismatched arguments."""
    if in_force.current is None or not in_force.current.mirror or h.dim() != 2:
        return False
    given = [t for t in (tensor, h, w_ih, w_hh, *others) if t is not None]
    if device_of(tensor) is None or any(device_of(t) is not device_of(tensor) for t in given):
        return False
    batch, hidden = h.shape
    shapes = (batch, w_ih.shape[-1]), (gates * hidden, w_ih.shape[-1]), (gates * hidden, hidden)
    return (tensor.shape, w_ih.shape, w_hh.shape) == shapes and all(
        t is None or t.shape in ((gates * hidden,), h.shape) for t in others
    )


# -- the kernels -----------------------------------------------------------------------------------------------------


def _wide(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.float() if t.dtype in HALVES else t for t in tensors]


def _in(dtype: torch.dtype, *made: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if t is None else t.to(dtype).contiguous() for t in made)


def _sum(*parts: Tensor | None) -> Any:
    return sum((part for part in parts if part is not None), start=0)


def lstm_forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Hidden and cell state, and the gates: input, forget, cell, output."""
    with backing:
        of_input, of_hidden, c, b_ih, b_hh = _wide(*args, *[None] * (5 - len(args)))
        i, f, g, o = _sum(of_input, of_hidden, b_ih, b_hh).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        return _in(args[0].dtype, o * c.tanh(), c, torch.cat((i, f, g, o), 1))


def lstm_backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of the gates, of the cell state before, and of a bias."""
    of_h, of_c, c, after, gates, biased = args
    if of_h is None and of_c is None:
        return None, None, None
    with backing:
        of_h, of_c, c, after, gates = _wide(of_h, of_c, c, after, gates)
        i, f, g, o = gates.chunk(4, 1)
        of_h = torch.zeros_like(after) if of_h is None else of_h
        flat = after.tanh()
        of_after = _sum(of_h * o * (1 - flat * flat), of_c)
        parts = of_after * g * i * (1 - i), of_after * c * f * (1 - f), of_after * i * (1 - g * g)
        of_gates = torch.cat((*parts, of_h * flat * o * (1 - o)), 1)
        return _in(args[4].dtype, of_gates, of_after * f, of_gates.sum(0) if biased else None)


def gru_forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """The hidden state, and what backward needs: reset and update gate, the new state, the old one, its product."""
    with backing:
        of_input, of_hidden, h, b_ih, b_hh = _wide(*args, *[None] * (5 - len(args)))
        (r, z, n), (hr, hz, hn) = _sum(of_input, b_ih).chunk(3, 1), _sum(of_hidden, b_hh).chunk(3, 1)
        r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
        n = (n + r * hn).tanh()
        return _in(args[0].dtype, n + z * (h - n), torch.cat((r, z, n, h, hn), 1))


def gru_backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of both products, of the hidden state before, and of both biases."""
    with backing:
        of_h, kept = _wide(*args[:2])
        r, z, n, h, hn = kept.chunk(5, 1)
        of_z, of_n = of_h * (h - n) * (1 - z) * z, of_h * (1 - z) * (1 - n * n)
        of_r = of_n * hn * (1 - r) * r
        made = torch.cat((of_r, of_z, of_n), 1), torch.cat((of_r, of_z, of_n * r), 1)
        biases = [t.sum(0) if args[2] else None for t in made]
        return _in(args[1].dtype, *made, of_h * z, *biases)
