"""How exact the virtual GPU is: `python tools/accuracy.py [--gpu 8.0 …] [--quick] [--write]`.

Runs recorded training steps on the virtual GPU and prints, as Markdown, what was recorded and by how much the
prediction is off; `--write` makes docs/accuracy.md of it, and what stands between the two marks in README.md. It is
no test: a miss is shown as it is. The words between the tables are those of evidence/accuracy.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from evidence import report
from evidence.measure import Predicted
from evidence.report import signed
from evidence.trainings import BERT, RESNET

from virtualgpu.validate import memory, predict
from virtualgpu.validate.models import by_name

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = ROOT / "tests" / "virtualgpu" / "torch_cuda" / "steps.json"
BEGIN, END = "<!-- accuracy: written by `python tools/accuracy.py --write` -->\n", "<!-- accuracy: end -->\n"
PAGE = (ROOT / "tools" / "evidence" / "accuracy.md").read_text(encoding="utf-8").strip().split("\n\n")
PUBLISHED = "<!-- what is published -->"  # a block of it; `--quick` ends there
HEAD = "\n\n".join(PAGE[:2])
MiB = 1 << 20

COLUMNS = {"fp32": "fp32", "amp_fp16": "AMP fp16", "amp_bf16": "AMP bf16", "accum4_bf16": "4 micro-batches, bf16"}
# What the stand-in for cuDNN leaves out, so that its figure is known to be too small.
NO_REFERENCE = {"lstm": "without cuDNN there is no reserve of recurrent layers"}
LIMITS = (
    "The kernels are the limit where they run for 70 % of the recorded step or more, by the recording, or by the"
    " prediction where only steps were recorded; else it is the host, which is that machine's: the H200's was slow."
)
WHAT = "peak allocated of a training step with AdamW, recorded in MiB, and how much the prediction is off."


@dataclass(frozen=True)
class Row:
    """Bytes of one training step; `with_cudnn` is the recorded peak with cuDNN's workspaces, None where unknown."""

    gpu: str
    model: str
    batch: int
    mode: str
    allocated: predict.Pair
    reserved: predict.Pair
    with_cudnn: predict.Pair | None


def stand_in_rows(capability: str) -> Iterator[Row]:
    """Every model in the larger batch that fits, trained with AdamW, from PyTorch's CUDA code on the stand-in."""
    recorded = json.loads(STAND_IN.read_text(encoding="utf-8"))
    gpu = recorded["gpus"][capability]
    device = {
        "name": gpu["NAME"],
        "capability": [int(part) for part in capability.split(".")],
        "sm": int(gpu["SMS"]),
        "total": int(gpu["CAPACITY"]),
        "torch": recorded["torch"],
    }
    plain: dict[tuple[str, int, str], Any] = {}
    planned: dict[tuple[str, int, str], Any] = {}
    for row in recorded["rows"]:
        wanted = capability in row["capability"] and row["optimizer"] == "adamw" and row["workspaces"] == "per call"
        if not wanted or "error" in row:
            continue
        for mode in set(row["mode"]).intersection(COLUMNS):
            if capability != "7.5" or "bf16" not in mode:
                (planned if "cudnn" in row else plain)[row["model"], row["batch"], mode] = row
    models = by_name()
    with predict.virtual({"device": device}) as scope, memory.quick_collections():
        for (model, batch, mode), row in plain.items():
            if model not in models or model in NO_REFERENCE or batch != _size(plain, model):
                continue
            step = memory.Step(models[model], batch, mode)
            gpu = scope.devices[0]
            gpu.plans_convolutions = False
            ours = memory.step_peaks(step, cudnn=False)
            name = f"{model} {batch} {mode}"
            theirs = planned.get((model, batch, mode))
            if theirs:
                gpu.plans_convolutions = True
                with_cudnn = memory.step_peaks(step, cudnn=False)
            yield Row(
                scope.spec.name,
                model,
                batch,
                mode,
                predict.Pair(name, row["peak"][0], ours["peak"][0]),
                predict.Pair(name, row["peak"][1], ours["peak"][1]),
                predict.Pair(name, theirs["peak"][0], with_cudnn["peak"][0]) if theirs else None,
            )


def _size(rows: Iterable[tuple[str, int, str]], model: str) -> int:
    """The second batch size of a model, or its only one."""
    sizes = sorted({size for name, size, _ in rows if name == model})
    return sizes[min(1, len(sizes) - 1)]


def measured_row(step: predict.Trained, gpu: str) -> Row:
    """The same of a recorded step of a real GPU; its peaks are with cuDNN's workspaces."""
    row, without = step.row, step.allocated_without_cudnn
    return Row(gpu, row["model"], row["batch"], row["mode"], without or step.allocated, step.reserved, step.allocated)


def table(rows: Sequence[Row]) -> str:
    """A row per model: recorded MiB, and how much the prediction is off."""
    lines = []
    for model, batch in dict.fromkeys((row.model, row.batch) for row in rows):
        cells = []
        for mode in COLUMNS:
            found = [row for row in rows if (row.model, row.batch, row.mode) == (model, batch, mode)]
            cells.append(
                f"{found[0].allocated.recorded / MiB:,.0f} ({_percent(found[0].allocated.error)})" if found else "–"
            )
        lines.append([f"{model}, {batch}", *cells])
    return report.table(" | ".join(["model, batch", *COLUMNS.values()]), lines)


def _percent(error: float) -> str:
    return f"{signed(error, 2)} %" if abs(error) >= 0.00005 else "0.00 %"


def summary(rows: Sequence[Row], gpu: str) -> str:
    """One line: medians and worst."""
    parts = [f"{gpu}, {len(rows)} steps: peak allocated {_spread([row.allocated for row in rows])}"]
    parts.append(f"reserved {_spread([row.reserved for row in rows])}")
    with_cudnn = [row.with_cudnn for row in rows if row.with_cudnn is not None]
    if with_cudnn:
        parts.append(f"allocated with cuDNN's workspaces {_spread(with_cudnn)}")
    return "- " + "; ".join(parts) + "."


def _spread(pairs: Sequence[predict.Pair]) -> str:
    worst = max(pairs, key=lambda pair: abs(pair.error))
    middle = median(abs(pair.error) for pair in pairs)
    return f"median {100 * middle:.2f} %, worst {_percent(worst.error)} ({worst.what})"


Real = tuple[dict[str, Any], Sequence[predict.Trained]]  # a recording of a real GPU, and its steps


def compared(real: Sequence[Real]) -> str:
    """A column for each real GPU: what is exact, allocated and reserved memory, and time by what is the limit."""
    columns = [_column(recording, steps) for recording, steps in real]
    lines = [[what, *(column[what] for column in columns)] for what in columns[0]]
    head = " | ".join(recording["device"]["name"].removeprefix("NVIDIA ") for recording, _ in real)
    return report.table(f"measured on, beside the prediction | {head}", lines)


def _column(recording: Mapping[str, Any], steps: Sequence[predict.Trained]) -> dict[str, str]:
    asked = [step.requested for step in steps if step.requested is not None]
    timed = [step for step in steps if step.time is not None]
    return {
        "to the byte: events of the allocator": _exact(list(predict.allocator(recording))),
        "to the byte: what operations keep for backward": _exact(list(predict.saved(recording))),
        "to the byte: peaks of steps, as a program asks": _exact(asked),
        "peak allocated": _off([step.allocated for step in steps]),
        "peak reserved, which decides whether a step runs out": _off([step.reserved for step in steps]),
        "step time, the kernels are the limit": _off([step.time for step in timed if not step.host_bound]),
        "step time, the host is the limit": _off([step.time for step in timed if step.host_bound]),
        "the kernels alone": _off([step.kernels for step in steps if step.kernels is not None]),
    }


def _exact(pairs: Sequence[predict.Pair]) -> str:
    return f"{sum(pair.recorded == pair.predicted for pair in pairs):,} of {len(pairs):,}"


def _off(pairs: Sequence[predict.Pair | None]) -> str:
    """How many, by how much in the middle, and the worst, of which all are trained with AdamW."""
    found = [pair for pair in pairs if pair is not None]
    if not found:
        return "not recorded"
    few = sum(pair.error < 0 for pair in found)
    return f"{len(found)} steps, {few} too small: {re.sub(' adamw( ms| kernels)?', '', _spread(found))}"


def _is_shown(row: Mapping[str, Any]) -> bool:
    return row["mode"] in COLUMNS and row["optimizer"] == "adamw"


@dataclass
class Report:
    """The parts of docs/accuracy.md, and the lines of it that README.md keeps. What the page calls {real} yields
    `real`, and so on; in this order, since what is published is run once."""

    capabilities: Sequence[str]
    rows_of_a_set: int = 24
    processes: int = 2
    parts: list[str] = field(default_factory=list)
    brief: list[str] = field(default_factory=list)

    def make(self, quick: bool) -> None:
        """All parts, each printed as soon as it is there; `quick` leaves out what is published."""
        for block in PAGE[2 : PAGE.index(PUBLISHED) if quick else None]:
            name = re.fullmatch(r"\{(\w+)\}", block)
            for part in getattr(self, name[1])() if name else [block] if block != PUBLISHED else []:
                print(part, end="\n\n", flush=True)
                self.parts.append(part)

    def real(self) -> Iterator[str]:
        """Recordings of real GPUs."""
        every = {path: predict.load(path) for path in predict.recordings()}
        files = {path: recording for path, recording in every.items() if predict.is_of_a_gpu(recording)}
        steps = {path: list(predict.steps(recording, _is_shown)) for path, recording in files.items()}
        overview = compared([(files[path], steps[path]) for path in files])
        self.brief += [overview, ""]
        yield overview
        yield LIMITS
        for path, recording in files.items():
            device = recording["device"]
            yield f"Measured on {device['name']}, torch {device['torch']} (`{path.name}`): {WHAT}"
            yield table([measured_row(step, device["name"]) for step in steps[path]])

    def stand_in(self) -> Iterator[str]:
        """PyTorch's CUDA code on the stand-in for the driver."""
        everything: list[Row] = []
        lines = []
        for capability in self.capabilities:
            rows = list(stand_in_rows(capability))
            if not everything:
                yield f"{rows[0].gpu}: {WHAT}"
                yield table(rows)
            everything += rows
            lines.append(summary(rows, rows[0].gpu))
        yield "\n".join(lines)
        yield "Left out: " + "; ".join(f"{name} ({why})" for name, why in NO_REFERENCE.items()) + "."
        self.brief.append(
            f"- Peak memory of {len(everything)} training steps against PyTorch's own CUDA code: "
            f"{_spread([row.allocated for row in everything])}."
        )

    @functools.cached_property
    def early(self) -> list[Predicted]:
        return report.early()

    def bert(self) -> Iterator[str]:
        rows = [done for done in self.early if done.row.unit == "process MiB"]
        yield published("BERT-large, 512 tokens, V100-16 | published, MiB | virtual, MiB |", rows, {BERT: ""})
        self.after_bert = f"- Peak memory of BERT-large against {len(rows)} published figures: {_range(rows)}."

    def speeds(self) -> Iterator[str]:
        rows = [done for done in self.early if done.row.unit == "samples/s"]
        names = {RESNET: "ResNet-50, ", BERT: "BERT-large, V100-16, "}
        yield published("samples per second | published | virtual |", rows, names)

    def steps(self) -> Iterator[str]:
        """Published steps of timm's models and of others, beside the clock's."""
        self.timm = list(report.timm_sets(self.rows_of_a_set, self.processes))
        self.others, self.memory = report.others()
        self.measured = [found for found in (*self.timm, *self.others) if found.rows]
        yield report.table(report.HEAD, map(report.cells, self.measured))
        ratios = [row.ratio for found in self.timm if "," not in found.name for row in found.rows]
        near = sum(abs(ratio - 1) <= 0.25 for ratio in ratios) / len(ratios)
        self.brief += [
            f"- Speed of {len(ratios)} published steps of timm's models, which nothing was fitted to: median error "
            f"{100 * median(abs(ratio - 1) for ratio in ratios):.0f} %, {100 * near:.0f} % of them within 25 %.",
            self.after_bert,
        ]

    def hosts(self) -> Iterator[str]:
        yield "\n".join(report.launch_bound(self.measured))

    def products(self) -> Iterator[str]:
        rates = "; ".join(f"{name} {report.sustained(name):.1f} TFLOP/s" for name in ("T4", "L4"))
        yield f"4096³ products in fp16, one after the other: {rates} (a T4 sustains about 24)."

    def failures(self) -> Iterator[str]:
        if failed := report.failures([*self.timm, *self.others]):
            yield "Rows that do not run here, and what they say:"
            yield "\n".join(failed)

    def memories(self) -> Iterator[str]:
        yield report.memory_table(self.memory)


def published(head: str, rows: Sequence[Predicted], names: Mapping[str, str]) -> str:
    """Published figures, each beside ours; `names` has by source what stands before the setting."""
    lines = []
    for done in rows:
        row, digits = done.row, 2 if done.row.value < 20 else 0
        figures = [f"{figure:,.{digits}f}" for figure in (row.value, done.virtual)]
        lines.append((names[row.source] + row.setting, *figures, f"{signed(done.error)} %"))
    return report.table(head, lines)


def _range(rows: Sequence[Predicted]) -> str:
    errors = [done.error for done in rows]
    middle = median(abs(error) for error in errors)
    return f"median error {100 * middle:.1f} %, from {signed(min(errors))} to {signed(max(errors))} %"


def write_readme(text: str, path: Path = ROOT / "README.md") -> None:
    """Replace what stands between the marks; raises ValueError where they are missing."""
    old = path.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} lacks the marks {BEGIN.strip()} and {END.strip()}")
    path.write_text(before + begin + text + "\n" + end + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", nargs="+", default=["8.0", "7.5", "9.0"], metavar="CAPABILITY", help="default: all")
    parser.add_argument("--quick", action="store_true", help="without what is published")
    parser.add_argument("--rows", type=int, default=24, metavar="N", help="rows of each of timm's settings (24)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that run timm's models at once (2)")
    parser.add_argument("--write", action="store_true", help="rewrite docs/accuracy.md and its lines in README.md")
    args = parser.parse_args()
    if args.write and (args.quick or args.gpu != parser.get_default("gpu")):
        parser.error("--write writes the whole report: leave out --quick and --gpu")
    made = Report(args.gpu, args.rows, args.processes)
    made.make(args.quick)
    if args.write:
        (ROOT / "docs" / "accuracy.md").write_text("\n\n".join([HEAD, *made.parts]) + "\n", encoding="utf-8")
        write_readme("\n".join(made.brief))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
