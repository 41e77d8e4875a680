"""A student's code in bounds: whatever it does, the call ends and the notebook finds all as it was."""

import contextlib
import gc
import importlib
import io
import os
import random
import subprocess
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
from courselib.busy import busy
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here

from gpulab.exercise import guard, processor, settings, worker
from gpulab.exercise.guard import Guard
from gpulab.exercise.processor import FairClock

PRECISIONS = (
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "mkldnn.fp32_precision",
    "fp32_precision",
)


def run(function, *args):
    return Guard().run(function, args, contextlib.nullcontext())


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "gpulab check"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert threads() == []
    yield
    for thread in threads():
        thread.join(HANG_SECONDS)
    assert threads() == []


def raising(error):
    def function():
        raise error

    return function


def test_a_value_comes_back():
    outcome = run(lambda a, b: a + b, 2, 3)
    assert (outcome.value, outcome.error, outcome.over, outcome.left_behind) == (5, None, "", ())


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError(), GeneratorExit()])
def test_any_exception_is_handed_over(error):
    assert run(raising(error)).error is error


def test_endless_recursion_ends_in_its_own_error():
    def deeper():
        return deeper()

    assert isinstance(run(deeper).error, RecursionError)


# --- time ----------------------------------------------------------------------------------------------


def loop():
    while True:
        pass


def loop_that_catches_everything():
    while True:
        try:
            n = sum(range(50))
        except:  # noqa: E722 - what a student writes
            n = 0
        assert n >= 0


def loop_that_trains_and_catches_everything():
    x = torch.ones(100, requires_grad=True)
    while True:
        try:
            time.sleep(0)
            (x * x).sum().backward()
        except:  # noqa: E722
            x.grad = None


def loop_that_catches_at_two_depths():
    def inner():
        while True:
            try:
                time.sleep(0.0001)
            except:  # noqa: E722
                print("retrying")

    while True:
        try:
            inner()
        except:  # noqa: E722
            continue


def loop_that_prints():
    while True:
        print("still here")


def loop_of_backward():
    x = torch.ones(100, requires_grad=True)
    while True:
        (x * x).sum().backward()


CATCHING = [loop_that_catches_everything, loop_that_trains_and_catches_everything, loop_that_catches_at_two_depths]
IN_3_12 = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 takes the end of a handler for a part of the try"
)


@pytest.mark.parametrize(
    "function", [loop, loop_that_prints, loop_of_backward, *(pytest.param(f, marks=IN_3_12) for f in CATCHING)]
)
def test_an_endless_loop_is_ended(short_limit, function):
    outcome = run(function)
    assert outcome.over == "processor"
    assert outcome.ended
    assert threads() == []


def test_the_limit_is_of_processor_time(short_limit):
    outcome = run(loop)
    assert (outcome.over, outcome.limit) == ("processor", 0.3)


def test_the_work_of_a_thread_that_the_call_starts_counts(short_limit):
    over = threading.Event()

    def spin():
        while not over.is_set():
            sum(range(1000))

    def waits_for_a_thread():
        thread = threading.Thread(target=spin)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.01)
        finally:
            over.set()

    assert run(waits_for_a_thread).over == "processor"


def test_the_work_of_a_thread_that_was_there_before_does_not_count(monkeypatch):
    if not processor._TELLS:
        pytest.skip("NOT tested: this system does not tell the processor time of another thread")
    monkeypatch.setattr(guard, "LIMIT_SECONDS", 0.3)
    over = threading.Event()

    def spin():
        while not over.is_set():
            sum(range(1000))

    widget = threading.Thread(target=spin)
    widget.start()

    def waits_for_it():
        while processor.thread_seconds(widget.native_id) < began + 1:
            time.sleep(0.01)
        return "done"

    began = processor.thread_seconds(widget.native_id)
    try:
        assert run(waits_for_it).value == "done"
    finally:
        over.set()
        widget.join()


def test_a_wait_that_computes_nothing_is_told_sooner_than_one_that_does(monkeypatch):
    monkeypatch.setattr(guard, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(guard, "WALL_SECONDS", 4.0)
    never = threading.Event()

    def waits():
        while not never.wait(0.5):
            pass

    def polls():
        while not never.is_set():
            sum(range(20_000))
            time.sleep(0.003)

    assert run(waits).over == "idle"
    assert run(polls).over == "wall"


def test_a_call_that_waits_for_a_process_at_work_is_not_idle(monkeypatch, tmp_path):
    """Not when it has been looked at twice, each time at the beginning and at the end of what may be idle."""
    monkeypatch.setattr(guard, "IDLE_SECONDS", 2.0)  # a cold disk holds up its start for longer than half a second
    looks, look, enough = [], processor.ProcessorTime.of_children, tmp_path / "enough"

    def of_children():
        looks.append(look())
        if len(looks) == 4:
            enough.touch()
        return looks[-1]

    monkeypatch.setattr(processor.ProcessorTime, "of_children", staticmethod(of_children))
    # Half of the time at work, or more: what counts as idle is a hundredth.
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.003) or sum(range(200_000))"
    try:
        outcome = run(subprocess.run, [sys.executable, "-c", code, enough])
    finally:
        enough.touch()
    assert len(looks) >= 4
    assert outcome.over == ""
    assert outcome.value.returncode == 0


@pytest.fixture
def nothing_to_collect():
    """A thread that wakes may be the one that collects what other tests left, and is struck within their destructors:
    Python then prints that it ignores it.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("catches", [(), BaseException])
def test_a_call_that_sleeps_is_left_behind_and_ends_when_it_wakes(catches, short_idle, nothing_to_collect, capfd):
    wakes = threading.Lock()
    wakes.acquire()

    def sleeper():
        with contextlib.suppress(catches):
            wakes.acquire()  # in C: nothing reaches it
        print("good morning")

    outcome = run(sleeper)
    assert outcome.over == "idle"
    assert not outcome.ended
    [thread] = threads()
    wakes.release()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_right_answer_beside_many_busy_processes_is_not_taken_for_an_endless_one(monkeypatch):
    monkeypatch.setattr(guard, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(guard, "WALL_SECONDS", 30.0)

    def a_third_of_that():
        while time.thread_time() < 0.15:
            pass
        return "done"

    with busy(6 * (os.cpu_count() or 1)):
        assert run(a_third_of_that).value == "done"


def test_stop_while_the_thread_is_being_started_leaves_none_behind():
    called = []
    never_started = worker.Worker(lambda: called.append(1))
    assert never_started.end()
    never_started.start()
    never_started.thread.join()
    assert called == []


# --- the clocks ----------------------------------------------------------------------------------------


def test_a_pause_of_the_whole_process_counts_as_a_moment(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(processor, "monotonic", lambda: now[0])
    monkeypatch.setattr(processor, "_share_of_the_processor", lambda: 1.0)
    clock = FairClock()
    for _ in range(5):
        now[0] += 0.1
        clock.now()
    assert clock.seconds == pytest.approx(0.5)
    now[0] += 3600
    assert clock.now() == pytest.approx(0.7)


def test_time_passes_by_the_share_of_the_processor_that_there_is(monkeypatch):
    now, share = [0.0], [1.0]
    monkeypatch.setattr(processor, "monotonic", lambda: now[0])
    monkeypatch.setattr(processor, "_share_of_the_processor", lambda: share[0])
    clock = FairClock()

    def pass_time(seconds):
        for _ in range(round(seconds / 0.1)):
            now[0] += 0.1
            clock.now()
        return clock.seconds

    assert pass_time(10) == pytest.approx(10)
    share[0] = 0.1
    pass_time(2)
    before = clock.seconds
    assert pass_time(20) == pytest.approx(before + 2)
    share[0] = 1.0
    pass_time(2)
    before = clock.seconds
    assert pass_time(5) == pytest.approx(before + 5)


def test_the_share_of_the_processor_is_a_share():
    assert 0 < processor._share_of_the_processor() <= 1


TWO_THREADS = """
import sys, threading, time
from gpulab.exercise import processor

def work():
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass

processor._TELLS = sys.argv[1] == "True"
counted = processor.ProcessorTime()
work()
own = counted.used()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(own, counted.used())
"""


@pytest.mark.parametrize("tells", [True, False])
def test_processor_time_is_of_others_than_the_one_who_asks(tells):
    """In a process of its own: what torch has in this one may compute meanwhile, and that counts."""
    if tells and not processor._TELLS:
        pytest.skip("NOT tested: this system does not tell the processor time of another thread")
    command = [*python_here(), "-c", TWO_THREADS, str(tells)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, both = map(float, done.stdout.split())
    assert own < 0.1
    assert 0.19 < both < 0.4


# --- imports -------------------------------------------------------------------------------------------

SLOW_MODULE = """
import threading, {name}_gate as gate
half = 1
gate.reached.set()
{wait}
whole = 2
"""
WAITS = {
    "sleeping": "gate.go_on.acquire()",
    "computing": "while not gate.go_on.acquire(timeout=0): sum(range(1000))",
}


@pytest.fixture
def slow_module(request, tmp_path, monkeypatch):
    """A module that is imported until its gate is opened; the gate."""
    name = f"slow_{request.param}"
    gate = type(sys)(f"{name}_gate")
    gate.reached, gate.go_on = threading.Event(), threading.Semaphore(0)
    monkeypatch.setitem(sys.modules, gate.__name__, gate)
    (tmp_path / f"{name}.py").write_text(SLOW_MODULE.format(name=name, wait=WAITS[request.param]))
    monkeypatch.syspath_prepend(tmp_path)
    yield name, gate
    gate.go_on.release()
    sys.modules.pop(name, None)


@pytest.mark.parametrize("slow_module", WAITS, indirect=True)
def test_time_in_an_import_does_not_count(short_limit, short_idle, slow_module):
    name, gate = slow_module
    looks = []
    watch = guard._Watch.over

    def over(self):
        looks.append(self._worker.importing())
        if sum(looks) == 10:  # a second: more than three times the limit
            gate.go_on.release()
        return watch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard._Watch, "over", over)
        outcome = run(lambda: importlib.import_module(name).whole)
    assert (outcome.value, outcome.over) == (2, "")


def test_to_look_at_a_call_keeps_nothing_of_it_alive():
    """What a function of the student's held is gone when it returns: its memory may be measured."""
    late = []

    def holds():
        held = threading.Event()
        return weakref.ref(held)

    def calls():
        for _ in range(20_000):
            if holds()() is not None:
                late.append("still there")

    looked = worker.Worker(calls)
    looked.start()
    while not looked.wait(0):
        looked.importing()
    assert looked.error is None
    assert late == []


@pytest.mark.parametrize("slow_module", WAITS, indirect=True)
def test_no_thread_is_ended_within_an_import(slow_module):
    """The student presses stop, a moment before the module is there: it is there as a whole, and then the call ends."""
    name, gate = slow_module
    after = []

    def imports_and_goes_on():
        importlib.import_module(name)
        after.append("imported")
        loop()

    stopped = worker.Worker(imports_and_goes_on)
    stopped.start()
    assert gate.reached.wait(HANG_SECONDS)
    threading.Timer(0.5, gate.go_on.release).start()
    assert stopped.end()
    assert isinstance(stopped.error, worker.TimeUp)
    assert sys.modules[name].whole == 2
    assert importlib.import_module(name).whole == 2


@pytest.mark.parametrize("slow_module", WAITS, indirect=True)
def test_an_import_that_does_not_come_to_its_end_is_left_alone(short_limit, short_idle, slow_module, monkeypatch):
    monkeypatch.setattr(worker, "IMPORT_SECONDS", 0.5)
    name, gate = slow_module
    outcome = run(importlib.import_module, name)
    assert (outcome.over, outcome.limit, outcome.ended) == ("import", 0.5, False)
    gate.go_on.release()  # it goes on in the background, and comes to its end after all
    for thread in threads():
        thread.join(HANG_SECONDS)
    assert sys.modules[name].whole == 2
    assert importlib.import_module(name).whole == 2


def test_stop_in_the_notebook_ends_the_call_and_puts_all_back():
    out, dtype = sys.stdout, torch.get_default_dtype()

    def presses_stop():
        torch.set_default_dtype(torch.float64)
        os.kill(os.getpid(), 2)
        loop()

    with pytest.raises(KeyboardInterrupt):
        run(presses_stop)
    assert sys.stdout is out
    assert torch.get_default_dtype() is dtype
    assert threads() == []


# --- printing ------------------------------------------------------------------------------------------


def test_millions_of_characters_become_a_line(capfd):
    guard = Guard()
    guard.run(lambda: print("x" * 5_000_000), (), contextlib.nullcontext())
    assert guard.printed() == f"{'x' * 200} … and 4,999,801 more characters"
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_warnings_is_kept_short_and_names_no_file():
    def warn():
        for i in range(10_000):
            warnings.warn(f"number {i}", stacklevel=1)

    guard = Guard()
    guard.run(warn, (), contextlib.nullcontext())
    assert guard.printed().startswith("UserWarning: number 0 UserWarning: number 1 ")
    assert __file__ not in guard.printed()
    assert len(guard.printed()) < 300


def test_filters_for_warnings_are_put_back():
    before = list(warnings.filters)
    run(lambda: warnings.simplefilter("error"))
    assert list(warnings.filters) == before


def test_a_replaced_stdout_is_put_back():
    def replace():
        sys.stdout = sys.stderr = io.StringIO()

    before = sys.stdout, sys.stderr
    run(replace)
    assert (sys.stdout, sys.stderr) == before


# --- settings ------------------------------------------------------------------------------------------


def set_precision(path, value):
    home = torch.backends
    *parents, last = path.split(".")
    for name in parents:
        home = getattr(home, name)
    setattr(home, last, value)


def everything():
    """What torch says of itself, with the error where it refuses to."""
    said = {}
    for name, read in {
        "legacy": torch.get_float32_matmul_precision,
        "tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn tf32": lambda: torch.backends.cudnn.allow_tf32,
        "print options": lambda: str(torch.tensor([1.23456789, 1e6])),
    }.items():
        try:
            said[name] = read()
        except RuntimeError as error:
            said[name] = str(error)
    return said | settings.shared() | settings.local()


SWITCHES = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "autocast on the CPU": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "print options": lambda: torch.set_printoptions(precision=1),
    "the float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "torch.backends.cudnn.enabled": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "the current folder": lambda: os.chdir("/"),
    "the recursion limit": lambda: sys.setrecursionlimit(12_345),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_reported_and_put_back(name):
    before = everything()
    outcome = run(SWITCHES[name])
    assert any(said.startswith(f"{name} at ") for said in outcome.left_behind)
    assert everything() == before


@pytest.mark.parametrize("path", PRECISIONS)
def test_precision_set_the_new_way_is_put_back_and_the_old_way_still_reads(path):
    before = everything()
    outcome = run(set_precision, path, "tf32" if "cudnn" not in path else "ieee")
    assert any(f"torch.backends.{path}" in said for said in outcome.left_behind)
    assert everything() == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_older_switch_of_cudnn_is_put_back_and_can_be_read():
    before = everything()
    outcome = run(lambda: setattr(torch.backends.cudnn, "allow_tf32", False))
    assert outcome.left_behind
    assert torch.backends.cudnn.allow_tf32
    assert everything() == before


def test_both_ways_of_setting_precision_at_once_are_put_back():
    def both():
        torch.set_float32_matmul_precision("high")
        set_precision("mkldnn.matmul.fp32_precision", "bf16")
        set_precision("cuda.matmul.fp32_precision", "ieee")

    before = everything()
    run(both)
    assert everything() == before


def test_precision_that_the_notebook_mixed_is_left_as_it_was():
    before = everything()
    try:
        set_precision("cuda.matmul.fp32_precision", "tf32")
        mixed = everything()
        settings.in_clean_state(lambda: run(SWITCHES["the float32 matmul precision"]), seed=1)
        assert everything()["torch.backends.cuda.matmul.fp32_precision"] == "tf32"
        assert (
            everything()["torch.backends.mkldnn.matmul.fp32_precision"]
            == mixed["torch.backends.mkldnn.matmul.fp32_precision"]
        )
    finally:
        torch.set_float32_matmul_precision("highest")
        settings.restore(before)
    assert everything() == before


def test_a_number_of_threads_that_was_changed_does_not_reach_later_threads():
    before = torch.get_num_threads()
    run(lambda: torch.set_num_threads(before + 1))
    assert run(torch.get_num_threads).value == before


def test_the_environment_is_put_back_quietly(monkeypatch):
    monkeypatch.setenv("KEPT", "1")

    def change():
        os.environ["KEPT"] = "2"
        os.environ["NEW"] = "3"

    assert run(change).left_behind == ()
    assert os.environ["KEPT"] == "1"
    assert "NEW" not in os.environ


def test_a_switch_that_is_set_back_is_not_reported():
    def careful():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            torch.set_default_dtype(torch.float64)
        torch.set_default_dtype(torch.float32)

    assert run(careful).left_behind == ()


# --- random numbers ------------------------------------------------------------------------------------


def random_numbers():
    return random.random(), torch.rand(3).tolist(), np.random.rand(2).tolist()


def reseed():
    random.seed(0)
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.mark.parametrize("call", [reseed, random_numbers, raising(ValueError()), loop])
def test_random_states_are_put_back_after_each_call(short_limit, call):
    random.seed(7)
    torch.manual_seed(7)
    np.random.seed(7)
    expected = random_numbers()
    random.seed(7)
    torch.manual_seed(7)
    np.random.seed(7)
    run(call)
    assert random_numbers() == expected


# --- the clean state of a check -------------------------------------------------------------------------


def test_a_check_runs_in_the_same_state_whatever_the_notebook_has_set():
    def state():
        return settings.shared()["the default dtype"], settings.local(), torch.rand(2).tolist(), random.random()

    usual = settings.in_clean_state(state, seed=3)
    before = everything()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert settings.in_clean_state(state, seed=3) == usual
            assert torch.is_autocast_enabled("cpu")
            assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() is torch.float64
        assert torch.get_default_device().type == "meta"
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_default_device(None)
        settings.restore(before)
    assert everything() == before


def test_a_check_that_raises_puts_back_the_random_states():
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(ZeroDivisionError):
        settings.in_clean_state(lambda: torch.rand(3).sum() + random.random() / 0, seed=9)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
