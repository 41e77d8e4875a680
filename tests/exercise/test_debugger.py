"""With JupyterLab's debugger switched on, checks and ranks do what they do without it, and a breakpoint gives time."""

import os
import subprocess
import sys
import time
from types import ModuleType

import pytest
from courselib.patience import HANG_SECONDS
from jupyter_client.manager import KernelManager

from gpulab.machine import debugger

ANSWER = """
import math

def amdahl(seconds, share, factor, overhead):
    rest = 1 - share + share / factor
    return seconds / (seconds * rest + overhead), overhead / (1 - rest) if rest < 1 else math.inf
"""
SETUP = """
import gpulab, torch
from gpulab.exercise import guard
machine = gpulab.setup("T4")
machine.close()
guard.WALL_SECONDS = 1.0
"""


class Debugged:
    """A kernel with the debugger attached, as JupyterLab attaches it."""

    def __init__(self, manager):
        self.client = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(HANG_SECONDS)
        self.asked = 0
        self.run(SETUP)  # imports, which take six times as long in a debugger
        self.ask(
            "initialize", clientID="test", adapterID="", pathFormat="path", linesStartAt1=True, columnsStartAt1=True
        )
        self.ask("attach")
        self.ask("configurationDone")

    def ask(self, command, **arguments):
        self.asked += 1
        content = {"type": "request", "seq": self.asked, "command": command, "arguments": arguments}
        request = self.client.session.msg("debug_request", content)
        self.client.control_channel.send(request)
        while True:
            reply = self.client.control_channel.get_msg(timeout=HANG_SECONDS)
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                assert reply["content"]["success"], reply["content"]
                return reply["content"].get("body")

    def run(self, code, at_stop=lambda thread: None):
        """What the cell prints, and the error that it ends in; `at_stop` is called with each thread that stops."""
        asked, said = self.client.execute(code), []
        while True:
            message = self.client.get_iopub_msg(timeout=HANG_SECONDS)
            kind, content = message["msg_type"], message["content"]
            if kind == "debug_event" and content["event"] == "stopped":
                at_stop(content["body"]["threadId"])
            elif message["parent_header"].get("msg_id") == asked:
                said += [
                    content.get("text", ""),
                    content.get("evalue", ""),
                    content.get("data", {}).get("text/plain", ""),
                ]
                if content.get("execution_state") == "idle":
                    return "".join(filter(None, said))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    progress = tmp_path_factory.mktemp("progress") / "progress.json"
    environ = {**os.environ, "GPULAB_PROGRESS": str(progress)}
    with pytest.MonkeyPatch.context() as patch:
        # An ordinary Python: the debugger asks of each function whether it is of a module that the kernel began with.
        patch.setenv("JUPYTER_PATH", os.path.join(sys.prefix, "share", "jupyter"))
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(env=environ)
    try:
        debugged = Debugged(manager)
        debugged.run("machine = gpulab.setup('T4')\nmachine.close()")
        yield debugged
        debugged.client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)


def test_an_answer_that_raises_is_told(kernel):
    said = kernel.run("gpulab.check.move_batch(lambda batch, device: 1 / 0)")
    assert "move_batch: your function raised ZeroDivisionError" in said


def test_an_answer_at_a_breakpoint_is_given_time(kernel):
    path = kernel.ask("dumpCell", code=ANSWER)["sourcePath"]

    def stop_at(*lines):
        kernel.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])

    stops = []

    def look_around(thread):
        stops.append(thread)
        time.sleep(1.5)
        stop_at()
        kernel.ask("continue", threadId=thread)

    stop_at(6)
    kernel.run(ANSWER)
    said = kernel.run("gpulab.check.amdahl(amdahl)", look_around)
    assert len(stops) == 1
    assert "✔ amdahl" in said


def test_the_card_says_that_it_is_on(kernel):
    assert "then hang" in kernel.run("print(machine.notes)")


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "torchrun"])
def test_ranks_are_not_debugged(kernel, warm):
    """Else they would wait for a session of their own."""
    if warm and sys.platform != "linux":
        pytest.skip("the warm server needs Linux")
    script = "import os, sys\nprint(os.environ['RANK'], sys.gettrace(), 'pydevd' in sys.modules)"
    said = kernel.run(f"""
        import pathlib, tempfile
        from gpulab.distributed import warm
        warm.IMPORTED = ("torch.distributed",)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "ranks.py")
            file.write_text({script!r})
            run = gpulab.distributed.run(file, ranks=2, warm={warm}, timeout={HANG_SECONDS})
        print([rank.output for rank in run.ranks])
    """)
    assert "['0 None False\\n', '1 None False\\n']" in said


def test_another_debugger_of_these_modules_is_let_be(monkeypatch):
    """PyCharm's pydevd does not say whether it is attached, and opens a session for each process."""
    for name in ("pydevd", "_pydev_bundle.pydev_monkey"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not debugger.is_attached()
    with debugger.kept_out():
        assert subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True).stdout == b"3\n"
