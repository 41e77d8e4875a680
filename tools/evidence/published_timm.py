"""The published speeds of timm's image models, beside what the virtual GPU's clock gives for the same steps.

Which rows are run is decided by a hash of the model's name and its image size: rows are taken in the order of that
hash, half of them (an even hash) to look at while rules are made, half (an odd one) to judge them by. A row that cannot
be run says why.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gpulab import data
from gpulab.data import Measurement

Half = Literal["look", "judge"]


class Setting(NamedTuple):
    """How timm's benchmark.py was run: `name` as in the table, the GPU, and what the task is."""

    name: str
    gpu: str
    train: bool
    channels_last: bool
    fused_attention: bool


SETTINGS = (
    Setting("train-amp-nhwc-pt112-cu113-rtx3090", "RTX3090", True, True, False),
    Setting("train-amp-nchw-pt112-cu113-rtx3090", "RTX3090", True, False, False),
    Setting("infer-amp-nhwc-pt240-cu124-rtx3090", "RTX3090", False, True, True),
    Setting("infer-amp-nchw-pt240-cu124-rtx3090", "RTX3090", False, False, True),
    Setting("infer-amp-nhwc-pt240-cu124-rtx4090", "RTX4090", False, True, True),
    Setting("infer-amp-nchw-pt240-cu124-rtx4090", "RTX4090", False, False, True),
    Setting("infer-amp-nchw-pt291-cu128-4090", "RTX4090", False, False, True),
    Setting("infer-amp-nchw-pt291-cu130-5090", "RTX5090", False, False, True),
    Setting("infer-amp-nchw-pt291-cu130-pro6000maxq", "RTXPRO6000-MAXQ", False, False, True),
)


@dataclass(frozen=True)
class Predicted:
    """`virtual` and `formula` in samples per second; `busy` is the share of the step in which the GPU computes;
    `grouped`: whether the model has grouped convolutions that are not depthwise."""

    row: Measurement
    virtual: float = 0.0
    formula: float = 0.0
    busy: float = 0.0
    grouped: bool = False
    failed: str = ""

    @property
    def ratio(self) -> float:
        """Predicted speed over the published one."""
        return self.virtual / self.row.samples_per_s

    @property
    def formula_ratio(self) -> float:
        return self.formula / self.row.samples_per_s


def _hash(row: Measurement) -> int:
    return int(hashlib.sha256(f"{row.model} {row.image_size}".encode()).hexdigest(), 16)


def half_of(row: Measurement) -> Half:
    """Whether a row is to look at, or to judge by."""
    return "judge" if _hash(row) % 2 else "look"


def sample(setting: Setting, count: int, half: Half) -> list[Measurement]:
    """The first `count` rows of one half of a setting, in the order of their hashes."""
    rows = [row for row in data.published(setting.name) if half_of(row) == half]
    return sorted(rows, key=_hash)[:count]


def predict(row: Measurement) -> Predicted:
    """The third step of one row, on a virtual GPU without values."""
    [setting] = [setting for setting in SETTINGS if setting.name == row.setting]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _predict(row, setting)
    except Exception as error:
        return Predicted(row, failed=f"{type(error).__name__}: {str(error).splitlines()[0][:150]}")
    finally:
        gc.collect()


def _predict(row: Measurement, setting: Setting) -> Predicted:
    import timm
    import torch
    from timm.layers.config import set_fused_attn

    from gpulab import VirtualGPU

    from . import formulas

    set_fused_attn(setting.fused_attention)
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    with _flags(), VirtualGPU(setting.gpu, compute=False) as gpu:
        with torch.device("meta"):
            model = timm.create_model(row.model, **_sized(row))
        model = model.to_empty(device="cuda").to(memory_format=layout)
        size = (row.batch, 3, row.image_size, row.image_size)
        images = torch.empty(size, device="cuda").to(memory_format=layout)
        step = _training(model, images) if setting.train else _inference(model, images)
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        began, busy = gpu.clock.host, gpu.clock.busy()
        step()
        torch.cuda.synchronize()
        seconds, busy = gpu.clock.host - began, gpu.clock.busy() - busy
        with formulas.Estimate(gpu.spec) as estimate:
            step()
        convolutions = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
        grouped = any(1 < layer.groups < layer.in_channels for layer in convolutions)
        del model, images, step, convolutions
    return Predicted(row, row.batch / seconds, row.batch / estimate.seconds, busy / seconds, grouped)


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    """As benchmark.py sets them."""
    import torch

    flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags], torch.backends.cudnn.benchmark
    try:
        for flag in flags:
            flag.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        yield
    finally:
        for flag, value in zip(flags, before[0], strict=True):
            flag.allow_tf32 = value
        torch.backends.cudnn.benchmark = before[1]


def _sized(row: Measurement) -> dict[str, Any]:
    """What makes a model for the row's images, where those it is made for have another size."""
    import timm

    usual = timm.models.get_pretrained_cfg(row.model, allow_unregistered=True)
    if usual is None or not usual.fixed_input_size or usual.input_size[-1] == row.image_size:
        return {}
    return {"img_size": row.image_size}


def _inference(model: Any, images: Any) -> Any:
    import torch

    model.eval()

    @torch.inference_mode()
    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            model(images)

    return step


def _training(model: Any, images: Any) -> Any:
    """SGD with Nesterov momentum, parameter by parameter as in PyTorch 1.12; gradients are zeroed and kept."""
    import torch

    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False)
    classes = model.num_classes

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            out = model(images)
            out = out[0] if isinstance(out, (tuple, list)) else out
            loss = torch.nn.functional.cross_entropy(out, torch.zeros(len(images), dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()

    if not classes:
        raise ValueError("the model has no classes")
    return step


def all_of(rows: Sequence[Measurement], processes: int = 2) -> list[Predicted]:
    """Every row, in `processes` processes at once."""
    import multiprocessing

    if processes == 1:
        return [predict(row) for row in rows]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=40) as pool:
        return list(pool.imap(predict, rows, chunksize=1))
