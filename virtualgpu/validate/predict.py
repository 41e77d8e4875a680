"""Compare a recording with the virtual GPU, by running the recorded rows on it with the same code.

It returns pairs of recorded and predicted numbers, without judging them. It reads the recordings of `recorder`, and
those of the older recorder from outside the package, which have fewer fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import release
from ..clock import rates
from ..gpu import VirtualGPU
from ..gpus.specs import SPECS, Spec
from ..memory.settings import Settings
from ..scope import in_force
from . import memory, speed
from .models import by_name
from .operators import MODES, operators

FOLDER = Path(__file__).resolve().parent.parent / "recordings"


@dataclass(frozen=True)
class Pair:
    """One number, in bytes unless `what` says otherwise: as recorded and as predicted."""

    what: str
    recorded: Any
    predicted: Any

    @property
    def error(self) -> float:
        """Relative: 0.01 is 1% too much."""
        return float(self.predicted / self.recorded - 1)


@dataclass(frozen=True)
class Trained:
    """One training step: peaks in bytes, recorded and predicted.

    `cudnn` is the part of the recorded peak that cuDNN's workspaces take, None where that was not recorded.
    """

    row: Mapping[str, Any]
    predicted: Mapping[str, Any]
    cudnn: int | None

    @property
    def name(self) -> str:
        return " ".join(str(self.row[key]) for key in ("model", "batch", "mode", "optimizer"))

    @property
    def allocated(self) -> Pair:
        return Pair(self.name, self.row["peak"][0], self.predicted["peak"][0])

    @property
    def allocated_without_cudnn(self) -> Pair | None:
        if self.cudnn is None:
            return None
        return Pair(self.name, self.row["peak"][0] - self.cudnn, self._predicted_without)

    @property
    def _predicted_without(self) -> int:
        return int(self.predicted["peak"][0] - self.predicted.get("cudnn_at_peak", 0))

    @property
    def requested(self) -> Pair | None:
        """Requested bytes at the peak, before the allocator rounds; None where that was not recorded."""
        if "requested_peak" not in self.row:
            return None
        return Pair(f"{self.name} requested", self.row["requested_peak"], self.predicted["requested_peak"])

    @property
    def reserved(self) -> Pair:
        return Pair(self.name, self.row["peak"][1], self.predicted["peak"][1])

    @property
    def time(self) -> Pair | None:
        """Milliseconds of the step on the device's clock, None where they were not recorded."""
        if "step_ms" not in self.row:
            return None
        return Pair(f"{self.name} ms", self.row["step_ms"], self.predicted["step_ms"])

    @property
    def kernels(self) -> Pair | None:
        """Milliseconds in which kernels run, of all streams together; None where they were not recorded."""
        if "kernels_ms" not in self.row:
            return None
        return Pair(f"{self.name} kernels", self.row["kernels_ms"], self.predicted["busy_ms"])

    @property
    def host_bound(self) -> bool:
        """True if kernels run for less than 70 % of the recorded step: as recorded, else as predicted."""
        return bool(self.row.get("kernels_ms", self.predicted["busy_ms"]) < 0.7 * self.row["step_ms"])


def recordings() -> list[Path]:
    """Return the recordings in the package, by name."""
    return sorted(FOLDER.glob("*.json"))


def is_of_a_gpu(recording: Mapping[str, Any]) -> bool:
    """Return True if a real GPU was measured: the older recorder, which states no kind, refuses anything else."""
    return str(recording.get("kind", "measured")).startswith("measured")


def load(path: Path) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recording


def spec_of(device: Mapping[str, Any]) -> Spec:
    """The table's GPU of the recorded name, else the nearest of its generation, with the recorded SMs and memory."""
    capability = tuple(device["capability"])
    same = [s for s in SPECS.values() if s.product == device["name"]]
    older = [s for s in SPECS.values() if s.capability <= capability]
    near = same or [s for s in older if s.capability == max(o.capability for o in older)]
    if not near:
        raise ValueError(
            f"capability is {capability}; the virtual GPUs begin with {min(s.capability for s in SPECS.values())}"
        )
    return dataclasses.replace(
        min(near, key=lambda s: abs(s.memory_bytes - device["total"])), sms=device["sm"], memory_bytes=device["total"]
    )


@contextlib.contextmanager
def virtual(recording: Mapping[str, Any], settings: str | None = None) -> Iterator[VirtualGPU]:
    """A virtual GPU, shapes only, like the one that was recorded, under the recorded settings."""
    device = recording["device"]
    spec = spec_of(device)
    recorded = device.get("settings", {})
    if settings is None:
        settings = recorded.get("PYTORCH_ALLOC_CONF") or recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    scope = VirtualGPU(spec.name, compute=False, settings=settings)
    scope.spec = spec
    scope.keeps_workspaces = keeps_workspaces(device)
    scope.release = release.parse_release(device["torch"])
    if is_of_a_gpu(recording):
        scope.rates = rates.recorded_rates(spec, recording)  # its microbenchmarks; never the steps that are predicted
    # On a stand-in for the driver cuDNN asks for no workspaces.
    scope.plans_convolutions = not str(recording.get("kind", "")).startswith("PyTorch's CUDA code")
    with warnings.catch_warnings(), scope:
        warnings.simplefilter("ignore")
        yield scope


def keeps_workspaces(device: Mapping[str, Any]) -> bool:
    """Return True if cuBLAS's workspaces were kept, as torch did by default up to 2.14."""
    old = release.parse_release(device["torch"]) < release.KEEPS_NO_WORKSPACES
    return old or device.get("settings", {}).get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def allocator(recording: Mapping[str, Any]) -> Iterator[Pair]:
    """For every event of every trace: [allocated, reserved, requested] after it."""
    section = recording["allocator"]
    for trace in [section, *section.get("others", ())]:
        with virtual(recording) as gpu:
            memory.warm_up()  # as the recorder has: what that keeps lies in segments of the same pools
            if "settings" in trace:
                gpu.device(0).allocator.go_on_under(Settings.parse(trace["settings"]))
            predicted = memory.allocator_trace(trace["trace"])
        for number, (theirs, ours) in enumerate(zip(trace["trace"], predicted["trace"], strict=True)):
            yield Pair(f"{trace.get('settings', '')} event {number}", _over(trace, theirs), _over(predicted, ours))


def _over(trace: Mapping[str, Any], event: list[Any]) -> list[int]:
    """The counts after an event, over those at the start; the older recorder gives the base in another order."""
    base = trace["base"]
    base = base if base[2] <= base[0] else base[1:] + base[:1]  # requested is never above allocated
    return [now - before for now, before in zip(event[-3:], base, strict=True)]


SAVED = "output", "output_dtype", "saved", "saved_not_input"


def saved(recording: Mapping[str, Any], only: Collection[str] | None = None) -> Iterator[Pair]:
    """Per operation and mode: the output's bytes and dtype, what is kept for backward, and what of it is no input."""
    with virtual(recording):
        for mode, (dtype, autocast) in MODES.items():
            table = operators(dtype)
            for name in table:
                row = recording["saved"].get(f"{name}/{mode}")
                if row is None or "error" in row or (only is not None and name not in only):
                    continue
                predicted = memory.saved_bytes(table[name](), autocast)
                for field in SAVED:
                    yield Pair(f"{name}/{mode} {field}", row[field], predicted[field])


def steps(
    recording: Mapping[str, Any],
    only: Callable[[Mapping[str, Any]], bool] = lambda row: True,
    *,
    peaks_only: bool = False,
) -> Iterator[Trained]:
    """Every recorded step that this package has the model of, in order, of the rows that `only` takes; with
    `peaks_only` without times and cuDNN's part, for which further steps are made.

    Left out are a step that failed when recorded, for example for want of memory, and one whose first gradients were
    too large for float16: the scaler left the optimizer out, which hangs on values.
    """
    with virtual(recording):
        memory.warm_up()
        with memory.quick_collections():
            yield from _steps(recording["steps"], only, peaks_only)


def _steps(
    rows: Sequence[Mapping[str, Any]], only: Callable[[Mapping[str, Any]], bool], peaks_only: bool
) -> Iterator[Trained]:
    known = by_name()
    for row in rows:
        if "error" in row or row["model"] not in known or row["mode"] not in memory.STEP_MODES or not only(row):
            continue
        if overflowed(row):
            continue
        step = memory.Step(known[row["model"]], row["batch"], row["mode"], row["optimizer"])
        then = _timed if "step_ms" in row and not peaks_only else None
        cudnn = "cudnn_at_peak" in row and not peaks_only
        yield Trained(row, memory.step_peaks(step, cudnn=cudnn, then=then), row["cudnn_at_peak"] if cudnn else None)


def overflowed(row: Mapping[str, Any]) -> bool:
    """Return True if the first step of a row skipped the optimizer: it then allocated no states."""
    marks = row.get("marks", {})
    return row["mode"] == "amp_fp16" and "optimizer" in marks and marks["optimizer"] == marks["backward"]


def _timed(step: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of a step, and those of them in which kernels run."""
    gpu = in_force.current
    assert gpu is not None
    busy = gpu.clock.busy()
    step()
    return {"busy_ms": (gpu.clock.busy() - busy) * 1e3, "step_ms": speed.median_ms(step, 3, 1)}
