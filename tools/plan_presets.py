"""The planned numbers behind `gpulab.sim.memory_budget`: every preset run through `gpulab.plan`, written as JSON.

A plan takes longer than a slider may, so they are made here, once: `python tools/plan_presets.py` writes
gpulab/sim/memory_budget/plans.json anew (some minutes). A preset is planned in two parts. Its forward and backward
passes, in each precision, with and without checkpointing, at a few batches: between them memory grows in a straight
line. And the step of each optimizer, with gradients that are there from nothing. Of the passes there are one or two
moments: the one with the most activations, and their end, when all gradients are there, where that is higher.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from virtualgpu.planning import Plan, plan

TARGET = Path(__file__).parents[1] / "gpulab" / "sim" / "memory_budget" / "plans.json"
GPU = "A100-80"
PRECISIONS = ("fp32", "amp", "bf16")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, fused=True),
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9, fused=True),
    "adam": functools.partial(torch.optim.AdamW, fused=True),
    "adafactor": torch.optim.Adafactor,
}


class Again(nn.Module):
    """A layer that keeps its input only, and is computed again for the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Any:
        return checkpoint(self.layer, *inputs, use_reentrant=False)


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y: Tensor = self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))
        return x + y


class GPT2(nn.Module):
    """GPT-2 small: 12 layers of width 768 and 12 heads, the head's weights those of the embedding; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.ModuleList(GPTBlock(768, 12) for _ in range(12))
        self.norm = nn.LayerNorm(768)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        z: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + z


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, written out."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Llama(nn.Module):
    """Llama 2's layout of 7 billion weights: 32 layers of width 4096 and 32 heads, 11008 inside the MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32000, 4096)
        self.blocks = nn.ModuleList(LlamaBlock(4096, 32, 11008) for _ in range(32))
        self.norm = nn.RMSNorm(4096, eps=1e-5)
        self.head = nn.Linear(4096, 32000, bias=False)
        self.cos, self.sin = (nn.Buffer(torch.ones(4096, 128), persistent=False) for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        cos, sin = (table[: words.shape[1]] for table in (self.cos, self.sin))
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Preset(NamedTuple):
    """`make(words)` is the model, `layers(model)` the lists whose modules checkpointing computes again.

    `words` is the vocabulary, 0 for images; `sizes` are what is planned, in pairs of a batch and a length: tokens of
    a sample, or pixels on a side of an image. `length` is the usual one.
    """

    make: Callable[[], nn.Module]
    layers: Callable[[Any], list[Any]]
    words: int
    length: int
    sizes: tuple[tuple[int, int], ...]


WORDS = ((1, 128), (1, 256), (1, 512), *((batch, 1024) for batch in (1, 2, 4, 8, 32)))
PRESETS = {
    "resnet50": Preset(
        torchvision.models.resnet50,
        lambda m: [m.layer1, m.layer2, m.layer3, m.layer4],
        0,
        224,
        ((1, 64), (1, 128), *((batch, 224) for batch in (1, 2, 4, 8, 16, 32, 64, 128))),
    ),
    "vit_b_16": Preset(
        torchvision.models.vit_b_16,
        lambda m: [m.encoder.layers],
        0,
        224,
        tuple((batch, 224) for batch in (1, 2, 4, 8, 32, 128)),
    ),
    "gpt2": Preset(GPT2, lambda m: [m.blocks], 50257, 1024, WORDS),
    "llama_7b": Preset(Llama, lambda m: [m.blocks], 32000, 1024, WORDS),
}


def model(preset: Preset, precision: str, again: bool) -> nn.Module:
    """The preset's model on the GPU in training mode."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        with torch.device("cuda"):
            made = preset.make()
    finally:
        torch.set_default_dtype(usual)
    if again:
        for layers in preset.layers(made):
            for index, layer in enumerate(layers):
                layers[index] = Again(layer)
    return made


def passes(name: str, precision: str, again: bool, batch: int, length: int, *, drop: bool = False) -> Plan:
    """The plan of forward and backward pass alone, gradients set to None after them; with `drop` as soon as they come.

    Without, the peak may be at the end, when all gradients are there; with it, it is where activations are.
    """
    preset = PRESETS[name]

    def build(batch: int) -> Callable[[], None]:
        network = model(preset, precision, again)
        for parameter in network.parameters() if drop else ():
            parameter.register_post_accumulate_grad_hook(dropped)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32

        def step() -> None:
            if preset.words:
                x = y = torch.randint(preset.words, (batch, length), device="cuda")
            else:
                x = torch.randn(batch, 3, length, length, device="cuda", dtype=dtype)
                y = torch.randint(1000, (batch,), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
                out = network(x)
                loss = F.cross_entropy(out.flatten(0, -2).float(), y.flatten())
            loss.backward()
            network.zero_grad()

        return step

    return plan(build, batch, GPU)


def dropped(parameter: Tensor) -> None:
    parameter.grad = None


def optimizing(name: str, optimizer: str, precision: str) -> Plan:
    """The plan of the optimizer's step alone, weights in float32 ("fp32") or bfloat16 ("bf16")."""

    def build(_: int) -> Callable[[], None]:
        network = model(PRESETS[name], precision, False)
        chosen = OPTIMIZERS[optimizer](network.parameters())

        def step() -> None:
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            chosen.step()
            chosen.zero_grad()

        return step

    return plan(build, 1, GPU)


def point(name: str, found: Plan, precision: str, length: int) -> dict[str, int]:
    """The bytes at the peak of the passes; what is data counts as activations, what is logits does not."""
    activations, temporaries = found.activations + found.data, found.temporaries
    tokens = PRESETS[name].words * found.batch * length
    # At the loss there are the model's output, its logarithm of a softmax in float32, and the gradients of that and of
    # its input; later the output alone, for a variable of the step holds it.
    output = (4 if precision == "fp32" else 2) * tokens
    at_loss = temporaries >= 8 * tokens
    kept, passing = (output + 4 * tokens, 8 * tokens) if at_loss else (output, 0)
    kept = min(kept, activations)
    return {
        "gradients": found.gradients,
        "activations": activations - kept,
        "logits": kept + passing,
        "temporaries": temporaries - passing,
        "workspaces": found.workspaces,
    }


def points(name: str, precision: str, again: bool, batch: int, length: int) -> dict[str, dict[str, int]]:
    """The highest moment of the passes; where that is their end, also the highest without gradients."""
    found = passes(name, precision, again, batch, length)
    real = point(name, found, precision, length)
    if 2 * found.gradients < found.weights:
        return {"passes": real}
    without = point(name, passes(name, precision, again, batch, length, drop=True), precision, length)
    if 2 * (real["activations"] + real["logits"]) >= without["activations"] + without["logits"]:
        return {"passes": real}
    return {"passes": without, "ends": real}


def state(found: Plan) -> dict[str, int]:
    """Gradients, optimizer state, temporaries; the allocator cuts no block for a small rest, so they vary a little."""
    held = found.weights + found.gradients + found.optimizer_state
    return {
        "gradients": found.gradients,
        "state": found.optimizer_state,
        "temporaries": found.peak_allocated - held,
    }


def facts(name: str) -> dict[str, Any]:
    """What is known of the model without a plan: numbers of parameters, and 8-bit Adam's state."""
    preset = PRESETS[name]
    with torch.device("meta"):
        made = preset.make()
    layers = [layer for group in preset.layers(made) for layer in group]
    inside = {id(module) for layer in layers for module in layer.modules()}
    others = [m for m in made.modules() if id(m) not in inside and not list(m.children())]
    sizes = [parameter.numel() for parameter in made.parameters()]
    return {
        "parameters": sum(sizes),
        "largest_layer": max(sum(p.numel() for p in module.parameters()) for module in [*layers, *others]),
        "layers": len(layers),
        "adam8": sum(map(eight_bit, sizes)),
    }


def eight_bit(elements: int) -> int:
    """Bytes of 8-bit Adam's state for one parameter (arXiv 2110.02861): a float32 for each block of 2048 beside the
    two moments; both moments in float32 where it has less than 4096 elements. Rounded as the allocator does.
    """
    parts = [4 * elements] * 2 if elements < 4096 else [elements, elements, *[4 * -(-elements // 2048)] * 2]
    return sum(-(-part // 512) * 512 for part in parts)


def planned(name: str) -> dict[str, Any]:
    """All that is written of a preset; prints what it is at."""
    preset = PRESETS[name]
    found: dict[str, Any] = {**facts(name), "length": preset.length, "states": {}, "passes": {}, "ends": {}}
    for precision in ("fp32", "bf16"):
        states: dict[str, Any] = {}
        found["states"][precision] = states
        for optimizer in OPTIMIZERS:
            print(name, precision, optimizer, flush=True)
            result = optimizing(name, optimizer, precision)
            states["weights"] = result.weights
            states[optimizer] = state(result)
    for precision in PRECISIONS:
        for again in (False, True):
            kind = f"{precision}{' full' if again else ''}"
            found["passes"][kind], found["ends"][kind] = [], []
            for batch, length in preset.sizes:
                print(name, kind, batch, length, flush=True)
                for moment, point in points(name, precision, again, batch, length).items():
                    found[moment][kind].append({"batch": batch, "length": length, **point})
    return found


def main() -> None:
    names = sys.argv[1:] or list(PRESETS)
    known = json.loads(TARGET.read_text(encoding="utf-8")) if sys.argv[1:] and TARGET.exists() else {"presets": {}}
    presets = known["presets"] | {name: planned(name) for name in names}
    made = f"tools/plan_presets.py, torch {torch.__version__.partition('+')[0]}, on a virtual {GPU}"
    text = json.dumps({"made": made, "presets": {name: presets[name] for name in PRESETS if name in presets}}, indent=1)
    # a point on a line of its own
    text = re.sub(r"\{[^{}]*\}", lambda match: re.sub(r"\s+", " ", match[0]), text)
    TARGET.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
