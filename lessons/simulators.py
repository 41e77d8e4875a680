# %% title [markdown]
# # The simulators
#
# All fourteen on one page, in the order of the lessons: for instructors, and for whoever wants to look one up. A
# simulator is a model, and says under *The numbers* what it leaves out. Numbers are *virtual* where the model makes
# them, *recorded* where a data sheet or a paper gave them.
#
# What is in a picture can be grasped: drag a point or the time, click a row. Three buttons lead through a story; *Whole
# window* gives one simulator the screen, where the arrow keys step through the story and a line says what to tell.
# `gpulab.present("race")` opens one so. Every control is an argument as well: `gpulab.sim.race(tasks=1000)` opens it
# there, `sim.set(tasks=2000)` moves it, and `sim.result` is a table of its numbers.
#
# Runs on: any machine, without a GPU. Time: as long as you like; a minute each to see the point.

# %% setup
import gpulab

# %% architecture-text [markdown]
# ## `architecture` (lesson 01)
#
# What a “CUDA core” is, and why lanes stand idle: warps that wait, and a last wave that is almost empty. Press Play,
# then set the elements to 2048.

# %% architecture
gpulab.sim.architecture()

# %% race-text [markdown]
# ## `race` (lesson 01)
#
# A CPU and a GPU on the same tasks, with launch, copies and a serial share. Give each core all its 32 lanes, and see
# who wins.

# %% race
gpulab.sim.race()

# %% roofline-text [markdown]
# ## `roofline` (lessons 01 and 10)
#
# Which operations wait for memory and which for arithmetic. Set the rows to 1, and change the precision.

# %% roofline
gpulab.sim.roofline()

# %% transfers-text [markdown]
# ## `transfers` (lessons 02 and 03)
#
# Tensors in host and GPU memory and the bus between. Use weights and bias together while one of them is on the host.

# %% transfers
gpulab.sim.transfers()

# %% launch_queue-text [markdown]
# ## `launch_queue` (lessons 03, 10 and 11)
#
# The host queues work and the GPU does it later. Read `.item()` at every step; make the kernels short.

# %% launch_queue
gpulab.sim.launch_queue()

# %% pipeline-text [markdown]
# ## `pipeline` (lessons 03 and 09)
#
# Loading, copying and computing on one time line. Add workers one by one, then pinned memory and a side stream.

# %% pipeline
gpulab.sim.pipeline()

# %% memory_budget-text [markdown]
# ## `memory_budget` (lessons 04 and 13)
#
# What fills a GPU, and what sharding over ranks takes off each. Try ZeRO's stages on 64 ranks.

# %% memory_budget
gpulab.sim.memory_budget()

# %% allocator-text [markdown]
# ## `allocator` (lessons 04 and 05)
#
# Segments and blocks of PyTorch's caching allocator, and an out of memory error with memory free. Switch expandable
# segments on.

# %% allocator
gpulab.sim.allocator()

# %% step_memory-text [markdown]
# ## `step_memory` (lessons 05 and 06)
#
# Memory over one training step, and what checkpointing saves. Go from 12 segments to 13.

# %% step_memory
gpulab.sim.step_memory()

# %% number_formats-text [markdown]
# ## `number_formats` (lesson 07)
#
# What the bits of fp32, tf32, fp16, bf16 and fp8 can hold. Subtract a thousandth a thousand times, in each of them.

# %% number_formats
gpulab.sim.number_formats()

# %% loss_scaling-text [markdown]
# ## `loss_scaling` (lesson 07)
#
# Gradients against fp16's range, and the scaler that looks for the right scale. Let every hundredth batch overflow.

# %% loss_scaling
gpulab.sim.loss_scaling()

# %% accumulation-text [markdown]
# ## `accumulation` (lesson 08)
#
# Micro-batches that add up to a large batch, and where they do not. Let samples differ in length.

# %% accumulation
gpulab.sim.accumulation()

# %% allreduce-text [markdown]
# ## `allreduce` (lesson 12)
#
# How gradients travel between GPUs, and what hides behind the backward pass. Choose a slow link.

# %% allreduce
gpulab.sim.allreduce()

# %% spot-text [markdown]
# ## `spot` (lesson 14)
#
# A long run with interruptions: how often to save. Halve and double the best interval.

# %% spot
gpulab.sim.spot()
