"""What a run of several ranks leaves: each rank's output and end, as data that shows itself, and the two errors.

Nothing here starts or stops a process. The texts hold no time and no process id, so they are the same on every machine.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from virtualgpu.units import count

SHOWN_LINES = 40  # of a rank's output, in the text of a run
_TOLD_LINES = 20  # of it, in an error

# How another rank's death looks from here.
_LOST = re.compile(
    r"Connection (closed by peer|reset by peer|refused)|Broken pipe|Socket closed|DistNetworkError"
    r"|ncclRemoteError|remote process (has )?(exited|terminated)"
)

_MORE = "Each rank's output: the exception's run, which in a notebook's next cell is sys.last_value.run."
_UNEQUAL = "A rank that has ended no longer answers: do all ranks make the same collective calls, in the same order?"


@dataclass(frozen=True, repr=False)
class Rank:
    """One process of a run.

    `exit_code` is negative for the number of the signal that ended it, None where it had not started or time was up.
    `output` is what it wrote to stdout and stderr, in order. `exception` ("ValueError: no such file") and `traceback`
    are those of the exception that ended its script, "" for none. `where` is the line of your code that it was at when
    time was up or a signal killed it, where that is known, and `collective` the function of torch.distributed that it
    waited in there ("all_reduce"). `stopped` says that it did not end by itself: another rank
    had failed, or time was up.
    """

    rank: int
    pid: int | None
    exit_code: int | None
    output: str
    exception: str = ""
    traceback: str = ""
    where: str = ""
    stopped: bool = False
    collective: str = ""
    finished: bool = False  # the script came to its end, whatever happened after it

    def __repr__(self) -> str:
        return f"<rank {self.rank} {self.ended}, {len(on_screen(self.output)):,} lines of output>"

    @property
    def failed(self) -> bool:
        """Whether it raised an exception, or ended by itself and not well."""
        return bool(self.exception) or not (self.stopped or self.exit_code in (0, None))

    @property
    def lost(self) -> bool:
        """Whether it failed because another rank had gone."""
        return self.failed and bool(_LOST.search(self.exception)) and "EADDRINUSE" not in self.exception

    @property
    def ended(self) -> str:
        """How it ended, in words that follow "rank 0"."""
        if self.exception:  # what comes after it, in the end of a process, differs from run to run
            return f"failed with {self.exception.partition(':')[0]}"
        if self.stopped:
            return "was stopped"
        if self.exit_code is None:
            return "had not started"
        if self.exit_code < 0:
            return f"was killed by {_signal(-self.exit_code)}"
        return f"failed with exit code {self.exit_code}" if self.exit_code else "finished"


@dataclass(frozen=True, repr=False)
class Run:
    """`script` on `len(ranks)` ranks; it took `seconds`, measured here, of which the start takes several.

    `grouped` says that the script itself names torch.distributed.
    """

    script: str
    ranks: tuple[Rank, ...]
    seconds: float
    grouped: bool = False

    def __repr__(self) -> str:
        lines = [f"{self.script} on {count(len(self.ranks), 'rank')}: {self._summary()}"]
        first: dict[str, int] = {}
        for rank in self.ranks:
            text = on_screen(rank.output)
            lines.append(f"-- rank {rank.rank} " + "-" * 40)
            same = first.setdefault("\n".join(text), rank.rank)
            if same != rank.rank and len(text) > 3:
                lines.append(f"(the same as rank {same})")
            else:
                lines += shortened(text, SHOWN_LINES, f"run.ranks[{rank.rank}].output has them") or ["(no output)"]
        return "\n".join(lines)

    def _summary(self) -> str:
        if all(rank.exit_code == 0 for rank in self.ranks):
            return "finished" if len(self.ranks) == 1 else "all finished"
        return "; ".join(_together(self.ranks))


class RankFailed(RuntimeError):
    """A rank failed, and brought the others down. `run` has all their output, `rank` is the one that failed first."""

    def __init__(self, message: str, run: Run, rank: Rank) -> None:
        super().__init__(message)
        self.run = run
        self.rank = rank


class TimeLimit(TimeoutError):
    """The ranks took longer than they may, and were stopped. `run` has all their output, and where each one was."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def failure_text(run: Run, culprit: Rank, beside: Sequence[str] = ()) -> str:
    """What to say of a run that `culprit` brought down; `beside` is what another backend would say."""
    others = [rank for rank in run.ranks if rank is not culprit]
    same = [rank for rank in others if rank.exception and _cause(rank) == _cause(culprit)]
    who = _with_verb([*same, culprit], culprit.ended)
    lines = [f"{run.script} on {count(len(run.ranks), 'rank')}: {who}{_place(culprit)}", *_reason(run, culprit)]
    if culprit.exception:
        lines += shortened(culprit.traceback.splitlines(), _TOLD_LINES, "the exception's rank.traceback has them")
    else:
        lines += _last_words(culprit, _TOLD_LINES)
    rest = [rank for rank in others if rank not in same]
    lines += [f"{what[0].upper()}{what[1:]}." for what in _together(rest, "went down with it")]
    return "\n".join([*lines, *beside, _MORE])


def limit_text(run: Run, timeout: float, beside: Sequence[str] = ()) -> str:
    """What to say of a run that was stopped after `timeout` seconds; `beside` is what another backend would say."""
    ranks = count(len(run.ranks), "rank")
    lines = [f"{run.script} on {ranks} took longer than timeout={timeout:g} seconds, and was stopped."]
    for rank in run.ranks:
        lines.append(f"Rank {rank.rank} {rank.ended}{_place(rank)}.")
        if rank.pid is not None:
            lines += [f"  {line}" for line in _last_words(rank, 3)]
    if all(rank.pid is None for rank in run.ranks):
        lines.append("Starting the ranks alone takes several seconds: give a longer timeout.")
    elif any(rank.ended == "finished" for rank in run.ranks):
        lines.append(_UNEQUAL)
    return "\n".join([*lines, *beside, _MORE])


def first_failure(run: Run, ends: dict[int, float]) -> Rank | None:
    """The rank that brought the others down, from the times at which their scripts ended; None if none failed.

    A rank that lost its connection to another, or was aborted, is named only where no other failed by itself.
    """

    def order(rank: Rank) -> tuple[bool, bool, float, int]:
        aborted = rank.exit_code == -signal.SIGABRT and not rank.exception
        return rank.lost, aborted, 0.0 if rank.lost else ends.get(rank.rank, 0.0), rank.rank

    return min((rank for rank in run.ranks if rank.failed), key=order, default=None)


def on_screen(output: str) -> list[str]:
    """The lines that a terminal would show in the end: a progress bar overwrites its line."""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in output.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def shortened(lines: list[str], most: int, where: str) -> list[str]:
    """At most `most` of `lines`, a quarter from their start, with one line that says how many are left out."""
    if len(lines) <= most:
        return lines
    head = most // 4
    left_out = len(lines) - most
    return [*lines[:head], f"... {left_out:,} lines are left out; {where} ...", *lines[head - most :]]


def _reason(run: Run, culprit: Rank) -> list[str]:
    if "EADDRINUSE" in culprit.exception:
        return [
            "Another process listens on that port. A script that leaves init_method, MASTER_ADDR and MASTER_PORT alone "
            "uses one that is reserved for its run."
        ]
    if culprit.ended.endswith("SIGKILL"):
        return ["If nobody sent it, the machine ran out of memory, and its out-of-memory killer ended this rank."]
    if culprit.ended.endswith("SIGABRT") and culprit.finished:
        return [
            "Its script had already ended. A process group that is not destroyed, or that ends while a model in "
            "DistributedDataParallel lives, can do that: let the last lines be",
            "    del model; gc.collect()",
            "    dist.destroy_process_group()",
            *([_UNEQUAL] if any(rank.lost for rank in run.ranks) else []),
        ]
    if culprit.lost and any(_done(rank) for rank in run.ranks):
        return [_UNEQUAL]
    return []


def _cause(rank: Rank) -> str:
    """What ranks that failed alike have in common: a lost connection is told with the number of its port."""
    return "lost" if rank.lost else rank.exception


def _together(ranks: Sequence[Rank], after_another: str = "was stopped") -> list[str]:
    """One phrase for all ranks that ended alike: "ranks 0 and 2 were stopped".

    Whether a rank loses its connection or is stopped first, once another has failed, is a matter of chance:
    `after_another` stands for both.
    """
    groups: dict[str, list[Rank]] = {}
    for rank in ranks:
        fell = rank.lost or rank.ended == "was stopped"
        ended = "finished" if _done(rank) else after_another if fell else rank.ended
        groups.setdefault(ended, []).append(rank)
    return [_with_verb(alike, ended) for ended, alike in groups.items()]


def _done(rank: Rank) -> bool:
    """Whether its script came to its end and it did not fail; the end of its process takes a while."""
    return rank.ended == "finished" or (rank.finished and rank.stopped and not rank.exception)


def _with_verb(ranks: list[Rank], ended: str) -> str:
    numbers = [str(number) for number in sorted(rank.rank for rank in ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]} {ended}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]} {re.sub('^was ', 'were ', ended)}"


def _last_words(rank: Rank, most: int) -> list[str]:
    told = on_screen(rank.output)[-most:]
    return ["It last printed:", *(f"    {line}" for line in told)] if told else ["It printed nothing."]


def _place(rank: Rank) -> str:
    return f" at {rank.where}" if rank.where else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
