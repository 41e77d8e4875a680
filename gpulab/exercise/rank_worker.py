"""The program of one rank of `ranks.py`: receives calls from the notebook, runs them one at a time, sends results.

The file is run by its path, with the port and the key of the notebook's listener. A call is a function without
arguments, pickled by value where the rank cannot import its module. While it runs, a second thread answers the
notebook's requests for the current stack.
"""

from __future__ import annotations

import functools
import linecache
import os
import pickle
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cloudpickle  # noqa: F401  (it unpickles calls: imported before ranks are forked)

WHERE = b"where"  # the request for the stack of a running call
CALL = "GPULAB_CALL"  # the variable with the number of the call


@dataclass(frozen=True)
class Call:
    """A call from the notebook: `path` and `lines` are its sys.path and the source of its cells, by file; `count` is
    the number of ranks, `number` that of the call, which separates the stores of calls."""

    function: bytes
    path: list[str]
    lines: dict[str, list[str]]
    seed: int
    count: int
    number: int


@dataclass(frozen=True)
class Answer:
    """The result of a call: a value, or an exception as its type, its text and the student's own lines."""

    value: Any = None
    raised: str = ""
    text: str = ""
    frames: tuple[str, ...] = ()
    not_attempted: bool = False
    ended: str = ""  # how the process ended, or that it hangs; then all else is empty
    inside: str = ""  # the function called by the student's line that does not return
    changes: tuple[Any, ...] = ()  # of its arguments, found by an audit
    left: str = ""  # settings of the rank that it left changed
    seeded: tuple[str, ...] = ()  # names of the functions that seed the global generators that it seeded


_changes, _left, _seeded = list[Any](), list[str](), list[str]()  # of the call that runs


@dataclass(frozen=True)
class Watched:
    """A student's function on a rank that records its side effects. It raises nothing of its own: the other ranks
    would wait for this one."""

    student: Callable[..., Any]
    names: tuple[str, ...]
    may_change: Mapping[str, Iterable[Any]]

    def __call__(self, *args: Any) -> Any:
        import torch

        from gpulab.exercise import settings
        from gpulab.exercise.audit import Audit, named

        audit, grad = Audit(named(args, self.names), self.may_change), torch.is_grad_enabled()
        shared, local = settings.shared(), settings.local()
        states, seeds = settings.random_states(), settings.seeds()
        try:
            got = self.student(*args)
            left = settings.changed(shared | local, settings.shared() | settings.local())
            _seeded.extend(settings.seeded(states, seeds))
        finally:  # for the rest of the check, and for the next call
            torch.set_grad_enabled(grad)
            settings.restore(shared)
        _changes.extend(audit.changes())
        _left.extend(text for name, text in left.items() if name not in settings.OF_A_SCRIPT)
        return got


def main(port: str, key: str) -> None:
    calls = SimpleQueue[Call | None]()
    launched = {**os.environ}
    agents_store()
    with Client(("127.0.0.1", int(port)), authkey=bytes.fromhex(key)) as notebook:
        notebook.send((int(os.environ["RANK"]), os.getpid()))
        threading.Thread(target=_listen, args=(notebook, calls), daemon=True).start()
        while (call := calls.get()) is not None:
            os.environ.update(launched)  # whatever the last call has changed
            answer = _answer(call)
            notebook.send_bytes(b"a" + pickle.dumps(answer))


@functools.cache
def agents_store() -> Any:
    """Return the launcher's store for all ranks of the run. Connected before the first call, since a connection looks
    up the other end's name, which may take seconds."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def _listen(notebook: Any, calls: SimpleQueue[Call | None]) -> None:
    """Receive calls and requests until the notebook disconnects."""
    from gpulab.exercise.wording import own_frames

    while True:
        try:
            said = notebook.recv_bytes()
        except (EOFError, OSError):
            calls.put(None)
            return
        if said == WHERE:
            stack = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident or 0))
            notebook.send_bytes(b"w" + pickle.dumps((own_frames(stack), _inside(stack))))
        else:
            calls.put(pickle.loads(said))


def _inside(stack: traceback.StackSummary) -> str:
    """Return the function of torch.distributed that the student's innermost line called; "" if none."""
    from gpulab.exercise.wording import is_students

    last = max((i for i, frame in enumerate(stack) if is_students(frame.filename)), default=len(stack))
    within = [frame.name for frame in stack[last + 1 :] if os.path.join("torch", "distributed") in frame.filename]
    return next((name for name in within if name != "wrapper"), "")  # torch's own, for its logs


def _answer(call: Call) -> Answer:
    import torch
    import torch.distributed as dist

    from gpulab.exercise.base import is_stub
    from gpulab.exercise.wording import frames, text_of

    sys.path[:] = call.path
    for file, lines in call.lines.items():
        linecache.cache[file] = sum(map(len, lines)), None, lines, file
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(call.count)
    os.environ[CALL] = str(call.number)
    if dist.is_initialized():  # by a call that raised
        dist.destroy_process_group()
    torch.default_generator.manual_seed(call.seed)
    random.seed(call.seed)
    _changes.clear()
    _left.clear()
    _seeded.clear()
    try:
        value = pickle.loads(call.function)()
        return Answer(value, changes=tuple(_changes), left="; ".join(_left), seeded=tuple(_seeded))
    except SystemExit as end:
        return Answer(raised="SystemExit", text=text_of(end), frames=tuple(frames(end)))
    except Exception as error:
        return Answer(None, type(error).__name__, text_of(error), tuple(frames(error)), is_stub(error))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # where this very gpulab is
    from gpulab.exercise import rank_worker

    rank_worker.main(*sys.argv[1:])
