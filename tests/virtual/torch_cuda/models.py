"""The training steps that record_steps.py runs: those of the recorder for real GPUs, to compare the two row by row."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda:0"


class Block(nn.Module):
    def __init__(self, d, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.ln1, self.ln2, self.qkv, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(p))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, 2))
        p = self.p if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, t, d)), self.p, self.training)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, d=768, layers=12, heads=12, vocabulary=50304, length=1024, p=0.1, checkpointing=False):
        super().__init__()
        self.checkpointing = checkpointing
        self.tok, self.pos = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, heads, p) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.ln(x))


class LSTMNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(256, 512, 2, batch_first=True, dropout=0.2), nn.Linear(512, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def cases():
    """(name, function that makes the model, function batch size -> inputs and labels, batch sizes)."""
    import torchvision.models

    def classes(high, b):
        return torch.randint(0, high, (b,), device=DEVICE)

    def mlp():
        return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))

    def images(b):
        return torch.randn(b, 3, 224, 224, device=DEVICE), classes(1000, b)

    def tokens(b):
        return (torch.randint(0, 50304, (b, 1024), device=DEVICE),) * 2

    yield "mlp", mlp, lambda b: (torch.randn(b, 1024, device=DEVICE), classes(10, b)), (64, 4096)
    for name in ("resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16", "convnext_tiny", "swin_t"):
        yield name, getattr(torchvision.models, name), images, (8, 64, 256) if name == "resnet50" else (8, 64)
    yield "gpt2_small", GPT, tokens, (2, 8, 16)
    yield "gpt2_small_ckpt", lambda: GPT(checkpointing=True), tokens, (8,)
    yield "lstm", LSTMNet, lambda b: (torch.randn(b, 128, 256, device=DEVICE), classes(10, b)), (64,)
