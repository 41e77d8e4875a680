"""The trainings whose speeds and memories were published, each written as its source's code was at the time.

Loaders, logging and evaluation are left out; models are today's. Of timm's rows half are to look at while rules are
made, half to judge them by, as a hash of model and image size says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from gpulab import VirtualGPU, data
from gpulab.data import Training as Row

Way = Literal["kept", "made", "flash", "nano", "plain"]


class Training(NamedTuple):
    """`step(update)` is forward and backward of `samples`, and with `update` the optimizer: one in `accumulation`."""

    step: Callable[[bool], None]
    samples: int
    tokens: int = 0
    accumulation: int = 1
    grouped: bool = False  # whether the model has grouped convolutions that are not depthwise


def _numbers(setting: str) -> dict[str, int]:
    """The numbers in a setting such as "bert-base eager b4 s256", by the letter before them."""
    words = [word for word in setting.replace("x1 ", " ").replace("x4 ", " ").split() if word[1:].isdigit()]
    return {word[0]: int(word[1:]) for word in words}


# -- timm's image models, by its benchmark.py

TIMM = {  # setting: the GPU
    "train-amp-nhwc-pt112-cu113-rtx3090": "RTX3090",
    "train-amp-nchw-pt112-cu113-rtx3090": "RTX3090",
    "infer-amp-nhwc-pt240-cu124-rtx3090": "RTX3090",
    "infer-amp-nchw-pt240-cu124-rtx3090": "RTX3090",
    "infer-amp-nhwc-pt240-cu124-rtx4090": "RTX4090",
    "infer-amp-nchw-pt240-cu124-rtx4090": "RTX4090",
    "infer-amp-nchw-pt291-cu128-4090": "RTX4090",
    "infer-amp-nchw-pt291-cu130-5090": "RTX5090",
    "infer-amp-nchw-pt291-cu130-pro6000maxq": "RTXPRO6000-MAXQ",
}


def timm_rows(setting: str, count: int, half: Literal["look", "judge"] = "judge") -> list[Row]:
    """The first `count` rows of one half of a setting of timm's, in the order of the hashes; the note is the batch."""

    def digest(row: data.Measurement) -> int:
        return int(hashlib.sha256(f"{row.model} {row.image_size}".encode()).hexdigest(), 16)

    rows = [row for row in data.published(setting) if digest(row) % 2 == (half == "judge")]
    return [
        Row(setting, f"{row.model} {row.image_size}", TIMM[setting], "samples/s", row.samples_per_s, str(row.batch))
        for row in sorted(rows, key=digest)[:count]
    ]


def _timm(row: Row) -> Training:
    """Inference, or SGD with Nesterov momentum, parameter by parameter as in PyTorch 1.12; gradients are kept."""
    import timm
    from timm.layers.config import set_fused_attn

    name, side, batch = *row.setting.split(), int(row.note)
    set_fused_attn("pt112" not in row.source)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if "-nhwc-" in row.source else torch.contiguous_format
    usual = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    other = usual is not None and usual.fixed_input_size and usual.input_size[-1] != int(side)
    options: dict[str, Any] = {"img_size": int(side)} if other else {}
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    model = model.to_empty(device="cuda").to(memory_format=layout)
    images = torch.empty(batch, 3, int(side), int(side), device="cuda").to(memory_format=layout)

    @torch.inference_mode()
    def infer(update: bool) -> None:
        with torch.autocast("cuda", torch.float16):
            model(images)

    def train(update: bool) -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            out = model(images)
            out = out[0] if isinstance(out, (tuple, list)) else out
            loss = cross_entropy(out, torch.zeros(batch, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()

    trains = row.source.startswith("train")
    model.train(trains)
    if trains and not model.num_classes:
        raise ValueError("the model has no classes")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    grouped = any(1 < layer.groups < layer.in_channels for layer in convolutions)
    return Training(train if trains else infer, batch, grouped=grouped)


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


def _rasbt_gpt2(row: Row) -> Training:
    """Batch 8 of 1024 tokens, vocabulary 50,257, AdamW; each setting has what those before it have. PyTorch 2.6."""
    settings = list(dict.fromkeys(one.setting for one in data.trainings(RASBT_GPT2)))
    level = settings.index(row.setting)
    torch.backends.cuda.matmul.allow_tf32 = level >= 2
    with torch.device("cuda"):
        model = GPT2("kept" if level == 0 else "flash" if level == 6 else "made", native=level >= 5)
    model.to(torch.bfloat16 if level >= 4 else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.1, fused=level >= 3 or None)
    return _gpt2_training(model, optimizer, 8)


def _nanogpt(row: Row) -> Training:
    """train.py of commit 5a725d9: autocast to bf16, AdamW parameter by parameter, the loss read at each iteration.

    GELU was fused by TorchScript: here PyTorch's own.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model = GPT2("nano")
    groups = [[p for p in model.parameters() if (p.dim() >= 2) is decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], 2.5e-4, foreach=False)
    return _gpt2_training(model, optimizer, _numbers(row.setting)["b"], nano=True)


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

RESNET, BERT = "NVIDIA ResNet-50", "HF BERT-large"
CONTEXT_MIB = 1343  # of the driver that gave BERT's figures


def _resnet50(row: Row) -> Training:
    """A training with SGD, or inference; AMP in fp16 with channels last, as NVIDIA's scripts. torchvision's model.

    Published for NVIDIA's container: fused kernels and a data pipeline on the GPU, none of which is mirrored. Of the
    host, which bounds inference with one image, nothing is known: the rows show that AMP is no gain there.
    """
    import torchvision

    amp, trains = "AMP" in row.setting, "inference" not in row.setting
    batch = 1 if "one image" in row.setting else 128 if row.setting == "V100-16, fp32" else 256
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "TF32" in row.setting
    layout = torch.channels_last if amp else torch.contiguous_format
    model = torchvision.models.resnet50().to("cuda", memory_format=layout).train(trains)
    images = torch.zeros(batch, 3, 224, 224, device="cuda").to(memory_format=layout)
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)

    def step(update: bool) -> None:
        with torch.set_grad_enabled(trains), torch.autocast("cuda", enabled=amp):
            out = model(images)
            loss = cross_entropy(out, labels) if trains else None
        if loss is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return Training(step, batch)


def bert_large(row: Row) -> Training:
    """What Hugging Face's Trainer did in 2022 with 512 tokens: parameter by parameter, nothing fused."""
    from transformers import Adafactor, BertConfig, BertForSequenceClassification

    everything = row.setting.startswith("all")
    fp16 = everything or "fp16" in row.setting
    batch, accumulation = (4, 1) if "batch 4" in row.setting else (1, 4)
    large: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    large |= {"intermediate_size": 4096, "attn_implementation": "eager"}
    config = BertConfig(**large)
    with torch.device("meta"):
        model: Any = BertForSequenceClassification(config)
    model = model.to_empty(device="cuda").train()
    if everything or "checkpointing" in row.setting:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    optimizer: torch.optim.Optimizer
    if "Adafactor" in row.setting:
        optimizer = Adafactor(model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=fp16)

    def step(update: bool) -> None:
        for _ in range(accumulation):
            ids = torch.zeros(batch, 512, dtype=torch.long, device="cuda")
            labels = torch.zeros(batch, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", torch.float16, enabled=fp16):
                loss = model(input_ids=ids, labels=labels).loss / accumulation
            scaler.scale(loss).backward()
            del loss
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)  # as was the default up to torch 1.13

    return Training(step, batch * accumulation)


def kept_by_a_layer(row: Row) -> int:
    """Bytes that a layer in fp16 keeps for backward, its input counted, its output not; once warmed up."""
    size = _numbers(row.setting)
    with VirtualGPU(row.gpu, compute=False), torch.device("cuda"):
        layer = Block(size["h"], Attention(size["h"], size["a"], "plain")).half()
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            out = layer(torch.empty(size["b"], size["s"], size["h"], dtype=torch.half))
            kept = torch.cuda.memory_allocated() - before - out.nbytes
            del out
        del layer
    return int(kept)


def _rasbt_vit(row: Row) -> Training:
    """torchvision's vit_l_16 with 10 classes, alone in fp32, else by Lightning's Fabric: "16-mixed" and "bf16-true"."""
    import torchvision

    precision, _, optimizer_name = row.setting.split()
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    batch, accumulation = _numbers(row.setting)["b"], 4 if "x4 " in row.setting else 1
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


def _nvidia(row: Row) -> Training:
    """main.py of ConvNets (PyTorch 21.03): channels last with AMP, gradients added up to the batch of its configs.yml.

    Plain loops in the optimizer, gradients zeroed and kept, a synchronization after each step. timm's models.
    """
    import timm

    name, precision, _ = row.setting.split()
    torch.backends.cuda.matmul.allow_tf32 = True
    batch, efficient, amp = _numbers(row.setting)["b"], name.startswith("efficientnet"), precision == "amp"
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


def _hugging_face(row: Row) -> Training:
    """fxmarty's benchmark_sdpa_training: fp16 weights, `logits.sum().backward()`, no optimizer.

    The model's outputs live through the next forward, OPT's with its cache of keys and values.
    """
    from transformers import BertConfig, BertForMaskedLM, OPTConfig, OPTForCausalLM

    name, attention, *_ = row.setting.split()
    size = _numbers(row.setting)
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


SOURCES: dict[str, Callable[[Row], Training]] = {
    **dict.fromkeys(TIMM, _timm),
    RESNET: _resnet50,
    BERT: bert_large,
    "rasbt vit_l_16": _rasbt_vit,
    RASBT_GPT2: _rasbt_gpt2,
    "nanoGPT README": _nanogpt,
    "NVIDIA DLE": _nvidia,
    "HF SDPA tables": _hugging_face,
}
