# %% title [markdown]
# # 02 · Devices
#
# **Promise:** you write code that runs unchanged on a laptop, on one GPU, and on the second of four. When PyTorch says
# that a tensor is in the wrong place, you know how it got there.
#
# After this lesson you can **choose** the device in one line, for NVIDIA, AMD, Intel and Apple · **predict** what each
# `.to` copies, and what it leaves behind · **tell** an optimizer that trains from one that does not · **find** the line
# of an error that a GPU reports too late.
#
# | time | before this | runs on |
# |---|---|---|
# | 50 minutes, and 60 for the exercises | `00_start_here`; a model of your own in PyTorch | any machine |

# %% setup
import torch
import torchvision
from torch import nn

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% question-text [markdown]
# ## A question worth asking
#
# This small classifier standardises 64 pixels and sends them through two linear layers. Six tensors belong to it:
# `mean`, `std`, and a weight and a bias for each layer. Then comes a line that you have written often,
# `model.to(device)`. How many of the six does it move?

# %% question-model
class Classifier(nn.Module):
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
moved_guess = gpulab.predict("How many of the model's six tensors does model.to(device) move?")

# %% question-run
pixels = gpulab.data.digits("train")[0].flatten(1)
model = Classifier(pixels.mean(0), pixels.std(0)).to(device)
print("the first parameter is on", next(model.parameters()).device)
names = ["mean", "std", "first.weight", "first.bias", "rest[0].weight", "rest[0].bias"]
tensors = [model.mean, model.std, *model.first.parameters(), *model.rest[0].parameters()]
for name, tensor in zip(names, tensors):
    print(f"  {name:<15} {tensor.device}")
why = "To PyTorch, mean is an attribute like any other, and rest is a Python list."
moved_guess.compare(sum(tensor.device == device for tensor in tensors), because=why)

# %% question-fails
try:
    model(pixels[:4].to(device))
except RuntimeError as error:
    print("RuntimeError:", error)

# %% question-answer [markdown]
# The usual test, `next(model.parameters()).device`, names the GPU. Nothing warned you, and the forward pass fails.
#
# **A model has no device.** It has tensors, and each of them has one. This lesson follows the tensors: how they get to a
# device, what goes along, and what may meet there.

# %% choose-text [markdown]
# ## Choosing the device
#
# A script decides once, at its top. After that it mentions no hardware:

# %% choose
chosen = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
print("this script would use:", chosen)

# %% choose-table [markdown]
# | hardware | `device.type` | its own module | worth knowing |
# |---|---|---|---|
# | NVIDIA | `cuda` | `torch.cuda` | |
# | AMD (ROCm build) | `cuda` | `torch.cuda` | the same names; `torch.version.hip` is set |
# | Intel | `xpu` | `torch.xpu` | |
# | Apple | `mps` | `torch.mps` | one device; no float64; `PYTORCH_ENABLE_MPS_FALLBACK=1` runs on the CPU what MPS lacks |
#
# `torch.accelerator` has what all of them share, such as `device_count` and `synchronize`. What only one of them has stays
# in its own module. Guard such calls with `if device.type == "cuda"`.
#
# Ask a GPU what it is before you tune anything:

# %% properties
print(torch.cuda.get_device_properties(device))

# %% none-text [markdown]
# ### The same questions where there is no GPU
#
# Many tutorials print the name of the GPU in their first cell. What does such a cell do on a laptop? The block below
# hides the virtual GPU. (A real one stays visible. To hide that, start Python with `CUDA_VISIBLE_DEVICES=""`: a good
# test of your scripts.)

# %% none-run tags=["host-dependent"]
calls = ["is_available()", "memory_allocated()", "get_device_name(0)", "synchronize()"]
calls = [f"torch.cuda.{call}" for call in [*calls, "memory_summary()"]]
calls += ["torch.zeros(3).cuda()", "torch.accelerator.current_accelerator()"]
with gpulab.without_gpu():
    for call in calls:
        try:
            print(f"{call:<40} {eval(call)}")
        except Exception as error:
            print(f"{call:<40} ✘ {type(error).__name__}: {str(error)[:42]}")

# %% none-answer [markdown]
# Two of the calls that do *not* fail are traps:
#
# - `current_accelerator()` names what this PyTorch was **built** for. A CUDA build says `cuda` even without a GPU. So
#   ask with `check_available=True`.
# - `memory_allocated()` says 0. A log full of zeros looks like a small model.
#
# The message depends on the machine: “Found no NVIDIA driver” (CUDA build, no driver), “No CUDA GPUs are available” (a
# driver, but no visible GPU), “Torch not compiled with CUDA enabled” (CPU build).

# %% make-text [markdown]
# ## Made there, or moved there
#
# ![The host sends launches and data over the bus, and the GPU computes them in its own memory.](../docs/pictures/host_and_gpu.svg)
#
# You can make a tensor on the GPU, or make it in host memory and send it over the bus:

# %% make
a = torch.zeros(3, 4, device=device)  # made there
b = torch.zeros(3, 4).to(device)  # made here, then copied
c = torch.zeros_like(a)  # made where a is
with torch.device(device):  # for code that takes no device argument
    layer = nn.Linear(4, 2)
print([str(t.device) for t in (a, b, c, layer.weight)])

# %% make-run
host = torch.zeros(2**22)  # 16 MiB
copied = gpulab.timing.measure(lambda: host.to(device)).median_ms
made = gpulab.timing.measure(lambda: torch.zeros(2**22, device=device)).median_ms
print(f"16 MiB: copied in {copied:.3f} ms, made there in {made:.3f} ms ({gpu.numbers})")

# %% make-after [markdown]
# The copy crosses the bus. Zeros that are made on the GPU are written at the speed of its own memory, which is many
# times higher. And what is made on the host needs host memory, too. So large models are built on the device, or on
# `meta` (shapes without memory) and filled later (lesson 13).
#
# Be careful with random numbers. A real GPU has its own generator, and the same seed gives other numbers than on the
# CPU. (The virtual GPU gives the CPU's.) If runs on different machines must start alike, draw on the CPU and move.

# %% tensor-text [markdown]
# ## What .to does to a tensor
#
# Many pages say that `.to` returns a new tensor. Here is a float32 tensor `x` on `cuda:0`, which is also `device`, and
# six calls: `x.to("cuda")`, `x.to("cuda:0")`, `x.cuda()`, `x.to(device, torch.float32)`, `x.to(torch.float16)` and
# `x.to(device, copy=True)`.

# %% tensor-predict
copies_guess = gpulab.predict("How many of the six calls make a copy?")

# %% tensor-run
x = torch.ones(1024, 1024, device="cuda:0")
calls = ['x.to("cuda")', 'x.to("cuda:0")', "x.cuda()", "x.to(device, torch.float32)"]
copies = 0
for call in [*calls, "x.to(torch.float16)", "x.to(device, copy=True)"]:
    result = eval(call)
    copies += result is not x
    print(f"{call:<28}", "x itself" if result is x else f"a copy of {result.nbytes:,} bytes")
why = "A change of device, dtype or memory format makes a copy, and so does copy=True."
copies_guess.compare(copies, because=why)

# %% tensor-explain [markdown]
# If nothing changes, `.to` returns `x` itself. So you can write `.to(device)` everywhere: the second call is free.
#
# There is a trap in a function that moves its batch and then changes it in place. On the CPU, where `.to` copies
# nothing, it changes the caller's data. On the GPU it changes its own copy. The tests pass on one machine and fail on
# the other.
#
# `torch.from_numpy` shares its array's memory in the same way, until a `.to` that really copies.
#
# **Your turn** · 2 minutes. Change the marked line, so that `brighten` never touches the caller's tensor, wherever that
# is.

# %% tensor-turn tags=["your-turn"]
def brighten(batch, device):  # the batch plus one, on the device
    batch = batch.to(device)
    # TODO: change this line
    ### BEGIN SOLUTION
    batch = batch + 1
    ### INSTEAD OF
    # batch += 1
    ### END SOLUTION
    return batch


gpulab.turn.brighten(brighten)

# %% model-text [markdown]
# ## What .to does to a model
#
# For a tensor you must keep what `.to` returns: `batch.to(device)` alone does nothing. A module moves **in place**. Look
# at ResNet-18, after one backward pass on the CPU:

# %% model-run
resnet = torchvision.models.resnet18()
resnet(torch.randn(2, 3, 32, 32)).sum().backward()
weight, mean = resnet.conv1.weight, resnet.bn1.running_mean
resnet.to(device)
print("the same parameter:", resnet.conv1.weight is weight, "· its gradient:", weight.grad.device)
print("the same buffer:", resnet.bn1.running_mean is mean, "· under its old name:", mean.device)

# %% model-explain [markdown]
# Each `Parameter` stays the same object with other memory, and its gradient goes along. For a buffer, the module gets a
# **new** tensor.
#
# What is not registered stays behind. There are three ways to register: an `nn.Parameter`, a buffer, a submodule.
#
# ![Registered: std, a buffer, and first, a submodule. Not registered: mean, a plain attribute, and rest, a Python list.](../docs/pictures/registered.svg)
#
# So the classifier needs two changes:
#
# ```python
# self.mean = nn.Buffer(mean)  # the same as register_buffer("mean", mean)
# self.rest = nn.ModuleList([nn.Linear(32, 10)])
# ```
#
# A buffer is not trained. It is saved with the model, unless you write `persistent=False`. And the list did more harm
# than you saw: its layer was missing from `parameters()`, so no optimizer would have trained it, and from every
# checkpoint. On a CPU nothing would have failed.
#
# If `forward` needs a tensor only once, make it there, on the device of its input: `torch.arange(n, device=x.device)`.

# %% model-turn-text [markdown]
# **Your turn** · 3 minutes. `Embed` adds a fixed `table` to its input, and sends the sum through two layers. `.to` finds
# nothing in it. Change two lines, so that both layers and the table go along. The table is neither trained nor saved: it
# can be computed again.

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
# “Move the model first, then make the optimizer.” PyTorch's documentation of `Module.cuda` gives the reason: the move
# makes parameters and buffers *different objects*, so an optimizer made before would hold the old ones. What does such
# an optimizer do?

# %% optimizer-predict
trained_guess = gpulab.predict("Made too early: how many of ResNet-18's 62 parameters does it train?")

# %% optimizer-trained
def trained(model, optimizer):  # how many parameters one training step changes
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    model(torch.randn(4, 3, 32, 32, device=device)).logsumexp(1).mean().backward()
    optimizer.step()
    return sum(not torch.equal(p, old) for p, old in zip(model.parameters(), before))

# %% optimizer-run
resnet = torchvision.models.resnet18()
optimizer = torch.optim.Adam(resnet.parameters())
resnet.to(device)
why = "From CPU to GPU the Parameter objects stay, and the optimizer holds these objects."
trained_guess.compare(trained(resnet, optimizer), because=why)

# %% optimizer-state-text [markdown]
# ![The model and the optimizer hold the same Parameter, whose memory moves. The optimizer's state stays where it is.](../docs/pictures/optimizer_state.svg)
#
# An optimizer is not a module: nothing moves its **state**. Adam makes its two moments in its first step, where the
# parameters are at that moment. The optimizer above has stepped. Now move the model again:

# %% optimizer-state
resnet.cpu()
weight = resnet.conv1.weight
print("parameter:", weight.device, "· its moment:", optimizer.state[weight]["exp_avg"].device)
optimizer.load_state_dict(optimizer.state_dict())
print("after load_state_dict, its moment:", optimizer.state[weight]["exp_avg"].device)

# %% optimizer-orphan-text [markdown]
# Before `load_state_dict`, `optimizer.step()` would have failed, since two devices meet. That error is loud. A silent one
# comes from operations that put other parameters into the model, such as `load_state_dict` with `assign=True`:

# %% optimizer-orphan
state = {name: tensor.to(device) for name, tensor in resnet.state_dict().items()}
resnet.load_state_dict(state, assign=True)
print("trained:", trained(resnet, optimizer), "of 62 parameters, and no error")

# %% optimizer-verdict [markdown]
# The optimizer still holds the old parameters. They get no gradient, so it skips them. The new ones get gradients and
# never change: the loss does not fall, and that is the only sign. A model that was built on `meta` and filled later is
# another such case.
#
# So keep the rule, **model first, optimizer second**, for another reason: state stays behind, and some operations
# replace parameters. When you resume, `optimizer.load_state_dict` comes last. It moves the state to the parameters'
# device.
#
# **Your turn** · 3 minutes. Put the five lines in an order that works. The checkpoint is on the CPU, and `device` is a
# GPU.

# %% resume-turn tags=["your-turn"]
def resume(build, checkpoint, device):
    # TODO: another order
    ### BEGIN SOLUTION
    model = build()
    model.load_state_dict(checkpoint["model"], assign=True)
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(checkpoint["optimizer"])
    ### INSTEAD OF
    # model = build()
    # optimizer = torch.optim.Adam(model.parameters())
    # optimizer.load_state_dict(checkpoint["optimizer"])
    # model.load_state_dict(checkpoint["model"], assign=True)
    # model.to(device)
    ### END SOLUTION
    return model, optimizer


gpulab.turn.resume_in_order(resume)

# %% together-text [markdown]
# ## Together on one device
#
# A kernel runs on one device and, as a rule, reads that device's memory. PyTorch moves hardly anything unasked: a
# hidden copy in a loop would cost more than an error. The rule: **all tensors of an operation are on the same device.**
# It has exceptions.
#
# In these ten expressions, `g`, `n` and `j` are on the GPU, `c`, `s` and `i` on the CPU. `g` and `c` have three
# elements, `n` and `s` are 0-dimensional, `i` and `j` are indices: `g + c`, `g + 2`, `g + s`, `c + n`, `g[i]`, `c[j]`,
# `g.index_select(0, i)`, `g[c > 0]`, `g.copy_(c)`, `torch.cat([g, c])`.

# %% together-predict
refused_guess = gpulab.predict("How many of the ten expressions are refused?")

# %% together-run
g, c = torch.ones(3, device=device), torch.ones(3)
n, s = torch.tensor(2.0, device=device), torch.tensor(2.0)
j, i = torch.tensor([0, 2], device=device), torch.tensor([0, 2])
codes = ["g + c", "g + 2", "g + s", "c + n", "g[i]", "c[j]", "g.index_select(0, i)"]
refused = 0
for code in [*codes, "g[c > 0]", "g.copy_(c)", "torch.cat([g, c])"]:
    try:
        print(f"{code:<21} on {eval(code).device}")
    except RuntimeError as error:
        refused += 1
        print(f"{code:<21} ✘ {str(error)[:72]} …")
refused_guess.compare(refused, because="Numbers, indices in brackets and copy_ may cross.")

# %% together-explain [markdown]
# - In elementwise operations, a **0-dimensional CPU tensor** counts as a number: its value goes along with the launch.
#   The other way round, in `c + n`, the host would have to wait for the GPU.
# - **Indices in brackets** may be on the CPU. PyTorch copies them over each time. For integer indices the host waits.
# - **`copy_`** is made for crossing.
#
# Other messages name an argument. A `Linear` says “but got mat1 is on cpu, different from other tensors”: `mat1` is your
# input, `mat2` the weight. A convolution says “Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor)
# should be the same”, and means devices. In both cases the input was not moved.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator has three tensors, a bus and a GPU. `weights` has gone to the GPU, `bias` has not.
#
# 1. Add `bias to GPU` before the sum. It has 1/512 of the bytes of `weights`: what is its time on the bus, and why?
# 2. Give the copy *the same name*. What happens to the first `weights` in host memory?
# 3. Give it *its module*. Why does one command now move both?

# %% simulator
gpulab.sim.transfers(script="weights to GPU; weights + bias")

# %% numpy-text [markdown]
# ## To NumPy and back
#
# NumPy sees host memory only, and knows nothing of gradients. PyTorch neither leaves the graph nor crosses the bus
# unasked. You do both: `.detach().cpu().numpy()`.

# %% numpy-run
w = torch.ones(3, device=device, requires_grad=True)
half = torch.ones(3, dtype=torch.bfloat16)
for code in ["w.numpy()", "w.cpu().numpy()", "w.detach().cpu().numpy()", "half.numpy()"]:
    try:
        print(f"{code:<25} {eval(code)}")
    except (TypeError, RuntimeError) as error:
        print(f"{code:<25} ✘ {type(error).__name__}: {str(error)[:62]} …")

# %% numpy-after [markdown]
# `w.numpy(force=True)` is the whole chain in one call. NumPy has no bfloat16, so such a tensor becomes float32 first:
# `half.float().numpy()`. Matplotlib, pandas and scikit-learn call NumPy, and show the same messages.
#
# `.item()`, `.tolist()`, `float(x)` and `print(x)` cross by themselves. Each of them **waits** until the GPU has
# computed the value. Lesson 03 measures what that costs.

# %% several-text [markdown]
# ## Several GPUs
#
# `cuda:1` is the second GPU. And `cuda`? This section uses two virtual T4s, even if you have a real GPU.

# %% several-predict
move_guess = gpulab.predict('x, of 4 MiB, is on cuda:1. How many MiB does x.to("cuda") copy?')

# %% several-run
with gpulab.VirtualGPU("T4", count=2):
    x = torch.ones(1024, 1024, device="cuda:1")
    y = x.to("cuda")
    print("x is on", x.device, "and y on", y.device)
    copied = torch.cuda.memory_allocated(0) / 2**20
    for other in ("cuda:0", "cuda"):
        print(f"y.device == torch.device({other!r}):", y.device == torch.device(other))
why = "cuda is the current GPU: number 0, until somebody changes it."
move_guess.compare(copied, "virtual", because=why)

# %% several-explain [markdown]
# Code that says `"cuda"` in the middle of a model pulls tensors over to the current GPU. With one GPU it works. On the
# second, it fails, or it fills GPU 0 with copies. Inside a model, never name a device: take `x.device`.
#
# A GPU tensor's device has a number. The device that you write may have none, and then **the two are not equal**. To
# ask for the kind, compare `x.device.type == "cuda"`; to ask for the place, compare with a device that has a number.
#
# Numbers belong to the *process*. After `CUDA_VISIBLE_DEVICES=2,3`, set before Python starts:
#
# ![In the process cuda:0 is the machine's GPU 2, and cuda:1 its GPU 3. GPUs 0 and 1 are hidden.](../docs/pictures/visible_devices.svg)
#
# CUDA counts the fastest GPU first, `nvidia-smi` by slot. With unequal GPUs set `CUDA_DEVICE_ORDER=PCI_BUS_ID`, too.

# %% several-turn-text [markdown]
# **Your turn** · 2 minutes. `padding` says which positions of a batch are past the end of their sequence. It was
# written on a laptop. Change it, so that its mask is on the device of `x`, whatever that is. Name no device.

# %% several-turn tags=["your-turn"]
def padding(x, lengths):  # x is (batch, tokens), lengths a list
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
# Look at single tensors, then at the whole model. `verify_model_device` counts
# parameters and buffers, and raises if one is elsewhere. Here is the classifier of the opening:

# %% see-run
gpulab.devices.print_tensor_info(model.mean, "mean")
print(gpulab.devices.verify_model_device(model, device))

# %% see-stray-text [markdown]
# It passes, although `mean` is on the CPU. These functions see what is registered, as `.to` does. A plain tensor is an
# ordinary Python attribute:

# %% see-stray
for name, module in model.named_modules():
    for key, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            print(f"a plain tensor in {type(module).__name__}: {key}, on {value.device}")

# %% see-meta [markdown]
# This finds `mean`, but no layer in a list. The forward pass finds both: send one small batch through the model on its
# device, before the data set is loaded.

# %% late-text [markdown]
# ## The error that comes late
#
# So far, each error came at the line that caused it. PyTorch checks shapes, dtypes and devices on the host, before a
# launch. It does not check **values** there: the host would have to wait for them. A label for a class that does not
# exist is such a value. On the CPU:

# %% late-cpu
from_one = torch.arange(3, 11)  # digits counted from 1: the last is 10, ten classes are 0 to 9
try:
    nn.functional.cross_entropy(torch.randn(8, 10), from_one)
except IndexError as error:
    print("IndexError:", error)

# %% late-write-text [markdown]
# The message is exact and comes at once. Now the same on a GPU. A failed assertion makes the GPU unusable for its
# process, so this goes into a script of its own:

# %% late-write
import pathlib
import tempfile

script = pathlib.Path(tempfile.mkdtemp(), "late.py")
written = script.write_text("""import torch
from torch.nn import functional as F

logits = torch.randn(8, 10, device="cuda", requires_grad=True)
labels = torch.arange(3, 11, device="cuda")
try:
    loss = F.cross_entropy(logits, labels)
    print("a loss of shape", tuple(loss.shape))
    loss.backward()
    print(loss.item())
except torch.AcceleratorError as error:
    print(error, "blamed: line", error.__traceback__.tb_lineno)
""")

# %% late-tools
import os
import subprocess
import sys


def run(script, **environment):  # on this notebook's GPU; returns the number at its end
    launcher = ["-m", "gpulab", "run", "--gpu", gpu.virtual_of] if gpu.virtual_of else []
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    print("stderr:", done.stderr.partition("\n")[0])
    print("stdout:", done.stdout)
    return int(done.stdout.split()[-1])

# %% late-predict
line_guess = gpulab.predict("The fault is in line 7 of the script. Which line is blamed?")

# %% late-run
why = "Nobody waits for the kernel, and a shape needs no values. The next launch meets the error."
line_guess.compare(run(script, CUDA_LAUNCH_BLOCKING="0"), gpu.numbers, because=why)

# %% late-explain [markdown]
# On a real GPU the blamed line may come later still, at a `.item()` or in the optimizer. The message says so itself:
# “the stacktrace below might be incorrect”.
#
# **And the GPU is lost to this process.** Not even a new tensor works. NVIDIA's documentation says: terminate the
# process and start it again (in Jupyter: *Restart Kernel*). You cannot catch the error and go on to the next batch.
#
# To find the line, make every launch wait for its kernel. `CUDA_LAUNCH_BLOCKING=1` is read when CUDA starts, so set it
# in the environment, before Python starts:

# %% late-blocking
blamed = run(script, CUDA_LAUNCH_BLOCKING="1")

# %% late-picture [markdown]
# ![By default the host goes on while the kernel fails, and backward is blamed. With CUDA_LAUNCH_BLOCKING=1 cross_entropy waits for its kernel, and is blamed.](../docs/pictures/late_error.svg)

# %% late-remedies [markdown]
# Three ways to the line, cheapest first:
#
# 1. **Read what the kernel wrote** to stderr (in Jupyter look in the terminal, too). `t >= 0 && t < n_classes` means a
#    wrong label. `vectorized gather kernel index out of bounds` and `srcIndex < srcSelectDimSize` mean a wrong row
#    number, as in an embedding. `index out of bounds` means any other index in brackets.
# 2. **Run the step on the CPU.** It checks at the call, and often names the value.
# 3. **`CUDA_LAUNCH_BLOCKING=1`**, or `torch.cuda.synchronize()` behind each suspicious line. Both are slow: for
#    debugging only.
#
# The usual causes are labels counted from 1, a padding label of −1 where `ignore_index` is −100, a tokenizer with more
# words than the embedding, and a head with too few classes. Check once, on the host, when the data come in,
# that `0 <= y.min()` and `y.max() < classes`, without the padding.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict |
# |---|---|
# | “`.to()` returns a new tensor.” | Only if something changes. Otherwise it returns the same object. |
# | “`model.to(device)` moves the model.” | Parameters, gradients and buffers. Not plain attributes, layers in a list, the optimizer's state. |
# | “Make the optimizer after the move; the parameters become other objects.” | Good rule, wrong reason. |
# | “Tensors of different devices cannot be combined.” | Python numbers, 0-dimensional CPU tensors, CPU indices in brackets and `copy_` can cross. |
# | “Move the loss function to the GPU, so that it computes there.” | It computes where its inputs are. Move it only if it holds tensors, such as class weights. |
# | “`assert str(p.device) == device` checks a model.” | It refuses `cuda:0` for `cuda`, forgets buffers, and vanishes under `python -O`. |

# %% web-criterion
criterion = nn.CrossEntropyLoss()  # not moved
loss = criterion(torch.randn(4, 10, device=device), torch.arange(4, device=device))
print("computed on", loss.device)

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Half a fallback.** One tutorial's device line lacks its `else`, which is a syntax error. Another script falls back
# to the CPU, and then calls `.cuda()` all the same.
#
# **A parameter that is moved in the constructor.** `.to` is an operation of autograd. If it copies, its result is an
# ordinary tensor, not an `nn.Parameter`:

# %% mistake-parameter
class Scale(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3)).to(device)


for place in ("cpu", device):
    print(f"made for {place}, parameters:", [name for name, _ in Scale(place).named_parameters()])

# %% mistake-parameter-repair [markdown]
# On the GPU the model has no parameters, and no error says so. Write `nn.Parameter(torch.ones(3, device=device))`, or
# move the finished model. For the same reason `torch.ones(3, requires_grad=True).to("cuda")` gets no `.grad`.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(2)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A model has no device; its tensors have. `.to` moves what is registered: parameters, buffers, submodules.
# 2. `.to` of a tensor returns a copy or the tensor itself. Keep the result, and change nothing in place after it. `.to`
#    of a module works in place.
# 3. Model first, optimizer second, its state last. A move keeps the parameters, and leaves the state behind.
# 4. Choose the device once, at the top, with `check_available=True`. Inside a model take `x.device`.
# 5. An error in values comes late and costs the process its GPU: `CUDA_LAUNCH_BLOCKING=1`, or one batch on the CPU.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/02_devices.ipynb): four functions, each checked on your own code. Then lesson 03, where
# the copies of this lesson are timed and hidden. [The map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: `torch.accelerator`; `torch.Tensor.to`; `torch.nn.Module.to` and `cuda`; *CUDA semantics*.
# - NVIDIA, *CUDA Runtime API*, `cudaErrorAssert`; *CUDA C++ Programming Guide*, “CUDA Environment Variables”.
