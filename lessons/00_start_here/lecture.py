# %% title [markdown]
# # 00 · Start here
#
# **Promise:** after twenty minutes a small network has learned to read digits on a GPU, real or virtual, you have
# seen where its memory goes, and you know your way around the course.
#
# After this notebook you can
#
# 1. **write** a training script in six steps that runs on any device;
# 2. **say** what *measured*, *virtual* and *recorded* mean;
# 3. **use** predictions, turns, checks and hints, and **find** the lesson you need.
#
# | time | before this | runs on |
# |---|---|---|
# | 20 minutes | you have trained a model in PyTorch before | any machine, with or without a GPU |
#
# Click a cell and press Shift+Enter to run it.

# %% setup
import time

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpulab

gpu = gpulab.setup()

# %% train-text [markdown]
# ## Six steps of a training script
#
# The steps are loader, device, model, training, evaluation and saving. Here are the first four, on 1500 handwritten
# digits that come with the package.

# %% train
def make_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )


def train(loader, device, epochs=5):
    model = make_cnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    loss.item()  # waits until the GPU has finished
    return model, optimizer


# %% train-run tags=["host-dependent"]
images, labels = gpulab.data.digits("train")
loader = DataLoader(TensorDataset(images, labels), batch_size=50, shuffle=True)

train(loader, gpu.device, epochs=1)  # warm up: the first steps also load libraries
start = time.perf_counter()
model, optimizer = train(loader, gpu.device)
print(f"{gpu.device}: {time.perf_counter() - start:.2f} s ({gpu.numbers})")

with gpulab.without_gpu():
    start = time.perf_counter()
    train(loader, torch.device("cpu"))
    print(f"cpu:    {time.perf_counter() - start:.2f} s (measured)")

# %% words-text [markdown]
# The word in brackets says where a number comes from:
#
# - **measured**: read off, counted or timed on your machine;
# - **virtual**: what a real GPU of this kind would show, according to the course's model. Bytes and the GPU's own times
#   are the same on every machine; the time of your Python code is your machine's;
# - **recorded**: measured earlier on somebody's GPU; the source is named.
#
# A *computed* number, or one without such a word, is arithmetic that you can follow.
#
# Did you expect more of a GPU? A network this small gives it hardly anything to do. The GPU computes each operation in
# a few microseconds, and the *host*, your processor, takes longer to request it. Lessons 01 and 03 are about that.
#
# ![The host sends launches and data over the bus, and the GPU computes them in its own memory.](../docs/pictures/host_and_gpu.svg)

# %% kernel-text [markdown]
# Three words return in every lesson. A **kernel** is a function that runs on the GPU, such as one ReLU over a whole
# tensor. A **launch** is the host's request to run it; the host does not wait for the result. A **copy** moves data over
# the bus, as `x.to(device)` does.

# %% doctor-text [markdown]
# ## Your machine
#
# The doctor looks at Python, PyTorch, the driver, the GPU, memory and Jupyter, and says what to do where something is
# wrong. (In a terminal: `python -m gpulab doctor`.)

# %% doctor tags=["host-dependent"]
report = gpulab.doctor()

# %% doctor-after [markdown]
# No NVIDIA GPU in that table? Every cell runs all the same: from `setup()` on, `cuda` is a virtual GPU in this
# notebook, and code written for a GPU runs unchanged.
#
# - **Google Colab**: *Runtime → Change runtime type* gives you a GPU. Install the package there with
#   `%pip install -e ".[lab]"` in the course folder, then restart the runtime once.
# - **Several GPUs**: set `CUDA_VISIBLE_DEVICES=1` before Jupyter starts, to use the second one only.
# - **A shared machine**: look at the doctor's GPU line; somebody else's process may hold its memory.
# - **A class with different machines**: `gpulab.setup("T4")` gives everyone the same virtual GPU.

# %% device-text [markdown]
# ## The device line
#
# `gpu.device` is the notebook's device. A script of your own finds it in one line, for NVIDIA, AMD, Intel and Apple
# alike. `check_available=True` matters: without it the call names the accelerator that this PyTorch was *built* for, so a
# laptop with the CUDA build says `cuda`, and the next line fails.

# %% device
torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")

# %% device-turn-text [markdown]
# **Your turn** · 1 minute. Your turns are never graded, and the notebook goes on without them. This function needs an
# NVIDIA GPU, and forgets to move the images there. Change two lines, so that model and images are on whatever device
# there is.

# %% device-turn tags=["your-turn"]
def read_digits(model, images):
    # TODO: any device, and the images on it
    ### BEGIN SOLUTION
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    logits = model.to(device)(images.to(device))
    ### INSTEAD OF
    # device = torch.device("cuda")
    # logits = model.to(device)(images)
    ### END SOLUTION
    return logits.argmax(1).cpu()


gpulab.turn.read_on_any_device(read_digits)

# %% evaluate-text [markdown]
# ## Step five: evaluate
#
# **Your turn** · 2 minutes. This loop is right only for networks without dropout and BatchNorm, such as ours, and takes
# more time and memory than it has to. Put the model into `eval` mode, let PyTorch keep nothing for backward
# (`torch.inference_mode()`), and sum on the device: each `.item()` waits until the GPU has finished, so call it once.

# %% evaluate-turn tags=["your-turn"]
def accuracy(model, loader, device):
    # TODO: eval mode, inference mode, one .item()
    ### BEGIN SOLUTION
    model.eval()
    right = torch.zeros((), device=device)
    with torch.inference_mode():
        for x, y in loader:
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
    return right.item() / len(loader.dataset)
    ### INSTEAD OF
    # right = 0
    # for x, y in loader:
    #     right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    # return right / len(loader.dataset)
    ### END SOLUTION


gpulab.turn.evaluated(accuracy)

# %% misread tags=["host-dependent"]
test = gpulab.data.digits("test")
with torch.inference_mode():
    read = model(test.images.to(gpu.device)).argmax(1).cpu()
share = (read == test.labels).float().mean()
wrong = (read != test.labels).nonzero()[0].item()

figure, axis = plt.subplots(figsize=(1.6, 1.9))
axis.imshow(test.images[wrong][0], cmap="gray_r")
axis.set_title(f"a {test.labels[wrong]}, read as {read[wrong]}")
axis.axis("off")
gpulab.style.show(figure, alt=f"A handwritten {test.labels[wrong]}, read as {read[wrong]}.")
print(f"{share:.1%} of {len(read)} new digits are read correctly")

# %% save-text [markdown]
# ## Step six: save
#
# **Your turn** · 2 minutes. `torch.save(model, path)` pickles the whole object, and loading a pickle can run any code.
# Save the `state_dict`, the tensors by name, to `path`, and load it into `copy`, an untrained network of the same kind.
# Use `map_location`: without it, tensors saved on a GPU are loaded onto that GPU.

# %% save-turn tags=["your-turn"]
def through_a_file(model, copy, path, device):
    # TODO: save the state, load it into copy
    ### BEGIN SOLUTION
    torch.save(model.state_dict(), path)
    copy.load_state_dict(torch.load(path, map_location=device))
    ### INSTEAD OF
    # torch.save(model, path)
    # copy = torch.load(path, weights_only=False)
    ### END SOLUTION
    return copy.to(device)


gpulab.turn.through_a_file(through_a_file)

# %% memory-text [markdown]
# ## What it costs in memory
#
# Training takes more than the parameters: a gradient for each, and for Adam two running means. The forward pass also
# keeps what backward will need, and that grows with the batch.

# %% predict
guess = gpulab.predict("How many bytes are parameters, gradients and Adam's means?", unit="bytes")

# %% memory-count
numbers = sum(p.numel() for p in model.parameters())
because = f"{numbers:,} parameters: each has its value, a gradient and two means, in float32."
guess.compare(4 * 4 * numbers, "computed", because=because)

# %% memory-run
x, y = images.to(gpu.device), labels.to(gpu.device)
with gpulab.memory.timeline(label="one step, batch 1500") as line:
    line.mark("forward")
    loss = nn.functional.cross_entropy(model(x), y)
    line.mark("backward")
    optimizer.zero_grad()
    loss.backward()
    line.mark("step")
    optimizer.step()
line

# %% memory-after [markdown]
# The curve rises through the forward pass and on into backward, then falls to where it began.
# What is kept for backward outweighs everything else here, and it is the part you can do most about. Lessons 04 to 08 are
# about this curve.

# %% check-text [markdown]
# ## Exercises, checks and hints
#
# Each exercise, in `exercises/`, is a function to write. The check below it runs **your** function on fresh random
# inputs. Stuck? Three hints are folded under each check. The solution is in `solutions/`; read it after an honest try.
#
# For a wrong answer, the check says what was expected, what came back, the likely misunderstanding, and where to read.
# This answer is to an exercise of lesson 08:

# %% check-wrong tags=["raises-exception"]
def accumulate_tokens(model, micro_batches):
    for ids, labels in micro_batches:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        (loss / len(micro_batches)).backward()
    return sum(int((labels != -100).sum()) for _, labels in micro_batches)


gpulab.check.token_weighting(accumulate_tokens, seed=0)

# %% quiz-text [markdown]
# What you pass is kept in `progress.json` in the course folder, and nowhere else. Each lesson ends with a few questions:

# %% quiz
gpulab.quiz(0)

# %% map-text [markdown]
# ## The map
#
# Filled dots are exercises passed and questions answered.

# %% map
gpulab.progress()

# %% routes [markdown]
# ### Four routes
#
# - **Half a day of lectures, fit and fast on one GPU:** 00, 03, 05, 07. 3.2 hours.
# - **A day of lectures, one GPU:** 00, 03, 04, 05, 07, 10, 11. 6.0 hours.
# - **Everything about one GPU:** 00 to 11, 14, 15. 12.2 hours.
# - **Several GPUs:** 00, 04, 08, 12, 13, 14. 4.9 hours.
#
# These hours are the lectures; their exercises take 1.1 to 1.4 times as long. Where a lesson asks for one that your
# route skips, read that one's take-aways first (before 05, also *Four numbers for one GPU* in 04).

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A training script has six steps: loader, device, model, training, evaluation, saving.
# 2. Every number in the course is measured, virtual or recorded, and says which; the rest is arithmetic.
# 3. Predict, run, explain the difference. Then write it yourself, and let the check tell you what you missed.
#
# **What next:** [01 · Why GPUs](01_why_gpus.ipynb), or the next lesson of your route.
#
# ## References
#
# - PyTorch documentation: `torch.accelerator`; `torch.load`; *Saving and Loading Models*.
# - E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, CC BY 4.0.
