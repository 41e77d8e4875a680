# %% title [markdown]
# # 06 · Less memory
#
# **Promise:** you train the same model in half the memory, and you know what each saving costs in time.
#
# After this lesson you can **checkpoint** a model so that the peak of its step falls · **choose** the number of
# segments from bytes · **find** the cheapest remedy with which a job fits.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 40 for the exercises | lessons 04 and 05: what fills memory, and what the peak is | any machine |

# %% setup
import matplotlib.pyplot as plt

import gpulab

gpu = gpulab.setup()

# %% question-text [markdown]
# ## A question worth asking
#
# Somebody wrote GPT-2 by hand, trained it on one A100, and then changed one thing after the other. Each dot is the same
# training: the same model, the same batch of 8 texts.


# %% series
def draw(memory, speed, title, unit):
    figure, axes = plt.subplots(figsize=(7.2, 2.7))
    axes.plot([*memory.values()], [speed[name] for name in memory], "o-")
    for name, x in memory.items():
        below = name in ("baseline fp32", "+ TF32", "kernel", "+ checkpointing")
        axes.annotate(name, (x, speed[name]), (7, 5 - 14 * below), textcoords="offset points")
    axes.set(xlim=(0, 1.35 * max(memory.values())), ylim=(0, 1.15 * max(speed.values())))
    axes.set(title=title, xlabel=f"memory, {unit}", ylabel="tokens per second")
    dots = "; ".join(f"{name} {x:,.0f}, {speed[name]:,.0f}" for name, x in memory.items())
    gpulab.style.show(figure, alt=f"{title}. Memory in {unit}, then tokens per second: {dots}")

# %% series-plot
gpulab.style.use()
trainings = gpulab.data.trainings("rasbt gpt2 by hand")
rows = [row for row in trainings if row.setting != "mask on the fly"]  # it changed nothing
gib = {row.setting: row.value for row in rows if row.unit == "reserved GiB"}
speed = {row.setting: row.value for row in rows if row.unit == "tokens/s"}
draw(gib, speed, "One GPT-2: 7 times as fast in a quarter of the memory", "GiB (recorded)")

# %% series-text [markdown]
# Higher is faster, further left is less memory. The last three steps improve both. TF32 and 16-bit weights belong to
# lesson 07. The others are here: an optimizer in one kernel, operations that write less, and attention that never
# writes its table of scores.
#
# One remedy is not in the picture, because it goes left and *down*: it saves memory and takes time. Backward needs what
# forward computed, the *activations*. **Activation checkpointing** discards them, and computes them again in backward.
# We try it on eight blocks of a GPT, as in lesson 04.


# %% imports
import functools
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

# %% model
class Block(nn.Module):
    """One layer of a GPT: attention, then a two-layer network, each added to its input."""

    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))

# %% build
def gpt(layers=8):
    return nn.Sequential(*(Block() for _ in range(layers)))


# A training step: its model and `batch` texts are made on the GPU
def build(batch, run, optimizer=torch.optim.AdamW, make=gpt, tokens=512):
    with torch.device("cuda"):
        model, x = make(), torch.randn(batch, tokens, 768)
    update = optimizer([p for p in model.parameters() if p.requires_grad])

    def step():
        run(model, x).square().mean().backward()
        update.step()
        update.zero_grad()

    return step


# %% plan-text [markdown]
# `gpulab.plan` runs this step with shapes and no values, here for a T4. Its bytes are right within about one per cent;
# its times come from a model. So these numbers are *virtual* on every machine. `show` prints what is in memory at the
# peak. What its columns do not list is temporaries and data.


# %% plan
def planned(run, *more, batch=8, **options):
    return gpulab.plan(lambda batch: build(batch, run, *more, **options), batch, "T4")


def show(plans):
    print("MiB at the peak (virtual T4)  weights gradients  state activations   peak       ms")
    for name, found in plans.items():
        parts = [found.weights, found.gradients, found.optimizer_state, found.activations]
        numbers = [f"{part / 2**20:8,.0f}" for part in (*parts, found.peak_allocated)]
        print(f"{name:<28}", *numbers, f"{found.step_ms:8.1f}")


# %% question-ask [markdown]
# The obvious way to checkpoint is to wrap the model: `checkpoint(model, x, use_reentrant=False)`. Now forward keeps
# nothing but the input. How high is the peak of the whole step, in per cent of the peak without checkpointing?

# %% question-predict
peak_guess = gpulab.predict("Peak with the whole model in one checkpoint, against none", unit="%")


# %% question-answer
def plain(model, x):
    return model(x)


def one_segment(model, x):
    return checkpoint(model, x, use_reentrant=False)


plans = {"no checkpointing": planned(plain), "one segment": planned(one_segment)}
show(plans)
before, after = (found.peak_allocated for found in plans.values())
why = "Backward has the whole model computed again at once, and this time everything is kept."
peak_guess.compare(round(100 * after / before), "virtual", because=why)

# %% bars-text [markdown]
# A *segment* is what one `checkpoint` wraps (not a segment of the allocator, as in lesson 05). To begin backward in a
# segment, PyTorch computes the whole segment again, and now keeps everything inside, since backward is about to use it.
# The bars show when the activations inside each block are in memory. Forward takes one unit of time for each block,
# backward two.

# %% bars
figure, panels = plt.subplots(1, 3, figsize=(9.6, 2.7), sharey=True)
for axes, size in zip(panels, (8, 4, 1), strict=True):  # blocks in a segment
    for block in range(8):
        place = block % size
        again = 8 + 3 * (8 - size - block + place) + place
        axes.broken_barh([(block, 1), (again, 3 * (size - place))], (block + 0.6, 0.8))
    axes.set(xlim=(0, 32), xlabel="time (computed)", title=f"segments of {size}: {size} at once")
panels[0].set_ylabel("block")
gpulab.style.show(figure, alt="Bars over time: 8, then 4, then 1 of the eight blocks are in memory at once.")

# %% turn-text [markdown]
# Only one segment at a time is in memory again. So make the segments small.
#
# **Your turn** · 3 minutes. Change `in_segments`, so that the peak of the step falls below 60 % and the gradients stay
# the same. `model` is an `nn.Sequential` of eight blocks.


# %% turn tags=["your-turn"]
def in_segments(model, x):
    ### BEGIN SOLUTION
    for block in model:
        x = checkpoint(block, x, use_reentrant=False)
    return x
    ### INSTEAD OF
    # return checkpoint(model, x, use_reentrant=False)
    ### END SOLUTION


gpulab.turn.in_segments(in_segments)

# %% again-text [markdown]
# ## Keep the input, compute the rest again
#
# For an `nn.Sequential` PyTorch has a function that cuts it into equal segments. It does not checkpoint the last one,
# since backward begins there and needs its activations at once. So seven of our eight blocks run forward a second time.
# How much longer does a step take?

# %% again-predict
time_guess = gpulab.predict("How much longer does a step with eight segments take?", unit="%")


# %% again-run
def eight_segments(model, x):
    return checkpoint_sequential(model, 8, x, use_reentrant=False)


plans["eight segments"] = planned(eight_segments)
show(plans)
why = """Backward has two products for each of forward, so a step is three forward passes. Seven
blocks of eight add 7/24 or 29 %, a little less with the optimizer's step, which runs once."""
longer = plans["eight segments"].step_ms / plans["no checkpointing"].step_ms - 1
time_guess.compare(round(100 * longer), "virtual", because=why)

# %% again-next [markdown]
# This halves the memory. What is left? Weights, gradients and Adam's state take most of the new peak, and checkpointing
# cannot lower them. **When you have lowered one peak, ask where the next one is.**
#
# This price in time assumes that the GPU always computes, with two products in backward for each in forward. Here are
# three real networks on an H100, with every block computed again (recorded):
#
# | ms a step | float32 | bf16 (autocast) |
# |---|---|---|
# | GPT-2, 8 × 1024 tokens | 169 → 210, 24 % longer | 38 → 73, 90 % |
# | ViT-B/16, 64 images | 183 → 224, 22 % | 42 → 64, 55 % |
# | ResNet-50, 64 images | 82 → 103, 26 % | 35 → 74, 111 % |
#
# In bf16 the kernels are short, so this GPU waits for its host, which is slow and launches the second forward pass,
# too. So expect **about a quarter more time where float32 products dominate, more in 16 bits, and most where the GPU
# waits for the host**.

# %% again-explain [markdown]
# The result must stay the same, and dropout is the hard part: the second pass has to draw the same mask. So
# `checkpoint` stores the state of PyTorch's random generators, and puts it back before it computes again. With
# `preserve_rng_state=False` it does not:

# %% again-same
for keep in (True, False):
    ones = torch.ones(12, device=gpu.device, requires_grad=True)
    out = checkpoint(F.dropout, ones, use_reentrant=False, preserve_rng_state=keep)
    out.sum().backward()
    print(f"{keep!s:<5} forward {out.int().tolist()} backward {ones.grad.int().tolist()}")

# %% again-rng [markdown]
# `True` is the default. Python's `random` and NumPy's generator are *not* stored, so a segment that draws from them
# gets other numbers the second time. The gradient is then wrong without an error, or a branch changes and you get a
# CheckpointError. Draw with `torch`.
#
# `use_reentrant=False` selects the newer implementation. The default is still the older one; *Common mistakes* shows
# what that does.

# %% segments-text [markdown]
# ## How many segments
#
# You will read that checkpointing takes $O(\sqrt L)$ memory: cut $L$ layers into $\sqrt L$ segments. With $S$ segments
# you keep $S$ inputs of $b$ bytes, and the inside of one segment at a time: $L/S$ layers of $I$ bytes.
#
# $$\text{kept}(S) \approx S\,b + \frac LS\,I \qquad\Rightarrow\qquad S_\text{best} = \sqrt{L\,I/b}$$
#
# $S_\text{best}$ is $\sqrt L$ only if a layer keeps as much inside as its input takes: $I = b$.
#
# **Your turn** · 4 minutes. Write `best_segments`: the number of *equal* segments, a divisor of `layers`, that keeps
# the least. A layer keeps `inside` bytes; its input takes `given` bytes.


# %% segments-turn tags=["your-turn"]
def best_segments(layers, inside, given):
    ### BEGIN SOLUTION
    divisors = [s for s in range(1, layers + 1) if layers % s == 0]
    return min(divisors, key=lambda s: s * given + layers // s * inside)
    ### INSTEAD OF
    # return round(layers**0.5)
    ### END SOLUTION


gpulab.turn.best_segments(best_segments)


# %% segments-run
def cut_into(segments):
    return lambda model, x: checkpoint_sequential(model, segments, x, use_reentrant=False)


show({f"S = {number}": planned(cut_into(number)) for number in (1, 2, 4, 8)})
x = torch.randn(1, 512, 768, device=gpu.device)
print("a block:", gpulab.memory.activation_bytes(Block().to(gpu.device), x))

# %% segments-explain [markdown]
# A block keeps about 15 times its input, and √(8 · 15) is 11 segments, more than there are blocks: so cut at every
# block. (For 96 blocks, 32 segments are best: they keep 5 % of the bytes, and 96 segments keep 7 % (computed).)
# $\sqrt L$ fits stacks of thin layers, such as `Linear` and `Tanh`. Choose a divisor: `checkpoint_sequential` puts
# left-over layers into the last segment, which is not checkpointed.
#
# ### See it move
#
# The simulator opens on 24 layers in 4 segments. Drag *Moment* through the step.
#
# 1. Set *Segments* to 5. Why is the peak higher than with 4? Then set it to 24: at which moment is the peak now?
# 2. Under *More settings*, set *A layer keeps* to twice its input. Which number of segments is best?

# %% simulator
gpulab.sim.step_memory()

# %% selective-text [markdown]
# ## Keep what was expensive, compute again what was cheap
#
# In float32, matrix products and attention take most of a block's time. Normalisation, GELU, dropout and additions are
# quick, but keep many bytes. *Selective* checkpointing keeps the results of the operations that you name. Name what
# PyTorch runs below `nn.Linear`: `addmm` is a product with a bias, `mm` one without.

# %% selective-run
aten = torch.ops.aten
# In 16 bits on newer GPUs it is _scaled_dot_product_flash_attention, or _cudnn_attention
attend = aten._scaled_dot_product_efficient_attention.default
keeping = torch.utils.checkpoint.create_selective_checkpoint_contexts
contexts = functools.partial(keeping, [aten.mm.default, aten.addmm.default, attend])


def selective(model, x):
    for block in model:
        x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return x


show(plans | {"keep what was expensive": planned(selective)})

# %% selective-explain [markdown]
# This gives two fifths of the saving for a small part of the price, on this T4 in float32. With tensor cores, products
# take less of the time, so computing the rest again costs relatively more.
#
# **The loss is a layer too.** In a language model the largest tensor is often the logits: 4096 tokens times GPT-2's
# vocabulary of 50,257 take 785 MiB in float32, and the loss keeps as much again. Cut the tokens into pieces, and
# checkpoint the head and the loss of each piece.

# %% attention-text [markdown]
# ## Attention that is never written down
#
# Attention as in the formula, $\mathrm{softmax}(QK^\top/\sqrt d)\,V$, writes a table of length × length for each head.
# The kernels behind `F.scaled_dot_product_attention` (FlashAttention, memory-efficient attention, cuDNN's) work through
# the table in tiles that stay on the chip, and compute the tiles again in backward. This is checkpointing inside a
# kernel.
#
# Our blocks use such a kernel, and their step peaks at 2.3 GiB. With the formula it is 3.1 GiB (virtual), for eight
# texts of 512 tokens. Now take the same 4096 tokens as *one* text. With the kernel the peak stays the same. How high is
# it with the formula?

# %% attention-predict
attention_guess = gpulab.predict("Peak with the formula, one text of 4096 tokens", unit="GiB")

# %% attention-run
cases = {"kernel, 1 × 4096": planned(plain, batch=1, tokens=4096)}
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the formula
    cases["formula, 1 × 4096"] = planned(plain, batch=1, tokens=4096)
    cases["formula, 8 × 512"] = planned(plain)
show(cases)
why = """A table for each head of each text: 64 times as large, an eighth as many, so 8 times the
bytes. And backward holds some more of them at once."""
peak = cases["formula, 1 × 4096"].peak_allocated / 2**30
attention_guess.compare(round(peak, 1), "virtual", because=why)

# %% attention-explain [markdown]
# The kernel computes the scores twice and is faster all the same: it writes no table (lesson 01), and skips the half
# that `is_causal` masks. It is no approximation: it adds the same numbers in another order. So use it before any
# checkpointing. (With the formula, a checkpointed step still has the whole table of one block at a time.)
#
# Look at the opening again: FlashAttention was its last step. Our virtual A100 gives the memory of all these dots within
# 1 %. Its speed is 1.2 to 1.5 times too high, at the last dot 1.7 times ([how exact it is](../docs/accuracy.md)).

# %% attention-lost [markdown]
# Two things can cost you the kernel. `nn.MultiheadAttention` computes the table unless you pass `need_weights=False`.
# FlashAttention needs 16 bits and compute capability 8.0 (A100) or more; a T4 takes the memory-efficient kernel.

# %% optimizer-text [markdown]
# ## The optimizer's share
#
# Adam keeps two numbers for each parameter, 8 bytes. By default PyTorch steps on a GPU with *foreach* kernels, which
# work through all parameters at once, operation by operation. How many bytes for each parameter does AdamW take
# *during its step*, beside weights, gradients and state?

# %% optimizer-predict
temporary_guess = gpulab.predict("AdamW's step takes, for each parameter", unit="bytes")

# %% optimizer-run
fused = functools.partial(torch.optim.AdamW, fused=True)
kinds = {"AdamW": torch.optim.AdamW, "fused AdamW": fused, "Adafactor": torch.optim.Adafactor}
with warnings.catch_warnings(action="ignore"):  # Adafactor reads values, and a plan has none
    stepped = {name: planned(eight_segments, kind, batch=1) for name, kind in kinds.items()}
show(stepped)
why = "One result of all parameters at a time is another copy of the weights; `fused` has none."
temporary = 4 * stepped["AdamW"].temporaries / stepped["AdamW"].weights
temporary_guess.compare(round(temporary, 1), "virtual", because=why)

# %% optimizer-plan
stepped["AdamW"]

# %% optimizer-explain [markdown]
# With one text, the peak comes in the optimizer's step, when the activations are gone. So the peak is not the sum of
# everything, but roughly the larger of two moments:
#
# weights + state + max(activations, gradients + temporaries)
#
# With large batches, the activations set the peak. With small batches, or after checkpointing, gradients and
# temporaries may. `fused=True` removes the temporaries.
#
# **Adafactor** keeps a row and a column of statistics in place of a matrix. It is a different algorithm, so tune the
# learning rate again. **8-bit Adam** (`bitsandbytes`, `torchao`) keeps Adam's two numbers in a byte each, with a scale
# for every 256: 2 × (1 + 4/256) = 2.03 bytes a parameter (computed).

# %% backward-text [markdown]
# ## Gradients that never meet
#
# After backward every gradient waits for the optimizer. Adam updates each parameter by itself, so it can step inside
# backward as soon as a gradient is complete, and free the gradient:


# %% backward-run
def step_and_free(parameter):
    parameter.optimizer.step()
    parameter.optimizer.zero_grad()


def in_backward(parameters):
    for parameter in parameters:
        parameter.optimizer = torch.optim.AdamW([parameter], fused=True)
        parameter.register_post_accumulate_grad_hook(step_and_free)
    return torch.optim.SGD(parameters)  # it finds no gradient, and does nothing


# %% backward-plan
show({"fused, inside backward": planned(eight_segments, in_backward, batch=1)})

# %% backward-explain [markdown]
# The default AdamW takes five times the weights (weights, gradients, two of state, temporaries), this one little more
# than three. You give up what needs the gradients after backward: clipping by their norm, accumulation (lesson 08),
# `GradScaler` (lesson 07).

# %% host-text [markdown]
# ## Send it to the host
#
# `torch.autograd.graph.save_on_cpu(pin_memory=True)` sends what autograd keeps to the host, and fetches it in backward.
# Each byte crosses the bus twice. Our blocks keep 1.5 GiB. At 12 GB/s (PCIe 3, pinned) that is 0.27 s, beside a step of
# 0.38 s on the T4 (computed; virtual). A faster GPU has a shorter step; its bus is rarely faster by as much. A program
# that copies on a second stream (lesson 03) can overlap the copies with arithmetic; `save_on_cpu` does not.
#
# And it is not selective. What does it send?

# %% host-sent
block = Block().to(gpu.device)
weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
sent = {"activations": 0, "weights": 0}


def pack(tensor):
    kind = "weights" if tensor.untyped_storage().data_ptr() in weights else "activations"
    sent[kind] += tensor.nbytes / 2**20
    return tensor.detach()


with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
    block(x)
print("one block, one text:", {kind: f"{mib:.1f} MiB" for kind, mib in sent.items()})

# %% host-explain [markdown]
# The weights are sent too, and come back as second copies, although they never left the GPU. Your own pair of hooks can
# leave weights and small tensors where they are; exercise 2 is about that.

# %% lora-text [markdown]
# ## LoRA: what it saves
#
# LoRA freezes the model, and adds to a `Linear` two thin matrices that are trained. Here every `Linear` gets rank 8,
# 1.4 % of the parameters (computed). Gradients and optimizer state all but vanish. How much of the activations is left?

# %% lora-predict
lora_guess = gpulab.predict("Activations with LoRA, against full fine-tuning", unit="%")


# %% lora-model
class LoRA(nn.Module):
    def __init__(self, linear, rank=8):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first it adds nothing

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def adapted(names=("qkv", "out", "up", "down")):
    model = gpt().requires_grad_(False)
    for block in model:
        for name in names:
            setattr(block, name, LoRA(getattr(block, name)))
    return model


# %% lora-run
tuned = {"full": planned(plain, fused), "LoRA": planned(plain, fused, adapted)}
tuned["LoRA on qkv alone"] = planned(plain, fused, lambda: adapted(["qkv"]))
tuned["LoRA, eight segments"] = planned(eight_segments, fused, adapted)
show(tuned)
why = "Each adapter needs the input of its layer, and backward passes through every block."
share = tuned["LoRA"].activations / tuned["full"].activations
lora_guess.compare(round(100 * share), "virtual", because=why)

# %% lora-explain [markdown]
# With adapters on `qkv` alone, the frozen layers of the MLP keep no input. LoRA saves gradients and state,
# checkpointing saves activations: use both. Frozen layers *below* everything that is trained keep nothing, because
# backward never gets there.

# %% price-text [markdown]
# ## The price list
#
# Here are the remedies on our eight blocks, each added to those before. Lesson 07 explains autocast.

# %% price-run
half = torch.autocast("cuda", dtype=torch.float16)
prices = {"formula": cases["formula, 8 × 512"], "kernel": plans["no checkpointing"]}
prices["+ fused AdamW"] = tuned["full"]
prices["+ autocast"] = planned(half(plain), fused)
prices["+ checkpointing"] = planned(half(eight_segments), fused)
show(prices)

# %% price-plot
mib = {name: found.peak_allocated / 2**20 for name, found in prices.items()}
speed = {name: 8 * 512 / found.step_ms * 1e3 for name, found in prices.items()}
draw(mib, speed, "First what costs no time, then checkpointing", "MiB (virtual T4)")

# %% price-explain [markdown]
# What costs no time comes first: attention kernel, fused optimizer, mixed precision. Then comes checkpointing, which
# trades time for memory. A remedy for what is not in the peak saves no memory, like the fused optimizer here.
# (Autocast's gain on the virtual T4 is above most recorded ones: whole trainings gained 2 to 4 times, lesson 07.)
#
# A plan is a prediction. Compare one with this machine, for one block and one text:

# %% price-plan
found = gpulab.plan(lambda batch: build(batch, plain, make=lambda: gpt(1)), 1)
print(f"one block: {found.peak_allocated / 2**20:.1f} MiB planned for {found.gpu}")
here = gpulab.memory.peak(lambda: build(1, plain, make=lambda: gpt(1))())
print(f"here: {here.above / 2**20:.1f} MiB ({here.numbers})")

# %% fits-turn-text [markdown]
# **Your turn** · 5 minutes. The eight blocks are to be trained in a share of a GPU, in float32 with the default AdamW.
# Weights take 216 MiB. Each text keeps 198 MiB for backward, 12 of them the inputs of the blocks. Use the formula of
# *The optimizer's share*. For each job, which is the first remedy in this list that is enough *alone*?
#
# `"fused AdamW"` · `"autocast"`: half of the activations, and a 16-bit copy of the weights · `"checkpoint"`: each block ·
# `"Adafactor"`: almost no state, and almost no temporaries
#
# The jobs: **1** batch 1 in 950 MiB · **2** batch 8 in 1,900 MiB · **3** batch 8 in 1,200 MiB · **4** batch 1 in 600 MiB


# %% fits-turn tags=["your-turn"]
def remedies():
    ### BEGIN SOLUTION
    return ["fused AdamW", "autocast", "checkpoint", "Adafactor"]
    ### INSTEAD OF
    # return [None, None, None, None]
    ### END SOLUTION


gpulab.turn.must_fit(remedies)

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Checkpointing saves 50–70 % of the memory for 30 % more compute.” | The time is about right in float32. The saving is of activations only: none with one segment, most with one for each block. | *A question worth asking*, *Keep the input* |
# | “It brings memory down to $O(\sqrt L)$.” | Yes, with $\sqrt L$ segments of thin layers. In general $\sqrt{L\,I/b}$ segments are best. | *How many segments* |
# | “Always enable gradient checkpointing.” | It costs time even where the peak is elsewhere. First use what costs nothing. | *The price list* |
# | “The model is too large: checkpoint it.” | Weights, gradients and optimizer state stay. | *Keep the input* |
# | “FlashAttention is an approximation.” | No: it adds the same numbers in another order. | *Attention* |
# | “LoRA fine-tunes in a fraction of the memory.” | A fraction of gradients and state; the weights and most activations stay. | *LoRA* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Leaving `use_reentrant` out.** The older implementation runs forward without a graph, and looks at the *inputs* to
# find out whether a gradient is needed. Input data need none. A warning says so once, and scrolls away:

# %% mistake-reentrant tags=["raises-exception"]
warnings.simplefilter("ignore")
four = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).to(gpu.device)
data = torch.randn(8, 16, device=gpu.device)
checkpoint(four, data).sum().backward()

# %% mistake-reentrant-text [markdown]
# You are lucky if you get this error. `checkpoint_sequential` does not checkpoint its last segment, so backward
# succeeds:

# %% mistake-sequential
checkpoint_sequential(four, 2, data, use_reentrant=True).sum().backward()
print("gradients of the four layers:", [layer.bias.grad is not None for layer in four])

# %% mistake-turn-text [markdown]
# Half of the model is not trained, and the loss falls all the same. `use_reentrant=False` repairs it. (`detach()`
# between segments “to save memory” loses the same gradients for good.)
#
# **Your turn** · 2 minutes. Write the check that you run once, after the first backward: the names of the parameters
# that are to be trained and have no gradient. Layers that are frozen on purpose are no mistake.


# %% mistake-turn tags=["your-turn"]
def untrained(model):
    ### BEGIN SOLUTION
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    ### INSTEAD OF
    # return []
    ### END SOLUTION


gpulab.turn.untrained(untrained)

# %% mistake-more [markdown]
# **Four more**, with what you get:
#
# - `model.gradient_checkpointing_enable()` on your own `nn.Module`: AttributeError; it is a method of Hugging Face's
#   models. You get it also for `self.layer1` in a class that a tutorial prints without its `__init__`.
# - `checkpoint_sequential` with more segments than layers: ValueError.
# - A segment that begins with `nn.ReLU(inplace=True)` overwrites its input, the one tensor that had to stay:
#   RuntimeError in backward.
# - BatchNorm in a segment sees every batch twice: the gradient is right, but the running statistics move twice.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(6)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. The peak counts. Lower it, then ask where the next one is: activations, gradients, or the optimizer's step.
# 2. Checkpointing costs one forward pass. One segment saves nothing; cut a transformer at every block, and other stacks
#    into $\sqrt{L\,I/b}$ segments.
# 3. Use first what costs no time: attention kernels, `fused=True`, mixed precision where products are large.
# 4. LoRA lowers gradients and state, and keeps most of the activations. Checkpointing does the opposite.
# 5. Before you offload, compare the seconds on the bus with those of computing again.
#
# **For the checklist:** `use_reentrant=False` · no `None` in `.grad` after the first backward · no Python randomness in
# a segment · read the peak, not what is left after the step · `fused=True` · `need_weights=False`.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/06_less_memory.ipynb): two functions, each checked on your own code. Then [the map of
# the course](00_start_here.ipynb): lesson 07, mixed precision.
#
# ## References
#
# - PyTorch documentation: `torch.utils.checkpoint`; `torch.autograd.graph.saved_tensors_hooks`; `torch.nn.attention`.
# - The series of the opening: S. Raschka, *LLMs from scratch*, chapter 5, “LLM training speed”.
# - Chen et al., *Training Deep Nets with Sublinear Memory Cost*, arXiv 1604.06174; Dao et al., *FlashAttention*, arXiv
#   2205.14135; Hu et al., *LoRA*, arXiv 2106.09685.
