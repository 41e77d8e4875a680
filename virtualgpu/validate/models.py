"""Models whose training steps are recorded: each in two sizes, some with checkpointed blocks.

Names and shapes are those of the older recorder from outside the package, and of the recordings of PyTorch's CUDA
code among the tests. Nothing here measures; torchvision is imported when one of its models is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .operators import DEVICE

VISION = ("resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16", "convnext_tiny", "swin_t")
# Classes of the blocks that `_ckpt` recomputes.
BLOCKS = frozenset({"BasicBlock", "Bottleneck", "EncoderBlock", "Block"})


@dataclass(frozen=True)
class Model:
    """`make()` builds it on the host; `batch(n)` gives inputs and labels on the GPU; `sizes` are batch sizes."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    sizes: tuple[int, ...]


class Block(nn.Module):
    """One layer of a decoder-only transformer, norm first."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, 2))
        dropout = self.dropout if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, t, d)), self.dropout, self.training)
        out: Tensor = x + self.mlp(self.ln2(x))
        return out


class GPT(nn.Module):
    """A decoder-only transformer; the defaults are GPT-2 small's."""

    def __init__(
        self,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        vocabulary: int = 50304,
        length: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.ln(x))
        return out


class LSTMNet(nn.Module):
    """Two layers of LSTM, classified by their last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(256, 512, 2, batch_first=True, dropout=0.2), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


class UNet(nn.Module):
    """Down, across and up again with transposed convolutions and group norms; a class for every pixel."""

    def __init__(self, width: int = 32, classes: int = 21) -> None:
        super().__init__()

        def pair(into: int, out: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for source in (into, out):
                layers += [nn.Conv2d(source, out, 3, padding=1), nn.GroupNorm(8, out), nn.SiLU()]
            return nn.Sequential(*layers)

        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
        self.join = nn.ModuleList(pair(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((up(x), kept.pop()), 1))
        out: Tensor = self.head(x).movedim(1, -1)
        return out


class Encoder(nn.Module):
    """PyTorch's own transformer encoder over tokens, classified by the mean; its length is no multiple of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(30522, 512)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6)
        self.head = nn.Linear(512, 4)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.tok(ids)).mean(1))
        return out


def recomputed(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the same model with every block checkpointed."""

    def made() -> nn.Module:
        model = make()
        for block in model.modules():
            if type(block).__name__ in BLOCKS:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return model

    return made


def models() -> Iterator[Model]:
    """All of them."""

    def vision(name: str) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            import torchvision.models

            made: nn.Module = getattr(torchvision.models, name)()
            return made

        return make

    def classes(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, device=DEVICE)

    def images(b: int) -> tuple[Tensor, Tensor]:
        return torch.randn(b, 3, 224, 224, device=DEVICE), classes(1000, b)

    def tokens(b: int) -> tuple[Tensor, Tensor]:
        ids = classes(50304, b, 1024)
        return ids, ids

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))

    yield Model("mlp", mlp, lambda b: (torch.randn(b, 1024, device=DEVICE), classes(10, b)), (64, 4096))
    for name in VISION:
        yield Model(name, vision(name), images, (8, 64, 256) if name == "resnet50" else (8, 64))
    yield Model("gpt2_small", GPT, tokens, (2, 8, 16))
    yield Model("gpt2_small_ckpt", recomputed(GPT), tokens, (8,))
    yield Model("lstm", LSTMNet, lambda b: (torch.randn(b, 128, 256, device=DEVICE), classes(10, b)), (64,))
    yield Model("encoder", Encoder, lambda b: (classes(30522, b, 197), classes(4, b)), (16, 128))
    yield Model("unet", UNet, lambda b: (torch.randn(b, 3, 256, 256, device=DEVICE), classes(21, b, 256, 256)), (4, 32))
    yield Model("resnet50_ckpt", recomputed(vision("resnet50")), images, (64,))
    yield Model("vit_b_16_ckpt", recomputed(vision("vit_b_16")), images, (64,))


def by_name() -> dict[str, Model]:
    return {model.name: model for model in models()}


def optimizers() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    """name -> parameters -> optimizer."""
    return {
        "adamw": lambda p: torch.optim.AdamW(p),
        "sgd_momentum": lambda p: torch.optim.SGD(p, 0.01, 0.9),
        "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
        "adamw_loop": lambda p: torch.optim.AdamW(p, foreach=False),
    }
