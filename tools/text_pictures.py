"""The pictures in the lectures' texts, each a function, with its alt text as a constant; `TEXTS` lists them."""

from __future__ import annotations

from collections.abc import Callable

import gpulab
from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ON, ORANGE, PAPER, PURPLE, SKY
from virtualgpu.pictures.svg import HEAD, Picture, bar, line, rect, shape, text


def host_and_gpu() -> Picture:
    """Where a training script runs: the host launches and copies over the bus, the GPU computes in its own memory."""
    body = [
        rect(18, 10, 300, 176, fill=PAPER, stroke=BLUE, radius=8),
        text(34, 36, "Host", size=HEAD, weight="bold"),
        text(34, 62, "processor: Python code, the loader"),
        text(34, 84, "memory: the data set, batches"),
        rect(542, 10, 300, 176, fill=PAPER, stroke=GREEN, radius=8),
        text(558, 36, "GPU", size=HEAD, weight="bold"),
        text(558, 62, "thousands of lanes that compute"),
        text(558, 84, "memory: model, activations, gradients"),
        *(bar(558 + 92 * i, 112, 82, 36, fill=GREEN) for i in range(3)),
        *(text(599 + 92 * i, 135, words, anchor="middle", fill=ON) for i, words in enumerate(("conv", "ReLU", "pool"))),
        text(558, 170, "kernels: one after the other", fill=MUTED),
        text(430, 16, "the bus", anchor="middle", fill=MUTED),
        *_arrow(324, 536, 62, "launch: “run this kernel”", 3),
        *_arrow(324, 536, 112, "copy: x.to(device)", 8),
        *_arrow(536, 324, 162, "copy: loss.item()", 8),
    ]
    return Picture(
        860, 200, "A GPU is a second computer: the host asks, the GPU computes", HOST_AND_GPU, tuple(body), 1
    )


def _arrow(start: float, end: float, y: float, words: str, width: float) -> list[str]:
    tip = 12 if end > start else -12
    points = [(end, y), (end - tip, y - 9), (end - tip, y + 9)]
    return [
        line(start, y, end - tip, y, stroke=INK, width=width),
        shape(points, fill=INK),
        text((start + end) / 2, y - 12, words, anchor="middle"),
    ]


def who_holds() -> Picture:
    """What an exception keeps alive: its traceback, the frames of it, their variables, the graph of one."""
    body = [
        *_box(18, 60, 150, "the exception", "OutOfMemoryError", BLUE),
        *_box(204, 60, 122, "its traceback", "__traceback__", BLUE),
        *_box(358, 10, 190, "frame of attempt()", "x: 24 MiB", BLUE),
        *_box(358, 110, 190, "frame of forward()", "input: 24 MiB", BLUE),
        *_box(612, 110, 230, "the graph", "activations: the rest", GREEN),
        *_arrow(168, 202, 86, "", 3),
        line(326, 86, 338, 86, stroke=INK, width=3),
        line(338, 36, 338, 136, stroke=INK, width=3),
        line(338, 36, 358, 36, stroke=INK, width=3),
        line(338, 136, 358, 136, stroke=INK, width=3),
        *_arrow(548, 610, 136, "grad_fn", 3),
    ]
    return Picture(860, 172, "While the exception is held, so is all that it leads to", WHO_HOLDS, tuple(body), 1)


def _box(x: float, y: float, width: float, head: str, words: str, color: str) -> list[str]:
    return [
        rect(x, y, width, 52, fill=PAPER, stroke=color, radius=6),
        text(x + 10, y + 22, head, weight="bold"),
        text(x + 10, y + 42, words),
    ]


HOST_AND_GPU = "The host sends launches and data over the bus, and the GPU computes them in its own memory."
WHO_HOLDS = "An exception holds its traceback, the traceback its frames, a frame its variables, a variable its graph."


def gpu_memories() -> Picture:
    """The memories of an A100 from its lanes outwards, joined by paths as wide as they are fast."""
    # what all of the chip moves, in TB/s at 1.41 GHz: a lane reads three numbers of 4 bytes for a multiply-add in a
    # clock; an SM's L1 gives 128 bytes in a clock, the L2 5120 (A100 whitepaper); HBM2e and PCIe 4 x16 by data sheet
    paths = (
        ("117", 6912 * 12 * 1.41e-3),
        ("19.5", 108 * 0.128 * 1.41),
        ("7.2", 5.12 * 1.41),
        ("2.0", 2.039),
        ("0.03", 0.032),
    )
    boxes = (
        ("Lanes", "6912"),
        ("Registers", "27 MB"),
        ("L1", "20 MB"),
        ("L2", "40 MB"),
        ("HBM", "80 GB"),
        ("Host", "terabytes"),
    )
    per_tb, middle, wide, gap = 1.5, 108, 90, 56
    body = []
    for i, (name, size) in enumerate(boxes):
        x = 18 + i * (wide + gap)
        body += [
            rect(x, middle - 90, wide, 180, fill=PAPER, stroke=BLUE if name == "Host" else GREEN, radius=8),
            text(x + wide / 2, middle - 6, name, anchor="middle", weight="bold"),
            text(x + wide / 2, middle + 16, size, anchor="middle"),
        ]
        if i:
            speed, width = paths[i - 1][0], max(1.0, paths[i - 1][1] * per_tb)
            start = x - gap
            body += [
                bar(start, middle - width / 2, gap, width, fill=ORANGE),
                text(start + gap / 2, middle + 112, speed, anchor="middle", weight="bold"),
            ]
    body.append(
        text(
            430,
            middle + 134,
            "TB/s, computed from data sheet and whitepaper; the width of a path is its bandwidth",
            anchor="middle",
            fill=MUTED,
        )
    )
    return Picture(860, 250, "Each path away from the lanes is narrower", GPU_MEMORIES, tuple(body), 1)


def bytes_in_flight() -> Picture:
    """Little's law: two pipes as wide as the bandwidth and as long as the latency; the area is what is on its way."""
    body = []
    for y, name, gb_s, ns, held in ((70, "A100", 2039, 330, "673 kB in flight"), (166, "CPU", 90, 90, "8 kB")):
        width, length = gb_s * 0.045, ns * 1.6
        body += [
            text(18, y + 5, name, size=HEAD, weight="bold"),
            bar(100, y - width / 2, length, width, fill=SKY),
        ]
        words = f"{gb_s:,} GB/s wide, {ns} ns long"
        if length > 300:
            body += [
                text(100 + length / 2, y + 5, held, anchor="middle", weight="bold", fill=ON),
                text(100 + length + 14, y + 5, words),
            ]
        else:
            body.append(text(100 + length + 14, y + 5, f"{words}: {held}"))
    return Picture(860, 190, "A wide memory that answers late must be kept full", BYTES_IN_FLIGHT, tuple(body), 1)


def registered() -> Picture:
    """What `.to` finds in lesson 02's classifier: a tree of what is registered, and what only Python knows."""
    rows = (
        ("mean", "plain attribute", "", False),
        ("std", "buffer", "", True),
        ("first", "submodule", "weight, bias", True),
        ("rest", "Python list", "weight, bias", False),
    )
    body = [*_box(18, 100, 150, "Classifier", "nn.Module", GREEN), line(190, 34, 190, 220, stroke=INK, width=3)]
    body.append(line(168, 126, 190, 126, stroke=INK, width=3))
    for i, (name, kind, inside, moves) in enumerate(rows):
        y, color = 8 + 62 * i, GREEN if moves else BLUE
        body += [line(190, y + 26, 220, y + 26, stroke=INK, width=3), *_box(220, y, 170, name, kind, color)]
        if inside:
            body += [
                line(390, y + 26, 420, y + 26, stroke=INK, width=3, dash="" if moves else "6 5"),
                *_box(420, y, 150, "Linear", inside, color),
            ]
        words = "registered: .to moves it" if moves else "not registered: stays on the CPU"
        body.append(text(600, y + 31, words, weight="bold" if moves else ""))
    return Picture(860, 256, "A module's .to walks along what is registered", REGISTERED, tuple(body), 1)


def optimizer_state() -> Picture:
    """What a move of the model takes along: the memory of its parameters, and not the optimizer's state."""
    body = [
        *_box(18, 8, 150, "model", "moved by .to", GREEN),
        *_box(18, 104, 150, "optimizer", "never moved", BLUE),
        *_box(270, 56, 180, "one Parameter", "the same object", GREEN),
        *_box(640, 8, 200, "before: CPU memory", "float32 values", BLUE),
        *_box(640, 104, 200, "after: GPU memory", "float32 values", GREEN),
        *_box(270, 160, 180, "its state", "made in step()", BLUE),
        line(168, 34, 270, 72, stroke=INK, width=3),
        line(168, 130, 270, 92, stroke=INK, width=3),
        line(168, 140, 270, 186, stroke=INK, width=3),
        line(450, 72, 640, 34, stroke=INK, width=3, dash="6 5"),
        line(450, 92, 640, 130, stroke=INK, width=3),
        text(470, 191, "stays where it was made", weight="bold"),
    ]
    return Picture(860, 222, "The state does not move with the model", OPTIMIZER_STATE, tuple(body), 1)


def visible_devices() -> Picture:
    """The numbers of GPUs in a process that sees two of four."""
    body = [text(18, 36, "in the process"), text(18, 126, "in the machine")]
    for number in range(4):
        x, seen = 160 + 175 * number, number > 1
        body += [*_box(x, 98, 150, f"GPU {number}", "visible" if seen else "hidden", GREEN if seen else MUTED)]
        if seen:
            left = 160 + 175 * (number - 2)
            body += [
                *_box(left, 8, 150, f"cuda:{number - 2}", "its number here", BLUE),
                line(left + 75, 60, x + 75, 98, stroke=INK, width=3),
            ]
    return Picture(860, 158, "A process counts the GPUs that it sees", VISIBLE_DEVICES, tuple(body), 1)


def late_error() -> Picture:
    """When an error in values is noticed: with launches that nobody waits for, and with CUDA_LAUNCH_BLOCKING=1."""
    body = []
    for y, words, host in (
        (8, "Default", ((150, 140, "cross_entropy"), (294, 144, "print(shape)"), (442, 180, "backward ✘"))),
        (122, "CUDA_LAUNCH_BLOCKING=1", ((150, 472, "cross_entropy waits ✘"),)),
    ):
        body += [
            text(18, y + 16, words, weight="bold"),
            text(30, y + 50, "host"),
            text(30, y + 88, "GPU"),
            rect(260, y + 66, 300, 32, fill=PAPER, stroke=GREEN, radius=4),
            text(275, y + 87, "its kernel runs, and fails ✘"),
        ]
        for x, width, name in host:
            body += [
                rect(x, y + 28, width, 32, fill=PAPER, stroke=ORANGE if "✘" in name else BLUE, radius=4),
                text(x + width / 2, y + 49, name, anchor="middle", weight="bold" if "✘" in name else ""),
            ]
        body.append(text(640, y + 49, "backward is blamed" if y < 100 else "cross_entropy is blamed"))
    return Picture(860, 232, "The line that notices is not the line at fault", LATE_ERROR, tuple(body), 1)


REGISTERED = (
    "Registered: std, a buffer, and first, a submodule. "
    "Not registered: mean, a plain attribute, and rest, a Python list."
)
OPTIMIZER_STATE = (
    "The model and the optimizer hold the same Parameter, whose memory moves. The optimizer's state stays where it is."
)
VISIBLE_DEVICES = "In the process cuda:0 is the machine's GPU 2, and cuda:1 its GPU 3. GPUs 0 and 1 are hidden."
LATE_ERROR = (
    "By default the host goes on while the kernel fails, and backward is blamed. "
    "With CUDA_LAUNCH_BLOCKING=1 cross_entropy waits for its kernel, and is blamed."
)


def windows() -> Picture:
    """Ten micro-batches with windows of eight: as tutorials print the loop, and with the last window used."""
    body = []
    for y, name, first, last in (
        (10, "as printed", "8 losses, each ÷ 8: one step", "no step, stays in .grad"),
        (96, "all windows", "8 losses, each ÷ 8: one step", "each ÷ 2: one step"),
    ):
        body.append(text(18, y + 24, name, weight="bold"))
        for i in range(10):
            x = 128 + 62 * i + (24 if i > 7 else 0)
            dropped = i > 7 and name == "as printed"
            body += [
                bar(x, y, 54, 36, fill=ORANGE if dropped else SKY, hatched=dropped),
                text(x + 27, y + 24, "16", anchor="middle", fill=ON),
            ]
        body += [text(128, y + 58, first), text(648, y + 58, last)]
    return Picture(860, 166, "A window is what one step uses; the last one may be short", WINDOWS, tuple(body), 1)


def weights() -> Picture:
    """Unequal micro-batches as blocks: as wide as what they hold, as high as the weight of one sample or token."""
    body = []
    for y, sizes, wide, high, unit in ((84, (16, 16, 16, 2), 6.0, 600, "samples"), (196, (5, 22), 11.0, 330, "tokens")):
        total = sum(sizes)
        for x, shares in ((18.0, [1 / len(sizes)] * len(sizes)), (468.0, [size / total for size in sizes])):
            words = "mean of means" if x < 100 else f"each by its share of the {total}"
            body.append(text(x, y + 44, words, fill=MUTED))
            for size, share in zip(sizes, shares, strict=True):
                height = share / size * high
                body += [
                    bar(x, y - height, size * wide, height, fill=ORANGE if size == min(sizes) else SKY),
                    text(x + size * wide / 2, y + 20, str(size), anchor="middle"),
                ]
                x += size * wide + 4
            body.append(text(x + 8, y + 20, unit))
    return Picture(
        860, 250, "Height is the weight of one sample or token: it should be the same", WEIGHTS, tuple(body), 1
    )


def real_steps() -> Picture:
    """Three training steps on an H200: what the host needs to launch, what the kernels take, how long the step is."""
    recorded = {(row["model"], row["batch"], row["mode"]): row for row in gpulab.data.recorded("H200")["steps"]}
    named = (
        ("gpt2_small", 2, "GPT-2, 2 texts"),
        ("resnet50", 64, "ResNet-50, 64"),
        ("resnet50", 256, "ResNet-50, 256"),
    )
    body, per_ms, left = [], 5.0, 250
    for i, (model, batch, words) in enumerate(named):
        row, y = recorded[model, batch, "amp_bf16"], 12 + 82 * i
        body.append(text(14, y + 16, words, weight="bold"))
        for j, (name, ms, fill) in enumerate(
            (("host", row["host_ms"], BLUE), ("kernels", row["kernels_ms"], ORANGE), ("step", row["step_ms"], GREEN))
        ):
            body += [
                text(left - 10, y + 16 + 22 * j, name, anchor="end"),
                bar(left, y + 3 + 22 * j, per_ms * ms, 17, fill=fill),
                text(left + per_ms * ms + 8, y + 16 + 22 * j, f"{ms:.0f} ms"),
            ]
    return Picture(860, 262, "The step takes as long as the longer of the two", REAL_STEPS, tuple(body), 1)


REAL_STEPS = (
    "Bars for three steps on an H200: GPT-2 host 40, kernels 12, step 41 ms; ResNet-50 with 64 images 37, 28, 37; "
    "with 256 images 34, 106, 107."
)
GPU_MEMORIES = (
    "Data paths of an A100 to scale: "
    "registers to lanes 117 TB/s, L1 and shared memory 19.5, L2 7.2, HBM 2.0, PCIe 0.03."
)
BYTES_IN_FLIGHT = (
    "Little's law as two pipes: the A100's is 2039 GB/s wide and 330 ns long and holds 673 kB, "
    "the CPU's is 90 GB/s wide and 90 ns long and holds 8 kB."
)
STAGING = (
    "A pageable copy goes piece by piece through the driver's staging buffer, and the host takes part. "
    "From pinned memory the GPU fetches by itself."
)
TWO_STREAMS = (
    "Two streams: while main computes with batch 1, side copies batch 2. "
    "Arrows lead from the end of each copy to the start of its kernels."
)


def staging() -> Picture:
    """Two ways to the GPU: from pageable memory through the staging buffer, from pinned memory directly."""
    body = []
    for y, name, words in ((18, "pageable", "pages may move"), (112, "pinned", "pages are locked")):
        body += [*_box(18, y, 200, name, words, BLUE), *_box(642, y, 200, "GPU memory", "kernels read it", GREEN)]
    body += [
        *_box(336, 18, 188, "staging buffer", "locked, the driver's", BLUE),
        *_arrow(218, 332, 44, "host copies", 5),
        *_arrow(524, 638, 44, "GPU fetches", 5),
        *_arrow(218, 638, 138, "GPU fetches by itself, at the full rate of the link", 8),
    ]
    return Picture(860, 176, "A pageable copy is two copies", STAGING, tuple(body), 1)


def two_streams() -> Picture:
    """Copies in a side stream beside kernels in main; an arrow where main waits for a copy."""
    left, wide, gap, copies, kernels = 80, 170, 190, 10, 78
    body = [text(18, copies + 24, "side"), text(18, kernels + 24, "main")]
    for i in range(4):
        x = left + gap * i
        if i < 3:
            body += [
                bar(x, copies, wide, 36, fill=PURPLE, hatched=True),
                text(x + wide / 2, copies + 24, f"copy {i + 1}", anchor="middle", fill=ON),
                line(x + wide, copies + 36, x + gap - 2, kernels - 8, stroke=INK, width=3),
                shape([(x + gap, kernels), (x + gap - 11, kernels - 8), (x + gap, kernels - 13)], fill=INK),
            ]
        if i > 0:
            body += [
                bar(x, kernels, wide, 36, fill=GREEN),
                text(x + wide / 2, kernels + 24, f"kernels of batch {i}", anchor="middle", fill=ON),
            ]
    body.append(
        text(left, 146, "arrow: main.wait_stream(side), so kernels start when their batch is there", fill=MUTED)
    )
    return Picture(860, 160, "Only the first copy has nothing to hide behind", TWO_STREAMS, tuple(body), 1)


def format_bits() -> Picture:
    """Sign, exponent and fraction of six formats, a box for each bit."""
    formats = (
        ("float32", 8, 23, "largest 3e38"),
        ("TF32", 8, 10, "largest 3e38, stored as float32"),
        ("bf16", 8, 7, "largest 3e38"),
        ("fp16", 5, 10, "largest 65,504"),
        ("fp8 e4m3", 4, 3, "largest 448"),
        ("fp8 e5m2", 5, 2, "largest 57,344"),
    )
    side, left = 18, 100
    body = [
        bar(left, 8, 14, 14, fill=MUTED),
        text(left + 20, 20, "sign"),
        bar(left + 70, 8, 14, 14, fill=ORANGE),
        text(left + 90, 20, "exponent: how large"),
        bar(left + 260, 8, 14, 14, fill=SKY),
        text(left + 280, 20, "fraction: how exact"),
    ]
    for row, (name, exponent, fraction, words) in enumerate(formats):
        y = 36 + 27 * row
        fills = [MUTED, *[ORANGE] * exponent, *[SKY] * fraction]
        body += [
            text(18, y + 14, name, weight="bold"),
            *(bar(left + side * i, y, side - 2, side, fill=fill) for i, fill in enumerate(fills)),
            text(left + side * len(fills) + 12, y + 14, words),
        ]
    return Picture(860, 200, "16 bits can be divided in two ways", FORMAT_BITS, tuple(body), 1)


def cast_in_graph() -> Picture:
    """A weight under autocast: its 16-bit copy in forward, its float32 gradient in backward."""
    body = [
        *_box(18, 14, 190, "weight: float32", "the parameter itself", BLUE),
        *_box(318, 14, 170, "copy: 16 bits", "for one block", GREEN),
        *_box(598, 14, 244, "product: 16 bits", "copy × 16-bit input", GREEN),
        *_arrow(208, 316, 40, "cast", 3),
        *_arrow(488, 596, 40, "forward", 3),
        *_box(18, 114, 190, ".grad: float32", "read by the optimizer", BLUE),
        *_box(318, 114, 170, "gradient: 16 bits", "of the copy", GREEN),
        *_box(598, 114, 244, "gradient: 16 bits", "of the product", GREEN),
        *_arrow(598, 490, 140, "backward", 3),
        *_arrow(318, 210, 140, "cast", 3),
    ]
    return Picture(860, 180, "The cast is a part of the graph", CAST_IN_GRAPH, tuple(body), 1)


FORMAT_BITS = (
    "Sign, exponent and fraction: float32 1, 8, 23 bits; TF32 1, 8, 10; bf16 1, 8, 7; fp16 1, 5, 10; "
    "fp8 e4m3 1, 4, 3; fp8 e5m2 1, 5, 2."
)
CAST_IN_GRAPH = (
    "Forward: the float32 weight is cast to a 16-bit copy, which is multiplied by a 16-bit input. "
    "Backward: the 16-bit gradient of the copy is cast to a float32 gradient of the weight."
)
WINDOWS = (
    "Ten micro-batches: the printed loop steps after eight and leaves two; else the two make a window of their own."
)
WEIGHTS = (
    "Micro-batches of 16, 16, 16 and 2 samples, and of 5 and 22 tokens: in a mean of means "
    "the small one's samples or tokens weigh most; weighted by share, all weigh the same."
)


def straggler() -> Picture:
    """Two ranks of which one is late: how long the kernel of their collective looks on each."""
    rows = (
        (46, "rank 0", 340, "computes", "NCCL kernel: it spins", SKY),
        (118, "rank 1", 600, "computes: it is late", "", SKY),
    )
    body = []
    for y, name, until, work, waits, colour in rows:
        body += [
            text(18, y + 26, name, size=HEAD, weight="bold"),
            bar(110, y, until - 110, 42, fill=colour),
            text((110 + until) / 2, y + 26, work, anchor="middle", fill=ON),
            bar(until, y, 600 - until, 42, fill=ORANGE) if waits else "",
            text((until + 600) / 2, y + 26, waits, anchor="middle", fill=ON) if waits else "",
            bar(600, y, 130, 42, fill=GREEN),
            text(665, y + 26, "NCCL: sends", anchor="middle", fill=ON),
        ]
    body += [
        line(600, 30, 600, 176, stroke=INK, width=1.5),
        text(600, 22, "the last rank has come", anchor="middle", fill=MUTED),
        text(842, 196, "time", anchor="end", fill=MUTED),
    ]
    return Picture(860, 206, "The late rank has the shortest NCCL kernel", STRAGGLER, tuple(filter(None, body)), 1)


def dealing() -> Picture:
    """How DistributedSampler deals seven samples to three ranks, and what it repeats."""
    body = []
    for rank in range(3):
        y = 14 + 46 * rank
        body.append(text(18, y + 24, f"rank {rank}", size=HEAD, weight="bold"))
        for step in range(3):
            index = 3 * step + rank
            padded = index > 6
            body += [
                bar(150 + 120 * step, y, 96, 34, fill=ORANGE if padded else SKY),
                text(198 + 120 * step, y + 23, str(index % 7), anchor="middle", fill=ON, weight="bold"),
            ]
    body.append(text(530, 14 + 46 * 1 + 24, "orange: drawn a second time", fill=MUTED))
    return Picture(860, 156, "Seven samples on three ranks are nine", DEALING, tuple(body), 1)


def parted() -> Picture:
    """The collectives of two ranks, in the order of their calls, up to the one in which both wait."""
    rows = (("rank 0", "all_reduce: a metric"), ("rank 1", "broadcast"))
    body = []
    for i, (name, second) in enumerate(rows):
        y = 34 + 54 * i
        body += [
            text(18, y + 26, name, size=HEAD, weight="bold"),
            bar(110, y, 240, 40, fill=SKY),
            text(230, y + 25, "all_reduce: done", anchor="middle", fill=ON),
            bar(370, y, 240, 40, fill=ORANGE),
            text(490, y + 25, f"{second}: waits", anchor="middle", fill=ON),
        ]
    body += [
        text(230, 20, "collective 1", anchor="middle", fill=MUTED),
        text(490, 20, "collective 2", anchor="middle", fill=MUTED),
    ]
    return Picture(860, 140, "Both wait in collective 2, and each in another one", PARTED, tuple(body), 1)


DEALING = "Rank 0 gets samples 0, 3, 6; rank 1 gets 1, 4 and again 0; rank 2 gets 2, 5 and again 1."
PARTED = "Collective 1 is an all-reduce on both ranks, collective 2 an all-reduce on rank 0 and a broadcast on rank 1."
STRAGGLER = (
    "Rank 0 has computed early: its NCCL kernel starts, spins and sends. Rank 1 is late: its NCCL kernel only sends. "
    "Both end together."
)
SIGNALS = (
    "Who passes a notice on. SLURM's signal before the limit goes through the shell's trap and srun to the ranks; "
    "at pre-emption straight to them; torchrun passes it on; a shell as a container's first process does not."
)


def signals() -> Picture:
    """A notice on its way to the process that trains: who sends it, and who must pass it on."""
    rows = (
        ("SLURM: limit", (("shell", "trap: kill $run", BLUE), ("srun", "to its tasks", BLUE)), "USR1"),
        ("SLURM: preempts", (), "SIGTERM"),
        ("torchrun", (("torchrun", "waits 30 s", BLUE),), "SIGTERM"),
        ("Kubernetes", (("first process", "a shell keeps it", ORANGE),), "SIGTERM"),
    )
    body = []
    for number, (who, between, name) in enumerate(rows):
        y, x = 14 + 70 * number, 180.0
        body.append(text(18, y + 31, who, weight="bold"))
        for head, words, color in between:
            body += [*_arrow(x, x + 78, y + 26, name, 3), *_box(x + 80, y, 136, head, words, color)]
            x += 216
        if between[-1:] and between[-1][2] == ORANGE:
            body.append(text(x + 14, y + 31, "exec python train.py: Python is the first process", fill=MUTED))
        else:
            body += [*_arrow(x, 710, y + 26, name, 3), *_box(712, y, 130, "each rank", "takes note", GREEN)]
    return Picture(860, 290, "A notice has to reach the process that trains", SIGNALS, tuple(body), 1)


def zero_stages() -> Picture:
    """What one of 8 ranks holds of a model under DDP and the stages of ZeRO, by kind, with fp32 weights."""
    rows = (("DDP", "4, 4, 8", 4, 4, 8), ("ZeRO-1", "4, 4, 1", 4, 4, 1), ("ZeRO-2", "4, ½, 1", 4, 0.5, 1))
    body = []
    for i, (name, bytes_, *parts) in enumerate((*rows, ("ZeRO-3, FSDP", "½, ½, 1", 0.5, 0.5, 1))):
        y, x, per_byte = 34 + 42 * i, 180.0, 32
        body.append(text(18, y + 21, name, size=HEAD, weight="bold"))
        for part, colour in zip(parts, (BLUE, ORANGE, GREEN), strict=True):
            body.append(bar(x, y, part * per_byte, 30, fill=colour))
            x += part * per_byte
        body.append(text(x + 10, y + 21, f"{bytes_}: {sum(parts):g} bytes"))
    for x, words, colour in ((180, "weights", BLUE), (290, "gradients", ORANGE), (410, "Adam's state", GREEN)):
        body += [bar(x, 8, 14, 14, fill=colour), text(x + 20, 20, words)]
    return Picture(860, 210, "Each stage cuts one part more", ZERO_STAGES, tuple(body), 1)


ZERO_STAGES = (
    "Bytes for each parameter on one of 8 ranks, weights, gradients, Adam's state: DDP 4, 4, 8; ZeRO-1 4, 4, 1; "
    "ZeRO-2 4, ½, 1; ZeRO-3 and FSDP ½, ½, 1."
)


def pipeline_schedules() -> Picture:
    """Two ranks, four parts of a batch: which part each computes when, under GPipe and under 1F1B."""
    # a forward takes one slot, a backward two; number of the part, negative in backward
    schedules = {
        "GPipe": (((0, 1, 2, 3, 4), (7, -1, -2, -3, -4)), ((1, 1, 2, 3, 4, -1, -2, -3, -4),)),
        "1F1B": (((0, 1, 2), (4, -1), (6, 3), (7, -2), (9, 4), (10, -3), (13, -4)), ((1, 1, -1, 2, -2, 3, -3, 4, -4),)),
    }
    slot, body = 44, []
    for i, (name, ranks) in enumerate(schedules.items()):
        for rank, runs in enumerate(ranks):
            y = 14 + 104 * i + 40 * rank
            body.append(text(18, y + 23, f"{name}, rank {rank}", weight="bold"))
            for start, *parts in runs:
                x = 150 + start * slot
                for part in parts:
                    wide = slot * (1 if part > 0 else 2)
                    body += [
                        bar(x, y, wide - 2, 32, fill=SKY if part > 0 else ORANGE),
                        text(x + wide / 2, y + 22, f"{abs(part)}", anchor="middle", fill=ON),
                    ]
                    x += wide
    for x, words, colour in ((150, "forward of a part", SKY), (330, "backward of a part", ORANGE)):
        body += [bar(x, 212, 14, 14, fill=colour), text(x + 20, 224, words)]
    body.append(text(842, 224, "empty: the bubble", anchor="end", fill=MUTED))
    return Picture(860, 236, "1F1B lets go of a part sooner, in the same time", PIPELINE_SCHEDULES, tuple(body), 1)


PIPELINE_SCHEDULES = (
    "Two ranks, four parts. Under GPipe all forwards come first, then all backwards. Under 1F1B each rank alternates. "
    "Both take equally long."
)


def warp() -> Picture:
    """A warp at an if/else: what its 32 threads do where all of them agree, and where a few do not."""
    body, side = [], 12
    for x, words, some in ((118, "all 32 threads agree", 32), (500, "5 take the if, 27 the else", 5)):
        body.append(text(x, 20, words, weight="bold"))
        for y, runs, fill in ((32, range(some), SKY), (72, range(some, 32), ORANGE)):
            body += [
                bar(x + (side - 2) * i, y, side - 4, 28, fill=fill)
                if i in runs
                else rect(x + (side - 2) * i, y, side - 4, 28, stroke=MUTED)
                for i in range(32)
                if runs
            ]
    body += [
        text(18, 51, "if"),
        text(18, 91, "else"),
        text(118, 91, "not run", fill=MUTED),
        text(118, 126, "filled: the thread computes; empty: it is switched off, and its lane idle", fill=MUTED),
    ]
    return Picture(860, 138, "A warp whose threads disagree runs both sides", WARP, tuple(body), 1)


def four_numbers() -> Picture:
    """What the driver, PyTorch's reserve, its allocated blocks and a tensor count, one inside the other."""
    rows = (
        ("the driver's", "the whole GPU, all processes, the CUDA context", MUTED),
        ("reserved", "what PyTorch has fetched from the driver", BLUE),
        ("allocated", "blocks of live tensors", GREEN),
        ("the tensor", "its own numbers", ORANGE),
    )
    body = []
    for i, (name, words, color) in enumerate(rows):
        x, y = 18 + 24 * i, 8 + 36 * i
        body += [
            rect(x, y, 824 - 120 * i, 190 - 46 * i, fill=PAPER, stroke=color, radius=8),
            text(x + 14, y + 25, name, weight="bold"),
            text(x + 120, y + 25, words),
        ]
    return Picture(860, 206, "Four numbers, one inside the other", FOUR_NUMBERS, tuple(body), 1)


def buckets_in_steps() -> Picture:
    """Two training steps: when each of the four kinds of tensors is there."""
    names, phases = ("weights", "gradients", "optimizer state", "activations"), ("forward", "backward", "step()")
    left, wide, gap = 150, 112, 14
    body = [text(18, 54 + 40 * i, name, weight="bold") for i, name in enumerate(names)]
    body.append(bar(left, 36, 6 * wide + gap, 28, fill=BLUE))
    for number in (0, 1):
        x = left + number * (3 * wide + gap)
        middle, end = x + wide, x + 2 * wide
        body += [text(x + wide * (i + 0.5), 22, name, anchor="middle") for i, name in enumerate(phases)]
        body += [
            shape([(middle, 104), (end, 76), (end + wide, 76), (end + wide, 104)], fill=ORANGE, stroke=INK),
            shape([(x, 184), (middle, 156), (end, 184)], fill=SKY, stroke=INK),
            line(x + 3 * wide + gap / 2, 30, x + 3 * wide + gap / 2, 190, stroke=MUTED, dash="4 4")
            if not number
            else "",
        ]
    start = left + 2 * wide
    body.append(bar(start, 116, 4 * wide + gap, 28, fill=GREEN))
    body.append(
        text(left, 210, "dashed: zero_grad(); how high a row is tells when it fills, not how large it is", fill=MUTED)
    )
    return Picture(
        860, 222, "Not all buckets are full at the same time", BUCKETS_IN_STEPS, tuple(filter(None, body)), 1
    )


def notebook_holds() -> Picture:
    """What IPython keeps of a cell that failed and of one that showed a tensor, and what lets go of it."""
    rows = (
        ("sys.last_traceback", "the last uncaught error", "frames of attempt()", "x, input, the graph", ORANGE),
        ("Out, _, _23", "what a cell ended with", "features", "the tensor", ORANGE),
        ("features", "the name that you gave", "features", "the same tensor", BLUE),
    )
    ends = (
        "until another error and gc.collect()",
        "until %xdel features, with the name",
        "until del features; the others stay",
    )
    body = []
    for i, (head, words, what, held, color) in enumerate(rows):
        y = 8 + 66 * i
        body += [*_box(18, y, 190, head, words, color), *_arrow(208, 256, y + 26, "", 3)]
        body += [*_box(258, y, 220, what, held, GREEN), text(500, y + 31, ends[i])]
    return Picture(860, 206, "A notebook holds more than your names do", NOTEBOOK_HOLDS, tuple(body), 1)


def second_step() -> Picture:
    """The peaks of two steps with Adam at a batch that passes the first: 100 million parameters, 112,000 samples."""
    # MiB, virtual: gpulab.memory.peak of forward and backward on a larger GPU; a T4 has 14,793 beside the context
    left, per_mib, room = 110, 0.047, 14_793
    body = []
    for y, name, moments, words in ((30, "step 1", 0, "14,668 MiB"), (84, "step 2", 768, "15,436 MiB")):
        x = float(left)
        body.append(text(18, y + 24, name, size=HEAD, weight="bold"))
        for mib, fill in ((384, BLUE), (moments, GREEN), (14_284, SKY)):
            body.append(bar(x, y, mib * per_mib, 36, fill=fill, hatched=fill == GREEN))
            x += mib * per_mib
        body.append(text(left + 360, y + 24, words, anchor="middle", weight="bold", fill=ON))
    x = left + room * per_mib
    body += [line(x, 10, x, 132, stroke=INK, width=3), text(x - 8, 20, "a T4 has 14,793 MiB (virtual)", anchor="end")]
    for x, words, fill in (
        (110, "weights", BLUE),
        (230, "Adam's moments", GREEN),
        (410, "what grows with the batch", SKY),
    ):
        body += [bar(x, 138, 14, 14, fill=fill, hatched=fill == GREEN), text(x + 20, 150, words)]
    return Picture(860, 164, "What fits in the first step fails in the second", SECOND_STEP, tuple(body), 1)


def window_overflow() -> Picture:
    """A window of four micro-batches with a gradient scaler: all finite, and one with an inf."""
    body = []
    for y, name, good in ((34, "no overflow", True), (104, "an overflow", False)):
        body.append(text(18, y + 26, name, weight="bold"))
        for i in range(4):
            bad = not good and i == 2
            body += [
                bar(120 + 62 * i, y, 54, 40, fill=ORANGE if bad else SKY, hatched=bad),
                text(
                    147 + 62 * i,
                    y + 25,
                    "inf" if bad else str(i + 1),
                    anchor="middle",
                    fill=INK if bad else ON,
                    halo=bad,
                ),
            ]
        ends = ("finite", "steps", "keeps scale", "steps") if good else ("inf", "skips", "halves scale", "waits")
        for i, words in enumerate(ends):
            x = 392 + 115 * i
            body += [
                rect(x, y, 104, 40, fill=PAPER, stroke=GREEN if good else ORANGE, radius=4),
                text(x + 52, y + 25, words, anchor="middle"),
            ]
    body.append(text(120, 22, "scale(loss).backward()", fill=MUTED))
    for i, words in enumerate((".grad", "step(optimizer)", "update()", "schedule")):
        body.append(text(444 + 115 * i, 22, words, anchor="middle", fill=MUTED))
    return Picture(860, 156, "One overflow costs the whole window", WINDOW_OVERFLOW, tuple(body), 1)


def loader_and_gpu() -> Picture:
    """A loader without workers beside a T4 and an H100, and a loop that waits in each step, in ms."""
    # 130 ms a batch of the loader: recorded; a ResNet-18's steps of 32 images in fp32: virtual
    per_ms, left, load = 0.8, 150, 130
    rows = (("T4", 239, False), ("H100", 19, False), ("T4, with a wait", 239, True))
    body = []
    for row, (name, step, waits) in enumerate(rows):
        y, loads, computes = 8 + 74 * row, 0.0, 0.0
        body.append(text(18, y + 20, name, weight="bold"))
        while loads + load <= 860:
            begin = max(loads + load, computes)
            for at, ms, lane, fill in ((loads, load, 0, ORANGE), (begin, step, 1, GREEN)):
                width = min(ms, 870 - at) * per_ms
                body.append(bar(left + at * per_ms, y + 28 * lane, width, 24, fill=fill))
            loads, computes = begin + (step if waits else 0), begin + step
    for x, words, fill in (
        (150, "the host loads: 130 ms (recorded)", ORANGE),
        (440, "the GPU computes: 239 or 19 ms (virtual)", GREEN),
    ):
        body += [bar(x, 228, 14, 14, fill=fill), text(x + 20, 240, words)]
    return Picture(860, 252, "The longer of the two times counts, if nobody waits", LOADER_AND_GPU, tuple(body), 1)


def stream_parts() -> Picture:
    """Which lines of a stream each of two workers of each of two ranks keeps."""
    body = []
    for number in range(4):
        y = 8 + 36 * number
        rank, worker = divmod(number, 2)
        body.append(text(18, y + 20, f"rank {rank}, worker {worker}: number {number}"))
        for i in range(12):
            x, kept = 240 + 50 * i, i % 4 == number
            body += [
                bar(x, y, 42, 28, fill=SKY) if kept else rect(x, y, 42, 28, stroke=MUTED, dash="4 4"),
                text(
                    x + 21, y + 20, str(i), anchor="middle", weight="bold" if kept else "", fill=ON if kept else MUTED
                ),
            ]
    body.append(text(240, 170, "line i is kept where i % 4 is the number; dashed: read and dropped", fill=MUTED))
    return Picture(860, 182, "All workers read every line, and each keeps its part", STREAM_PARTS, tuple(body), 1)


def nested_ranges() -> Picture:
    """Ranges of a profile, one in another, with the kernels that they launch: self and total of each."""
    body = [text(590, 20, "Self CUDA", weight="bold"), text(720, 20, "CUDA total", weight="bold")]
    rows = (
        ("forward", ((120, 430),), "0 ms", "3 + 2 ms"),
        ("linear", ((132, 220),), "0 ms", "3 ms"),
        ("addmm", ((150, 180),), "3 ms", "3 ms"),
        ("relu", ((390, 120),), "2 ms", "2 ms"),
    )
    for i, (name, spans, alone, total) in enumerate(rows):
        y = 32 + 36 * i
        body += [text(18, y + 20, name), text(590, y + 20, alone), text(720, y + 20, total)]
        for x, wide in spans:
            body.append(bar(x, y, wide, 28, fill=SKY if alone != "0 ms" else PAPER))
    body.append(text(18, 204, "the GPU", weight="bold"))
    for x, wide, words, source in ((250, 150, "kernel: 3 ms", (240, 132)), (450, 100, "kernel: 2 ms", (430, 168))):
        body += [
            bar(x, 186, wide, 28, fill=GREEN),
            text(x + wide / 2, 205, words, anchor="middle", fill=ON),
            line(source[0], source[1], x + 4, 186, stroke=INK, width=2, dash="5 4"),
        ]
    body.append(text(590, 204, "dashed: launches; an example", fill=MUTED))
    return Picture(860, 226, "A kernel counts once as self, and in each total around it", NESTED_RANGES, tuple(body), 1)


def fusion() -> Picture:
    """Memory traffic of a GELU of nine operations: one kernel for each, and one for all."""
    body, names = [], ("x + bias", "h³", "a · h³", "h + …", "b · …", "tanh", "1 + …", "0.5 · h", "… · …")
    body += [text(18, 30, "as written", weight="bold"), text(18, 134, "fused", weight="bold")]
    reads = (1, 1, 1, 2, 1, 1, 1, 1, 2)
    for i, (name, count) in enumerate(zip(names, reads, strict=True)):
        x = 118 + 82 * i
        body += [bar(x, 8, 74, 34, fill=SKY), text(x + 37, 30, name, anchor="middle", fill=ON)]
        for arrow in range(count):
            body += _upright(x + 14 + 14 * arrow, 74, 44)
        body += _upright(x + 58, 44, 74)
    body += [bar(118, 112, 730, 34, fill=SKY), text(483, 134, "all nine, in registers", anchor="middle", fill=ON)]
    body += [*_upright(132, 178, 148), *_upright(832, 148, 178)]
    for y, words in (
        (76, "memory: a tensor is read 11 times, and written 9 times"),
        (180, "memory: read once, written once"),
    ):
        body += [rect(118, y, 730, 24, fill=PAPER, stroke=GREEN), text(483, y + 17, words, anchor="middle")]
    return Picture(860, 212, "A fused kernel reads once and writes once", FUSION, tuple(body), 1)


def _upright(x: float, start: float, end: float) -> list[str]:
    tip = 8 if end > start else -8
    points = [(x, end), (x - 5, end - tip), (x + 5, end - tip)]
    return [line(x, start, x, end - tip, stroke=INK, width=2), shape(points, fill=INK)]


def processes() -> Picture:
    """Four ranks on two machines: what numbers each process has, and what it holds."""
    body = []
    for machine in range(2):
        x = 18 + 424 * machine
        body += [
            rect(x, 8, 400, 132, stroke=BLUE, radius=8),
            text(x + 14, 32, f"machine {machine}: torchrun starts two", weight="bold"),
        ]
        for local in range(2):
            rank = 2 * machine + local
            body += _box(x + 14 + 190 * local, 46, 180, f"RANK {rank}", f"LOCAL_RANK {local}: cuda:{local}", GREEN)
            body.append(
                text(x + 104 + 190 * local, 122, f"its part: {rank}, {rank + 4}, {rank + 8}, …", anchor="middle")
            )
    body += [
        line(122, 140, 122, 160, stroke=INK, width=3),
        line(312, 140, 312, 160, stroke=INK, width=3),
        line(546, 140, 546, 160, stroke=INK, width=3),
        line(736, 140, 736, 160, stroke=INK, width=3),
        line(122, 160, 736, 160, stroke=INK, width=3),
        text(429, 182, "gradients: averaged over all four", anchor="middle"),
    ]
    return Picture(860, 194, "Each rank is a process with a GPU and all weights", PROCESSES, tuple(body), 1)


def past_ddp() -> Picture:
    """A forward pass through DistributedDataParallel, and one past it: what becomes of the gradients."""
    body = []
    for y, name, through in ((8, "model(x)", True), (86, "model.module(x)", False)):
        body.append(text(18, y + 31, name, weight="bold"))
        if through:
            body += [
                *_arrow(164, 194, y + 26, "", 3),
                *_box(196, y, 154, "DDP.forward", "readies its buckets", BLUE),
                *_arrow(350, 384, y + 26, "", 3),
            ]
        else:
            body += _arrow(164, 384, y + 26, "", 3)
        color = GREEN if through else ORANGE
        words = ("gradients averaged", "equal on all ranks") if through else ("nothing exchanged", "each rank its own")
        body += [
            *_box(386, y, 180, "the module", "forward, backward", GREEN),
            *_arrow(566, 652, y + 26, "", 3),
            *_box(654, y, 188, *words, color),
        ]
    return Picture(860, 148, "Only a call through DDP leads to an exchange", PAST_DDP, tuple(body), 1)


def resharded() -> Picture:
    """Twelve rows of a weight: the files of the two ranks that saved them, and what one rank and three ranks read."""
    body, left, wide = [], 200, 52
    groups = (("saved on two", 2, "file of rank"), ("loaded on one", 1, "rank"), ("loaded on three", 3, "rank"))
    for i, (name, ranks, who) in enumerate(groups):
        y, each = 8 + 68 * i, 12 // ranks
        body.append(text(18, y + 23, name, weight="bold"))
        for row in range(12):
            body.append(bar(left + wide * row, y, wide - 4, 34, fill=SKY if row < 6 else ORANGE))
            body.append(text(left + wide * row + (wide - 4) / 2, y + 23, f"{row}", anchor="middle", fill=ON))
        for rank in range(ranks):
            x = left + wide * each * rank
            body.append(line(x, y + 40, x + wide * each - 6, y + 40, stroke=INK, width=3))
            body.append(text(x + wide * each / 2, y + 56, f"{who} {rank}", anchor="middle"))
    return Picture(860, 210, "Each rank reads its rows, from whichever file has them", RESHARDED, tuple(body), 1)


def place_in_epoch() -> Picture:
    """The third epoch of a run that is interrupted after 8 of its 15 batches, and two ways to go on."""
    rows = (
        ("until step 38", range(8), ""),
        ("place forgotten", range(15), "8 come twice"),
        ("with done = 8", range(8, 15), ""),
    )
    body = []
    for i, (name, made, words) in enumerate(rows):
        y = 8 + 44 * i
        body.append(text(18, y + 22, name, weight="bold"))
        for batch in range(15):
            x, again = 150 + 38 * batch, bool(words) and batch < 8
            ink = MUTED if batch not in made else INK if again else ON
            body += [
                bar(x, y, 34, 32, fill=ORANGE if again else SKY, hatched=again)
                if batch in made
                else rect(x, y, 34, 32, stroke=MUTED, dash="4 4"),
                text(x + 17, y + 22, str(batch), anchor="middle", fill=ink, halo=again),
            ]
        body.append(text(732, y + 22, words))
    return Picture(
        860, 140, "The place in the data: the epoch, and how many batches are done", PLACE_IN_EPOCH, tuple(body), 1
    )


def restart() -> Picture:
    """Two ranks under torchrun: a kill in step 25, a start from the checkpoint of step 20, and a notice."""
    left, per_step, again, body = 110, 13.0, 580, []
    for rank in range(2):
        y = 44 + 52 * rank
        body += [
            text(18, y + 24, f"rank {rank}", size=HEAD, weight="bold"),
            bar(left, y, 20 * per_step, 36, fill=SKY),
            bar(left + 20 * per_step, y, 5 * per_step, 36, fill=ORANGE, hatched=True),
            text(left + 25 * per_step + 8, y + 25, "✘" if rank else "ended", weight="bold"),
            bar(again, y, 3 * per_step, 36, fill=ORANGE, hatched=True),
            text(again + 50, y + 25, "a notice: saves, ends with 0"),
        ]
    for x, words in ((left + 10 * per_step, "step 10"), (left + 20 * per_step, "step 20")):
        body += [line(x, 36, x, 140, stroke=INK, width=3), text(x, 28, f"{words}: saved", anchor="middle")]
    body += [
        text(left + 25 * per_step + 8, 28, "rank 1 is killed"),
        text(again, 28, "from step 20"),
        text(left, 164, "hatched: steps after the last checkpoint, made twice; torchrun ends rank 0 too", fill=MUTED),
    ]
    return Picture(860, 176, "All that the new ranks know is the last checkpoint", RESTART, tuple(body), 1)


WARP = "All 32 threads of a warp agree: one side runs. Five disagree: both sides run, one after the other."
FOUR_NUMBERS = (
    "The driver's number has all processes and the CUDA context; in it is what PyTorch reserved; in that the blocks "
    "of live tensors; in one the tensor."
)
BUCKETS_IN_STEPS = (
    "Two steps. Weights are always there, gradients from backward to zero_grad, optimizer state from the first step "
    "on, activations from forward to backward."
)
NOTEBOOK_HOLDS = (
    "The last traceback holds frames, x, input and the graph. Out, _ and _23 hold features, and so does its own name."
)
SECOND_STEP = "Peaks with 112,000 samples: 14,668 MiB in step 1, 15,436 in step 2, of 14,793 on a T4."
WINDOW_OVERFLOW = (
    "With an inf in the third of four micro-batches .grad is inf, the step is skipped, the scale halved, "
    "and the schedule waits."
)
LOADER_AND_GPU = "The T4 computes all the time, the H100 seldom; with a wait the times add up."
STREAM_PARTS = "Of 12 lines each of four workers keeps every fourth."
NESTED_RANGES = "Forward holds linear and relu; addmm, within linear, and relu launch kernels."
FUSION = "As written: nine kernels that each read and write memory. Fused: one."
PROCESSES = "Two machines, two ranks each, with a GPU and all weights."
PAST_DDP = "model(x) goes through DDP, and gradients are exchanged; model.module(x) goes past it."
RESHARDED = "Twelve rows in the files of two ranks; one rank reads both files; of three ranks, rank 1 reads both."
PLACE_IN_EPOCH = "Of 15 batches 8 are done. Without the place all 15 follow, with it the other 7."
RESTART = "Saved at steps 10 and 20, killed in step 25. The new ranks go on from step 20 until a notice comes."
TEXTS: dict[str, Callable[[], Picture]] = {  # of lectures' texts
    "host_and_gpu": host_and_gpu,
    "who_holds": who_holds,
    "gpu_memories": gpu_memories,
    "bytes_in_flight": bytes_in_flight,
    "staging": staging,
    "two_streams": two_streams,
    "registered": registered,
    "optimizer_state": optimizer_state,
    "visible_devices": visible_devices,
    "late_error": late_error,
    "format_bits": format_bits,
    "cast_in_graph": cast_in_graph,
    "windows": windows,
    "weights": weights,
    "real_steps": real_steps,
    "straggler": straggler,
    "dealing": dealing,
    "parted": parted,
    "signals": signals,
    "zero_stages": zero_stages,
    "pipeline_schedules": pipeline_schedules,
    "warp": warp,
    "four_numbers": four_numbers,
    "buckets_in_steps": buckets_in_steps,
    "notebook_holds": notebook_holds,
    "second_step": second_step,
    "window_overflow": window_overflow,
    "loader_and_gpu": loader_and_gpu,
    "stream_parts": stream_parts,
    "nested_ranges": nested_ranges,
    "fusion": fusion,
    "processes": processes,
    "past_ddp": past_ddp,
    "resharded": resharded,
    "place_in_epoch": place_in_epoch,
    "restart": restart,
}
