"""Provides the capstone's probes with a finding, an observed model, and counts of waits and bytes.

The functions of the script are given this model, these batches and this optimizer, so that a fault elsewhere in the
script does not show in what they do.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import nn

from gpulab.capstone.faults import sound
from gpulab.exercise.measure import virtual_gpu
from virtualgpu.clock.clock import Clock
from virtualgpu.clock.timeline import Timeline
from virtualgpu.observe import observe
from virtualgpu.scope import in_force

WORDS = 32
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Finding:
    """What a probe found at one place: whether it is as promised, what was measured, and if not, what that means."""

    right: bool
    measured: str
    means: str = ""
    likely: str = ""


def found(measured: str, *wrong: tuple[Any, str, str]) -> Finding:
    """A finding with the first of the `wrong` (whether it is so, what that means, what likely led to it) that is so."""
    for so, means, likely in wrong:
        if so:
            return Finding(False, measured, means, likely)
    return Finding(True, measured)


def module_of(text: str, path: str) -> types.ModuleType:
    """The script as a module; its `main` is not run. Raises what the script raises."""
    module = types.ModuleType("capstone_script")
    module.__file__ = path
    with mock.patch.dict(sys.modules, {module.__name__: module}):  # where dataclasses looks for it
        exec(compile(text, path, "exec"), module.__dict__)
    return module


@cache
def sound_module() -> types.ModuleType:
    return module_of(sound(), "sound.py")


class Toy(nn.Module):
    """A small model of words that calls `look(self)` at each forward pass; its scores are `sharp` times as large.

    With `layers`, so many hidden ones whose outputs are kept for backward.
    """

    def __init__(
        self, look: Callable[[Toy], Any] = lambda toy: None, *, width: int = 16, layers: int = 0, sharp: float = 1.0
    ) -> None:
        super().__init__()
        self.look, self.sharp, self.calls = look, sharp, 0
        self.overflows: Sequence[int] = ()  # the calls whose gradients are infinite
        self.embed = nn.Embedding(WORDS, width)
        self.hidden = nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())])
        self.head = nn.Linear(width, WORDS)
        self.to("cuda")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.look(self)
        scores: torch.Tensor = self.head(self.hidden(self.embed(tokens))) * self.sharp
        if self.calls in self.overflows and scores.requires_grad:
            scores.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
        self.calls += 1
        return scores


def batches_of(*rows: int, length: int = 8) -> list[Batch]:
    """Batches on the GPU with so many rows each, of words drawn afresh."""
    return [(torch.randint(WORDS, (n, length)).cuda(), torch.randint(WORDS, (n, length)).cuda()) for n in rows]


@dataclass
class Training:
    """What `train` is given besides the batches: by default SGD that changes nothing, and a scaler that is off."""

    model: Toy
    scale: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        self.scaler = torch.amp.GradScaler("cuda", enabled=bool(self.scale), init_scale=self.scale or 1.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: 1.0)
        self.gradients: list[torch.Tensor] = []  # at each update, in one row
        self.optimizer.register_step_pre_hook(lambda *_: self.gradients.append(gradient_of(self.model)))

    def run(self, script: Any, batches: list[Batch], accumulate: int = 1) -> Any:
        return script.train(self.model, iter(batches), self.optimizer, self.scaler, self.schedule, accumulate)


def gradient_of(model: nn.Module) -> torch.Tensor:
    """The gradients of all parameters, in one row on the CPU; zeros where there is none."""
    rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([row.detach().float().flatten() for row in rows]).cpu()


def clock() -> Clock:
    """That of the virtual GPU in force."""
    assert in_force.current is not None
    return in_force.current.clock


def timeline() -> contextlib.AbstractContextManager[Timeline]:
    """What runs on the virtual GPU in force within the block."""
    assert in_force.current is not None
    return in_force.current.timeline()


def busy(seconds: float = 1.0) -> None:
    """Queue so much work on the GPU: whoever waits for it, waits long."""
    clock().devices[0].kernel(0, seconds, "work")


@contextlib.contextmanager
def waits() -> Iterator[list[float]]:
    """The seconds of each wait of the host within the block; not those for room in the launch queue."""
    assert in_force.current is not None
    seen = list[float]()

    def note(name: str, seconds: float) -> None:
        if "queue" not in name:
            seen.append(seconds)

    with observe(in_force.current, wait=note):
        yield seen


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """A T4 without values: models of real size take a moment."""
    with virtual_gpu(compute=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with compute=False")  # no value is looked at here
        yield


def held() -> int:
    """Bytes allocated on the GPU."""
    return torch.cuda.memory_allocated()


def mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if abs(nbytes) >= 2**17 else f"{nbytes:,.0f} bytes"


def products(run: Callable[[], Any]) -> tuple[float, float]:
    """TFLOP/s of the matrix products in `run()`, and of the largest of them alone."""
    with timeline() as trace:
        run()
    spans = [span for span in trace.spans if span.where == "kernels" and span.flops]
    if not spans:
        return 0.0, 0.0
    largest = max(spans, key=lambda span: span.flops)
    whole = sum(span.flops for span in spans) / sum(span.seconds for span in spans)
    return whole / 1e12, largest.flops / largest.seconds / 1e12
