"""Hugging Face's published memory and speed of BERT-large on a V100, beside what the virtual GPU gives for the same.

The published figures are the driver's, of 2022's libraries: process memory, with a context of 1343 MiB. Here the model
is today's `transformers`, from its configuration, in shapes only; the training is what the Trainer did then.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

MiB = 1 << 20
CONTEXT_MIB = 1343
WEIGHTS_LOADED_MIB = 2631
LENGTH = 512
STEPS = 3


@dataclass(frozen=True)
class Training:
    """One published row. `batch` x `accumulation` samples are one step."""

    name: str
    published_mib: int
    samples_per_second: float
    batch: int = 4
    accumulation: int = 1
    checkpointing: bool = False
    fp16: bool = False
    optimizer: str = "adam"


TRAININGS = (
    Training("batch 4, fp32, Adam", 14949, 8.86),
    Training("batch 1 × 4 accumulation", 8681, 7.75, 1, 4),
    Training("+ gradient checkpointing", 6775, 5.99, 1, 4, checkpointing=True),
    Training("batch 4, fp16", 13939, 18.64, fp16=True),
    Training("accumulation + checkpointing + fp16", 7275, 10.09, 1, 4, checkpointing=True, fp16=True),
    Training("batch 4, Adafactor", 12295, 7.96, optimizer="adafactor"),
    Training("all + Adafactor", 4847, 9.06, 1, 4, checkpointing=True, fp16=True, optimizer="adafactor"),
)


@dataclass(frozen=True)
class Predicted:
    """Virtual figures in MiB; `process` is the peak reserved and the published context; and samples per second."""

    training: Training
    allocated: float
    reserved: float
    loaded: float  # reserved once the model is on the GPU
    samples_per_second: float

    @property
    def process(self) -> float:
        return self.reserved + CONTEXT_MIB

    @property
    def error(self) -> float:
        return self.process / self.training.published_mib - 1

    @property
    def speed_error(self) -> float:
        return self.samples_per_second / self.training.samples_per_second - 1


def predicted(steps: int = STEPS, accumulation: int = 4) -> Iterator[Predicted]:
    """Every published row, each on a fresh virtual V100. The second step holds the peak of memory, and of micro-batches
    the second does: `accumulation` is the most of them."""
    # Before the scope: importing it takes seconds, and nothing of it belongs to the GPU.
    from transformers import BertForSequenceClassification  # noqa: F401

    for training in TRAININGS:
        yield predict(replace(training, accumulation=min(training.accumulation, accumulation)), steps)


def predict(training: Training, steps: int) -> Predicted:
    """Some steps of one training on a virtual V100 with 16 GB."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from gpulab import VirtualGPU

    large: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    large |= {"intermediate_size": 4096, "attn_implementation": "eager"}
    config = BertConfig(**large)
    with warnings.catch_warnings(), VirtualGPU("V100-16", compute=False):
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            model = BertForSequenceClassification(config)
        model = model.to_empty(device="cuda").train()
        loaded = torch.cuda.memory_reserved() / MiB
        if training.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": True})
        optimizer = _optimizer(training, model)
        scaler = torch.amp.GradScaler("cuda", enabled=training.fp16)
        for _ in range(steps):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(training.accumulation):
                ids = torch.zeros(training.batch, LENGTH, dtype=torch.long, device="cuda")
                labels = torch.zeros(training.batch, dtype=torch.long, device="cuda")
                with torch.autocast("cuda", torch.float16, enabled=training.fp16):
                    loss = model(input_ids=ids, labels=labels).loss / training.accumulation
                scaler.scale(loss).backward()
                del loss
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)  # gradients stayed, as was the default up to torch 1.13
            end.record()
        torch.cuda.synchronize()
        result = Predicted(
            training,
            torch.cuda.max_memory_allocated() / MiB,
            torch.cuda.max_memory_reserved() / MiB,
            loaded,
            training.batch * training.accumulation / start.elapsed_time(end) * 1e3,
        )
        del model, optimizer, scaler, ids, labels
        gc.collect()
    return result


def _optimizer(training: Training, model: Any) -> Any:
    """As the Trainer made them: parameter by parameter, nothing fused."""
    import torch
    from transformers import Adafactor

    if training.optimizer == "adafactor":
        return Adafactor(model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False)
    return torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, foreach=False)
