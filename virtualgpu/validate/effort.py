"""Amount of work for each section of a recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..units import MIB
from . import kernels

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """Amount of work: the defaults for a GPU; less where only the code is tested."""

    events: int = 3000
    largest: int = 200 * MIB
    other_rules: bool = True  # the allocator's, too
    copies: tuple[int, ...] = tuple(int(mib * MIB) for mib in (0.001, 0.01, 0.1, 1, 10, 100, 1000))
    products: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 4097, 8192)
    launches: int = 1000
    elements: int = 1 << 28
    operators: tuple[str, ...] | None = None  # None: all
    models: tuple[str, ...] | None = None
    sizes: int | None = None  # the first so many batch sizes of each model
    cudnn: bool = True
    times: bool = True
    profiled: bool = True  # the kernels of each step; what stands in for a driver has none
    host_calls: int = 500
    new_shapes: int | None = None  # the first so many convolutions; None: all
    shapes: tuple[tuple[int, int, int], ...] = kernels.SHAPES
    touched_mib: tuple[float, ...] = kernels.TOUCHED
    layers: tuple[str, ...] | None = None
    layer_batch: int = 64
    attention: tuple[tuple[int, ...], ...] = kernels.ATTENTION
    small_batches: tuple[int, ...] = (1, 2, 4, 16)
    small_models: tuple[str, ...] = ("resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16")
    sustained_s: float = 32.0  # for each of two loads
    sustained_side: int = 4096
    sustained_images: int = 256


@dataclass(frozen=True)
class Run:
    """The arguments of a section: effort, deadline, a receiver of rows, and a receiver of messages."""

    effort: Effort
    deadline: float
    keep: Callable[[Any], None]
    tell: Tell

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline


# A little of everything, in a minute or two: to see that it works before the time is spent.
QUICK = Effort(
    events=60,
    other_rules=False,
    copies=(1000,),
    products=(16,),
    launches=3,
    elements=1000,
    operators=("linear", "dropout", "sdpa_causal"),
    models=("mlp",),
    sizes=1,
    host_calls=2,
    new_shapes=1,
    shapes=((16, 16, 17),),
    touched_mib=(0.5, 1),
    layers=("depthwise3x3", "batch_norm_channels_last"),
    layer_batch=1,
    attention=((1, 2, 16, 64),),
    small_batches=(1,),
    small_models=("resnet18",),
    sustained_s=0.01,
    sustained_side=64,
    sustained_images=1,
)


def short(error: BaseException) -> str:
    """Its class and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
