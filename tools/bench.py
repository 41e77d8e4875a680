"""The performance table: `python tools/bench.py [--quick] [--json PATH]`, or `make bench`.

Every figure is measured here, in one run, as the median of repeats; what is compared is measured in turns. Prints the
table and writes it as JSON. It is no test: a missed target is shown, and the exit status is 0 all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gpulab", "torch", "jupyterlab", "ipywidgets", "anywidget")
NOTEBOOK_SECONDS = {"notebooks": 30, "solutions": 60}
NOTEBOOK_KB = 1000


@dataclass(frozen=True)
class Row:
    """One measured figure; `value` is None where it could not be measured, and `note` then says why."""

    name: str
    value: float | None
    unit: str
    target: float | None = None  # at most this
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.value is None or self.target is None else self.value <= self.target


@dataclass(frozen=True)
class Effort:
    """How much is measured: `quick` leaves out what takes minutes."""

    quick: bool

    @property
    def repeats(self) -> int:
        return 2 if self.quick else 7

    @property
    def slow_repeats(self) -> int:
        return 3

    @property
    def points(self) -> int:
        """Values of each slider, from its lowest to its highest."""
        return 3 if self.quick else 8


def rows(effort: Effort) -> Iterator[Row]:
    """All rows, each as soon as it is measured."""
    yield from importing(effort)
    yield from virtual_gpu(effort)
    yield from simulators(effort)
    yield from key_to_picture(effort)
    yield from checks(effort)
    yield from sizes()
    yield from notebooks(effort)


def importing(effort: Effort) -> Iterator[Row]:
    """What `import gpulab` adds to a bare interpreter, and `setup()` to torch's own import."""
    bare, package = _in_turns(effort.repeats, "pass", "import gpulab")
    yield Row("import gpulab, above a bare interpreter", 1000 * _median_difference(package, bare), "ms", 50)
    torch, setup = _in_turns(effort.repeats, "import torch", "import gpulab; gpulab.setup()")
    yield Row("import torch, above a bare interpreter", statistics.median(torch) - statistics.median(bare), "s")
    yield Row("gpulab.setup(), above import torch", _median_difference(setup, torch), "s", 0.2)


def virtual_gpu(effort: Effort) -> Iterator[Row]:
    """Cost of the virtual GPU; a process of its own, since threads and caches of others would disturb it."""
    command = [sys.executable, "-c", _FIGURES, str(int(effort.quick))]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=True)
    for figure in json.loads(done.stdout.splitlines()[-1]):
        yield Row(*figure)


_FIGURES = "import bench_virtual, json, sys; print(json.dumps(list(bench_virtual.figures(quick=sys.argv[1] == '1'))))"


def simulators(effort: Effort) -> Iterator[Row]:
    """Model and drawing of one update, over the whole range of the controls."""
    import gpulab

    for name in gpulab.sim.__all__:
        simulator = getattr(gpulab.sim, name)()
        times, sizes = [], []
        for values in _grid(simulator, effort.points):
            began = time.perf_counter()
            simulator.set(**values)
            drawn = simulator.svg()
            times.append(1000 * (time.perf_counter() - began))
            sizes.append(len(drawn.encode()) / 1000)
        note = f"{len(times)} settings"
        yield Row(f"{name}: kernel time of an update, median", statistics.median(times), "ms", None, note)
        yield Row(f"{name}: kernel time of an update, worst", max(times), "ms", None, note)
        yield Row(f"{name}: picture of an update, median", statistics.median(sizes), "kB", None, note)
        yield Row(f"{name}: picture of an update, largest", max(sizes), "kB", None, note)


def key_to_picture(effort: Effort) -> Iterator[Row]:
    """From the press of a key on a slider to the new picture, in JupyterLab in Chromium."""
    from lab_server import LabServer, chromium, chromium_path
    from notebook_page import NotebookPage, key_to_picture_ms

    name, path = "accumulation: key to picture in JupyterLab", chromium_path()
    if path is None or effort.quick:
        yield Row(name, None, "ms", 100, "--quick" if effort.quick else "no Chromium")
        return
    with tempfile.TemporaryDirectory() as folder, chromium(path) as browser:
        server = LabServer(Path(folder))
        try:
            page = NotebookPage(
                browser, server, server.write("bench.ipynb", "import gpulab\ngpulab.sim.accumulation()")
            )
            page.run_all()
            times = key_to_picture_ms(page, 0, "Micro-batch", presses=12)[2:]  # the first two warm up
        finally:
            server.close()
    yield Row(name, statistics.median(times), "ms", 100, f"{len(times)} keys, worst {max(times):.0f} ms")


def checks(effort: Effort) -> Iterator[Row]:
    """Each check on the answer of the solution notebook."""
    import nbformat

    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        names: dict[str, Any] = {}
        for number, cell in enumerate(cells):
            tags = cell.metadata.get("tags", [])
            if number == 0 or "solution" in tags:
                _silently(cell.source, names)
            elif "check" in tags:
                calls = range(1 + effort.repeats)
                first, *times = [_seconds(lambda: _silently(cell.source, names)) for _ in calls]  # noqa: B023
                check = cell.source.partition("(")[0].rpartition(".")[2]
                note = f"its first call {first:.2f} s"
                yield Row(f"check {check} on its solution", statistics.median(times), "s", 0.5, note)


def sizes() -> Iterator[Row]:
    """The notebooks as files."""
    for path in sorted(p for folder in NOTEBOOK_SECONDS for p in (ROOT / folder).glob("*.ipynb")):
        yield Row(f"{path.parent.name}/{path.name}, size", path.stat().st_size / 1000, "kB", NOTEBOOK_KB)


def notebooks(effort: Effort) -> Iterator[Row]:
    """Each lecture and solution from the start of its kernel to its last cell."""
    from build import execute, read

    for folder, target in NOTEBOOK_SECONDS.items():
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            name = f"{folder}/{path.name}, run from top to bottom"
            if effort.quick:
                yield Row(name, None, "s", target, "--quick")
                continue
            runs = [read(path) for _ in range(effort.slow_repeats)]
            times = [_seconds(lambda: execute(run, path.parent)) for run in runs if run is not None]  # noqa: B023
            yield Row(name, statistics.median(times), "s", target)


def _in_turns(repeats: int, *programs: str) -> list[list[float]]:
    """The seconds of each program in a fresh interpreter, one after the other, so that all see the same machine."""
    times: list[list[float]] = [[] for _ in programs]
    for repeat in range(repeats + 1):
        for mine, program in zip(times, programs, strict=True):
            command = [sys.executable, "-c", program]
            seconds = _seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))  # noqa: B023
            if repeat > 0:  # the first one fills the disk cache
                mine.append(seconds)
    return times


def _median_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


def _grid(simulator: Any, points: int) -> Iterator[Mapping[str, Any]]:
    """Settings over the whole range of every control, each within the limits that the others put on it."""
    ranges = []
    for control in simulator.controls:
        if hasattr(control, "low"):
            span = (control.low + (control.high - control.low) * i / (points - 1) for i in range(points))
            ranges.append([round(x) if control.whole else x for x in span])
        else:
            ranges.append(list(getattr(control, "options", (False, True))))
    for values in product(*ranges):
        asked = {control.name: value for control, value in zip(simulator.controls, values, strict=True)}
        limits = simulator.limits(asked)
        yield {
            control.name: control.clamp(asked[control.name], limits.get(control.name)) for control in simulator.controls
        }


def _silently(source: str, names: dict[str, Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source, names)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def machine() -> dict[str, Any]:
    """What the figures depend on, and nothing that tells whose machine it is."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {"versions": versions, "processors": os.cpu_count(), "system": f"{sys.platform} {platform.machine()}"}


def line(row: Row) -> str:
    """A row of the table."""
    if row.value is None:
        shown, note = "not measured", row.note
    else:
        shown, note = f"{row.value:.3g} {row.unit}", row.note
    target = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
    outcome = {None: "", True: "met", False: "MISSED"}[row.met]
    return f"{row.name:<55} {shown:>14}  {target:<10} {outcome:<7}{note}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no browser, no notebooks: some seconds")
    parser.add_argument("--json", type=Path, default=ROOT / "bench.json", metavar="PATH", help="default: bench.json")
    args = parser.parse_args()
    facts, effort = machine(), Effort(args.quick)
    print(", ".join(f"{name} {number}" for name, number in facts["versions"].items()), end="; ")
    print(f"{facts['processors']} processors, {facts['system']}")
    print(f"{'':<55} {'measured':>14}  {'target':<10}")
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        # The virtual device, as in CI, and nobody's progress.
        os.environ |= {"GPULAB_GPU": "virtual:T4", "GPULAB_PROGRESS": str(Path(folder) / "progress.json")}
        for row in rows(effort):
            print(line(row), flush=True)
            measured.append(asdict(row) | {"met": row.met, "source": "measured" if row.value is not None else ""})
    document = facts | {"quick": effort.quick, "repeats": effort.repeats, "rows": measured}
    args.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {args.json.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
