"""What fills a GPU's memory in training, on one rank or many, and which GPUs have enough of it."""

from __future__ import annotations

from ..base.controls import Sizes
from ..base.simulator import Choice, Simulator, Slider, State
from .job import PARALLEL
from .model import MODELS, Budget, limits, simulate
from .needs import CHECKPOINTING, OPTIMIZERS, PRECISIONS
from .picture import draw


def _state(name: str, ranks: int, parallel: str, note: str) -> State:
    job = {"model": "llama_7b", "optimizer": "adam", "precision": "master", "checkpointing": "none", "batch": 1}
    return State(name, job | {"sequence": 2048, "ranks": ranks, "parallel": parallel}, note)


class MemoryBudget(Simulator[Budget]):
    """What fills a GPU in training: which part grows with the batch, and which part ranks can share."""

    controls = (
        Choice("model", "Model", MODELS, "llama_7b"),
        Choice("optimizer", "Optimizer", OPTIMIZERS, "adam"),
        Choice("precision", "Precision", PRECISIONS, "master"),
        Choice("checkpointing", "Checkpointing", CHECKPOINTING, "none"),
        Sizes("batch", "Batch per rank", 1, 1024, 1, stops=tuple(2**i for i in range(11))),
        Slider("sequence", "Sequence", 0, 32_768, 2048, unit="tokens", step=128),
        Slider("resolution", "Resolution", 0, 512, 224, unit="pixels", step=32),
        Sizes("ranks", "Ranks", 1, 1024, 1, stops=tuple(2**i for i in range(11))),
        Choice("parallel", "Parallelism", PARALLEL, "ddp"),
        Slider("layers", "Layers", 1, 128, 24),
        Slider("hidden", "Width", 256, 16_384, 2048, step=128),
    )
    primary = ("model", "batch", "ranks")
    states = (
        _state(
            "One GPU", 1, "ddp", "Pull the blue dot: which parts grow? From which batch on is the upper bar longer?"
        ),
        _state("8 ranks, DDP", 8, "ddp", "What did DDP add to the bar? Click ZeRO-1: which part shrinks?"),
        _state(
            "8 ranks, FSDP",
            8,
            "fsdp",
            "Eight ranks share the model’s states. Take 64 ranks: which parts do not shrink?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "Ranks divide the numbers of one GPU, gradients are None after each step, the optimizer is fused."
        " (PyTorch's default takes about the weights' size more in its step.) Left out: the allocator's reserve (tight:"
        " above 95%), ZeRO's and FSDP's buffers of fixed size. Formulas know no temporaries."
    )
