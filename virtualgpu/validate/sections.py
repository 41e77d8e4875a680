"""Sections of a recording, each a function from a `Run` to measured rows.

The modules beside this one measure; this one selects and orders their rows, and isolates failures.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..nvml import as_text, attempt, nvml_opened
from ..scope import in_force
from . import host, kernels, memory, speed, sustained
from .effort import Effort, Run, short
from .models import Model, models, optimizers
from .operators import MODES, operators

SETTINGS = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUBLAS_WORKSPACE_CACHE", "CUBLAS_WORKSPACE_CONFIG"
# The allocator's rules change with these; each is traced after the default ones, and then put back.
OTHER_RULES = {
    "max_split_size_mb:64": f"max_split_size_mb:{1 << 20}",
    "roundup_power2_divisions:4": "roundup_power2_divisions:1",
    "expandable_segments:True": "expandable_segments:False",
}


def _driver() -> str | None:
    with nvml_opened() as (nvml, _):
        return as_text(attempt(nvml.nvmlSystemGetDriverVersion)[0]) if nvml else None


def _device(run: Run) -> dict[str, Any]:
    memory.warm_up()
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "sm": properties.multi_processor_count,
        "total": properties.total_memory,
        "mem_get_info": list(torch.cuda.mem_get_info()),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }


def _allocator(run: Run) -> dict[str, Any]:
    """The default rules first, then others."""
    events = list(memory.events(run.effort.events, most=run.effort.largest))
    value = memory.allocator_trace(events)
    run.keep(value)
    if not run.effort.other_rules:
        return value
    change = torch.cuda.memory._set_allocator_settings
    value["others"] = []
    for settings, default in OTHER_RULES.items():
        memory.reset_memory()
        change(settings)
        try:
            value["others"].append({"settings": settings} | memory.allocator_trace(events[: len(events) // 3]))
        finally:
            memory.reset_memory()
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
                out[f"{name}/{mode}"] = {"error": short(error)}
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
        memory.reset_memory()
        try:
            made = make()
            rows += made if isinstance(made, list) else [made]
        except Exception as error:
            rows.append({"error": short(error)})
        run.keep(rows)
    return rows


def _new_shapes(run: Run) -> list[Any]:
    cases = product((False, True), (torch.float32, torch.float16), host.NEW[: run.effort.new_shapes])
    return _rows(run, (partial(host.new_shape, shape, dtype, benchmark) for benchmark, dtype, shape in cases))


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
    return _operations(run, tuple(MODES), memory.saved_bytes)


def _times(run: Run) -> dict[str, Any]:
    return _operations(run, ("fp32", "autocast_fp16", "autocast_bf16", "fp16"), speed.operation)


def _copies(run: Run) -> list[dict[str, Any]]:
    rows = []
    for nbytes in run.effort.copies:
        memory.reset_memory()
        rows.append(speed.copies(nbytes))
        run.keep(rows)
    return rows


def _matmul(run: Run) -> dict[str, Any]:
    names = [name for name in speed.PRECISIONS if _has_bf16() or name in ("fp32", "fp16")]
    out: dict[str, Any] = {"matmul": []}
    out |= speed.launches(run.effort.launches) | {"relu_elements": run.effort.elements}
    out["relu_ms"] = speed.relu_ms(run.effort.elements)
    for n in run.effort.products:
        memory.reset_memory()
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
        if not run.effort.times:
            return {}
        taken = {"step_ms": speed.median_ms(step, 7, 2), "host_ms": speed.host_ms(step, 5)}
        return taken | (speed.by_operation(step) if run.effort.profiled else {})

    memory.warm_up()
    with memory.quick_collections():
        for number, step in enumerate(planned, 1):
            if run.over:
                run.tell(f"steps: the time is up after {len(rows)} of {len(planned)} rows")
                break
            try:
                rows.append(step.names | memory.step_peaks(step, cudnn=run.effort.cudnn, then=time_it))
            except Exception as error:
                rows.append(step.names | {"error": short(error)})
            run.keep(rows)
            if number % 20 == 0:
                run.tell(f"steps: {number} of {len(planned)}")
    return rows


# The most important sections come first, as a borrowed GPU's time may run out; `steps` and `ops` fill the rest.
SECTIONS: dict[str, Callable[[Run], Any]] = {
    "device": _device,
    "first_calls": _first_calls,
    "host": _host,
    "new_shapes": _new_shapes,
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
