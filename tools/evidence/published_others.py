"""Other published speeds and memories, beside what the virtual GPU gives for the same trainings: `others.csv`.

Each training is written as its source's code was at the time; loaders, logging and evaluation are left out. All rows of
a training come from one run of it, in shapes only. Rows are halved as in `published_timm`: by a hash, here of source
and setting, one half to look at while rules are made, the other to judge them by. A row that fails says why.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from gpulab import VirtualGPU, data
from gpulab.data import Training as Row

from . import formulas

Half = Literal["look", "judge"]
Way = Literal["kept", "made", "flash", "nano", "plain"]


@dataclass(frozen=True)
class Predicted:
    """`virtual` is in the row's unit, and so is `formula`, by `RuntimeEstimator`'s; `busy` is the share of the step in
    which the GPU computes."""

    row: Row
    virtual: float = 0.0
    formula: float = 0.0
    busy: float = 0.0
    failed: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.virtual / self.row.value


class Training(NamedTuple):
    """`step(update)` is forward and backward of `samples`, and with `update` the optimizer: one in `accumulation`."""

    step: Callable[[bool], None]
    samples: int
    tokens: int = 0
    accumulation: int = 1


def half_of(row: Row) -> Half:
    """Whether a row is to look at, or to judge by; all rows of one training are in the same half."""
    return "judge" if int(hashlib.sha256(f"{row.source} {row.setting}".encode()).hexdigest(), 16) % 2 else "look"


def predicted(sources: Sequence[str] | None = None) -> Iterator[Predicted]:
    """Every row of these sources, or of all, in the order of the table."""
    chosen = [row for row in data.trainings() if sources is None or row.source in sources]
    for _, group in itertools.groupby(chosen, lambda row: row[:3]):
        yield from predict(list(group))


def predict(group: Sequence[Row]) -> list[Predicted]:
    """All rows of one training, from one run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _kept(group) if group[0].source == KORTHIKANTI else _predict(group)
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
        return [Predicted(row, failed=text) for row in group]
    finally:
        gc.collect()


def _predict(group: Sequence[Row]) -> list[Predicted]:
    source, setting, name = group[0][:3]
    with _flags(), VirtualGPU(name, compute=False) as gpu:
        training = SOURCES[source](setting)
        seconds, busy = _timed(gpu, training)
        reserved = torch.cuda.max_memory_reserved()
        values = {
            "allocated MB": torch.cuda.max_memory_allocated() / 1e6,
            "reserved GB": reserved / 1e9,
            "reserved GiB": reserved / 2**30,
        } | _speeds(training, seconds)
        by_formula = _speeds(training, _estimated(gpu, training))
        del training
    return [Predicted(row, values[row.unit], by_formula.get(row.unit, 0.0), busy / seconds) for row in group]


def _speeds(training: Training, seconds: float) -> dict[str, float]:
    return {
        "samples/s": training.samples / seconds,
        "tokens/s": training.tokens / seconds,
        "iterations/s": 1 / seconds,
    }


def _estimated(gpu: VirtualGPU, training: Training) -> float:
    """Seconds of a step by the formulas."""
    seconds = 0.0
    for share, update in ((1 - 1 / training.accumulation, False), (1 / training.accumulation, True)):
        if share:
            with formulas.Estimate(gpu.spec) as estimate:
                training.step(update)
            seconds += share * estimate.seconds
    return seconds


def _timed(gpu: VirtualGPU, training: Training) -> tuple[float, float]:
    """Seconds of a step and of its kernels, after two to warm up; memory's peaks are those of the measured steps."""
    n = training.accumulation
    # Of several, the first after an update makes the gradients: the next, which adds to them, stands for all.
    steps = [(0.0, True), (0.0, n == 1), *([(1 - 1 / n, False)] if n > 1 else []), (1 / n, True)]
    seconds = busy = 0.0
    for share, update in steps:
        if share and not seconds:
            torch.cuda.reset_peak_memory_stats()
        began, before = gpu.clock.host, gpu.clock.busy()
        training.step(update)
        torch.cuda.synchronize()
        seconds += share * (gpu.clock.host - began)
        busy += share * (gpu.clock.busy() - before)
    return seconds, busy


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    """TF32 in convolutions alone, as is the default; a source that allows it in products sets it itself."""
    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    try:
        matmul.allow_tf32 = False
        yield
    finally:
        matmul.allow_tf32 = before


def _numbers(setting: str) -> dict[str, int]:
    """The numbers in a setting such as "bert-base eager b4 s256", by the letter before them."""
    words = [word for word in setting.replace("x1 ", " ").replace("x4 ", " ").split() if word[1:].isdigit()]
    return {word[0]: int(word[1:]) for word in words}


# -- GPT-2: rasbt's, which is written out and then replaced piece by piece, and nanoGPT's of December 2022


class LayerNorm(nn.Module):
    """As rasbt wrote it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(var + 1e-5)) + self.shift


class GELU(nn.Module):
    """As rasbt wrote it."""

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(torch.tensor(2.0 / torch.pi))
        return 0.5 * x * (1 + torch.tanh(root * (x + 0.044715 * torch.pow(x, 3))))


class Attention(nn.Module):
    """rasbt's has three projections and a mask that is "kept" or "made" at each call; in the end one and "flash".

    nanoGPT's has one projection and a mask, "nano". "plain" is without a mask.
    """

    mask: Tensor

    def __init__(self, width: int, heads: int, way: Way) -> None:
        super().__init__()
        self.heads, self.way, self.dropout = heads, way, nn.Dropout(0.1)
        outs = [width] * 3 if way in ("kept", "made") else [3 * width]
        self.inner = nn.ModuleList(nn.Linear(width, out, bias=way in ("nano", "plain")) for out in outs)
        self.out = nn.Linear(width, width)
        if way in ("kept", "nano"):
            ones = torch.ones(1024, 1024)
            self.register_buffer("mask", torch.triu(ones, diagonal=1) if way == "kept" else torch.tril(ones))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = batch, length, -1, self.heads, width // self.heads
        key, query, value = (part for layer in self.inner for part in layer(x).view(split).permute(2, 0, 3, 1, 4))
        if self.way == "flash":
            y = scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        else:
            scores, scale = query @ key.transpose(2, 3), key.shape[-1] ** -0.5
            if self.way in ("kept", "made"):
                mask = self.mask if self.way == "kept" else torch.ones(length, length, device=x.device).triu(1)
                scores.masked_fill_(mask.bool(), -torch.inf)
                weights = torch.softmax(scores / (1 / scale), dim=-1)
            else:
                scores = scores * scale
                scores = scores.masked_fill(self.mask == 0, -torch.inf) if self.way == "nano" else scores
                weights = torch.softmax(scores, dim=-1)
            y = self.dropout(weights) @ value
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, attention: nn.Module, native: bool = True) -> None:
        super().__init__()
        norm: Callable[[int], nn.Module] = nn.LayerNorm if native else LayerNorm
        self.attention, self.norm1, self.norm2 = attention, norm(width), norm(width)
        gelu = nn.GELU(approximate="tanh") if native else GELU()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


class GPT2(nn.Module):
    """GPT-2 with 124M parameters (163M here: the last layer has weights of its own, as in both sources)."""

    def __init__(self, way: Way, native: bool = True) -> None:
        super().__init__()
        self.tokens, self.positions, self.dropout = nn.Embedding(50257, 768), nn.Embedding(1024, 768), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(768, Attention(768, 12, way), native) for _ in range(12)))
        self.norm = nn.LayerNorm(768) if native else LayerNorm(768)
        self.head = nn.Linear(768, 50257, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: Tensor = self.head(self.norm(self.blocks(self.dropout(x))))
        return logits


RASBT_GPT2 = "rasbt gpt2 by hand"


def _rasbt_gpt2(setting: str) -> Training:
    """Batch 8 of 1024 tokens, vocabulary 50,257, AdamW; each setting has what those before it have. PyTorch 2.6."""
    settings = list(dict.fromkeys(row.setting for row in data.trainings() if row.source == RASBT_GPT2))
    level = settings.index(setting)
    torch.backends.cuda.matmul.allow_tf32 = level >= 2
    with torch.device("cuda"):
        model = GPT2("kept" if level == 0 else "flash" if level == 6 else "made", native=level >= 5)
    model.to(torch.bfloat16 if level >= 4 else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.1, fused=level >= 3 or None)
    return _gpt2_training(model, optimizer, 8)


def _nanogpt(setting: str) -> Training:
    """train.py of commit 5a725d9: autocast to bf16, AdamW parameter by parameter, the loss read at each iteration.

    GELU was fused by TorchScript: here PyTorch's own.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model = GPT2("nano")
    groups = [[p for p in model.parameters() if (p.dim() >= 2) is decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], 2.5e-4, foreach=False)
    return _gpt2_training(model, optimizer, _numbers(setting)["b"], nano=True)


def _gpt2_training(model: GPT2, optimizer: torch.optim.Optimizer, batch: int, nano: bool = False) -> Training:
    def step(update: bool) -> None:
        optimizer.zero_grad()
        ids, targets = (torch.zeros(batch, 1024, dtype=torch.long, device="cpu").to("cuda") for _ in range(2))
        with torch.autocast("cuda", torch.bfloat16, enabled=nano):
            loss = cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        if nano:
            loss.item()

    return Training(step, batch, batch * 1024)


# -- the others

KORTHIKANTI = "Korthikanti formula"


def _kept(group: Sequence[Row]) -> list[Predicted]:
    """What one layer in fp16 keeps for backward, its input counted, its output not. Warmed up: a workspace stays."""
    row, size = group[0], _numbers(group[0].setting)
    with VirtualGPU(row.gpu, compute=False), torch.device("cuda"):
        layer = Block(size["h"], Attention(size["h"], size["a"], "plain")).half()
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            out = layer(torch.empty(size["b"], size["s"], size["h"], dtype=torch.half))
            kept = torch.cuda.memory_allocated() - before - out.nbytes
            del out
        del layer
    return [Predicted(row, kept / 1e6)]


def _rasbt_vit(setting: str) -> Training:
    """torchvision's vit_l_16 with 10 classes, alone in fp32, else by Lightning's Fabric: "16-mixed" and "bf16-true"."""
    import torchvision

    precision, _, optimizer_name = setting.split()
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    batch, accumulation = _numbers(setting)["b"], 4 if "x4 " in setting else 1
    with torch.device("meta"):
        model = torchvision.models.vit_l_16()
        model.heads.head = nn.Linear(1024, 10)
    weight = torch.bfloat16 if precision == "bf16" else torch.float32
    model = model.to(weight).to_empty(device="cuda").train()
    optimizer = getattr(torch.optim, {"adam": "Adam", "sgd": "SGD"}[optimizer_name])(model.parameters(), lr=5e-5)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp")
    held: list[Tensor] = []  # what the loop's variables hold through the next step

    def step(update: bool) -> None:
        if precision == "fp32":
            held[:1] = []  # here the loop's `features` is the batch on the host first
        images = torch.zeros(batch, 3, 224, 224, device="cpu").to("cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cpu").to("cuda")
        held[:1] = [images]
        with torch.autocast("cuda", torch.float16, enabled=precision == "amp"):
            out = model(images.to(weight)).float()
        loss = cross_entropy(out, labels) / accumulation
        held[1:] = [out, loss]
        if accumulation == 1:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if update:
            scaler.step(optimizer)
            scaler.update()
        if update and accumulation > 1:
            optimizer.zero_grad()

    return Training(step, batch, accumulation=accumulation)


def _nvidia(setting: str) -> Training:
    """main.py of ConvNets (PyTorch 21.03): channels last with AMP, gradients added up to the batch of its configs.yml.

    Plain loops in the optimizer, gradients zeroed and kept, a synchronization after each step. timm's models.
    """
    import timm

    name, precision, _ = setting.split()
    torch.backends.cuda.matmul.allow_tf32 = True
    batch, efficient, amp = _numbers(setting)["b"], name.startswith("efficientnet"), precision == "amp"
    total = 4096 if efficient else 896 if batch == 112 else 1024
    layout = torch.channels_last if amp else torch.contiguous_format
    side, drops = (380, (0.4, 0.2)) if name == "efficientnet_b4" else (224, (0.2 if efficient else 0.0, 0.0))
    with torch.device("meta"):
        model = timm.create_model(name, drop_rate=drops[0], drop_path_rate=drops[1])
    model = model.to_empty(device="cuda").to(memory_format=layout).train()
    its_own: dict[str, Any] = {"alpha": 0.9, "eps": 0.01} if efficient else {}
    make: Any = torch.optim.RMSprop if efficient else torch.optim.SGD
    optimizer = make(model.parameters(), 0.08, momentum=0.9, weight_decay=1e-5, foreach=False, **its_own)
    scaler = torch.amp.GradScaler("cuda", init_scale=128, enabled=amp)
    images = torch.empty(batch, 3, side, side, device="cuda").to(memory_format=layout)
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")

    def step(update: bool) -> None:
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = cross_entropy(model(images), labels, label_smoothing=0.1) / (total // batch)
        scaler.scale(loss).backward()
        if update:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()

    return Training(step, batch, accumulation=total // batch)


def _hugging_face(setting: str) -> Training:
    """fxmarty's benchmark_sdpa_training: fp16 weights, `logits.sum().backward()`, no optimizer.

    The model's outputs live through the next forward, OPT's with its cache of keys and values.
    """
    from transformers import BertConfig, BertForMaskedLM, OPTConfig, OPTForCausalLM

    name, attention, *_ = setting.split()
    size = _numbers(setting)
    opt: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096, "num_attention_heads": 16}
    opt |= {"word_embed_proj_dim": 512, "do_layer_norm_before": False, "vocab_size": 50272}
    bert = name == "bert-base"
    kind: Any = BertForMaskedLM if bert else OPTForCausalLM
    config = BertConfig() if bert else OPTConfig(**opt)
    with torch.device("cuda"):
        model = kind._from_config(config, dtype=torch.float16, attn_implementation=attention).train()
        ids = torch.zeros(size["b"], size["s"], dtype=torch.long)
    held: list[Any] = []

    def step(update: bool) -> None:
        model.zero_grad()
        held[:] = [model(input_ids=ids)]
        held[0].logits.sum().backward()

    return Training(step, size["b"], size["b"] * size["s"])


SOURCES = {
    "rasbt vit_l_16": _rasbt_vit,
    RASBT_GPT2: _rasbt_gpt2,
    "nanoGPT README": _nanogpt,
    "NVIDIA DLE": _nvidia,
    "HF SDPA tables": _hugging_face,
}
