"""Whoever of a run is killed, and at whatever step: no process of the run stays, and its folder goes.

A step is an audit event of Python. The process that comes to it waits there as long as the test likes, and meanwhile
somebody is killed, so that each order of events comes about on a machine that is busy too.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass

import psutil
import pytest
from courselib.patience import HANG_SECONDS

from gpulab.distributed import lifetime

if sys.platform != "linux":
    pytest.skip("elsewhere what a process leaves behind is nobody's", allow_module_level=True)

# sitecustomize.py of every Python of a run: wait at one step of one kind of process.
WAITS = """
    import os, sys, time

    folder, who, step, detail = os.environ["STEP"].split("|")
    first, waits = os.getpid(), False

    def kind():
        words = " ".join(sys.orig_argv)
        if "forking.py" in words:
            return "rank" if "RANK" in os.environ else "server" if os.getpid() == first else "launcher"
        named = {"keeper.py": "keeper", "processes.py launch": "launcher", "processes.py rank": "rank"}
        return next((name for file, name in named.items() if file in words), "kernel")

    def at(event, arguments):
        global waits
        if event == step and not waits and detail in repr(arguments) and kind() == who:
            waits = True
            with open(f"{folder}/part", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"{folder}/part", f"{folder}/waits")
            while not os.path.exists(f"{folder}/go-on"):
                time.sleep(0.01)

    if step:
        sys.addaudithook(at)
"""

ENDS = "print('well')"

# Each rank has a child that is in no group of its parent's.
STAYS = """
    import os, subprocess, sys, time

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"], start_new_session=True)
    with open(f"part-{os.environ['RANK']}", "w") as file:
        file.write(str(os.getppid()))
    os.rename(f"part-{os.environ['RANK']}", f"stays-{os.environ['RANK']}")
    time.sleep(1e6)
"""

KERNEL = """
    import os, threading, time
    from gpulab import distributed

    if {warm}:
        from gpulab.distributed import warm
        warm.IMPORTED = ("torch.distributed",)  # no rank trains

    def fork():
        while not (os.path.exists("stays-0") and os.path.exists("stays-1")):
            time.sleep(0.01)
        if os.fork() == 0:
            with open("part", "w") as file:
                file.write(str(os.getpid()))
            os.rename("part", "forked")
            time.sleep(1e6)

    if {forks}:
        threading.Thread(target=fork).start()
    try:
        print(distributed.run("script.py", 2, timeout=None, warm={warm}).ranks[1].output.strip())
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


@dataclass(frozen=True)
class Step:
    """`who` waits before an audit event with this detail; without an event, all ranks run."""

    who: str
    says: str
    event: str = ""
    detail: str = ""
    then: str = ""  # what the kernel says where `who` is killed here
    warm: bool = False
    ends: bool = False  # whether the script has to end for it to come

    def __str__(self):
        return f"{'warm, ' if self.warm else ''}{self.who} {self.says}"


class Kernel:
    """A kernel whose run on two ranks has come to a step."""

    def __init__(self, here, step, forks=False):
        self.here, self.temporary, self.mark = here, here / "temporary", uuid.uuid4().hex
        self._seen = set()
        self.temporary.mkdir()
        (here / "site").mkdir()
        (here / "site" / "sitecustomize.py").write_text(textwrap.dedent(WAITS))
        (here / "script.py").write_text(ENDS if step.ends else textwrap.dedent(STAYS))
        env = {
            "PYTHONPATH": os.pathsep.join([str(here / "site"), *sys.path]),
            "TMPDIR": str(self.temporary),
            "STEP": f"{here}|{step.who}|{step.event}|{step.detail}",
            "MARK": self.mark,
        }
        code = textwrap.dedent(KERNEL.format(warm=step.warm, forks=forks))
        with (here / "said").open("w") as said:
            command = [sys.executable, "-c", code]
            self.process = subprocess.Popen(command, cwd=here, env=os.environ | env, stdout=said, stderr=said)
        try:
            if step.event:
                self._until((here / "waits").exists)
                self.waiting = int((here / "waits").read_text())
            else:
                self._until(lambda: (here / "stays-0").exists() and (here / "stays-1").exists())
                launcher = int((here / "stays-0").read_text())
                self.waiting = launcher if step.who == "launcher" else psutil.Process(launcher).ppid()
            self.processes()
        except BaseException:
            self.end()
            raise

    def _until(self, condition):
        wait_until(lambda: condition() or self.process.poll() is not None)
        assert condition(), f"the kernel ended before:\n{self.said()}"

    def said(self):
        return (self.here / "said").read_text().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def go_on(self):
        (self.here / "go-on").touch()

    def processes(self):
        """All that run, of it and of what it has started."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MARK") == self.mark:
                    self._seen.add(process)
        running = []
        # One that is about to end has no environment any more, but its files; a zombie's threads have them too.
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1:
                    running.append(process)
        return running

    def folders(self):
        return list(self.temporary.glob("gpulab-ranks-*"))

    def end(self):
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def wait_until(condition):
    until = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.02)


@pytest.fixture
def kernel(tmp_path):
    """A function that starts a kernel and brings its run to a step."""
    kernels = []

    def start(step, **more):
        kernels.append(Kernel(tmp_path, step, **more))
        return kernels[-1]

    yield start
    for one in kernels:
        one.end()


ENDED = "torchrun ended before the ranks did (exit code -9). Its last lines:"
KEEPER = "torchrun ended before the ranks did (its keeper ended before, with exit code -9). Its last lines:"
FORKED = "the ranks' launcher ended before they did. Its last lines:"
SERVER = "the warm server ended before the ranks did. It was killed by SIGKILL."

KERNEL_STARTS = Step("kernel", "is about to start the keeper", "subprocess.Popen", "keeper.py")
KEEPER_STARTS = Step("keeper", "has just started", "cpython.run_file", "", KEEPER)
KEEPER_MAKES = Step("keeper", "is about to make the folder", "os.mkdir", "gpulab-ranks-", KEEPER)
KEEPER_HOLDS = Step("keeper", "has made the folder and does not hold it", "fcntl.flock", "", KEEPER)
KEEPER_LAUNCHES = Step("keeper", "is about to start the launcher", "subprocess.Popen", "launch", KEEPER)
KEEPER_RUNS = Step("keeper", "has running ranks", then=KEEPER)
KEEPER_ENDS = Step("keeper", "is about to say that it is over", "os.rename", "over", "well", ends=True)
KEEPER_REMOVES = Step("keeper", "removes the folder", "shutil.rmtree", "gpulab-ranks-", "well", ends=True)
LAUNCHER_IMPORTS = Step("launcher", "is about to import torch", "import", "torch", ENDED)
LAUNCHER_MAKES = Step("launcher", "makes torchrun's own folder", "os.mkdir", "gpulab-ranks-")
LAUNCHER_RUNS = Step("launcher", "has running ranks", then=ENDED)

SERVER_RUNS = Step("server", "has running ranks", then=SERVER, warm=True)
FORKED_MAKES = Step("launcher", "is about to make the folder", "os.mkdir", "gpulab-ranks-", warm=True)
FORKED_RUNS = Step("launcher", "has running ranks", then=FORKED, warm=True)
FORKED_REMOVES = Step("launcher", "removes the folder", "shutil.rmtree", "gpulab-ranks-", "well", warm=True, ends=True)


def steps(*those):
    return pytest.mark.parametrize("step", those, ids=str)


def nothing_stays(kernel):
    wait_until(lambda: not kernel.processes())
    assert kernel.folders() == []


@steps(
    *(KERNEL_STARTS, KEEPER_STARTS, KEEPER_MAKES, KEEPER_HOLDS, KEEPER_LAUNCHES, KEEPER_ENDS),
    *(LAUNCHER_IMPORTS, LAUNCHER_MAKES, FORKED_MAKES),
)
def test_nothing_stays_where_the_kernel_is_killed(kernel, step):
    here = kernel(step)
    here.kill()
    here.go_on()
    nothing_stays(here)


@steps(
    *(KEEPER_STARTS, KEEPER_MAKES, KEEPER_HOLDS, KEEPER_LAUNCHES, KEEPER_RUNS, KEEPER_ENDS, KEEPER_REMOVES),
    *(LAUNCHER_IMPORTS, LAUNCHER_RUNS, SERVER_RUNS, FORKED_RUNS, FORKED_REMOVES),
)
def test_nothing_stays_where_another_is_killed_and_the_kernel_says_so(kernel, step):
    here = kernel(step)
    os.kill(here.waiting, signal.SIGKILL)
    here.go_on()
    assert here.process.wait(HANG_SECONDS) == 0
    assert here.said() == step.then
    nothing_stays(here)


@steps(KEEPER_HOLDS, KEEPER_LAUNCHES, KEEPER_RUNS, KEEPER_REMOVES, FORKED_RUNS)
def test_where_the_one_that_removes_it_is_killed_with_the_kernel_the_next_run_sweeps_the_folder_away(kernel, step):
    here = kernel(step)
    os.kill(here.waiting, signal.SIGKILL)
    here.kill()
    here.go_on()
    wait_until(lambda: not here.processes())
    lifetime.sweep(str(here.temporary))
    assert here.folders() == []


@steps(KEEPER_RUNS, FORKED_RUNS)
def test_nothing_stays_where_all_are_asked_to_end_at_once(kernel, step):
    # As a scheduler, or the machine that shuts down, does it.
    here = kernel(step)
    for process in here.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # the first that ends takes others along
            process.terminate()
    here.process.wait(HANG_SECONDS)
    nothing_stays(here)


def test_a_keeper_that_is_asked_to_end_does_so_and_the_kernel_says_so(kernel):
    here = kernel(KEEPER_RUNS)
    os.kill(here.waiting, signal.SIGTERM)
    assert here.process.wait(HANG_SECONDS) == 0
    assert here.said().startswith("torchrun ended before the ranks did (it was ended by SIGTERM)")
    nothing_stays(here)


@steps(KEEPER_RUNS, FORKED_RUNS)
def test_a_fork_of_the_kernel_that_outlives_it_holds_nothing_back(kernel, step):
    here = kernel(step, forks=True)
    wait_until((here.here / "forked").exists)
    fork = psutil.Process(int((here.here / "forked").read_text()))
    here.kill()
    wait_until(lambda: here.processes() == [fork])
    assert here.folders() == []
