"""What the virtual GPU costs: figures for `bench.py`, measured side by side with the plain CPU and torch's MemTracker.

One training step of ResNet-50 is the load; steps of the three kinds are taken in turns, and each figure is a median.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter  # the real one, whatever a virtual GPU makes of it
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Figures = Iterator[tuple[str, float | None, str, float | None, str]]  # name, value, unit, target, note


def figures(*, quick: bool) -> Figures:
    yield from steps(batch=2 if quick else 8, side=32 if quick else 224, rounds=1 if quick else 7)
    yield from single_operations(repeats=100 if quick else 20_000)
    yield from clock(repeats=100 if quick else 20_000)
    yield from tracker(repeats=30 if quick else 3_000)
    yield from without_values(rounds=1 if quick else 9)
    if not quick:
        yield from planning()
        yield from accuracy()
        yield from speed()


def steps(batch: int, side: int, rounds: int) -> Figures:
    """A step plain, on the virtual GPU and under MemTracker, and what each adds per operation."""
    import torch
    import torchvision
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn.functional import cross_entropy
    from torch.utils._python_dispatch import TorchDispatchMode

    from gpulab import VirtualGPU

    torch.manual_seed(0)

    def trainee(device: str) -> Callable[[], None]:
        model = torchvision.models.resnet50().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
        x, y = torch.randn(batch, 3, side, side).to(device), torch.zeros(batch, dtype=torch.long).to(device)

        def step() -> None:
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations += 1
            return func(*args, **(kwargs or {}))

    plain = trainee("cpu")
    count = Count()  # type: ignore[no-untyped-call]
    with count:
        plain()

    def tracked() -> None:
        with MemTracker():
            plain()

    gpu = VirtualGPU("T4")
    gpu.start()
    virtual = trainee("cuda")
    times: dict[str, list[float]] = {"plain": [], "virtual": [], "tracked": []}
    try:
        for turn in range(rounds + 1):
            seconds = {"virtual": _seconds(virtual)}
            with gpu.suspended(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds |= {"plain": _seconds(plain), "tracked": _seconds(tracked)}
            for name, value in seconds.items() if turn else ():  # the first round warms up
                times[name].append(value)
    finally:
        gpu.stop()
    median = {name: statistics.median(values) for name, values in times.items()}
    paired = [v / p for v, p in zip(times["virtual"], times["plain"], strict=True)]
    what = f"ResNet-50, {batch}x{side}x{side}, {count.operations} operations"
    yield "training step on the plain CPU", median["plain"], "s", None, what
    yield "training step on the virtual GPU, against the plain CPU", statistics.median(paired), "x", 1.1, what
    for name, label, target in (("virtual", "the virtual GPU", 10.0), ("tracked", "torch's MemTracker", None)):
        added = statistics.median(
            (a - p) / count.operations * 1e6 for a, p in zip(times[name], times["plain"], strict=True)
        )
        yield f"added per operation of that step by {label}", added, "us", target, "difference of whole steps"


def single_operations(repeats: int) -> Figures:
    """What an operation on a tiny tensor takes more than on the plain CPU."""
    import torch

    from gpulab import VirtualGPU

    def costs(x: Any) -> dict[str, float]:
        actions: dict[str, Callable[[], Any]] = {
            "addition": lambda: x + x,
            "view": lambda: x.view(16),
            "in place": lambda: x.relu_(),
        }
        return {name: _per_call(action, repeats) for name, action in actions.items()}

    plain = costs(torch.zeros(4, 4))
    with VirtualGPU("T4"):
        virtual = costs(torch.zeros(4, 4, device="cuda"))
    for name, value in virtual.items():
        yield f"added to one operation on the virtual GPU: {name}", value - plain[name], "us", 10.0, "4x4 tensors"


def clock(repeats: int) -> Figures:
    """What the clock takes of that: an addition with it, and with what it costs left out."""
    import torch

    from gpulab import VirtualGPU
    from virtualgpu.operations import cost

    with VirtualGPU("T4"):
        x = torch.zeros(4, 4, device="cuda")
        own, times = cost.charge, {}
        for name, charge in (("with", own), ("without", lambda *args: None)):
            cost.charge = charge
            try:
                times[name] = _per_call(lambda: x + x, repeats)
            finally:
                cost.charge = own
    yield "of it, the clock: addition", times["with"] - times["without"], "us", None, "without: no cost, no launch"


def planning() -> Figures:
    """Training steps of billions of weights, planned in processes of their own, imports included; the best of three."""
    script = ROOT / "tests" / "virtualgpu" / "planning" / "seven_billion.py"
    for mode, model, most_seconds, most_bytes in (
        ("bfloat16", "a 7B model made on the GPU", 6.0, 900.0),
        ("host", "a 7B model made on the host", 6.0, 900.0),
        ("config", "Llama-3-8B from a configuration of transformers", 15.0, 1200.0),
        ("seventy", "a 70B model made on the host", 60.0, None),
    ):
        found = []
        for _ in range(3):
            done = subprocess.run([sys.executable, str(script), mode], capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        best = min(found, key=lambda row: row["seconds"])
        note = f"{script.name} {mode}, {best['cpu_seconds']:.1f} s of them on the CPU"
        yield f"planning a step of {model}", best["seconds"], "s", most_seconds, note
        yield f"planning a step of {model}, process memory", best["process_bytes"] / 1e6, "MB", most_bytes, script.name


def without_values(rounds: int) -> Figures:
    """A step on shapes alone against the same with values, on networks so small that arithmetic is nothing."""
    import torch
    import torchvision
    from torch import nn
    from torch.nn.functional import cross_entropy

    from gpulab import VirtualGPU

    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 65))

    def trainee(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], None]:
        model = make().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(shape, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.float16):
                out = model(x).flatten(0, -2)
                loss = cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device="cuda"))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    for name, make, shape in (
        ("a transformer of 4 layers", encoder, (4, 64, 64)),
        ("ResNet-18", torchvision.models.resnet18, (2, 3, 32, 32)),
    ):
        times = {}
        for compute in (True, False):
            with VirtualGPU("T4", compute=compute), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step = trainee(make, shape)
                times[compute] = statistics.median([_seconds(step) for _ in range(rounds + 2)][2:])
        note = f"{times[False] * 1e3:.1f} ms and {times[True] * 1e3:.1f} ms here"
        yield f"a step of {name} on shapes alone, against with values", times[False] / times[True], "x", 1.0, note


def speed() -> Figures:
    """How far predicted speeds are from published ones, the median of each set."""
    from evidence.report import early, others, timm_sets

    errors = [100 * abs(done.error) for done in early() if done.row.unit == "samples/s"]
    note = f"{len(errors)} published speeds; the whole table: tools/accuracy.py"
    yield "prediction of ResNet-50 and BERT-large, median error", statistics.median(errors), "%", 20.0, note
    for sets, target in ((timm_sets(8, 2), 10.0), (others()[0], 15.0)):
        for found in sets:
            errors = [100 * abs(done.error) for done in found.rows]
            note = f"{len(errors)} published speeds" + (f", {len(found.failed)} do not run" if found.failed else "")
            if errors:
                yield f"prediction of {found.name}, median error", statistics.median(errors), "%", target, note


def tracker(repeats: int) -> Figures:
    """Entering and leaving a GPUMemoryTracker, without its two synchronisations."""
    import torch

    from gpulab import GPUMemoryTracker, VirtualGPU

    def use() -> None:
        with GPUMemoryTracker():
            return

    with VirtualGPU("T4"):
        torch.zeros(1, device="cuda")
        whole = _per_call(use, repeats)
        waiting = _per_call(torch.cuda.synchronize, repeats)
    yield "GPUMemoryTracker, enter and exit on the virtual GPU", whole - 2 * waiting, "us", 10.0, "beyond synchronize"


def accuracy() -> Figures:
    """How far predicted peaks of training steps are from those of PyTorch's CUDA code on a T4 of the stand-in."""
    from accuracy import stand_in_rows

    rows = list(stand_in_rows("7.5"))
    note = f"{len(rows)} training steps; the whole table: tools/accuracy.py"
    for name, target, pairs in (
        ("peak allocated", 3.0, [row.allocated for row in rows]),
        ("peak reserved", 5.0, [row.reserved for row in rows]),
    ):
        errors = [100 * abs(pair.error) for pair in pairs]
        yield f"prediction of {name}, median error", statistics.median(errors), "%", target, note
        yield f"prediction of {name}, worst error", max(errors), "%", 8.0 if "allocated" in name else None, note


def _seconds(action: Callable[[], Any]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


def _per_call(action: Callable[[], Any], repeats: int) -> float:
    """Microseconds of one call: the best of five runs, which is what the machine's other work disturbs least."""

    def run() -> None:
        for _ in range(repeats):
            action()

    return min(_seconds(run) for _ in range(5)) / repeats * 1e6
