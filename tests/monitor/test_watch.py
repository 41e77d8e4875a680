"""A watch in a script: what it collects, and that its thread ends however the code beside it ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from courselib.patience import HANG_SECONDS

from gpulab import monitor
from gpulab.monitor import Watch

MIB = 2**20


def watching() -> int:
    return sum(thread.name == "gpulab.monitor" for thread in threading.enumerate())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_a_block_is_sampled_from_its_beginning_to_its_end(fake_nvml: Any, capsys: pytest.CaptureFixture[str]) -> None:
    nvml = fake_nvml({"millijoules": 1000}, {})
    with Watch(0.05, None, nvml) as seen:
        assert watching() == 1
        assert len(seen.samples) >= 1, "the first sample is there before the block begins"
        until(lambda: len(seen.samples) >= 3)
        nvml.gpus[0].update(millijoules=6000, used=9 * MIB, gpu=100)
    assert watching() == 0
    assert not seen.running
    assert nvml.open == 0
    assert seen.samples[-1].readings[0].utilization == 100, "the last sample is taken at the end"
    one, two = seen.summary().gpus
    assert (one.energy_j, one.max_utilization, two.max_utilization) == (5, 100, 87)
    assert two.energy_j == 0
    assert capsys.readouterr().out == "", "a script's output is its own"
    print(seen.summary())
    assert "GPU 0" in capsys.readouterr().out


class StudentsError(Exception):
    pass


@pytest.mark.parametrize("error", [StudentsError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_the_block_raises_passes_unchanged_and_no_thread_stays(fake_nvml: Any, error: type[BaseException]) -> None:
    raised = error("mine")
    with pytest.raises(error) as caught, Watch(0.05, None, fake_nvml({})):
        raise raised
    assert caught.value is raised
    assert caught.value.__context__ is None
    assert watching() == 0


def test_it_can_be_stopped_early_and_twice_and_from_several_threads(fake_nvml: Any) -> None:
    with Watch(0.05, None, fake_nvml({})) as seen:
        stoppers = [threading.Thread(target=seen.stop) for _ in range(4)]
        for thread in stoppers:
            thread.start()
        for thread in stoppers:
            thread.join()
        assert watching() == 0
        taken = len(seen.samples)
        seen.stop()
        time.sleep(0.1)
    assert len(seen.samples) == taken


def test_one_that_nobody_refers_to_any_more_ends(fake_nvml: Any) -> None:
    nvml = fake_nvml({})
    seen: Watch | None = Watch(0.05, None, nvml)
    assert seen is not None
    seen.start()
    assert watching() == 1
    del seen
    gc.collect()
    until(lambda: watching() == 0)
    assert nvml.open == 0


def test_a_block_that_is_given_up_ends_too(fake_nvml: Any) -> None:
    def steps() -> Any:
        with Watch(0.05, None, fake_nvml({})):
            yield

    running = steps()
    next(running)
    assert watching() == 1
    del running
    gc.collect()
    until(lambda: watching() == 0)


def test_it_ends_by_itself_after_its_seconds_while_the_code_goes_on(fake_nvml: Any) -> None:
    with Watch(60.0, 0.15, fake_nvml({})) as seen:
        until(lambda: not seen.running)
        assert watching() == 0
        assert len(seen.samples) == 2, "the first and the last, though `every` is longer"
        assert seen.summary().seconds >= 0.15


def test_a_watch_that_was_never_started_has_no_thread_and_says_how_to_start_it() -> None:
    seen = monitor.watch()
    seen.stop()
    assert watching() == 0
    assert "with gpulab.monitor.watch() as seen:" in repr(seen)
    assert "nothing has been read yet" in repr(seen.summary())


def test_it_starts_once(fake_nvml: Any) -> None:
    seen = Watch(0.05, None, fake_nvml({}))
    with seen:
        with pytest.raises(RuntimeError, match="has already been started"):
            seen.start()
        assert seen.running
        assert repr(seen).startswith("a watch, running")
    with pytest.raises(RuntimeError, match="makes a new one"):
        seen.start()
    assert watching() == 0
    assert repr(seen).startswith("a watch, over")


def test_a_gpu_that_is_lost_in_the_middle_costs_only_its_own_readings(fake_nvml: Any) -> None:
    nvml = fake_nvml({}, {})
    with Watch(0.05, None, nvml) as seen:
        nvml.fails["nvmlDeviceGetHandleByIndex 0"] = pynvml.NVML_ERROR_GPU_IS_LOST
        until(lambda: seen.samples[-1].readings[0].used_bytes is None)
        assert seen.samples[-1].readings[1].utilization == 87
    lost, well = seen.summary().gpus
    assert lost.peak_used_bytes == 1000 * MIB
    assert "fallen off the bus" in lost.unread[0]
    assert well.mean_utilization == 87


def test_a_reading_that_fails_as_nobody_foresaw_costs_one_sample(fake_nvml: Any) -> None:
    class Odd(type(fake_nvml({}))):  # type: ignore[misc]
        def _nvmlDeviceGetCount(self) -> Any:
            return "two" if self.odd else 1

    nvml = Odd({})
    nvml.odd = False
    with Watch(0.05, None, nvml) as seen:
        nvml.odd = True
        until(lambda: seen.samples[-1].readings == ())
        assert "this reading failed (TypeError" in seen.samples[-1].readings.reason
        nvml.odd = False
        until(lambda: len(seen.samples[-1].readings) == 1)
    assert len(seen.summary().gpus) == 1


def test_an_interrupt_of_the_first_reading_gives_the_driver_back(fake_nvml: Any) -> None:
    nvml = fake_nvml({}, fails={"nvmlDeviceGetName": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        Watch(0.05, None, nvml).start()
    assert nvml.open == 0
    assert watching() == 0


def test_without_a_driver_it_is_a_watch_of_nothing_with_the_reason(fake_nvml: Any) -> None:
    nvml = fake_nvml(fails={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    with Watch(0.05, None, nvml) as seen:
        until(lambda: len(seen.samples) >= 3)
    assert "no NVIDIA driver is installed here" in repr(seen.summary())
    assert nvml.asked == 1, "a driver that is not there is looked for once"


def test_an_interrupt_of_a_real_program_ends_it_at_once() -> None:
    """Ctrl-C in the main thread of a script: the traceback is the script's, and the process ends."""
    script = (
        "import _thread, signal, threading, time, gpulab.monitor\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell has put into background
        "with gpulab.monitor.watch(every=0.05):\n"
        "    threading.Timer(0.5, _thread.interrupt_main).start()\n"
        "    while True: time.sleep(0.01)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count('File "') == 1, "of the script, and of nothing else"


def test_a_program_that_ends_while_it_is_watched_ends_quietly() -> None:
    script = "import gpulab.monitor\nseen = gpulab.monitor.watch(every=0.05)\nseen.start()\nprint('end')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"every": "1"}, TypeError, "every must be a number of seconds, not '1' (str)"),
        ({"every": True}, TypeError, "every must be a number of seconds, not True"),
        ({"every": 0}, ValueError, "every must be from 0.05 to 60 seconds, not 0.0"),
        ({"every": 61}, ValueError, "every must be from 0.05 to 60 seconds"),
        ({"every": float("nan")}, ValueError, "every must be a finite number of seconds, not nan"),
        ({"seconds": 0}, ValueError, "seconds must be more than 0, or None"),
        ({"seconds": -1.5}, ValueError, "seconds must be more than 0, or None"),
        ({"seconds": float("inf")}, ValueError, "seconds must be a finite number of seconds, not inf"),
        ({"seconds": [1]}, TypeError, "seconds must be a number of seconds, not [1] (list)"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        monitor.watch(**arguments)
    assert words in str(caught.value)
    assert watching() == 0
