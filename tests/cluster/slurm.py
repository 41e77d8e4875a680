"""A SLURM cluster of one node with two processors, in this process's namespaces: munged, slurmctld, slurmd.

Its configuration, keys, sockets, state and logs are in one folder; it touches nothing of the machine's. The network
card is needed because SLURM's tools look no address up where there is a loopback only.
"""

import os
import re
import socket
import subprocess
from pathlib import Path

from .watching import wait_for

NODE, ADDRESS = "node0", "10.14.0.1"
GRACE = {"long": 3600, "brief": 3, "none": 0}  # a partition for each of these grace times, in seconds
KILL_WAIT = 3  # seconds; 30 where nothing else is set
AGAIN_AFTER = 5  # how long a job that is put back waits: the least that SLURM takes, for 120 s

_CONF = f"""
ClusterName=course
SlurmctldHost={NODE}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={{folder}}/munge.socket,cred_expire={AGAIN_AFTER}
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/slurmd.pid
SlurmctldLogFile={{folder}}/slurmctld.log
SlurmdLogFile={{folder}}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
KillWait={KILL_WAIT}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName={NODE} CPUs=2
PartitionName=urgent Nodes={NODE} PriorityTier=10 PreemptMode=OFF
"""
_PARTITION = "PartitionName={} Nodes={} PriorityTier=1 PreemptMode=REQUEUE GraceTime={}\n"


class Cluster:
    """Started in `folder`; its commands run there, and find it by SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        (folder / "state").mkdir()
        partitions = [_PARTITION.format(name, NODE, seconds) for name, seconds in GRACE.items()]
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder) + "".join(partitions))
        self.environ = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        ours = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        key, meet = f"--key-file={folder}/key", f"--socket={folder}/munge.socket"
        self._daemons: list[subprocess.Popen] = []
        # Forced, since it wants a socket that every user can come to, and pytest has its folders for root alone.
        self._start("munged", "--foreground", "--force", key, meet, *ours)
        wait_for((folder / "munge.socket").exists, folder, self._daemons[0])
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D", "-N", NODE)
        wait_for(lambda: self.run("sinfo", "-h", "-p", "urgent", "-o", "%T", check=False).split() == ["idle"], folder)

    def _start(self, *command: str) -> None:
        with open(self.folder / "log", "a") as log:
            self._daemons.append(subprocess.Popen(command, env=self.environ, stdout=log, stderr=log))

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()

    def run(self, *command: str, check: bool = True, **options) -> str:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **{"env": self.environ, **options}
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def submit(self, *arguments: str, **options) -> str:
        """The number of the job."""
        return self.run("sbatch", "--parsable", *arguments, **options).strip()

    def about(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", job)))

    def wait_until(self, job: str, *states: str) -> dict[str, str]:
        wait_for(lambda: self.about(job)["JobState"] in states, self.folder)
        return self.about(job)


def network(folder: Path) -> None:
    """A host name of our own, known to this namespace; and a network card, of which the other end is not plugged in."""
    socket.sethostname(NODE)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n")
    for command in (
        f"mount --bind {folder}/hosts /etc/hosts",
        "ip link add name card0 type veth peer name card1",
        f"ip address add {ADDRESS}/24 dev card0",
        "ip link set card0 up",
        "ip link set card1 up",
    ):
        subprocess.run(command.split(), check=True)
