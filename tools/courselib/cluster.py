"""What `make cluster` runs: what needs a cluster on this machine, or the power to kill and to mount.

Each part runs in namespaces of its own (tests/cluster/namespaces.py), so that nothing of it outlives it.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence

from .lanes import Lane, chosen, run_lanes
from .venv import Venv

PACKAGES = {  # Debian's, of the programs
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "strace": "strace",
    "unshare": "util-linux",
}
_SYSTEM = "/usr/sbin:/sbin"  # not on everyone's PATH
_NAMESPACES = "tests/cluster/namespaces.py"


def missing(programs: Sequence[str], as_root: bool) -> str:
    """Why what takes `programs`, and root's rights or a user namespace, cannot run here; empty where it can."""
    if platform.system() != "Linux":
        return "it needs Linux"
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), _SYSTEM])
    absent = [name for name in (*programs, "unshare", "ip") if not shutil.which(name, path=path)]
    if absent:
        packages = " ".join(sorted({PACKAGES[name] for name in absent}))
        return f"{' and '.join(absent)} missing: apt-get install --no-install-recommends {packages}"
    if as_root and os.geteuid() != 0:
        return "it needs root"
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    tried = subprocess.run(["unshare", *user, "--net", "--mount", "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"this system allows no namespaces ({tried.stderr.strip()})"


def lanes_for_cluster() -> list[Lane]:
    """The parts, in order."""
    disk, daemons = ("strace", "mkfs.ext4", "mount"), ("munged", "slurmctld", "slurmd")
    parts = (
        ("namespaces", "nothing that a part starts outlives it", (), False),
        ("kills", "killed at every system call of a save, and at a hundred moments of a run", ("strace",), False),
        ("power", "the power fails at every system call of a save, on a real ext4", disk, True),
        ("elastic", "a rank is killed, or a notice comes, under torchrun", (), False),
        ("nodes", "two nodes, which are network namespaces, and a real rendezvous", (), False),
        ("slurm", "the course's batch file on a real SLURM", daemons, True),
    )
    lanes = []
    for name, title, programs, as_root in parts:
        why = missing(programs, as_root)
        tests = ("-m", "pytest", f"tests/cluster/test_{name}.py", "-p", "no:cacheprovider")
        lanes.append(Lane(name, title, (_NAMESPACES, "python", *tests), f"{name} NOT run: {why}" if why else ""))
    return lanes


def run_cluster(venv: Venv, only: str | None) -> int:
    """The parts, or the one named `only`; 1 if any failed."""
    return run_lanes(venv, chosen(lanes_for_cluster(), only))
