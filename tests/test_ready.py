"""A Python that is a fork does, says and ends as one that is started does."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
from courselib import ready
from courselib.lanes import KEEPS_MEMORY, libraries_ready
from courselib.patience import HANG_SECONDS
from courselib.venv import Venv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


@pytest.fixture(scope="module", autouse=True)
def there_is_one():
    """That of `make test`, or where this file runs by itself one of its own."""
    if os.environ.get(ready.PLACE):
        yield
        return
    with libraries_ready(Venv()) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **KEEPS_MEMORY, **variables}.items():
            patch.setenv(name, value)
        yield


def both(*arguments, **how):
    """(exit code, stdout, stderr) of an ordinary Python and of a fork."""
    how = {"capture_output": True, "text": True, "timeout": HANG_SECONDS, **how}
    commands = ([sys.executable], ready.python_here())
    assert commands[0] != commands[1]
    return [(d.returncode, d.stdout, d.stderr) for c in commands for d in [subprocess.run([*c, *arguments], **how)]]


def is_forked(**environment):
    """Whether what is asked for with these variables is a fork."""
    code = "import sys; print('torch' in sys.modules)"
    environ = {**os.environ, **environment}
    done = subprocess.run([*ready.python_here(), "-c", code], capture_output=True, text=True, check=True, env=environ)
    return done.stdout == "True\n"


ENDS = {
    "nothing": "pass",
    "code": "raise SystemExit(7)",
    "words": "raise SystemExit('enough')",
    "large": "import sys; sys.exit(300)",
    "error": "def fail():\n    raise ValueError('wrong')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    fail()",
    "syntax": "print('open'",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "aborted": "import os; os.abort()",
    "at once": "import os; print('unseen'); os._exit(3)",
    "closed": "import sys; sys.stdout.close()",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "deleted": "class D:\n    def __del__(self): print('gone')\nd = D()",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "hook": "import sys; sys.excepthook = lambda *about: print('hooked', about[0].__name__)\n1 / 0",
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_in_the_same_way(name):
    ordinary, forked = both("-c", ENDS[name])
    assert forked == ordinary


FINDS = """
    import __main__, os, random, signal, sys, threading, time
    print(__name__, sys.argv, sys.orig_argv[1:], sys.path, os.getcwd(), sys.warnoptions, sys.dont_write_bytecode)
    print(sorted(set(vars(__main__)) - {"__file__", "__cached__", "__annotations__"}), globals() is vars(__main__))
    print(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGCHLD), os.environ.get("FROM_HERE"))
    print(threading.main_thread().native_id == threading.get_native_id() == os.getpid(), threading.active_count())
    print(sys.stdin.read(), time.process_time() < 30, sys.executable, sys.flags)
"""


@pytest.mark.parametrize("options", [[], ["-u"], ["-W", "error", "-W", "ignore::FutureWarning"]], ids=" ".join)
@pytest.mark.parametrize("way", ["-c", "-m", "script", "link"])
def test_it_finds_the_same(way, options, tmp_path):
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "finds.py"
    file.write_text(textwrap.dedent(FINDS))
    (tmp_path / "link.py").symlink_to(file)
    words = {
        "-c": ["-c", textwrap.dedent(FINDS)],
        "-m": ["-m", "finds"],
        "script": ["there/finds.py"],
        "link": [str(tmp_path / "link.py")],
    }[way]
    folder = tmp_path / "there" if way == "-m" else tmp_path
    environ = os.environ | {"FROM_HERE": "ä\n", "PYTHONPATH": str(tmp_path / "more")}
    ordinary, forked = both(*options, *words, "--some", "x y", cwd=folder, input="typed", env=environ)
    assert ordinary[0] == 0, ordinary[2]
    assert forked == ordinary


def test_each_draws_its_own_numbers():
    code = "import random, numpy, torch, uuid; print(random.random(), numpy.random.rand(), torch.rand(1), uuid.uuid4())"
    command = [*ready.python_here(), "-c", code]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert all(one != other for one, other in zip(*runs, strict=True))


def test_it_starts_processes_in_every_way(tmp_path):
    script = tmp_path / "starts.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing

            def double(x):
                return 2 * x

            if __name__ == "__main__":
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        print(method, pool.map(double, [1, 2, 3]))
        """)
    )
    ordinary, forked = both(str(script))
    assert forked == ordinary
    assert forked[1].count("[2, 4, 6]") == 3


def test_it_trains_with_what_is_there_and_nothing_of_gpulab_is():
    code = """
import sys
assert "torch" in sys.modules and "torch._dynamo" in sys.modules
assert not [name for name in sys.modules if name.partition(".")[0] in ("gpulab", "virtualgpu")]
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(8, 3)).sum().backward()
optimizer.step()
"""
    done = subprocess.run([*ready.python_here(), "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Not one long sleep: Python does not see a signal that comes just before it.
WAITS = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.01)"


@pytest.mark.parametrize("ignored", [[], [signal.SIGHUP], [signal.SIGINT, signal.SIGQUIT]], ids=str)
def test_a_signal_that_is_ignored_at_its_start_stays_so(ignored):
    """As under nohup, and in what a shell has started in the background."""

    def begin():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    code = """
        import os, signal
        found = {s.name: str(signal.getsignal(s)).partition(" at ")[0] for s in sorted(signal.Signals)}
        print(found, flush=True)
        os.kill(os.getpid(), signal.SIGHUP)
        print("still here")
    """
    ordinary, forked = both("-c", textwrap.dedent(code), preexec_fn=begin)
    assert forked == ordinary
    assert ordinary[0] == (0 if signal.SIGHUP in ignored else -signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_who_asked_ends_the_fork(number):
    def begin():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup make test` ignores, and all that it starts

    command, how = [*ready.python_here(), "-c", WAITS], {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, preexec_fn=begin, **how) as asked:
        fork = psutil.Process(int(asked.stdout.readline()))
        try:
            asked.send_signal(number)
            assert asked.wait(HANG_SECONDS) == -number
        finally:
            asked.kill()
        psutil.wait_procs([fork], HANG_SECONDS)
        assert not fork.is_running()


@pytest.mark.parametrize(
    "different", [{"OMP_NUM_THREADS": "2"}, {"PYTHONHASHSEED": "7"}, {"LD_LIBRARY_PATH": "/nowhere"}], ids=str
)
def test_what_is_read_at_the_start_takes_an_ordinary_python(different):
    assert is_forked()
    assert is_forked(PYTHONPATH="/nowhere", CUDA_VISIBLE_DEVICES="", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert not is_forked(**different)


@pytest.mark.parametrize("arguments", [["--version"], ["-I", "-c", "print(3)"], ["-X", "utf8", "-c", "print(4)"]])
def test_other_options_take_an_ordinary_python(arguments):
    ordinary, asked = both(*arguments)
    assert asked == ordinary
    assert ordinary[0] == 0


def test_where_nobody_answers_it_is_an_ordinary_python(tmp_path):
    assert not is_forked(**{ready.PLACE: str(tmp_path / "none")})


def test_without_a_place_the_command_is_python_alone(monkeypatch):
    monkeypatch.delenv(ready.PLACE)
    assert ready.python_here() == [sys.executable]
    assert ready.ranks_here() == ready.kernels_here() == {}
    assert ready.ranks_here({ready.PLACE: "/there/ready"}) == {"PYTHON_EXEC": "/there/python"}
