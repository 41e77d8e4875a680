"""A small GPT in the way of nanoGPT: made on the host, fused AdamW, clipping, the best checkpoint kept and loaded.

With `peaks` it says the peak of each step, and begins anew.
"""

import math
import os
import sys
import tempfile
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words=64, width=64, heads=4, layers=2, block=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.words.weight = self.head.weight
        self.block = block
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, ids, targets=None):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if targets is None:
            return self.head(x[:, [-1]]), None
        scores = self.head(x)
        return scores, F.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def generate(self, ids, number, top_k=10):
        for _ in range(number):
            scores = self(ids[:, -self.block :])[0][:, -1]
            least = torch.topk(scores, top_k)[0][:, [-1]]
            scores[scores < least] = -float("inf")
            ids = torch.cat((ids, torch.multinomial(scores.softmax(-1), num_samples=1)), dim=1)
        return ids


precision = sys.argv[1] if len(sys.argv) > 1 else "float32"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = torch.randint(64, (4096,))


def batch():
    at = torch.randint(len(data) - 32, (8,))
    x, y = (torch.stack([data[i + shift : i + shift + 32] for i in at]) for shift in (0, 1))
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


def rate(step, warmup=2, last=6):
    if step < warmup:
        return 1e-3 * (step + 1) / warmup
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (last - warmup))) * 9e-4


model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
context = nullcontext() if precision == "float32" else torch.autocast(device, getattr(torch, precision))


@torch.no_grad()
def evaluate():
    model.eval()
    found = torch.zeros(2)
    for k in range(2):
        with context:
            found[k] = model(*batch())[1].item()
    model.train()
    return found.mean()


best, always, losses = 1e9, True, []
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "ckpt.pt")
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        if step % 3 == 0:
            now = evaluate()
            if now < best or always:
                best = min(best, now)
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
        for _ in range(2):
            with context:
                _, loss = model(*batch())
                loss = loss / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * 2)
        if not math.isfinite(losses[-1]):
            sys.exit("the loss is not finite")
        print(f"step {step}: loss {losses[-1]:.4f}, norm {norm:.2f}")
        if "peaks" in sys.argv:
            print(f"peak {torch.cuda.max_memory_allocated()}")
            torch.cuda.reset_peak_memory_stats()
    checkpoint = torch.load(path, map_location=device)
    again = GPT()
    again.load_state_dict(checkpoint["model"])
    again.to(device)
    optimizer.load_state_dict(checkpoint["optimizer"])
out = again.generate(torch.zeros(1, 1, dtype=torch.long, device=device), 8)
print(f"{device}: best {best:.4f} of step {checkpoint['step']}, {tuple(out.shape)}, {len(out[0].tolist())} words")
