"""What docs/accuracy.md says of the clock: predicted speeds beside published ones, a line a set, the worst by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from . import published_others, published_speed, published_timm
from .published_timm import Half

LAUNCH_BOUND = 0.7  # of the published step: kernels that cover less of it leave the GPU waiting for the host
SHOWN = 3  # rows of a set that are named


class Pair(NamedTuple):
    """Samples, tokens or steps per second, `formula` by `RuntimeEstimator`'s (0 where it was not asked)."""

    name: str
    published: float
    virtual: float
    formula: float
    kernels: float  # share of the published step that the virtual kernels cover

    @property
    def ratio(self) -> float:
        return self.virtual / self.published


class Set(NamedTuple):
    """Rows that belong together; `failed` are those that could not be run, and why."""

    name: str
    pairs: Sequence[Pair]
    failed: Sequence[str]


def timm_sets(count: int, half: Half, processes: int) -> Iterable[Set]:
    """The first `count` rows of that half of each of timm's settings.

    cuDNN 8.3, of PyTorch 1.12, had no quick kernels for grouped convolutions with channels last; that of today is meant
    here. So a setting of that kind follows once more without the models that have them.
    """
    for setting in published_timm.SETTINGS:
        rows = published_timm.all_of(published_timm.sample(setting, count, half), processes)
        yield _set(setting.name, rows)
        if setting.channels_last and "pt112" in setting.name:
            yield _set(f"{setting.name}, no grouped convolutions", [done for done in rows if not done.grouped])


def _set(name: str, rows: Sequence[published_timm.Predicted]) -> Set:
    done = [row for row in rows if not row.failed]
    return Set(name, [_pair(row) for row in done], [f"{_name(row)}: {row.failed}" for row in rows if row.failed])


def _pair(done: published_timm.Predicted) -> Pair:
    kernels = done.busy * done.row.samples_per_s / done.virtual
    return Pair(_name(done), done.row.samples_per_s, done.virtual, done.formula, kernels)


def _name(done: published_timm.Predicted) -> str:
    return f"{done.row.model} {done.row.image_size}"


class Memory(NamedTuple):
    """Published bytes of a training and ours, in `unit`."""

    source: str
    setting: str
    gpu: str
    unit: str
    published: float
    virtual: float

    @property
    def error(self) -> float:
        return self.virtual / self.published - 1


def others() -> tuple[Sequence[Set], Sequence[Memory]]:
    """The speeds of `others.csv` by source and GPU, and its memories."""
    sets: dict[str, tuple[list[Pair], list[str]]] = defaultdict(lambda: ([], []))
    memories = []
    for done in published_others.predicted():
        row = done.row
        pairs, failed = sets[f"{row.source}, {row.gpu}"]
        if done.failed:
            failed.append(f"{row.setting}, {row.unit}: {done.failed}")
        elif row.unit.endswith("/s"):
            kernels = done.busy * row.value / done.virtual
            pairs.append(Pair(row.setting, row.value, done.virtual, done.formula, kernels))
        else:
            memories.append(Memory(row.source, row.setting, row.gpu, row.unit, row.value, done.virtual))
    return [Set(name, *found) for name, found in sets.items() if found[0] or found[1]], memories


HEAD = (
    "| set | rows | virtual / published: median (quartiles) | median error | within 25 % | rank | the same by"
    " formulas: median error, after one factor | ours after one factor | worst |\n|" + "---|" * 9
)


def line(found: Set) -> str:
    """One row of the table."""
    ratios = [pair.ratio for pair in found.pairs]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    formulas = [pair.formula / pair.published for pair in found.pairs if pair.formula]
    worst = sorted(found.pairs, key=lambda pair: max(pair.ratio, 1 / pair.ratio), reverse=True)[:SHOWN]
    cells = [
        found.name,
        str(len(ratios)),
        f"{middle:.2f} ({low:.2f}–{high:.2f})",
        _percent(_error(ratios)),
        _percent(sum(abs(ratio - 1) <= 0.25 for ratio in ratios) / len(ratios)),
        f"{rank(found.pairs):.3f}" if len(ratios) > 2 else "–",
        f"{_percent(_error(formulas))}, {_percent(_error(_centred(formulas)))}" if formulas else "–",
        _percent(_error(_centred(ratios))),
        ", ".join(f"{pair.name} {pair.ratio:.2f}" for pair in worst),
    ]
    return "| " + " | ".join(cells) + " |"


def failures(sets: Iterable[Set]) -> list[str]:
    """Rows that could not be run, each by name."""
    return [f"- {found.name}: {failed}" for found in sets for failed in found.failed]


def memory_table(memories: Sequence[Memory]) -> str:
    """Each source and unit in one row: the errors, and the worst by name."""
    groups: dict[tuple[str, str, str], list[Memory]] = defaultdict(list)
    for memory in memories:
        groups[memory.source, memory.gpu, memory.unit].append(memory)
    lines = ["| source, GPU, what | rows | median error | within 5 % | further off |", "|" + "---|" * 5]
    for key, rows in groups.items():
        errors = [abs(row.error) for row in rows]
        off = [f"{row.setting} {100 * row.error:+.1f} %".replace("-", "−") for row in rows if abs(row.error) > 0.05]
        near = _percent(sum(error <= 0.05 for error in errors) / len(errors))
        cells = (", ".join(key), str(len(rows)), f"{100 * median(errors):.1f} %", near, "; ".join(off) or "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def loops() -> str:
    """What boards with small power limits sustain."""
    rates = {name: published_speed.loop(name) for name in ("T4", "L4")}
    return "; ".join(f"{name} {rate:.1f} TFLOP/s" for name, rate in rates.items())


def rank(pairs: Sequence[Pair]) -> float:
    """Spearman's rank correlation of predicted and published speeds."""
    places = []
    for values in ([pair.virtual for pair in pairs], [pair.published for pair in pairs]):
        order = sorted(range(len(values)), key=values.__getitem__)
        places.append({index: place for place, index in enumerate(order)})
    n = len(pairs)
    return 1 - 6 * sum((places[0][i] - places[1][i]) ** 2 for i in range(n)) / (n * (n * n - 1))


def launch_bound(sets: Iterable[Set]) -> list[str]:
    """For each source the factor of its host, and the spread of its launch-bound rows that remains."""
    lines = []
    for found in sets:
        ratios = [pair.ratio for pair in found.pairs if pair.kernels < LAUNCH_BOUND]
        if ratios:
            factor = median(ratios)
            off = max(max(ratio / factor, factor / ratio) for ratio in ratios) - 1
            lines.append(f"- {found.name}: {len(ratios)} rows, factor {factor:.2f}, then at most {_percent(off)} off.")
    return lines


def _centred(ratios: Sequence[float]) -> list[float]:
    middle = median(ratios)
    return [ratio / middle for ratio in ratios]


def _error(ratios: Sequence[float]) -> float:
    return median(abs(ratio - 1) for ratio in ratios)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
