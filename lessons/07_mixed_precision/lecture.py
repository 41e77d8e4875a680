# %% title [markdown]
# # 07 · Mixed precision
#
# **Promise:** you use 16-bit arithmetic where it is free, keep float32 where it is not, and know beforehand what it
# saves on your model: time where products are large, memory where activations are.
#
# After this lesson you can
#
# 1. **say** what fp16, bf16, TF32 and fp8 keep of a number, and **choose** one for a GPU and a job;
# 2. **predict** from which batch on autocast saves memory, and where it makes a step slower;
# 3. **name** what autocast runs in 16 bits, what stays in float32, and why accuracy survives;
# 4. **put** scaler, clipping, step and schedule in their order, and **explain** a skipped step;
# 5. **recognise** weights that no longer move.
#
# | time | before this | runs on |
# |---|---|---|
# | 65 minutes, and an hour for the exercises | `04_memory`; a training loop of your own | any machine |

# %% setup-text [markdown]
# The first cell prints what the numbers in this notebook are. Bytes and times are *virtual* (counted and modelled)
# or, on your own GPU, *measured*. Results of arithmetic are computed here. Where a cell opens a `VirtualGPU`, its
# numbers are virtual on every machine.

# %% setup
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% question-text [markdown]
# ## A question worth asking
#
# “Two lines of AMP halve your memory.” You will read it in many tutorials. Here are the two lines (one, today), around
# eight layers of 1024 units, with a batch of 8. The function counts what the forward pass leaves in memory: its output
# and all that backward will need.
#
# How much does autocast save?

# %% question-predict
guess = gpulab.predict("What the forward pass holds under autocast, against float32", unit="times")

# %% question-run
def deep_net(width=1024, depth=8):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to("cuda")


def held_after_forward(batch, dtype=torch.float32):
    """Bytes that one forward pass leaves allocated, in float32 or under autocast in `dtype`."""
    model, x = deep_net(), torch.ones(batch, 1024, device="cuda")
    model(x).sum().backward()  # warm-up: cuBLAS takes its workspace once
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
        output = model(x)  # held, or its graph would go
    return torch.cuda.memory_allocated() - before


plain, mixed = held_after_forward(8), held_after_forward(8, torch.float16)
print(f"float32:  {plain / 2**20:6.2f} MiB ({gpu.numbers})")
print(f"autocast: {mixed / 2**20:6.2f} MiB ({gpu.numbers})")
told = """Activations are half as large. But autocast leaves the weights in float32 and multiplies with 16-bit copies of
them, which backward needs too: seven of 1024 × 1024 numbers of 2 bytes. (Not eight: nobody wants the gradient of x.)"""
guess.compare(round(mixed / plain, 1), gpu.numbers, because=told)

# %% question-answer [markdown]
# The sentence is wrong for one batch, and right for another. This lesson finds out where the line is: for memory, for
# time, and for the gradient.
#
# The prediction of the virtual GPU is exact enough for such questions. On a GPU of your own, compare:

# %% question-predicted
with gpulab.VirtualGPU("T4", compute=False):
    predicted = held_after_forward(8, torch.float16)
print(f"predicted {predicted:,} bytes, {gpu.numbers} {mixed:,} bytes")

# %% formats-text [markdown]
# ## What 16 bits keep
#
# A floating-point number has a sign, an exponent (how large) and significant bits (how exact). 16 bits can be divided
# in two ways. **fp16** keeps 11 significant bits and pays with range; **bf16** keeps the range of float32 and pays with
# bits. Neither is “half of float32” in both.

# %% formats-run
formats = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
print(f"{'format':<15} bytes  significant bits  {'largest':>9}  smallest above 0")
for dtype in formats:
    info = torch.finfo(dtype)
    bits = 1 - round(torch.tensor(info.eps).log2().item())
    smallest = info.smallest_normal * info.eps  # the subnormal numbers reach down to here
    print(f"{str(dtype)[6:]:<15} {info.bits // 8:>5}  {bits:>16}  {info.max:>9.3g}  {smallest:.1e}")

# %% formats-limits
for value in (70000.0, 1e-8, 257.0, 2049.0):
    asked = torch.tensor(value)
    print(f"{value:>8g}:  fp16 {asked.half().item():<8g} bf16 {asked.bfloat16().item():g}")

# %% formats-limits-text [markdown]
# Read it by column. fp16 loses what is beyond 65504 (`inf`) and what is below $3\cdot10^{-8}$ (0); bf16 loses neither.
# bf16 has no 257 (8 bits count to 256, then by twos) and stores 70000 as 70144; fp16 has 257, and no 2049.
# **TF32** is no storage format and has no dtype: tensor cores read float32 numbers and use 11 of their 24 bits. It
# saves no byte.
#
# What do 8 significant bits mean for training? Take a weight of 1.0, and a thousand updates of −0.001 each.

# %% stuck-predict
left = gpulab.predict("1.0, minus 0.001, a thousand times, in bf16: what is left?")

# %% stuck-run
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(1000):
        weight -= 0.001
    print(f"{str(dtype)[6:]:<9} {abs(weight.item()):.3f} (computed)")
told = """It never moved. Below 1 the next bf16 number is 0.0039 away; 0.001 is less than half of that, so each
difference is rounded back to 1.0, without an error or a warning."""
left.compare(weight.item(), "computed", because=told)

# %% stuck-text [markdown]
# This is the one sentence to keep: *16 bits are enough for a product, and too few for a sum of many small changes*. A
# training step has both. The products are the time, the update is the sum, and mixed precision is the art of treating
# them differently.

# %% formats-simulator-text [markdown]
# ### See it move
#
# The simulator opens on this weight. Try this:
#
# 1. Raise *Each update takes away* to 0.2 %. Where does bf16 end, and why? Which share is the first that gets through?
# 2. *Format* fp16: most of the way, and a wrong end.
# 3. *times 10 to the power* −8, fp16: what is stored? This is a gradient, further down.

# %% formats-simulator
gpulab.sim.number_formats()

# %% autocast-text [markdown]
# ## Autocast decides for each operation
#
# `torch.autocast` is no property of the model. Within its block, each *operation* looks itself up in a list and casts
# its inputs: products down to 16 bits, delicate functions up to float32. What is in no list takes its inputs as they
# come.
#
# Here `h` is a matrix product, and everything else is computed from it. Some results are 16-bit, some float32.

# %% autocast-predict
count = gpulab.predict("How many of the twelve results below have 16 bits?")

# %% autocast-run
x, w = torch.rand(8, 8, device=device), torch.rand(8, 8, device=device)
target, image = torch.zeros(8, dtype=torch.long, device=device), torch.rand(1, 1, 8, 8, device=device)
with torch.autocast("cuda", dtype=torch.float16):
    h = x @ w
    results = {
        "x @ w": h, "conv2d": F.conv2d(image, w[:1, :4].view(1, 1, 2, 2)), "relu": h.relu(), "gelu": F.gelu(h),
        "mean": h.mean(), "2 * h": 2 * h, "h + x": h + x, "sum": h.sum(), "exp": h.exp(),
        "softmax": h.softmax(-1), "layer_norm": F.layer_norm(h, (8,)), "cross_entropy": F.cross_entropy(h, target),
    }
for bits in (torch.float16, torch.float32):
    print(f"{str(bits)[6:]}: {', '.join(name for name, value in results.items() if value.dtype is bits)}")
told = """To 16 bits: products and convolutions. To float32: exp, log, pow, softmax, sum, norms, most losses. The rest
comes as it is, and where dtypes meet the wider wins; sum is listed and mean is not."""
count.compare(sum(value.dtype is torch.float16 for value in results.values()), "computed", because=told)

# %% autocast-lists [markdown]
# Three rules explain the table (they are the same for bf16):
#
# - **To 16 bits** goes what is fast in it, attention and recurrent cells too; a tensor core adds up in float32 anyway.
#   (cuBLAS may add *partial* sums in 16 bits:
#   `torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction` is True.)
# - **To float32** goes what turns small errors into large ones, or adds many terms.
# - **As it comes:** all else. Behind a float32 residual stream everything is float32 until the next product.
#
# Three surprises. `h.sum() / n` and `h.mean()` differ in dtype. `batch_norm` takes 16-bit images but computes its
# statistics in float32. And the loss of `cross_entropy` is float32, but the log-probabilities inside are rounded to
# 16 bits, because it asks `log_softmax` for its input's dtype:

# %% autocast-loss
scores, labels = torch.randn(256, 1000, device=device).bfloat16(), torch.arange(256, device=device)
with torch.autocast("cuda", dtype=torch.bfloat16):
    for name, given in {"scores": scores, "scores.float()": scores.float()}.items():
        loss = F.cross_entropy(given, labels)
        print(f"cross_entropy({name}, labels): {loss.item():.6f}, {loss.dtype}")
    recurrent = nn.LSTM(16, 16, device=device)(torch.rand(5, 2, 16, device=device))[0]
    print("LSTM under bf16 autocast:", recurrent.dtype)

# %% autocast-recurrent [markdown]
# The last line is the fourth, on no list of the documentation: on CUDA, cuDNN's recurrent layers are cast to fp16
# **whatever** dtype you choose (recorded on an H100, too). So a bf16 training with an `nn.LSTM` or `nn.GRU` has fp16's range
# in that place, without the scaler that would watch over it. Turn autocast off around them and give them `x.float()`, or
# use fp16 with a scaler.

# %% parameters-text [markdown]
# What about the parameters? Look at one step from all sides:

# %% parameters-run
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
inside = []
model[1].register_full_backward_hook(lambda module, grad_in, grad_out: inside.append(grad_out[0].dtype))
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(torch.rand(16, 64, device=device))
    loss = F.cross_entropy(output, torch.zeros(16, dtype=torch.long, device=device))
loss.backward()  # outside the block: each backward runs in the dtype of its forward
optimizer.step()
moments = {v.dtype for state in optimizer.state.values() for v in state.values() if v.dim()}
print("output:", output.dtype, "· loss:", loss.dtype, "· gradient between layers:", inside[0])
print("parameters:", {p.dtype for p in model.parameters()})
print("their gradients:", {p.grad.dtype for p in model.parameters()}, "· Adam's moments:", moments)

# %% parameters-text-2 [markdown]
# Parameters, their gradients and Adam's moments are float32. There is no “fp16 model with an fp32 master copy” (that
# is how it was done by hand in 2017): **the parameter is the master**, and the 16-bit weight is the copy, made by a
# cast inside the graph. Backward passes that cast in reverse, which is why gradients of parameters come out in
# float32, after they were *computed* in 16 bits.
#
# That is why accuracy survives: the errors of the products are small and random, and average out; what would lose them
# for good, the update and the delicate functions, is done in float32.
#
# The copies are made once per block and kept until it ends. This saves casts where a weight is used twice, and it has a
# trap:

# %% cache-run
w = nn.Parameter(torch.ones(8, 8, device=device))
with torch.autocast("cuda", dtype=torch.bfloat16):
    before = x @ w
    with torch.no_grad():
        w.zero_()  # as an optimizer step would change it
    print("same block, after the weight became 0: result unchanged?", torch.equal(before, x @ w))
with torch.autocast("cuda", dtype=torch.bfloat16):
    print("next block: result is 0?", not (x @ w).any())

# %% cache-text [markdown]
# One block around a whole epoch computes every step with the first step's weights. Open the block for each forward
# pass, put model *and loss* in it, and leave it before `backward()`.

# %% saves-text [markdown]
# ## What it saves, and from which batch on
#
# Now the line can be drawn. A linear layer from $n$ to $m$ features keeps its input for backward. With $B$ rows
# (samples, or tokens) that is $4Bn$ bytes in float32. Autocast keeps $2Bn$ for the input and $2nm$ for the copy of
# the weight. From how many rows on does it save? (A 3×3 convolution has nine times the weights, and its rows are
# pixels, images × height × width, so it saves soon.)

# %% saves-predict
rows = gpulab.predict("From which batch on, in steps of 64, does autocast hold less than float32 here?")

# %% saves-run
precisions = {"float32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
batches = [8, 32, 128, 512, 1024, 2048, 4096, 8192]
with gpulab.VirtualGPU("A100-80", compute=False):
    held = {name: [held_after_forward(n, dtype) for n in batches] for name, dtype in precisions.items()}
    first = next(n for n in range(64, 4096, 64) if held_after_forward(n, torch.float16) < held_after_forward(n))
for n, full, half in zip(batches, held["float32"], held["fp16"], strict=True):
    print(f"batch {n:>4}: {full / 2**20:7.2f} MiB in float32, {half / full:6.2f} times that under autocast (virtual)")

# %% saves-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7, 3.8))
for (name, sizes), style in zip(held.items(), ("o-", "s-", "x--"), strict=True):
    label = name if name == "float32" else f"autocast, {name}"
    axes.loglog(batches, [size / 2**20 for size in sizes], style, label=label)
axes.axvline(1024, color=gpulab.style.MUTED, linewidth=1)
axes.text(1090, 0.35, "batch = width", color=gpulab.style.MUTED)
axes.set(xlabel="batch (rows)", ylabel="held after forward, MiB (virtual)")
axes.set_xticks(batches, batches)
axes.set_title("Autocast holds less only above 1024 rows, the layers' width")
axes.legend()
gpulab.style.show(
    figure,
    alt="Memory held after a forward pass over the batch, both on logarithmic axes. Float32 is a straight line; fp16 "
    "and bf16 lie on each other, stay near 14 MiB up to batch 128, and fall below float32 above batch 1024.",
)
rows.compare(first, "virtual", because="2Bn + 2nm < 4Bn is B > m: more rows than a layer has outputs.")

# %% saves-explain [markdown]
# fp16 and bf16 lie on each other: a byte has no opinion about exponents. Beyond the line the ratio falls towards ½, and
# reaches it for no batch.
#
# And this is only what the *forward pass* holds. Four things do not shrink at all: parameters, gradients, Adam's two
# moments: 16 bytes a parameter. Look at the peak of a whole step, and at its time:

# %% step-run
def step_cost(batch, dtype=torch.float32, tf32=False):
    """Peak bytes and milliseconds of a training step with Adam."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    model, x = deep_net(), torch.ones(batch, 1024, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    took = gpulab.timing.measure(step, repeat=3, warm_up=2).median_ms
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.cuda.max_memory_allocated(), took


# %% step-table
print("bf16 autocast on an A100     peak memory   time against fp32   against TF32 (virtual)")
for n in (8, 512, 4096, 32768):
    costs = []
    for dtype, tf32 in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False)):
        with gpulab.VirtualGPU("A100-80", compute=False):
            costs.append(step_cost(n, dtype, tf32))
    full, quick, mixed = costs
    print(f"batch {n:>5}: {mixed[0] / full[0]:21.2f}×{full[1] / mixed[1]:17.2f}×{quick[1] / mixed[1]:16.2f}×")

# %% step-explain [markdown]
# No single pair of figures could be right: depending on the row, mixed precision is slower or eight times as fast, and
# saves nothing or a sixth. At batch 8 nothing is saved, since the peak comes in the optimizer step, when activations are
# gone. Up to batch 512 the step is *slower*: casts are operations too, and the GPU waits for the host that launches them.
# The speed-up in the last rows depends on what you compare with.
#
# Eight linear layers with Adam are the hard case for memory. Real networks beside them:

# %% real-models
import torchvision


class GPT2(nn.Module):
    """Of the size of GPT-2 small: twelve layers of 768, on 1024 tokens."""

    def __init__(self):
        super().__init__()
        options = {"activation": "gelu", "batch_first": True, "norm_first": True, "bias": True}
        self.embed, self.head = nn.Embedding(50257, 768), nn.Linear(768, 50257, bias=False)
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(768, 12, 3072, **options) for _ in range(12)])

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


# %% real-step
def planned_peak(network, inputs, batch, half):
    """Peak bytes of a training step with AdamW on an A100, in float32 or under bf16 autocast."""
    def build(batch):
        with torch.device("cuda"):
            model, x = network(), inputs(batch)
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                scores = model(x).flatten(0, -2)
                loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device="cuda"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step
    return gpulab.plan(build, batch=batch, gpu="A100-80").peak_allocated


# %% real-run
def pictures(n):
    return torch.randn(n, 3, 224, 224)


def texts(n):
    return torch.randint(50257, (n, 1024))


nets = {"ResNet-50": (torchvision.models.resnet50, pictures, (8, 64)), "GPT-2 small": (GPT2, texts, (1, 8))}
for name, (network, inputs, batches) in nets.items():
    for n in batches:
        full, mixed = (planned_peak(network, inputs, n, half) for half in (False, True))
        print(f"{name:<11} batch {n:>2}: {full / 2**20:6,.0f} MiB, bf16 {mixed / 2**20:6,.0f}: saves {1 - mixed / full:.0%} (virtual)")

# %% real-explain [markdown]
# By kind of layer:
#
# - **Convolutions** save early: their rows are pixels, and BatchNorm and ReLU between them keep 16-bit tensors too. What
#   does not shrink in a ResNet-50 is 16 bytes for each of 26 million parameters.
# - **Linear layers** save from as many rows (samples × tokens) as they have outputs: one text of 1024 tokens is not enough.
# - **Layer norm, softmax and the loss** stay float32: for a language model the logits are often the largest tensor.
#
# Recorded: BERT-large on a V100 at batch 4 went from 14949 to 13939 MiB, **7 % less memory**, and from 8.86 to 18.64
# samples/s, **2.1 times as fast**. With micro-batches of one text (512 tokens) and checkpointing, fp16 *raised* the
# driver's figure, from 6775 to **7275 MiB**: fewer rows than the layers have outputs, and a 16-bit copy of every weight
# (Hugging Face, 2022). ResNet-50: 3.3 times as fast on a V100 against fp32, 2.6 times on an A100 against TF32 (NVIDIA).
#
# So plan it on your own model. Where activations dominate, memory comes along with the speed; otherwise look in lesson 06.

# %% gpus-text [markdown]
# ## Which GPU is fast in what
#
# Three reasons make 16 bits faster: tensor cores multiply them at many times the float32 rate; an operation that waits
# for memory, and stays in 16 bits, moves half the bytes; and what memory is saved allows a larger batch. The first depends on the GPU.
#
# PyTorch has a function to ask. Ask a T4, the GPU that free notebooks lend you:

# %% gpus-ask
with gpulab.VirtualGPU("T4", compute=False):
    print("T4, torch.cuda.is_bf16_supported():", torch.cuda.is_bf16_supported())

# %% gpus-predict
in_hardware = gpulab.predict("Of T4, L4, A100 and H100, how many have tensor cores for bf16?")

# %% gpus-run
def tflops(dtype, n=4096, tf32=False):
    """10¹² operations per second of an n × n matrix product."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.ones(n, n, dtype=dtype, device="cuda") for _ in range(2))
    took = gpulab.timing.measure(lambda: a @ b, repeat=3, warm_up=50).median_ms  # what the board can keep up
    torch.backends.cuda.matmul.allow_tf32 = False
    return 2 * n**3 / took / 1e9


rates, count = {}, 0
print("TFLOP/s, virtual     fp32    TF32    fp16    bf16    bf16 in hardware")
for name in ("T4", "L4", "A100-80", "H100"):
    with gpulab.VirtualGPU(name, compute=False):
        kinds = ((torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False))
        rates[name] = [tflops(dtype, tf32=tf32) for dtype, tf32 in kinds]
        hardware = torch.cuda.is_bf16_supported(including_emulation=False)
    count += hardware
    print(f"{name:<17}{''.join(f'{rate:8.1f}' for rate in rates[name])}    {hardware}")
told = "Ampere (2020) and later have bf16 and TF32, Volta and Turing fp16 only: there bf16 runs, and gains no speed."
in_hardware.compare(count, "virtual", because=told)

# %% gpus-explain [markdown]
# `is_bf16_supported()` means “can I make such a tensor”, and **counts emulation**. Ask with `including_emulation=False`,
# or for capability 8.0. (For emulated bf16 the model takes the float32 rate.)
#
# And a T4 that promises 65 TFLOP/s? It begins with 49, and its 70 W allow 23 of them in the long run (a forum of NVIDIA's has
# 24, recorded). The L4, at 72 W, is in the same position; the A100 at 400 W is not.
#
# “Tensor cores are 12 times as fast as CUDA cores” compares two chips, and “2 to 8 times” is peak against peak. By
# the vendor's own peaks:

# %% gpus-peaks
peaks = {"V100": (15.7, 125), "A100": (19.5, 312), "H100": (67, 989)}  # fp32, fp16 on tensor cores: TFLOP/s, dense
for name, (fp32, fp16) in peaks.items():
    print(f"{name}: {fp16 / fp32:4.1f} times its own fp32 rate (computed from datasheets)")
print(f"V100's tensor cores against the fp32 of a P100, 10.6: {125 / 10.6:.1f} times (computed)")

# %% gpus-recorded-text [markdown]
# A network is not all products. What did whole trainings gain? NVIDIA published these (one GPU, gradients added up to one
# batch; under AMP the micro-batch could grow, which is a part of the gain). Beside one of them the virtual GPU's:

# %% gpus-recorded
def speed(card, batch, amp):
    """Images per second of ResNeXt-101 in training on a virtual GPU, under fp16 autocast or without."""
    kind = {"memory_format": torch.channels_last} if amp else {}
    with gpulab.VirtualGPU(card, compute=False), torch.device("cuda"):
        blocks = torchvision.models.resnet.Bottleneck, [3, 4, 23, 3]
        model = torchvision.models.ResNet(*blocks, groups=32, width_per_group=4).to(**kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images, labels = torch.randn(batch, 3, 224, 224).to(**kind), torch.zeros(batch, dtype=torch.long)

        def step():
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return batch / gpulab.timing.measure(step, repeat=1, warm_up=1).median_ms * 1000


# %% gpus-recorded-run
pairs = {}
for row in gpulab.data.trainings("NVIDIA DLE"):
    network, precision, batch = row.setting.split()
    pairs.setdefault((row.gpu, network), []).append((precision, int(batch[1:]), row.value))
for (card, network), ((before, small, slow), (_, large, fast)) in sorted(pairs.items()):
    ours = f", {speed(card, large, True) / speed(card, small, False):.1f} (virtual)" if network[0] == "r" else ""
    print(f"{card:<8} {network:<18} {before:>4} {slow:>5,.0f}, AMP {fast:>5,.0f} images/s: {fast / slow:.1f} × (recorded){ours}")

# %% gpus-recorded-explain [markdown]
# Two to four times against fp32 on a V100, two to almost three against TF32 on an A100: nothing like the 8 and 16 of the
# peaks. On the V100 the EfficientNets gain least: their depthwise convolutions do little arithmetic for the bytes they move.

# %% vanish-text [markdown]
# ## Gradients that vanish, and the scaler
#
# bf16 has float32's range and fp16 has not. Activations rarely mind; gradients do. A language model with 50257 words
# averages its loss over, say, 8192 tokens. The gradient of one logit is then $p/8192$, with a probability $p$ of about
# $1/50257$: a number near $2\cdot10^{-9}$. Under autocast the logits are 16-bit, and so is their gradient.

# %% vanish-predict
lost = gpulab.predict("Which part of the logits' gradient becomes 0 in fp16?", unit="%")

# %% vanish-run
torch.manual_seed(0)
scores, words = torch.randn(64, 50257), torch.randint(50257, (64,))  # 64 of the 8192 tokens, untrained


def logit_gradient(dtype, scale=1.0):
    logits = scores.to(dtype, copy=True).requires_grad_()
    loss = F.cross_entropy(logits.float(), words, reduction="sum") / 8192
    (loss * scale).backward()
    return logits.grad


for name, dtype in precisions.items():
    print(f"{name:<8} {(logit_gradient(dtype) == 0).float().mean():7.2%} of the gradient is 0 (computed)")
fp16 = logit_gradient(torch.float16)
told = "What is left is the gradient of the right words: make these more likely. The rest weighs as much together."
lost.compare(round(100 * (fp16 == 0).float().mean().item(), 1), "computed", because=told)
print(f"loss × 65536: {(logit_gradient(torch.float16, 65536.0) == 0).float().mean():.2%}")

# %% vanish-explain [markdown]
# No error, no NaN: training goes on. The remedy is one multiplication. Scale the *loss* by 65536, and by the chain rule
# every gradient is 65536 times as large, out of the hole. Divide the float32 gradients of the parameters by 65536
# before the step, and nothing else has changed. Scaling does not touch the learning rate.
#
# Does it matter in training? Below, a small network learns the digits four times, with the same data and start. To
# stand for a term with a small weight in a larger loss, it is multiplied by $10^{-4}$; Adam hardly notices such a
# factor.

# %% train-define
images, labels = gpulab.data.digits("train")
images, labels = images.flatten(1).to(device), labels.to(device)


def train(dtype=torch.float32, scaled=False, steps=100, weight=1e-4):
    """The loss of each step of a small classifier."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda", enabled=scaled)
    order, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        rows = torch.randint(len(images), (256,), generator=order).to(device)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        scaler.scale(loss * weight).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


# %% train-run
curves = {
    "float32": train(),
    "bf16": train(torch.bfloat16),
    "fp16 with scaler": train(torch.float16, scaled=True),
    "fp16 without": train(torch.float16),
}
ends = {name: curve[-10:].mean() for name, curve in curves.items()}
for name in ("bf16", "fp16 with scaler"):
    print(f"{name}: last losses within 5 % of float32's:", bool((ends[name] / ends["float32"] - 1).abs() < 0.05))
print("fp16 without: above five times float32's:", bool(ends["fp16 without"] > 5 * ends["float32"]))

# %% train-plot
figure, axes = plt.subplots(figsize=(7, 3.6))
styles = {"float32": ("-", 7), "bf16": ("--", 3), "fp16 with scaler": (":", 3), "fp16 without": ("-", 2)}
for name, curve in curves.items():
    line, width = styles[name]
    axes.plot(range(1, len(curve) + 1), curve, line, linewidth=width, label=name)
axes.set(xlabel="step", ylabel="training loss", ylim=(0, None))
axes.set_title("Three precisions learn alike, fp16 without a scaler does not")
axes.legend()
gpulab.style.show(
    figure,
    alt="Training loss over 100 steps. Float32, bf16 and fp16 with a scaler lie on each other and fall from 2.3 to about "
    "0.2; fp16 without a scaler stays near 2.",
)

# %% train-explain [markdown]
# Three curves lie on each other: the accuracy survives. The fourth hardly learns. (Run `train(torch.float16,
# weight=1)`: without the small factor this network needs no scaler at all. That is the trap: whether fp16 needs one
# depends on your loss, not on your code, so always use it.)
#
# How large a scale? As large as goes without `inf`, and nobody knows that beforehand. So `GradScaler` tries: it
# begins at 65536, looks for `inf` and NaN in the gradients at each step, and
#
# - **found:** *skips* the optimizer step, and halves the scale;
# - **not found for 2000 steps in a row:** doubles it.

# %% scaler-run
parameter = nn.Parameter(torch.ones(1, device=device))
optimizer = torch.optim.SGD([parameter], lr=0.1)
scaler = torch.amp.GradScaler("cuda", growth_interval=3)  # 2000 by default; 3 to see it grow
for gradient in (1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0):
    scale, old = scaler.get_scale(), parameter.item()
    optimizer.zero_grad()
    scaler.scale(parameter * gradient).sum().backward()
    scaler.step(optimizer)
    scaler.update()
    outcome = "skipped" if parameter.item() == old else "stepped"
    print(f"gradient {gradient:>3}: scale {scale:>7,.0f}, {outcome}, then scale {scaler.get_scale():>7,.0f}")

# %% scaler-text [markdown]
# Read lines 3 to 5: one good step, then an overflow, and the count of good steps begins anew. A skipped step in the
# first dozen is normal, it is how the scale finds its place. One now and then later is normal too. A scale that *keeps*
# falling is not: then the `inf` comes from the forward pass or from the data, and no scale can help.
#
# To skip or not to skip is decided on the host, so `scaler.step` waits for the GPU, in every step. It is a hidden
# synchronisation (lesson 03), unless the optimizer is `fused=True`, which decides on the GPU:

# %% scaler-sync
def waits(dtype, fused=False):
    """How often one step makes the host wait for the GPU."""
    model = nn.Linear(64, 64, device=device)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler, x = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16), torch.ones(8, 64, device=device)
    for mode in ("default", "warn"):  # the first step sets things up
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode(mode)
            with torch.autocast("cuda", dtype=dtype):
                loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


print("waits in a step with fp16:", waits(torch.float16), "· with fp16 and fused Adam:", waits(torch.float16, True))
print("with bf16, without a scaler:", waits(torch.bfloat16))

# %% scaling-simulator-text [markdown]
# ### See it move
#
# The simulator follows `GradScaler` through 5000 steps with toy gradients. It opens at the first step, which
# overflows. Try this:
#
# 1. *First scale* $2^0$: 36 % of the gradients are lost, and after 5000 steps the scale has only come to 4. Why does
#    the scaler begin high?
# 2. *First scale* $2^{24}$: what does it cost to begin far too high?
# 3. *Bad batches* 200: two in a hundred are NaN whatever the scale. Look at the scale at the end. The scaler has no
#    floor; who would tell you?

# %% scaling-simulator
gpulab.sim.loss_scaling()

# %% order-text [markdown]
# ## The order: unscale, clip, step, update
#
# Here is the whole step. It serves all precisions: `enabled=False` turns scaler and autocast into nothing.

# %% order-step
def train_step(model, optimizer, scaler, x, y, dtype, max_norm=1.0):
    """One step in mixed precision; returns the loss and the gradient's norm, both on the device."""
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), norm

# %% order-step-lines-text [markdown]
# Line by line (click one, or choose with the arrow keys):

# %% order-step-lines
gpulab.annotated(train_step, {
    "with torch.autocast": "In the block each operation looks itself up in the lists. enabled=False casts nothing.",
    "loss =": "Model and loss, and no more, are inside. On a GPU the loss then comes in float32.",
    ".backward()": "Outside: the backward of an operation runs in the type that its forward ran in. The loss is "
    "multiplied by the scale, so that small gradients do not vanish in fp16.",
    "unscale_": "Divides .grad by the scale: from here on it is the true gradient. Notes if an inf or NaN is in it.",
    "clip_grad_norm_": "Needs the true gradient, so it comes after unscale_. Returns the norm before clipping.",
    "scaler.step": "Makes the optimizer's step, or skips it where unscale_ has found an inf or NaN.",
    "update": "Every step, at the end. By default: half the scale after a skip, twice after 2,000 good steps in a row.",
})

# %% order-text-2 [markdown]
# `max_norm` is meant for the true gradient. Clip before `unscale_`, and you clip one that is 65536 times as long:
# nearly every step gets the length `max_norm / 65536`. SGD stands still; Adam divides by that length again and hides it, in
# part.
#
# Without clipping (or logging the norm), leave `unscale_` out: `step` does it. It is harmless and needless:

# %% order-run
def after_one_step(*calls, max_norm=100.0):
    """How far one step of SGD moves the weights, with these calls between backward and step."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10).to(device)
    start = model.weight.detach().clone()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cuda")
    scaler.scale(F.cross_entropy(model(images[:64]), labels[:64])).backward()
    for call in calls:
        if call == "unscale":
            scaler.unscale_(optimizer)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return (model.weight.detach() - start).norm().item()


plain = after_one_step()
print("unscale without clip: same as no unscale at all:", after_one_step("unscale") == plain)
print("unscale, clip: same again, the limit is far away:", after_one_step("unscale", "clip") == plain)
print(f"clip, unscale: about {round(plain / after_one_step('clip', 'unscale'), -1):,.0f} times shorter a step")

# %% order-skip [markdown]
# Clipping limits the length of a step; it does not repair what made the gradient long, and 1.0 is a habit, not a law.
# `inf` cannot be clipped: `inf / inf` is NaN. The scaler looks before, in `unscale_`.
#
# A skipped step changes no weight. Whatever counts *updates* should not count it: advance the schedule only if the
# optimizer stepped. There is no flag for that; the usual test is that the scale has not fallen (`get_scale()` waits
# for the GPU, once more).
#
# When you save a checkpoint, save `scaler.state_dict()` too, or the run resumes with a scale of 65536 and a few
# skipped steps.

# %% weights-text [markdown]
# ## Weights stay in float32
#
# If 16 bits are so good, why not convert the model, `model.to(torch.bfloat16)`, and save half of everything? You have
# seen one weight stand still. Here is a network: 20 steps of Adam with the learning rate of a fine-tuning.

# %% weights-predict
moving = gpulab.predict("Which part of bf16 weights has changed after 20 Adam steps at 1e-5? (float32: 79 %)", unit="%")

# %% weights-run
def share_moved(dtype, lr, steps=20):
    """The share of weights that differ from their start after some steps of Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images[:256].to(dtype)).float(), labels[:256]).backward()
        optimizer.step()
    now = nn.utils.parameters_to_vector(model.parameters()).detach()
    return 100 * (now != start).float().mean().item()


for lr in (1e-3, 1e-4, 1e-5):
    shares = [share_moved(dtype, lr) for dtype in (torch.float32, torch.bfloat16)]
    print(f"learning rate {lr:g}: of float32 weights {shares[0]:.0f} % moved, of bf16 weights {shares[1]:.0f} % (computed)")
told = """A weight moves when the update is more than half its spacing, which is 0.2 to 0.4 % of the weight. Adam's
updates are about the learning rate, so at 1e-5 only weights near zero move."""
moving.compare(round(shares[1]), "computed", because=told)

# %% weights-explain [markdown]
# (A fifth never moves in any precision: pixels that are always empty, units that are off.) The loss falls a little
# nevertheless, so nobody notices.
#
# Those who keep 16-bit weights keep the lost part elsewhere: a float32 copy in the optimizer, stochastic rounding, or
# a compensation buffer (Kahan). For **inference** none of this matters: nothing is updated, and
# `model.to(torch.bfloat16)` halves the memory without casts.
#
# Pure *fp16* training fails faster. Adam's `eps` of $10^{-8}$ is 0 in fp16, and so is the square of a small gradient:
# 0/0. See *Common mistakes*.

# %% tf32-text [markdown]
# ## TF32: the switch that is already on
#
# You compare AMP with “fp32” on an A100 and find no speed-up on your CNN. Perhaps your baseline was not fp32.

# %% tf32-flags
print("products may use TF32:     ", torch.backends.cuda.matmul.allow_tf32)
print("convolutions may use TF32: ", torch.backends.cudnn.allow_tf32)
for name in ("high", "medium", "highest"):
    torch.set_float32_matmul_precision(name)
    print(f"set_float32_matmul_precision({name!r}): products may use TF32:", torch.backends.cuda.matmul.allow_tf32)

# %% tf32-run
def conv_ms(allow_tf32):
    torch.backends.cudnn.allow_tf32 = allow_tf32
    x = torch.ones(64, 256, 56, 56, device="cuda").to(memory_format=torch.channels_last)
    conv = nn.Conv2d(256, 256, 3, padding=1, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad():
        took = gpulab.timing.measure(lambda: conv(x), repeat=3).median_ms
    torch.backends.cudnn.allow_tf32 = True  # the default
    return took


with gpulab.VirtualGPU("A100-80", compute=False):
    default, exact = conv_ms(True), conv_ms(False)
print(f"default {default:.2f} ms, allow_tf32 off {exact:.2f} ms (virtual)")

# %% tf32-explain [markdown]
# **Convolutions use TF32 by default, matrix products do not.** (The factor comes from the two rates that the model
# assumes.) TF32 takes float32 tensors, keeps 11 significant bits of each factor, and adds in float32. So it saves no
# memory, needs no scaler, and is no “simplified AMP”. It costs digits, and so does bf16 with its 8 bits:

# %% tf32-predict
error_guess = gpulab.predict("A product of random matrices: bf16's error is how many times TF32's?")

# %% tf32-error
def to_tf32(x):
    """Round to the 11 significant bits that TF32 keeps."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


torch.manual_seed(0)
a, b = torch.randn(256, 256), torch.randn(256, 256)
truth, errors = a.double() @ b.double(), {}
pairs = {"float32": (a, b), "TF32": (to_tf32(a), to_tf32(b)), "bf16": (a.bfloat16().float(), b.bfloat16().float())}
for name, (left_factor, right_factor) in pairs.items():
    errors[name] = ((left_factor @ right_factor - truth).norm() / truth.norm()).item()
    print(f"{name:<8} relative error", f"{errors[name]:.1e}" if errors[name] > 1e-6 else "below 1e-6", "(computed)")
ratio = round(errors["bf16"] / errors["TF32"], 1)
error_guess.compare(ratio, "computed", because="A factor of two for each of the three bits fewer.")

# %% tf32-api-text [markdown]
# `"high"` is documented as TF32 (or a pair of bf16 numbers), `"medium"` as one bf16 number where there is a fast way;
# both set the flag, and both leave convolutions alone.
# For a true float32 baseline say it for both, and print it with the result.
#
# Since PyTorch 2.9 there is a newer way, `fp32_precision`, for everything (`torch.backends`) or for one kind of
# operation: `"ieee"`, `"tf32"`, or `"none"` to inherit. The two ways do not mix. Reading the old flag after the new one
# was set to something else raises:

# %% tf32-api tags=["raises-exception"]
torch.backends.cuda.matmul.fp32_precision = "tf32"  # the new way
print("products:", torch.backends.cuda.matmul.fp32_precision)
torch.backends.cuda.matmul.allow_tf32  # the old way: a library you call may do this

# %% tf32-api-repair
torch.backends.cuda.matmul.fp32_precision = "ieee"
print(torch.backends.cuda.matmul.allow_tf32, "· and quietly: the general setting no longer reaches products:")
torch.backends.fp32_precision = "tf32"
print("all:", torch.backends.fp32_precision, "· products:", torch.backends.cuda.matmul.fp32_precision)
torch.backends.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "none"  # as at the start

# %% eight-text [markdown]
# ## Which format for which job
#
# Put together, with fp8 for the newest GPUs:
#
# | job | products | weights | scaler |
# |---|---|---|---|
# | train, Ampere or later | bf16 autocast | float32 | no |
# | train, Volta or Turing | fp16 autocast | float32 | yes |
# | more digits needed, Ampere or later | fp16 with scaler; TF32 beyond 65504 | float32 | with fp16 |
# | inference, Ampere or later | bf16 | bf16 | no |
# | train very large, Ada, Hopper or later | fp8 by a library: e4m3 forward, e5m2 for gradients | float32 | its own, per tensor |
#
# fp8 is no dtype of autocast. With 4 or 3 significant bits a tensor needs a scale of its own; **e4m3** has the bits,
# for weights and activations, and **e5m2** the range, for gradients. Libraries do it (torchao, Transformer Engine)
# from compute capability 8.9 on. Recorded by torchtitan on 8 H100s (96 GB), Llama-3.1-8B: bf16 with compile 6667
# tokens/s *per GPU*, with fp8 8532, at the same memory (77.0 and 76.8 GiB a GPU).

# %% format-turn-text [markdown]
# **Your turn** · 4 minutes. “Use bf16” is right until somebody runs it on a T4, “use fp16” until an activation reaches
# 70,000. Each job names its GPU, the significant bits that the factors of its products must keep, and its largest
# activations. Take the first of these that the GPU has in hardware and that the numbers fit:
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
# | “AMP: −50 % memory, +20 to 30 % speed” | Each holds for some batch. Parameters, gradients and Adam's state do not shrink. | *What it saves* |
# | “2× speed and 2× memory” | Speed: often, with large products. Memory: from nothing to nearly half, never quite. | *What it saves* |
# | “Halves activations, nearly doubles throughput” | Right for large batches of matrix products; against TF32 rather than fp32. | *What it saves* |
# | “FP16 is 2 to 8 times as fast” | Peak against peak. Whole trainings: 2 to 4 times (recorded). | *Which GPU is fast in what* |
# | “Tensor cores: 12 × CUDA cores” | V100 against P100. On one chip 8 to 16, at the peak. | *Which GPU is fast in what* |
# | “AMP needs a V100, A100 or H100” | T4, L4 and RTX have tensor cores; bf16 autocast runs on the CPU. | next cell |
# | “There are two precisions, fp16 and fp32” | TF32, bf16 and fp8 are missing. | *What 16 bits keep* |

# %% web-cpu
cpu_model = nn.Linear(64, 10)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print("on the CPU:", cpu_model(torch.rand(4, 64)).dtype)

# %% web-text-2 [markdown]
# | you will read | verdict | tested in |
# |---|---|---|
# | “AMP keeps an FP32 master copy” | The parameter is the master; the copy is 16-bit. | *Autocast decides* |
# | “Backward runs in fp16”, “float32 for loss scaling” | Each backward runs in its forward's dtype; gradients of parameters are float32, scaled or not. | *Autocast decides* |
# | “The scaler skips steps with `inf` and adapts” | True. | *Gradients that vanish* |
# | “fp16 overflows and underflows, bf16 does not” | True, and bf16 has 8 significant bits for it. | *What 16 bits keep* |
# | “fp16 is preferred for inference” | Outdated: bf16, fp8, fp4 by hardware. fp16 where there is no bf16. | *Which format* |
# | “Use bf16”, followed by a scaler and the default dtype | On CUDA the default is fp16. Say `dtype=torch.bfloat16`, without a scaler. | next cell |
# | “`set_float32_matmul_precision('medium')` is a simplified AMP” | TF32 or bf16 inside products only; storage stays float32. | *TF32* |
# | “Clip to 1.0 and gradients do not explode” | A rule of thumb for the step; `inf` needs the scaler. | *The order* |

# %% web-default
print("autocast without dtype:", {kind: torch.get_autocast_dtype(kind) for kind in ("cuda", "cpu")})

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Only the data, or only the model.** `x.half()` in place of autocast, as an FAQ has it, and the model forgotten:

# %% mistake-half
model = nn.Linear(64, 10).to(device)
try:
    model(images[:8].half())
except RuntimeError as error:
    print("RuntimeError ·", error)

# %% mistake-half-text [markdown]
# With autocast you convert neither. Without it (inference), both: `model.half()` *and* `x.half()`.
#
# **`model.half()` for training.** The scaler refuses, since an fp16 gradient may have lost what it should save:

# %% mistake-fp16
model = nn.Linear(64, 10).to(device).half()
optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
scaler.scale(F.cross_entropy(model(images[:64].half()).float(), labels[:64])).backward()
try:
    scaler.step(optimizer)
except ValueError as error:
    print("ValueError ·", error)
optimizer.zero_grad()
F.cross_entropy(model(images[:64].half()).float(), labels[:64]).backward()
optimizer.step()  # without the scaler nothing refuses
print("weights are NaN after one step of Adam:", bool(model.weight.isnan().any()))

# %% mistake-names-text [markdown]
# **Yesterday's names.** `torch.cuda.amp` is deprecated, and its `autocast` takes no device; `torch.amp.autocast`
# insists on one. Tutorials mix them:

# %% mistake-names
attempts = {
    "torch.cuda.amp.autocast()": lambda: torch.cuda.amp.autocast(),
    "torch.cuda.amp.GradScaler()": lambda: torch.cuda.amp.GradScaler(),
    'torch.cuda.amp.autocast(device_type="cuda")': lambda: torch.cuda.amp.autocast(device_type="cuda"),
    "torch.amp.autocast()": lambda: torch.amp.autocast(),
}
for text, attempt in attempts.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            attempt()
            print(f"{text}\n    {caught[0].category.__name__}: {str(caught[0].message)[:95]}")
        except TypeError as error:
            print(f"{text}\n    TypeError: {str(error).partition('() ')[2]}")

# %% mistake-names-repair [markdown]
# Write `torch.autocast(device.type, dtype=...)` and `torch.amp.GradScaler(device.type)`. One more case of silence:
# `torch.autocast("cpu")` around work on the GPU does nothing there.
#
# **A loss that autocast refuses.** `BCELoss` takes probabilities, and in 16 bits those near 1 are 1:

# %% mistake-bce
try:
    with torch.autocast("cuda", dtype=torch.float16):
        probability = nn.Linear(64, 1).to(device)(images[:8]).sigmoid()
        nn.BCELoss()(probability, torch.ones_like(probability))
except RuntimeError as error:
    print("RuntimeError ·", error)

# %% mistake-mask-text [markdown]
# The message says the repair: `BCEWithLogitsLoss` on what comes before the sigmoid.
#
# **−1e9 as “minus infinity”.** Attention masks written for float32 meet scores in fp16:

# %% mistake-mask
try:
    with torch.autocast("cuda", dtype=torch.float16):
        scores = images[:8] @ images[:8].T
        scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -1e9)
except RuntimeError as error:
    print("RuntimeError ·", error)

# %% mistake-mask-repair [markdown]
# Use `float("-inf")`, or `torch.finfo(scores.dtype).min` where a whole row may be masked (a row of `-inf` gives NaN in
# softmax), or `F.scaled_dot_product_attention`, which does it for you.
#
# **Outside the block.** What leaves it is 16-bit: `output.float()` before you compute metrics, or add it up over an
# epoch. And `loss.item()` or `scaler.get_scale()` in every step waits for the GPU (lesson 03).

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(7)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. 16 bits are enough for products and too few for sums of small changes: autocast runs products in 16 bits;
#    weights, their gradients and the optimizer stay float32.
# 2. Activations fall where there are more rows than a layer has outputs, which for convolutions is soon; parameters,
#    gradients and Adam stay. From nothing (small Linears) to nearly half (ResNet-50, batch 64): plan it.
# 3. bf16 where the hardware has it (`is_bf16_supported(including_emulation=False)`), without a scaler. fp16 elsewhere,
#    always with one.
# 4. scale, backward, unscale, clip, step, update. Without clipping no unscale.
# 5. TF32 is on for convolutions and off for products. Say which, when you write “fp32”.
#
# **For the checklist:** `torch.autocast` around forward and loss, with the dtype said · `torch.amp.GradScaler` for
# fp16 only · clip after unscale · schedule follows steps that happened · float32 weights · the scaler in the
# checkpoint.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/07_mixed_precision.ipynb): a comparison that can be believed, a training step, and a
# scaler of your own. Then [lesson 08](08_accumulation.ipynb): large batches in small pieces.
#
# ## References
#
# - PyTorch documentation: *Automatic Mixed Precision package* (op reference) and *examples*; *CUDA semantics*,
#   “TensorFloat-32”; `torch.cuda.is_bf16_supported`, `torch.set_float32_matmul_precision`.
# - Micikevicius et al., *Mixed Precision Training*, arXiv 1710.03740. Kalamkar et al., *A Study of BFLOAT16 for Deep
#   Learning Training*, arXiv 1905.12322. Micikevicius et al., *FP8 Formats for Deep Learning*, arXiv 2209.05433.
#   Zamirai et al., *Revisiting BFloat16 Training*, arXiv 2010.06192 (stochastic rounding, Kahan summation).
# - NVIDIA: whitepapers of the V100, A100 and H100; *DeepLearningExamples*, ResNet-50 v1.5. Hugging Face, *Methods and
#   tools for efficient training on a single GPU* (2022), for BERT-large. torchtitan, *performance* page.
