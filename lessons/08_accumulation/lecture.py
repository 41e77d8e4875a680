# %% title [markdown]
# # 08 · Gradient accumulation
#
# **Promise:** you train with a batch that does not fit on your GPU, and get the same gradient, up to rounding.
#
# After this lesson you can **split** a batch into micro-batches and show that the gradient stays the same · **repair**
# the loop that most tutorials print · **place** scaler, clipping and schedule · **choose** among all remedies of
# lessons 05 to 08.
#
# | time | before this | runs on |
# |---|---|---|
# | 45 minutes, and an hour for the exercises | lessons 04 and 07; a training loop of your own | any machine |

# %% setup
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
images, labels = gpulab.data.digits("train")

# %% question-text [markdown]
# ## A question worth asking
#
# You want batches of 128, and only 16 samples fit. So you run *micro-batches* of 16, add up their gradients, and step
# once. Below is the loop as many tutorials print it, on ten micro-batches and a small CNN for digits. How often does
# the optimizer step?

# %% question-predict
steps_guess = gpulab.predict("How many optimizer steps does the loop below make?")


# %% model
def make_cnn(norm=None):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm or nn.Identity(), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %% question-run
model = make_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
micro_batches = list(zip(images[:160].split(16), labels[:160].split(16), strict=True))
accumulation_steps, steps = 8, 0
for i, (x, y) in enumerate(micro_batches):
    loss = F.cross_entropy(model(x), y) / accumulation_steps
    loss.backward()
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
steps_guess.compare(steps, because="The last two micro-batches wait for six more that never come.")
print(f"largest gradient left in .grad: {gradient(model).abs().max():.3f}")

# %% question-answer [markdown]
# Two of the ten micro-batches were computed and not used. Worse, their gradient is still in `.grad`, and is added to
# the first window of the next epoch. (A *window* is all the micro-batches of a step.)
#
# ![Ten micro-batches: the printed loop steps after eight and leaves two; else the two make a window of their own.](../docs/pictures/windows.svg)
#
# The loop is right only if every window is full, and all micro-batches have the same size.

# %% same-text [markdown]
# ## The same gradient in four pieces
#
# Why does accumulation work at all? The loss of a batch is a mean over its samples, and the derivative of a sum is the
# sum of the derivatives. With 64 samples in four micro-batches of 16:
#
# $$\nabla \frac{1}{64}\sum_{i=1}^{64} \ell_i \;=\; \frac14\left(\nabla \frac1{16}\sum_{i=1}^{16}\ell_i + \dots +
# \nabla\frac1{16}\sum_{i=49}^{64}\ell_i\right)$$
#
# PyTorch adds for you: `backward()` adds to `.grad`, and does not overwrite it. What is left for you is the factor ¼,
# which goes into the loss. We compare on the CPU, where float32 is float32 (a GPU may use TF32, lesson 07).


# %% same-run
def gap(model, x, y, size=16, weight=lambda b: 1 / 4):
    """Largest difference between the whole batch's gradient and the weighted sum, over the largest gradient."""
    F.cross_entropy(model(x), y.flatten()).backward()
    whole = gradient(model)
    model.zero_grad()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        (F.cross_entropy(model(a), b.flatten()) * weight(b)).backward()
    return ((whole - gradient(model)).abs().max() / whole.abs().max()).item()


x, y = images[:64], labels[:64]
for dtype in (torch.float32, torch.float64):
    print(f"CNN in {dtype}: a gap of {gap(make_cnn().to(dtype), x.to(dtype), y):.0e}")

# %% same-rounding [markdown]
# The bits differ, and yet it is the same gradient. A floating-point sum depends on its order. If rounding is the whole
# story, the gap must shrink with the spacing of the numbers, $10^{-7}$ in float32 and $10^{-16}$ in float64. It does.
# Does it hold for a network with attention? Here are the blocks of a GPT, small for now, and without the causal mask.


# %% transformer
def transformer(layers=2, width=64, heads=4, words=50):
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    blocks = [nn.TransformerEncoderLayer(width, heads, 4 * width, **options) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(words, width), *blocks, nn.Linear(width, words), nn.Flatten(0, 1))


# %% transformer-run
ids = torch.randint(50, (16, 32))
print(f"GPT in float64: a gap of {gap(transformer().double(), ids, ids, size=4):.0e}")

# %% same-verdict [markdown]
# So the gradient is that of the whole batch **up to rounding**. Compare with a tolerance that fits the dtype, not with
# `torch.equal`.
#
# Training amplifies rounding, but hardly here: after five epochs of SGD the CNN's loss is 0.332 with batch 64 and with
# 4 × 16, and the two differ by 2·10⁻⁵ (measured on one CPU). Both made 120 updates. Batch 16 *without* accumulation
# made 470, and its loss fell to 0.055: **at the same learning rate, the small batch learned faster per epoch.** (With
# four times the learning rate, batch 64 came to 0.128.) Accumulate if the gradient of a small batch is too noisy, or if
# a recipe asks for it.

# %% saved-text [markdown]
# ## What it saves: bytes kept for backward
#
# Forward keeps activations for backward, and they grow with the batch. With accumulation only one micro-batch is alive
# at a time. Here is the memory of the GPT on the GPU: one window of 64 texts in one piece, then the same in four.

# %% saved-timeline
model, ids = transformer().to("cuda"), torch.randint(50, (64, 32), device="cuda")
F.cross_entropy(model(ids), ids.flatten()).backward()  # for what the libraries allocate once
with gpulab.memory.timeline() as told:
    for size in (64, 16):
        model.zero_grad()
        told.mark(f"micro-batches of {size}")
        for a in ids.split(size):
            (F.cross_entropy(model(a), a.flatten()) * len(a) / 64).backward()
told

# %% saved-explain [markdown]
# A quarter of the samples keeps a quarter of the activations (the thin spikes are workspaces of kernels). Weights,
# gradients and Adam's state do not depend on the batch, so they do not shrink. To count them too, we plan a whole
# update of a GPT of 68 million parameters, with texts of 512 tokens. `update` builds it for `gpulab.plan`; its options
# serve the comparisons below.


# %% gpt
def gpt(batch):
    ids = torch.randint(16_000, (batch, 512), device="cuda")
    return transformer(6, 768, 12, 16_000).to("cuda"), ids, ids


# %% update
def update(network, micro, half=False, kind=torch.optim.Adam):
    def build(batch):
        model, x, y = network(batch)
        optimizer = kind(model.parameters(), lr=1e-3)

        def step():
            for a, b in zip(x.split(micro), y.split(micro), strict=True):
                with torch.autocast("cuda", torch.float16, enabled=half):
                    loss = F.cross_entropy(model(a), b.flatten()) * len(a) / batch
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


# %% plan-text [markdown]
# We plan an update of 8 texts in one piece, in two and in eight. What is the peak with eight pieces, in per cent of
# that with one?

# %% plan-predict
peak_guess = gpulab.predict("Peak of 8 × 1 text, against 1 × 8", unit="%")

# %% plan-run
peaks = {}
for texts, micro in ((8, 8), (8, 4), (8, 1), (4, 4)):
    t4 = gpulab.plan(update(gpt, micro), texts, "T4")
    v100 = gpulab.plan(update(gpt, micro, half=True), texts, "V100-16")
    peaks[texts, micro] = t4.peak_allocated / 2**20
    print(f"{texts // micro} × {micro}: {peaks[texts, micro]:5,.0f} MiB, {t4.gradients / 2**20:3.0f} of", end=" ")
    print(f"gradients; T4 {t4.samples_per_second:.0f} texts/s; V100, autocast", end=" ")
    print(f"{v100.samples_per_second:3.0f} texts/s, busy {v100.gpu_busy:4.0%} (virtual)")
why = "Activations fall to an eighth; weights, gradients and Adam's state are 16 bytes a parameter."
peak_guess.compare(round(100 * peaks[8, 1] / peaks[8, 8]), "virtual", because=why)

# %% plan-explain [markdown]
# No micro-batch, however small, gets below these 16 bytes a parameter. In float32 the T4 loses little speed, since its
# kernels stay long. Under autocast the V100 casts the weights again for each micro-batch, and adds to the gradients.
# With short kernels it waits for its host, too; how long depends on the host. So use the **largest micro-batch that
# fits**, and no more of them than your batch needs.
#
# Compare the last row with the second. Both have micro-batches of 4, but the window of two has the higher peak. From
# its second micro-batch on, the window's gradients are alive during forward, 4 bytes a parameter. So a job that just
# fits without accumulation may fail with it.
#
# Hugging Face recorded BERT-large on a V100 in float32; the memory includes the CUDA context:
#
# | | memory, MiB | samples/s |
# |---|---:|---:|
# | batch 4 | 14,949 | 8.86 |
# | 4 micro-batches of 1 | 8,681 | 7.75 |

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on 100 samples in micro-batches of 8, four to a step, with each loss divided as in the tutorials.
#
# 1. Which update is wrong, and by what factor? Set *Incomplete last window* to “no step”: what is lost now?
# 2. Set it back, and *Loss of a micro-batch* to “mean ÷ those in this window”: every update is exact. Make the
#    *Data set* 108 samples. Why is the last update off again?
# 3. Let *samples differ in length*. Now every window is off. Which setting makes all of them exact?

# %% simulator
gpulab.sim.accumulation()

# %% last-text [markdown]
# ## The last window
#
# A short last window can go wrong in two ways. It is dropped, as at the top. Or it makes a step with losses divided by
# 4, although it holds 2, which is half of the update. The repair is to know the size of a window before you start it.
# So cut the windows first:


# %% last-repair
def cut(batches, steps):
    return [batches[i : i + steps] for i in range(0, len(batches), steps)]


print([len(window) for window in cut(micro_batches, 4)])

# %% last-stream [markdown]
# From a `DataLoader` take `steps` batches at a time with `itertools.islice` (or `itertools.batched`, from Python 3.12
# on). A window then lies in *host* memory; move each micro-batch to the GPU when its turn comes.
#
# **Your turn** · 3 minutes. Each window is a list of four equal micro-batches; the last has fewer. Two things are still
# wrong: one with every window, one with the last. Change the loop, so that each window moves the weights as its samples in one batch would.


# %% last-turn tags=["your-turn"]
def train_windows(model, optimizer, windows):
    # TODO: two lines do harm where they stand, or as they are
    ### BEGIN SOLUTION
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            loss = F.cross_entropy(model(x), y) / len(window)
            loss.backward()
        optimizer.step()
    ### INSTEAD OF
    # for window in windows:
    #     for x, y in window:
    #         optimizer.zero_grad()
    #         loss = F.cross_entropy(model(x), y) / 4
    #         loss.backward()
    #     optimizer.step()
    ### END SOLUTION


gpulab.turn.window_loop(train_windows)

# %% mean-text [markdown]
# ## Mean of means
#
# The factor ¼ had a condition: micro-batches of **equal size**. 50 samples in micro-batches of 16 are 16, 16, 16 and 2.
# Suppose each loss is a mean, and each is divided by 4.

# %% mean-predict
mean_guess = gpulab.predict("A sample of the last one weighs how much, against one of the first?", unit="times")

# %% mean-run
x, y = images[:50], labels[:50]
print(f"each mean times 1/4: a gap of {gap(make_cnn(), x, y):.0e}")
print(f"by its share: a gap of {gap(make_cnn(), x, y, weight=lambda b: len(b) / 50):.0e}")
mean_guess.compare(16 / 2, "computed", because="Two samples share a quarter, as sixteen do elsewhere.")

# %% mean-explain [markdown]
# Multiply each mean by its share of the window, `len(x) / samples`. The same holds for the loss that you *report*: a
# mean over batch means counts the samples of a small last batch more than the others.
#
# ![Micro-batches of 16, 16, 16 and 2 samples, and of 5 and 22 tokens: in a mean of means the small one's samples or tokens weigh most; weighted by share, all weigh the same.](../docs/pictures/weights.svg)

# %% token-text [markdown]
# ## Token-weighted loss
#
# For text, equally many texts in each micro-batch are not enough. The loss is a mean over **tokens**, texts differ in
# length, and padding has the label −100, which `F.cross_entropy` ignores. Until October 2024 the trainer of the
# `transformers` library took the mean of means under accumulation.
#
# Four texts, two to a micro-batch, as in the lower row of the picture:

# %% token-run
ids, targets = torch.randint(50, (4, 12)), torch.randint(50, (4, 12))
for text, length in enumerate([3, 2, 12, 10]):
    targets[text, length:] = -100  # padding: no target here
tokens = (targets != -100).sum()
ways = {"each mean times 1/2": lambda b: 1 / 2, "by its tokens": lambda b: (b != -100).sum() / tokens}
for name, weight in ways.items():
    print(f"{name}: a gap of {gap(transformer(), ids, targets, size=2, weight=weight):.0e}")

# %% token-explain [markdown]
# So take `reduction="sum"`, and divide by the tokens of the **whole window**. Count them before the first backward,
# which is another reason to cut the windows first. With several processes, count over all ranks (lesson 12).
#
# One more trap is a micro-batch without any label, for instance where only answers have labels and a long prompt leaves
# no room for them. Its mean is 0/0. With `F.cross_entropy` only the *reported* loss is `nan`; with a mask of your own
# the gradient is too, and spoils the window. The sum is 0 and does no harm.

# %% norm-text [markdown]
# ## What accumulation cannot do: BatchNorm
#
# Everything so far rests on one property: the loss is a sum of independent terms, one for each sample. BatchNorm breaks
# it. In training it normalises with the mean and variance of the batch *it sees*, and it sees micro-batches. GroupNorm
# looks at one sample at a time.

# %% norm-run
import functools

import torchvision

pictures, classes = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
for norm in (nn.BatchNorm2d, functools.partial(nn.GroupNorm, 8)):
    resnet18 = torchvision.models.resnet18(num_classes=10, norm_layer=norm)
    cnn = gap(make_cnn(norm(16)), images[:64], labels[:64])
    print(f"{type(norm(16)).__name__}: gaps of {cnn:.0e} (CNN)", end=" ")
    print(f"and {gap(resnet18, pictures, classes, size=4):.0e} (ResNet-18)")

# %% norm-explain [markdown]
# No factor repairs that: the four forward passes computed another function.
#
# - **GroupNorm** or **LayerNorm** repair it, in a network that is trained from the start.
# - **Freezing** BatchNorm (its layers in `eval()`, in fine-tuning) is fine too, if its statistics fit your data.
# - **SyncBatchNorm** does not help: it shares statistics between *processes*, at one moment. Another *momentum* does not
#   either: it concerns the running statistics.
# - **A micro-batch of 16 or 32** is often enough: BatchNorm then trains as with that batch.
#
# Every loss that mixes samples has the same limit: accumulation gives a contrastive loss no more negatives.

# %% amp-text [markdown]
# ## With mixed precision and clipping
#
# **For each micro-batch** there is one call, `scaler.scale(loss).backward()`, with the *same* scale in a whole window.
# **Once per window**, after its last micro-batch, come the other calls, in lesson 07's order:
# `scaler.unscale_(optimizer)`, so that `.grad` holds the real gradient; `clip_grad_norm_`; `scaler.step(optimizer)`;
# `scaler.update()`.
#
# **Your turn** · 3 minutes. Below, three lines stand in the inner loop that belong after it. Nothing fails, but the
# weights hardly change. Move these lines.


# %% amp-turn tags=["your-turn"]
def update_amp(model, optimizer, scaler, window, max_norm):
    optimizer.zero_grad()
    for x, y in window:
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y) / len(window)
        scaler.scale(loss).backward()
    ### BEGIN SOLUTION
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    ### INSTEAD OF
    #     scaler.unscale_(optimizer)
    #     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    #     scaler.update()
    # scaler.step(optimizer)
    ### END SOLUTION


gpulab.turn.window_amp(update_amp)

# %% amp-why [markdown]
# Your version divides the gradient by the scale once, and steps once. The schedule steps next, **unless the optimizer's
# step was skipped**; you know that it was if the scale has fallen. Here the third of four micro-batches overflows.

# %% amp-run
cnn = make_cnn().to("cuda")
optimizer, scaler = torch.optim.AdamW(cnn.parameters()), torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)


def last_lines():
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(cnn.parameters(), 1.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:  # it falls if the step was skipped
        schedule.step()


# %% amp-overflow
for i, (x, y) in enumerate(micro_batches[:4]):
    loss = F.cross_entropy(cnn(x.to("cuda")), y.to("cuda")) / 4
    scaler.scale(loss * float("inf") if i == 2 else loss).backward()
print(gpulab.timing.syncs(last_lines))
print(f"scale {scaler.get_scale():,.0f}, steps of the schedule: {schedule.last_epoch}")

# %% amp-explain [markdown]
# **An overflow in one micro-batch costs the whole window**, since the `inf` is added to `.grad`:
#
# ![With an inf in the third of four micro-batches .grad is inf, the step is skipped, the scale halved, and the schedule waits.](../docs/pictures/window_overflow.svg)
#
# The host waits three times in a window: each `get_scale()` reads a number from the GPU, and so does `step`.
#
# **By default gradients accumulate in the dtype of the parameters.** Under autocast that is float32. In a model that is
# bf16 itself (`model.to(torch.bfloat16)`) `.grad` is bf16 too. A thousand micro-batches each add the same number to it.
# What is the sum?

# %% bf16-predict
sum_guess = gpulab.predict("1.0, added a thousand times in bf16")

# %% bf16-run
total = torch.zeros(1, dtype=torch.bfloat16)
for _ in range(1000):
    total += 1
sum_guess.compare(total.item(), "computed", because="It has 8 bits: 257 is rounded back to 256.")

# %% rate-text [markdown]
# ## Learning rate and schedule
#
# 4 × 16 behaves as batch 64, and takes the learning rate of batch 64. What changes when you *raise* the effective batch:
#
# - **There are fewer updates per epoch.** Change whatever is counted in updates: warm-up, decay, total steps,
#   evaluation interval. A schedule that steps at every micro-batch, four to a window, ends after a quarter of the
#   training.
# - **The learning rate may grow.** Rules of thumb: in proportion to the batch for SGD with warm-up, with its square root
#   for Adam. They are starting points for a search.
#
# **Your turn** · 2 minutes. A cosine schedule wants `T_max`, the updates of the whole training. Count them, with windows
# of `steps` micro-batches. The last micro-batch of an epoch may be short, and so may its last window; both are used.


# %% rate-turn tags=["your-turn"]
def updates_of(samples, micro_batch, steps, epochs):
    # TODO: the micro-batches of an epoch, then its windows
    ### BEGIN SOLUTION
    batches = -(-samples // micro_batch)  # rounded up
    windows = -(-batches // steps)
    return windows * epochs
    ### END SOLUTION


gpulab.turn.update_count(updates_of)

# %% adam-text [markdown]
# ### A forgotten division
#
# Somebody forgets the division by 4, so every gradient is four times as large. SGD then steps four times as far. How
# far do five updates of Adam move the weights, compared with the right loop?

# %% adam-predict
adam_guess = gpulab.predict("Adam without the division moves the weights how far?", unit="times")


# %% adam-run
def weights_after(factor):
    model = make_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        (factor * F.cross_entropy(model(images[:64]), labels[:64])).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters())


start = nn.utils.parameters_to_vector(make_cnn().parameters())
ratio = (weights_after(4) - start).norm() / (weights_after(1) - start).norm()
adam_guess.compare(round(ratio.item(), 2), because="Adam divides by the gradient's running size.")

# %% adam-explain [markdown]
# Such a mistake stays in the code until somebody adds clipping, whose limit is now four times too strict.

# %% ddp-text [markdown]
# ## Across processes: `no_sync`
#
# With DistributedDataParallel every `backward()` averages the gradients over all processes. In a window of four, three
# of these exchanges are wasted. `model.no_sync()` switches them off. The forward pass belongs *inside*:
#
# ```python
# with model.no_sync() if i < 3 else contextlib.nullcontext():
#     (F.cross_entropy(model(x), y) / 4).backward()
# ```
#
# Lesson 12 runs this, and counts the exchanges.

# %% remedies-text [markdown]
# ## All remedies, cheapest first
#
# Now you know every remedy for an out-of-memory error (lesson 05). Here they are on two networks and a T4, with batches
# that do not fit: the GPT with 64 texts, and ResNet-50 with 192 images. Before you run it: which one saves most? Which
# one *gains* time?


# %% remedies-networks
from torch.utils.checkpoint import checkpoint


def resnet(batch):
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    return torchvision.models.resnet50().to("cuda"), x, torch.randint(1000, (batch,), device="cuda")


def checkpointed(network):  # lesson 06: each block is computed again
    def made(batch):
        model, x, y = network(batch)
        for block in model.modules():
            if isinstance(block, (nn.TransformerEncoderLayer, torchvision.models.resnet.Bottleneck)):
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return model, x, y

    return made


# %% remedies-run
plans = {}
for title, network, batch in (("GPT, 64 texts", gpt, 64), ("ResNet-50, 192 images", resnet, 192)):
    builds = {
        "as it is": update(network, batch),
        "SGD in place of Adam": update(network, batch, kind=torch.optim.SGD),
        "16-bit autocast": update(network, batch, half=True),
        "4 micro-batches": update(network, batch // 4),
        "checkpointing": update(checkpointed(network), batch),
        "autocast, 4 micro-batches": update(network, batch // 4, half=True),
    }
    plans[title] = {name: gpulab.plan(build, batch, "T4") for name, build in builds.items()}

# %% remedies-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, panels = plt.subplots(1, 2, figsize=(9.6, 3), sharey=True)
for axes, (title, found) in zip(panels, plans.items(), strict=True):
    for name, plan in reversed(found.items()):
        axes.barh(name, plan.peak_allocated / 2**30, color=gpulab.style.SKY)
        words = f"{plan.step_ms / found['as it is'].step_ms:.2f} × time" + ", no fit" * (not plan.fits)
        axes.text(plan.peak_allocated / 2**30 + 0.3, name, words, va="center")
    axes.set(title=title, xlabel="GiB at the peak (virtual T4)", xlim=(0, 29))
gpulab.style.show(figure, alt="Peaks with six remedies: lowest with autocast and 4 micro-batches")

# %% remedies-explain [markdown]
# Most of the peak grows with the batch, so micro-batches save most, and with kernels this long they cost next to
# nothing. (With BatchNorm they train another network.) Checkpointing costs a forward pass, less in the GPT, whose head
# is not computed again. SGD saves Adam's state, which is little here.
#
# Autocast saves time, on a real T4 less than here: ResNet-50 ran 2.9 times as fast in inference (recorded by NVIDIA).
# On a V100 whole trainings ran 2.5 to 4 times as fast (recorded, lesson 07).
#
# The order is that of the price: first what leaves the result as it is, up to rounding; then what changes it; then what
# costs money.
#
# | remedy | takes away | costs |
# |---|---|---|
# | remove garbage: lists, tracebacks, `Out` (05) | what should not be there | nothing |
# | `no_grad` or `inference_mode` in validation (05) | the graph | nothing |
# | expandable segments (05) | waste between tensors | next to nothing |
# | kernels that write less: attention, fused optimizer (06) | the largest single tensors | nothing |
# | 16-bit autocast (07) | part of the activations | care with fp16; large products *gain* time |
# | micro-batches with accumulation | activations, in proportion | little speed on long kernels, more on short; BatchNorm |
# | checkpointing (06) | activations inside blocks | a second forward pass |
# | offloading (06) | activations, state | the bus |
# | less state, LoRA (06), shorter texts, a smaller model | state; gradients; everything | another result |
# | another GPU, or several GPUs (13) | a share of everything | money |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Accumulation is mathematically equal to the large batch.” | Up to rounding, for a mean over independent samples with the right weights. Not with BatchNorm. | *The same gradient*, *BatchNorm* |
# | “`if (i + 1) % steps == 0: optimizer.step()`” | Wrong at the end of every epoch whose last window is not full. | *A question worth asking* |
# | “Divide the loss by `accumulation_steps`.” | Right for full windows of equal micro-batches. Else divide by what the window holds, in samples or tokens. | *Mean of means*, *Token-weighted loss* |
# | “Forgetting `zero_grad` fills the memory.” | Wrong: gradients are added in place. | lesson 05 |
# | “You get the memory of a small batch for free.” | You get its activations; weights, gradients and state stay. It costs speed where the GPU waits for the host. | *What it saves* |
# | “Accumulation trains faster.” | It makes updates less noisy and less frequent. | *The same gradient* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Backward once for the whole window**, on the sum of the losses. The gradient is right, and every graph stays alive
# until then: the memory of the large batch.
#
# **Unscaling every micro-batch.** `unscale_` divides in place, so PyTorch refuses a second time: *unscale_() has already
# been called on this optimizer since the last update()*. Move it after the inner loop. A `scaler.update()` in the inner
# loop silences the message and is worse, as you saw.
#
# **`loss.item()` for every micro-batch.** It waits until the GPU has done everything queued so far. Add up
# `loss.detach()` on the device, and call `.item()` once per update (lesson 03).

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(8)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. `backward()` adds. Divide each loss so that the sum is the mean over the **window**: by samples, or by tokens.
# 2. The gradient is the whole batch's **up to rounding**, as long as no sample affects another. In BatchNorm, samples
#    do.
# 3. What shrinks are activations. Weights, gradients and state stay, and from the second micro-batch on the gradients are
#    alive during forward.
# 4. Once per window: unscale, clip, step, update, and the schedule if the step was not skipped. This includes the last
#    window.
# 5. First remove garbage, then what costs no time, then the largest micro-batch that fits, then checkpointing.
#
# **For the checklist:** divide by what the window holds · the last window steps · clip after unscale · the schedule
# counts updates that happened · no BatchNorm across micro-batches.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/08_accumulation.ipynb): four functions, each checked on your own code. Then [the map of
# the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation, *Automatic Mixed Precision examples*: “Gradient accumulation”.
# - Hugging Face, *Fixing Gradient Accumulation*, 2024; *Methods and tools for efficient training on a single GPU*, 2022
#   (BERT-large).
# - Learning rates: Goyal et al., arXiv 1706.02677 (SGD); Malladi et al., arXiv 2205.10287 (Adam).
