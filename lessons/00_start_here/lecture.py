# %% title [markdown]
# # 00 · Start here
#
# **Promise:** in a quarter of an hour your machine is checked, a small network has learned to read digits, you have seen
# what it costs in time and memory, and you know your way round the course.
#
# After this notebook you can
#
# 1. **say** what the numbers in this course are: measured, virtual or recorded;
# 2. **write** the device lines with which every training script begins;
# 3. **use** predictions, checks and hints, and **find** the lesson you need.
#
# | time | before this | runs on |
# |---|---|---|
# | 15 minutes | you have trained a model in PyTorch before | any machine, with or without a GPU |
#
# Run the cells one after the other: click a cell and press Shift+Enter.

# %% setup-text [markdown]
# ## Your machine
#
# Every notebook begins with the same two lines. They choose the device and print a card, which says what the numbers
# below will be:
#
# - **measured**: read off, counted or timed here, on your machine, while you watch;
# - **virtual**: what the course's model of a GPU says that GPU would show. Bytes, and the times of the GPU itself, are
#   the same on every machine; where your Python code has a share in a time, that share is what it takes here;
# - **recorded**: read off somebody's GPU before, with the source.
#
# A number without such a word is arithmetic that you can follow.

# %% setup
import gpulab

gpu = gpulab.setup()

# %% doctor-text [markdown]
# The card says nothing about your computer itself. The doctor does: it looks at Python, PyTorch, the driver, the GPU,
# memory, disk and Jupyter, and for everything that is not well it says what to do. (In a terminal:
# `python -m gpulab doctor`.)

# %% doctor tags=["host-dependent"]
report = gpulab.doctor()

# %% doctor-after [markdown]
# No NVIDIA GPU in that table? Most people who take this course have none, and every cell runs all the same: the card
# says *virtual*. The doctor looks at what is really in your machine, so it does not find the virtual GPU.
#
# On a machine that several people share, look at the GPU's line first: somebody else's process may hold its memory.
# Three other cases:
#
# - **Google Colab**: *Runtime → Change runtime type* gives you a GPU. Install the package there with
#   `%pip install -e ".[lab]"` in the course folder, then restart the runtime once.
# - **Several GPUs**: set `CUDA_VISIBLE_DEVICES=1` before Jupyter starts, to use the second one only.
# - **To see what your class sees**: `GPULAB_GPU=virtual:T4` in the environment, or `gpulab.setup("T4")`.

# %% boilerplate-text [markdown]
# ## The lines that begin every script
#
# In the lessons `gpu.device` is the device of the card. In your own scripts you need no helper. This is the whole
# ceremony today, for NVIDIA, AMD, Intel and Apple alike:

# %% boilerplate
import torch

found = torch.accelerator.current_accelerator(check_available=True)
device = found if found is not None else torch.device("cpu")
print("this script would use:", device)
if device.type == "cuda":
    properties = torch.cuda.get_device_properties(device)
    print(f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB ({gpu.numbers})")

# %% boilerplate-after [markdown]
# A virtual GPU answers as a real one would: from `setup()` on, `cuda` exists in this notebook on any machine, and code
# that was written for a GPU runs unchanged. Its values are computed on your processor. In a script of your own, where
# nobody has called `setup()`, the same lines find the hardware that is really there.
#
# `check_available=True` matters. Without it the call names the accelerator that this PyTorch was *built* for, so on a
# laptop with the CUDA build it says `cuda`, and the next line fails. The older `torch.cuda.is_available()` is right
# too, and knows only CUDA (and ROCm, which PyTorch also calls `cuda`).

# %% data-text [markdown]
# ## Something to train
#
# 1797 handwritten digits, 8 × 8 grey pixels each, come with the package: 1500 to train on and 297 to test with.

# %% data
import matplotlib.pyplot as plt

images, labels = gpulab.data.digits("train")
test_images, test_labels = gpulab.data.digits("test")
print("train:", tuple(images.shape), images.dtype, "· test:", tuple(test_images.shape))

gpulab.style.use()
figure, axes = plt.subplots(1, 10, figsize=(8, 1.2))
for axis, image, label in zip(axes, images, labels):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(label.item())
    axis.axis("off")
gpulab.style.show(figure, alt="The first ten images of the training set: the handwritten digits 0 to 9.")

# %% predict-text [markdown]
# ## Predict first
#
# Before an experiment whose result can surprise, the lessons ask you for a number. A guess that turns out wrong is
# what you remember. Type it and press Enter, or run on without one. It is kept, and stands there when you come back;
# the answer below it stays folded until you run its cell.
#
# The network below has two convolutions and one linear layer. Each of its parameters is a float32 number of 4 bytes.

# %% predict
guess = gpulab.predict("How many bytes do the network's parameters take?", unit="bytes")

# %% model
from torch import nn


def make_cnn():
    """A small CNN for 8×8 digits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )


model = make_cnn()
for name, parameter in model.named_parameters():
    print(f"{name:<9} {tuple(parameter.shape)!s:<15} {parameter.nbytes:>6,} bytes")
guess.compare(sum(p.nbytes for p in model.parameters()))

# %% train-text [markdown]
# ## Train it
#
# Nothing here is special to the course: this is the loop you know, with the model and the data moved to the device.
# It is run twice, on the CPU and on the device of the card.

# %% train
import sys
import time

from tqdm import tqdm

BAR = "{desc:<22} {bar} epoch {n_fmt} of {total_fmt}"


def train(device, epochs=8, batch_size=50):
    """A trained CNN, its optimizer and the seconds it took."""
    model = make_cnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = images.to(device), labels.to(device)
    start = time.perf_counter()
    for _ in tqdm(range(epochs), desc=f"training on {device}", file=sys.stdout, ncols=70, bar_format=BAR):
        for rows in torch.randperm(len(x), device=device).split(batch_size):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    loss.item()  # waits until a GPU has finished: without it, the clock stops too early
    return model, optimizer, time.perf_counter() - start


# %% train-run tags=["host-dependent"]
for device in (torch.device("cpu"), gpu.device):
    torch.manual_seed(0)
    model, optimizer, seconds = train(device)
    numbers = "measured" if device.type == "cpu" else gpu.numbers
    print(f"{device}: {seconds:.2f} s, {8 * len(images) / seconds:,.0f} images/s ({numbers})")

# %% train-after [markdown]
# Compare the two lines. A GPU can be tens of times as fast as a CPU (recorded: lesson 01), and with a network this small you
# see little of that: each kernel takes the GPU a few microseconds, and the host several times as long to launch it. So a good
# processor comes close, or wins. Lesson 03 explains the comment in the last line but one of `train`.
#
# If your GPU is virtual, nobody has waited for the second time. `time.perf_counter()` reads the clock of the virtual
# machine: your Python code takes what it takes here, launches, kernels and copies what the model says of that GPU, and
# computing the values counts nothing. So the bar runs longer than the line below it says. (The first time is really the
# CPU's, and a little long: a virtual GPU in force looks at every operation.)
#
# What launching takes is the host's affair, and hosts differ. The model's takes about 30 µs for a kernel in training, as the
# machines of published runs did (recorded: BERT and OPT; lesson 01 has more).
#
# Did it learn?

# %% test
with torch.inference_mode():
    predicted = model(test_images.to(gpu.device)).argmax(1).cpu()
accuracy = (predicted == test_labels).float().mean().item()
print("more than 90 % of the test digits read correctly:", accuracy > 0.90)

# %% memory-text [markdown]
# ## What it cost in memory
#
# Training takes more than the parameters: a gradient for each of them, and for Adam two running means. And then there
# is what the forward pass keeps for the backward pass, which grows with the batch. PyTorch can be asked:

# %% memory
kept = {}


def note(tensor):
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor.detach()  # the tensor itself would keep alive the graph that keeps it


batch, targets = images[:50].to(gpu.device, copy=True), labels[:50].to(gpu.device, copy=True)
with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    loss = nn.functional.cross_entropy(model(batch), targets)
for p in model.parameters():
    kept.pop(p.untyped_storage().data_ptr(), None)
parameters = sum(p.nbytes for p in model.parameters())
gradients = sum(p.grad.nbytes for p in model.parameters())
state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim() > 0)

# %% memory-table
rows = [("parameters", parameters), ("gradients", gradients), ("Adam's two means", state)]
rows.append(("kept for backward, batch 50", sum(kept.values())))
for name, size in rows:
    print(f"{name:<28} {size:>9,} bytes  {size / 2**10:>7.1f} KiB ({gpu.numbers})")

# %% memory-after [markdown]
# Even for this toy, what is kept for backward outweighs everything else, and it is the part you can do most about.
# Lessons 04 to 08 are about these four rows.
#
# So much for the parts. The GPU can also be asked for the whole, while it works: `GPUMemoryTracker` watches a stretch of
# code, and in lesson 04 you write one yourself. What will be the peak of one whole training step?

# %% watch-predict
peak_guess = gpulab.predict("The most memory in use during one training step?", unit="MiB")

# %% watch
with gpulab.GPUMemoryTracker(label="one step") as tracker:
    loss = nn.functional.cross_entropy(model(batch), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

four_rows = parameters + gradients + state + sum(kept.values())
print(f"the four rows together: {four_rows / 2**20:5.2f} MiB ({gpu.numbers})")
print(f"before the step:        {(tracker.peak_bytes - tracker.peak_above_entry_bytes) / 2**20:5.2f} MiB ({gpu.numbers})")
print(f"at its peak:            {tracker.peak_bytes / 2**20:5.2f} MiB ({gpu.numbers})")
peak_guess.compare(round(tracker.peak_bytes / 2**20, 2), gpu.numbers)

# %% watch-parts
parts = {"the convolutions": (model[:5], batch), "the Linear": (model[6], torch.randn(50, 512, device=gpu.device))}
for name, (part, inputs) in parts.items():
    part(inputs).sum().backward()  # once before: up to PyTorch 2.14 what a first call borrows is kept
    with gpulab.GPUMemoryTracker() as tracker:
        part(inputs).sum().backward()
    print(f"forward and backward of {name:<17} {tracker.peak_above_entry_bytes / 2**20:5.2f} MiB ({gpu.numbers})")

# %% watch-after [markdown]
# More than the four rows: in backward, the Linear's matrix products borrow room from the library that computes them
# (cuBLAS), a *workspace* of 8.1 MiB on most GPUs, 32 on Hopper, and on recent PyTorch give it back at once. Next to a real
# model it is little; next to this one it is most of the peak. A count by hand misses it, and a tracker does not.
#
# (Up to PyTorch 2.14 it stays taken, one for forward and one for backward: 65 of the 67 MiB of this peak on an H200, recorded
# with 2.11. They are there before the step already, so the second cell shows little.)

# %% check-text [markdown]
# ## Checks and hints
#
# Exercises are in a folder of their own. Each is a function to write, with a check under it:
# `gpulab.check.NAME(your_function)`. The check runs **your** function on inputs it draws afresh. Until you have written
# something, it says so:

# %% check-stub tags=["raises-exception"]
def accumulate_tokens(model, micro_batches):
    """The stub of an exercise of lesson 08."""
    raise gpulab.NotAttempted


gpulab.check.token_weighting(accumulate_tokens)

# %% check-wrong-text [markdown]
# When an answer is wrong, it says what was expected, what came back, what you probably misunderstood, and where to read.
# Here is an answer that many people would give:

# %% check-wrong tags=["raises-exception"]
def accumulate_tokens(model, micro_batches):
    for ids, labels in micro_batches:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        (loss / len(micro_batches)).backward()
    return sum(int((labels != -100).sum()) for _, labels in micro_batches)


gpulab.check.token_weighting(accumulate_tokens, seed=0)

# %% check-after [markdown]
# The checks take any right answer, not only ours. Stuck? Under each check are three hints, folded; the solution is in
# `solutions/`, and it is not cheating to read it after an honest try.
#
# What you pass is kept in `progress.json` in the course folder, and nowhere else.
#
# ## Quizzes
#
# Each lesson ends with a few questions, and every option has its reason, the wrong ones too. Try one:

# %% quiz
gpulab.quiz(0)

# %% map-text [markdown]
# ## The map
#
# Filled dots are exercises passed and questions answered.

# %% map
gpulab.progress()

# %% routes [markdown]
# ### Three routes
#
# - **One GPU, in a day, fit and fast:** 00, 03, 04, 05, 07, 10, 11.
# - **One GPU, from the ground up:** 00 to 11, 14, 15.
# - **Several GPUs:** 00, 04, 08, 12, 13, 14.
#
# Exercises take as long again as the lectures:

# %% routes-time
from gpulab.course import LESSONS

routes = {"in a day": (0, 3, 4, 5, 7, 10, 11), "from the ground up": (*range(12), 14, 15), "several GPUs": (0, 4, 8, 12, 13, 14)}
for name, numbers in routes.items():
    hours = sum(LESSONS[number].minutes for number in numbers) / 60
    print(f"{name:<19} {hours:>4.1f} hours of lectures (computed from the times they state)")

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Every number in the course is measured, virtual or recorded, and says which.
# 2. `torch.accelerator.current_accelerator(check_available=True)`, or the CPU, is the device line for any machine.
# 3. Predict, run, explain the difference. Then write it yourself, and let the check tell you what you missed.
#
# **What next:** [01 · Why GPUs](01_why_gpus.ipynb), or the first lesson of your route.
#
# ## References
#
# - PyTorch documentation: `torch.accelerator`; `torch.autograd.graph.saved_tensors_hooks`.
# - Hugging Face, *transformers* documentation, SDPA training tables of BERT (A100) and OPT (L40S).
# - E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, CC BY 4.0.
