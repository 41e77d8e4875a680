# %% title [markdown]
# # 06 · Less memory
#
# **Promise:** you train the same model in half the memory, and you know what each saving costs in time.
#
# After this lesson you can
#
# 1. **checkpoint** a model so that its peak falls, and **say** why one segment saves nothing;
# 2. **choose** the number of segments, or the operations to keep, from bytes instead of from $\sqrt L$;
# 3. **count** what attention, optimizer, gradients and LoRA take, each at the moment of the peak;
# 4. **move** activations and optimizer state to the host, and **predict** the milliseconds;
# 5. **find** the checkpointing mistakes that raise nothing and train wrongly.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 40 for the exercises | lessons 04 and 05: what fills memory, and what the peak is | any machine |

# %% setup-text [markdown]
# The model of this lesson is a transformer of eight blocks, too large to compute with on a laptop. Where there is no
# GPU, its steps run on a virtual T4 that keeps *shapes only*: bytes are exact, times are a model's. On a real GPU the
# same cells measure. Every number says which of the two it is.

# %% setup
import contextlib
import functools
import gc
import random
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import gpulab

gpu = gpulab.setup()

# %% model
class Block(nn.Module):
    """A transformer block: attention, then an MLP, each added to what came in."""

    def __init__(self, width=768, heads=12, attend=F.scaled_dot_product_attention):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


# %% on-gpu
@contextlib.contextmanager
def on_gpu():
    """This notebook's GPU for large models: the real one, or a virtual T4 that keeps shapes only."""
    real = gpu.numbers == "measured"
    if real:
        gc.collect()  # the model of an earlier cell must not count
        torch.cuda.empty_cache()  # nor may its blocks be handed out again: they are too large for some tensors
    with contextlib.nullcontext() if real else gpulab.VirtualGPU("T4", compute=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes have no values to copy, and the virtual GPU says so
        yield


# %% measure
def measure(build):
    """Peak in MiB and milliseconds of one training step; `build()` makes model and optimizer and returns the step."""
    with on_gpu():
        step, took = build(), []
        steps = 4 if gpu.numbers == "measured" else 1  # the virtual clock never stutters
        for _ in range(steps):
            step()  # the first allocates the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(), step(), end.record()
            torch.cuda.synchronize()
            took.append(start.elapsed_time(end))
        return torch.cuda.max_memory_allocated() / 2**20, min(took)


# %% step
def training(forward, optimizer=torch.optim.AdamW, attend=F.scaled_dot_product_attention, batch=8):
    """A builder for `measure`: eight blocks on `batch` texts of 512 tokens; `forward(blocks, x)` runs them."""

    def build():
        with torch.device("cuda"):
            blocks = nn.ModuleList(Block(attend=attend) for _ in range(8))
            x = torch.randn(batch, 512, 768)
        update = optimizer(blocks.parameters())

        def step():
            forward(blocks, x).square().mean().backward()
            update.step()
            update.zero_grad()

        return step

    return build


def report(name, cost):
    print(f"{name:<34} peak {cost[0]:7,.0f} MiB   {cost[1]:6.1f} ms a step ({gpu.numbers})")


# %% question-text [markdown]
# ## A question worth asking
#
# Backward needs what forward computed: the *activations*. Activation checkpointing throws them away and computes them
# a second time when backward comes. In PyTorch it is one call, and the obvious way to use it is to wrap the model:
#
# `checkpoint(model, x, use_reentrant=False)`
#
# Now nothing but the input is kept for backward. What is the peak of the step, in per cent of the one without?

# %% question-predict
peak_guess = gpulab.predict("Peak with the whole model in one checkpoint, against none", unit="%")

# %% question-run
def plain(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def one_segment(blocks, x):
    return checkpoint(plain, blocks, x, use_reentrant=False)


nothing, whole = measure(training(plain)), measure(training(one_segment))
report("no checkpointing", nothing)
report("the whole model in one checkpoint", whole)
peak_guess.compare(round(100 * whole[0] / nothing[0], 1), gpu.numbers)

# %% question-explain [markdown]
# The price is paid and nothing is bought. To start backward at the last block, PyTorch has to compute the whole model
# again, and now *this* forward pass keeps everything, because backward is about to use it. The activations have only
# come later. What had to become small was never the forward pass: it was the most that is alive at one moment.
#
# So make the segments small. A segment is thrown away in forward, and only **one segment at a time** comes back. With
# one segment for each block:

# %% question-each
def every_block(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


each = measure(training(every_block))
report("no checkpointing", nothing)
report("each block is a segment", each)

# %% curve-run
def curve(forward):
    """Allocated MiB after each allocation and each free of one forward and backward pass."""
    with on_gpu():
        step = training(forward)()
        step()
        with gpulab.memory.timeline() as record:
            step()
    return [nbytes / 2**20 for nbytes in record.curve.allocated_bytes]


curves = {"no checkpointing": curve(plain), "one segment": curve(one_segment), "each block": curve(every_block)}

# %% curve-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 3.8))
for (name, mib), style in zip(curves.items(), ("-", "--", "-"), strict=True):
    axes.plot([100 * i / (len(mib) - 1) for i in range(len(mib))], mib, style, label=name, linewidth=1.5)
axes.set(xlabel="progress of the step, % of its allocations and frees", ylabel=f"allocated, MiB ({gpu.numbers})")
axes.set(ylim=(0, None), title="One segment moves the peak; small ones remove it")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
gpulab.style.show(
    figure,
    alt="Allocated memory over one training step. Without checkpointing it rises in the forward pass and falls in "
    "backward. With one segment it stays low, then rises to the same peak. With a segment for each block it never does.",
)

# %% curve-text [markdown]
# Look at the right end of the curves. With a segment for each block, the highest point is no longer among the
# activations alone: gradients and the optimizer's step now have their share in it. That is a general rule of this
# lesson: **when you have lowered one peak, ask where the next one is.** More checkpointing cannot lower the part that
# weights, gradients and Adam take.
#
# Here is what there is to lower, in float32, and with what. You are about to measure the prices.
#
# | what | bytes | remedy | its price |
# |---|---|---|---|
# | activations | grow with batch and length | checkpointing, attention kernels, offload | time |
# | gradients | 4 for each parameter | step inside backward | no clipping, no accumulation |
# | optimizer state | 8 (Adam) | another optimizer, 8-bit, offload | tuning, time |
# | optimizer's temporaries | 4 (the default) | `fused=True` | none |
# | gradients and state together | 12 (Adam) | LoRA | only a correction is trained |

# %% again-text [markdown]
# ## Keep the input, compute the rest again
#
# What does it cost? Count passes: backward does about twice the arithmetic of forward, since every matrix product of
# forward has two in backward. A step is 1 + 2 = 3 forward passes. Checkpointing adds one.

# %% again-predict
time_guess = gpulab.predict("How much longer does a step with every block checkpointed take?", unit="%")

# %% again-run
time_guess.compare(round(100 * (each[1] / nothing[1] - 1)), gpu.numbers)
print(f"computed: 1/3 = {100 / 3:.0f} %")

# %% again-explain [markdown]
# On the virtual T4 a little less than a third; more where the host is the brake, which launches the forward pass twice. The
# optimizer's step is not repeated. And PyTorch stops the second forward pass of a
# segment as soon as all that backward wants is there again (*early stop*): here it leaves out the last sum of a block,
# without dropout the last product too. A recorded run says the same of an older library: BERT-large on a V100, 7.75 samples/s without and 5.99 with
# checkpointing, so 29 % longer, for 1906 MiB less memory (Hugging Face, 2022).
#
# But “two products for one” is a rule for products. Where memory traffic takes the time (batch norm, ReLU, the sums),
# backward costs less than twice the forward pass, so forward is more than a third of both. A ResNet-50 in fp16
# (lesson 07), whose convolutions take about a third of the time (virtual):

# %% again-resnet
import torchvision


def resnet(again):
    """A builder for `gpulab.plan`: ResNet-50 forward and backward in fp16, its bottlenecks computed again or not."""

    def build(batch):
        with torch.device("cuda"):
            made = torchvision.models.resnet50(), torch.randn(batch, 3, 224, 224)
        network, images = (thing.to(memory_format=torch.channels_last) for thing in made)  # as tensor cores want it
        for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
            for block in stage if again else ():
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

        def step():
            with torch.autocast("cuda", dtype=torch.float16):
                out = network(images)
            out.square().mean().backward()
            network.zero_grad()

        return step

    return build


# %% again-resnet-run
whole_net, checkpointed = (gpulab.plan(resnet(again), batch=64, gpu="T4") for again in (False, True))
for name, found in (("ResNet-50 in fp16, batch 64", whole_net), ("each bottleneck is a segment", checkpointed)):
    print(f"{name:<34} peak {found.peak_allocated / 2**20:7,.0f} MiB   {found.step_ms:6.1f} ms both passes (virtual T4)")
print(f"longer by {100 * (checkpointed.step_ms / whole_net.step_ms - 1):.0f} %")

# %% again-rule [markdown]
# So count on **about a third where products dominate, more where memory traffic does**, and measure your own.
#
# The result must not change. Dropout is the hard part: the second forward pass has to draw the *same* masks. So
# `checkpoint` notes the state of the random generators, of the CPU and of the GPUs whose tensors it is given, and
# puts it back before it computes again.

# %% again-same
def gradients(**options):
    """Gradients of two small blocks with dropout, checkpointed with these options; without any, not checkpointed."""
    torch.manual_seed(0)
    with torch.device(gpu.device):
        blocks, x = nn.Sequential(Block(64, 4), Block(64, 4)), torch.randn(4, 32, 64)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, **options) if options else block(x)
    x.square().mean().backward()
    return torch.cat([p.grad.flatten() for p in blocks.parameters()])


truth = gradients()
for keep in (True, False):
    off = (gradients(preserve_rng_state=keep) - truth).norm() / truth.norm()
    print(f"preserve_rng_state={keep!s:<5}  gradient as without checkpointing: {bool(off < 1e-4)}")

# %% again-rng [markdown]
# `preserve_rng_state=True` is the default; leave it unless a segment draws nothing. Python's `random` and NumPy are
# *not* noted (see *Common mistakes*).
#
# `use_reentrant=False` is the implementation to use; you have to say so, since today's default is still the older
# one. The older one runs forward without a graph, and breaks in ways that the mistakes show too.

# %% segments-text [markdown]
# ## How many segments
#
# “Checkpointing takes $O(\sqrt L)$ memory”, you will read: cut $L$ layers into $\sqrt L$ segments. Where does this
# come from? With $S$ segments you keep $S$ inputs of $b$ bytes, and one segment at a time with all it keeps inside:
# $L/S$ layers of $I$ bytes.
#
# $$\text{kept}(S) \approx S\,b + \frac LS\,I \qquad\Rightarrow\qquad S_\text{best} = \sqrt{L\,I/b}$$
#
# That is $\sqrt L$ only if a layer keeps as much inside as it is given: $I = b$. `Linear` and `Tanh` are such a
# layer. A transformer's layer is not. Its best number for $L = 16$?

# %% segments-predict
segments_guess = gpulab.predict("The best cut of 16 encoder layers", unit="segments")

# %% segments-run
def thin_layer():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh())


def encoder_layer():
    return nn.TransformerEncoderLayer(64, 4, dim_feedforward=256, batch_first=True)


def segment_peak(layer, segments):
    """MiB that a forward and backward pass of 16 layers takes, beyond weights and input."""
    with on_gpu(), torch.device("cuda"):
        layers, x = nn.Sequential(*(layer() for _ in range(16))), torch.randn(512, 64, 64)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        checkpoint_sequential(layers, segments, x, use_reentrant=False).sum().backward()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


counts = (1, 2, 4, 6, 8, 12, 16)
thin, encoder = ([segment_peak(layer, n) for n in counts] for layer in (thin_layer, encoder_layer))
segments_guess.compare(min(counts, key=lambda n: encoder[counts.index(n)]), gpu.numbers)

# %% segments-plot
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
for axes, mib, name in ((left, thin, "Linear and Tanh: best at √16 = 4"), (right, encoder, "Encoder layers: best at 16")):
    axes.plot(counts, mib, "o-")
    axes.axvline(4, color=gpulab.style.MUTED, linestyle=":", label="√L = 4")
    axes.set(ylim=(0, None), xticks=(1, 4, 8, 12, 16), xlabel="segments")
    axes.set_title(name, fontsize=11)
    axes.legend()
left.set_ylabel(f"peak beyond weights, MiB ({gpu.numbers})")
gpulab.style.show(
    figure,
    alt="Peak over the number of segments, 1 to 16. For layers of Linear and Tanh it is lowest at 4. For encoder layers "
    "it falls until 16, with bumps at 6 and 12.",
)

# %% segments-ratio
for name, layer in (("Linear and Tanh", thin_layer), ("encoder layer", encoder_layer)):
    with on_gpu(), torch.device("cuda"):
        x = torch.randn(512, 64, 64, requires_grad=True)
        inside = gpulab.memory.activation_bytes(layer(), x).total
    best = (16 * inside / x.nbytes) ** 0.5
    print(f"{name:<16} I / b = {inside / x.nbytes:4.1f}   √(16·I/b) = {best:4.1f} segments")
print("peak with 4 segments, against 16:", f"{encoder[counts.index(4)] / encoder[-1]:.1f} times ({gpu.numbers})")

# %% segments-explain [markdown]
# With $I/b \approx 19$ the formula says 17 segments, more than there are layers: cut at **every block**. For
# transformers that is the usual answer. $\sqrt L$ was right for the networks of 2016, and costs this one twice the
# memory.
#
# The bumps at 6 and 12 are another lesson. `checkpoint_sequential` cuts equal segments and leaves the rest to the
# last one, which it does *not* checkpoint, as backward begins with it and needs it at once. 16 layers in 12 segments
# are eleven of one layer, and a last one of five. Choose a number that divides. (Where there is room to keep a part of
# the layers whole, let it be the *last* ones, for the same reason: their insides are gone before the first ones come.)

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a step of 24 layers in 4 segments. Move the moment with the slider or the play button.
#
# 1. Set *Segments* to 5. Why is the peak higher than with 4? Then to 24, the best: in which moment is the peak now?
# 2. Back at 4 segments, tick *Compute the last segment again too*. What does it cost, and what does it save?
# 3. Untick it, and set *A layer keeps* to 32 MiB, as much as its input. Which number of segments is best now? And why
#    does the peak not move at all?

# %% simulator
gpulab.sim.step_memory()

# %% selective-text [markdown]
# ## Keep what was dear, compute again what was cheap
#
# A block's time and its bytes are not in the same places. Its matrix products and attention take most of the time (of a
# T4 in float32, nearly all). Normalisation, GELU, dropout and the sums are quick to repeat, and keep about half of the
# bytes. *Selective*
# checkpointing keeps the results of the operations you name, and computes the rest again. The operations are those
# that PyTorch runs below `nn.Linear`: `aten.addmm` is the product with a bias, `aten.mm` without.

# %% selective-run
aten = torch.ops.aten
PRODUCTS = [aten.mm.default, aten.addmm.default]
ATTENTION = [  # which of them runs depends on the GPU and the dtype
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
]


def keeping(operations, blocks, x):
    contexts = functools.partial(create_selective_checkpoint_contexts, operations)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return x


dear = measure(training(functools.partial(keeping, PRODUCTS + ATTENTION)))
report("no checkpointing", nothing)
report("keep products and attention", dear)
report("each block is a segment", each)

# %% selective-explain [markdown]
# On the virtual T4, two fifths of the saving for a twentieth of the price. (With tensor cores products are cheaper, and the
# rest weighs more. And each operation is looked up in the list, in Python: where a fast GPU waits for the host, this way may
# take longer than the plain one.) In place of the list you may pass a function
# that decides for each call (`CheckpointPolicy.MUST_SAVE` or `PREFER_RECOMPUTE`). `torch.compile` chooses by itself
# what to keep, and `torch._functorch.config.activation_memory_budget` (experimental) asks it for less.
#
# **The loss is a layer too.** For language models the largest tensor of the step is often the logits: tokens ×
# vocabulary. 4096 tokens and GPT-2's 50257 words are 785 MiB in float32, and the loss keeps more of this size. Cut
# the tokens in pieces, and checkpoint head and loss of each:

# %% logits-run
def head_and_loss(pieces, again):
    """A builder for `measure`: from hidden states to the loss, in pieces, each computed again in backward or not."""

    def build():
        with torch.device("cuda"):
            head, hidden = nn.Linear(768, 50257, bias=False), torch.randn(4096, 768, requires_grad=True)
            targets = torch.randint(50257, (4096,))

        def piece(h, y):
            return F.cross_entropy(head(h), y, reduction="sum") / 4096

        def step():
            head.weight.grad = hidden.grad = None
            parts = zip(hidden.chunk(pieces), targets.chunk(pieces), strict=True)
            sum(checkpoint(piece, h, y, use_reentrant=False) if again else piece(h, y) for h, y in parts).backward()

        return step

    return build


# %% logits-compare
for name, pieces, again in (("in one piece", 1, False), ("4 pieces", 4, False), ("4 pieces, checkpointed", 4, True)):
    report(name, measure(head_and_loss(pieces, again)))

# %% logits-explain [markdown]
# Pieces alone keep all their softmax results until backward; pieces with checkpointing do not. They are slower for a
# second reason too: each piece adds its own gradient of the whole head. In PyTorch 2.15 `F.linear_cross_entropy` with
# `options=nn.LinearCrossEntropyOptions()` does it in one call, and computes the gradients in forward, so that nothing
# is computed twice.

# %% attention-text [markdown]
# ## Attention that is never written down
#
# Attention as in the formula, $\mathrm{softmax}(QK^\top/\sqrt d)\,V$, writes a table of length × length for each
# head. Double the text, and it is four times as large. The kernels behind `F.scaled_dot_product_attention`
# (memory-efficient attention, FlashAttention, cuDNN's) work through the table in tiles that stay on the chip. They
# keep one number for each row, and compute the tiles again in backward. So they are checkpointing too, inside one
# kernel.
#
# At 4096 tokens, 12 heads, fp16: how many times the bytes does the formula keep?

# %% attention-predict
attention_guess = gpulab.predict("What the formula keeps at 4096 tokens, against the kernel", unit="times")

# %% attention-run
def formula(q, k, v):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ v


def formula_again(q, k, v):
    return checkpoint(formula, q, k, v, use_reentrant=False)


# %% attention-cost
def attention_cost(attend, length):
    """MiB kept after forward, MiB at the peak, milliseconds: forward and backward of 12 heads of 64 in fp16."""
    with on_gpu():
        q, k, v = (torch.randn(1, 12, length, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in "qkv")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        out = attend(q, k, v)
        kept = torch.cuda.memory_allocated() - before
        out.sum().backward()
        peak = torch.cuda.max_memory_allocated() - before
        start.record(), attend(q, k, v).sum().backward(), end.record()
        torch.cuda.synchronize()
        return kept / 2**20, peak / 2**20, start.elapsed_time(end)


# %% attention-table
lengths = (256, 512, 1024, 2048, 4096)
ways = {"formula": formula, "formula, checkpointed": formula_again, "kernel": F.scaled_dot_product_attention}
attention = {name: [attention_cost(way, length) for length in lengths] for name, way in ways.items()}
for name, costs in attention.items():
    kept, peak, ms = costs[-1]
    print(f"{name:<22} keeps {kept:6.1f} MiB   peak {peak:7.1f} MiB   {ms:5.1f} ms ({gpu.numbers})")
attention_guess.compare(round(attention["formula"][-1][0] / attention["kernel"][-1][0]), gpu.numbers)

# %% attention-plot
figure, axes = plt.subplots(figsize=(7.2, 3.6))
for (name, costs), style in zip(attention.items(), ("o-", "x--", "s-"), strict=True):
    axes.plot(lengths, [peak for _, peak, _ in costs], style, label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set(xticks=lengths, xticklabels=lengths, yticks=(4, 32, 256, 2048), yticklabels=("4", "32", "256", "2,048"))
axes.set(xlabel="length of the text, tokens", ylabel=f"peak, MiB ({gpu.numbers})")
axes.set_title("The formula grows with length squared, the kernel with length")
axes.legend()
gpulab.style.show(
    figure,
    alt="Peak memory of attention over the length, both axes logarithmic. The formula, checkpointed or not, becomes "
    "nearly four times as large with each doubling; the kernel twice.",
)

# %% attention-explain [markdown]
# Read the table before the plot. Checkpointing makes the formula *keep* as little as the kernel does, and its **peak
# stays**: in backward the whole table is there again. The kernel's never is. And the kernel, which computes the
# scores twice, is the *fastest*: the formula is slow because of the bytes it writes and reads, not because of its
# arithmetic (lesson 01). Computing again is no loss when it saves memory traffic. (So the model counts. Recorded by
# Hugging Face: BERT on an A100 in fp16, 16 texts of 512 tokens, 1.45 times as fast with 43 % less memory.)
#
# It is no approximation: the result is that of the formula, to rounding. So use it first, before any checkpointing.
# What can take it away from you:

# %% attention-lost
with on_gpu(), torch.device("cuda"):
    layer, x = nn.MultiheadAttention(768, 12, batch_first=True), torch.randn(4, 1024, 768)
    for need in (True, False):
        before = torch.cuda.memory_allocated()
        result = layer(x, x, x, need_weights=need)
        kept = (torch.cuda.memory_allocated() - before) / 2**20
        print(f"nn.MultiheadAttention, need_weights={need!s:<5}: {kept:5.0f} MiB kept ({gpu.numbers})")
        del result

# %% attention-lost-text [markdown]
# `need_weights=True` is the default, and it asks for the table. `nn.TransformerEncoderLayer` says `False` for you.
#
# To be sure which kernel runs, insist. FlashAttention wants compute capability 8.0 (Ampere) and a 16-bit dtype; a T4
# has 7.5, and takes the memory-efficient kernel.

# %% attention-insist
from torch.nn.attention import SDPBackend, sdpa_kernel

with gpulab.VirtualGPU("T4"), warnings.catch_warnings():  # a T4 also where the GPU of this notebook is another one
    warnings.simplefilter("ignore")
    q = torch.randn(1, 2, 16, 64, device="cuda", dtype=torch.float16)
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)
    except RuntimeError as error:
        print("RuntimeError ·", error)

# %% optimizer-text [markdown]
# ## The optimizer's share
#
# Adam keeps two numbers for each parameter: 8 bytes, twice the weights. That is not all it takes. By default PyTorch
# steps on a GPU with *foreach* kernels, which work through all parameters at once, intermediate results included. How
# many bytes for each parameter does the default AdamW take *during its step*, beside weights, gradients and state?

# %% optimizer-predict
temporary_guess = gpulab.predict("What AdamW's step takes for the moment, for each parameter", unit="bytes")

# %% optimizer-run
def optimizer_cost(make):
    """Bytes of state and of temporaries for each parameter of a block stack, and milliseconds of a step."""
    with on_gpu():
        with torch.device("cuda"):
            parameters = list(nn.ModuleList(Block() for _ in range(4)).parameters())
        number = sum(p.numel() for p in parameters)
        for p in parameters:
            p.grad = torch.zeros_like(p)
        before, update = torch.cuda.memory_allocated(), make(parameters)
        update.step()
        after = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(), update.step(), end.record()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        return (after - before) / number, (peak - after) / number, start.elapsed_time(end)


# %% optimizer-table
AdamW, SGD, Adafactor = torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor
fused = functools.partial(AdamW, fused=True)
makes = {
    "AdamW (foreach, the default)": AdamW,
    "AdamW, foreach=False": functools.partial(AdamW, foreach=False),
    "AdamW, fused=True": fused,
    "SGD, momentum=0.9": functools.partial(SGD, lr=0.1, momentum=0.9),
    "SGD": functools.partial(SGD, lr=0.1),
    "Adafactor": Adafactor,
}
optimizers = {name: optimizer_cost(make) for name, make in makes.items()}
for name, (state, temporary, ms) in optimizers.items():
    print(f"{name:<29} state {state:4.1f}   temporary {temporary:4.1f} bytes a parameter   {ms:4.1f} ms ({gpu.numbers})")
temporary_guess.compare(round(optimizers["AdamW (foreach, the default)"][1], 1), gpu.numbers)

# %% optimizer-explain [markdown]
# Another copy of the weights, for a few milliseconds. Is it in the *peak*? Only if the optimizer's step is the moment
# of the peak. By then the activations are gone, so the peak of a step is not a sum. It is roughly the larger of two
# moments, the end of forward and the optimizer's step:
#
# weights + state + max(activations, gradients + temporaries)
#
# With large batches the temporaries hide under the activations; with small ones, or after checkpointing, they are the
# peak. `fused=True` removes them and is faster: one kernel reads and writes each number once.
#
# **Adafactor** keeps a row and a column of statistics in place of a matrix, so almost nothing. It is another
# algorithm: tune the learning rate again. **8-bit Adam** (`bitsandbytes`, `torchao`) keeps the same two moments in a
# byte each, with a scale for every block of 256: 2 × (1 + 4/256) = 2.03 bytes a parameter (computed).

# %% optimizer-7b
PARAMETERS = 7e9
rows = {"AdamW": 8, "8-bit Adam": 2 * (1 + 4 / 256), "SGD with momentum": 4, "Adafactor": optimizers["Adafactor"][0]}
print("7 billion parameters, float32 weights and gradients (computed):")
for name, state in rows.items():
    print(f"  {name:<18} {PARAMETERS * 4 / 1e9:.0f} + {PARAMETERS * 4 / 1e9:.0f} + {PARAMETERS * state / 1e9:4.1f} GB")

# %% backward-text [markdown]
# ## Gradients that never meet
#
# After backward every gradient waits for the optimizer. Need they? Adam updates each parameter by itself. So step as
# soon as a gradient is complete, inside backward, and let it go. `register_post_accumulate_grad_hook` calls you at
# that moment; each parameter gets an optimizer of its own.

# %% backward-run
def step_and_free(parameter):
    parameter.optimizer.step()
    parameter.optimizer.zero_grad()


def stepping_in_backward(forward, batch=8):
    def build():
        with torch.device("cuda"):
            blocks, x = nn.ModuleList(Block() for _ in range(8)), torch.randn(batch, 512, 768)
        for parameter in blocks.parameters():
            parameter.optimizer = fused([parameter])
            parameter.register_post_accumulate_grad_hook(step_and_free)
        return lambda: forward(blocks, x).square().mean().backward()

    return build


# %% backward-compare
small = functools.partial(training, every_block, batch=1)  # so that parameters matter, not activations
parameters = 8 * sum(p.numel() for p in Block().parameters())
for name, build in (
    ("AdamW", small()),
    ("AdamW, fused", small(optimizer=fused)),
    ("AdamW, fused, inside backward", stepping_in_backward(every_block, batch=1)),
):
    cost = measure(build)
    report(name, cost)
    print(f"{'':<34}      {cost[0] * 2**20 / parameters:7.1f} bytes a parameter")

# %% backward-explain [markdown]
# 20 bytes a parameter are weights, gradients, state and temporaries: 4 + 4 + 8 + 4. `fused` takes the temporaries
# away, and the hook nearly all of the gradients; what is above 12 are the activations of one short text. (Up to PyTorch 2.14
# there are cuBLAS's workspaces besides, 65 MiB on an H200, recorded: one or two bytes a parameter of this small model.)
#
# The hook finds its optimizer at the parameter. A function that holds all optimizers itself, in a dict around it, as tutorials
# have it, is a leak: it refers to the parameters, C++ holds the hook, and the garbage collector does not see into C++. The
# model stays on the GPU for good.
#
# What you give up follows from the idea: nobody ever sees all gradients together. So no clipping by the norm of all
# of them, no accumulation over micro-batches (lesson 08), no `GradScaler`, which must know of an overflow anywhere
# before anything moves. bf16 needs no scaler.

# %% offload-text [markdown]
# ## Send it to the host
#
# The host has more memory than the GPU. `torch.autograd.graph.save_on_cpu` sends each tensor that autograd keeps to
# the host, and fetches it in backward. You change one line. The bytes cross the bus twice; pinned memory crosses a
# PCIe 3.0 link at about 12 GB/s.
#
# Checkpointing added one forward pass to the step. What does offloading add?

# %% offload-predict
offload_guess = gpulab.predict("How much longer does a step with offloaded activations take?", unit="%")

# %% offload-run
def offloaded(forward, blocks, x):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return forward(blocks, x)


def on_v100(forward):
    build = training(forward, optimizer=fused)
    with warnings.catch_warnings(action="ignore"):
        return gpulab.plan(lambda batch: build(), batch=8, gpu="V100-16").step_ms


ways = {"no checkpointing": plain, "each block is a segment": every_block}
ways["all kept tensors on the host"] = functools.partial(offloaded, plain)
ways["segments, their inputs on the host"] = functools.partial(offloaded, every_block)
offload = {name: measure(training(forward, optimizer=fused)) for name, forward in ways.items()}
for name, cost in offload.items():
    report(name, cost)
print("the same four on a V100, ms:", [round(on_v100(forward)) for forward in ways.values()], "(virtual)")
base, away = (offload[name][1] for name in ("no checkpointing", "all kept tensors on the host"))
offload_guess.compare(round(100 * (away / base - 1)), gpu.numbers)

# %% offload-explain [markdown]
# Computing again is the cheaper way to have a byte back, on this link (the model assumes 12 GB/s). Compare the two for
# one block: how long does the GPU compute it, and how long does the bus carry what it keeps? The V100 computes faster,
# and its bus is the same. (Copies and kernels share one stream here, so they wait for each other; libraries that
# offload use a second one, lesson 03.) Why do the copies cost the T4 less time? Its power limit slows its float32
# products down; while the bus carries, it saves power, and is faster afterwards. (So the model has it, in which copies
# take no power.)
#
# Segments with their inputs on the host cost little, and here they save nothing. The peak is late in backward, when
# all gradients are there and most inputs are gone already. They pay with long texts and many layers.
#
# And `save_on_cpu` is not selective. What does it send?

# %% offload-count
def sent(model, x):
    """Bytes of the tensors that autograd keeps: activations, and the model's own weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    count = {"activations": 0, "weights": 0}

    def pack(tensor):
        count["weights" if tensor.untyped_storage().data_ptr() in weights else "activations"] += tensor.nbytes
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        model(x)
    return count


torch.manual_seed(0)
count = sent(Block(128, 4).to(gpu.device), torch.randn(4, 64, 128, device=gpu.device))
print({name: f"{nbytes / 2**10:,.0f} KiB (counted)" for name, nbytes in count.items()})

# %% offload-weights [markdown]
# The weights go to the host too, and come back as second copies, though they never left. On this small block they
# are a large part of the traffic. Your own pair of hooks can leave them, and small tensors, where they are. That is
# the second exercise.
#
# **Offloading the state** is the same trade at another place: Adam's moments and a float32 master copy of the weights
# live on the host, which steps there. Each step sends the gradients down and the weights up.

# %% offload-state
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).to(gpu.device)
masters = [p.detach().cpu().clone().requires_grad_() for p in model.parameters()]
update = torch.optim.AdamW(masters)  # its state is where its parameters are
before = torch.cuda.memory_allocated()
model(torch.randn(64, 256, device=gpu.device)).square().mean().backward()
for p, master in zip(model.parameters(), masters, strict=True):
    master.grad, p.grad = p.grad.cpu(), None
update.step()
with torch.no_grad():
    for p, master in zip(model.parameters(), masters, strict=True):
        p.copy_(master)
print("bytes on the GPU more than before the step:", torch.cuda.memory_allocated() - before, f"({gpu.numbers})")
print(f"7B parameters, 28 GB each way over 12 GB/s: {2 * 28 / 12:.1f} s a step (computed)")

# %% lora-text [markdown]
# ## LoRA: small gradients, most of the activations
#
# LoRA freezes the model and adds to a `Linear` two thin matrices that are trained. Gradients and optimizer state all
# but vanish. Often that is told as “fine-tuning in a fraction of the memory”. Here every linear layer gets rank 8:
# 1.4 % of the parameters are trained (computed). How much of the activations is left? (The paper adapts attention only;
# that is in the table too.)

# %% lora-predict
lora_guess = gpulab.predict("Activations with LoRA, against full fine-tuning", unit="%")

# %% lora-model
class LoRA(nn.Module):
    """A frozen Linear plus a trained product of two thin matrices."""

    def __init__(self, linear, rank=8):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first it adds nothing

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def with_lora(blocks, names=("qkv", "out", "up", "down")):
    blocks.requires_grad_(False)
    for block in blocks:
        for name in names:
            setattr(block, name, LoRA(getattr(block, name)))


attention_lora = functools.partial(with_lora, names=("qkv",))


def first_frozen(blocks):
    blocks[:6].requires_grad_(False)


# %% lora-run
def planned(change=lambda blocks: None, forward=plain):
    """`gpulab.plan` on a T4, batch 8, fused AdamW, after `change(blocks)`: the bytes at the peak by what they hold."""

    def build(batch):
        with torch.device("cuda"):
            blocks, x = nn.ModuleList(Block() for _ in range(8)), torch.randn(batch, 512, 768)
            change(blocks)
        update = fused([p for p in blocks.parameters() if p.requires_grad])

        def step():
            forward(blocks, x).square().mean().backward()
            update.step(), update.zero_grad()

        return step

    return gpulab.plan(build, batch=8, gpu="T4")


# %% lora-table
plans = {"full": planned(), "LoRA": planned(with_lora), "LoRA on attention only": planned(attention_lora)}
plans["first 6 of 8 frozen"] = planned(first_frozen)
plans["LoRA, checkpointed"] = planned(with_lora, every_block)
print("MiB at the peak (virtual)   weights  gradients  state  activations  all together")
for name, found in plans.items():
    parts = [found.weights, found.gradients, found.optimizer_state, found.activations, found.peak_allocated]
    print(f"{name:<23}", "".join(f"{nbytes / 2**20:11,.0f}" for nbytes in parts))
share = {name: round(100 * found.activations / plans["full"].activations) for name, found in plans.items()}
lora_guess.compare(share["LoRA"], "virtual")
print(f"with LoRA on attention only: {share['LoRA on attention only']} % (virtual)")

# %% lora-explain [markdown]
# Nearly all. Backward has to reach the thin matrices of the *first* block, so it passes through every layer above,
# and needs what they kept: the inputs of the thin matrices, which are the inputs of the large ones, of GELU, of the
# norms, of attention. With adapters on attention only (the recipe of the paper), a frozen `Linear` of the MLP keeps no
# input, since it has no gradient to compute, and about two thirds are left. Either way, what LoRA saves most is what
# depends on the parameters.
#
# Frozen layers *below* everything that is trained are another matter. Backward never gets there, nothing is kept, and
# their backward pass falls away too.
#
# So LoRA goes together with checkpointing; each lowers what the other leaves. Frozen weights can also be stored in 4
# bits (QLoRA), since no optimizer moves them.

# %% price-text [markdown]
# ## The price list
#
# Now all of it on the one model, each remedy on top of those before, the cheapest first. Mixed precision belongs in
# the list (lesson 07 is about it, and adds a scaler), so its row is here as well. From where on is the memory half of
# what it was?

# %% price-run
def autocast(forward, blocks, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return forward(blocks, x)


half, half_each = functools.partial(autocast, plain), functools.partial(autocast, every_block)
prices = {
    "formula for attention, AdamW": measure(training(plain, attend=formula)),
    "attention kernel": nothing,
    "+ fused AdamW": offload["no checkpointing"],
    "+ autocast": measure(training(half, optimizer=fused)),
    "+ each block checkpointed": measure(training(half_each, optimizer=fused)),
    "+ step inside backward": measure(stepping_in_backward(half_each)),
}
first = prices["formula for attention, AdamW"]
for name, cost in prices.items():
    report(name, cost)
    print(f"{'':<34}      {cost[0] / first[0]:7.0%}       {cost[1] / first[1]:6.0%}")

# %% price-plot
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True)
names = list(prices)[::-1]
left.barh(names, [prices[name][0] for name in names])
left.set(xlabel=f"peak, MiB ({gpu.numbers})")
right.barh(names, [prices[name][1] for name in names], color=gpulab.style.ORANGE)
right.set(xlabel=f"step, ms ({gpu.numbers})")
figure.suptitle("First what costs no time, then checkpointing", fontsize=13, fontweight="bold")
gpulab.style.show(
    figure,
    alt="Bars of peak memory and step time for six configurations, each with one more remedy. Memory falls or stays "
    "from row to row. Time falls down to autocast, then rises with checkpointing.",
)

# %% price-explain [markdown]
# Memory that costs no time comes first: attention kernel, fused optimizer, mixed precision. All three make *this* step
# faster (autocast makes a small one slower, lesson 07). Only then checkpointing, which sells time for memory. The step
# inside backward comes last, since it takes clipping and accumulation away. And a remedy for what is not in the peak buys no memory: at this batch, the fused
# optimizer, until checkpointing has lowered the rest.
#
# On a real GPU, hold the plan against the measurement:

# %% price-plan
found = gpulab.plan(lambda batch: training(every_block, batch=batch)(), batch=8)  # for the GPU of this notebook
predicted = found.peak_allocated / 2**20
print(f"peak of a step, each block checkpointed: predicted {predicted:,.0f} MiB (virtual {found.gpu}),")
print(f"  here {each[0]:,.0f} MiB ({gpu.numbers}): {predicted / each[0] - 1:+.1%}")

# %% fits-turn-text [markdown]
# **Your turn** · 5 minutes. A minute of arithmetic in place of an afternoon of OutOfMemoryErrors: weights + state +
# max(activations, gradients + temporaries). The eight blocks, in float32 and with the default AdamW, are to be trained in
# four shares of a GPU. Their weights take 216 MiB, and each text keeps 198 MiB for backward, 12 of them the inputs of the
# blocks. *One* remedy is enough for each job. Which is the first that is, in the order of what they ask of you?
#
# `"fused AdamW"` · `"autocast"`: half of the activations, and a 16-bit copy of the weights · `"checkpoint"`: each block ·
# `"Adafactor"`: almost no state, and almost no temporaries

# %% fits-turn tags=["your-turn"]
def remedies():
    # TODO: a remedy in place of each None
    ### BEGIN SOLUTION
    return {
        "batch 1 in 950 MiB": "fused AdamW",
        "batch 8 in 1,900 MiB": "autocast",
        "batch 8 in 1,200 MiB": "checkpoint",
        "batch 1 in 600 MiB": "Adafactor",
    }
    ### INSTEAD OF
    # return {
    #     "batch 1 in 950 MiB": None,
    #     "batch 8 in 1,900 MiB": None,
    #     "batch 8 in 1,200 MiB": None,
    #     "batch 1 in 600 MiB": None,
    # }
    ### END SOLUTION


gpulab.turn.must_fit(remedies)

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Checkpointing saves 50–70 % of the memory for 30 % more compute.” | The time is right: one forward pass more, about a third where products dominate, more where memory traffic does. The saving is of activations only, and depends on the segments: none of it with one, most of it with one for each block. | *A question worth asking*, *Keep the input* |
# | “It brings memory down to $O(\sqrt L)$.” | Only with about $\sqrt L$ segments, and these are best only where a layer keeps as much as it is given. In general $\sqrt{L\,I/b}$. A fixed 4 is neither. | *How many segments* |
# | “Memory for compute.” | True, and the two exchange rates differ: by block, by operation, by kernel. | *Keep what was dear*, *Attention* |
# | “Always enable gradient checkpointing.” | No: it costs time even where the peak is elsewhere. First what costs nothing. | *The price list* |
# | “The model is too large: checkpoint it.” | It lowers activations. Weights, gradients and optimizer state stay. | first plot |
# | “`model.gradient_checkpointing_enable()`” | A method of Hugging Face's models. An `nn.Module` has none. | *Common mistakes* |
# | “FlashAttention is an approximation.” | It is the same sum in another order. | next cell |
# | “LoRA fine-tunes in a fraction of the memory.” | A fraction of gradients and state. Of the activations nearly all stay with adapters on every `Linear`, two thirds with adapters on attention only. | *LoRA* |

# %% web-attention
q, k, v = (torch.randn(2, 4, 64, 32, device=gpu.device) for _ in "qkv")
off = (F.scaled_dot_product_attention(q, k, v) - formula(q, k, v)).abs().max()
print("kernel and formula agree to 1e-5:", bool(off < 1e-5))

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Leaving `use_reentrant` out.** Then the older implementation runs. It computes forward without a graph, and finds
# out whether anything needs a gradient by looking at the *inputs*. Data need none. What the tutorial prints, run as
# it stands:

# %% mistake-reentrant tags=["raises-exception"]
small_model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))).to(gpu.device)
x = torch.randn(8, 16, device=gpu.device)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out = checkpoint(small_model, x)
for warning in caught:
    print(warning.category.__name__, "·", str(warning.message)[:101], "…")
out.sum().backward()

# %% mistake-reentrant-text [markdown]
# The error is the lucky case. If the part that is not checkpointed has parameters, backward succeeds, and the
# checkpointed ones get no gradient. `checkpoint_sequential` does not checkpoint its last segment, so this is what it
# does, with a warning that scrolls away:

# %% mistake-sequential
def without_gradient(run):
    """Which of the four layers have no gradient after backward."""
    small_model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run().sum().backward()
    return [i for i, layer in enumerate(small_model) if layer[0].weight.grad is None]


print("reentrant, layers without gradient:   ", without_gradient(lambda: checkpoint_sequential(small_model, 2, x, use_reentrant=True)))
print("use_reentrant=False:                  ", without_gradient(lambda: checkpoint_sequential(small_model, 2, x, use_reentrant=False)))


def detached():
    h = x
    for layer in small_model:
        h = checkpoint(layer, h.detach(), use_reentrant=False)  # “to save memory”
    return h


print("detached between segments:            ", without_gradient(detached))

# %% mistake-detach-text [markdown]
# Half of the model is not trained, and the loss falls all the same, since the other half learns. Look for `None` in
# `.grad` once, after the first backward. The usual work-around, `x.requires_grad_()`, is what `use_reentrant=False`
# makes unnecessary.
#
# **Four more lines,** three of them from tutorials, and what they answer:

# %% mistake-names
class LargeModel(nn.Module):
    def forward(self, x):  # printed without an __init__
        return checkpoint(self.layer1, x, use_reentrant=False)


inplace = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 16)).to(gpu.device)
for attempt in (
    lambda: small_model.gradient_checkpointing_enable(),
    lambda: LargeModel()(x),
    lambda: checkpoint_sequential(small_model, 5, x, use_reentrant=False),  # 4 layers, 5 segments
    lambda: checkpoint(inplace, small_model(x), use_reentrant=False).sum().backward(),
):
    try:
        attempt()
    except (AttributeError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__} · {str(error)[:96]}")

# %% mistake-names-text [markdown]
# The first exists on Hugging Face's models only. The second needs its layers. The third has fewer layers than
# segments. In the fourth, a segment begins by overwriting its own input, which is the one tensor that had to stay:
# PyTorch notices. Start segments with an operation that is not in-place.
#
# **Randomness that is not PyTorch's.** Skipping layers at random with Python's `random` is a coin that falls anew
# when the segment is computed again:

# %% mistake-random
class Noisy(nn.Module):
    """A layer that is skipped, or scaled, by a number from Python's generator."""

    def __init__(self, skip):
        super().__init__()
        self.first, self.second, self.skip = nn.Linear(16, 16), nn.Linear(16, 16), skip

    def forward(self, x):
        if self.skip:
            return self.second(self.first(x).relu()) if random.random() < 0.5 else self.first(x)
        return self.first(x * random.random()).relu()


def noisy_gradient(layer, again, passes=1):
    random.seed(0)
    layer.zero_grad()
    for _ in range(passes):
        (checkpoint(layer, x, use_reentrant=False) if again else layer(x)).sum().backward()
    return layer.first.weight.grad.clone()

# %% mistake-random-run
scaled = Noisy(skip=False).to(gpu.device)
same = torch.allclose(noisy_gradient(scaled, True), noisy_gradient(scaled, False))
print("scaled at random, checkpointed: same gradient:", same)
try:
    noisy_gradient(Noisy(skip=True).to(gpu.device), True, passes=8)
except torch.utils.checkpoint.CheckpointError as error:
    print("CheckpointError ·", str(error).splitlines()[0])

# %% mistake-random-text [markdown]
# `checkpoint` compares number, shapes and dtypes of what the two passes keep. When the second pass skips what the
# first kept, too little comes back, and you are told. Scaling changes neither number nor shape, and the gradient is
# silently wrong. Draw the number outside of the segment and pass it in, or draw it with `torch.rand`.
#
# **BatchNorm in a segment** meets every batch twice. The gradient is right; the running statistics move twice as
# often:

# %% mistake-batchnorm
def tracked(momentum, again):
    """The running mean and the number of batches seen, after one training step on one batch."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU()).to(gpu.device)
    (checkpoint(layers, x, use_reentrant=False) if again else layers(x)).sum().backward()
    return layers[1].running_mean, layers[1].num_batches_tracked.item()


once, twice, repaired = tracked(0.1, False), tracked(0.1, True), tracked(1 - (1 - 0.1) ** 0.5, True)
print("batches seen, without and with checkpointing:", once[1], "and", twice[1])
print("same running mean:", torch.allclose(once[0], twice[0]))
print("same running mean with momentum 1 - √(1 - 0.1):", torch.allclose(once[0], repaired[0]))

# %% mistake-measure-text [markdown]
# **Measuring after backward.** By then the activations are gone, with checkpointing or without. What you want is the
# peak, `torch.cuda.max_memory_allocated()`, reset before the step:

# %% mistake-measure
for name, forward in (("no checkpointing", plain), ("each block", every_block)):
    with on_gpu():
        step = training(forward)()
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        now, peak = torch.cuda.memory_allocated() / 2**20, torch.cuda.max_memory_allocated() / 2**20
        print(f"{name:<17} allocated after the step {now:5.0f} MiB   peak {peak:6,.0f} MiB ({gpu.numbers})")
        del step

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(6)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. What counts is the peak. Lower it, then ask where the next one is: activations, gradients, or the optimizer's
#    step.
# 2. Checkpointing costs one forward pass: about a third of the step's time where products dominate, more where memory
#    traffic does. One segment saves nothing; for transformers, cut at every block; in general at $\sqrt{L\,I/b}$ segments.
# 3. First what costs no time: attention kernels, `fused=True`, mixed precision where products are large.
# 4. LoRA lowers gradients and state, and keeps most of the activations. Checkpointing does the opposite. Together they
#    lower both.
# 5. The bus is slower than the GPU: recompute before you offload, unless little is sent.
#
# **For the checklist:** `use_reentrant=False` · no `None` in `.grad` after the first backward · no Python randomness
# in a segment · read the peak, not what is left · `fused=True` · `need_weights=False`.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/06_less_memory.ipynb): two functions, each checked on your own code. Then [the map of
# the course](00_start_here.ipynb): lesson 07, mixed precision.
#
# ## References
#
# - PyTorch documentation: `torch.utils.checkpoint`; `torch.autograd.graph.saved_tensors_hooks` and `save_on_cpu`;
#   `torch.nn.functional.scaled_dot_product_attention`; `torch.optim`; `register_post_accumulate_grad_hook`.
# - Chen et al., *Training Deep Nets with Sublinear Memory Cost*, arXiv 1604.06174. Korthikanti et al., *Reducing
#   Activation Recomputation in Large Transformer Models*, arXiv 2205.05198. Dao et al., *FlashAttention*, arXiv
#   2205.14135.
# - Shazeer and Stern, *Adafactor*, arXiv 1804.04235. Dettmers et al., *8-bit Optimizers via Block-wise Quantization*,
#   arXiv 2110.02861; *QLoRA*, arXiv 2305.14314. Hu et al., *LoRA*, arXiv 2106.09685.
# - Hugging Face, *Methods and tools for efficient training on a single GPU* (2022 version), for the BERT-large
#   figures; *BERT*, for those of attention.
