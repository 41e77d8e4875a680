"""The check of `GPUMemoryTracker`: scenes with known peaks, then random traces beside gpulab's own tracker.

Each scene runs the student's class on two virtual GPUs and reads its values; a wrong one is compared with what each
known mistake would have given. The truth is the scene's own log of what was allocated.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import torch

from ...memory.tracker import GPUMemoryTracker
from ..base import Trial, check
from ..wording import show
from . import traces
from .common import TRACKER, gpus
from .scenes import NAMES, Make, Scenes, explain, read
from .scenes_block import again, frees, one_block, read_early
from .scenes_errors import exception, kernel_error, out_of_memory
from .scenes_gpus import devices, nested_devices, synchronises, without_a_gpu
from .scenes_nested import another_thread, crossed, deeply_nested, entered_twice, nested, tower

SCENES: tuple[Callable[[Scenes], None], ...] = (
    one_block,
    frees,
    again,
    nested,
    deeply_nested,
    tower,
    entered_twice,
    exception,
    out_of_memory,
    read_early,
    devices,
    nested_devices,
    without_a_gpu,
    synchronises,
    kernel_error,
    another_thread,
    crossed,
)


@check(
    lesson=4,
    says="exact when nested, on several GPUs, on none, after errors; as gpulab's own on 40 random traces",
    imports=["torch.fx.experimental.symbolic_shapes"],
)
def memory_tracker(student: Any, trial: Trial) -> None:
    """Check the class GPUMemoryTracker(device=None): a context manager for the peak and the change of allocated GPU
    memory, `peak_memory_mb` and `memory_delta_mb` in MiB, with the other values of its docstring."""
    _is_a_class(student, trial)
    scenes = Scenes(student, trial)
    for scene in SCENES:
        scene(scenes)
    _random_traces(scenes)


def _is_a_class(student: Any, trial: Trial) -> None:
    wanted = "the class GPUMemoryTracker, to be used as `with GPUMemoryTracker() as tracker:`"
    if student is None:
        trial.fail("there is nothing to check: the object is None", expected=wanted, got="None")
    if not callable(student) or (hasattr(type(student), "__enter__") and not inspect.isclass(student)):
        trial.fail(
            "an object came where the class is wanted",
            expected=wanted,
            got=show(student),
            likely="pass GPUMemoryTracker itself, without parentheses: the check makes trackers of its own",
        )

    def make_one() -> Any:
        return student()

    with gpus(2):
        tracker = trial.call(make_one, who="your tracker", explain=explain)
    missing = [name for name in ("__enter__", "__exit__") if not hasattr(type(tracker), name)]
    trial.expect(
        not missing,
        "what it makes is no context manager",
        expected="an object with __enter__ and __exit__",
        got=f"{show(tracker)}, without {' and '.join(missing)}",
        likely="`with` calls these two methods of the class; their names have two underscores on both sides",
        read=TRACKER,
    )


def _random_traces(scenes: Scenes) -> None:
    """Forty traces of allocations, frees and nested trackers, the short ones first; ten after each other on the same
    GPUs, so that what one leaves meets the next."""
    drawn = sorted((traces.draw(random.randrange(8, 60)) for _ in range(40)), key=len)
    with gpus(2):
        want = [_played(trace, GPUMemoryTracker, traces.read_own) for trace in drawn]
    for first in range(0, len(drawn), 10):
        some = slice(first, first + 10)
        with gpus(2):
            for trace, right in zip(drawn[some], want[some], strict=True):
                _judge_trace(scenes, trace, right)


def _played(trace: traces.Trace, make: Make, read: Callable[[Any], Any]) -> list[tuple[str, Any]]:
    with torch.cuda.device(0):  # a trace sets another one
        return traces.play(trace, make, read)


def _judge_trace(scenes: Scenes, trace: traces.Trace, want: list[tuple[str, Any]]) -> None:
    found = scenes.trial.call(lambda: _played(trace, scenes.student, read), who="your tracker", explain=explain)
    for (name, got), (_, right) in zip(found, want, strict=True):
        scenes.has_all(got)
        for value in NAMES[1:]:
            scenes.trial.expect(
                traces.agree(got[value], right[value]),
                f"on a random trace {value} is not what gpulab's own tracker finds",
                expected=f"{traces.text(right[value])} for tracker {name}",
                got=traces.text(got[value]),
                likely=f"the trace (MiB@GPU, ^ is a spike): {traces.describe(trace)}",
                read=TRACKER,
            )
