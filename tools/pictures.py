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

from text_pictures import TEXTS

import gpulab

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
