"""The reader's turns inside lectures: `gpulab.turn.NAME(your_function)` answers in a line or two, and raises nothing.

A turn has no grade and is not kept; the lecture goes on without it. One file per lesson holds its turns.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "what_waits": "lesson01",
    "registered": "lesson02",
    "any_device": "lesson02",
    "held_bytes": "lesson04",
    "lean_step": "lesson04",
    "must_fit": "lesson06",
    "format_for": "lesson07",
    "window_loop": "lesson08",
    "update_count": "lesson08",
    "workers_for": "lesson09",
    "my_part": "lesson09",
    "gpu_batches": "lesson09",
    "three_of_twenty": "lesson10",
    "bottleneck": "lesson10",
    "replayed_batches": "lesson11",
    "one_graph": "lesson11",
    "break_even": "lesson11",
    "dealt_indices": "lesson12",
    "odd_ranks": "lesson12",
    "one_exchange": "lesson12",
    "a_unit_per_block": "lesson13",
    "summand_of_mlp": "lesson13",
    "rest_of_epoch": "lesson14",
    "illness": "lesson14",
    "grows": "lesson15",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"there is no turn {name!r}; the turns are: {', '.join(sorted(_HOME))}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
