"""One recording: its sections in order, each kept even if a later one fails, in one JSON file.

It runs what the other modules define and writes down what they return; it compares nothing. Only a real GPU's answers
are "measured": it refuses to call a virtual GPU's so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..diagnosis import driver
from ..virtual.scope import in_force
from . import host, kernels, memory, speed, sustained
from .models import Model, models, optimizers
from .operators import MODES, operators

MEASURED = "measured on a real GPU"
SETTINGS = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUBLAS_WORKSPACE_CACHE", "CUBLAS_WORKSPACE_CONFIG"
# The allocator's rules change with these; each is traced after the default ones, and then put back.
OTHER_RULES = {
    "max_split_size_mb:64": f"max_split_size_mb:{1 << 20}",
    "roundup_power2_divisions:4": "roundup_power2_divisions:1",
    "expandable_segments:True": "expandable_segments:False",
}
MiB = 1 << 20
MINUTES = 16.0  # with what begins shortly before the end, below 20

Tell = Callable[[str], None]


class NoRealGPU(RuntimeError):
    """There is nothing to measure here; the text is one sentence."""


@dataclass(frozen=True)
class Effort:
    """How much is recorded: for a GPU the defaults; less where only the way is tested."""

    events: int = 3000
    largest: int = 200 * MiB
    other_rules: bool = True  # the allocator's, too
    copies: tuple[int, ...] = tuple(int(mib * MiB) for mib in (0.001, 0.01, 0.1, 1, 10, 100, 1000))
    products: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 4097, 8192)
    launches: int = 1000
    elements: int = 1 << 28
    operators: tuple[str, ...] | None = None  # None: all
    models: tuple[str, ...] | None = None
    sizes: int | None = None  # the first so many batch sizes of each model
    cudnn: bool = True
    times: bool = True
    host_calls: int = 500
    shapes: tuple[tuple[int, int, int], ...] = kernels.SHAPES
    touched_mib: tuple[float, ...] = kernels.TOUCHED
    layers: tuple[str, ...] | None = None
    layer_batch: int = 64
    attention: tuple[tuple[int, ...], ...] = kernels.ATTENTION
    small_batches: tuple[int, ...] = (1, 2, 4, 16)
    small_models: tuple[str, ...] = ("resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16")
    sustained_s: float = 32.0  # for each of two loads
    sustained_side: int = 4096
    sustained_images: int = 256


@dataclass(frozen=True)
class Run:
    """What a section is given: how much, until when, where its rows go as they come, and whom it tells."""

    effort: Effort
    deadline: float
    keep: Callable[[Any], None]
    tell: Tell

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline


def check() -> None:
    """Raises NoRealGPU where a measurement would be none."""
    if in_force.current is not None:
        raise NoRealGPU(f"{in_force.current!r} is in force, and what it predicts is no measurement: end it first.")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise NoRealGPU("PyTorch finds no CUDA GPU here, and `validate` measures a real one.")
    try:
        values = torch.arange(1024, device="cuda:0", dtype=torch.float32)
        right = values.mul(2).sum().item() == 1023 * 1024
    except RuntimeError as error:
        raise NoRealGPU(f"the GPU here does not work ({_short(error)}), so nothing can be measured.") from error
    if not right:
        raise NoRealGPU("what is here as a GPU runs no kernels (a sum came out wrong), so nothing can be measured.")


def record(
    path: Path,
    *,
    minutes: float = MINUTES,
    sections: tuple[str, ...] | None = None,
    kind: str = MEASURED,
    effort: Effort | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Record into `path` for about `minutes`, and return what was recorded.

    `kind` says what the numbers are; with the default one this raises NoRealGPU unless a real GPU works here. A section
    that fails leaves {"error": …}, the time that is up {"left_out": …} or the rows so far. Raises ValueError for
    `minutes` that are no time, FileNotFoundError where the folder of `path` is missing.
    """
    if not minutes > 0:
        raise ValueError(f"minutes is {minutes:g}; it must be above 0")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path is {path}; its folder does not exist")
    if kind == MEASURED:
        check()
    effort = effort or Effort()
    deadline = time.monotonic() + 60 * minutes
    recording: dict[str, Any] = {"kind": kind, "by": "gpulab validate"}

    def keep(name: str, value: Any) -> None:
        recording[name] = value
        _write(path, recording)

    for name in sections or tuple(SECTIONS):
        began = time.monotonic()
        run = Run(effort, deadline, lambda value, name=name: keep(name, value), tell)  # type: ignore[misc]
        if run.over and name != "device":
            keep(name, {"left_out": f"the {minutes:g} minutes were over"})
            tell(f"{name}: left out, the time is up")
            continue
        try:
            keep(name, SECTIONS[name](run))
            outcome = "done"
        except Exception as error:
            kept = recording.get(name)
            rows = {"rows": kept} if isinstance(kept, list) else kept if isinstance(kept, dict) else {}
            keep(name, rows | {"error": _short(error)})
            outcome = f"failed: {_short(error)}"
        tell(f"{name}: {outcome}, {time.monotonic() - began:.1f} s")
    return recording


def chosen(names: Sequence[str] | None) -> tuple[str, ...]:
    """The sections of these names, all for None, always with the device first; raises ValueError for an unknown one."""
    for name in names or ():
        if name not in SECTIONS:
            raise ValueError(f"section is {name!r}; there are {', '.join(SECTIONS)}")
    return tuple(dict.fromkeys(("device", *(names or SECTIONS))))


def default_path() -> Path:
    """In the current folder, named after the GPU."""
    return Path(re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(0)) + ".json")


def failed(recording: dict[str, Any]) -> list[str]:
    """The sections that ended in an error."""
    return [name for name, value in recording.items() if isinstance(value, dict) and "error" in value]


def _write(path: Path, recording: dict[str, Any]) -> None:
    """All or nothing: a recording that is cut short is still the one before it."""
    part = path.with_name(path.name + ".part")
    part.write_text(_as_text(recording), encoding="utf-8")
    os.replace(part, path)


def _as_text(recording: dict[str, Any]) -> str:
    """JSON with one row per line."""

    def lines(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        if isinstance(value, dict) and any(isinstance(v, (list, dict)) for v in value.values()):
            return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(v)}" for key, v in value.items()) + "\n}"
        return json.dumps(value)

    return lines(recording) + "\n"


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


# -- sections --------------------------------------------------------------------------------------------------------


def _device(run: Run) -> dict[str, Any]:
    memory.warm_up()
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "sm": properties.multi_processor_count,
        "total": properties.total_memory,
        "mem_get_info": list(torch.cuda.mem_get_info()),
        "driver": driver.read().version,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }


def _allocator(run: Run) -> dict[str, Any]:
    """The default rules first, then others."""
    events = list(memory.events(run.effort.events, most=run.effort.largest))
    value = memory.traced(events)
    run.keep(value)
    if not run.effort.other_rules:
        return value
    change = torch.cuda.memory._set_allocator_settings
    value["others"] = []
    for settings, default in OTHER_RULES.items():
        memory.fresh()
        change(settings)
        try:
            value["others"].append({"settings": settings} | memory.traced(events[: len(events) // 3]))
        finally:
            memory.fresh()
            change(default)
        run.keep(value)
    return value


def _has_bf16() -> bool:
    return torch.cuda.get_device_capability() >= (8, 0)


def _operations(run: Run, modes: tuple[str, ...], measure: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """`measure(case, autocast's dtype)` for each operation and mode; one that fails keeps its error."""
    out: dict[str, Any] = {}
    for mode in modes:
        if "bf16" in mode and not _has_bf16():
            continue
        dtype, autocast = MODES[mode]
        for name, make in operators(dtype).items():
            if run.effort.operators is not None and name not in run.effort.operators:
                continue
            if run.over:
                return out
            try:
                out[f"{name}/{mode}"] = measure(make(), autocast)
            except Exception as error:
                out[f"{name}/{mode}"] = {"error": _short(error)}
        run.keep(out)
    return out


def _first_calls(run: Run) -> dict[str, float]:
    scope = in_force.current
    return host.first_calls(None if scope is None else scope.spec.name)


def _host(run: Run) -> dict[str, float]:
    """Microseconds of the host by call; which host it is."""
    out: dict[str, Any] = {"processor": _processor(), "cores": os.cpu_count()}
    for name, us in host.costs(run.effort.host_calls):
        out[f"{name}_us"] = us
        run.keep(out)
    return out


def _processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _rows(run: Run, makers: Iterator[Callable[[], Any]]) -> list[Any]:
    """One row after another until the time is up; one that fails keeps its error, one out of memory too."""
    rows: list[Any] = []
    for make in makers:
        if run.over:
            break
        memory.fresh()
        try:
            made = make()
            rows += made if isinstance(made, list) else [made]
        except Exception as error:
            rows.append({"error": _short(error)})
        run.keep(rows)
    return rows


def _products(run: Run) -> list[Any]:
    names = [name for name in speed.PRECISIONS if _has_bf16() or name in ("fp32", "fp16")]
    return _rows(run, (partial(kernels.product, shape, name) for shape in run.effort.shapes for name in names))


def _touched(run: Run) -> list[Any]:
    return _rows(run, (partial(kernels.touched, mib) for mib in run.effort.touched_mib))


def _layers(run: Run) -> list[Any]:
    modes = ["fp32", "amp_fp16", *(["amp_bf16"] if _has_bf16() else [])]
    dtypes = [torch.float32, torch.float16, *([torch.bfloat16] if _has_bf16() else [])]

    def makers() -> Iterator[Callable[[], Any]]:
        for one in kernels.layers(run.effort.layer_batch):
            if run.effort.layers is None or one.name in run.effort.layers:
                for mode, train in product(modes, (True, False)):
                    yield partial(kernels.layer, one, mode, train=train)
        for shape, dtype, causal in product(run.effort.attention, dtypes, (True, False)):
            yield partial(kernels.attention, shape, dtype, causal=causal)

    return _rows(run, makers())


def _small_steps(run: Run) -> list[Any]:
    """Training and inference in small batches, where the host is the limit: by events, and by the host's clock."""
    modes = {"fp32": None, "amp_fp16": torch.float16} | ({"amp_bf16": torch.bfloat16} if _has_bf16() else {})
    wanted = [m for m in models() if m.name in run.effort.small_models]
    return _rows(
        run,
        (
            partial(speed.small_step, model, batch, mode, dtype)
            for model in wanted
            for batch in run.effort.small_batches
            for mode, dtype in modes.items()
        ),
    )


def _sustained(run: Run) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, load in sustained.loads(run.effort.sustained_side, run.effort.sustained_images).items():
        out[name] = sustained.sustained(*load, seconds=run.effort.sustained_s)
        run.keep(out)
    return out


def _saved(run: Run) -> dict[str, Any]:
    return _operations(run, tuple(MODES), memory.saved)


def _times(run: Run) -> dict[str, Any]:
    return _operations(run, ("fp32", "autocast_fp16", "autocast_bf16", "fp16"), speed.operation)


def _copies(run: Run) -> list[dict[str, Any]]:
    rows = []
    for nbytes in run.effort.copies:
        memory.fresh()
        rows.append(speed.copies(nbytes))
        run.keep(rows)
    return rows


def _matmul(run: Run) -> dict[str, Any]:
    names = [name for name in speed.PRECISIONS if _has_bf16() or name in ("fp32", "fp16")]
    out: dict[str, Any] = {"matmul": []}
    out |= speed.launches(run.effort.launches) | {"relu_elements": run.effort.elements}
    out["relu_ms"] = speed.relu_ms(run.effort.elements)
    for n in run.effort.products:
        memory.fresh()
        out["matmul"].append(speed.matmul(n, names))
        run.keep(out)
    return out


def steps_of(effort: Effort) -> Iterator[memory.Step]:
    """In the order of what they tell: every model in its smallest batch, in its others, with other optimizers."""
    chosen = [m for m in models() if effort.models is None or m.name in effort.models]
    modes = [m for m in memory.STEP_MODES if _has_bf16() or ("bf16" not in m and m != "tf32")]
    others = [name for name in optimizers() if name != "adamw"]

    def rows(model: Model, sizes: tuple[int, ...]) -> Iterator[memory.Step]:
        yield from (memory.Step(model, size, mode) for size, mode in product(sizes, modes))

    for model in chosen:
        yield from rows(model, model.sizes[:1])
    for model in chosen:
        yield from rows(model, model.sizes[1 : effort.sizes])
    for model in chosen:
        yield from (memory.Step(model, model.sizes[0], "fp32", name) for name in others)


def _steps(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    planned = list(steps_of(run.effort))

    def time_it(step: Callable[[], None]) -> dict[str, Any]:
        return {"step_ms": speed.timed(step, 7, 2)} if run.effort.times else {}

    memory.warm_up()
    with memory.quick_collections():
        for number, step in enumerate(planned, 1):
            if run.over:
                run.tell(f"steps: the time is up after {len(rows)} of {len(planned)} rows")
                break
            try:
                rows.append(step.names | memory.trained(step, cudnn=run.effort.cudnn, then=time_it))
            except Exception as error:
                rows.append(step.names | {"error": _short(error)})
            run.keep(rows)
            if number % 20 == 0:
                run.tell(f"steps: {number} of {len(planned)}")
    return rows


# What a lent GPU must not end without comes first; `steps` takes what time is left, and `ops` the rest.
SECTIONS: dict[str, Callable[[Run], Any]] = {
    "device": _device,
    "first_calls": _first_calls,
    "host": _host,
    "copies": _copies,
    "matmul": _matmul,
    "products": _products,
    "touched": _touched,
    "layers": _layers,
    "small_steps": _small_steps,
    "sustained": _sustained,
    "allocator": _allocator,
    "saved": _saved,
    "steps": _steps,
    "ops": _times,
}
