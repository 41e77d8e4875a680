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
import subprocess
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
from .command import again, check_json
from .remedies import AS_IT_IS, NAMES, SETTINGS, Remedy, remedies

_GRACE = 10  # seconds for a trial to end after SIGTERM
_SAME, _SAME_HERE = 0.01, 0.05  # changes that count as none; the second where this machine's time is in the step


@dataclass(frozen=True)
class Trial:
    """What this command needs of a report: bytes and seconds.

    `needed` is the driver's peak, of a run that was out of memory what it would have needed. `steps` are the first
    optimizer's, `seconds` their median; `whole` is the run's time. `asked` is the request that failed, `step` that in
    which it did; `enough` is the smallest GPU for it.
    """

    gpu: str
    ranks: int
    ending: Mapping[str, Any]
    measured: bool
    allocated: int
    needed: int
    total: int
    steps: int
    seconds: float | None
    whole: float | None
    exchanges: bool
    asked: int | None = None
    enough: str | None = None

    @property
    def out_of_memory(self) -> bool:
        return self.asked is not None and self.ending["kind"] == "error"


def read(report: Mapping[str, Any]) -> Trial:
    """Read the JSON of a run's report: the only place that knows its layout."""
    gpu = max(report["gpus"], key=lambda each: each["memory"]["peak_allocated"])
    memory, short = gpu["memory"], gpu["shortage"]
    allocated, needed, enough = memory["peak_allocated"], memory["peak_used"] or 0, None
    if short is not None:
        tried = short["tried"]
        needed = max(needed, memory["total"] - short["free"] + short["requested"])
        if tried is not None and tried["until"]:
            allocated, needed, enough = tried["allocated"], tried["used"], tried["gpu"]
    steps: dict[str, Any] = next(iter(report["steps"]), {})
    return Trial(
        gpu=report["gpu"],
        ranks=report["world_size"],
        ending=report["ending"],
        measured=report["numbers"] == "measured",
        allocated=allocated,
        needed=needed,
        total=memory["total"],
        steps=steps.get("count", 0),
        seconds=steps.get("median"),
        whole=(gpu["time"] or {}).get("elapsed"),
        exchanges=bool(steps.get("between")),
        asked=None if short is None else short["requested"],
        enough=enough,
    )


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
            print("gpulab run --what-if: interrupted", file=sys.stderr)
    if trials.rows:
        trials.show()
    return code


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
            raise ValueError(f"--price has {text!r}; it must be a GPU and what an hour of it costs, as in T4=0.35")
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
        report, self.facts, why = self._run(AS_IT_IS)
        if report is None:
            print(why, file=sys.stderr)
            return 2 if why.startswith("gpulab run: ") else 1
        self.base, self.report = read(report), report
        if self.base.ending["kind"] not in ("finished", "exit") and not self.base.out_of_memory:
            why = f"the script fails as it is, so nothing was tried: {self.base.ending['why']}"
        elif self.base.measured:
            why = "the script ran on a real GPU, and remedies are tried on virtual ones"
        elif not self.base.allocated and self.base.asked is None:
            why = "the script puts nothing on the GPU, so nothing was tried"
        if why:
            print(f"gpulab run --what-if: {why}.", file=sys.stderr)
            return int(self.base.ending["code"])
        self.trains = bool(self.base.steps or (self.base.out_of_memory and self.facts["optimizers"]))
        if not self.trains or not self.facts["batch"]:
            self.unit = "1,000 steps" if self.trains else "1,000 runs"
        self.rows.append(self._row(AS_IT_IS, self.base, self.facts))
        took = duration(time.monotonic() - began)
        print(f"  {took} on this machine (measured); each remedy takes about as long", file=sys.stderr)
        return int(self.base.ending["code"])

    def go_on(self, chosen: tuple[str, ...]) -> None:
        """Try the remedies."""
        early = self.base.out_of_memory and not self.base.steps
        found = remedies(vars(self.options), self.base.gpu, self.facts, self.base.enough, early=early)
        found = [remedy for remedy in found if remedy.name in chosen]
        self.left_out = {each.label: each.why_not or "interrupted" for each in found}
        for remedy in found:
            if remedy.why_not:
                continue
            del self.left_out[remedy.label]
            try:
                report, facts, why = self._run(remedy)
            except KeyboardInterrupt:
                self.left_out[remedy.label] = "interrupted"
                raise
            trial = None if report is None else read(report)
            if trial is None:
                self.rows.append(Row(remedy.label, None, why=why))
            elif self._fails(trial):
                self.rows.append(
                    Row(remedy.label, None, why=trial.ending["why"] or f"exit code {trial.ending['code']}")
                )
            elif remedy.name == "micro-batch" and facts["batch"] >= self.facts["batch"]:
                self.left_out[remedy.label] = "tried, and the batches stay as large"
            elif remedy.options.get("gpu", trial.gpu) != trial.gpu:
                self.left_out[remedy.label] = f"tried, and the script puts a {trial.gpu} of its own in place"
            elif remedy.name == "ranks" and not trial.exchanges:
                self.left_out[remedy.label] = "tried, and the script exchanges nothing between ranks"
            else:
                self.rows.append(self._row(remedy, trial, facts))

    def show(self) -> None:
        """Print the table, and write it where --json says."""
        shapes = ", shapes only" if self.report["shapes_only"] else ""
        title = f"gpulab run --what-if: {self.report['name']} on a virtual {self.base.gpu}{shapes}"
        text = what_if_text.as_text(title, self.rows, self.left_out, self.unit, bool(self.prices), self._same())
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

    def _fails(self, trial: Trial) -> bool:
        return trial.ending["code"] != self.base.ending["code"] and trial.ending["code"] != 0 and trial.asked is None

    def _row(self, remedy: Remedy, trial: Trial, facts: Mapping[str, Any]) -> Row:
        seconds = trial.seconds if self.trains else trial.whole
        price = self.prices.get(trial.gpu) if self.prices else 1.0
        cost = None
        number: float | None = 1e3 * trial.ranks  # of steps or runs that a GPU takes
        if self.unit == "1M samples":
            number = 1e6 / facts["samples"] if facts["samples"] else None
        if seconds is not None and number is not None and price is not None:
            cost = seconds / 3600 * number * price
        fits, why = trial.asked is None, ""
        if trial.asked is not None:
            on = "" if trial.out_of_memory else ", and goes on"
            why = f"out of memory in step {trial.steps + 1}, which asks for {mib(trial.asked)}{on}"
        elif remedy.name not in ("micro-batch", "ranks") and trial.steps != self.base.steps and self.base.asked is None:
            why = f"{trial.steps} steps, not {self.base.steps}: the script did not do the same"
        compared = remedy is not AS_IT_IS and remedy.name not in ("gpu", "ranks") and not why
        same = compared and fits == (self.base.asked is None) and self._alike(trial)
        return Row(remedy.label, trial, seconds, cost, fits, same, why, remedy.note)

    def _alike(self, trial: Trial) -> bool:
        pairs = [(getattr(of, name) or 0 for of in (trial, self.base)) for name in ("allocated", "needed", "seconds")]
        return all(abs(a - b) <= self._same() * b for a, b in pairs)

    def _run(self, remedy: Remedy) -> tuple[dict[str, Any] | None, dict[str, Any], str]:
        """Run the script with a remedy; return its report and what it did, or None and its last words."""
        print(f"gpulab run --what-if: {remedy.label} …", file=sys.stderr)
        report, facts, said = (self.folder / name for name in ("report.json", "facts.json", "stderr"))
        for file in (report, facts):
            file.unlink(missing_ok=True)
        environment = dict(os.environ)
        if remedy.settings:
            environment.pop(SETTINGS[1], None)
            environment[SETTINGS[0]] = remedy.settings
        command = again(self.options, report, trial=(remedy.patch, str(facts)), **remedy.options)
        with said.open("wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream, env=environment,
                start_new_session=os.name == "posix",
            )  # fmt: skip
            try:
                process.wait()
            finally:
                _end(process)
        if report.exists() and facts.exists():
            return json.loads(report.read_text(encoding="utf-8")), json.loads(facts.read_text(encoding="utf-8")), ""
        words = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return None, {}, words[-1] if words else f"it ended with exit code {process.returncode}, without a word"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a trial that still runs, with the processes that it has started."""
    if process.poll() is not None:
        return
    for number in ("SIGTERM", "SIGKILL"):
        if os.name == "posix":
            os.killpg(process.pid, getattr(signal, number))
        else:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return
