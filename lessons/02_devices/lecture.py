# %% title [markdown]
# # 02 · Devices
#
# **Promise:** you write code that runs unchanged on a laptop, on one GPU, and on the second of four. When PyTorch says
# that a tensor is in the wrong place, you know how it got there.
#
# After this lesson you can
#
# 1. **choose** a device in two lines for NVIDIA, AMD, Intel and Apple, and **say** what fails where there is none;
# 2. **predict** for every `.to` whether it copies, what it moves, and what it leaves behind;
# 3. **find** the tensors that a model did not take along, and the optimizer that trains nothing;
# 4. **name** what may meet across devices and what may not, NumPy and several GPUs included;
# 5. **find** the line of an error that a GPU reports too late.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and as long for the exercises | `00_start_here`; a model of your own in PyTorch | any machine |

# %% setup-text [markdown]
# The first cell prints what the numbers in this notebook are: *measured* on your GPU, or *virtual*. Counts of tensors
# and objects are measured on any machine, for they are PyTorch's own. `device` is the GPU of the card.

# %% setup
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device
images, labels = gpulab.data.digits("train")
pixels = images.flatten(1)
print("pixels:", tuple(pixels.shape), pixels.dtype, "on", pixels.device)

# %% question-text [markdown]
# ## A question worth asking
#
# Below is a small classifier. It standardises the pixels and sends them through two linear layers. Six tensors belong
# to it: `mean`, `std`, and a weight and a bias for each layer. Then comes the line that you have written a hundred
# times, `model.to(device)`.
#
# How many of the six does it move?

# %% question-model
class Classifier(nn.Module):
    """Standardises images of 64 pixels, and gives logits for ten digits."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean = mean
        self.register_buffer("std", std)
        self.first = nn.Linear(64, 32)
        self.rest = [nn.Linear(32, 10)]

    def forward(self, x):
        x = (x - self.mean) / (self.std + 1)
        return self.rest[0](self.first(x).relu())


# %% question-predict
moved_guess = gpulab.predict("How many of the model's six tensors are on the GPU after model.to(device)?")

# %% question-run
model = Classifier(pixels.mean(0), pixels.std(0)).to(device)
print("where the model says it is:", next(model.parameters()).device)
tensors = {"mean": model.mean, "std": model.std}
tensors |= {f"first.{name}": p for name, p in model.first.named_parameters()}
tensors |= {f"rest[0].{name}": p for name, p in model.rest[0].named_parameters()}
for name, tensor in tensors.items():
    print(f"  {name:<15} {tensor.device}")
moved_guess.compare(
    sum(tensor.device == device for tensor in tensors.values()),
    because="To PyTorch, mean is an attribute like any other, and rest is a list of Python's.",
)

# %% question-fails
try:
    model(pixels[:4].to(device))
except RuntimeError as error:
    print("RuntimeError:", error)

# %% question-answer [markdown]
# The usual test, `next(model.parameters()).device`, says `cuda:0`. Nothing warned you, and the first forward pass fails.
# A model has no device. It has tensors, and each of them has one. This lesson follows the tensors: how they get to a
# device, what goes along and what does not, who may meet whom there. It ends with the one error that is not where
# Python says it is.

# %% choose-text [markdown]
# ## Choosing the device
#
# A script should decide once, at its top, and mention no hardware after that. Two lines do it for every kind of GPU
# that PyTorch has in its tree:

# %% choose
found = torch.accelerator.current_accelerator(check_available=True)
chosen = found if found is not None else torch.device("cpu")
print("this script would use:", chosen)

# %% choose-table [markdown]
# | hardware | `device.type` | its own module | worth knowing |
# |---|---|---|---|
# | NVIDIA | `cuda` | `torch.cuda` | |
# | AMD (ROCm build) | `cuda` | `torch.cuda` | same names, HIP underneath; `torch.version.hip` is set |
# | Intel | `xpu` | `torch.xpu` | |
# | Apple | `mps` | `torch.mps` | one device; no float64; `PYTORCH_ENABLE_MPS_FALLBACK=1` computes on the CPU what it cannot |
#
# What is common to all of them is in `torch.accelerator`: `device_count`, `synchronize`, `current_stream`, and, where
# the backend counts it, `memory_allocated`. What one of them has alone stays in its own module, so guard it with
# `device.type == "cuda"`. Google's TPUs come with a package of their own, `torch_xla`.

# %% properties-text [markdown]
# Ask a GPU what it is before you tune anything. The memory is in bytes. PyTorch's messages and `nvidia-smi` divide it by
# 2²⁰ or 2³⁰ and mean MiB and GiB. NVIDIA sells it in “GB” that are nearly GiB, of which the driver keeps one or two per
# cent. T4 and L4 show less, since the bits that correct errors (ECC) take a sixteenth of their memory.

# %% properties
properties = torch.cuda.get_device_properties(device)
total = properties.total_memory
print(f"{properties.name}, {torch.cuda.device_count()} of them visible ({gpu.numbers})")
print(f"compute capability {properties.major}.{properties.minor}, {properties.multi_processor_count} multiprocessors")
print(f"memory: {total:,} bytes = {total / 2**20:,.0f} MiB = {total / 2**30:.2f} GiB = {total / 1e9:.2f} GB")
for name, sold in (("RTX4090", 24), ("A100-80", 80), ("H100", 80), ("T4", 16), ("L4", 24)):
    with gpulab.VirtualGPU(name, compute=False):
        seen = torch.cuda.get_device_properties(0).total_memory
    print(f"{name:<8} sold with {sold} GB: {seen / 1e9:5.1f} · 10⁹ bytes, {seen / 2**30:4.1f} GiB (recorded, CUDA's view)")

# %% none-text [markdown]
# ### The same questions where there is no GPU
#
# Most tutorials print the name of the GPU in their first cell. What does such a cell do on a laptop? The next one
# starts a second Python in which no CUDA GPU is visible, virtual ones included, and asks it thirteen things.

# %% none-predict
raised_guess = gpulab.predict("How many of the thirteen calls below raise an error where there is no GPU?")

# %% none-write
folder = tempfile.TemporaryDirectory()
probe = pathlib.Path(folder.name) / "no_gpu.py"
probe.write_text('''
import torch

calls = """torch.cuda.is_available()
torch.cuda.device_count()
torch.accelerator.current_accelerator()
torch.accelerator.current_accelerator(check_available=True)
torch.cuda.memory_allocated()
torch.accelerator.max_memory_allocated()
torch.cuda.current_device()
torch.cuda.get_device_name(0)
torch.cuda.synchronize()
torch.accelerator.synchronize()
torch.cuda.memory_summary()
torch.cuda.reset_peak_memory_stats()
torch.zeros(3).cuda()"""
for call in calls.splitlines():
    try:
        answer = repr(eval(call))
    except Exception as error:
        answer = f"{type(error).__name__}: {str(error)[:40]}"
    print(f"{call:<60} {answer}")
''')
print("the questions are in", probe.name)

# %% none-run tags=["host-dependent"]
hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
done = subprocess.run([sys.executable, "-W", "ignore", str(probe)], capture_output=True, text=True, env=hidden)
answers = done.stdout.rstrip()
print(answers or done.stderr)
raised_guess.compare(
    sum("Error:" in line for line in answers.splitlines()),
    because="On the CUDA build. The KeyError of memory_summary() means no more than: no GPU.",
)

# %% none-answer [markdown]
# Two of the calls that do *not* fail are traps too:
#
# - `current_accelerator()` names what this PyTorch was **built** for. On a laptop with the CUDA build it says `cuda`,
#   and the next line fails. Ask with `check_available=True`.
# - `memory_allocated()` says 0. A log full of zeros looks like a frugal model.
#
# `torch.accelerator` is no cure-all: its `synchronize` raises as well. Guard it with `torch.accelerator.is_available()`.
#
# The words depend on the machine: “Found no NVIDIA driver” (CUDA build, no driver), “No CUDA GPUs are available”
# (driver there, GPU hidden or none), “Torch not compiled with CUDA enabled” (CPU build).

# %% make-text [markdown]
# ## Made there, or moved there
#
# There are three ways to get a tensor onto a GPU, and they are not equal. The first makes it there. The other two make
# it in host memory and send it over the bus.

# %% make
a = torch.zeros(3, 4, device=device)  # made there
b = torch.zeros(3, 4).to(device)  # made here, then copied
c = torch.zeros(3, 4).cuda()  # the same, and fails without CUDA
d, e = torch.zeros_like(a), a.new_zeros(2)  # where a is: nothing to write, nothing to get wrong
with torch.device(device):  # for code that you cannot pass a device to
    layer, f = nn.Linear(4, 2), torch.arange(3)
print({str(t.device) for t in (a, b, c, d, e, f, layer.weight)})

# %% make-run
sizes = [2**k for k in (12, 14, 16, 18, 20, 22, 24)]  # bytes
copied, made = [], []
for size in sizes:
    host = torch.zeros(size // 4)
    copied.append(gpulab.timing.measure(lambda: host.to(device), repeat=5).median_ms)
    made.append(gpulab.timing.measure(lambda: torch.zeros(size // 4, device=device), repeat=5).median_ms)
for size, there, here in zip(sizes[::3], copied[::3], made[::3]):
    print(f"{size / 2**10:>6,.0f} KiB: copied in {there:.3f} ms, made in {here:.3f} ms ({gpu.numbers})")

# %% make-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.loglog(sizes, copied, "o-", base=2, label="made on the host, then .to(device): the copy alone")
axes.loglog(sizes, made, "s--", base=2, label="made on the GPU: torch.zeros(…, device=device)")
axes.set_yscale("log", base=10)
axes.set_xticks([2**12, 2**16, 2**20, 2**24], ["4 KiB", "64 KiB", "1 MiB", "16 MiB"])
axes.set(xlabel="size of the tensor", ylabel=f"time on the GPU, ms ({gpu.numbers})")
axes.set_title("A large copy over the bus costs many times what making costs")
axes.legend()
gpulab.style.show(figure, alt="Time over size on logarithmic axes. Both curves are flat for small tensors. From some 64 "
    "KiB on the copy's rises with the size; the other stays flat up to 4 MiB and ends far below.")

# %% make-after [markdown]
# Small ones cost about the same: the GPU waits for the host, which asks for either (lesson 03). A large copy is limited by the
# bus (a few GB/s from ordinary memory; lesson 03 has recorded ones), the making by the GPU's own memory (hundreds). And
# this is the copy alone: the host also had to find room for the tensor and to fill it. For a model of 28 GB that is
# 28 GB of host memory, so large models are built on the device, or on `meta` and filled there (lesson 13).
#
# For *random* tensors there is a price: a real GPU has its own generator, and the same seed gives other numbers than on
# the CPU. (A virtual GPU gives the CPU's.) Where runs on different machines must start alike, draw on the CPU and move.

# %% tensor-text [markdown]
# ## What .to does to a tensor
#
# Many pages say that `.to` returns a new tensor. The next cell counts the memory that each of six calls takes. `x` is a
# float32 tensor of 4 MiB, and it is on the GPU already.

# %% tensor-predict
copies_guess = gpulab.predict("How many of the six calls make a copy?")

# %% tensor-run
x = torch.ones(1024, 1024, device=device)
calls = {
    'x.to("cuda")': lambda: x.to("cuda"),
    'x.to("cuda:0")': lambda: x.to("cuda:0"),
    "x.cuda()": lambda: x.cuda(),
    "x.to(device, torch.float32)": lambda: x.to(device, torch.float32),
    "x.to(torch.float16)": lambda: x.to(torch.float16),
    "x.to(device, copy=True)": lambda: x.to(device, copy=True),
}
copies = 0
for code, call in calls.items():
    before = torch.cuda.memory_allocated()
    result = call()
    taken = (torch.cuda.memory_allocated() - before) / 2**20
    copies += result is not x
    print(f"{code:<28} {'x itself' if result is x else 'a copy':<9} {taken:.0f} MiB taken ({gpu.numbers})")
    del result
copies_guess.compare(copies, because="A change of device, dtype or memory format copies, and copy=True; the rest is x itself.")

# %% tensor-explain [markdown]
# That rule makes it safe to write `.to(device)` everywhere: the second call is free. It is also what makes one function
# behave in two ways. This one changes its batch in place. On which device does the caller notice?

# %% tensor-alias
def brighten(batch, device):
    batch = batch.to(device)
    batch += 1  # in place
    return batch


for place in (torch.device("cpu"), device):
    original = torch.zeros(3)
    brighten(original, place)
    print(f"run on {place.type:<5} the caller's tensor is now {original.tolist()}")

# %% tensor-alias-explain [markdown]
# On the CPU `.to("cpu")` returns the caller's tensor, and the caller's data change. On the GPU it returns a copy. The
# tests pass on one machine and fail on the other, and no device is “wrong”. The same holds for NumPy: a tensor from
# `torch.from_numpy` shares the array's memory until the first `.to` that really copies. After a `.to`, do not change in
# place what came from outside.
#
# What goes over the bus is what you see, not what lies behind it: of a view, only its own elements are sent.

# %% tensor-view
everything = torch.zeros(1024, 1024)
view = everything[:2]
sent = view.to(device)
gpulab.devices.print_tensor_info(view, "view")
gpulab.devices.print_tensor_info(sent, "sent")

# %% model-text [markdown]
# ## What .to does to a model
#
# For a tensor you must keep what `.to` returns. For a module it works **in place**: every `Parameter` stays the same
# object and gets other memory, its gradient with it, and what is returned is the module itself.

# %% model-run
layer = nn.Linear(64, 10)
layer(pixels[:8]).sum().backward()
weight = layer.weight
moved = layer.to(device)
print("the same module:", moved is layer, "· the same Parameter:", layer.weight is weight)
print("its data:", weight.device, "· its gradient:", weight.grad.device)

# %% model-tied
first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
second.weight, second.running_mean = first.weight, first.running_mean  # shared by both
both = nn.Sequential(first, second).to(device)
print("still one Parameter for both:", second.weight is first.weight)
print("still one buffer for both:   ", second.running_mean is first.running_mean)

# %% model-what-text [markdown]
# Buffers are treated in another way: the module gets a **new** tensor in their place. Tied weights survive a move, a
# buffer that two modules share becomes two, and a name that you gave to a buffer before the move still means the old one.
#
# What belongs to a module is what is registered with it, and there are three ways in: an `nn.Parameter`, a buffer, a
# submodule. Everything else is Python's. So the classifier of the first section needs two repairs:

# %% model-repair
class Repaired(nn.Module):
    """The classifier with everything registered."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean = nn.Buffer(mean)
        self.std = nn.Buffer(std)
        self.first = nn.Linear(64, 32)
        self.rest = nn.ModuleList([nn.Linear(32, 10)])

    forward = Classifier.forward


repaired = Repaired(pixels.mean(0), pixels.std(0)).to(device)
print("the logits are on", repaired(pixels[:4].to(device)).device)
for name, kind in (("before", model), ("repaired", repaired)):
    counts = len(list(kind.parameters())), len(list(kind.buffers())), len(kind.state_dict())
    print(f"{name:<9} parameters: {counts[0]} · buffers: {counts[1]} · tensors in the checkpoint: {counts[2]}")

# %% model-lines-text [markdown]
# Line by line (click one, or choose with the arrow keys):

# %% model-lines
gpulab.annotated(Repaired.__init__, {
    "nn.Buffer(mean)": 'As register_buffer("mean", mean). It is in no parameters(), so no optimizer trains it.',
    "nn.Buffer(std)": "Saved with the model; with persistent=False it is not (for what can be recomputed, such as a mask).",
    "self.first": "Needed no repair: assigning a module registers it, with all that is registered in it.",
    "nn.ModuleList": "In a list of Python's the layer was in no parameters(), so no optimizer would ever have trained it, "
    "and in no checkpoint. On a CPU nothing would have failed.",
})

# %% model-after [markdown]
# A tensor that `forward` needs only once is best made there, on the device of its input:
# `torch.arange(n, device=x.device)`.

# %% model-turn-text [markdown]
# **Your turn** · 3 minutes. `Embed` adds a fixed `table` to its input, and sends the sum through two layers. `.to` finds
# nothing in it. Change the two lines, so that both layers and the table go along. The table is not to be trained, and
# not to be saved: it can be computed again.

# %% model-turn tags=["your-turn"]
class Embed(nn.Module):
    def __init__(self, table):
        super().__init__()
        # TODO: change these two lines
        ### BEGIN SOLUTION
        self.table = nn.Buffer(table, persistent=False)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        ### INSTEAD OF
        # self.table = table
        # self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
        ### END SOLUTION

    def forward(self, x):
        return self.layers[1](self.layers[0](x + self.table).relu())


gpulab.turn.registered(Embed)

# %% optimizer-text [markdown]
# ## The optimizer and the move
#
# “Move the model first, then make the optimizer.” PyTorch's documentation of `Module.cuda` gives the reason: it says
# that the move makes parameters and buffers *different objects*, so that an optimizer made before it would hold the old
# ones. So what does an optimizer do that was made too early?

# %% optimizer-predict
trained_guess = gpulab.predict("Made before the move: how many of the layer's two parameters does it still train?")

# %% optimizer-run
def trained(layer, optimizer):
    """How many of the layer's parameters one training step changes."""
    x, y = pixels[:32].to(device), labels[:32].to(device)
    before = [p.detach().clone() for p in layer.parameters()]
    optimizer.zero_grad()
    F.cross_entropy(layer(x), y).backward()
    optimizer.step()
    return sum(not torch.equal(p, old) for p, old in zip(layer.parameters(), before))


layer = nn.Linear(64, 10)
optimizer = torch.optim.Adam(layer.parameters())
layer.to(device)
trained_guess.compare(
    trained(layer, optimizer), because="From CPU to GPU the Parameter objects stay, so the optimizer sees the move."
)

# %% optimizer-state-text [markdown]
# An optimizer is not a module: nobody moves its **state**. Adam makes its two moments in its first step, where the
# parameters are at that moment. Once it has stepped, a move tears them apart:

# %% optimizer-state
layer = nn.Linear(64, 10)
optimizer = torch.optim.Adam(layer.parameters())
layer(pixels[:8]).sum().backward()
optimizer.step()  # on the CPU: the moments are there now
layer.to(device)
try:
    trained(layer, optimizer)
except RuntimeError as error:
    print("RuntimeError:", str(error).splitlines()[0])
optimizer.load_state_dict(optimizer.state_dict())  # puts the state where the parameters are
print("after load_state_dict, trained:", trained(layer, optimizer), "of 2")

# %% optimizer-orphan-text [markdown]
# That one is loud. The silent one comes from operations that do put other parameters in: loading with `assign=True`,
# filling a model that was built on `meta` (shapes without memory), and `torch.__future__`'s
# `set_overwrite_module_params_on_conversion`, made for a default that may change one day. Two of them:

# %% optimizer-orphan
def assign(layer):
    state = {name: tensor.to(device) for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


def materialise(layer):
    layer.to_empty(device=device)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)


for where, change in (("cpu", assign), ("meta", materialise)):
    layer = nn.Linear(64, 10, device=where)
    optimizer = torch.optim.Adam(layer.parameters())
    change(layer)
    print(f"{change.__name__:<12} parameters trained: {trained(layer, optimizer)} of 2, and no error")

# %% optimizer-verdict [markdown]
# The optimizer steps over parameters that nobody uses. The loss is computed, the gradient is computed, the weights stay,
# and the only sign is a loss that does not fall.
#
# So keep the rule, **model first, optimizer second**, and drop its usual reason. It protects you from state that stays
# behind and from parameters that are replaced; the plain `.to` from CPU to GPU was never the danger. When you resume, the
# order is: build, move, optimizer, and only then `optimizer.load_state_dict`, which casts the state to the devices of
# the parameters.

# %% together-text [markdown]
# ## Together on one device
#
# A kernel runs on one device and reads that device's memory. PyTorch does not move anything behind your back, since a
# hidden copy in a loop would cost more than an error. The rule is one sentence: **all tensors of an operation are on the
# same device.** It has exceptions. Ten expressions; `g` and `n` are on the GPU, `c`, `s` and `i` on the CPU.

# %% together-predict
refused_guess = gpulab.predict("How many of the ten expressions are refused?")

# %% together-run
g, c = torch.ones(3, device=device), torch.ones(3)
s, n = torch.tensor(2.0), torch.tensor(2.0, device=device)  # 0-dimensional
i, j = torch.tensor([0, 2]), torch.tensor([0, 2], device=device)
expressions = ["g + c", "g + 2", "g + s", "c + n", "g[i]", "c[j]", "g.index_select(0, i)", "g[c > 0]"]
refused = 0
for code in [*expressions, "g.copy_(c)", "torch.cat([g, c])"]:
    try:
        answer = f"on {eval(code).device}"
    except RuntimeError as error:
        refused += 1
        answer = f"✘ {str(error)[:84]} …"
    print(f"{code:<21} {answer}")
refused_guess.compare(refused, because="Crossing is for numbers, indices in brackets and copy_.")

# %% together-explain [markdown]
# The exceptions have reasons:
#
# - A **0-dimensional CPU tensor** counts as a number: its value goes along with the launch. The other way round,
#   `c + n`, the host would have to wait for the GPU, or a whole vector to cross. PyTorch does neither unasked.
# - **Indices in brackets** may be on the CPU; PyTorch copies them over, each time, and the copy waits. `index_select`
#   does not even do that.
# - **`copy_`** is made for crossing.
#
# Two kinds of message: one names the two devices, the other the argument (`index`, `tensors`). Three more that you will
# meet; the last is given the mask that brackets took:

# %% together-conv
attempts = {
    "a Linear": lambda: nn.Linear(64, 10).to(device)(pixels[:2]),
    "a convolution": lambda: nn.Conv2d(1, 4, 3).to(device)(images[:2]),
    "g.masked_fill(c > 0, 0)": lambda: g.masked_fill(c > 0, 0),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except RuntimeError as error:
        print(f"{name}: {str(error)[:98]} …")

# %% together-conv-explain [markdown]
# In a `Linear`, `mat1` is your input and `mat2` the weight. `torch.FloatTensor` is float32 on the CPU, and
# `torch.cuda.FloatTensor` float32 on the GPU: the convolution's message is about devices, although it speaks of types.
# In both the input was forgotten.

# %% simulator-text [markdown]
# ### See it move
#
# Three tensors, a bus, a GPU. The simulator opens where `weights` has gone to the GPU and `bias` has not. Try this:
#
# 1. Add `bias to GPU` before the sum. How much of the time of its 2.05 KB on the bus is latency?
# 2. Let the copy get *the same name*, and look at the host's memory: what happened to the first `weights`?
# 3. Let it get *its place in a module*. Why does one command now move both?

# %% simulator
gpulab.sim.transfers(script="weights to GPU; weights + bias")

# %% simulator-total
shapes = {"input_data": (32, 3, 224, 224), "weights": (512, 512), "bias": (512,)}
nbytes = {name: torch.empty(shape, device="meta").nbytes for name, shape in shapes.items()}
for name, size in nbytes.items():
    print(f"{name:<11} {size:>10,} bytes = {size / 1e6:>8.4f} MB")
print(f"together    {sum(nbytes.values()):>10,} bytes = {sum(nbytes.values()) / 1e6:>8.4f} MB (computed)")

# %% simulator-total-text [markdown]
# A page that shows the same three tensors gives their total as 22.37 MB: it added 2.05 **KB** as if they were MB. Let
# bytes be added as bytes, and format the sum.

# %% numpy-text [markdown]
# ## To NumPy and back
#
# NumPy sees host memory only, and knows nothing of gradients. PyTorch refuses to do either step for you, one at a time,
# so the chain is `.detach().cpu().numpy()`: leave the graph, cross the bus, look at the memory.

# %% numpy-run
w = torch.ones(3, device=device, requires_grad=True)
half = torch.ones(3, dtype=torch.bfloat16)
chains = ["w.numpy()", "w.cpu().numpy()", "w.detach().cpu().numpy()", "w.numpy(force=True)", "half.numpy()"]
for code in [*chains, "half.float().numpy()", "w.detach().tolist()"]:
    try:
        print(f"{code:<25} {eval(code)}")
    except (TypeError, RuntimeError) as error:
        print(f"{code:<25} ✘ {type(error).__name__}: {str(error)[:62]} …")

# %% numpy-share
array = np.zeros(3, dtype=np.float32)
shared = torch.from_numpy(array)
shared += 1
torch.from_numpy(array).to(device).add_(10)
print("the array:", array, "· a CPU tensor shares its memory, a copy on the GPU does not")

# %% numpy-after [markdown]
# `force=True` is the whole chain in one word (and resolves conjugate and negative views too). `.item()`, `.tolist()`,
# `float(x)` and `print(x)` cross by themselves. Each of them **waits** until the GPU has done everything before it;
# lesson 03 measures what that costs.
#
# Matplotlib, pandas and scikit-learn call NumPy, so their message is the same. NumPy has no bfloat16, so that tensor
# must become float32 first. `.cpu().detach()` gives the same numbers, and adds a copy to the graph before it leaves it.

# %% several-text [markdown]
# ## Several GPUs
#
# `cuda:1` is the second GPU; and `cuda`? The cells of this section use two virtual T4s, also where you have a real GPU.

# %% several-predict
move_guess = gpulab.predict('x has 4 MiB and is on cuda:1. How many MiB does x.to("cuda") copy?', unit="MiB")

# %% several-run
with gpulab.VirtualGPU("T4", count=2):
    x = torch.ones(1024, 1024, device="cuda:1")
    y = x.to("cuda")
    print("x is on", x.device, "and y on", y.device)
    told = "cuda is not the first GPU but the current one, which is number 0 until somebody changes it."
    move_guess.compare(torch.cuda.memory_allocated(0) / 2**20, "virtual", because=told)
    print("zeros_like(x) is on", torch.zeros_like(x).device)
    with torch.cuda.device(1):
        print('with torch.cuda.device(1): "cuda" is', torch.ones(1, device="cuda").device)
    try:
        x + y
    except RuntimeError as error:
        print(str(error))

# %% several-explain [markdown]
# Code that says `"cuda"` in the middle of a model pulls tensors over to GPU 0. It works with one GPU, and on the
# second it fails, or (worse) fills GPU 0 with copies. Inside a model, never name a device: take `x.device`.
#
# The numbers are those of the *process*. `CUDA_VISIBLE_DEVICES=2,3` makes the third GPU of the machine `cuda:0`; set it
# before the first CUDA call, best before Python starts. By default CUDA numbers the fastest GPU first and `nvidia-smi`
# goes by the bus, so on a mixed machine number 0 may be two different cards; `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes them
# agree. In a job of several processes each one calls `torch.cuda.set_device(local_rank)` first (lesson 12).

# %% equal
x = torch.zeros(3, device="cuda")
for other in (torch.device("cuda:0"), torch.device("cuda", 0), torch.device("cuda"), "cuda:0"):
    print(f"x.device == {other!r:<34} {x.device == other}")
print("x.device.type == 'cuda':", x.device.type == "cuda", "· x.is_cuda:", x.is_cuda)

# %% equal-explain [markdown]
# A GPU tensor's device has a number; a device that you write may have none, and **the two are not equal**, nor is a
# string ever equal to a device. Compare `device.type` when you mean the kind, and both type and index when you mean
# the place. Many a home-made “is my model on the GPU?” fails here; one stands under *Common mistakes*.

# %% equal-turn-text [markdown]
# **Your turn** · 2 minutes. `padding` says which positions of a batch are behind the end of their sequence. It was
# written on a laptop. Change it, so that its mask is on the device of `x`, whatever that is, and name no device.

# %% equal-turn tags=["your-turn"]
def padding(x, lengths):
    """True where a position of x, (batch, tokens), is behind its sequence's end; lengths is a list."""
    # TODO: change these two lines
    ### BEGIN SOLUTION
    positions = torch.arange(x.shape[1], device=x.device)
    ends = torch.tensor(lengths, device=x.device)
    ### INSTEAD OF
    # positions = torch.arange(x.shape[1])
    # ends = torch.tensor(lengths)
    ### END SOLUTION
    return positions >= ends[:, None]


gpulab.turn.any_device(padding)

# %% see-text [markdown]
# ## Seeing where things are
#
# When something is in the wrong place, look at tensors one at a time, then at the model as a whole. `print_tensor_info`
# is five attributes of a tensor in one line. `placement` counts a model's parameters and buffers by device, and
# `verify_model_device` insists on one. (You will write the last one yourself.)

# %% see-run
gpulab.devices.print_tensor_info(labels, "labels")
gpulab.devices.print_tensor_info(model.first.weight, "first.weight")
model.first.cpu()  # a part that somebody has moved back
print(gpulab.devices.placement(model))
try:
    gpulab.devices.verify_model_device(model, device)
except ValueError as error:
    print("ValueError:", str(error)[:81], "…")

# %% see-stray-text [markdown]
# These look at what is registered, and so does `model.to`. What is *not* registered they cannot see: after
# `model.to(device)`, the classifier of the first section passes. To find plain tensors, look where Python keeps
# attributes:

# %% see-stray
def stray_tensors(model):
    """Tensors in plain attributes of a model's modules: `.to` leaves them behind."""
    return [
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]


model.to(device)
print("all that is registered is on", gpulab.devices.verify_model_device(model, device).devices)
print("stray tensors:", stray_tensors(model))

# %% see-meta [markdown]
# It finds `mean`; a tensor or a layer in a list it does not find. The test that finds everything is the forward pass:
# one small batch on the device, and a look at the device of what comes out. Run it before the data set is loaded, not
# after an hour.

# %% late-text [markdown]
# ## The error that comes late
#
# All errors so far came at the line that caused them: PyTorch checks shapes, dtypes and devices on the host, before it
# launches anything. **Values** it cannot check there, since they are on the GPU. A label that names a class which does
# not exist is such a value. On the CPU:

# %% late-cpu
logits = torch.randn(8, 10)
from_one = torch.arange(3, 11)  # digits counted from 1, so the last is 10; ten classes are 0 to 9
try:
    F.cross_entropy(logits, from_one)
except IndexError as error:
    print("IndexError:", error)

# %% late-write-text [markdown]
# Exact, and at once. Now the same on a GPU. A GPU that has failed an assertion is lost to its process, so this goes into
# a script of its own. Read it, and say which line will be blamed.

# %% late-write
script = pathlib.Path(folder.name) / "late.py"
script.write_text('''import torch
from torch.nn import functional as F

logits = torch.randn(8, 10, device="cuda", requires_grad=True)
labels = torch.arange(3, 11).to("cuda")
try:
    loss = F.cross_entropy(logits, labels)
    print("line 7 is done: a loss of shape", tuple(loss.shape))
    history = {"loss": loss}
    steps = len(history)
    loss.backward()
    print("loss:", history["loss"].item(), "after", steps)
except torch.AcceleratorError as error:
    line = error.__traceback__.tb_lineno
    print(f"line {line} is blamed:", str(error).splitlines()[0])

for code in ("torch.zeros(1, device='cuda')", "logits.detach().cpu()", "torch.cuda.synchronize()",
             "torch.cuda.memory_allocated()", "torch.zeros(1)"):
    try:
        eval(code)
        print(f"afterwards {code:<30} works")
    except torch.AcceleratorError as error:
        print(f"afterwards {code:<30} {str(error).splitlines()[0]}")
''')
print("the script has", len(script.read_text().splitlines()), "lines")

# %% late-predict
line_guess = gpulab.predict("The fault is in line 7. Which line is blamed?")

# %% late-run
def run(script, **environment):
    """What the script prints on this notebook's GPU, and the assertion that its kernels wrote."""
    launcher = ["-m", "gpulab", "run", "--gpu", gpu.virtual_of] if gpu.virtual_of else []
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    said = re.search("Assertion .*failed", done.stderr + done.stdout)
    print(done.stdout.rstrip())
    print("written to stderr by the kernel:", said.group() if said else "nothing")
    return int(re.search(r"line (\d+) is blamed", done.stdout).group(1))


told = "Launching takes microseconds and nobody waits for the end: the next call that happens to look reports the error."
line_guess.compare(run(script, CUDA_LAUNCH_BLOCKING="0"), gpu.numbers, because=told)

# %% late-explain [markdown]
# On a real GPU that may be later still, at a `.item()` or in the optimizer. The traceback is honest about where it
# *noticed*, and the message says so: “the stacktrace below might be incorrect”.
#
# Then look at the rest. **The GPU is lost to this process.** Not even a new tensor or a copy to the host works (the
# statistics do, they are the host's own). NVIDIA's documentation is plain: terminate the process and start it again.
# In a notebook: restart the kernel. Catching the error and going on to the next batch is no option.

# %% late-blocking-text [markdown]
# To find the line, make every launch wait for its kernel. `CUDA_LAUNCH_BLOCKING=1` is read when CUDA starts, so it has
# to be in the environment before, not in the cell that fails:

# %% late-blocking
blamed = run(script, CUDA_LAUNCH_BLOCKING="1")
print("now the line is right:", blamed == 7)

# %% late-remedies [markdown]
# Three ways to the line, cheapest first:
#
# 1. **Read what the kernel wrote.** `t >= 0 && t < n_classes` is a label; `vectorized gather kernel index out of bounds` are
#    rows taken by their numbers: an embedding, `index_select`, `table[ids]`; `index out of bounds` another index in
#    brackets. It goes to stderr: in Jupyter look in the terminal, too.
# 2. **Run the step on the CPU**, where the check happens at the call and names the value.
# 3. **`CUDA_LAUNCH_BLOCKING=1`**, or `torch.cuda.synchronize()` after each suspicious line: the first that raises is
#    right behind the fault. For debugging only; both make everything slower.
#
# One operation may have several kernels, and so several texts. Most answers on the web quote an embedding's old one, which
# remains for up to 16 ids (PyTorch 2.8 and later; before it, for any number):

# %% late-embedding
import contextlib
import io

for count in (16, 17):
    said = io.StringIO()
    with gpulab.VirtualGPU("T4"), contextlib.redirect_stderr(said):
        F.embedding(torch.full((count,), 100, device="cuda"), torch.zeros(100, 64, device="cuda"))
    print(count, "ids:", re.search("Assertion .*failed", said.getvalue()).group(), "(virtual)")

# %% late-causes [markdown]
# The usual causes are labels counted from 1, a padding label of -1 where `ignore_index` is -100, a tokenizer larger than
# the embedding, and a head with too few classes. Check once, on the host, when the data come in:
# `assert 0 <= y.min() and y.max() < classes`.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`.to()` returns a new tensor.” | Only if something changes. If device and dtype fit already, you get the same object, and in-place changes reach the caller. | *What .to does to a tensor* |
# | “`model.to(device)` moves the model.” | Parameters, buffers and gradients, in place. Not plain attributes, not what is in a list, not the optimizer's state. | *A question worth asking* |
# | “Make the optimizer after the move; the parameters become other objects.” | Good rule, wrong reason: CPU to GPU keeps the objects. State, `assign=True` and `meta` are the danger. | *The optimizer and the move* |
# | “`next(model.parameters()).device` is the model's device.” | It is the first parameter's. | *A question worth asking* |
# | “Tensors of different devices cannot be combined.” | With exceptions: Python numbers, 0-dimensional CPU tensors, CPU indices in brackets, `copy_`. | *Together on one device* |
# | “Move the loss function to the GPU, so that it computes there.” | Wrong: it computes where its inputs are. It needs a move only if it holds tensors, such as class weights. | next cell |
# | “Create tensors on the target device.” | True, and for 16 MiB worth a factor of tens (virtual). | *Made there, or moved there* |

# %% web-criterion
logits, y = torch.randn(4, 10, device=device), labels[:4].to(device)
plain, weighted = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.ones(10))  # neither was moved
print("tensors inside:", len(plain.state_dict()), "and, with class weights,", len(weighted.state_dict()))
print("the plain one computed on", plain(logits, y).device)
try:
    weighted(logits, y)
except RuntimeError as error:
    print(str(error)[:104], "…")

# %% web-more [markdown]
# | you will read | verdict | tested in |
# |---|---|---|
# | “Always `model.to(device)` once, and the batch in the loop, batch by batch.” | True. Small data sets may live on the GPU as a whole (lesson 09). | – |
# | “`x.cuda()` and `x.to(device)` are the same.” | On CUDA. The first fails everywhere else. | *The same questions where there is no GPU* |
# | “`cuda` is the same as `cuda:0`.” | It is the current GPU; and as objects the two are not equal. | *Several GPUs* |
# | “`.cpu().numpy()` brings a GPU tensor to NumPy.” | Not if it requires a gradient: `.detach()` first. | *To NumPy and back* |
# | “`pin_memory=True`, and `non_blocking=True` for the batches.” | Lesson 03 measures when that pays. | – |
# | “For several GPUs, wrap the model in `DataParallel`.” | No longer: one process for each GPU, with DDP (lesson 12). | – |
# | “The traceback shows the line of the error.” | On a GPU not for errors in values. | *The error that comes late* |
# | “`torch.cuda.is_available()` finds the GPU.” | CUDA and ROCm only; `torch.accelerator` finds Intel's and Apple's too. | *Choosing the device* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **A device line with a hole in it.** One tutorial's line lacks its `else`. Another's script falls back to the CPU, and
# a few lines later it calls `.cuda()` and `torch.cuda.synchronize()` all the same. Both, without a GPU:

# %% mistake-fallback tags=["host-dependent"]
try:
    compile('device = torch.device("cuda" if torch.cuda.is_available())', "tutorial.py", "exec")
except SyntaxError as error:
    print("SyntaxError:", error.msg)
for line in answers.splitlines():  # what the calls said where there is no GPU
    if ".cuda()" in line or "torch.cuda.synchronize" in line:
        print(line)

# %% mistake-parameter-text [markdown]
# Write `.to(device)` everywhere, and guard what belongs to CUDA alone: `if device.type == "cuda": …`.
#
# **A parameter that is moved in the constructor.** `.to` is an operation of autograd. What it returns, if it copies, is
# a result, no longer an `nn.Parameter`:

# %% mistake-parameter
class Scale(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3)).to(device)


for place in (torch.device("cpu"), device):
    print(f"made for {place.type:<5} parameters: {[name for name, _ in Scale(place).named_parameters()]}")

# %% mistake-parameter-repair [markdown]
# On the CPU it works, since `.to` gave back what it got. On the GPU the model has no parameters, and no error says so.
# Write `nn.Parameter(torch.ones(3, device=device))`, or move the finished model. For the same reason
# `torch.ones(3, requires_grad=True).to("cuda")` never gets a `.grad`.
#
# **A result that is thrown away.**

# %% mistake-thrown
batch = pixels[:4]
batch.to(device)
print("after batch.to(device):        ", batch.device)
batch = batch.to(device)
print("after batch = batch.to(device):", batch.device)

# %% mistake-verify-text [markdown]
# **A check that checks the wrong thing.** This one is on many pages. It compares text, so it refuses a model that is in
# the right place; it asks for parameters only, so it passes one whose buffer was left behind; and it uses `assert`, which
# `python -O` removes:

# %% mistake-verify
def verify_from_the_web(model, device):
    for name, parameter in model.named_parameters():
        assert str(parameter.device) == device, f"{name} is on {parameter.device}, expected {device}"


try:
    verify_from_the_web(repaired, "cuda")
except AssertionError as error:
    print("AssertionError:", error)
repaired.std = repaired.std.cpu()
verify_from_the_web(repaired, "cuda:0")
print("passed, with std on", repaired.std.device)

# %% mistake-ordinal-text [markdown]
# **A number or a name that is not there.** `cuda:1` written into a script is an error on every machine with one GPU
# (a virtual one below); `gpu` is no device of PyTorch.

# %% mistake-ordinal
with gpulab.VirtualGPU("T4"):
    try:
        torch.zeros(1, device="cuda:1")
    except RuntimeError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
try:
    torch.device("gpu")
except RuntimeError as error:
    print(f"RuntimeError: {str(error)[:54]} …")
folder.cleanup()

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(2)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A model has no device; its tensors have. `.to` moves what is registered: parameters, buffers, submodules.
# 2. `.to` of a tensor returns a copy or the tensor itself; keep the result, and change nothing in place after it. `.to`
#    of a module works in place.
# 3. Model first, optimizer second, its state last. Not because the parameters change, but because the state does not move.
# 4. Choose the device once, at the top; inside a model take `x.device`. `cuda` is the current GPU, and not equal to
#    `cuda:0`.
# 5. An error in values surfaces late and ends the process's use of the GPU: `CUDA_LAUNCH_BLOCKING=1`, or the CPU.
#
# **For the checklist:** one device line at the top, with `check_available=True` · model to the device once, after
# building, before the optimizer · batches in the loop · buffers registered · one batch through the model first, and the
# output's device looked at.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/02_devices.ipynb): four functions, each checked on your own code. Then lesson 03, where
# the copies of this lesson are timed and hidden. [The map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: `torch.accelerator`; `torch.Tensor.to`, `torch.Tensor.numpy`; `torch.nn.Module.to` and `cuda`;
#   `torch.nn.Buffer`; `torch.__future__`; *CUDA semantics* (“Asynchronous execution”, “Device-agnostic code”); *MPS
#   backend*. PyTorch issue 7844 on the wording about the optimizer.
# - NVIDIA, *CUDA Runtime API*, `cudaErrorAssert`; *CUDA C++ Programming Guide*, “CUDA Environment Variables”
#   (`CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`, `CUDA_LAUNCH_BLOCKING`).
