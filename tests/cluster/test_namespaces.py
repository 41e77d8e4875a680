"""What a part of `make cluster` starts ends with it: by itself, interrupted, or killed with whoever has started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .watching import wait_for

# Starts a process that nobody waits for, in a session of its own, as daemons do; then waits, or ends with exit code 3.
_STARTS = """
import os, signal, subprocess, sys
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
os.mkdir(sys.argv[2])
sys.exit(3) if sys.argv[3:] else signal.pause()
"""
_STARTER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def left(mark: str) -> list[psutil.Process]:
    """Those that sleep for `mark` seconds."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", mark]]


@pytest.mark.parametrize("end", ["by itself", "interrupted", "killed"])
def test_nothing_outlives_it(tmp_path, end):
    mark = f"{100_000 + os.getpid()}.{['by itself', 'interrupted', 'killed'].index(end)}"
    entry = [sys.executable, str(Path(__file__).with_name("namespaces.py")), sys.executable, "-c", _STARTS]
    more = ["ends"] if end == "by itself" else []
    command = [sys.executable, "-c", _STARTER, *entry, mark, str(tmp_path / "started"), *more]
    starter = subprocess.Popen(command, start_new_session=True)
    wait_for((tmp_path / "started").exists, tmp_path)
    if end == "interrupted":
        os.killpg(starter.pid, signal.SIGINT)  # as Ctrl-C in a terminal, which all of the group get
    elif end == "killed":
        starter.kill()
    code = starter.wait()
    wait_for(lambda: not left(mark), tmp_path)
    assert end != "by itself" or code == 3


def test_the_network_the_mounts_and_the_host_name_are_its_own(tmp_path):
    entry = [sys.executable, str(Path(__file__).with_name("namespaces.py")), "bash", "-c"]
    changes = (
        "mount --bind /proc/sys/kernel/ostype /etc/hostname && ip link add name card7 type veth && cat /etc/hostname"
    )
    before = Path("/etc/hostname").read_text()
    assert subprocess.check_output([*entry, changes], text=True) == "Linux\n"
    assert Path("/etc/hostname").read_text() == before
    assert not Path("/sys/class/net/card7").exists()
