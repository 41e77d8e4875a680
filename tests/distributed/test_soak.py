"""Starts and stops of ranks, by torchrun and by the warm server: nothing is left.

Ranks that finish, raise, are killed, hang until the time limit, and are interrupted, in turn; each has a child in a
session of its own and a DataLoader's worker. After every one it looks for processes, listening ports, shared memory,
folders of runs, and file descriptors and threads of the caller. By the warm server to each end; by torchrun to one of
which it stops the ranks, and one where the notebook does. GPULAB_SOAK=100 makes so many starts by each, to all ends.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import psutil
import pytest

if sys.platform != "linux":
    pytest.skip("the soak looks into /dev/shm and at the warm server", allow_module_level=True)

from gpulab import distributed
from gpulab.distributed import warm as warm_server

STARTS = int(os.environ.get("GPULAB_SOAK", "0"))
ENDS: dict[str, type[BaseException] | None] = {
    "finishes": None,
    "raises": distributed.RankFailed,
    "is killed": distributed.RankFailed,
    "hangs": distributed.TimeLimit,
    "is interrupted": KeyboardInterrupt,
}

SCRIPT = """
import os, pathlib, signal, subprocess, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

end = sys.argv[1]
dist.init_process_group("gloo")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"], start_new_session=True)
loader = DataLoader(torch.arange(8.0), batch_size=2, num_workers=1, persistent_workers=True)
x = sum(batch.sum() for batch in loader).reshape(1)
with open("pids", "a") as file:
    file.write(f"{os.getpid()} {loader._iterator._workers[0].pid} {child.pid}\\n")
dist.all_reduce(x)
assert x.item() == 56
if end == "finishes":
    dist.destroy_process_group()
elif dist.get_rank() == 1:
    dist.barrier()
elif end == "raises":
    raise ValueError("on purpose")
elif end == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
else:
    pathlib.Path("ready").touch()
    time.sleep(1e6)
"""


def _listening(process: psutil.Process) -> list[int]:
    """The ports at which it listens."""
    return [one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]


@dataclass
class Soak:
    """Starts of two ranks in `folder`, an empty one; `mark` is in the environment of all that descends from them."""

    folder: Path
    warm: bool
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        (self.folder / "stops.py").write_text(SCRIPT, encoding="utf-8")
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        self._mine: tuple[int, int] | None = None
        self._listened = set(_listening(psutil.Process()))  # before any start

    def start(self, end: str) -> None:
        """Start ranks that come to one of ENDS, or raise AssertionError."""
        (self.folder / "ready").unlink(missing_ok=True)
        over = threading.Event()
        interrupter = threading.Thread(target=self._interrupt, args=(over,))
        if end == "is interrupted":
            interrupter.start()
        try:
            with contextlib.chdir(self.folder):
                self._run(end)
        except BaseException as error:
            if type(error) is not ENDS[end]:
                raise
        else:
            assert ENDS[end] is None, f"ranks of which one {end} came to their end"
        finally:
            over.set()
            if interrupter.is_alive():
                interrupter.join()

    def _run(self, end: str) -> None:
        # Where a time limit meets them, in their start or in the barrier, is all the same here.
        limit = 4.0 if end == "hangs" else None
        env = {"GPULAB_SOAK": self.mark, "TMPDIR": str(self.temporary)}
        distributed.run("stops.py", 2, args=[end], timeout=limit, env=env, warm=self.warm)

    def _interrupt(self, over: threading.Event) -> None:
        while not over.wait(0.01):
            if (self.folder / "ready").exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    def left(self) -> list[str]:
        """What is there and needed by nobody, in words. The warm server is needed."""
        server = warm_server.server_pid()
        found = [f"process {' '.join(process.cmdline())}" for process in self._processes() if process.pid != server]
        for process in [psutil.Process(), *([] if server is None else [psutil.Process(server)])]:
            found += [f"port {port}" for port in _listening(process) if port not in self._listened]
        pids = self.folder / "pids"
        makers = pids.read_text(encoding="utf-8").split() if pids.exists() else []
        shared = [entry for entry in os.listdir("/dev/shm") if entry.startswith("torch_")]
        found += [f"/dev/shm/{entry}" for entry in shared if entry.split("_")[1] in makers]
        # What a worker that was killed had in its temporary folder is the script's own affair.
        found += [
            f"folder {path.name}" for name in ("gpulab-*", "torchelastic_*") for path in self.temporary.glob(name)
        ]
        mine = psutil.Process().num_fds(), threading.active_count()
        if self._mine is None:
            self._mine = mine  # with what is opened once
        if any(now > first for now, first in zip(mine, self._mine, strict=True)):
            found.append(f"{mine[0]} file descriptors and {mine[1]} threads here, {self._mine} at first")
        return found

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get("GPULAB_SOAK") == self.mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def soak(ends: Iterable[str], warm: bool) -> Iterator[tuple[str, list[str]]]:
    """(end, what is left) of a start that comes to each of these ends."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a shell has started this in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        of = Soak(Path(folder), warm)
        for end in ends:
            of.start(end)
            yield end, of.left()
        warm_server.stop()


LONG = list(islice(cycle(ENDS), STARTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "warm"),
    [(LONG or list(ENDS), True), (LONG or ["is killed", "is interrupted"], False)],
    ids=["warm", "torchrun"],
)
def test_starts_and_stops_leave_nothing_behind(ends, warm):
    left = list(soak(ends, warm))
    assert left == [(end, []) for end in ends]


def test_the_soak_sees_what_is_left(tmp_path):
    of = Soak(tmp_path, warm=False)
    assert of.left() == []
    (of.temporary / "gpulab-ranks-x").mkdir()
    (tmp_path / "pids").write_text("123456789\n")
    with open("/dev/shm/torch_123456789_1", "w"), open(os.devnull):
        left = of.left()
    os.unlink("/dev/shm/torch_123456789_1")
    assert left[:2] == ["/dev/shm/torch_123456789_1", "folder gpulab-ranks-x"]
    assert "file descriptors" in left[2]
