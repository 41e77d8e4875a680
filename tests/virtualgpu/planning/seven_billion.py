"""A training step of a model with 7 billion weights, laid out as Llama 2's; as a script, its plan and what that took.

Prints JSON: seconds and bytes of the whole process, imports included, and the plan's numbers. With "host" the model is
made on the host and moved, with "seventy" it has 69 billion weights, with "config" it is Llama 3's 8 billion from a
configuration of `transformers`, both made on the host too; with "autocast" its weights are float32.
"""

import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from virtualgpu.planning import plan  # noqa: E402
from virtualgpu.planning.host_limit import peak_rss  # noqa: E402

LAYERS, WIDTH, HEADS, HIDDEN, WORDS, LENGTH = 32, 4096, 32, 11008, 32000, 2048


class Block(nn.Module):
    def __init__(self, **kind):
        super().__init__()
        self.before, self.between = (nn.RMSNorm(WIDTH, eps=1e-5, **kind) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False, **kind) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False, **kind) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False, **kind)

    def forward(self, x, cos, sin):
        y = self.before(x)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Model(nn.Module):
    def __init__(self, **kind):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, **kind)
        self.blocks = nn.ModuleList(Block(**kind) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5, **kind)
        self.head = nn.Linear(WIDTH, WORDS, bias=False, **kind)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.ones(LENGTH, WIDTH // HEADS, **kind), persistent=False)

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def build(batch, autocast=False, host=False):
    model = Model(device="cpu" if host else "cuda", dtype=torch.float32 if autocast else torch.bfloat16).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        words = torch.randint(WORDS, (batch, LENGTH), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def from_config(batch):
    import transformers

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256}
    config = transformers.LlamaConfig(num_attention_heads=32, num_key_value_heads=8, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step():
        words = torch.randint(128256, (batch, LENGTH), device="cuda")
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    mixed, host = "autocast" in sys.argv, "host" in sys.argv or "seventy" in sys.argv
    if "seventy" in sys.argv:
        LAYERS, WIDTH, HEADS, HIDDEN = 80, 8192, 64, 28672
    gpu = "A100-80" if not mixed and LAYERS == 32 else "H200"
    one = from_config if "config" in sys.argv else lambda batch: build(batch, mixed, host)
    found = plan(one, 1, gpu, where="where" in sys.argv)
    spent = {"seconds": time.perf_counter() - START, "cpu_seconds": time.process_time(), "process_bytes": peak_rss()}
    print(json.dumps({**spent, **found.categories, "fits": found.fits, "step_ms": found.step_ms}))
