"""The pictures of README.md and of the lectures' texts: `python tools/pictures.py` writes docs/pictures/ anew.

Four simulators as they draw themselves, and the memory of two training steps on a virtual GPU. Their alt texts in
README.md are the pictures' own words. A test compares those, and what is drawn to the letter.
"""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpulab
from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, SKY
from virtualgpu.pictures.svg import HEAD, Picture, bar, line, rect, shape, text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
SIMULATORS: dict[str, Callable[[], Any]] = {
    "launch_queue": lambda: gpulab.sim.launch_queue(item=6),
    "allocator": gpulab.sim.allocator,
    "number_formats": lambda: gpulab.sim.number_formats(value=1.1),
    "step_memory": gpulab.sim.step_memory,
}


def drawn(name: str) -> str:
    """The picture as SVG text that stands alone: a simulator's, or one of `TEXTS`."""
    svg: str = TEXTS[name]().text() if name in TEXTS else SIMULATORS[name]().svg()
    return svg + "\n"


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
        *(
            text(599 + 92 * i, 135, words, anchor="middle", fill=INK)
            for i, words in enumerate(("conv", "ReLU", "pool"))
        ),
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
                text(100 + length / 2, y + 5, held, anchor="middle", weight="bold"),
                text(100 + length + 14, y + 5, words),
            ]
        else:
            body.append(text(100 + length + 14, y + 5, f"{words}: {held}"))
    return Picture(860, 190, "A wide memory that answers late must be kept full", BYTES_IN_FLIGHT, tuple(body), 1)


GPU_MEMORIES = (
    "Data paths of an A100 to scale: "
    "registers to lanes 117 TB/s, L1 and shared memory 19.5, L2 7.2, HBM 2.0, PCIe 0.03."
)
BYTES_IN_FLIGHT = (
    "Little's law as two pipes: the A100's is 2039 GB/s wide and 330 ns long and holds 673 kB, "
    "the CPU's is 90 GB/s wide and 90 ns long and holds 8 kB."
)


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
                        text(x + wide / 2, y + 22, f"{abs(part)}", anchor="middle", fill=INK),
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
TEXTS: dict[str, Callable[[], Picture]] = {  # of lectures' texts
    "host_and_gpu": host_and_gpu,
    "who_holds": who_holds,
    "gpu_memories": gpu_memories,
    "bytes_in_flight": bytes_in_flight,
    "zero_stages": zero_stages,
    "pipeline_schedules": pipeline_schedules,
}


def timeline() -> gpulab.memory.MemoryCurve:
    """Two training steps of a GPT of 35 million parameters on a virtual T4."""
    import torch
    from torch.nn import functional as F

    from virtualgpu.validate.models import GPT

    with gpulab.VirtualGPU("T4", compute=False):
        model = GPT(width=512, layers=6, heads=8, vocabulary=16384, length=256).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(8, 256, dtype=torch.long, device="cuda")
        with gpulab.memory.timeline() as recorded:
            for step in (1, 2):
                recorded.mark(f"forward {step}")
                loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
                recorded.mark("backward")
                loss.backward()
                recorded.mark("step")
                optimizer.step()
                optimizer.zero_grad()
                del loss
    curve = recorded.curve
    assert curve is not None
    return curve


def alts(curve: gpulab.memory.MemoryCurve) -> dict[str, str]:
    """Picture -> what it shows, in one sentence."""
    found = {name: make().result.finding for name, make in SIMULATORS.items()}
    words = f"{curve.finding()}; the tensors as bands under the curve, in MiB, {curve.numbers}"
    return found | {"memory_timeline": words}


def with_alts(readme: str, words: dict[str, str]) -> str:
    """README.md with these alt texts; raises ValueError for a picture that it does not show."""
    for name, alt in words.items():
        image = re.compile(rf'(<img src="docs/pictures/{name}\.\w+"[^>]*? alt=")[^"]*(")')
        readme, times = image.subn(lambda found, alt=alt: found[1] + html.escape(alt) + found[2], readme)  # type: ignore[misc]
        if times != 1:
            raise ValueError(f"README.md shows docs/pictures/{name} {times} times, not once")
    return readme


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in (*SIMULATORS, *TEXTS):
        (FOLDER / f"{name}.svg").write_text(drawn(name), encoding="utf-8")
        print(f"docs/pictures/{name}.svg")
    from gpulab.memory import picture

    curve = timeline()
    (FOLDER / "memory_timeline.svg").write_text(picture.draw(curve).text() + "\n", encoding="utf-8")
    print("docs/pictures/memory_timeline.svg")
    readme = ROOT / "README.md"
    readme.write_text(with_alts(readme.read_text(encoding="utf-8"), alts(curve)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
