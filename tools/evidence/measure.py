"""Published figures of trainings beside what the virtual GPU gives for the same: one run, in shapes only, of each.

A training that cannot be run says why. `trainings` has what the sources ran, `report` what is said of it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils import _runtime_estimation as torchs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from gpulab import VirtualGPU
from gpulab.data import Training as Row
from virtualgpu.gpus.specs import Spec

from .trainings import CONTEXT_MIB, SOURCES, Training, kept_by_a_layer


@dataclass(frozen=True)
class Predicted:
    """`virtual` is in the row's unit, and so is `formula`, by PyTorch's `RuntimeEstimator`; `busy` is the share of the
    step in which the GPU computes; `grouped`: the model has grouped convolutions that are not depthwise."""

    row: Row
    virtual: float = 0.0
    formula: float = 0.0
    busy: float = 0.0
    grouped: bool = False
    failed: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.virtual / self.row.value

    @property
    def error(self) -> float:
        return self.ratio - 1

    @property
    def kernels(self) -> float:
        """The share of the published step that the virtual kernels cover."""
        return self.busy / self.ratio


def predicted(rows: Iterable[Row], processes: int = 1) -> list[Predicted]:
    """All rows, in their order, in so many processes at once; neighbours of one training are from one run of it."""
    groups = [list(group) for _, group in itertools.groupby(rows, lambda row: row[:3])]
    if processes == 1:
        return [done for group in groups for done in predict(group)]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=40) as pool:
        return [done for found in pool.imap(predict, groups, chunksize=1) for done in found]


def predict(group: Sequence[Row]) -> list[Predicted]:
    """All rows of one training."""
    row = group[0]
    try:
        with warnings.catch_warnings(), _flags():
            warnings.simplefilter("ignore")
            if row.unit == "kept MB":
                return [Predicted(row, kept_by_a_layer(row) / 1e6)]
            return _predict(group, partial(SOURCES[row.source], row))
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
        return [Predicted(row, failed=text) for row in group]
    finally:
        gc.collect()


def _predict(group: Sequence[Row], make: partial[Training]) -> list[Predicted]:
    with VirtualGPU(group[0].gpu, compute=False) as gpu:
        training = make()
        seconds, busy = _timed(gpu, training)
        reserved = torch.cuda.max_memory_reserved()
        values = {
            "allocated MB": torch.cuda.max_memory_allocated() / 1e6,
            "reserved GB": reserved / 1e9,
            "reserved GiB": reserved / 2**30,
            "process MiB": reserved / 2**20 + CONTEXT_MIB,
        } | _speeds(training, seconds)
        times = any(row.unit.endswith("/s") for row in group)
        formulas = _speeds(training, _estimated(gpu, training)) if times else {}
        grouped = training.grouped
        del training
    return [Predicted(row, values[row.unit], formulas.get(row.unit, 0.0), busy / seconds, grouped) for row in group]


def _speeds(training: Training, seconds: float) -> dict[str, float]:
    return {
        "samples/s": training.samples / seconds,
        "tokens/s": training.tokens / seconds,
        "iterations/s": 1 / seconds,
    }


def _timed(gpu: VirtualGPU, training: Training) -> tuple[float, float]:
    """Seconds of a step and of its kernels, after two to warm up; memory's peaks are those of the measured steps."""
    n = training.accumulation
    # Of several, the first after an update makes the gradients: the next, which adds to them, stands for all.
    steps = [(0.0, True), (0.0, n == 1), *([(1 - 1 / n, False)] if n > 1 else []), (1 / n, True)]
    seconds = busy = 0.0
    for share, update in steps:
        if share and not seconds:
            torch.cuda.reset_peak_memory_stats()
        began, before = gpu.clock.host, gpu.clock.busy()
        training.step(update)
        torch.cuda.synchronize()
        seconds += share * (gpu.clock.host - began)
        busy += share * (gpu.clock.busy() - before)
    return seconds, busy


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    """TF32 in convolutions alone, as is the default; a training that allows more sets it itself."""
    flags: dict[Any, str] = {torch.backends.cuda.matmul: "allow_tf32", torch.backends.cudnn: "allow_tf32 benchmark"}
    before = [(where, name, getattr(where, name)) for where, names in flags.items() for name in names.split()]
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def _estimated(gpu: VirtualGPU, training: Training) -> float:
    """Seconds of a step by the formulas."""
    seconds = 0.0
    for share, update in ((1 - 1 / training.accumulation, False), (1 / training.accumulation, True)):
        if share:
            with Estimate(gpu.spec) as estimate:
                training.step(update)
            seconds += share * estimate.seconds
    return seconds


class Estimate(TorchDispatchMode):
    """Adds up `seconds` of all operations by `torch.utils._runtime_estimation`'s "operator-level-cost-model".

    That is three quarters of the peak for products, the memory's full rate for all that is read and written, whichever
    takes longer. It looks up the machine's own GPU; here it is given the data sheet's figures of `spec`.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = spec
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in torchs._IGNORE_OPS:
            return out
        given, made = tree_flatten((args, kwargs))[0], tree_flatten(out)[0]
        dtypes = {t.dtype for t in made if isinstance(t, torch.Tensor) and t.dtype in torchs._FLOAT_TYPES}
        with (
            mock.patch.object(torchs, "get_device_tflops", self._tflops),
            mock.patch.object(torchs, "get_device_dram_gbps", return_value=self.spec.bandwidth_gbps),
        ):
            products = torchs.get_compute_time(packet, args, kwargs, out, dtypes) if len(dtypes) == 1 else 0.0
            moved = torchs.get_transfer_time(given, made)
        self.seconds += max(products, moved) * 1e-9
        return out

    def _tflops(self, dtype: torch.dtype, device: Any = None) -> float:
        name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
        if name == "fp32" and torch.backends.cuda.matmul.allow_tf32:
            name = "tf32"
        return self.spec.tflops[name] or self.spec.tflops["fp32"] or 0.0
