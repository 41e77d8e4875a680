"""The performance table: `python tools/bench.py [--quick] [--json PATH]`, or `make bench`.

Every figure is measured here, in one run, as the median of repeats; what is compared is measured in turns. Prints the
table, writes it as JSON and, but with --quick, what the notebooks take as docs/timings.md. It is no test: a missed
target is shown, and the exit status is 0 all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter  # the real one, whatever a virtual GPU makes of it
from typing import Any

from courselib.ready import python_here

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gpulab", "torch", "jupyterlab", "ipywidgets", "anywidget")
NOTEBOOK_SECONDS = {"notebooks": 30, "solutions": 60}
NOTEBOOK_KB = 1000
REPEATS, SLOW_REPEATS = 7, 3


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


def rows(quick: bool) -> Iterator[Row]:
    """All rows, each as soon as it is measured; `quick` leaves out what takes minutes."""
    yield from importing(quick)
    yield from apart("bench_virtual", quick)
    yield from simulators(quick)
    yield from key_to_picture(quick)
    yield from apart("bench_pipeline", quick)
    if sys.platform == "linux":  # where there is a warm server
        yield from apart("bench_ranks", quick)
    yield from checks(quick)
    yield from sizes()
    yield from notebooks(quick)


def apart(module: str, quick: bool) -> Iterator[Row]:
    """What `figures` of a module in evidence/ gives, in a process of its own: others' threads, caches and signals would
    disturb it."""
    program = f"import json; from evidence import {module}; print(json.dumps(list({module}.figures(quick={quick}))))"
    command = [*python_here(), "-c", program]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=True)
    for figure in json.loads(done.stdout.splitlines()[-1]):
        yield Row(*figure)


def importing(quick: bool) -> Iterator[Row]:
    """What `import gpulab` adds to a bare interpreter, and `setup()` to torch's own import."""
    bare, package = _in_turns(quick, "pass", "import gpulab")
    yield Row("import gpulab, above a bare interpreter", 1000 * _median_difference(package, bare), "ms", 50)
    torch, setup = _in_turns(quick, "import torch", "import gpulab; gpulab.setup()")
    yield Row("import torch, above a bare interpreter", statistics.median(torch) - statistics.median(bare), "s")
    yield Row("gpulab.setup(), above import torch", _median_difference(setup, torch), "s", 0.2)


def simulators(quick: bool) -> Iterator[Row]:
    """Model and drawing of one update, over the whole range of the controls; a thousand frames of those that play."""
    import psutil

    import gpulab

    for name in gpulab.sim.__all__:
        simulator = getattr(gpulab.sim, name)()
        times, sizes = [], []
        for values in settings(simulator, 5 if quick else 200):
            began = perf_counter()
            simulator.set(**values)
            drawn = simulator.svg()
            times.append(1000 * (perf_counter() - began))
            sizes.append(len(drawn.encode()) / 1000)
        note = f"{len(times)} settings; largest picture {max(sizes):.0f} kB"
        yield Row(f"{name}: kernel time of an update, median", statistics.median(times), "ms", 10, note)
        yield Row(f"{name}: kernel time of an update, worst", max(times), "ms", 30, note)
        played = player(simulator)
        if played is None:
            continue
        simulator = getattr(gpulab.sim, name)()
        before, warm, frames = 0, *((20, 20) if quick else (200, 1000))  # warm: all that is kept once is there
        for frame in range(warm + frames):
            if frame == warm:
                before = psutil.Process().memory_info().rss
            span = int(simulator.limits(simulator.values).get(played.name, played).high) - played.low + 1
            simulator.set(**{played.name: played.low + frame % span})
            simulator.svg()
        grown = (psutil.Process().memory_info().rss - before) / 1e6
        yield Row(f"{name}: memory after {frames} frames of Play", grown, "MB", 5, "growth of the process")


def key_to_picture(quick: bool) -> Iterator[Row]:
    """From the press of a key on a slider to the new picture, and frames of Play, in JupyterLab in Chromium."""
    from browser.lab_server import LabServer, chromium, chromium_path
    from browser.notebook_page import NotebookPage, frames_per_second, key_to_picture_ms

    import gpulab

    names, path = gpulab.sim.__all__, chromium_path()
    if path is None or quick:
        yield Row("key to picture in JupyterLab", None, "ms", 50, "--quick" if quick else "no Chromium")
        return
    with tempfile.TemporaryDirectory() as folder, chromium(path) as browser:
        server = LabServer(Path(folder))
        try:
            sources = ["import gpulab", *(f"gpulab.sim.{name}()" for name in names)]
            page = NotebookPage(browser, server, server.write("bench.ipynb", *sources))
            page.run_all()
            for cell, name in enumerate(names, 1):
                simulator = getattr(gpulab.sim, name)()
                slider = next(
                    c for c in simulator.controls if hasattr(c, "low") and not hasattr(c, "frames_per_second")
                )
                at_end = slider.value == slider.high
                times = key_to_picture_ms(page, cell, slider.label, 10, at_end=at_end)[2:]  # the first two warm up
                note = f"{len(times)} keys on {slider.label}, worst {max(times):.0f} ms"
                yield Row(f"{name}: key to picture in JupyterLab", statistics.median(times), "ms", 50, note)
                played = player(simulator)
                if played is not None:
                    rate = frames_per_second(page, cell, played.label, seconds=3)
                    # shown as what a frame takes: a target here is the most that a figure may be
                    most = 1050 / played.frames_per_second
                    yield Row(f"{name}: a frame of Play in JupyterLab", 1000 / rate, "ms", most, f"{rate:.1f} a second")
        finally:
            server.close()


def checks(quick: bool) -> Iterator[Row]:
    """Each check on the answer of the solution notebook; in haste the first of two lessons, the latter's on ranks."""
    import nbformat

    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        if quick and path.name[:2] not in ("01", "12"):
            continue
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        names: dict[str, Any] = {}
        os.chdir(ROOT)  # a notebook may work in a folder of its own
        for number, cell in enumerate(cells):
            tags = cell.metadata.get("tags", [])
            given = not tags and not cell.source.startswith(("gpulab.quiz(", "gpulab.progress("))
            if "script" in tags:
                magic, _, text = cell.source.partition("\n")
                Path(magic.removeprefix("%%writefile ")).write_text(text, encoding="utf-8")
            elif number == 0 or given or "solution" in tags:
                _silently(cell.source, names)
            elif "check" in tags:
                calls = range(1 if quick else 1 + REPEATS)
                first, *times = [_seconds(lambda: _silently(cell.source, names)) for _ in calls]  # noqa: B023
                check = cell.source.partition("(")[0].rpartition(".")[2]
                note = f"its first call {first:.2f} s"
                yield Row(f"check {check} on its solution", statistics.median(times or [first]), "s", 0.5, note)
                if quick:
                    break
    os.chdir(ROOT)


def sizes() -> Iterator[Row]:
    """The notebooks as files."""
    for path in sorted(p for folder in NOTEBOOK_SECONDS for p in (ROOT / folder).glob("*.ipynb")):
        yield Row(f"{path.parent.name}/{path.name}, size", path.stat().st_size / 1000, "kB", NOTEBOOK_KB)


def notebooks(quick: bool) -> Iterator[Row]:
    """Each lecture and solution from the start of its kernel to its last cell; writes docs/timings.md."""
    import timings

    runs = {}
    for path in timings.notebooks():
        name, target = f"{path.parent.name}/{path.name}, run from top to bottom", NOTEBOOK_SECONDS[path.parent.name]
        if quick:
            yield Row(name, None, "s", target, "--quick")
            continue
        measured = sorted((timings.measure(path) for _ in range(SLOW_REPEATS)), key=lambda run: run.wall)
        runs[path] = measured[len(measured) // 2]
        yield Row(name, runs[path].wall, "s", target, f"{runs[path].processor:.1f} s of the processor")
    if runs:
        timings.write(runs)


def _in_turns(quick: bool, *programs: str) -> list[list[float]]:
    """The seconds of each program in a fresh interpreter, one after the other, so that all see the same machine."""
    times: list[list[float]] = [[] for _ in programs]
    fills = 0 if quick else 1  # the first one fills the disk cache
    for repeat in range(fills + (1 if quick else REPEATS)):
        for mine, program in zip(times, programs, strict=True):
            command = [sys.executable, "-c", program]
            seconds = _seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))  # noqa: B023
            if repeat >= fills:
                mine.append(seconds)
    return times


def _median_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


def player(simulator: Any) -> Any:
    """The control that runs by itself, None where there is none."""
    return next((control for control in simulator.controls if hasattr(control, "frames_per_second")), None)


def settings(simulator: Any, number: int) -> Iterator[Mapping[str, Any]]:
    """Every control at its ends and in its middle, and `number` mixtures; within the limits they put on each other."""
    rng = random.Random(0)
    ranges = {control.name: _range(control) for control in simulator.controls}
    asked = [
        {name: value} for name, values in ranges.items() for value in (values[0], values[len(values) // 2], values[-1])
    ]
    asked += [{name: rng.choice(values) for name, values in ranges.items()} for _ in range(number)]
    first = {control.name: control.value for control in simulator.controls}
    for some in asked:
        values = first | some
        limits = simulator.limits(values)
        yield {c.name: c.clamp(values[c.name], limits.get(c.name)) for c in simulator.controls}


def _range(control: Any) -> list[Any]:
    if hasattr(control, "low"):
        span = [control.low + (control.high - control.low) * i / 20 for i in range(21)]
        return [control.snap(round(x) if control.whole else x) for x in span]
    if hasattr(control, "buttons"):
        return [control.value, *control.examples, *control.buttons.values()]
    return list(getattr(control, "options", (False, True)))


def _silently(source: str, names: dict[str, Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source, names)


def _seconds(action: Callable[[], object]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


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
    facts = machine()
    print(", ".join(f"{name} {number}" for name, number in facts["versions"].items()), end="; ")
    print(f"{facts['processors']} processors, {facts['system']}")
    print(f"{'':<55} {'measured':>14}  {'target':<10}")
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        # The virtual device, as in CI, and nobody's progress.
        os.environ |= {"GPULAB_GPU": "virtual:T4", "GPULAB_PROGRESS": str(Path(folder) / "progress.json")}
        for row in rows(args.quick):
            print(line(row), flush=True)
            measured.append(asdict(row) | {"met": row.met, "source": "measured" if row.value is not None else ""})
    document = facts | {"quick": args.quick, "repeats": 1 if args.quick else REPEATS, "rows": measured}
    args.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {args.json.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
