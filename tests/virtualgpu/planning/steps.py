"""Training steps of the kinds that people write, as `build(batch)` functions."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from virtualgpu.gpu import VirtualGPU

MIB = 2**20


def rounded(tensors):
    """What the allocator takes for them."""
    return sum(-(-t.numel() * t.element_size() // 512) * 512 for t in tensors)


def steady_peak(build, batch, *, compute=False):
    """The peaks of a third step on a T4, allocated and reserved, as `torch.cuda` counts them."""
    with VirtualGPU("T4", compute=compute):
        step = build(batch)
        step()
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def spike():
    """Half a GiB for a moment: the peak is here, whatever else a step does."""
    torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")


def stack(width=256, depth=4, device="cuda", dtype=None):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width, device=device, dtype=dtype), nn.ReLU())]
    return nn.Sequential(*layers)


def mlp(batch, *, width=256, depth=4, optimizer=torch.optim.AdamW, device="cuda", **options):
    model = stack(width, depth, device).to("cuda")
    trained = optimizer(model.parameters(), **options)

    def step():
        x = torch.randn(batch, width, device="cuda")
        model(x).sum().backward()
        trained.step()
        trained.zero_grad()

    return step


def mixed_precision(batch):
    """Autocast in float16, a scaler, clipping."""
    model = stack().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        x = torch.randn(batch, 256, device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step


def accumulating(batch, micro_batches):
    model = stack()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for _ in range(micro_batches):
            x = torch.randn(batch // micro_batches, 256, device="cuda")
            loss = model(x).sum() / micro_batches
            spike()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(stack(256, 2)) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def checkpointing(batch, reentrant):
    """`reentrant` None: without checkpointing."""
    model = Checkpointed(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        x = torch.randn(batch, 256, device="cuda", requires_grad=True)
        loss = model(x).sum()
        spike()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gan(batch):
    """A generator and a discriminator, an optimizer each."""
    made, judged = stack(128, 2), stack(128, 3)
    first = torch.optim.Adam(made.parameters())
    second = torch.optim.Adam(judged.parameters())

    def step():
        real, noise = torch.randn(2, batch, 128, device="cuda")
        fake = made(noise)
        second.zero_grad()
        (judged(real).mean() - judged(fake.detach()).mean()).backward()
        second.step()
        first.zero_grad()
        judged(fake).mean().backward()
        first.step()

    return step


class Tied(nn.Module):
    """An embedding whose weights are the last layer's too."""

    def __init__(self, words=1000, width=64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.zeros(512, width))

    def forward(self, words):
        return self.head(self.embedding(words) + self.positions[: words.shape[-1]])


def tied(batch):
    model = Tied().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        words = torch.randint(1000, (batch, 32), device="cuda")
        F.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_hand(batch):
    """No module and no optimizer: two matrices, and the update written out."""
    a, b = (torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(2))

    def step():
        loss = (torch.randn(batch, 256, device="cuda") @ a).relu() @ b
        loss.sum().backward()
        with torch.no_grad():
            for w in (a, b):
                w -= 0.1 * w.grad
                w.grad = None

    return step


def in_backward(batch):
    """Every parameter is updated as soon as its gradient is there, which then goes."""
    model = stack()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step():
        model(torch.randn(batch, 256, device="cuda")).sum().backward()

    return step
