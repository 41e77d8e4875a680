"""Computes model FLOPs utilisation (MFU): the rate of a model's operations as a part of the GPU's peak.

PyTorch counts the operations; the peak is the vendor's for dense products (virtualgpu/gpus/specs.py). A rate above the
peak raises TooFast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from virtualgpu.gpus.specs import SPECS, Spec
from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers
from virtualgpu.units import three_figures

from ..calls import check_function
from .measuring import Timing
from .rates import Time, positive, seconds
from .stopwatch import Timer

if TYPE_CHECKING:
    import torch

_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, repr=False)
class MFU:
    """The `fraction` of the peak (0.4 is 40 %), with both rates in 10¹² operations per second.

    `numbers` is the origin of the time; the peak is always the vendor's, or the one that was given.
    """

    fraction: float
    tflops: float
    peak_tflops: float
    peak: str
    numbers: Numbers

    def __str__(self) -> str:
        rates = f"{three_figures(self.tflops)} of {self.peak_tflops:g} TFLOP/s"
        return f"MFU {self.fraction:.1%}: {rates} ({self.numbers}; {self.peak})"

    __repr__ = __str__


class TooFast(ValueError):
    """Raised for a rate `tflops` above the GPU's `peak_tflops`: the time or the count is wrong."""

    def __init__(self, text: str, tflops: float, peak_tflops: float) -> None:
        super().__init__(text)
        self.tflops, self.peak_tflops = tflops, peak_tflops


def flops(fn: Callable[[], object]) -> int:
    """Return the floating-point operations of one call of `fn` by PyTorch's FlopCounterMode; a multiply-add is two.

        timing.flops(lambda: model(x))                            # forward
        timing.flops(lambda: model(x).sum().backward())           # forward and backward, about three times as many

    It counts products, convolutions and attention, with backward, but not activations, norms and optimizers (a few in a
    thousand, in a large model), nor recurrent layers. The second forward pass of activation checkpointing counts: for
    `mfu` count a step without it. A rule for transformers: a training step takes 6 · N operations a token, N the number
    of parameters without embeddings, and 12 · layers · width · sequence for attention (twice that of a causal mask).

    `fn` runs once. A table by module: `with torch.utils.flop_counter.FlopCounterMode() as counter: fn()`.
    """
    from torch.utils.flop_counter import FlopCounterMode

    check_function(fn, "fn", "timing.flops")
    with FlopCounterMode(display=False) as counter:
        fn()
    return int(counter.get_total_flops())


def mfu(
    model_flops: float,
    time: Time,
    dtype: str | torch.dtype | None = None,
    *,
    peak_tflops: float | None = None,
    device: DeviceLike = None,
) -> MFU:
    """Return the model FLOPs utilisation: `model_flops` in `time` as a part of the GPU's peak.

        timing.mfu(timing.flops(step), timing.measure(step), "fp16")
        # MFU 38.1%: 24.8 of 65 TFLOP/s (measured; Tesla T4, fp16, dense)

    `model_flops` are the model's operations on one GPU, without a second forward pass for checkpointing. `time` is a
    `Timing` (its median counts), a Timer, or a number of seconds. `dtype` is that of the products: "fp32", "tf32",
    "fp16", "bf16" or torch's (torch.float32 is "fp32": with TF32 allowed, say "tf32"); under autocast, the one that
    autocast casts to. The peak is that of the vendor's data sheet for dense products of the GPU `device`; for a GPU
    that gpulab does not know, give `peak_tflops`.

    Raises TooFast for more than 100 %, with the likely causes; ValueError if no peak is known; RuntimeError without a
    GPU, unless `peak_tflops` is given.
    """
    count = positive("model_flops", model_flops)
    taken, source = seconds(time)
    name = None if dtype is None else _precision(dtype)
    gpu = _gpu(device)
    if peak_tflops is None:
        peak, where = _peak(gpu, name)
    else:
        peak, where = positive("peak_tflops", peak_tflops), "peak as given"
        _check_dense(peak, gpu, name)
    rate = count / taken / 1e12
    if rate > peak:
        raise TooFast(_too_fast(rate, peak, where, time, gpu, name), rate, peak)
    return MFU(rate / peak, rate, peak, where, source)


def _precision(dtype: str | torch.dtype) -> str:
    text = str(dtype).removeprefix("torch.")
    name = _NAMES.get(text, text)
    if name not in ("fp32", "tf32", "fp16", "bf16"):
        raise ValueError(
            f"dtype is {dtype!r}; it must be 'fp32', 'tf32', 'fp16' or 'bf16' (or torch's dtype): for another give "
            "peak_tflops= and no dtype"
        )
    return name


def _gpu(device: DeviceLike) -> tuple[str, Spec | None] | None:
    """Return the GPU's name, and its row in the table of specifications."""
    import torch

    found = counters.parse_device(device)
    if found == "all":
        raise ValueError('mfu is that of one GPU, so device must not be "all"')
    gpus = counters.find_gpus(found)
    if gpus and gpus[0].type == "cuda":
        product = torch.cuda.get_device_name(gpus[0].number)
        return product, next((row for row in SPECS.values() if row.product == product), None)
    return None


def _peak(gpu: tuple[str, Spec | None] | None, name: str | None) -> tuple[float, str]:
    if gpu is None:
        raise RuntimeError(
            "mfu compares with the peak of a GPU, and no GPU here has a data sheet: give peak_tflops=, or "
            "gpulab.setup() gives you a virtual GPU"
        )
    product, row = gpu
    if row is None:
        raise ValueError(
            f"gpulab has no data sheet of {product!r}: give its dense peak (without sparsity) as peak_tflops=, in 10¹² "
            f"operations per second; known are {', '.join(row.product for row in SPECS.values())}"
        )
    known = {key: value for key, value in row.tflops.items() if value is not None}
    if name is None:
        peaks = ", ".join(f"{key!r} ({value:g})" for key, value in known.items())
        raise ValueError(f"dtype says which peak of {product} to compare with; give one of {peaks}, or peak_tflops=")
    if not row.has(name):
        raise ValueError(
            f"dtype is {name!r}, for which {product} has no hardware, so there is no peak to compare with; "
            "PyTorch computes such products in another way; to compare all the same, give peak_tflops="
        )
    if name not in known:
        raise ValueError(f"the vendor publishes no {name} peak for {product}: give the one you trust as peak_tflops=")
    return known[name], f"{product}, {name}, dense"


def _check_dense(peak: float, gpu: tuple[str, Spec | None] | None, name: str | None) -> None:
    dense = gpu[1].tflops[name] if gpu and gpu[1] and name else None
    if gpu and dense and abs(peak / (2 * dense) - 1) < 0.02:
        raise ValueError(
            f"peak_tflops is {peak:g}, twice the {dense:g} that {gpu[0]} does in {name}: data sheets print the rate "
            "with 2:4 sparsity, which your products do not use; leave peak_tflops out"
        )


def _too_fast(
    rate: float, peak: float, where: str, time: Time, gpu: tuple[str, Spec | None] | None, name: str | None
) -> str:
    """Return the message for a rate above the peak, with its causes, the most likely first."""
    causes = []
    if not isinstance(time, (Timing, Timer)):
        causes.append(
            "The clock was stopped before the GPU was: a launch returns at once. Take the time with timing.measure, or "
            "call torch.cuda.synchronize() before each reading of the clock."
        )
    elif isinstance(time, Timing) and time.after_ms:
        causes.append("Other streams were still running after the end: make the current stream wait for them.")
    elif time.how == "host clock":
        causes.append("The time is that of the host's clock: give timing.measure the GPU as device=.")
    else:
        causes.append(
            "The work was on another stream or another GPU than the events: make the current stream wait for it, or "
            "say which GPU with device=."
        )
    if rate <= 1.2 * peak:
        causes.append(
            "The GPU's clock was above the one its data sheet assumes, as on a GeForce, or on zeros, which take less "
            "power: time on data as yours."
        )
    others = gpu[1].tflops if gpu and gpu[1] else {}
    faster = next((key for key, value in others.items() if value and name and value >= rate > peak), None)
    if faster is not None:
        causes.append(
            f"The products ran in another precision: as {faster} it would be {rate / (others[faster] or 1):.0%} of the "
            "peak (autocast, or TF32 where float32 was meant)."
        )
    causes.append(
        "The count is too high: it includes several steps or several GPUs, or operations that sparsity or a mask saves."
    )
    listed = "\n".join(f"- {cause}" for cause in causes)
    return (
        f"{three_figures(rate)} TFLOP/s is {three_figures(rate / peak)} times the peak of {peak:g} ({where}): the time "
        f"or the count is wrong.\n{listed}"
    )
