# %% title [markdown]
# # 08 · Gradient accumulation
#
# **Promise:** you train with a batch that does not fit on your GPU, and get the same gradients to rounding. You also
# know the five places where “the same” stops being true.
#
# After this lesson you can
#
# 1. **split** a batch into micro-batches and **show** that the gradient is the same to rounding;
# 2. **count** the bytes that this saves, and name those that it does not;
# 3. **repair** the loop that most tutorials print: its last window, its mean, its token weights;
# 4. **place** the scaler, the clipping and the schedule once per update;
# 5. **say** what accumulation cannot do, and what to do about BatchNorm.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and as long for the exercises | `00_start_here`; a training loop of your own | any machine |

# %% setup-text [markdown]
# The first cell prints what the bytes and times in this notebook are: *measured* on your GPU, or *virtual*. Tables of
# somebody else's GPU say *recorded*, with the source.
#
# Whether two gradients are the same is a question of arithmetic. It is answered on the CPU, where float32 is float32: a
# GPU may round the inputs of a convolution to TF32 without being asked (lesson 07). What a step costs, and mixed
# precision, is asked of the GPU.

# %% setup
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
images, labels = gpulab.data.digits("train")

# %% model
def make_cnn(norm=nn.Identity, seed=0):
    """A small CNN for the 8×8 digits; `norm` is put after the first convolution."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm(), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )


def gradient(model):
    """All gradients of the model as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %% question-text [markdown]
# ## A question worth asking
#
# You want batches of 64, and only 16 fit. So you run four batches of 16, add up the gradients, and step once.
# Below is the loop as many tutorials print it. It is run on ten batches with `accumulation_steps = 8`.
#
# How often does the optimizer step?

# %% question-predict
steps_guess = gpulab.predict("How many optimizer steps does the loop below make?")

# %% question-run
def tutorial_loop(model, optimizer, batches, accumulation_steps):
    """The loop as it is often printed. Returns how often it stepped."""
    steps = 0
    for i, (x, y) in enumerate(batches):
        loss = F.cross_entropy(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps


model = make_cnn()
ten_batches = list(zip(images[:160].split(16), labels[:160].split(16), strict=True))
steps = tutorial_loop(model, torch.optim.SGD(model.parameters(), lr=0.1), ten_batches, 8)
told = """Two of the ten batches were computed and never used. Worse, their gradient is still in .grad, where it is added to
the first window of the next epoch."""
steps_guess.compare(steps, because=told)
print("gradient left in .grad afterwards:", gradient(model).abs().sum().item() > 0)

# %% question-answer [markdown]
# The loop looks right because it *is* right whenever the number of batches divides evenly. Examples usually use 16
# batches and 4 steps, which hides the fault. This lesson takes the loop apart and puts it together properly.

# %% same-text [markdown]
# ## The same gradient in four pieces
#
# Why should it work at all? The loss of a batch is a mean over its samples, and the derivative of a sum is the sum of
# the derivatives. With $N = 64$ samples in four micro-batches of 16:
#
# $$\nabla \frac{1}{64}\sum_{i=1}^{64} \ell_i \;=\; \frac14\left(\nabla \frac1{16}\sum_{i=1}^{16}\ell_i + \dots +
# \nabla\frac1{16}\sum_{i=49}^{64}\ell_i\right)$$
#
# PyTorch does the adding for you: `backward()` does not overwrite `.grad`, it adds to it. What is left for you is the
# factor ¼, which goes into the loss before `backward()`.

# %% same-run
x, y = images[:64].clone(), labels[:64].clone()
model = make_cnn()

F.cross_entropy(model(x), y).backward()
full = gradient(model)

model.zero_grad()
for micro_x, micro_y in zip(x.split(16), y.split(16), strict=True):
    (F.cross_entropy(model(micro_x), micro_y) / 4).backward()
pieces = gradient(model)

error = (full - pieces).abs().max() / full.abs().max()
print("bit for bit the same:", torch.equal(full, pieces))
print("largest difference below 1e-6 of the largest gradient:", bool(error < 1e-6))

# %% same-rounding [markdown]
# Not the same bits, and yet the same gradient. Floating-point addition depends on its order, and four sums of 16 are
# another order than one sum of 64. If that is the whole story, the difference must shrink with the precision of the
# arithmetic. Run the same in float64, whose spacing is about $10^{-16}$ where float32's is $10^{-7}$:

# %% same-double
def both_ways(dtype, split=16, norm=nn.Identity):
    """Largest difference between the full-batch gradient and the accumulated one, relative to the largest gradient."""
    model, big = make_cnn(norm).to(dtype), x.to(dtype)
    F.cross_entropy(model(big), y).backward()
    whole = gradient(model)
    model.zero_grad()
    for a, b in zip(big.split(split), y.split(split), strict=True):
        (F.cross_entropy(model(a), b) * len(a) / len(big)).backward()
    return ((whole - gradient(model)).abs().max() / whole.abs().max()).item()


print("float32: difference below 1e-6: ", both_ways(torch.float32) < 1e-6)
print("float64: difference below 1e-14:", both_ways(torch.float64) < 1e-14)

# %% same-verdict [markdown]
# So the claim “accumulation equals the full batch” is true **to rounding**, not bit for bit. Do not test for equality;
# test against a tolerance that fits the dtype.
#
# Rounding is small in one update, but training amplifies it. The next cell trains twice with the same data in the
# same order, once with batches of 64 and once with 4 × 16.

# %% drift-run
def train(micro_batch, steps, epochs=5, lr=0.1):
    """Mean training loss of each epoch, and the number of optimizer steps, with plain SGD."""
    model = make_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order, losses, updates = torch.Generator().manual_seed(0), [], 0
    for _ in range(epochs):
        total = torch.zeros(())
        for window in torch.randperm(len(images), generator=order).split(micro_batch * steps):
            optimizer.zero_grad()
            for rows in window.split(micro_batch):
                loss = F.cross_entropy(model(images[rows]), labels[rows], reduction="sum") / len(window)
                loss.backward()
                total += loss.detach() * len(window)
            optimizer.step()
            updates += 1
        losses.append(total.item() / len(images))
    return losses, updates


# %% drift-compare
large, accumulated, small = train(64, 1), train(16, 4), train(16, 1)
print("optimizer steps: 64 × 1 and 16 × 4:", large[1], accumulated[1], "· 16 × 1:", small[1])
gaps = [abs(a - b) for a, b in zip(large[0], accumulated[0], strict=True)]
print("loss of epoch 1, 64 × 1 against 16 × 4: same to 1e-5:", gaps[0] < 1e-5)
print("loss of epoch 5, 64 × 1 against 16 × 4: same to 1e-2:", gaps[4] < 1e-2)

# %% drift-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7, 3.6))
runs = [("batch 64", large, "o-"), ("micro-batch 16, 4 steps", accumulated, "x--"), ("batch 16", small, "s:")]
for name, (losses, updates), style in runs:
    axes.plot(range(1, 6), losses, style, label=f"{name}: {updates} updates")
axes.set(xlabel="epoch", ylabel="mean training loss (measured)", xticks=range(1, 6))
axes.set_title("Accumulating 4 × 16 trains as batch 64 does, not as batch 16")
axes.legend()
gpulab.style.show(
    figure,
    alt="Training loss over five epochs. The curves for batch 64 and for 4 times 16 lie on each other; "
    "batch 16 falls much faster, with four times as many updates.",
)

# %% drift-text [markdown]
# Two things to take from the plot. The two large-batch runs lie on each other; the rounding of each update grows over
# the run, here to nothing you would see. And **the small batch learns faster per epoch here**: at the same learning
# rate it makes four times as many updates. A large batch is not a gift. You choose it when the gradient of a small one
# is too noisy, when a published recipe asks for it, or when the GPU is idle with less, and then the learning rate
# has to go with it (see *Learning rate and schedule*).

# %% saved-text [markdown]
# ## What it saves: bytes kept for backward
#
# The forward pass keeps what backward will need: the inputs of layers, masks, indices. These bytes grow with the
# batch, and accumulation makes the batch that is alive at one moment smaller. PyTorch will tell you each tensor that
# it keeps, if you ask through `saved_tensors_hooks`. Count each storage once, and leave out the parameters, which are
# there anyway.

# %% saved-count
def bytes_kept(model, forward):
    """Bytes that `forward()` keeps for backward, without the parameters of `model`."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep alive the graph that keeps it

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()  # keeps the graph alive while we look
    return sum(kept.values())


# %% saved-run
model, sizes = make_cnn().to(gpu.device), {}
for n in (1, 16, 64):
    a, b = images[:n].to(gpu.device), labels[:n].to(gpu.device)
    sizes[n] = bytes_kept(model, lambda: F.cross_entropy(model(a), b))
    print(f"batch {n:2}: {sizes[n]:>9,} bytes = {sizes[n] / 2**10:6.1f} KiB kept for backward ({gpu.numbers})")

# %% saved-explain [markdown]
# Every layer keeps the same bytes per sample, so what is kept is proportional to the batch, but for a few bytes. (Each
# batch is copied to the GPU here. A slice of a data set that is already on the GPU shares the storage of all 1500
# images, and the count would find the whole storage. The same trap makes a small view keep a large tensor alive.)
#
# Now the part that accumulation does **not** reduce. Parameters, gradients and Adam's state have nothing to do with the
# batch. So look at the peak of a whole update of 8 samples in one piece, in two and in eight. The model has four
# transformer blocks and reads 512 tokens; `gpulab.plan` works the step out on shapes alone, for a V100.

# %% plan
def update(samples, micro, half=False):
    """The plan of one update with AdamW over `samples` texts, `micro` at a time; `half`: under autocast to fp16."""
    def build(batch):
        block = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
        model = nn.TransformerEncoder(block, 4, enable_nested_tensor=False).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        texts = torch.randn(batch, 512, 1024, device="cuda")

        def step():
            for part in texts.split(micro):
                with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                    loss = model(part).square().mean() * len(part) / batch
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step
    return gpulab.plan(build, batch=samples, gpu="V100-16")


# %% plan-predict
peak_guess = gpulab.predict("8 × 1 instead of 1 × 8: the peak is what share of the large batch's?", unit="%")

# %% plan-run
whole = update(8, 8)
for micro in (8, 4, 1):
    plan = whole if micro == 8 else update(8, micro)
    fp16, peak = update(8, micro, half=True), plan.peak_allocated / 2**20
    print(f"{8 // micro} × {micro}: peak {peak:6,.0f} MiB, {8000 / plan.step_ms:3.0f} samples/s; under autocast", end=" ")
    print(f"{8000 / fp16.step_ms:3.0f}, kernels running {fp16.gpu_busy:4.0%} of the time (virtual V100)")
told = """An eighth of the batch does not bring an eighth of the memory. Weights, gradients and AdamW's state are a floor;
the last row stands on it, and a little above, for AdamW itself needs room while it steps."""
peak_guess.compare(round(100 * plan.peak_allocated / whole.peak_allocated), "virtual", because=told)
fixed = plan.weights + plan.gradients + plan.optimizer_state
print(f"weights, gradients and AdamW's state: {fixed / 2**20:.0f} MiB (virtual), whatever the batch")

# %% plan-explain [markdown]
# From there on smaller micro-batches would cost speed and save nothing. In float32 they cost little: products of fewer
# rows use the GPU less well, and each gradient is added to the one before. Under autocast the last row has half the
# speed: the kernels are so short that the GPU waits for the host, which launches nearly eight times as many.
#
# There is a second price. Without accumulation `.grad` is `None` during the forward pass: `zero_grad()` releases the
# gradients, and backward makes them while activations are being released. With accumulation, the gradients of the
# window are alive *during the forward passes* of its second and later micro-batches. So keep the micro-batch at 4, and
# go from one to two:

# %% buffer-predict
buffer_guess = gpulab.predict("1 × 4 becomes 2 × 4: the peak grows by how much?", unit="MiB")

# %% buffer-run
one, two = update(4, 4), update(8, 4)
grown = two.peak_allocated - one.peak_allocated
for name, plan in (("1 × 4", one), ("2 × 4", two)):
    print(f"{name}: peak {plan.peak_allocated / 2**20:,.0f} MiB, gradients in it {plan.gradients / 2**20:3.0f} MiB (virtual V100)")
told = "The first micro-batch's gradients, four bytes a parameter, are alive in the second's forward pass; more add nothing."
buffer_guess.compare(round(grown / 2**20), "virtual", because=told)

# %% saved-buffer-explain [markdown]
# On a small model nobody notices these gradients. On a model of 7 billion parameters they are 28 GB, and a job that
# just fits with `steps = 1` can run out of memory with `steps = 2`, at the same micro-batch.
#
# How much comes back in practice? Recorded by Hugging Face, BERT-large, V100 16 GB, sequence length 512, memory of the
# process as the driver reports it (with about 1.3 GiB of CUDA context):
#
# | recorded on a V100 | memory, MiB | samples/s |
# |---|---:|---:|
# | batch 4, fp32, Adam | 14949 | 8.86 |
# | micro-batch 1, 4 steps | 8681 | 7.75 |
#
# 6.1 GiB less memory, and an eighth less speed. (In fp16 it was 18.64, and 10.09 with micro-batches *and* checkpointing,
# which alone takes 23 % of the speed in float32.) So use the **largest micro-batch that fits**, and as few steps as give
# the batch you want.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on 100 samples in micro-batches of 8, four to a step, divided as in the tutorial. Try this:
#
# 1. Which update is wrong, and by what factor? Set *Incomplete last window* to “no step”: what is lost now?
# 2. Set it back, and *Loss of a micro-batch* to “mean ÷ micro-batches in window”. The last update is still a little
#    off. Why? For which size of the data set is it exact?
# 3. Let *samples differ in length*. Now every window is off, the full ones too. Which setting makes all of them exact?

# %% simulator
gpulab.sim.accumulation()

# %% last-text [markdown]
# ## The last window
#
# Ten micro-batches and windows of 4: the last window holds 2. Three things can happen to it, and two are wrong.
#
# - It is **dropped**: no step comes, and its gradient stays in `.grad` (the loop at the top).
# - It steps, but its losses were **divided by 4** although it holds 2: an update of half the size.
# - It steps with the mean over what it **holds**. This is what the full batch would have done.

# %% last-run
def last_update(divide_by):
    """The size of the gradient in the last window of ten micro-batches of 16, against that of its mean."""
    model = make_cnn()
    for a, b in ten_batches[8:]:
        (F.cross_entropy(model(a), b) / divide_by).backward()
    ours = gradient(model)
    model.zero_grad()
    F.cross_entropy(model(images[128:160]), labels[128:160]).backward()
    return (ours.norm() / gradient(model).norm()).item()


print(f"divided by 4, the number of steps:  {last_update(4):.3f} of the right gradient")
print(f"divided by 2, what the window holds: {last_update(2):.3f} of the right gradient")

# %% last-repair-text [markdown]
# The repair is to know the window before you start it. With a list or a `DataLoader` (both have a length) you can cut
# the windows first; then nothing can be left over:

# %% last-repair
def windows(batches, steps):
    """The micro-batches in groups of `steps`; the last group may be smaller."""
    batches = list(batches)
    return [batches[i : i + steps] for i in range(0, len(batches), steps)]


print([len(w) for w in windows(ten_batches, 4)])

# %% last-stream [markdown]
# Making a list of a `DataLoader` holds the whole epoch in memory. For real loaders take `steps` batches at a time from
# an iterator (`itertools.batched` from Python 3.12 on, `itertools.islice` before); a window is then all that is held,
# and it waits on the *host*: move each micro-batch to the GPU when its turn comes.
#
# The other way out is `DataLoader(..., drop_last=True)` together with a number of batches that divides evenly. It is
# simple and it throws data away: every epoch leaves out the same number of samples, though different ones if you
# shuffle.

# %% last-turn-text [markdown]
# **Your turn** · 3 minutes. Here the windows are cut, and two things are still wrong: one with every window, one with the
# last. Change the loop, so that each window moves the weights as its samples in one batch would.

# %% last-turn tags=["your-turn"]
def train_windows(model, optimizer, windows):
    """One update for each window, a list of four equal micro-batches; the last has fewer."""
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
# With ¼ for each, the two samples of the last one carry a quarter of the weight instead of $2/50$.

# %% mean-run
def accumulated_gradient(weight, n=50):
    """The gradient over n samples in micro-batches of 16, each loss times weight(its size)."""
    model = make_cnn()
    for a, b in zip(images[:n].split(16), labels[:n].split(16), strict=True):
        (F.cross_entropy(model(a), b) * weight(len(a))).backward()
    return gradient(model)


model = make_cnn()
F.cross_entropy(model(images[:50]), labels[:50]).backward()
truth = gradient(model)
for name, weight in (("mean of means", lambda size: 1 / 4), ("weighted by size", lambda size: size / 50)):
    off = ((accumulated_gradient(weight) - truth).norm() / truth.norm()).item()
    print(f"{name:<17} relative error {off:.2f}" if off > 1e-3 else f"{name:<17} relative error below 1e-3")

# %% mean-explain [markdown]
# The error is not small: on this fresh network the individual gradients nearly cancel in the mean, so giving two
# samples six times their weight swamps the rest. Weighting each micro-batch by its share of the window repairs it to
# rounding.
#
# The same holds for the loss that you *report*. The mean over batches of their mean losses counts the samples of a
# small last batch more than the others:

# %% mean-report
with torch.no_grad():
    model = make_cnn()
    losses = [(F.cross_entropy(model(a), b).item(), len(a)) for a, b in zip(x[:50].split(16), y[:50].split(16), strict=True)]
    exact = F.cross_entropy(model(x[:50]), y[:50]).item()
plain = sum(loss for loss, _ in losses) / len(losses)
weighted = sum(loss * size for loss, size in losses) / 50
print("mean of batch means is the mean over samples:", abs(plain - exact) < 1e-6)
print("weighted by size it is:                      ", abs(weighted - exact) < 1e-6)

# %% token-text [markdown]
# ## Token-weighted loss
#
# For text, equal micro-batches do not help. The loss is a mean over **tokens**, sequences differ in length, and padding
# carries the label −100, which `F.cross_entropy` ignores. Two micro-batches of 8 sequences may hold 300 and 1900 real
# tokens. The mean of their means gives a token of the first one six times the weight of a token of the second.
#
# This was not a beginner's fault. Until October 2024 the standard trainer of the `transformers` library did it, in
# everybody's fine-tuning with accumulation, until somebody compared the loss curves.

# %% token-data
torch.manual_seed(0)
vocabulary, lengths = 50, [[3, 2], [12, 10]]  # two micro-batches of two sequences, padded to their longest


def padded_batch(real):
    ids = torch.randint(vocabulary, (len(real), max(real)))
    labels = torch.randint(vocabulary, ids.shape)
    for row, length in enumerate(real):
        labels[row, length:] = -100  # no target here
    return ids, labels


micro_batches = [padded_batch(real) for real in lengths]
tokens = sum(int((labels != -100).sum()) for _, labels in micro_batches)
print("labelled tokens per micro-batch:", [sum(real) for real in lengths], "together:", tokens)

# %% token-run
language_model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))


def token_gradient(reduction, divide_by):
    language_model.zero_grad()
    for ids, target in micro_batches:
        logits = language_model(ids).flatten(0, 1)
        (F.cross_entropy(logits, target.flatten(), reduction=reduction) / divide_by).backward()
    return gradient(language_model)


per_token = [F.cross_entropy(language_model(i).flatten(0, 1), t.flatten(), reduction="sum") for i, t in micro_batches]
language_model.zero_grad()
(sum(per_token) / tokens).backward()
truth = gradient(language_model)
for name, way in (("mean of means", ("mean", 2)), ("sum over tokens", ("sum", tokens))):
    print(f"{name:<15} relative error {(token_gradient(*way) - truth).norm() / truth.norm():.3f}")

# %% token-explain [markdown]
# So: `reduction="sum"`, divided by the tokens of the **whole window**. That number must be known before the first
# backward, which is another reason to cut the windows first. (Or: leave the sums undivided, count as you go, and divide
# the gradients once before clipping. In fp16 that is asking for an overflow: the summed loss is float32, but the
# gradient of a logit is fp16, and undivided it comes near 1 before the scaler multiplies it by 65536.)

# %% token-fp16
def scaled_logit_gradient(divide_by, scale=65536.0):
    """The loss over 512 tokens in float32, and the gradient of its fp16 logits, as under autocast with a scaler."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(512, 1000, generator=draw).half().requires_grad_()
    words = torch.randint(1000, (512,), generator=draw)
    loss = F.cross_entropy(logits.float(), words, reduction="sum") / divide_by
    (loss * scale).backward()
    return loss, logits.grad


for name, divide_by in (("sum, undivided", 1), ("divided by the tokens", 512)):
    loss, gradients = scaled_logit_gradient(divide_by)
    print(f"{name:<22} loss finite: {loss.isfinite().item()} · scaled gradient of the logits finite: {gradients.isfinite().all().item()}")

# %% token-padding-trap [markdown]
# One more trap sits here. A micro-batch of nothing but padding happens, in fine-tuning where only the answer carries
# labels and a long prompt was cut. The mean over no token is 0/0. What follows depends on who divides:

# %% token-padding
nothing = torch.full((4,), -100)
mask = nothing != -100
ways = {
    "F.cross_entropy, mean": lambda z: F.cross_entropy(z, nothing),
    "mask by hand, mean": lambda z: (F.cross_entropy(z, nothing.clamp(min=0), reduction="none") * mask).sum() / mask.sum(),
    "F.cross_entropy, sum": lambda z: F.cross_entropy(z, nothing, reduction="sum"),
}
for name, way in ways.items():
    logits = torch.randn(4, vocabulary, requires_grad=True)
    loss = way(logits)
    loss.backward()
    print(f"{name:<21} loss {loss.item():<4} gradient has nan: {bool(logits.grad.isnan().any())}")

# %% token-padding-text [markdown]
# `F.cross_entropy` skips ignored positions in its backward pass, so only the *reported* loss becomes `nan`, and with it
# the mean of the epoch. A mask multiplied in by hand divides the gradient by zero too, and one `nan` added to `.grad`
# spoils the whole window. The sum is 0, and harmless in both.
#
# With several processes the same thought goes one step further: the tokens must be counted over **all ranks**, since DDP
# averages gradients over ranks as if each held the same number (lesson 12).

# %% norm-text [markdown]
# ## What accumulation cannot do: BatchNorm
#
# Everything so far rests on one property: the loss is a sum of terms, one per sample, that do not know each other.
# BatchNorm breaks it. In training it normalises with the mean and variance of the batch *it sees*, and it sees
# micro-batches. Compare the full batch of 64 with 4 × 16 again, in float64 so that rounding cannot be the excuse:

# %% norm-run
def batch_norm():
    return nn.BatchNorm2d(16)


def group_norm():
    return nn.GroupNorm(4, 16)


for name, norm in (("no norm", nn.Identity), ("GroupNorm", group_norm), ("BatchNorm", batch_norm)):
    off = both_ways(torch.float64, norm=norm)
    print(f"{name:<10} difference below 1e-14: {off < 1e-14!s:<6} above 1 % of the largest gradient: {off > 0.01}")

# %% norm-explain [markdown]
# BatchNorm's gradient differs by per cents, and no factor repairs that: the four forward passes computed another
# function. The running statistics differ too, since they are updated once per micro-batch instead of once per batch.
#
# What helps, and what does not:
#
# - **GroupNorm** or **LayerNorm** look at one sample at a time. The sum is a sum again. This is the real repair.
# - **Freezing** BatchNorm (its layers in `eval()`, in fine-tuning) uses fixed statistics: also fine, if they fit.
# - **SyncBatchNorm** does not help. It shares statistics between *processes* at one moment; micro-batches come one
#   after the other. On one GPU it changes nothing.
# - **Another momentum** does not help: it concerns the running statistics, which training does not normalise with.
# - **A micro-batch of 16 or 32** helps in its own way: BatchNorm then simply trains as with that batch.

# %% norm-momentum
full_bn, micro_bn = nn.BatchNorm2d(1), nn.BatchNorm2d(1)
full_bn(x)
for a in x.split(16):
    micro_bn(a)
print(f"running mean after one batch of 64:   {full_bn.running_mean.item():.4f}")
print(f"running mean after four batches of 16: {micro_bn.running_mean.item():.4f}")
print(f"mean of the images:                    {x.mean().item():.4f}")

# %% norm-others [markdown]
# With momentum 0.1, one update moves the running mean by a tenth of the way, and four move it by $1 - 0.9^4 = 34$ %.
#
# BatchNorm is the best-known case, not the only one. Whatever mixes samples inside the loss has the same trouble:
# contrastive losses that use the rest of the batch as negatives (accumulation does not give you more negatives),
# losses with a batch-wide maximum or median, mixture-of-experts balancing losses. Dropout is *not* of this kind: its
# masks are drawn per element, so the accumulated gradient is another draw from the same distribution.

# %% amp-text [markdown]
# ## With mixed precision and clipping
#
# Now the update has company. Of all the calls, one is made **for every micro-batch**:
#
# - `scaler.scale(loss).backward()`: all pieces of a window must carry the *same* scale.
#
# The others are made **once per window**, when it is complete, in this order:
#
# 1. `scaler.unscale_(optimizer)`, so that `.grad` holds the real gradient;
# 2. `clip_grad_norm_`, on the gradient of the whole window;
# 3. `scaler.step(optimizer)` and `scaler.update()`;
# 4. `scheduler.step()`, **unless the step was skipped**, which shows in a scale that has fallen (lesson 07; to read it
#    waits for the GPU, once a window);
# 5. `optimizer.zero_grad()`, skipped or not.
#
# The forward pass runs under `torch.autocast`, here in fp16, for which a T4 too has tensor cores. fp16 needs the scaler;
# bf16 has float32's range and needs none, so `enabled=` turns it into a no-op, and the same loop serves both.

# %% amp-run
def update_amp(model, optimizer, scaler, schedule, window, max_norm, dtype, device="cuda"):
    """One window with autocast, accumulation and clipping; returns the gradient's norm."""
    optimizer.zero_grad()
    for a, b in window:
        with torch.autocast(device, dtype=dtype):
            loss = F.cross_entropy(model(a), b) / len(window)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale = scaler.get_scale()  # 1.0 without a scaler
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:  # it falls when the step was skipped
        schedule.step()
    return norm


# %% amp-epoch
def train_epoch_amp(model, batches, steps, max_norm, dtype=torch.float16):
    """One epoch; returns the gradient norm of each window, and how often the schedule advanced."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    rest = optimizer, scaler, schedule
    norms = [update_amp(model, *rest, window, max_norm, dtype) for window in windows(batches, steps)]
    return torch.stack(norms), schedule.last_epoch


# %% amp-result
model = make_cnn().to(gpu.device)
on_gpu = [(a.to(gpu.device), b.to(gpu.device)) for a, b in ten_batches]
norms, advanced = train_epoch_amp(model, on_gpu, steps=4, max_norm=1.0)
print("windows:", len(norms), "· schedule advanced:", advanced)
broken = [(a * float("inf") if i == 5 else a, b) for i, (a, b) in enumerate(on_gpu)]  # in the second window
norms, advanced = train_epoch_amp(make_cnn().to(gpu.device), broken, steps=4, max_norm=1.0)
print("with an overflow in the second window:", len(norms), "windows · schedule advanced:", advanced)
print("dtype of the parameters:", {p.dtype for p in model.parameters()})
print("dtype of the gradients: ", {p.grad.dtype for p in model.parameters()})

# %% amp-order-text [markdown]
# Why the order matters is easiest to see with a scaler that is switched on. Its scale starts at 65536. Clip before
# unscaling, and every gradient looks enormous:

# %% amp-order
def step_size(order, max_norm=100.0):
    """The gradient norm that reaches the optimizer, for one order of unscale and clip."""
    model = make_cnn().to(gpu.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cuda")
    for a, b in on_gpu[:4]:
        scaler.scale(F.cross_entropy(model(a), b) / 4).backward()
    for action in order:
        if action == "unscale":
            scaler.unscale_(optimizer)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return gradient(model).norm().item()


right, wrong = step_size(["unscale", "clip"]), step_size(["clip", "unscale"])
print(f"unscale, then clip: the gradient keeps its size (norm {right:.2f}, limit 100)")
print(f"clip, then unscale: about {round(right / wrong, -1):.0f} times too small")

# %% amp-order-explain [markdown]
# No error, no warning, a loss that falls slowly: the limit of 100 was applied to a gradient 65536 times too large.
#
# Two more facts are easy to miss. The first: **an overflow in one micro-batch costs the whole window.** The `inf` is
# added to `.grad`, `unscale_` finds it, `step` is skipped, `update` halves the scale. With `steps = 64`, 64 forward
# passes are thrown away.

# %% amp-overflow
model = make_cnn().to(gpu.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
for i, (a, b) in enumerate(on_gpu[:4]):
    overflow = float("inf") if i == 2 else 1.0  # the third of four micro-batches overflows
    scaler.scale(F.cross_entropy(model(a), b) / 4 * overflow).backward()
scaler.step(optimizer)
scaler.update()
after = nn.utils.parameters_to_vector(model.parameters())
print("weights unchanged:", torch.equal(before, after), "· scale:", scaler.get_scale())

# %% amp-bf16-text [markdown]
# The second: **gradients accumulate in the dtype of the parameters.** Under autocast that is float32. In *pure* bf16
# training (`model.to(torch.bfloat16)`) `.grad` is bf16 too, with 8 significant bits, and small pieces vanish:

# %% amp-bf16
one_piece = torch.ones(1, dtype=torch.bfloat16)
total = torch.zeros(1, dtype=torch.bfloat16)
for _ in range(1000):
    total += one_piece
print("1000 pieces of 1.0 added in bf16:", total.item())

# %% amp-bf16-explain [markdown]
# The sum stops at 256: the next bf16 number after 256 is 258, and 257 rounds back to 256. With a thousand equal pieces
# three quarters of the gradient are gone. Accumulate in float32 if your weights are bf16.

# %% rate-text [markdown]
# ## Learning rate and schedule
#
# Accumulation by itself changes nothing about the learning rate: batch 4 × 16 behaves as batch 64, and takes the
# learning rate of batch 64. What does change, when you *raise* the effective batch:
#
# - **Updates per epoch fall by `steps`.** Anything counted in updates must be recounted: warm-up, decay, total steps,
#   evaluation interval, EMA decay. A schedule advanced per micro-batch ends `steps` times too early.
# - **The learning rate may grow.** Rules of thumb: in proportion to the batch for SGD with warm-up (Goyal et al. 2017),
#   with its square root for Adam (Malladi et al. 2022). They are starting points for a search, and end where the batch
#   is so large that a cleaner gradient no longer helps.

# %% rate-turn-text [markdown]
# **Your turn** · 2 minutes. A cosine schedule wants `T_max`, the updates of the whole training. Count them. The last
# micro-batch of an epoch may be short, and so may its last window; both are used.

# %% rate-turn tags=["your-turn"]
def updates_of(samples, micro_batch, steps, epochs):
    """How often the optimizer steps, with windows of `steps` micro-batches."""
    # TODO: the micro-batches of an epoch, then its windows
    ### BEGIN SOLUTION
    batches = -(-samples // micro_batch)  # rounded up
    windows = -(-batches // steps)
    return windows * epochs
    ### END SOLUTION


gpulab.turn.update_count(updates_of)

# %% rate-run
batches, steps, epochs = 94, 4, 10
updates = -(-batches // steps)  # per epoch; rounded up, since the last window steps too


def rate_after(calls):
    """The learning rate of a cosine schedule, planned for all updates, after so many calls of `step()`."""
    optimizer = torch.optim.SGD(make_cnn().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates * epochs)
    for _ in range(calls):
        optimizer.step()
        schedule.step()
    return schedule.get_last_lr()[0]


print("updates per epoch:", updates, "· in 10 epochs:", updates * epochs)
print(f"after 2 of 10 epochs, advanced per update:      learning rate {rate_after(2 * updates):.4f}")
print(f"after 2 of 10 epochs, advanced per micro-batch: learning rate {rate_after(2 * batches):.4f}")

# %% adam-text [markdown]
# ### A forgotten division
#
# Forget the division by `steps`, and SGD takes steps four times too long. You notice. Now Adam:

# %% adam-predict
adam_guess = gpulab.predict("Without the division by 4, Adam's steps are how many times as long?")

# %% adam-run
def distance_moved(optimizer_class, share, updates=5):
    """How far five updates of 4 × 16 move the weights, with each loss multiplied by `share`."""
    model, start = make_cnn(), nn.utils.parameters_to_vector(make_cnn().parameters())
    optimizer = optimizer_class(model.parameters(), lr=1e-3)
    for _ in range(updates):
        optimizer.zero_grad()
        for a, b in zip(x.split(16), y.split(16), strict=True):
            (F.cross_entropy(model(a), b) * share).backward()
        optimizer.step()
    return (nn.utils.parameters_to_vector(model.parameters()) - start).norm().item()


for name in ("SGD", "Adam"):
    kind = getattr(torch.optim, name)
    print(f"{name:<4} without the division: {distance_moved(kind, 1) / distance_moved(kind, 1 / 4):.2f} times as far")
ratio = round(distance_moved(torch.optim.Adam, 1) / distance_moved(torch.optim.Adam, 1 / 4), 2)
told = "Adam divides its step by the running size of the gradient, so a constant factor cancels."
adam_guess.compare(ratio, because=told)

# %% adam-explain [markdown]
# Such a mistake can stay in the code for years, until somebody adds gradient clipping (whose limit is now four times
# too strict), looks at the logged gradient norm, or changes the optimizer. And a last window with fewer micro-batches
# has another factor.

# %% ddp-text [markdown]
# ## Across processes: `no_sync`
#
# With DistributedDataParallel every `backward()` averages the gradients over all processes. In a window of four, three
# of these exchanges are wasted. `model.no_sync()` switches them off; the last micro-batch, outside it, sends the sum.
#
# The forward pass belongs *inside* the context too: DDP decides there whether this backward will synchronise. The
# cell below starts two real processes on the CPU, as `torchrun` does (lesson 12), and counts the exchanges.

# %% ddp-write
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
worker = pathlib.Path(folder.name) / "accumulate_ddp.py"
worker.write_text('''
import contextlib
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, gradients = dist.get_rank(), []
for use_no_sync in (False, True):
    torch.manual_seed(0)
    model, exchanges = DistributedDataParallel(nn.Linear(64, 10)), []
    def counted(state, bucket):
        exchanges.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)
    model.register_comm_hook(None, counted)
    torch.manual_seed(1 + rank)  # each rank has its own data
    for i in range(4):
        quiet = use_no_sync and i < 3
        with model.no_sync() if quiet else contextlib.nullcontext():
            (model(torch.randn(16, 64)).square().mean() / 4).backward()
    gradients.append(model.module.weight.grad.clone())
    if rank == 0:
        print(f"no_sync {use_no_sync!s:<5}: {len(exchanges)} exchanges, {sum(exchanges):,} bytes a rank (measured)")
if rank == 0:
    print("same gradient:", torch.allclose(*gradients, atol=1e-6))
dist.destroy_process_group()
''')
print("the worker has", len(worker.read_text().splitlines()), "lines")

# %% ddp-run
print(gpulab.distributed.run(worker, ranks=2, warm=True).ranks[0].output.strip())
folder.cleanup()

# %% ddp-explain [markdown]
# A quarter of the traffic for the same gradient. Until the last micro-batch each rank holds its own, unaveraged
# gradient, so do not clip or log it earlier. With DDP this costs no memory, since every rank holds whole gradients
# anyway. With FSDP it does: gradients that would be sharded stay whole until the exchange (lesson 13).

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Accumulation is mathematically equal to the large batch.” | True for a loss that is a mean over independent samples, with equal micro-batches or proper weights. To rounding, not bit for bit. Not with BatchNorm. | *The same gradient in four pieces*, *Mean of means*, *BatchNorm* |
# | “`if (i + 1) % steps == 0: optimizer.step()`” | Wrong at the end of every epoch whose batches do not divide evenly. | *A question worth asking*, *The last window* |
# | “Divide the loss by `accumulation_steps`.” | Right for full windows of equal micro-batches. Otherwise divide by what the window holds, in samples or tokens. | *The last window*, *Token-weighted loss* |
# | “Forgetting `zero_grad` makes memory grow until it runs out.” | Wrong: gradients are added into the buffer that is there. The result is wrong, the memory is not. | next cell |
# | “Call `zero_grad(set_to_none=True)` to save memory.” | True, and the default since PyTorch 2.0: nothing to write. | next cell |
# | “Accumulation gives you the memory of a small batch for free.” | The activations, yes; never less than parameters, gradients and optimizer state; one gradient buffer more in the forward pass; some speed, or half of it where the GPU waits for the host. | *What it saves* |
# | “Smaller batches, fewer updates: accumulation trains faster.” | It makes each update cleaner and rarer. Per epoch, the small batch learned faster here. | *The same gradient in four pieces* |

# %% web-zero-grad
model = make_cnn()
F.cross_entropy(model(x), y).backward()
buffers = [p.grad.data_ptr() for p in model.parameters()]
for _ in range(5):
    F.cross_entropy(model(x), y).backward()  # zero_grad forgotten, five times
print("the same buffers as before:", buffers == [p.grad.data_ptr() for p in model.parameters()])
model.zero_grad()
print("after zero_grad():", {p.grad for p in model.parameters()})

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Backward once for the whole window.** The losses are summed and backward is called at the end. The gradient is
# right, and every graph stays alive until then: the memory of the large batch, with extra work. Here the bytes that
# one window keeps, before its backward:

# %% mistake-graphs
model, window = make_cnn().to(gpu.device), on_gpu[:4]
one = bytes_kept(model, lambda: F.cross_entropy(model(window[0][0]), window[0][1]))
whole = bytes_kept(model, lambda: sum(F.cross_entropy(model(a), b) for a, b in window))
print(f"backward after each micro-batch: {one:>9,} bytes kept at a time ({gpu.numbers})")
print(f"one backward for the window:     {whole:>9,} bytes kept at a time ({gpu.numbers})")

# %% mistake-unscale-text [markdown]
# **Unscaling every micro-batch.** `unscale_` divides in place, so a second call would divide what is already divided.
# PyTorch refuses:

# %% mistake-unscale tags=["raises-exception"]
model = make_cnn().to(gpu.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for a, b in on_gpu[:4]:
    scaler.scale(F.cross_entropy(model(a), b) / 4).backward()
    scaler.unscale_(optimizer)

# %% mistake-unscale-repair [markdown]
# The message means: move `unscale_` out of the inner loop, in front of the clipping. Adding `scaler.update()` to the
# inner loop also silences it, and is worse: the pieces of a window may then carry different scales.
#
# **Autocast without a device.** Older tutorials write `autocast()`, or the names in `torch.cuda.amp`, which warn that
# they are deprecated. Today's name wants to know the device:

# %% mistake-autocast tags=["raises-exception"]
with torch.amp.autocast():
    loss = F.cross_entropy(make_cnn()(x), y)

# %% mistake-names
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.amp.GradScaler(enabled=False)
    try:
        torch.cuda.amp.autocast(device_type="cuda")  # seen in tutorials: the old name with the new argument
    except TypeError as error:
        print("TypeError ·", str(error).split("() ")[1])
print(caught[0].category.__name__, "·", str(caught[0].message)[:90], "…")

# %% mistake-autocast-repair [markdown]
# Write `torch.autocast(device.type, dtype=torch.bfloat16)` and `torch.amp.GradScaler(device.type)`.
#
# **`loss.item()` for every micro-batch.** It waits until the GPU has finished everything queued so far. Keep a running
# sum on the device, detached (`total += loss.detach()`), and call `.item()` once per update (lesson 03 measures it).
# Without the `detach` the sum is part of a graph that grows with every micro-batch. (Backward has freed the
# activations in it; what stays are its nodes. Lesson 05 counts.)

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(8)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. `backward()` adds. Divide each loss so that the sum is the mean over the **window**: by samples, or by tokens.
# 2. The gradient is the full batch's **to rounding**, as long as no sample sees another. BatchNorm does.
# 3. What shrinks is what backward keeps. Parameters, gradients and optimizer state stay, and the gradients are alive
#    during the forward pass from the second micro-batch on.
# 4. Once per window: unscale, clip, step, update, `zero_grad`, and the schedule if the step was not skipped. The last
#    window is a window too.
# 5. Use the largest micro-batch that fits. Steps cost speed, most where the GPU waits for the host.
#
# **For the checklist:** accumulation divides by what the window holds · the last window steps · clip after unscale ·
# the schedule counts updates that happened · no BatchNorm across micro-batches.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/08_accumulation.ipynb): four functions, each checked on your own code. Then
# [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation, *Automatic Mixed Precision examples*: “Gradient accumulation”, “Gradient clipping”;
#   `torch.nn.parallel.DistributedDataParallel.no_sync`; `torch.autograd.graph.saved_tensors_hooks`.
# - Hugging Face, *Fixing Gradient Accumulation*, October 2024; *Methods and tools for efficient training on a single
#   GPU* (2022 version), for the BERT-large table.
# - Goyal et al., *Accurate, Large Minibatch SGD*, arXiv 1706.02677. Malladi et al., *On the SDEs and Scaling Rules for
#   Adaptive Gradient Algorithms*, arXiv 2205.10287. McCandlish et al., *An Empirical Model of Large-Batch Training*,
#   arXiv 1812.06162. Wu and He, *Group Normalization*, arXiv 1803.08494.
