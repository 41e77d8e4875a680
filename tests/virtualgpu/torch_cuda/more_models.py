"""Further kinds of model, for the memory of their training steps alone; record_models.py beside this records them.

Small, but each with the operations that its kind has beside those of virtualgpu.validate.models. No size depends on a
value: experts take a fixed number of tokens, and recurrent layers are written by hand (cuDNN's reserve is unknown to
the stand-in).
"""

import torch
from torch import nn
from torch.nn import functional as F

from virtualgpu.validate.models import DEVICE, Model


def heads_of(x, heads):
    """(batch, length, heads * width) -> (batch, heads, length, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x):
    """The way back."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Self-attention of a norm's output."""

    def __init__(self, width, heads, *, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


# -- language --------------------------------------------------------------------------------------------------------


def rotated(x, angles):
    """Rotary positions: pairs (first half, second half) of every head are turned by angles of (length, width / 2)."""
    cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions and a gated MLP, RMS norm first."""

    def __init__(self, width, heads, shared):
        super().__init__()
        self.heads, self.shared = heads, shared
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = (nn.Linear(width, n * width // heads, bias=False) for n in (heads, 2 * shared))
        self.out, self.down = nn.Linear(width, width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))

    def forward(self, x, angles):
        y = self.norm1(x)
        q, (k, v) = heads_of(self.q(y), self.heads), heads_of(self.kv(y), 2 * self.shared).chunk(2, 1)
        q, k = rotated(q, angles), rotated(k, angles)
        x = x + self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width=256, layers=2, heads=8, shared=2, vocabulary=8000):
        super().__init__()
        self.tok, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, shared) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("turns", 10000.0 ** -torch.linspace(0, 1, width // heads // 2))

    def forward(self, ids):
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device), self.turns)
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


class Translator(nn.Module):
    """PyTorch's own encoder and decoder, with a causal mask and masks of what is padded; source and target in one."""

    def __init__(self, width=256, vocabulary=8000):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(512, width)
        self.layers = nn.Transformer(width, 8, 2, 2, 1024, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        source, target = ids.unbind(1)
        positions = self.pos(torch.arange(ids.shape[2], device=ids.device))
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[2], device=ids.device)
        padded = {"src_key_padding_mask": source == 0, "memory_key_padding_mask": source == 0}
        embedded = self.tok(source) + positions, self.tok(target) + positions
        return self.head(self.layers(*embedded, tgt_mask=causal, tgt_is_causal=True, **padded))


class T5Attention(nn.Module):
    """Of itself or of an encoder's states, without scaling; a learned bias for each distance between positions."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, states=None, bias=None):
        y = self.norm(x)
        states = y if states is None else states
        q, k, v = (heads_of(f(t), self.heads) for f, t in ((self.q, y), (self.k, states), (self.v, states)))
        y = self.out(joined(F.scaled_dot_product_attention(q, k, v, bias, scale=1.0)))
        return x + F.dropout(y, 0.1, self.training)


class T5Stack(nn.Module):
    """Encoder, or decoder where it has `states` to look at."""

    def __init__(self, width, layers, heads, *, crossed):
        super().__init__()
        self.bias, self.norm = nn.Embedding(64, heads), nn.RMSNorm(width)
        self.own = nn.ModuleList(T5Attention(width, heads) for _ in range(layers))
        self.cross = nn.ModuleList(T5Attention(width, heads) for _ in range(layers if crossed else 0))
        self.mlp = nn.ModuleList(
            nn.Sequential(
                nn.RMSNorm(width), nn.Linear(width, 4 * width, bias=False), nn.ReLU(), nn.Dropout(0.1),
                nn.Linear(4 * width, width, bias=False),
            ) for _ in range(layers)
        )  # fmt: skip

    def forward(self, x, states=None):
        at = torch.arange(x.shape[1], device=x.device)
        far = (at[None, :] - at[:, None]).clamp(-32, 31) + 32
        bias = self.bias(far).permute(2, 0, 1).unsqueeze(0)
        if states is not None:
            bias = bias.masked_fill(at[None, :] > at[:, None], float("-inf"))
        for i, (own, mlp) in enumerate(zip(self.own, self.mlp, strict=True)):
            x = own(x, bias=bias)
            if states is not None:
                x = self.cross[i](x, states)
            x = x + mlp(x)
        return F.dropout(self.norm(x), 0.1, self.training)


class T5(nn.Module):
    """Encoder and decoder with tied embeddings; source and target in one."""

    def __init__(self, width=256, layers=2, heads=4, vocabulary=8000):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.encoder = T5Stack(width, layers, heads, crossed=False)
        self.decoder = T5Stack(width, layers, heads, crossed=True)

    def forward(self, ids):
        source, target = ids.unbind(1)
        x = self.decoder(self.tok(target), self.encoder(self.tok(source)))
        return F.linear(x * x.shape[-1] ** -0.5, self.tok.weight)


class Experts(nn.Module):
    """The best two of several MLPs for each token; each takes as many tokens as it has places, the rest go by."""

    def __init__(self, width, experts, top=2):
        super().__init__()
        self.experts, self.top = experts, top
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.into = nn.Parameter(0.02 * torch.randn(experts, width, 4 * width))
        self.back = nn.Parameter(0.02 * torch.randn(experts, 4 * width, width))

    def forward(self, x):
        tokens = self.norm(x).flatten(0, 1)
        places = 2 * self.top * len(tokens) // self.experts
        shares, chosen = self.router(tokens).softmax(-1).topk(self.top)
        shares = shares / shares.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, self.experts)
        place = hot.flatten(0, 1).cumsum(0).view_as(hot).mul(hot).sum(-1) - 1
        hot = hot * (place < places)[..., None]
        at = F.one_hot(place.clamp(max=places - 1), places)
        combine = torch.einsum("nk,nke,nkp->nep", shares, hot.to(shares.dtype), at.to(shares.dtype))
        y = torch.einsum("nep,nd->epd", (combine > 0).to(tokens.dtype), tokens)
        y = torch.einsum("epd,edh->eph", y, self.into)
        y = torch.einsum("eph,ehd->epd", F.gelu(y), self.back)
        return torch.einsum("nep,epd->nd", combine, y).view_as(x)


class MixtureOfExperts(nn.Module):
    """A decoder that has experts in place of MLPs."""

    def __init__(self, width=256, vocabulary=8000):
        super().__init__()
        self.tok, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.attention = nn.ModuleList(Attention(width, 8, causal=True) for _ in range(2))
        self.experts = nn.ModuleList(Experts(width, 8) for _ in range(2))

    def forward(self, ids):
        x = self.tok(ids)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            x = x + attention(x)
            x = x + experts(x)
        return self.head(x)


class Recurrent(nn.Module):
    """A language model of two layers of LSTM cells, step by step, with tied embeddings."""

    def __init__(self, width=256, layers=2, vocabulary=8000):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.into = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.again = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))

    def forward(self, ids):
        x = self.tok(ids)
        for into, again in zip(self.into, self.again, strict=True):
            h = c = x.new_zeros(x.shape[0], x.shape[2])
            steps = []
            for of_input in into(x).unbind(1):
                i, f, g, o = (of_input + again(h)).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                steps.append(h)
            x = F.dropout(torch.stack(steps, 1), 0.2, self.training)
        return F.linear(x, self.tok.weight)


class Cells(nn.Module):
    """Of PyTorch's own cells, which CUDA fuses: a GRU below an LSTM."""

    def __init__(self, width=256, vocabulary=8000):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.gru, self.lstm = nn.GRUCell(width, width), nn.LSTMCell(width, width)

    def forward(self, ids):
        h = state = None
        steps = []
        for token in self.tok(ids).unbind(1):
            h = self.gru(token, h)
            state = self.lstm(h, state)
            steps.append(state[0])
        return F.linear(torch.stack(steps, 1), self.tok.weight)


class Selective(nn.Module):
    """Mamba's block: a gated, causal convolution and a scan whose decay depends on the input, chunk after chunk."""

    def __init__(self, width, states=8, rank=16, chunk=32):
        super().__init__()
        inner = 2 * width
        self.chunk, self.sizes = chunk, (rank, states, states)
        self.norm, self.into, self.back = nn.RMSNorm(width), nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select, self.step = nn.Linear(inner, sum(self.sizes), bias=False), nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x):
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : y.shape[1]].transpose(1, 2))
        step, write, read = self.select(y).split(self.sizes, -1)
        step = F.softplus(self.step(step))
        decay = step[..., None] * -self.log_decay.exp()
        new = (step * y)[..., None] * write[:, :, None]
        state, out = torch.zeros_like(new[:, 0]), []
        for fall, come, look in zip(*(t.split(self.chunk, 1) for t in (decay, new, read)), strict=True):
            fallen = fall.cumsum(1)
            states = fallen.exp() * (state[:, None] + (come * (-fallen).exp()).cumsum(1))
            out.append((states * look[:, :, None]).sum(-1))
            state = states[:, -1]
        return x + self.back((torch.cat(out, 1) + y * self.skip) * F.silu(gate))


class Mamba(nn.Module):
    def __init__(self, width=128, layers=2, vocabulary=8000):
        super().__init__()
        self.tok, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.Sequential(*(Selective(width) for _ in range(layers)), nn.RMSNorm(width))

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids)))


# -- images ----------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Of a diffusion model: two convolutions after group norms, with the time added between them."""

    def __init__(self, into, out, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(16, into), nn.Conv2d(into, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(16, out), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.skip = nn.Linear(time, out), nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.dropout(F.silu(self.norm2(y)), 0.1, self.training))


class Spatial(nn.Module):
    """Self-attention of all pixels."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(16, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1))
        return x + self.out(joined(F.scaled_dot_product_attention(q, k, v)).transpose(1, 2).unflatten(2, x.shape[2:]))


class Diffusion(nn.Module):
    """A U-Net with the time of a noised image, attention at the bottom, and a class for every pixel of it."""

    def __init__(self, width=64, classes=8):
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, classes, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width, time), Residual(width, 2 * width, time)])
        self.shrink = nn.ModuleList(nn.Conv2d(n * width, n * width, 3, 2, 1) for n in (1, 2))
        self.middle = nn.ModuleList(Residual(2 * width, 2 * width, time) for _ in range(2))
        self.attend = Spatial(2 * width, 4)
        self.wide = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(2))
        self.up = nn.ModuleList([Residual(4 * width, 2 * width, time), Residual(3 * width, width, time)])
        self.norm = nn.GroupNorm(16, width)

    def forward(self, x):
        steps = torch.randint(0, 1000, (len(x),), device=x.device)
        angles = steps[:, None] * 1000.0 ** -torch.linspace(0, 1, self.width // 2, device=x.device)
        time = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        x, kept = self.first(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.middle[1](self.attend(self.middle[0](x, time)), time)
        for wide, block in zip(self.wide, self.up, strict=True):
            x = wide(F.interpolate(x, scale_factor=2.0))
            x = block(torch.cat((x, kept.pop()), 1), time)
        return self.last(F.silu(self.norm(x))).movedim(1, -1)


class Scaled(nn.Module):
    """A residual branch, scaled for each channel, and left out for some of the images."""

    def __init__(self, branch, width, p):
        super().__init__()
        self.branch, self.p, self.scale = branch, p, nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x):
        y = self.branch(x) * self.scale
        if self.training:
            y = y * y.new_empty(len(y), 1, 1).bernoulli_(1 - self.p).div_(1 - self.p)
        return x + y


class Registers(nn.Module):
    """A vision transformer with a class token and four registers beside the patches; its length is odd."""

    def __init__(self, width=192, layers=3, registers=4, classes=100):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token, self.registers = (nn.Parameter(0.02 * torch.randn(1, n, width)) for n in (1, registers))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 14 * 14 + 1, width))
        self.blocks = nn.Sequential()
        for _ in range(layers):
            mlp = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            self.blocks.extend(Scaled(m, width, 0.1) for m in (Attention(width, 3), nn.Sequential(*mlp)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.pos
        x = torch.cat((x[:, :1], self.registers.expand(len(x), -1, -1), x[:, 1:]), 1)
        x = self.norm(self.blocks(x))
        return self.head(torch.cat((x[:, 0], x[:, 1 + self.registers.shape[1] :].mean(1)), -1))


class WithAuxiliary(nn.Module):
    """One output for a model with two while it trains; a pixel's classes come last."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        main, other = out.values() if isinstance(out, dict) else out
        return (main + 0.4 * other).movedim(1, -1)


def models():
    """All of them, in the order in which they are recorded."""

    def vision(name, **settings):
        def make():
            import torchvision.models

            made = torchvision.models.get_model(name, **settings)
            return WithAuxiliary(made) if "aux" in str(settings) else made

        return make

    def dense():
        from torchvision.models import DenseNet

        return DenseNet(16, (2, 3, 3, 2), 32, num_classes=100)

    def regular():
        from torchvision.models.regnet import BlockParams, RegNet

        return RegNet(
            BlockParams([1, 2, 2, 1], [48, 104, 208, 440], [8] * 4, [1.0] * 4, [2] * 4, 0.25), num_classes=100
        )

    def efficient():
        from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

        stages = FusedMBConvConfig(1, 3, 1, 32, 24, 1), FusedMBConvConfig(4, 3, 2, 24, 48, 2)
        return EfficientNet([*stages, MBConvConfig(4, 3, 2, 48, 64, 2), MBConvConfig(6, 5, 2, 64, 112, 2)], 0.2)

    def classes(high, *shape):
        return torch.randint(0, high, shape, device=DEVICE)

    def tokens(length):
        return lambda b: (classes(8000, b, length), classes(8000, b, length))

    def pairs(length):
        return lambda b: (classes(8000, b, 2, length), classes(8000, b, length))

    def images(size, high=100, pixels=()):
        return lambda b: (torch.randn(b, 3, size, size, device=DEVICE), classes(high, b, *pixels))

    deeplab = vision("deeplabv3_resnet50", weights_backbone=None, num_classes=21, aux_loss=True)
    inception = vision("inception_v3", aux_logits=True, init_weights=False, num_classes=100)
    yield Model("llama", Llama, tokens(256), (8,))
    yield Model("transformer", Translator, pairs(100), (16,))
    yield Model("t5", T5, pairs(48), (32,))
    yield Model("mixture_of_experts", MixtureOfExperts, tokens(256), (8,))
    yield Model("lstm_by_hand", Recurrent, tokens(12), (128,))
    yield Model("recurrent_cells", Cells, tokens(12), (128,))
    yield Model("mamba", Mamba, tokens(128), (8,))
    yield Model("diffusion", Diffusion, images(64, 8, (64, 64)), (16,))
    yield Model("vit_registers", Registers, images(224), (16,))
    yield Model("densenet", dense, images(224), (16,))
    yield Model("regnet", regular, images(224), (16,))
    yield Model("efficientnet", efficient, images(224), (16,))
    yield Model("inception", inception, images(299), (8,))
    yield Model("deeplab", deeplab, images(129, 21, (129, 129)), (4,))
