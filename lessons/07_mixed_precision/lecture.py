# %% title [markdown]
# # 07 · Mixed precision
#
# **Promise:** you use 16-bit arithmetic where it is free, keep float32 where it is not, and know beforehand what it
# saves on your model.
#
# After this lesson you can **choose** a number format for a GPU and a job · **predict** whether autocast saves memory
# on your network · **put** scaler, clipping and step in the right order · **find** weights that have stopped learning.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and an hour for the exercises | lesson 04; a training loop of your own | any machine |

# %% setup
import matplotlib.pyplot as plt
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% question-text [markdown]
# ## A question worth asking
#
# “Two lines of AMP halve your memory.” You will read it in many tutorials. We put the line (today it is one) around
# eight layers of 1024 units, with a batch of 8. We count what forward keeps for backward, as in lesson 04. How much
# does autocast save?

# %% question-predict
held_guess = gpulab.predict("Kept for backward: autocast against float32", unit="times")


# %% question-net
def net(activation=nn.ReLU):
    blocks = [nn.Sequential(nn.Linear(1024, 1024), activation()) for _ in range(8)]
    return nn.Sequential(*blocks).to("cuda")


def kept(model, batch, dtype=None):
    x = torch.ones(batch, 1024, device="cuda")
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        return gpulab.memory.activation_bytes(model, x).total

# %% question-run
plain, mixed = kept(net(), 8), kept(net(), 8, torch.float16)
print(f"float32 {plain / 2**20:.2f} MiB, autocast {mixed / 2**20:.2f} MiB ({gpu.numbers})")
why = "Backward needs 16-bit copies of the float32 weights: 1024 × 1024 numbers for a layer."
held_guess.compare(round(mixed / plain, 1), gpu.numbers, because=why)

# %% question-answer [markdown]
# Seven layers keep a copy. The first layer's backward needs none, since `x` requires no gradient.
#
# The tutorials are wrong for this batch, and nearly right for a large one. Where does that change?

# %% formats-text [markdown]
# ## What 16 bits keep
#
# A floating-point number has a sign, an exponent and a fraction. The exponent says how large the number is, the
# fraction how exact. (A leading 1 is not stored, so float32 has 24 significant bits.)
#
# ![Sign, exponent and fraction: float32 1, 8, 23 bits; TF32 1, 8, 10; bf16 1, 8, 7; fp16 1, 5, 10; fp8 e4m3 1, 4, 3; fp8 e5m2 1, 5, 2.](../docs/pictures/format_bits.svg)
#
# **fp16** keeps more of the fraction and pays with range. **bf16** keeps the range of float32 and pays with digits.
# **TF32** is no storage format: tensor cores read float32 numbers and use 11 significant bits of each.
#
# So 70,000 is `inf` in fp16, and 70,144 in bf16. Numbers below $3\cdot10^{-8}$ become 0 in fp16. 257 becomes 256
# in bf16.
#
# What do 8 significant bits mean for training? Take a weight of 1.0 and subtract 0.001 from it, a thousand times.

# %% stuck-predict
left_guess = gpulab.predict("1.0, minus 0.001, a thousand times, in bf16: what is left?")

# %% stuck-run
for dtype in (torch.float16, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(1000):
        weight -= 0.001
    print(f"{dtype} {abs(weight.item()):.3f} (computed)")
why = "Below 1 the next bf16 number is 0.0039 away, so each difference is rounded back to 1."
left_guess.compare(weight.item(), "computed", because=why)

# %% stuck-explain [markdown]
# Remember: **16 bits are enough for a product, and too few for a sum of many small changes.** A training step has both,
# and mixed precision treats them differently.
#
# ### See it move
#
# The simulator opens on this weight.
#
# 1. Raise *Each update takes away* to 0.2 %. Where does bf16 end, and why?
# 2. Set *Format* to fp16. How far does it get, and why not further?
# 3. Set *times 10 to the power* to −8, still in fp16. What is stored? You will meet such a gradient.

# %% formats-simulator
gpulab.sim.number_formats()

# %% autocast-text [markdown]
# ## Autocast decides for each operation
#
# `torch.autocast` does not change the model. Inside its block, PyTorch looks up each *operation* in its lists and casts
# the inputs: those of products to 16 bits, those of delicate functions to float32. An operation in no list takes its
# inputs as they come.
#
# Below, `h` is a matrix product of two float32 matrices, and everything else is computed from it.

# %% autocast-predict
count_guess = gpulab.predict("How many of these ten results have 16 bits?")

# %% autocast-run
x, w = torch.rand(8, 8, device=device), torch.rand(8, 8, device=device)
with torch.autocast(device.type, dtype=torch.float16):
    h = x @ w
    results = {"x @ w": h, "gelu": F.gelu(h), "relu": h.relu(), "mean": h.mean(), "sum": h.sum()}
    results |= {"softmax": h.softmax(-1), "exp": h.exp(), "norm": F.layer_norm(h, (8,))}
    results |= {"h + x": h + x, "loss": F.mse_loss(h, x)}
short = [name for name, value in results.items() if value.dtype is torch.float16]
print("16 bits:", *short, "\nfloat32:", *(name for name in results if name not in short))
why = "GELU, ReLU and mean are in no list. Where two dtypes meet, the wider one wins."
count_guess.compare(len(short), "computed", because=why)

# %% autocast-lists [markdown]
# Operations that are faster in 16 bits run in 16 bits. Those that turn small errors into large ones, or add many terms,
# run in float32 (`mean` is an exception). bf16 has the same lists; without `dtype=` autocast takes fp16 on CUDA. One
# surprise is in no list: with cuDNN, `nn.LSTM` and `nn.GRU` run in *fp16*, whatever dtype you choose.
#
# After one step of a real layer, which dtypes do a weight, its gradient and Adam's state have?

# %% parameters-run
layer = nn.TransformerEncoderLayer(64, 4, device=device)
optimizer = torch.optim.Adam(layer.parameters())
with torch.autocast(device.type, dtype=torch.bfloat16):
    loss = layer(torch.rand(8, 2, 64, device=device)).square().mean()
loss.backward()
optimizer.step()
weight = layer.linear1.weight
print(weight.dtype, weight.grad.dtype, optimizer.state[weight]["exp_avg"].dtype)

# %% parameters-text [markdown]
# All three are float32. You will read that AMP keeps “a float32 master copy”. That was done by hand in
# 2017. Today **the parameter is the master**, and the copy has 16 bits:
#
# ![Forward: the float32 weight is cast to a 16-bit copy, which is multiplied by a 16-bit input. Backward: the 16-bit gradient of the copy is cast to a float32 gradient of the weight.](../docs/pictures/cast_in_graph.svg)
#
# Backward runs the cast in reverse. So gradients are *computed* in 16 bits and stored in float32. Accuracy survives
# because the errors of the products are small and mostly average out, and the update is done in float32.
#
# Autocast caches the copies until the block ends. That is a trap: one block around a whole epoch computes every step
# with the first step's weights. Open the block for each forward pass, put model *and loss* in it, and leave it before
# `backward()`.

# %% saves-text [markdown]
# ## What it saves, and from which batch on
#
# Back to the opening. With more rows (samples, or tokens) the activations grow, and the copies of the weights do not.
# So from some batch on, autocast pays. The layers are 1024 wide.

# %% saves-predict
rows_guess = gpulab.predict("From how many rows on, in steps of 64, does it keep less?")

# %% saves-run
batches, ratios = [32, 128, 512, 2048, 8192], {}
with gpulab.VirtualGPU("T4", compute=False):  # shapes alone
    for kind in (nn.GELU, nn.ReLU):
        model = net(kind)
        ratios[kind.__name__] = [kept(model, n, torch.float16) / kept(model, n) for n in batches]
    first = min(n for n in range(64, 2049, 64) if kept(model, n, torch.float16) < kept(model, n))
why = "A layer saves 2 bytes of rows × 1024 numbers. Its copy costs 2 bytes of 1024 × 1024."
rows_guess.compare(first, "virtual", because=why)

# %% saves-plot
gpulab.style.use()
figure, axes = plt.subplots(figsize=(7, 3))
for name, ratio in ratios.items():
    axes.loglog(batches, ratio, "o-", label=f"Linear, {name}")
axes.axhline(1, color=gpulab.style.MUTED)
axes.set(xlabel="rows", ylabel="kept, autocast / float32", xticks=batches, xticklabels=batches,
         title="What stands between the layers decides (virtual)")
axes.legend()
gpulab.style.show(figure, alt=f"Kept, autocast against float32, for {batches} rows: {ratios}")

# %% saves-explain [markdown]
# bf16 gives the same curves. With GELU about half as many rows are enough: its input and its output are
# kept, so two tensors shrink for each copy. So the rule is:
#
# > Autocast keeps less once the **numbers that it keeps in 16 bits outnumber the weights that it copies**.
#
# A convolution has few weights, and its rows are pixels, so autocast pays even at small batches. Now take real
# networks, and the peak of a whole step, in float32 and under bf16 autocast. Weights, gradients and Adam's state, 16
# bytes a parameter, do not shrink.


# %% real-models
def resnet50(batch):
    return torchvision.models.resnet50(), torch.randn(batch, 3, 224, 224)


def gpt2(batch):  # of the size of GPT-2 small, without positions and mask
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", norm_first=True)
    layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(50257, 768), layers, nn.Linear(768, 50257, bias=False))
    return model, torch.randint(50257, (1024, batch))


# %% real-build
def build(batch, make, dtype):
    with torch.device("cuda"):
        model, x = make(batch)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            scores = model(x).flatten(0, -2)
            loss = F.cross_entropy(scores, scores.argmax(1))  # any labels will do
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

# %% real-run
for make, batch in ((resnet50, 8), (resnet50, 64), (gpt2, 1), (gpt2, 8)):
    full = gpulab.plan(lambda n: build(n, make, None), batch, "A100-80").peak_allocated
    half = gpulab.plan(lambda n: build(n, make, torch.bfloat16), batch, "A100-80").peak_allocated
    sizes = f"{full / 2**20:6,.0f} → {half / 2**20:6,.0f} MiB"
    print(f"{make.__name__:<8} batch {batch:>2}: {sizes}, {1 - half / full:.0%} saved (virtual)")

# %% real-explain [markdown]
# No single figure can be right. The ResNet saves much even at batch 8: BatchNorm and ReLU keep 16-bit tensors, too. The
# GPT keeps large float32 tensors: layer norms, and the loss over 50,257 words.
#
# Recorded: BERT-large on a V100, batch 4, went from 14,949 to 13,939 MiB, **7 % less memory, and 2.1 times as fast**.
# With one text at a time and checkpointing, fp16 *raised* it from 6,775 to 7,275 MiB.
#
# **Your turn** · 3 minutes. Which of these saves more than a third of its peak? Each image, or text, adds the same
# bytes. So the two printed lines of each network are enough.
#
# - **A**: `resnet50`, 16 images of 224 × 224
# - **B**: `resnet50`, 16 images of 64 × 64
# - **C**: `gpt2`, 16 texts of 1024 tokens


# %% saves-turn tags=["your-turn"]
def save_a_third():
    ### BEGIN SOLUTION
    return ["A"]
    ### INSTEAD OF
    # return ["A", "B", "C"]
    ### END SOLUTION


gpulab.turn.save_a_third(save_a_third)

# %% gpus-text [markdown]
# ## Which GPU is fast in what
#
# 16 bits are faster for three reasons. Tensor cores multiply them at a multiple of the float32 rate. An operation that
# waits for memory moves half of the bytes, if its tensors have 16 bits. And less memory may allow a larger batch. The
# first reason depends on the GPU. Peaks from data sheets, TFLOP/s, without sparsity:
#
# | GPU | fp32 | TF32 | fp16 | bf16 |
# |---|---|---|---|---|
# | V100 | 15.7 | – | 125 | – |
# | T4 | 8.1 | – | 65 | – |
# | A100 | 19.5 | 156 | 312 | 312 |
# | RTX 3090 | 35.6 | 36 | 71 | 71 |
# | H100 | 67 | 494 | 989 | 989 |
#
# A dash means: not in hardware. Does a T4, the GPU of many free notebooks, have bf16? PyTorch says:

# %% gpus-ask
with gpulab.VirtualGPU("T4", compute=False):
    print(torch.cuda.is_bf16_supported(), torch.cuda.is_bf16_supported(including_emulation=False))

# %% gpus-explain [markdown]
# The first answer includes emulation, which gains nothing: a V100 multiplied at 9.6 TFLOP/s in bf16, 14.0 in fp32,
# about 95 in fp16 (recorded). Ask the second way, or whether the compute capability is 8.0 or higher.
#
# And a peak is no promise. A T4 may draw 70 W, and sustains 24 of its 65 TFLOP/s (recorded). An A100 reached 295
# TFLOP/s on zeros and 257 on random numbers (recorded), because of its power limit, too.
#
# Whole trainings gain less than products. These are images per second on one GPU, recorded by NVIDIA; on the V100 a
# larger batch under AMP is part of the gain:
#
# | training | V100: fp32 → AMP | A100: TF32 → AMP |
# |---|---|---|
# | ResNeXt-101 | 147 → 587, 4.0 × | 456 → 1,211, 2.7 × |
# | SE-ResNeXt-101 | 132 → 443, 3.4 × | 395 → 855, 2.2 × |
# | EfficientNet-B4 | 83 → 204, 2.5 × | 157 → 331, 2.1 × |
#
# With small layers or batches the GPU waits for its host. There autocast may make the step *slower*: its casts are
# operations too, and the host must launch them.

# %% vanish-text [markdown]
# ## Gradients that vanish, and the scaler
#
# fp16 lacks range. Activations rarely need it; gradients do. A language model with 50,257 words averages its loss over,
# say, 8192 tokens. The gradient of one logit is then $p/8192$, where $p$ is about $1/50257$ before training: a number
# near $2\cdot10^{-9}$. Under autocast the logits have 16 bits, and so has their gradient.

# %% vanish-predict
lost_guess = gpulab.predict("What share of the logits' gradient becomes 0 in fp16?", unit="%")

# %% vanish-run
scores, words = torch.randn(64, 50257), torch.randint(50257, (64,))  # 64 of the 8192 tokens
for dtype, scale in ((torch.bfloat16, 1), (torch.float16, 65536), (torch.float16, 1)):
    logits = scores.to(dtype).requires_grad_()
    loss = F.cross_entropy(logits.float(), words, reduction="sum") / 8192
    (loss * scale).backward()
    lost = 100 * (logits.grad == 0).float().mean().item()
    print(f"{dtype}, loss × {scale}: {lost:.2f} % is 0 (computed)")
why = "Below 3·10⁻⁸ fp16 has nothing. Mostly the gradient of the right words is left."
lost_guess.compare(round(lost, 1), "computed", because=why)

# %% vanish-explain [markdown]
# You get no error and no NaN. The remedy is one multiplication. Scale the *loss* by 65,536; by the chain rule every
# gradient is 65,536 times as large. Before the step, divide the float32 gradients of the parameters by the same number.
#
# The scale should be as large as possible without `inf`, and nobody knows that number beforehand. So `GradScaler`
# begins at 65,536 and looks for `inf` and NaN in the gradients. If it finds any, it *skips* the optimizer step and
# halves the scale. After 2000 good steps in a row it doubles the scale.
#
# A few skipped steps at the start are normal, and one now and then later. A scale that *keeps* falling is not: then
# `inf` or NaN comes from the forward pass or the data, and no scale can help.

# %% scaling-simulator-text [markdown]
# ### See it move
#
# The simulator follows `GradScaler` through 5000 steps, with toy gradients. Drag *Look at step* to the last.
#
# 1. Set *First scale* to $2^0$. How much of the gradient is lost? Why does the scaler begin high?
# 2. Set *First scale* to $2^{24}$. What does it cost to begin far too high?
# 3. Set *Bad batches* to 200. What is the scale at the end? It has no lower limit: how would you notice?

# %% scaling-simulator
gpulab.sim.loss_scaling()

# %% order-text [markdown]
# ## The order: unscale, clip, step, update
#
# **Your turn** · 4 minutes. Four changes make this a loop in fp16: put autocast around model and loss, scale the loss,
# step through the scaler, and update the scaler.


# %% loop-turn tags=["your-turn"]
def train_fp16(model, optimizer, scaler, batches):
    for x, y in batches:
        optimizer.zero_grad()
        ### BEGIN SOLUTION
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ### INSTEAD OF
        # loss = F.cross_entropy(model(x), y)
        # loss.backward()
        # optimizer.step()
        ### END SOLUTION


gpulab.turn.train_fp16(train_fp16)

# %% order-step-text [markdown]
# Here is a step for all precisions, with clipping. Click a line, or use the arrow keys.


# %% order-step
def train_step(model, optimizer, scaler, x, y, dtype, weight=1.0):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(weight * loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()

# %% order-step-lines
gpulab.annotated(train_step, {
    "with torch.autocast": "In the block each operation looks itself up in the lists.",
    "loss =": "Model and loss, and no more, are inside. The loss comes in float32.",
    ".backward()": "Outside: the backward of an operation runs in the dtype of its forward.",
    "unscale_": "Divides .grad by the scale: now it is the true gradient. Notes inf and NaN.",
    "clip_grad_norm_": "Needs the true gradient, so it comes after unscale_.",
    "scaler.step": "Makes the optimizer's step, or skips it if unscale_ found inf or NaN.",
    "update": "Every step, at the end. Halves the scale after a skip.",
})

# %% train-text [markdown]
# Does the scaler matter? A small network learns the digits four times, with the same start and data. `weight`
# multiplies the loss by $10^{-4}$, as if it were a small term of a larger one. Adam hardly notices such a factor.

# %% train-define
images, digits = (part.to(device) for part in gpulab.data.digits("train"))


def train(dtype, scaled):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)
    model = nn.Sequential(*layers).to(device)
    adam = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)
    losses = []
    for rows in torch.randint(len(images), (150, 256)).to(device):
        losses.append(train_step(model, adam, scaler, images[rows], digits[rows], dtype, 1e-4))
    return torch.stack(losses).cpu()

# %% train-plot
figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(train(torch.float32, False), label="float32")
axes.plot(train(torch.bfloat16, False), "--", label="bf16")
axes.plot(train(torch.float16, True), ":", label="fp16 with scaler")
axes.plot(train(torch.float16, False), "-.", label="fp16 without")
axes.set(xlabel="step", ylabel="loss (computed)", title="fp16 without a scaler lags", ylim=0)
axes.legend()
gpulab.style.show(figure, alt="Three curves of the loss fall together, fp16 without more slowly.")

# %% train-explain [markdown]
# Without the factor this network needs no scaler. That is the trap: whether fp16 needs one depends on your loss, not on
# your code. So always use one. Does it make the host wait for the GPU?

# %% scaler-sync
model, scaler = nn.Linear(8, 10).to(device), torch.amp.GradScaler(device.type)
x, y = torch.rand(64, 8, device=device), digits[:64]
for fused in (False, True):
    adam = torch.optim.Adam(model.parameters(), fused=fused)
    print(gpulab.timing.syncs(lambda: train_step(model, adam, scaler, x, y, torch.float16)))

# %% order-explain [markdown]
# The host decides whether to skip, so `scaler.step` waits in every step. A `fused=True` optimizer decides on the GPU.
# bf16 needs no scaler, and no wait.
#
# If you clip before `unscale_`, you clip a gradient that is 65,536 times too long, and SGD nearly stands still. (Adam
# normalises its steps, which mostly hides this.) Without clipping, leave `unscale_` out: `step` does it. Clipping does
# not help against `inf`: it multiplies by 0, and `inf × 0` is NaN.
#
# A skipped step changes no weight, so the learning-rate schedule should not advance. The usual test is whether the scale
# has fallen; `get_scale()` waits for the GPU. And save `scaler.state_dict()` in the checkpoint.

# %% weights-text [markdown]
# ## Weights stay in float32
#
# Why not convert the model, `model.to(torch.bfloat16)`, and save half of everything? You saw one weight stand still.
# Now a whole network makes 20 steps of Adam at $10^{-5}$, a learning rate of fine-tuning. We watch its last layer,
# whose weights lie evenly between −0.088 and 0.088. Adam moves a weight by about the learning rate. bf16 numbers are
# 0.4 to 0.8 % of their size apart.

# %% weights-predict
moved_guess = gpulab.predict("What share of the bf16 weights has changed?", unit="%")


# %% weights-run
def share_moved(dtype):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)
    model = nn.Sequential(*layers).to(device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    start = model[3].weight.detach().clone()
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(images[:256].to(dtype)).float(), digits[:256]).backward()
        optimizer.step()
    return 100 * (model[3].weight != start).float().mean().item()

# %% weights-compare
print(f"float32: {share_moved(torch.float32):.0f} % (computed)")
why = "Less than 0.2 to 0.4 % of a weight is rounded away, so weights beyond ±0.005 stand still."
moved_guess.compare(round(share_moved(torch.bfloat16)), "computed", because=why)

# %% weights-explain [markdown]
# The loss falls a little all the same, and nothing fails. What rounding loses must be kept elsewhere: in a float32
# copy of the weights, or in a second bf16 number beside each weight (*Kahan summation*).
#
# **Your turn** · 4 minutes. `lost` is what rounding has cost so far, a bf16 tensor that begins at 0. Add it to the
# update, make the step, and find out what the new weight has lost: three lines.


# %% kahan-turn tags=["your-turn"]
def update_bf16(weight, lost, update):
    ### BEGIN SOLUTION
    update = update + lost
    new = weight + update
    lost = update - (new - weight)
    return new, lost
    ### INSTEAD OF
    # return weight + update, lost
    ### END SOLUTION


gpulab.turn.update_bf16(update_bf16)

# %% kahan-text [markdown]
# For **inference** nothing is updated: `model.to(torch.bfloat16)` halves the weights.

# %% tf32-text [markdown]
# ## TF32: the switch that is already on
#
# You compare AMP with “fp32” on an A100, and your CNN gains little. Perhaps your baseline was not fp32. Ask whether
# matrix products may use TF32, and whether convolutions may:

# %% tf32-flags
print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)

# %% tf32-explain [markdown]
# **By default convolutions use TF32, matrix products do not.** `torch.set_float32_matmul_precision("high")` allows it
# for products; on NVIDIA's GPUs "medium" does the same. For a true float32 baseline set both flags to False, and print
# them with the result. (Do not mix them with the newer setting, `fp32_precision`.)
#
# TF32 saves no memory and needs no scaler. It costs digits: it keeps as many significant bits as fp16. A product of two
# `torch.randn(256, 256)` is off by 0.03 % if the factors have 11 bits, and by 0.23 % if they have bf16's 8 (computed).
#
# Now look again at the GPT-2 that opened lesson 06, on one A100. Which of its
# steps do you understand now?

# %% series
rows = gpulab.data.trainings("rasbt gpt2 by hand")
gib = {row.setting: row.value for row in rows if row.unit == "reserved GiB"}
speed = {row.setting: row.value for row in rows if row.unit == "tokens/s"}
figure, axes = plt.subplots(figsize=(7, 2.7))
axes.plot(gib.values(), speed.values(), "o-", color=gpulab.style.MUTED)
for before, after in (("mask on the fly", "+ TF32"), ("+ fused AdamW", "+ bf16 weights")):
    axes.plot([gib[before], gib[after]], [speed[before], speed[after]], linewidth=4, label=after)
axes.set(xlabel="memory, GiB (recorded)", ylabel="tokens per second", xlim=(0, 32))
axes.legend(title="this lesson's")
gpulab.style.show(figure, alt=f"GPT-2, tokens per second: {speed}; GiB: {gib}")

# %% series-explain [markdown]
# TF32 made it 2.2 times as fast and saved no byte. The other step, 1.6 times as fast, converted the *weights* to bf16,
# and with them gradients and Adam's state. It halves everything, at the price that *Weights stay in float32* shows.

# %% eight-text [markdown]
# ## Which format for which job
#
# | job | products | weights | scaler |
# |---|---|---|---|
# | train, Ampere or later | bf16 autocast | float32 | no |
# | train, Volta or Turing | fp16 autocast | float32 | yes |
# | more digits needed, Ampere or later | fp16 autocast, or TF32 | float32 | with fp16 |
# | inference, Ampere or later | bf16 | bf16 | no |
# | train very large, Ada, Hopper or later | fp8 by a library | float32 | its own scales |
#
# **fp8** is no dtype of autocast. *e4m3* has more significant bits and serves weights and activations; *e5m2* has more
# range and often serves gradients. Each tensor, or each part of it, needs a scale. Libraries do this (torchao,
# Transformer Engine). On 8 H100, torchtitan trained Llama-3.1-8B with `torch.compile` at 6,667 tokens/s *per GPU* in
# bf16 and 8,532 in fp8, in the same memory (recorded).
#
# **Your turn** · 3 minutes. Each job names its GPU, the significant bits that the factors of its products must keep,
# and its largest activations. Choose the first of these that the GPU has in hardware and that can hold the numbers:
#
# `"bf16"` · `"fp16 with scaler"` · `"TF32"` · `"float32"`


# %% format-turn tags=["your-turn"]
def formats():
    # TODO: a format in place of each None
    ### BEGIN SOLUTION
    return {
        "T4, 8 bits, activations up to 900": "fp16 with scaler",
        "H100, 8 bits, activations up to 80,000": "bf16",
        "A100, 10 bits, activations up to 200,000": "TF32",
        "T4, 8 bits, activations up to 80,000": "float32",
    }
    ### INSTEAD OF
    # return {
    #     "T4, 8 bits, activations up to 900": None,
    #     "H100, 8 bits, activations up to 80,000": None,
    #     "A100, 10 bits, activations up to 200,000": None,
    #     "T4, 8 bits, activations up to 80,000": None,
    # }
    ### END SOLUTION


gpulab.turn.format_for(formats)

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “AMP: half the memory, 20 to 30 % faster” | Each holds for some batch. Plan it on your network. | *What it saves* |
# | “FP16 is 2 to 8 times as fast” | Peak rates are 2 to 16 times float32's on the GPUs above, whole trainings mostly 2 to 4 times as fast (recorded). | *Which GPU* |
# | “AMP keeps an FP32 master copy” | The parameter is the master; the copy has 16 bits. | *Autocast decides* |
# | “Backward runs in fp16” | An operation's backward runs in the dtype of its forward; `.grad` has the parameter's. | *Autocast decides* |
# | “Use bf16”, then code without a dtype | On CUDA autocast's default is fp16. | *Autocast decides* |
# | “'medium' is a simplified AMP” | TF32 inside products; storage stays float32. | *TF32* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Only the data, or only the model.** You follow an FAQ, call `x.half()`, and forget the model:

# %% mistake-half tags=["raises-exception"]
nn.Linear(8, 10).to(device)(images[:8].half())

# %% mistakes-more [markdown]
# With autocast, convert neither. Without it, for inference, convert both.
#
# **More**, with what you get:
#
# - `model.half()` for training: the scaler refuses (“Attempting to unscale FP16 gradients”). Without a scaler Adam can
#   make NaN: its `eps` of $10^{-8}$ is 0 in fp16.
# - `nn.BCELoss` under autocast: RuntimeError. `BCEWithLogitsLoss` takes what comes before the sigmoid.
# - A mask of −1e9 on fp16 scores: RuntimeError. Use `float("-inf")`, or `F.scaled_dot_product_attention`.
# - `torch.cuda.amp.autocast()`: FutureWarning. The names are `torch.autocast(device.type, dtype=…)` and
#   `torch.amp.GradScaler(device.type)`.
# - `torch.autocast("cpu")` around work on the GPU: nothing changes, and nothing warns you.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(7)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. 16 bits are enough for products and too few for sums of small changes. So weights, their gradients and the
#    optimizer stay float32 under autocast.
# 2. Autocast keeps less for backward once it keeps more numbers in 16 bits than it copies weights. Parameters,
#    gradients and Adam's state do not shrink. Plan it on your network.
# 3. bf16 where the hardware has it, without a scaler. fp16 elsewhere, always with one.
# 4. Scale, backward, unscale, clip, step, update.
# 5. By default TF32 is on for convolutions and off for products. Say which, when you write “fp32”.
#
# **For the checklist:** `torch.autocast` around forward and loss, with `dtype=` written out · `GradScaler` for fp16
# only · clip after unscale · float32 weights · the scaler in the checkpoint.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/07_mixed_precision.ipynb): a comparison that can be believed, a training step, and a
# scaler of your own. Then [lesson 08](08_accumulation.ipynb): large batches in small pieces.
#
# ## References
#
# - PyTorch documentation: *Automatic Mixed Precision package*, with its list of operations.
# - Micikevicius et al., *Mixed Precision Training*, arXiv 1710.03740; Zamirai et al., *Revisiting BFloat16 Training*,
#   arXiv 2010.06192.
# - Recorded numbers: NVIDIA *DeepLearningExamples*; Hugging Face, *Efficient training on a single GPU* (BERT-large); H. He,
#   *Strangely, matrix multiplications …* (A100); lablup/mlxcel, issue 1654 (V100); torchtitan, *performance*.
