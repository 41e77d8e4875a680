"""PyTorch's own estimate of a step, `RuntimeEstimator`'s "operator-level-cost-model", with a GPU of our table.

The formulas are those of `torch.utils._runtime_estimation`: three quarters of the peak for products, the memory's full
rate for all that is read and written, whichever takes longer. They look up the machine's own GPU; here they are given
the data sheet's figures.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.utils import _runtime_estimation as torchs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from virtualgpu.gpus.specs import Spec


class Estimate(TorchDispatchMode):
    """Adds up `seconds` of all operations while it is entered."""

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
