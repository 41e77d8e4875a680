"""NVIDIA's published training speed of ResNet-50, beside what the virtual GPU's clock gives for the same model.

Published by NVIDIA DeepLearningExamples (ResNet-50 v1.5, PyTorch) for their container: fused kernels and a data
pipeline on the GPU, none of which is mirrored. Here it is torchvision's model, in shapes only, with one batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Training:
    """One published row."""

    name: str
    gpu: str
    images_per_second: float
    batch: int
    amp: bool = False
    tf32: bool = False


TRAININGS = (
    Training("V100-16, fp32", "V100-16", 367, 128),
    Training("V100-16, AMP", "V100-16", 1200, 256, amp=True),
    Training("A100-80, TF32", "A100-80", 938, 256, tf32=True),
    Training("A100-80, AMP", "A100-80", 2470, 256, amp=True),
)


@dataclass(frozen=True)
class Predicted:
    """`images_per_second` is virtual."""

    training: Training
    images_per_second: float

    @property
    def error(self) -> float:
        return self.images_per_second / self.training.images_per_second - 1


def predicted() -> Iterator[Predicted]:
    """Every published row."""
    for training in TRAININGS:
        yield predict(training)


def predict(training: Training) -> Predicted:
    """The second step of a training with SGD; AMP in fp16 with channels last, as NVIDIA's scripts do."""
    import torch
    import torchvision

    from gpulab import VirtualGPU

    flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    form = torch.channels_last if training.amp else torch.contiguous_format
    with warnings.catch_warnings(), VirtualGPU(training.gpu, compute=False):
        warnings.simplefilter("ignore")
        try:
            for flag in flags:
                flag.allow_tf32 = training.tf32
            model = torchvision.models.resnet50().to("cuda", memory_format=form)
            images = torch.zeros(training.batch, 3, 224, 224, device="cuda").to(memory_format=form)
            labels = torch.zeros(training.batch, dtype=torch.long, device="cuda")
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            scaler = torch.amp.GradScaler("cuda", enabled=training.amp)
            for _ in range(2):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                with torch.autocast("cuda", torch.float16, enabled=training.amp):
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                end.record()
            torch.cuda.synchronize()
        finally:
            for flag, value in zip(flags, before, strict=True):
                flag.allow_tf32 = value
    return Predicted(training, training.batch / start.elapsed_time(end) * 1e3)
