"""The warm server: what its ranks find is what torchrun's find, it outlives them, and ends with the notebook."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import ranks_here

from gpulab import distributed
from gpulab.distributed import processes, running
from gpulab.distributed.torchrun import Torchrun

if sys.platform != "linux":
    pytest.skip("the warm server needs Linux", allow_module_level=True)

from gpulab.distributed import warm


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(distributed.run.__kwdefaults__, "timeout", HANG_SECONDS)
    monkeypatch.setitem(distributed.run.__kwdefaults__, "warm", True)
    yield
    server = warm.server_pid()
    wait_until(lambda: server is None or psutil.Process(server).children() == [])  # it buries them as they end


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(textwrap.dedent(text))


def wait_until(condition):
    until = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.01)


def gone(pid):
    return not processes.lives(pid)


# -- what a rank finds -----------------------------------------------------------------------------------------------

FINDS = """
    import gc, inspect, json, os, pickle, random, signal, sys, tempfile, threading, time
    import torch, torch.distributed as dist

    class Own:
        def __eq__(self, other):
            return type(self) is type(other)

    dist.init_process_group("gloo")
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS".split()
    elastic = {"MASTER_PORT"} | {name for name in os.environ if name.startswith("TORCHELASTIC_")}
    found = {
        "environment": {name: value for name, value in os.environ.items() if name not in elastic},
        "group": (dist.get_rank(), dist.get_world_size()),
        "main": (__name__, __file__, __spec__, sys.modules["__mp_main__"].Own is Own),
        "arguments": (sys.argv, sys.path, os.getcwd(), list(sys.flags)),
        "streams": [(s.encoding, s.errors, s.isatty(), s.write_through) for s in (sys.stdout, sys.stderr)],
        "input": sys.stdin.read(),
        "signals": {s.name: str(signal.getsignal(s)) for s in sorted(signal.valid_signals())[:31]},
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "source": inspect.getsource(Own),
        "pickled": pickle.loads(pickle.dumps(Own())) == Own(),
        "threads": (torch.get_num_threads(), threading.main_thread() is threading.current_thread()),
        "torch": (str(torch.get_default_dtype()), torch.get_num_interop_threads(), torch.cuda._is_in_bad_fork()),
        "temporary": tempfile.gettempdir(),
        "zone": time.tzname,
        "unraisable": (sys.excepthook is not sys.__excepthook__, gc.isenabled(), gc.get_threshold()),
        "files": sorted(os.readlink(f"/proc/self/fd/{n}").rpartition("/")[2] for n in (0, 1, 2)),
    }
    print(json.dumps(found))
    dist.barrier()  # who leaves before the other has connected would end that one
    dist.destroy_process_group()
"""


def test_a_rank_finds_what_torchruns_ranks_find(tmp_path, monkeypatch):
    write("finds.py", FINDS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {"TMPDIR": str(elsewhere), "TZ": "Asia/Tokyo", "MINE": "ü"}
    runs = [distributed.run("finds.py", 2, env=env | {"TZ": "UTC"})]
    monkeypatch.chdir(elsewhere)
    runs += [distributed.run("../finds.py", 2, args=["--a", "b c"], env=env, warm=way) for way in (True, False)]
    before, now, torchruns = ([json.loads(rank.output) for rank in run.ranks] for run in runs)
    for rank, of_torchrun in enumerate(torchruns):
        for what, value in of_torchrun.items():
            assert now[rank][what] == value, what
            if what not in ("environment", "main", "arguments", "zone"):
                assert before[rank][what] == value, what
    assert now[1]["environment"]["MINE"] == "ü"
    assert now[1]["temporary"] == str(elsewhere)
    assert (before[1]["zone"][0], now[1]["zone"][0]) == ("UTC", "JST")
    assert (before[1]["main"][1], now[1]["main"][1]) == ("finds.py", "../finds.py")
    (argv, path, folder, flags), there = before[1]["arguments"], now[1]["arguments"]
    assert (argv, folder, there[2]) == (["finds.py"], str(tmp_path), str(elsewhere))
    assert (path, flags) == (there[1], there[3])


def test_of_torchruns_own_variables_only_those_that_the_store_needs_are_there():
    write("own.py", "import os\nprint(sorted(n for n in os.environ if n.startswith('TORCHELASTIC_')))")
    (rank,) = distributed.run("own.py", 1).ranks
    assert rank.output == "['TORCHELASTIC_RESTART_COUNT', 'TORCHELASTIC_USE_AGENT_STORE']\n"


def test_what_a_process_draws_at_its_start_differs_from_rank_to_rank_and_run_to_run():
    write(
        "draws.py",
        """
        import multiprocessing, random, tempfile
        import numpy, torch
        print(torch.initial_seed(), torch.rand(1).item())
        print(random.random(), numpy.random.rand(), bytes(multiprocessing.current_process().authkey).hex())
        """,
    )
    drawn = [rank.output.split() for _ in range(2) for rank in distributed.run("draws.py", 2).ranks]
    assert all(len(set(column)) == 4 for column in zip(*drawn, strict=True))


def test_processes_that_a_rank_starts_work():
    write(
        "starts.py",
        """
        import multiprocessing, os
        import torch, torch.distributed as dist
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.tensor(float(index**2))

        def square(x, queue):
            queue.put(x * x)

        if __name__ == "__main__":
            if ready := os.environ["READY"]:  # a Python that has torch
                multiprocessing.set_executable(ready)
                del os.environ["PYTHONIOENCODING"]  # which that one has not read
            dist.init_process_group("gloo")
            totals = {}
            for method in ("fork", "spawn"):
                loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context=method)
                totals[method] = sum(batch.sum() for batch in loader)
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=square, args=(3.0, queue))
            process.start()
            answer = torch.tensor(queue.get())
            dist.all_reduce(answer)
            process.join()
            print({name: total.item() for name, total in totals.items()}, answer.item())
            dist.destroy_process_group()
        """,
    )
    ready = ranks_here().get("PYTHON_EXEC", "")
    for rank in distributed.run("starts.py", 2, env={"READY": ready}).ranks:
        assert rank.output == "{'fork': 140.0, 'spawn': 140.0} 18.0\n"


def test_a_class_of_the_script_goes_from_rank_to_rank():
    write(
        "objects.py",
        """
        import torch.distributed as dist
        from dataclasses import dataclass

        @dataclass
        class Loss:
            value: float

        dist.init_process_group("gloo")
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, Loss(float(dist.get_rank())))
        print(everyones)
        dist.destroy_process_group()
        """,
    )
    for rank in distributed.run("objects.py", 3).ranks:
        assert rank.output == "[Loss(value=0.0), Loss(value=1.0), Loss(value=2.0)]\n"


def test_the_port_where_ranks_meet_is_taken_before_they_start():
    write(
        "port.py",
        """
        import errno, os, socket
        try:
            socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        except OSError as error:
            print(errno.errorcode[error.errno])
        """,
    )
    assert [rank.output for rank in distributed.run("port.py", 2).ranks] == 2 * ["EADDRINUSE\n"]


# -- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick():
    """From here on servers import only what a launcher needs, and start in a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "IMPORTED", ("torch.distributed",))
        yield
    warm.stop()


starts_servers = pytest.mark.usefixtures("quick")


@starts_servers
def test_what_a_rank_does_to_itself_does_not_harm_the_server():
    write(
        "harms.py",
        """
        import builtins, os, signal, sys, time
        import torch

        torch.manual_seed(7)
        torch.set_default_dtype(torch.float64)
        builtins.print = None
        sys.modules.pop("json")
        os.environ.clear()
        if sys.argv[1] == "raises":
            raise ValueError
        if sys.argv[1] == "leaves":
            os._exit(0)
        if sys.argv[1] == "hangs":
            time.sleep(1e6)
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        """,
    )
    write("works.py", "import os, torch\nprint(torch.get_default_dtype(), sorted(os.environ), 1 + 1)")
    first = distributed.run("works.py", 1)
    server = warm.server_pid()
    for way in ("raises", "SIGKILL", "SIGSEGV", "SIGABRT"):
        with pytest.raises(distributed.RankFailed):
            distributed.run("harms.py", 2, args=[way])
    with pytest.raises(distributed.TimeLimit):
        distributed.run("harms.py", 2, args=["hangs"], timeout=1)
    distributed.run("harms.py", 2, args=["leaves"])
    assert distributed.run("works.py", 1).ranks[0].output == first.ranks[0].output
    assert warm.server_pid() == server
    assert psutil.Process(server).num_threads() == 1


@starts_servers
def test_another_environment_at_the_start_takes_another_server(tmp_path):
    write("threads.py", "import torch\nprint(torch.get_num_threads())")
    assert distributed.run("threads.py", 1, env={"ANY": "1"}).ranks[0].output == "1\n"
    first = warm.server_pid()
    distributed.run("threads.py", 1, env={"ANY": "2"})
    write("level.py", "import torch.distributed as dist\nprint(dist.get_debug_level().name)")
    for level in ("DETAIL", "info", "OFF"):
        run = distributed.run("level.py", 1, env={"TORCH_DISTRIBUTED_DEBUG": level})
        assert run.ranks[0].output == level.upper() + "\n"
    assert warm.server_pid() == first
    (tmp_path / "library").mkdir()
    write("library/mine.py", "value = 5")
    write("uses.py", "import mine, torch\nprint(mine.value, hash('a'), torch.get_num_threads())")
    env, usual = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "1", "PYTHONPATH": "library"}, running.environment({})
    for name, value in (env | {"TORCH_DISTRIBUTED_DEBUG": "LOUD"}).items():  # with which torch cannot be imported
        assert warm.start_conditions(usual | {name: value}) != warm.start_conditions(usual), name
    command = [sys.executable, "uses.py"]
    fresh = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True).stdout
    assert distributed.run("uses.py", 1, env=env).ranks[0].output == fresh
    second = warm.server_pid()
    wait_until(lambda: gone(first))
    env["PYTHONPATH"] = str(tmp_path / "library")
    assert distributed.run("uses.py", 1, env=env).ranks[0].output == fresh
    assert first != second == warm.server_pid()


@pytest.mark.parametrize(("path", "same"), [(None, True), ("", True), (":", False), ("library", False), ("/", True)])
def test_in_another_folder_a_server_serves_where_nothing_is_found_by_the_folder(tmp_path, monkeypatch, path, same):
    env = {} if path is None else {"PYTHONPATH": path}
    (tmp_path / "elsewhere").mkdir()
    here = warm.start_conditions(env)
    monkeypatch.chdir("elsewhere")
    assert (warm.start_conditions(env) == here) is same


@starts_servers
def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path):
    (tmp_path / "broken").mkdir()
    write("broken/torch.py", "raise ImportError('no torch today')")
    write("never.py", "raise AssertionError")
    with pytest.raises(
        RuntimeError, match=r"(?s)the warm server did not start\. It ended with exit code 1.*no torch today"
    ):
        distributed.run("never.py", 2, env={"PYTHONPATH": str(tmp_path / "broken")})
    write("works.py", "print('well')")
    assert distributed.run("works.py", 1).ranks[0].output == "well\n"


@starts_servers
def test_ranks_with_a_virtual_gpu_are_forked_from_a_process_that_has_imported_it():
    write("finds.py", "import sys; before = 'virtualgpu.gpu' in sys.modules; import gpulab; gpulab.setup()")
    with open("finds.py", "a", encoding="utf-8") as file:
        file.write("\nimport torch\nprint(before, torch.cuda.get_device_name(), torch.cuda.memory_allocated())")
    others = {"GPULAB_GPU": ""}
    warm.server(running.environment(others)).imports(["virtualgpu.pictures.svg"])
    write("other.py", "import sys; print('virtualgpu.pictures.svg' in sys.modules, 'gpulab.data' in sys.modules)")
    assert distributed.run("other.py", 1, env=others).ranks[0].output == "True False\n"
    for run in range(2):
        output = distributed.run("finds.py", 2, env={"GPULAB_GPU": "virtual:L4"}).ranks[1].output
        assert output.splitlines()[-1] == "True NVIDIA L4 0", run


@starts_servers
def test_what_the_server_cannot_import_is_told():
    server = warm.server(running.environment({}))
    server.imports(["gpulab.nothing_of_that_name"])
    write("never.py", "raise AssertionError")
    with pytest.raises(RuntimeError, match=r"(?s)warm server.*No module named 'gpulab\.nothing_of_that_name'"):
        distributed.run("never.py", 2)
    write("works.py", "print('well')")
    assert distributed.run("works.py", 1).ranks[0].output == "well\n"


@starts_servers
def test_a_server_with_threads_is_not_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "IMPORTED", ("json",))  # it is not about the threads of torch
    (tmp_path / "threads").mkdir()
    write(
        "threads/sitecustomize.py",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
    )
    write("never.py", "raise AssertionError")
    with pytest.raises(
        RuntimeError, match="2 threads run after import torch, and a process with several cannot be forked"
    ):
        distributed.run("never.py", 2, env={"PYTHONPATH": str(tmp_path / "threads")})


@starts_servers
def test_a_server_that_is_killed_takes_its_run_along_and_the_next_starts_another():
    write("works.py", "print('well')")
    distributed.run("works.py", 1)
    server = psutil.Process(warm.server_pid())
    write("kills.py", f"import os, signal, time\nos.kill({server.pid}, signal.SIGKILL)\ntime.sleep(1e6)")
    with pytest.raises(RuntimeError, match=r"the warm server ended before the ranks did\. It was killed by SIGKILL"):
        distributed.run("kills.py", 2)
    assert distributed.run("works.py", 2).ranks[1].output == "well\n"
    assert warm.server_pid() != server.pid


@starts_servers
def test_an_idle_server_ends_and_the_next_run_starts_another(monkeypatch):
    monkeypatch.setattr(warm, "IDLE", 0.0)
    warm.stop()
    write("works.py", "print('well')")
    for _ in range(2):  # it may end in the very moment in which it is asked
        assert distributed.run("works.py", 2).ranks[1].output == "well\n"
    wait_until(lambda: warm.server_pid() is None)
    warm.stop()


@starts_servers
@pytest.mark.parametrize("held", [False, True], ids=["", "a fork of the notebook holds the channel"])
def test_an_idle_server_ends_with_the_kernel_that_is_killed(held):
    write("works.py", "print('well')")
    code = f"""
        import os, time
        from gpulab import distributed
        from gpulab.distributed import warm
        warm.IMPORTED = {warm.IMPORTED}
        distributed.run("works.py", 1, timeout=None, warm=True)
        child = os.fork() if {held} else 0
        if {held} and child == 0:
            time.sleep(1e6)
        print(warm.server_pid(), child, flush=True)
        time.sleep(1e6)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=env, stdout=subprocess.PIPE) as kernel:
        server, child = map(int, kernel.stdout.readline().split())
        assert not gone(server)
        kernel.kill()
    try:
        wait_until(lambda: gone(server))
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


@starts_servers
def test_a_fork_of_the_notebook_has_a_server_of_its_own():
    write("works.py", "print('well')")
    distributed.run("works.py", 1)
    server, (reads, writes) = warm.server_pid(), os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            said = distributed.run("works.py", 1).ranks[0].output.encode() + str(warm.server_pid() != server).encode()
            warm.stop()
        finally:
            os.write(writes, said)
            os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        os.close(writes)
        assert pipe.read() == "well\nTrue"
    distributed.run("works.py", 1)
    assert warm.server_pid() == server


def test_where_there_is_no_server_torchrun_starts_the_ranks_and_says_so(monkeypatch):
    for system in ("win32", "darwin"):
        monkeypatch.setattr(sys, "platform", system)
        with pytest.warns(UserWarning, match=f"done on Linux only, not on {system}: torchrun starts them"):
            assert running._launcher(warm=True) is Torchrun
        assert running._launcher(warm=False) is Torchrun
