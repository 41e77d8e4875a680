"""The table of lessons: number, file name, promise, and the checks of its exercises.

The map of the course, the checks and the progress file all read it. It knows nothing of notebooks' contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lesson:
    """One row of the course. `minutes` is for reading and running the lecture; exercises take as long again."""

    number: int
    slug: str
    promise: str
    minutes: int
    checks: tuple[str, ...] = ()
    questions: int = 0

    @property
    def name(self) -> str:
        return f"{self.number:02d}_{self.slug}"


LESSONS: tuple[Lesson, ...] = (
    Lesson(0, "start_here", "Your machine checked, a first model trained, the map", 15, questions=1),
    Lesson(
        1,
        "why_gpus",
        "Say when a GPU helps, by how much, and why",
        65,
        checks=("layer_cost", "amdahl"),
        questions=5,
    ),
    Lesson(
        2,
        "devices",
        "Write code that runs on any device",
        60,
        checks=("device_agnostic", "model_device", "move_batch", "late_error"),
        questions=6,
    ),
    Lesson(
        3,
        "moving_data",
        "Time what is asynchronous, make transfers cheap",
        60,
        checks=("honest_timer", "transfer_benchmark", "hidden_syncs", "prefetcher"),
        questions=5,
    ),
    Lesson(
        4,
        "memory",
        "Account for every megabyte",
        75,
        checks=("memory_profiler", "memory_tracker", "memory_buckets", "oom_golf"),
        questions=5,
    ),
    Lesson(
        5,
        "out_of_memory",
        "From OutOfMemoryError to a running job",
        70,
        checks=("memory_leak", "oom_message", "batch_search"),
        questions=5,
    ),
    Lesson(
        6,
        "less_memory",
        "Train the same model in half the memory",
        60,
        checks=("checkpoint_budget", "offload_activations"),
        questions=5,
    ),
    Lesson(
        7,
        "mixed_precision",
        "16-bit arithmetic where it is free",
        65,
        checks=("precision_comparison", "amp_step", "loss_scaler"),
        questions=6,
    ),
    Lesson(
        8,
        "accumulation",
        "A large batch on a small GPU, the same gradients to rounding",
        60,
        checks=("accumulation_window", "token_weighting", "accumulation_amp", "batch_norm_free"),
        questions=5,
    ),
    Lesson(
        9,
        "feeding_the_gpu",
        "Find out whether the GPU waits for data",
        60,
        checks=("starvation", "make_loader", "seeded_workers"),
        questions=5,
    ),
    Lesson(
        10,
        "profiling",
        "Find the bottleneck before touching it",
        50,
        checks=("name_bottleneck", "profiled_steps", "job_mfu"),
        questions=5,
    ),
    Lesson(
        11,
        "faster_steps",
        "The switches that make a step faster",
        60,
        checks=("graphs_per_call", "keep_switches", "graphed_step"),
        questions=5,
    ),
    Lesson(
        12,
        "many_gpus",
        "One script, N processes, the same result",
        60,
        checks=("ddp_training", "mean_over_ranks", "evaluate_once", "ring_all_reduce"),
        questions=5,
    ),
    Lesson(
        13,
        "sharding",
        "Train what does not fit on one GPU",
        60,
        checks=("bytes_per_rank", "save_whole", "train_sharded", "fewest_gpus"),
        questions=5,
    ),
    Lesson(
        14,
        "long_runs",
        "A run that survives interruptions",
        60,
        checks=("resume_exactly", "atomic_checkpoint", "save_on_notice", "best_interval"),
        questions=5,
    ),
    Lesson(
        15,
        "capstone",
        "A script with twelve faults made right",
        35,
        checks=("capstone", "capstone_drawn"),
        questions=10,
    ),
)


def lesson(number: int) -> Lesson:
    """The lesson with this number; ValueError names the range when there is none."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(LESSONS):
        raise ValueError(f"lesson must be a whole number from 0 to {len(LESSONS) - 1}, not {number!r}")
    return LESSONS[number]


def _current() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # a folder that somebody has removed
        return Path("/")


_STARTED = _current()  # before a notebook has gone elsewhere


def folder(start: Path | None = None) -> Path | None:
    """The course folder: the nearest folder at or above `start` with the notebooks and the exercises in it; of the
    copies in its `work/` too. None outside the course. Without `start` it is the current folder, and the one in which
    this process began where that is outside."""
    if start is None:
        return folder(Path.cwd()) or folder(_STARTED)
    here = start.resolve()
    for place in (here, *here.parents):
        if _is_course(place):
            return place.parent if place.name == "work" and _is_course(place.parent) else place
    return None


def _is_course(place: Path) -> bool:
    return (place / "notebooks").is_dir() and (place / "exercises").is_dir()
