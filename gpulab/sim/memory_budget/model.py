"""What one training step takes on each GPU of a group, against the memory that GPUs have.

`needs` says what a model asks of one GPU, `job` what of it each rank holds; here it is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from virtualgpu.gpus.specs import SHOWN, Spec

from ..base.simulator import Limit, Result, Row
from ..base.words import article, many, size
from .job import CATEGORIES, MOST, PARALLEL_WORDS, Job, Moment
from .needs import CHECKPOINTING, OPTIMIZERS, PRECISIONS, PRESETS, needs

MODELS = {name: facts.words for name, facts in PRESETS.items()} | {
    "gpt_7_5b": "GPT 7.5B (ZeRO paper's table)",
    "custom": "GPT of free size",
}
_AS_LARGE = ("RTX3090", "RTX5090")  # as others that are shown
_BY_MEMORY = sorted((spec for spec in SHOWN.values() if spec.name not in _AS_LARGE), key=lambda spec: spec.memory_bytes)
TIGHT = 0.95  # of the memory: beyond it, the allocator's reserve decides


class Fit(NamedTuple):
    """One kind of GPU: `answer` is "fits", "tight" or "no", `largest` the largest batch, 0 if none; where it is "no",
    `ranks` says how many with FSDP would fit, 0 if none do."""

    spec: Spec
    answer: str
    free: int
    largest: int
    no_units: bool  # bf16 without hardware for it
    ranks: int

    @property
    def words(self) -> str:
        batch = "any batch" if self.largest >= MOST else f"batch up to {self.largest:,}" if self.largest else ""
        answer = {"fits": "✓", "tight": "✓ tight:", "no": f"✗ {amount(-self.free)} short" + ":" * bool(batch)}
        return f"{answer[self.answer]} {batch}".rstrip()


@dataclass(frozen=True)
class Budget(Result):
    """One rank's memory in the two fullest moments of a step, and which GPUs have it."""

    job: Job
    batch: int
    pixels: bool
    moments: tuple[Moment, Moment]  # as in `Job.moments`
    fits: tuple[Fit, ...]

    @property
    def at_end(self) -> bool:
        """Whether the peak is where all gradients are there."""
        return self.moments[1].total >= self.moments[0].total

    @property
    def peak(self) -> Moment:
        return self.moments[self.at_end]

    @property
    def states(self) -> int:
        """Model states of a rank in bytes: weights, gradients, optimizer state, all of them, as the paper counts."""
        stepping = self.job.stepping
        return stepping.weights + stepping.gradients + stepping.optimizer

    @property
    def fitting(self) -> list[str]:
        return [fit.spec.name for fit in self.fits if fit.answer != "no"]

    @property
    def finding(self) -> str:
        peak, ranks = self.peak, self.job.ranks
        if ranks == 1:
            found = f"{self.job.needs.words} trains in {amount(peak.total)}"
            more = peak.total / peak.weights
            more = round(more, 1) if more < 9.5 else round(more)
            return f"{found}, {more:,g} × its weights; {self._who}"
        how = f"With {PARALLEL_WORDS[self.job.parallel]}, each of {ranks:,} ranks needs"
        how = "DDP shards nothing: a rank needs" if self.job.parallel == "ddp" else how
        return f"{how} {amount(peak.total)}; {self._who}"

    @property
    def _who(self) -> str:
        names = self.fitting
        if not names:
            return "no GPU here has that much"
        if len(names) == len(self.fits):
            return "every GPU here has that much"
        if len(names) == 1:
            return f"only {names[0]} has that much"
        if len(names) == 2:
            return f"only {names[0]} and {names[1]} have that much"
        least = next(fit for fit in self.fits if fit.answer != "no")  # they are in the order of their memory
        return f"{article(names[0])} {'has just enough' if least.answer == 'tight' else 'is enough'}"

    def rows(self) -> list[Row]:
        job, asked = self.job, self.job.needs
        data = many(job.length, "pixel") + " a side" if self.pixels else many(job.length, "token")
        source = asked.source
        paper = " copy, as in the ZeRO paper" if job.precision == "master" else ""
        rows = [
            ("model", f"{asked.words}, {asked.parameters:,} parameters", ""),
            ("optimizer, precision", f"{OPTIMIZERS[job.optimizer]}; {PRECISIONS[job.precision]}{paper}", ""),
            ("checkpointing", CHECKPOINTING[job.checkpointing], ""),
            ("batch of a rank", f"{self.batch:,} of {data}", ""),
            ("ranks", f"{job.ranks:,}" + (f", {PARALLEL_WORDS[job.parallel]}" if job.ranks > 1 else ""), ""),
            ("", "as backward begins | as it ends", ""),
        ]
        for name, words in CATEGORIES.items():
            both = " | ".join(amount(getattr(moment, name)) for moment in self.moments)
            own = {"context": "virtual: assumed", "communication": "virtual: formula"}
            rows.append((words, both, own.get(name, source)))
        both = " | ".join(amount(moment.total) for moment in self.moments)
        rows.append(("total of a rank", both, source))
        rows.append(("model states of a rank (ZeRO paper's count)", billions(self.states), source))
        sent = f"{billions(job.traffic)}, {job.volume}" if job.ranks > 1 else "none"
        rows.append(("a rank sends in a step", sent, "virtual: ZeRO paper, section 7" if job.ranks > 1 else ""))
        for fit in self.fits:
            memory = f"{fit.spec.name}, {amount(fit.spec.memory_bytes)} (recorded)"
            rows.append((memory, fit.words + (", no bf16 units" if fit.no_units else ""), source))
        return rows


def billions(nbytes: int) -> str:
    """Bytes in the ZeRO paper's unit and in the driver's: `31.4 GB (29.2 GiB)`."""
    digits = 1 if nbytes >= 1e9 else 3
    return f"{nbytes / 1e9:,.{digits}f} GB ({nbytes / 2**30:,.{digits}f} GiB)"


def amount(nbytes: int) -> str:
    """Bytes as MiB below 1 GiB, then as GiB, TiB, PiB."""
    if nbytes < 10 * 2**30:
        return size(nbytes)
    unit = unit_of(nbytes)
    return f"{nbytes / UNITS[unit]:,.1f} {unit}"


UNITS = {"GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


def unit_of(nbytes: int) -> str:
    """The unit in which so many bytes are at least 1, and GiB below."""
    return next((unit for unit, each in reversed(UNITS.items()) if nbytes >= each), "GiB")


def simulate(
    model: str,
    optimizer: str,
    precision: str,
    checkpointing: str,
    batch: int,
    sequence: int,
    resolution: int,
    ranks: int,
    parallel: str,
    layers: int,
    hidden: int,
) -> Budget:
    """The memory of a step with `batch` samples on each of `ranks` GPUs.

    A sample is `sequence` tokens, or an image of `resolution` pixels a side. `layers` and `hidden` (the width) count
    for a model of free size, "custom".
    """
    pixels = takes_images(model)
    length = resolution if pixels else sequence
    job = Job(needs(model, layers, hidden), optimizer, precision, checkpointing, length, ranks, parallel)
    moments = job.moments(batch)
    total = max(moment.total for moment in moments)
    peaks = {many: replace(job, ranks=many, parallel="fsdp").peak(batch) for many in (2**i for i in range(1, 11))}
    return Budget(job, batch, pixels, moments, tuple(_fit(job, spec, total, peaks) for spec in _BY_MEMORY))


def takes_images(model: str) -> bool:
    return model in PRESETS and PRESETS[model].pixels


def _fit(job: Job, spec: Spec, total: int, peaks: Mapping[int, int]) -> Fit:
    """Whether `total` bytes fit; `peaks` are those of a rank with FSDP by the number of ranks."""
    free = spec.memory_bytes - total
    answer = "no" if free < 0 else "tight" if total > TIGHT * spec.memory_bytes else "fits"
    no_units = job.precision == "bf16" and not spec.has("bf16")
    ranks = next((many for many, peak in peaks.items() if peak <= spec.memory_bytes), 0) if answer == "no" else 0
    return Fit(spec, answer, free, job.largest(spec.memory_bytes), no_units, ranks)


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """A preset has its own sizes; text has no pixels, and images have no tokens; one rank has no parallelism."""
    model = values["model"]
    alone = {"parallel": Limit(0, 0, "", hidden=True)} if values["ranks"] == 1 else {}
    if model == "custom":
        text = "a GPT takes tokens, not images"
        return alone | {
            "layers": Limit(1, 128, ""),
            "hidden": Limit(256, 16_384, ""),
            "sequence": Limit(128, 32_768, ""),
            "resolution": Limit(0, 0, text, hidden=True),
        }
    facts = PRESETS[model]
    tokens, images = f"{facts.words} takes tokens, not images", f"{facts.words} takes images, not tokens"
    least = facts.longest if model == "vit_b_16" else 64
    reach = f"{facts.words} takes up to {facts.longest:,}"
    return alone | {
        "layers": Limit(facts.layers, facts.layers, f"{facts.words} has {facts.layers}", hidden=True),
        "hidden": Limit(facts.hidden, facts.hidden, f"{facts.words} is {facts.hidden:,} wide", hidden=True),
        "sequence": Limit(0, 0, images, hidden=True) if facts.pixels else Limit(128, facts.longest, reach),
        "resolution": Limit(least, facts.longest, reach) if facts.pixels else Limit(0, 0, tokens, hidden=True),
    }
