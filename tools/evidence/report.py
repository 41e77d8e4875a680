"""What docs/accuracy.md says of published figures: predicted ones beside them, a line a set, the worst by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, quantiles
from typing import NamedTuple

import torch

from gpulab import VirtualGPU, data

from .measure import Predicted, predicted
from .trainings import BERT, RESNET, TIMM, timm_rows

LAUNCH_BOUND = 0.7  # of the published step: kernels that cover less of it leave the GPU waiting for the host
SHOWN = 3  # rows of a set that are named


class Set(NamedTuple):
    """Rows that belong together, and those of them that could not be run."""

    name: str
    rows: Sequence[Predicted]
    failed: Sequence[Predicted] = ()


def of(name: str, rows: Iterable[Predicted]) -> Set:
    rows = list(rows)
    return Set(name, [row for row in rows if not row.failed], [row for row in rows if row.failed])


def early() -> list[Predicted]:
    """ResNet-50 and BERT-large, which have tables of their own."""
    rows = predicted([row for source in (RESNET, BERT) for row in data.trainings(source)])
    if failed := of("", rows).failed:
        raise RuntimeError(f"{failed[0].row.setting}: {failed[0].failed}")
    return rows


def timm_sets(count: int, processes: int) -> Iterator[Set]:
    """The first `count` rows of the half of each of timm's settings that judges.

    cuDNN 8.3, of PyTorch 1.12, had no quick kernels for grouped convolutions with channels last; that of today is meant
    here. So a setting of that kind follows once more without the models that have them.
    """
    for setting in TIMM:
        found = of(setting, predicted(timm_rows(setting, count), processes))
        yield found
        if "-nhwc-pt112-" in setting:
            yield Set(f"{setting}, no grouped convolutions", [row for row in found.rows if not row.grouped])


def others() -> tuple[list[Set], list[Predicted]]:
    """The speeds of the other published trainings by source and GPU, and their memories."""
    sets: dict[str, list[Predicted]] = defaultdict(list)
    memories = []
    for done in predicted(row for row in data.trainings() if row.source not in (RESNET, BERT)):
        if done.failed or done.row.unit.endswith("/s"):
            sets[f"{done.row.source}, {done.row.gpu}"].append(done)
        else:
            memories.append(done)
    return [of(name, rows) for name, rows in sets.items()], memories


def table(head: str, rows: Iterable[Sequence[str]], columns: int = 0) -> str:
    """A Markdown table."""
    columns = columns or head.count("|") + 1
    return "\n".join([f"| {head} |", "|" + "---|" * columns, *(f"| {' | '.join(row)} |" for row in rows)])


HEAD = (
    "set | rows | virtual / published: median (quartiles) | median error | within 25 % | rank | the same by"
    " formulas: median error, after one factor | ours after one factor | worst"
)


def cells(found: Set) -> list[str]:
    """One row of the table with that head."""
    ratios = [row.ratio for row in found.rows]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    formulas = [row.formula / row.row.value for row in found.rows if row.formula]
    worst = sorted(found.rows, key=lambda row: max(row.ratio, 1 / row.ratio), reverse=True)[:SHOWN]
    return [
        found.name,
        str(len(ratios)),
        f"{middle:.2f} ({low:.2f}–{high:.2f})",
        percent(_error(ratios)),
        percent(sum(abs(ratio - 1) <= 0.25 for ratio in ratios) / len(ratios)),
        f"{rank(found.rows):.3f}" if len(ratios) > 2 else "–",
        f"{percent(_error(formulas))}, {percent(_error(_centred(formulas)))}" if formulas else "–",
        percent(_error(_centred(ratios))),
        ", ".join(f"{row.row.setting} {row.ratio:.2f}" for row in worst),
    ]


def failures(sets: Iterable[Set]) -> list[str]:
    """Trainings that could not be run, each by name."""
    lines = [f"- {found.name}: {row.row.setting}: {row.failed}" for found in sets for row in found.failed]
    return list(dict.fromkeys(lines))


def memory_table(memories: Sequence[Predicted]) -> str:
    """Each source and unit in one row: the errors, and the worst by name."""
    groups: dict[tuple[str, ...], list[Predicted]] = defaultdict(list)
    for done in memories:
        groups[done.row.source, done.row.gpu, done.row.unit].append(done)
    lines = []
    for key, rows in groups.items():
        errors = [abs(row.error) for row in rows]
        off = [f"{row.row.setting} {signed(row.error)} %" for row in rows if abs(row.error) > 0.05]
        near = percent(sum(error <= 0.05 for error in errors) / len(errors))
        lines.append((", ".join(key), str(len(rows)), f"{100 * median(errors):.1f} %", near, "; ".join(off) or "–"))
    return table("source, GPU, what | rows | median error | within 5 % | further off", lines)


def rank(rows: Sequence[Predicted]) -> float:
    """Spearman's rank correlation of predicted and published speeds."""
    places = []
    for values in ([row.virtual for row in rows], [row.row.value for row in rows]):
        order = sorted(range(len(values)), key=values.__getitem__)
        places.append({index: place for place, index in enumerate(order)})
    n = len(rows)
    return 1 - 6 * sum((places[0][i] - places[1][i]) ** 2 for i in range(n)) / (n * (n * n - 1))


def launch_bound(sets: Iterable[Set]) -> list[str]:
    """For each source the factor of its host, and the spread of its launch-bound rows that remains."""
    lines = []
    for found in sets:
        ratios = [row.ratio for row in found.rows if row.kernels < LAUNCH_BOUND]
        if ratios:
            factor = median(ratios)
            off = max(max(ratio / factor, factor / ratio) for ratio in ratios) - 1
            lines.append(f"- {found.name}: {len(ratios)} rows, factor {factor:.2f}, then at most {percent(off)} off.")
    return lines


def sustained(name: str, size: int = 4096, seconds: float = 1.0) -> float:
    """TFLOP/s of fp16 products of `size`³ that follow one another for `seconds`: what the board's power allows."""
    with VirtualGPU(name, compute=False) as gpu:
        a = torch.empty(size, size, dtype=torch.float16, device="cuda")
        a @ a
        torch.cuda.synchronize()
        began, products = gpu.clock.host, 0
        while gpu.clock.now() - began < seconds:
            a @ a
            products += 1
        return products * 2 * size**3 / (gpu.clock.now() - began) / 1e12


def _centred(ratios: Sequence[float]) -> list[float]:
    middle = median(ratios)
    return [ratio / middle for ratio in ratios]


def _error(ratios: Sequence[float]) -> float:
    return median(abs(ratio - 1) for ratio in ratios)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def signed(error: float, digits: int = 1) -> str:
    """In percent, with its sign."""
    return f"{100 * error:+.{digits}f}".replace("-", "−")
