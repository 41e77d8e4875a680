"""A GPT trainer: gradient accumulation, autocast with a scaler, clipping, a warm-up."""

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocabulary: int = 128
    context: int = 64
    layers: int = 2
    heads: int = 4
    width: int = 128
    dropout: float = 0.1


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attention(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


config = Config()
steps, accumulation, batch, clip, peak_rate = 4, 4, 8, 1.0, 1e-3
for override in sys.argv[1:]:
    name, _, value = override.removeprefix("--").partition("=")
    globals()[name] = type(globals()[name])(value)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
data = torch.randint(0, config.vocabulary, (10_000,))


def get_batch():
    starts = torch.randint(len(data) - config.context - 1, (batch,))
    x = torch.stack([data[i : i + config.context] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + config.context] for i in starts])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


model = GPT(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, betas=(0.9, 0.95), fused=device == "cuda")
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
autocast = torch.autocast("cuda", torch.float16) if device == "cuda" else nullcontext()

for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = peak_rate * min(1, (step + 1) / 2) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    for _ in range(accumulation):
        x, y = get_batch()
        with autocast:
            loss = model(x, y) / accumulation
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step}: loss {loss.item() * accumulation:.4f}, {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")
    torch.cuda.reset_peak_memory_stats()
