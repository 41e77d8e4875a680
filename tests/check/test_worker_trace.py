"""After a call was ended from outside, the interpreter is as it was: its functions can be traced."""

import subprocess

from courselib.ready import python_here

SCRIPT = """
import sys, time
from gpulab.check.worker import Worker

def clings():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass

for call in (lambda: time.sleep(0.05), clings, lambda: time.sleep(0.05)):
    worker = Worker(call)
    worker.start()
    worker.wait(0.04)
    assert worker.end()
sys.settrace(lambda *about: None)
print((lambda: "traced")())
"""


def test_a_debugger_works_after_a_call_was_ended():
    done = subprocess.run([*python_here(), "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "traced\n"
