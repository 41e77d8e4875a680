"""Calls a student's function on real ranks: processes on this machine that serve all calls of one check.

`Ranks(most)` starts them from the warm server at the first call. An exception, an exit, or a collective in which a rank
waits for ever fails the check with a message that names the rank. After a failure, and at the end, all ranks and the
processes that they started are gone.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from ..distributed import Rank, RankFailed, run
from ..distributed.running import environment
from .base import CheckFailed, NotAttempted, Trial
from .processor import TICK, FairClock
from .rank_worker import WHERE, Answer, Call
from .wording import clip, is_students

QUIET_SECONDS = 2.0  # without work of any rank that has not answered: they hang
TOGETHER_SECONDS = 0.5  # the same, where a rank has failed already
LIMIT_SECONDS = 10.0  # of processor time, of one rank
WALL_SECONDS = 60.0
PATIENCE_SECONDS = 0.5  # for ranks to end by themselves
_LITTLE = 0.05  # of the time: Gloo's threads poll a hundred times a second
_UNEQUAL = (
    "ranks that do not call the same collectives in the same order wait for one another: each must call all of them, "
    "whatever its own data are"
)
_ENDLESS = "a loop that never ends; or a request of isend or irecv without a wait: keep it, and call its wait()"
_HUNG, _BUSY = "has not returned: it waits", "was still computing"
_ENDED = Answer(ended="ended its process")


class Ranks(contextlib.AbstractContextManager["Ranks"]):
    """A context manager for the calls of `trial`, with at most `most` processes."""

    def __init__(self, most: int, trial: Trial) -> None:
        self.most, self._outputs = most, list[str]()
        self._crew: _Crew | None = None
        trial.ranks = self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        if self._crew is not None:
            outputs = self._crew.end(patience)
            self._outputs = self._outputs or outputs
            self._crew = None

    def printed(self) -> list[str]:
        """Return the output of the first crew's ranks, a line for each; call it after they have ended."""
        lines = [(rank, " ".join(output.split())) for rank, output in enumerate(self._outputs)]
        return [f"(rank {rank} printed: {clip(line, 200)})" for rank, line in lines if line]

    def call(
        self, trial: Trial, functions: Sequence[Callable[[], Any]], student: Any, *, may_seed: bool = False
    ) -> list[Any]:
        """Call each of `functions` on its rank, the first on rank 0, and return the results. `student` is the function
        within them; `may_seed` allows it to seed the global generators, as a script does."""
        trial.called = True
        try:
            pickled = _pickled(functions, student)
        except Exception as error:  # a student's object may raise anything in __reduce__
            trial.fail(
                "your function cannot be sent to the ranks",
                expected="a function that can be copied to another process",
                got=f"{type(error).__name__}: {clip(str(error), 120)}",
                likely="it uses an object that exists only in the notebook's process: make it inside the function",
            )
        if self._crew is None:
            self._crew = _Crew(self.most, getattr(functions[0], "func", functions[0]).__module__ or "")
        self._crew.calls += 1
        lines, seed = _lines_of(student), _seed()
        calls = [Call(f, [*sys.path], lines, seed, len(functions), self._crew.calls) for f in pickled]
        try:
            answers = self._crew.answers(calls)
        except BaseException:
            self.close()
            raise
        if all(not answer.raised and not answer.ended for answer in answers):
            if left := next((answer.left for answer in answers if answer.left), ""):
                trial.left(left)
            if not may_seed:
                trial.unseeded(next((answer.seeded for answer in answers if answer.seeded), ()))
            trial.unchanged(next((answer.changes for answer in answers if answer.changes), ()))
            return [answer.value for answer in answers]
        crew, waiting = self._crew, {_HUNG, _BUSY}
        if ended := {answer.ended for answer in answers if answer.ended}:
            # Wait for one that ended by itself before the others are killed: the launcher reports who was first.
            self.close(0.0 if ended <= waiting else PATIENCE_SECONDS)
        raise _failure(trial, answers, crew.culprit)


class _Crew:
    """The processes of one distributed run, for functions of the module `home`."""

    def __init__(self, count: int, home: str) -> None:
        key = os.urandom(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=key, backlog=count)
        script, (_, port) = Path(__file__).with_name("rank_worker.py"), self._listener.address
        self._outputs = list[str]()
        self.calls = 0  # the number of calls made
        self._failed: BaseException | None = None
        self.culprit: Rank | None = None  # the first that ended
        words = [str(port), key.hex()]
        env = {} if "GPULAB_GPU" not in os.environ else {"GPULAB_GPU": ""}
        warm = sys.platform == "linux"
        if warm:
            from ..distributed.warm import VIRTUAL, server

            names = [*VIRTUAL, f"{__package__}.rank_worker", home]
            server(environment(env)).imports([name for name in names if name.startswith(("gpulab.", "virtualgpu."))])

        def follow() -> None:
            try:
                ended = run(script, count, args=words, timeout=None, env=env, warm=warm)
            except RankFailed as failed:
                ended, self.culprit = failed.run, failed.rank
            except BaseException as error:  # raised by `_welcome`
                self._failed = error
                return
            self._outputs = [rank.output for rank in ended.ranks]

        self._run = threading.Thread(target=follow, daemon=True, name="gpulab ranks")
        self._run.start()
        self._ranks, self._pids = dict[int, Connection](), dict[int, int]()
        try:
            while len(self._ranks) < count:
                self._welcome()
        except BaseException:
            self.end()
            raise

    def _welcome(self) -> None:
        """Accept the connection of one more rank; RuntimeError if all have ended."""
        listening: Any = self._listener._listener._socket  # type: ignore[attr-defined]
        if not wait([listening], TICK):
            if not self._run.is_alive():
                raise RuntimeError("the ranks ended before the first call") from self._failed
            return
        connection = self._listener.accept()
        rank, pid = connection.recv()
        self._ranks[rank], self._pids[rank] = connection, pid

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        answers = dict[int, Answer]()
        for rank, call in enumerate(calls):
            try:
                self._ranks[rank].send_bytes(pickle.dumps(call))
            except OSError:  # it ended with another rank, in this call
                answers[rank] = _ENDED
        watch = _Watch([self._pids[rank] for rank in range(len(calls))])
        while waiting := [rank for rank in range(len(calls)) if rank not in answers]:
            for connection in wait([self._ranks[rank] for rank in waiting], TICK):
                rank = next(rank for rank in waiting if self._ranks[rank] is connection)
                answers[rank] = self._answer(rank)
            failed = any(answer.raised or answer.ended for answer in answers.values())
            left = {self._pids[rank]: rank for rank in waiting if rank not in answers}
            for pid, why in watch.over([*left], failed).items():
                frames, inside = self._where(left[pid])
                answers[left[pid]] = Answer(ended=why, frames=frames, inside=inside)
        return [answers[rank] for rank in range(len(calls))]

    def _answer(self, rank: int) -> Answer:
        try:
            said = self._ranks[rank].recv_bytes()
        except (EOFError, OSError):
            return _ENDED
        answer: Answer = pickle.loads(said[1:])
        return answer

    def _where(self, rank: int) -> tuple[tuple[str, ...], str]:
        """Return the student's lines in the stack of a rank, and the function called there; empty without an answer."""
        connection = self._ranks[rank]
        with contextlib.suppress(EOFError, OSError):
            connection.send_bytes(WHERE)
            while connection.poll(10.0):
                said = connection.recv_bytes()
                if said[:1] == b"w":
                    frames, inside = pickle.loads(said[1:])
                    return tuple(frames), inside
        return (), ""

    def end(self, patience: float = PATIENCE_SECONDS) -> list[str]:
        """End all ranks and return the output of each."""
        for connection in self._ranks.values():
            connection.close()
        self._listener.close()
        until = time.monotonic() + patience
        while self._run.is_alive():
            if time.monotonic() > until:  # one is still in a call
                for pid in self._pids.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
            self._run.join(0.02)
        return self._outputs


class _Watch:
    """Measures the ranks against the limits."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._clock, self._pids, self._processes = FairClock(), pids, dict[int, psutil.Process]()
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended before this began to watch
                self._processes[pid] = psutil.Process(pid)
        self._began = self._then = self._used()
        self._since = 0.0

    def over(self, pids: Sequence[int], failed: bool) -> dict[int, str]:
        """Return how each of these ranks, which have not answered, failed; empty while they may go on."""
        now, used = self._clock.now(), self._used()
        quiet = TOGETHER_SECONDS if failed else QUIET_SECONDS
        busy = {pid for pid in pids if used[pid] - self._began[pid] > LIMIT_SECONDS}
        if busy or now > WALL_SECONDS:
            return {pid: _BUSY if pid in busy or not busy else _HUNG for pid in pids}
        if sum(used.values()) - sum(self._then.values()) > _LITTLE * quiet + 0.02:  # the resolution is 10 ms
            self._since, self._then = now, used
        return dict.fromkeys(pids, _HUNG) if now - self._since > quiet else {}

    def _used(self) -> dict[int, float]:
        """Return the processor time of each rank in seconds, 0 for one that has ended."""
        used = dict.fromkeys(self._pids, 0.0)
        for pid, process in self._processes.items():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used[pid] = times.user + times.system
        return used


def _failure(trial: Trial, answers: Sequence[Answer], culprit: Rank | None) -> BaseException:
    """Return the exception for a failed call: an ended process comes before exceptions, and these before waiting ranks,
    which are their consequences."""
    count = len(answers)
    if any(answer.not_attempted for answer in answers):
        return NotAttempted(f"{trial.name}: not attempted yet")
    ended = {rank: answer.ended for rank, answer in enumerate(answers) if answer.ended not in ("", _HUNG, _BUSY)}
    raised = [rank for rank, answer in enumerate(answers) if answer.raised]
    busy = [rank for rank, answer in enumerate(answers) if answer.ended == _BUSY]
    # A rank that hangs outside the student's lines has returned from them.
    hung = [rank for rank, answer in enumerate(answers) if answer.ended == _HUNG]
    waits = [rank for rank in hung if answers[rank].frames]
    at_fault = busy or waits or hung
    back = [rank for rank in range(count) if rank not in {*ended, *raised, *at_fault, *waits}]
    waited = f"; {_named(waits)} waited for it" if waits else ""
    if ended:
        first, how = next(iter(ended.items()))
        if culprit is not None and culprit.rank in ended:
            first, how = culprit.rank, culprit.ended
        failed = CheckFailed(
            trial.name,
            f"rank {first} of {count} {how}",
            expected="a call that returns on all ranks",
            got=f"a process that {how}{waited}",
        )
        # Which rank gets a signal first is random; a rank that ends itself does so at a line.
        failed.raised = f"a rank {how}" if how.startswith("was killed") else f"rank {first} {how}"
    elif raised:
        first = raised[0]
        name, text = answers[first].raised, answers[first].text
        failed = CheckFailed(
            trial.name,
            f"your function raised {name}",
            got=f"{text or 'no message'}, on {_named(raised)} of {count}{waited}",
        )
        failed.raised = f"{name}: {clip(text, 100)}"
    else:
        first = at_fault[0]
        does = "computes" if busy else "waits" if waits else "has returned, and what follows waits"
        # The function that a busy rank is in is random.
        inside = f" in {answers[first].inside}" if answers[first].inside and not busy else ""
        failed = CheckFailed(
            trial.name,
            f"your function {does} for ever",
            expected="a call that returns on all ranks",
            got=f"{_named(at_fault)} of {count} {'computed' if busy else 'waited'}{inside}"
            + (f", {_named(back)} had returned" if back else ""),
            likely=_ENDLESS if busy else _UNEQUAL if waits else "",
        )
        failed.raised, failed.hung = f"hang of {_named(at_fault)}{inside}", True
    failed.notes += answers[first].frames
    return failed


def _named(ranks: Sequence[int]) -> str:
    *some, last = map(str, ranks)
    return f"ranks {', '.join(some)} and {last}" if some else f"rank {last}"


def _pickled(functions: Sequence[Callable[[], Any]], student: Any) -> list[bytes]:
    """Pickle the functions, the student's own module by value: a rank cannot import a notebook, and not every file."""
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        """Also pickles the module objects of torch that are no plain modules, such as torch.backends."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
                return import_module, (obj.__name__,)
            return super().reducer_override(obj)

    made: list[tuple[Callable[[], Any], bytes]] = []

    def dumps(function: Callable[[], Any]) -> bytes:
        found = next((pickled for other, pickled in made if _same_call(function, other)), None)
        if found is None:
            with io.BytesIO() as file:
                Pickler(file).dump(function)
                found = file.getvalue()
            made.append((function, found))
        return found

    home = sys.modules.get(getattr(student, "__module__", None) or "__main__")
    if home is None or home.__name__ == "__main__" or not is_students(getattr(home, "__file__", None) or ""):
        return [dumps(function) for function in functions]
    cloudpickle.register_pickle_by_value(home)
    try:
        return [dumps(function) for function in functions]
    finally:
        cloudpickle.unregister_pickle_by_value(home)


def _same_call(one: Any, other: Any) -> bool:
    """Return True if both call one function with identical arguments, as where all ranks get the same."""
    if not (isinstance(one, partial) and isinstance(other, partial)) or one.keywords or other.keywords:
        return False
    ours, theirs = (one.func, *one.args), (other.func, *other.args)
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def _lines_of(student: Any) -> dict[str, list[str]]:
    """Return the source of the student's cell by file name, for tracebacks on ranks."""
    file = getattr(getattr(student, "__code__", None), "co_filename", "")
    return {file: linecache.getlines(file)} if file and not Path(file).exists() else {}


def _seed() -> int:
    import torch

    return torch.initial_seed()
