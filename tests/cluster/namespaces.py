"""Run a program in namespaces of its own: processes, network, mounts and host name.

    python tests/cluster/namespaces.py python -m pytest tests/cluster/test_slurm.py

All that the program has started is killed by the kernel when it ends, or when it is killed; its mounts and network
cards go with them. Linux; without root in a user namespace as well, where the system allows these.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
INSIDE = "GPULAB_NAMESPACES"


def entry(root: bool) -> list[str]:
    """Return the `unshare` command that runs the arguments after it in new namespaces."""
    user = [] if root else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]


def main(arguments: list[str]) -> int:
    if os.environ.get(INSIDE) != "entering":
        # `unshare` dies with the one who has started this, and takes the rest with it; an exec keeps that.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ[INSIDE] = "entering"
        os.execvp("unshare", [*entry(os.geteuid() == 0), sys.executable, __file__, *arguments])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's, which is in the same group
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ[INSIDE] = "yes"
    program = os.posix_spawnp(arguments[0], arguments, os.environ, setsigdef=[signal.SIGINT])
    while True:  # process 1 of its namespace: orphans are its children
        ended, status = os.wait()
        if ended == program:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
