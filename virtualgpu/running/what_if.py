"""`run --what-if`: run the script again with one thing changed from outside, for each remedy, and compare.

Each trial is `python -m gpulab run --trial …` in a process of its own, whose report is read from its JSON; what the
script writes there is dropped. This process runs nothing of the script.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..choice import choose
from ..gpus.specs import SPECS
from ..units import duration, mib
from . import target, what_if_text
from .arguments import check_json
from .remedies import AS_IT_IS, NAMES, Remedy, remedies
from .trial import Ended, Trial, read, run

_SAME, _SAME_HERE = 0.01, 0.05  # changes that count as none; the second where this machine's time is in the step


@dataclass(frozen=True)
class Row:
    """A line of the table: `trial` is None where the script failed, and `why` says how."""

    label: str
    trial: Trial | None
    seconds: float | None = None
    cost: float | None = None
    fits: bool = False
    same: bool = False
    why: str = ""
    note: str = ""


def main(options: argparse.Namespace) -> int:
    """Try the remedies and print the table; return the script's exit code, 2 where nothing was run."""
    try:
        _check(options)
        prices, chosen = _prices(options.price), _chosen(options.remedies)
    except (target.CannotRun, ValueError) as error:
        print(f"gpulab run: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, _sigterm_as_interrupt():
        trials = _Trials(options, prices, Path(folder))
        try:
            code = trials.begin()
            if trials.rows:
                trials.go_on(chosen)
        except KeyboardInterrupt as signalled:
            code = target.INTERRUPTED if not signalled.args else signalled.args[0]
            _say("interrupted")
    if trials.rows:
        trials.show()
    return code


def _say(what: str) -> None:
    print(f"gpulab run --what-if: {what}", file=sys.stderr, flush=True)


def _check(options: argparse.Namespace) -> None:
    for given, why in (
        (choose(options.gpu)[0] == "real", "tries remedies on virtual GPUs, and --gpu real is not one"),
        (options.scaling, "and --scaling are two comparisons: leave one of them out"),
        ("RANK" in os.environ, "starts the ranks that it tries itself: leave torchrun out"),
        (not options.script and not options.module, "needs a script"),
    ):
        if given:
            raise target.CannotRun(f"--what-if {why}.")
    check_json(options.json)


def _prices(given: list[str]) -> dict[str, float]:
    """Return the price of an hour for each GPU that --price names."""
    prices = {}
    for text in ",".join(given).split(",") if given else ():
        name, _, amount = text.partition("=")
        if name.upper() not in SPECS or not amount.replace(".", "", 1).isdecimal():
            raise ValueError(f"--price has {text!r}; it must be a GPU and what an hour of it costs, as in T4=1")
        prices[name.upper()] = float(amount)
    return prices


def _chosen(given: str | None) -> tuple[str, ...]:
    names = NAMES if given is None else tuple(given.split(","))
    for name in names:
        if name not in NAMES:
            raise ValueError(f"--remedies has {name!r}; it must be some of {', '.join(NAMES)}")
    return names


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, with the exit code."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(128 + number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Trials:
    """The trials of one command, and the table of those that are done."""

    def __init__(self, options: argparse.Namespace, prices: Mapping[str, float], folder: Path) -> None:
        self.options, self.prices, self.folder = options, prices, folder
        self.rows: list[Row] = []
        self.left_out: dict[str, str] = {}
        self.report: dict[str, Any] = {}
        self.unit = "1M samples"

    def begin(self) -> int:
        """Run the script as it is; return its exit code. There is a row if remedies can be tried on it."""
        began = time.monotonic()
        _say(AS_IT_IS.label)
        ended = run(self.options, AS_IT_IS, self.folder)
        if ended.report is None:
            print(ended.words, file=sys.stderr)
            return ended.code
        self.base, self.report, self.facts, why = read(ended.report), ended.report, ended.facts, ""
        if self.base.ending["kind"] not in ("finished", "exit") and not self.base.out_of_memory:
            why = f"the script fails as it is, so nothing was tried: {self.base.ending['why']}"
        elif self.base.measured:
            why = "the script ran on a real GPU, and remedies are tried on virtual ones"
        elif not self.base.allocated and self.base.asked is None:
            why = f"the script puts nothing on the GPU, so nothing was tried; it ends with exit code {ended.code}"
        if why:
            _say(f"{why}.")
            return ended.code
        self.trains = bool(self.base.steps or (self.base.out_of_memory and self.facts["optimizers"]))
        if not self.trains or not self.facts["batch"]:
            self.unit = "1,000 steps" if self.trains else "1,000 runs"
        self.rows.append(self._row(AS_IT_IS, self.base, self.facts))
        _say(f"that took {duration(time.monotonic() - began)} here (measured), and so will each remedy")
        return ended.code

    def go_on(self, chosen: tuple[str, ...]) -> None:
        """Try the remedies."""
        early = self.base.out_of_memory and not self.base.steps
        found = remedies(vars(self.options), self.base.gpu, self.facts, self.base.enough, early=early)
        found = [remedy for remedy in found if remedy.name in chosen]
        self.left_out = {each.label: each.why_not or "interrupted" for each in found}
        found = [remedy for remedy in found if not remedy.why_not]
        for at, remedy in enumerate(found, 1):
            _say(f"{at} of {len(found)}, {remedy.label}")
            ended = run(self.options, remedy, self.folder)
            del self.left_out[remedy.label]
            self._add(remedy, ended)

    def _add(self, remedy: Remedy, ended: Ended) -> None:
        """Add a row for a trial, or the reason why it does not count."""
        if ended.report is None:
            self.rows.append(Row(remedy.label, None, why=ended.words))
            return
        trial, why = read(ended.report), ""
        if remedy.name == "micro-batch" and ended.facts["batch"] >= self.facts["batch"]:
            why = "the batches stay as large"
        elif remedy.options.get("gpu", trial.gpu) != trial.gpu:
            why = f"the script puts a {trial.gpu} of its own in place"
        elif remedy.name == "ranks" and not trial.exchanges:
            why = "the script exchanges nothing between ranks"
        if ended.code not in (0, self.base.ending["code"]) and not trial.out_of_memory:
            self.rows.append(Row(remedy.label, None, why=trial.ending["why"] or f"exit code {ended.code}"))
        elif why:
            self.left_out[remedy.label] = f"tried, and {why}"
        else:
            self.rows.append(self._row(remedy, trial, ended.facts))

    def show(self) -> None:
        """Print the table, and write it where --json says."""
        shapes = ", shapes only" if self.base.shapes_only else ""
        ranks = f", rank 0 of {self.base.ranks}" if self.base.ranks > 1 else ""
        title = f"gpulab run --what-if: {self.base.name} on a virtual {self.base.gpu}{ranks}{shapes}"
        once = self.trains and self.base.steps == 1
        text = what_if_text.as_text(
            title, self.rows, self.left_out, self.unit, priced=bool(self.prices), once=once, same=self._same()
        )
        to = self.options.json
        if to is not None:
            table = {"unit": self.unit, "rows": [asdict(row) for row in self.rows], "not_tried": self.left_out}
            written = json.dumps({**self.report, "what_if": table}, indent=2) + "\n"
            if to == "-":
                sys.stdout.write(written)
            else:
                Path(to).write_text(written, encoding="utf-8")
        print(text, end="", file=sys.stderr if to == "-" else sys.stdout)

    def _same(self) -> float:
        return _SAME if self.options.repeatable else _SAME_HERE

    def _row(self, remedy: Remedy, trial: Trial, facts: Mapping[str, Any]) -> Row:
        seconds = trial.seconds if self.trains else trial.whole
        price = self.prices.get(trial.gpu) if self.prices else 1.0
        cost = None
        number: float | None = 1e3 * trial.ranks  # of steps or runs that a GPU takes
        if self.unit == "1M samples":
            number = 1e6 / facts["samples"] if facts["samples"] else None
        if seconds is not None and number is not None and price is not None:
            cost = seconds / 3600 * trial.gpus * number * price
        fits, why = trial.asked is None, ""
        if trial.asked is not None:
            on = "" if trial.out_of_memory else ", and goes on"
            why = f"out of memory in step {trial.steps + 1}, which asks for {mib(trial.asked)}{on}"
        elif remedy.name not in ("micro-batch", "ranks") and trial.steps != self.base.steps and self.base.asked is None:
            why = f"{trial.steps} steps, not {self.base.steps}: the script did not do the same"
        elif trial.seconds is None and self.base.seconds is not None:
            why = f"too few steps for a time: {trial.steps}"
        compared = remedy is not AS_IT_IS and remedy.name not in ("gpu", "ranks") and why == self.rows[0].why
        same = compared and self._alike(trial, seconds)
        return Row(remedy.label, trial, seconds, cost, fits, same, why, remedy.note)

    def _alike(self, trial: Trial, seconds: float | None) -> bool:
        now = trial.allocated, trial.needed, seconds or 0
        before = self.base.allocated, self.base.needed, self.rows[0].seconds or 0
        return all(abs(a - b) <= self._same() * b for a, b in zip(now, before, strict=True))
