"""NVIDIA's published speeds of ResNet-50, beside what the virtual GPU's clock gives for the same model.

Published by NVIDIA DeepLearningExamples (ResNet-50 v1.5, PyTorch) for their container: fused kernels and a data
pipeline on the GPU, none of which is mirrored. Here it is torchvision's model, in shapes only, with one batch.
Inference with one image is bound by the host, of which nothing is known: the rows show that AMP is no gain there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Training:
    """One published row; without `trains` it is inference."""

    name: str
    gpu: str
    images_per_second: float
    batch: int
    amp: bool = False
    tf32: bool = False
    trains: bool = True


TRAININGS = (
    Training("V100-16, fp32", "V100-16", 367, 128),
    Training("V100-16, AMP", "V100-16", 1200, 256, amp=True),
    Training("A100-80, TF32", "A100-80", 938, 256, tf32=True),
    Training("A100-80, AMP", "A100-80", 2470, 256, amp=True),
)
INFERENCES = (
    Training("inference, T4, fp32, batch 256", "T4", 415, 256, trains=False),
    Training("inference, T4, AMP, batch 256", "T4", 1198, 256, amp=True, trains=False),
    Training("inference, T4, fp32, one image", "T4", 1 / 10.7e-3, 1, trains=False),
    Training("inference, T4, AMP, one image", "T4", 1 / 13.0e-3, 1, amp=True, trains=False),
    Training("inference, V100-16, fp32, one image", "V100-16", 1 / 10.4e-3, 1, trains=False),
    Training("inference, V100-16, AMP, one image", "V100-16", 1 / 12.8e-3, 1, amp=True, trains=False),
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
    for training in TRAININGS + INFERENCES:
        yield predict(training)


def predict(training: Training) -> Predicted:
    """The third step of a training with SGD, or of inference; AMP in fp16 with channels last, as NVIDIA's scripts."""
    import torch
    import torchvision

    from gpulab import VirtualGPU

    flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    form = torch.channels_last if training.amp else torch.contiguous_format
    with warnings.catch_warnings(), VirtualGPU(training.gpu, compute=False) as gpu:
        warnings.simplefilter("ignore")
        try:
            for flag in flags:
                flag.allow_tf32 = training.tf32
            model = torchvision.models.resnet50().to("cuda", memory_format=form).train(training.trains)
            images = torch.zeros(training.batch, 3, 224, 224, device="cuda").to(memory_format=form)
            labels = torch.zeros(training.batch, dtype=torch.long, device="cuda")
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            scaler = torch.amp.GradScaler("cuda", enabled=training.amp)
            for _ in range(3):
                began = gpu.clock.host
                with torch.set_grad_enabled(training.trains), torch.autocast("cuda", enabled=training.amp):
                    out = model(images)
                    if training.trains:
                        loss = torch.nn.functional.cross_entropy(out, labels)
                if training.trains:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                torch.cuda.synchronize()
            seconds = gpu.clock.host - began
        finally:
            for flag, value in zip(flags, before, strict=True):
                flag.allow_tf32 = value
    return Predicted(training, training.batch / seconds)


def loop(name: str, size: int = 4096, seconds: float = 1.0) -> float:
    """TFLOP/s of fp16 products of `size`³ that follow one another for `seconds`: what the board's power allows."""
    import torch

    from gpulab import VirtualGPU

    with VirtualGPU(name, compute=False) as gpu:
        a = torch.empty(size, size, dtype=torch.float16, device="cuda")
        a @ a
        torch.cuda.synchronize()
        began, products = gpu.clock.host, 0
        while gpu.clock.now() - began < seconds:
            a @ a
            products += 1
        return products * 2 * size**3 / (gpu.clock.now() - began) / 1e12
