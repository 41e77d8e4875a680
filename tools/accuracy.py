"""How exact the virtual GPU is: `python tools/accuracy.py [--gpu 8.0 …] [--quick] [--write]`.

Runs recorded training steps on the virtual GPU and prints, as Markdown, what was recorded and by how much the
prediction is off; `--write` makes docs/accuracy.md of it, and the three lines between the two marks in README.md. It is
no test: a miss is shown as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from evidence import bert_large, clock_report, published_speed

from virtualgpu.validate import memory, predict
from virtualgpu.validate.models import by_name

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = ROOT / "tests" / "virtualgpu" / "torch_cuda" / "steps.json"
BEGIN, END = "<!-- accuracy: written by `python tools/accuracy.py --write` -->\n", "<!-- accuracy: end -->\n"
MiB = 1 << 20

COLUMNS = {"fp32": "fp32", "amp_fp16": "AMP fp16", "amp_bf16": "AMP bf16", "accum4_bf16": "4 micro-batches, bf16"}
# What the stand-in for cuDNN leaves out, so that its figure is known to be too small.
NO_REFERENCE = {"lstm": "without cuDNN there is no reserve of recurrent layers"}


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
    head = ["model, batch", *COLUMNS.values()]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model, batch in dict.fromkeys((row.model, row.batch) for row in rows):
        cells = []
        for mode in COLUMNS:
            found = [row for row in rows if (row.model, row.batch, row.mode) == (model, batch, mode)]
            cells.append(
                f"{found[0].allocated.recorded / MiB:,.0f} ({_percent(found[0].allocated.error)})" if found else "–"
            )
        lines.append(f"| {model}, {batch} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def to_the_byte(recordings: Sequence[tuple[dict[str, Any], Sequence[predict.Trained]]]) -> str:
    """One line: what of the bytes of these real GPUs is predicted exactly."""
    events = [pair for recording, _ in recordings for pair in predict.allocator(recording)]
    saved = [pair for recording, _ in recordings for pair in predict.saved(recording)]
    asked = [step.requested for _, steps in recordings for step in steps if step.requested is not None]
    counts = [
        f"{sum(pair.recorded == pair.predicted for pair in pairs):,} of {len(pairs):,} {what}"
        for pairs, what in (
            (events, "events of the allocator"),
            (saved, "figures of what operations keep for backward"),
            (asked, "peaks of training steps, as the program asks for them"),
        )
    ]
    names = " and ".join(recording["device"]["name"] for recording, _ in recordings)
    return f"- {names}, to the byte: {', '.join(counts)}."


def _percent(error: float) -> str:
    return f"{100 * error:+.2f} %".replace("-", "−") if abs(error) >= 0.00005 else "0.00 %"


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


def bert(rows: Sequence[bert_large.Predicted]) -> str:
    """The published BERT-large rows."""
    lines = ["| BERT-large, 512 tokens, V100-16 | published, MiB | virtual, MiB | |", "|---|---|---|---|"]
    for row in rows:
        lines.append(_published(row.training.name, row.training.published_mib, row.process, row.error, 0))
    return "\n".join(lines)


def speeds(resnets: Sequence[published_speed.Predicted], berts: Sequence[bert_large.Predicted]) -> str:
    """Published training speeds."""
    lines = ["| samples per second | published | virtual | |", "|---|---|---|---|"]
    for resnet in resnets:
        name, published = f"ResNet-50, {resnet.training.name}", resnet.training.images_per_second
        lines.append(_published(name, published, resnet.images_per_second, resnet.error, 0))
    for row in berts:
        name = f"BERT-large, V100-16, {row.training.name}"
        lines.append(_published(name, row.training.samples_per_second, row.samples_per_second, row.speed_error, 2))
    return "\n".join(lines)


def _published(name: str, published: float, virtual: float, error: float, digits: int) -> str:
    percent = f"{100 * error:+.1f} %".replace("-", "−")
    return f"| {name} | {published:,.{digits}f} | {virtual:,.{digits}f} | {percent} |"


def times(rows: Sequence[predict.Trained]) -> str:
    """One line on the step times of a real GPU; those that launches bound, apart."""
    parts = []
    for what, bound in (("step time", False), ("step time where launches bound it", True)):
        pairs = [row.time for row in rows if row.time is not None and row.launch_bound == bound]
        if pairs:
            parts.append(f"{what}, {len(pairs)} steps: {_spread([pair for pair in pairs if pair is not None])}")
    kernels = [row.kernels for row in rows if row.kernels is not None]
    if kernels:
        parts.append(f"the kernels alone, without the host, {len(kernels)} steps: {_spread(kernels)}")
    return "- " + "; ".join(parts) + "." if parts else "- No step times were recorded."


@dataclass
class Report:
    """The parts of docs/accuracy.md, and the lines of it that README.md keeps."""

    parts: list[str]
    brief: list[str]

    def add(self, part: str) -> None:
        """A part, printed as soon as it is there."""
        print(part, end="\n\n", flush=True)
        self.parts.append(part)


def clock(out: Report, rows: int, processes: int) -> None:
    """Published steps of timm's models and of others, beside the clock's; and the memories published with them."""
    out.add("## Published steps")
    out.add(CLOCK)
    timm = list(clock_report.timm_sets(rows, "judge", processes))
    others, memories = clock_report.others()
    measured = [found for found in (*timm, *others) if found.pairs]
    out.add("\n".join([clock_report.HEAD, *map(clock_report.line, measured)]))
    out.add(HOST)
    out.add("\n".join(clock_report.launch_bound(measured)))
    out.add(f"4096³ products in fp16, one after the other: {clock_report.loops()} (a T4 sustains about 24).")
    whole = [found for found in timm if "," not in found.name]
    failed = clock_report.failures((*whole, *others))
    if failed:
        out.add("Rows that do not run here, and what they say:")
        out.add("\n".join(failed))
    out.add(MISSED)
    out.add("## Memory published with these steps")
    out.add(MEMORY)
    out.add(clock_report.memory_table(memories))
    ratios = [pair.ratio for found in whole for pair in found.pairs]
    near = sum(abs(ratio - 1) <= 0.25 for ratio in ratios) / len(ratios)
    out.brief.append(
        f"- Speed of {len(ratios)} published steps of timm's models, which nothing was fitted to: median error "
        f"{100 * median(abs(ratio - 1) for ratio in ratios):.0f} %, {100 * near:.0f} % of them within 25 %."
    )


def report(capabilities: Sequence[str], *, quick: bool, rows_of_a_set: int = 24, processes: int = 2) -> Report:
    """All of it; `quick` leaves out what is published."""
    out = Report([], [])
    real = [(path, predict.load(path)) for path in predict.recordings()]
    real = [(path, recording) for path, recording in real if predict.is_of_a_gpu(recording)]
    out.add("## Real GPUs")
    done: list[tuple[dict[str, Any], list[predict.Trained]]] = []
    for path, recording in real:
        steps = list(predict.steps(recording, lambda row: row["mode"] in COLUMNS and row["optimizer"] == "adamw"))
        rows, device = [measured_row(step, recording["device"]["name"]) for step in steps], recording["device"]
        done.append((recording, steps))
        out.add(f"Measured on {device['name']}, torch {device['torch']} (`{path.name}`): {WHAT}")
        out.add(table(rows))
        out.add("\n".join([to_the_byte(done[-1:]), summary(rows, device["name"]), times(steps)]))
    if done:
        out.brief += [to_the_byte(done), times([step for _, steps in done for step in steps])]
    out.add(STEPS_MISSED if real else "No real GPU has been recorded yet.")
    out.add("## PyTorch's own CUDA code, without a GPU")
    out.add(REFERENCE)
    everything: list[Row] = []
    lines = []
    for capability in capabilities:
        rows = list(stand_in_rows(capability))
        if not everything:
            out.add(f"{rows[0].gpu}: {WHAT}")
            out.add(table(rows))
        everything += rows
        lines.append(summary(rows, rows[0].gpu))
    out.add("\n".join(lines))
    out.add("Left out: " + "; ".join(f"{name} ({why})" for name, why in NO_REFERENCE.items()) + ".")
    out.brief.append(
        f"- Peak memory of {len(everything)} training steps against PyTorch's own CUDA code: "
        f"{_spread([row.allocated for row in everything])}."
    )
    if not quick:
        berts, resnets = list(bert_large.predicted()), list(published_speed.predicted())
        out.add("## Published memory")
        out.add(BERT)
        out.add(bert(berts))
        out.add("## Published speed")
        out.add(SPEED)
        out.add(speeds(resnets, berts))
        clock(out, rows_of_a_set, processes)
        memory_off = [row.error for row in berts]
        out.brief.append(
            f"- Peak memory of BERT-large against {len(memory_off)} published figures: {_range(memory_off)}."
        )
    return out


def _range(errors: Sequence[float]) -> str:
    middle = median(abs(error) for error in errors)
    low, high = (f"{100 * found:+.1f}".replace("-", "−") for found in (min(errors), max(errors)))
    return f"median error {100 * middle:.1f} %, from {low} to {high} %"


STEPS_MISSED = """\
Of what is further off than it should be, the causes that are known:

- **Convolutions in TF32 and float32**: where cuDNN goes Fourier's way, splits sums or takes Winograd's in TF32 is not
  mirrored.
- **Equal blocks**: up to torch 2.11 the allocator chooses between them by CUDA's addresses; a step whose requests are
  known to the byte may be up to 0.6 % off as it is allocated.
- **Time**: this machine's host is slow, and its steps of 20 ms vary by a factor of 2 from row to row: what is said of
  kernels alone tells the two apart. Where kernels are the limit: transformers 1.0 to 0.8, convolutions 1.2 to 0.7; an
  LSTM in bf16 is furthest off."""
WHAT = "peak allocated of a training step with AdamW, recorded in MiB, and how much the prediction is off."
REFERENCE = """\
The reference below is PyTorch's own CUDA code, run on a stand-in for the driver: its operators, autograd, autocast,
optimizers and allocator decide every byte, but no kernel runs, and cuDNN takes no workspaces where not said
otherwise."""
BERT = """\
Published by Hugging Face for BERT-large (the driver's figure, libraries of 2022), beside the virtual peak reserved and
their context of 1343 MiB, with today's `transformers`; shown as it comes out:"""

SPEED = """\
Speeds that NVIDIA (ResNet-50, its own container and fused kernels) and Hugging Face (BERT-large) publish, beside the
virtual clock's; its rates come from published microbenchmarks, and nothing was fitted to these:"""
CLOCK = """\
Speeds of timm's models (settings of pytorch-image-models) and of other published trainings, beside the virtual
clock's: `virtualgpu/published/`. Of timm's rows those are run that a hash of the model's name chooses, from the half
that was not looked at while the rules were made; of the others all are run. "Rank" is Spearman's; "formulas" is what
`torch.utils._runtime_estimation` gives for the same operations with the data sheet's figures; "one factor" divides by
the set's median first, so that what remains is the scatter between models. cuDNN 8.3, of PyTorch 1.12, ran grouped
convolutions with channels last at a fraction of today's speed: a line without the models that have them follows.
`fp32`, `amp`, `bf16`, `b8` (batch), `s256` (tokens) are as the source names them."""
HOST = """\
Where the virtual kernels cover less than 70 % of the published step, the host is the limit, and every source had its
own: the factor between it and the virtual one, and what remains after it:"""
MISSED = """\
What is further off than it should be, by cause:

- **cuDNN 8.3's grouped convolutions** with channels last (`dm_nfnet`, `regnet` in the training rows of 2022).
- **Group and layer norms that autocast runs in float32** (`vit_*_r*` 0.5 to 0.6, the rows that run out of memory): the
  published ones are as fast as with the norms in 16 bits, for which timm has an option; the source does not say.
- **Depthwise training** with channels last, cuDNN 8.1: EfficientNet 1.4 to 1.6 on the A100, 1.2 to 1.4 on the V100.
- **Transformers in 16 bits on an A100 or an L40S** where the host is not the limit: 1.2 to 1.4. Not understood.
- **GPT-2 by hand**: 1.2, in bf16 1.4 to 1.7; its loop loads data and evaluates in between, which is left out here, and
  the kind of A100 is not said.
- **Attention over pooled or few tokens** (`pit`, `xcit`, `hiera`, `poolformer`): 1.2 to 1.8.
- **One image at a time**: twice as fast as on the machines of that table; a slower host (`VirtualGPU(host=7)`) comes
  near them.
- **The Max-Q board**: what it draws at 300 W is assumed from products; 1.1 to 1.3 where memory decides.
- **BERT-large's process memory**: libraries of 2022, whose allocator reserved more."""
MEMORY = """\
Peaks of the same trainings, and what a layer keeps by the formula of Korthikanti et al., in the sources' units:"""


HEAD = """\
# How exact the virtual GPU is

Written by `python tools/accuracy.py --write`; nothing here is a limit that a test holds, a miss is shown as it is. How
the virtual GPU works and what it leaves out is in [virtual_gpu.md](virtual_gpu.md)."""


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
    made = report(args.gpu, quick=args.quick, rows_of_a_set=args.rows, processes=args.processes)
    if args.write:
        (ROOT / "docs" / "accuracy.md").write_text("\n\n".join([HEAD, *made.parts]) + "\n", encoding="utf-8")
        write_readme("\n".join(made.brief))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
