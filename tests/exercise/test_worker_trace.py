"""In a debugger or a profiler a call ends as elsewhere, and after it was ended from outside functions can be traced."""

import subprocess
import textwrap

import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here

SCRIPT = """
import cProfile, sys, threading, time
from gpulab.exercise.worker import Worker

def raises():
    raise ValueError("wrong")

def loops():
    while True:
        time.sleep(0.001)

def clings():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass

def ended(call, seconds=0.04):
    worker = Worker(call)
    worker.start()
    worker.wait(seconds)
    return worker.end(), type(worker.error).__name__

def each():
    for call in (lambda: 3, raises, loops, clings):
        print(*sorted({ended(call) for _ in range(3)}))
    for number in range(50):  # ended by itself, and from outside, in the same moment
        ended(lambda: time.sleep(number % 10 / 1000), 0.004)
    print(ended(lambda: time.sleep(1e6)))  # in C: left behind

def tracer(*about):
    return tracer
"""
ALL = """\
(True, 'NoneType')
(True, 'ValueError')
(True, 'TimeUp')
(True, 'TimeUp')
(False, 'NoneType')
"""
WAYS = {
    "afterwards": "each()\nsys.settrace(tracer)\nassert ended(lambda: 3)",
    "a profiler": "profiler = cProfile.Profile()\nprofiler.enable()\neach()\nprofiler.disable()",
    "a debugger": "sys.settrace(tracer)\neach()",
    "a debugger of all threads": "sys.settrace(tracer)\nthreading.settrace(tracer)\neach()",
}


@pytest.mark.parametrize("way", WAYS)
def test_calls_end(way):
    command = [*python_here(), "-c", textwrap.dedent(SCRIPT) + WAYS[way]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    assert done.stdout == ALL
