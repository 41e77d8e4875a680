"""Scripts on several ranks, for real: what comes back, how a failure looks, and that nothing stays behind.

Whoever starts the ranks, torchrun or the warm server, all of it is the same.
"""

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from courselib.patience import HANG_SECONDS

from gpulab import VirtualGPU, distributed
from gpulab.distributed import processes
from gpulab.distributed.running import environment

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="torchrun starts the ranks elsewhere")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun's own support for Windows is partial")

# Each start of torch takes seconds of the processor: two runs at once, "here" and "there", show all that does not need
# one of its own. Both meet in a sum; here a model is then trained on the virtual GPU, there a rank is killed.
TALK = """
    import contextlib, gc, io, os, signal, sys
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    here = os.environ["WHERE"] == "here"
    if here:
        import gpulab

        with contextlib.redirect_stdout(io.StringIO()):
            gpulab.setup(seed=int(os.environ["RANK"]))
    dist.init_process_group("nccl" if here else "gloo")
    rank = dist.get_rank()
    x = torch.tensor([float(rank + len(os.environ["WHERE"]))])  # another sum than in the other run, and with it
    dist.all_reduce(x, group=dist.new_group(backend="gloo") if here else None)
    print(f"rank {rank} of {dist.get_world_size()}: sum {x.item():g}, {sys.argv[1:]}, {os.environ['WHERE']}")
    print("Grüße → 🏖", file=sys.stderr)
    print("then stdout", __name__, os.path.basename(__file__), helper_value := __import__("helper").value)
    if not here:
        dist.barrier()
        print("before")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    if rank == 1:
        for line in range(50_000):
            print("line", line)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.get_device_name(), torch.cuda.device_count(), dist.get_backend(), device)
    print("parameters", [p.tolist() for p in model.parameters()])
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
"""

# No torch: it starts faster. Each rank leaves its pid, and that of a child that is in no group of its parent's.
STAYS = """
    import os, pathlib, signal, subprocess, sys, time

    rank = os.environ["RANK"]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"], start_new_session=True)
    pathlib.Path(f"part-{rank}").write_text(f"{os.getpid()} {child.pid} {os.getppid()}")
    os.rename(f"part-{rank}", f"pids-{rank}")
    while not os.path.exists(f"pids-{1 - int(rank)}"):
        time.sleep(0.01)

    def wait():
        time.sleep(1e6)
"""


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=LINUX)], ids=["torchrun", "warm"])
def warm(request):
    return request.param


@contextlib.contextmanager
def leaving_nothing(folder):
    """No process, no thread and no file of a run is there after it; the warm server stays, and has no child."""
    temporary = folder / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr("tempfile.tempdir", str(temporary))
        patch.chdir(folder)
        # No rank has to be quick: only where a test asks for a limit there is one.
        patch.setitem(distributed.run.__kwdefaults__, "timeout", HANG_SECONDS)
        before, threads = set(psutil.Process().children(recursive=True)), set(threading.enumerate())
        me, server = psutil.Process(), server_pid()
        files = me.num_fds()
        yield
        now = set(psutil.Process().children(recursive=True))
        assert {one.pid for one in now - before if processes.lives(one.pid)} <= server_pid()
        # One that was there before may end meanwhile: what ends is not what stays.
        assert set(threading.enumerate()) <= threads
        assert of_runs(temporary) == []
        assert me.num_fds() <= files or server_pid() != server  # another server has another channel


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    with leaving_nothing(tmp_path):
        yield


@pytest.fixture(scope="module")
def talk(warm, tmp_path_factory):
    """What two runs of TALK at once leave: the one here all its output, and what it showed live; there the error."""
    runs, shown = {}, io.StringIO()

    def second():
        with pytest.raises(distributed.RankFailed) as runs["there"]:
            distributed.run("talk.py", 2, env={"WHERE": "there"}, timeout=None, warm=warm)

    with leaving_nothing(tmp_path_factory.mktemp("talk")):
        write("talk.py", TALK)
        write("helper.py", "value = 5")
        beside = threading.Thread(target=second)
        with VirtualGPU("L4"):
            beside.start()
            with contextlib.redirect_stdout(shown):
                given = {"args": ["--name", "a b"], "env": {"WHERE": "here"}}
                here = distributed.run("talk.py", 2, **given, live=True, warm=warm)
            beside.join()
    return SimpleNamespace(here=here, shown=shown.getvalue(), there=runs["there"].value)


def server_pid():
    """The warm server's, where there is one."""
    module = sys.modules.get("gpulab.distributed.warm")
    return set() if module is None else {module.server_pid()}


def of_runs(folder):
    return [path for name in ("gpulab-ranks-*", "torchelastic_*") for path in folder.glob(name)]


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(textwrap.dedent(text))


def pids_of_ranks(wait=False):
    """All that the ranks of STAYS have started, themselves and their launcher included."""
    until = time.monotonic() + HANG_SECONDS
    while wait and not (os.path.exists("pids-0") and os.path.exists("pids-1")):
        assert time.monotonic() < until, "the ranks do not start"
        time.sleep(0.02)
    return [int(pid) for rank in (0, 1) for pid in open(f"pids-{rank}").read().split()]


def still_there(pids):
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def test_a_limit_shorter_than_the_start_says_so(warm):
    write("quick.py", "print('hello')")
    if warm:
        from gpulab.distributed.warm import stop

        stop()  # it is to start anew; all that follow have it
    with pytest.raises(distributed.TimeLimit, match="Starting the ranks alone takes several seconds"):
        distributed.run("quick.py", 2, timeout=0.2, warm=warm)


def test_ranks_talk_to_each_other_and_two_runs_do_not_meet(talk):
    run = talk.here
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [rank.exit_code for rank in run.ranks] == [0, 0]
    assert len({rank.pid for rank in run.ranks}) == 2
    assert run.seconds > 0
    for rank in run.ranks:
        lines = rank.output.splitlines()
        assert lines[0] == f"rank {rank.rank} of 2: sum 9, ['--name', 'a b'], here"
        assert lines[1:3] == ["Grüße → 🏖", "then stdout __main__ talk.py 5"]  # both streams, in order
        assert len(lines) == (50_005 if rank.rank == 1 else 5)
    assert talk.shown == run.ranks[0].output
    assert "... 49,965 lines are left out; run.ranks[1].output has them ..." in repr(run)
    assert [rank.output.splitlines()[0] for rank in talk.there.run.ranks] == [
        "rank 0 of 2: sum 11, [], there",
        "rank 1 of 2: sum 11, [], there",
    ]


def test_a_model_in_ddp_on_the_virtual_gpu_of_the_notebook(talk):
    lines = [rank.output.splitlines()[-2:] for rank in talk.here.ranks]
    assert [line[0] for line in lines] == ["NVIDIA L4 2 nccl cuda:0", "NVIDIA L4 2 nccl cuda:1"]
    assert lines[0][1].startswith("parameters [[[")
    assert lines[0][1] == lines[1][1]  # from different seeds: the gradients were averaged


def test_what_holds_only_in_a_notebook_is_not_passed_on(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # IPython's, for its own terminal
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")  # would be torchrun's option
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("GPULAB_GPU", raising=False)
    given = environment({"HERS": "2"})
    assert not {"FORCE_COLOR", "PET_NPROC_PER_NODE", "GPULAB_GPU"} & set(given)
    assert (given["MPLBACKEND"], given["MINE"], given["HERS"], given["OMP_NUM_THREADS"]) == ("agg", "1", "2", "1")


def test_the_gpu_in_force_is_passed_on_unless_the_caller_names_one(monkeypatch):
    monkeypatch.setenv("GPULAB_GPU", "auto")
    assert environment({})["GPULAB_GPU"] == "auto"
    with VirtualGPU("L4"):
        assert environment({})["GPULAB_GPU"] == "virtual:L4"
        assert environment({"GPULAB_GPU": "H100"})["GPULAB_GPU"] == "H100"


def test_a_rank_that_raises_brings_the_others_down(warm):
    # Rank 0 does not even listen to SIGTERM, and would sleep for ten minutes.
    write(
        "fails.py",
        STAYS
        + """
    if rank == "1":
        labels = {"cat": 0}
        print("almost")
        print(labels["dog"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()
        """,
    )
    with pytest.raises(distributed.RankFailed) as caught:  # and no TimeLimit: nobody waits for the rank that waits
        distributed.run("fails.py", 2, warm=warm)
    assert str(caught.value).splitlines() == [
        "fails.py on 2 ranks: rank 1 failed with KeyError",
        "Traceback (most recent call last):",
        '  File "fails.py", line 17, in <module>',
        '    print(labels["dog"])',
        "          ~~~~~~^^^^^^^",
        "KeyError: 'dog'",
        "Rank 0 went down with it.",
        "Each rank's output: the exception's run, which in a notebook's next cell is sys.last_value.run.",
    ]
    assert caught.value.rank is caught.value.run.ranks[1]
    assert caught.value.rank.exit_code == 1
    assert caught.value.rank.exception == "KeyError: 'dog'"
    assert caught.value.rank.output.startswith("almost\nTraceback (most recent call last):\n")
    assert caught.value.run.ranks[0].stopped
    assert still_there(pids_of_ranks()) == []


def test_a_rank_that_is_killed_is_named_with_its_signal(talk):
    assert talk.there.rank.exit_code == -signal.SIGKILL
    message = str(talk.there)
    assert message.startswith("talk.py on 2 ranks: rank 1 was killed by SIGKILL\n")
    assert "out-of-memory killer" in message
    assert "It last printed:\n    rank 1 of 2: sum 11" in message
    assert "\n    before\nRank 0 went down with it.\nWith NCCL a rank that waits" in message
    assert "NCCL error: remote process exited or there was a network error" in message


def test_a_crash_outside_python_names_the_line_and_an_exit_code_is_told(warm):
    write(
        "crash.py",
        """
        import os, sys, time

        def crash():
            os.abort()

        if os.environ["RANK"] == "0":
            crash()
        time.sleep(1e6)
        """,
    )
    with pytest.raises(distributed.RankFailed, match=r"SIGABRT at crash\.py, line 5, in crash: os\.abort\(\)"):
        distributed.run("crash.py", 2, warm=warm)
    write("leaves.py", "import sys; sys.exit('no data here')")
    with pytest.raises(
        distributed.RankFailed, match=r"(?s)failed with exit code 1\nIt last printed:\n    no data here"
    ):
        distributed.run("leaves.py", 1, warm=warm)


def test_a_rank_ends_as_python_does(warm):
    """Threads are waited for, then functions of atexit, then the script's own objects; streams are flushed."""
    write(
        "ends.py",
        """
        import atexit, os, sys, threading, time

        # Open as long as the process lives: a rank that fails does so when the other has ended.
        pipe = os.open("pipe", os.O_WRONLY if os.environ["RANK"] == "0" else os.O_RDONLY)
        if os.environ["RANK"] == "1":
            os.read(pipe, 1)

        class Own:
            def __del__(self):
                print("let go")

        own = Own()
        own.itself = own
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread over"))).start()
        print("main over")
        if os.environ["RANK"] == "1":
            sys.exit(5)
        """,
    )
    os.mkfifo("pipe")
    with pytest.raises(distributed.RankFailed) as caught:
        distributed.run("ends.py", 2, warm=warm)
    ranks = caught.value.run.ranks
    assert [rank.output for rank in ranks] == ["main over\nthread over\nat exit\nlet go\n"] * 2
    assert [rank.exit_code for rank in ranks] == [0, 5]
    assert not any(rank.stopped for rank in ranks)
    assert caught.value.rank is ranks[1]


def test_a_script_that_is_no_python_is_told_without_gpulabs_own_lines(warm):
    write("wrong.py", "import os\ndef f(:\n    pass\n")
    with pytest.raises(distributed.RankFailed) as caught:
        distributed.run("wrong.py", 1, warm=warm)
    assert str(caught.value).splitlines()[1:3] == ['  File "wrong.py", line 2', "    def f(:"]


def test_a_collective_that_one_rank_does_not_join_ends_at_the_time_limit(warm):
    write(
        "hangs.py",
        """
        import time
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        print("ready")

        def step():
            if dist.get_rank() == 1:
                time.sleep(1e6)
            dist.all_reduce(torch.ones(1))

        step()
        """,
    )
    timeout = 3.0 if warm else 8.0
    while True:  # on a machine that is busy, the start takes longer than any limit that one would like to wait for
        with pytest.raises(distributed.TimeLimit) as caught:
            distributed.run("hangs.py", 2, timeout=timeout, warm=warm)
        if str(caught.value).count(", in step: ") == 2:
            break
        timeout *= 2
        assert timeout < HANG_SECONDS
    message = str(caught.value)
    assert f"took longer than timeout={timeout:g} seconds" in message
    assert "Rank 0 was stopped at hangs.py, line 12, in step: dist.all_reduce(torch.ones(1))." in message
    assert "Rank 1 was stopped at hangs.py, line 11, in step: time.sleep(1e6)." in message
    assert "With NCCL the rank waits until its group's timeout is over, 10 minutes by default." in message
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in message
    assert [rank.collective for rank in caught.value.run.ranks] == ["all_reduce", ""]
    assert [rank.output for rank in caught.value.run.ranks] == ["ready\n", "ready\n"]
    assert all(rank.stopped for rank in caught.value.run.ranks)


def test_a_collective_more_on_one_rank_is_told_as_ranks_that_disagree(warm):
    write(
        "disagree.py",
        """
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            dist.all_reduce(x)
        print(x.item())  # the connection closes after the last line
        """,
    )
    with pytest.raises(distributed.RankFailed) as caught:
        distributed.run("disagree.py", 2, warm=warm)
    lines = str(caught.value).splitlines()
    assert lines[0] == "disagree.py on 2 ranks: rank 1 failed with RuntimeError"
    assert lines[1].endswith("do all ranks make the same collective calls, in the same order?")
    assert re.search("Connection (closed|reset) by peer|Broken pipe", str(caught.value))  # which of them, is a race
    assert any(line.startswith("With NCCL a rank that waits for one on another node that is gone") for line in lines)
    assert "Rank 0 finished." in lines
    assert caught.value.run.ranks[0].output == "2.0\n"


def test_a_port_in_use_is_told_with_the_remedy_and_is_not_a_lost_connection(warm):
    write(
        "taken.py",
        """
        import os, sys, time

        if os.environ["RANK"] == "1":
            time.sleep(1e6)
        import torch.distributed as dist
        # Where torchrun's is set, torch 2.11 takes every address for that of torchrun's store, and listens nowhere.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=0, world_size=2)
        """,
    )
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(distributed.RankFailed) as caught:
        distributed.run("taken.py", 2, args=[str(taken.getsockname()[1])], warm=warm)
    lines = str(caught.value).splitlines()
    assert lines[0] == "taken.py on 2 ranks: rank 0 failed with DistNetworkError"
    assert lines[1].startswith("Another process listens on that port.")
    assert "EADDRINUSE" in caught.value.rank.exception
    assert not caught.value.rank.lost
    assert "With NCCL it is the same" in str(caught.value)


def test_an_interrupted_cell_takes_everything_down(warm):
    write("stays.py", STAYS + "\n    wait()\n")

    def interrupt():
        pids_of_ranks(wait=True)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)  # as Jupyter does

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        distributed.run("stays.py", 2, warm=warm)
    assert still_there(pids_of_ranks()) == []
    assert caught.value.__notes__ == [
        f"rank {rank} was stopped at stays.py, line 12, in wait: time.sleep(1e6)" for rank in (0, 1)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a background process in a session of its own stays")
def test_nothing_outlives_a_kernel_that_is_killed(tmp_path, warm):
    write("stays.py", STAYS + "\n    wait()\n")
    less = "from gpulab.distributed import warm; warm.IMPORTED = ('torch.distributed',); " if warm else ""
    code = f"from gpulab import distributed; {less}distributed.run('stays.py', 2, timeout=None, warm={warm})"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as kernel:
        pids = pids_of_ranks(wait=True)
        pids += [process.pid for process in psutil.Process(kernel.pid).children()]  # the server, or the keeper
        assert set(still_there(pids)) == set(pids)
        kernel.kill()
    until = time.monotonic() + HANG_SECONDS
    while still_there(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert still_there(pids) == []
    assert of_runs(tmp_path / "temporary") == []  # before it ends, whoever started the ranks removes it
