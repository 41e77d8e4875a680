"""The course's batch file on a real SLURM: pre-empted, at its limit, put back, resumed; what SLURM sends to whom."""

import os
import pty
import time

import pytest

from .lesson import environ, losses, write_programs
from .namespaces import INSIDE
from .slurm import NODE, Cluster, network
from .watching import wait_for

IN_THE_MIDDLE = 25  # the run saves every 10 steps
A_WHILE = 3  # seconds in which what must not come does not; that it never comes no test can say

# Writes down who gets which signal.
_RECORDER = """
import os, signal, sys
who, to = sys.argv[1:]
def note(word):
    os.write(log, f"{who} {word}\\n".encode())
log = os.open(to, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for one in (signal.SIGCONT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(one, lambda number, frame: note(signal.Signals(number).name))
note("ready")
while True:
    signal.pause()
"""
# bash would lose a signal that comes during a trap, so that a recorder takes its place, as the batch shell.
_RECORDED = """#!/bin/bash
#SBATCH --ntasks=1 --requeue
srun python recorder.py step signals &
python recorder.py child signals &
exec python recorder.py shell signals
"""
_ENDS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    assert os.environ.get(INSIDE) == "yes", "this starts a cluster's daemons: use `make cluster`, which ends them all"
    network(tmp_path_factory.mktemp("network"))
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.end()


class Job:
    """The course's batch file, submitted in `folder`; by default it waits in the middle for a signal."""

    def __init__(self, cluster: Cluster, folder, *options: str, pause: int | None = IN_THE_MIDDLE) -> None:
        folder.mkdir(exist_ok=True)
        write_programs(folder)
        file = folder / "train.sbatch"
        file.write_text(file.read_text().replace("#SBATCH --gpus-per-node=2\n", ""))  # this cluster has none
        options = ("--cpus-per-task=1", "--signal=B:USR1@60", *options)
        self.cluster, self.folder = cluster, folder
        self.environ = environ(folder, pause) | {"SLURM_CONF": cluster.environ["SLURM_CONF"]}
        self.number = cluster.submit(*options, "train.sbatch", cwd=folder, env=self.environ)

    @property
    def printed(self) -> str:
        log = self.folder / f"digits-{self.number}.log"
        return log.read_text() if log.exists() else ""

    def wait_for_the_middle(self) -> None:
        def there() -> bool:
            assert self.cluster.about(self.number)["JobState"] in ("PENDING", "CONFIGURING", "RUNNING"), self.printed
            return f"step {IN_THE_MIDDLE}:" in self.printed

        wait_for(there, self.cluster.folder)

    def is_resumed_and_ends_as(self, wanted: dict[int, str]) -> None:
        about = self.cluster.wait_until(self.number, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
        print(self.printed)
        assert about["JobState"] == "COMPLETED", self.printed
        assert about["Restarts"] == "1"
        assert self.printed.count("rank 0 goes on from step000000") == 1
        assert "goes on from step00000020.pt" not in self.printed  # it saved at the notice, and not at an interval
        assert self.printed.count(f"step {IN_THE_MIDDLE}:") == 1  # nothing was done twice
        assert losses(self.printed) == wanted


@pytest.fixture(scope="module")
def wanted(cluster, tmp_path_factory):
    """The losses of the batch file that nobody stops."""
    job = Job(cluster, tmp_path_factory.mktemp("alone"), "--partition=long", pause=None)
    assert cluster.wait_until(job.number, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", job.printed
    assert len(losses(job.printed)) == 60
    return losses(job.printed)


def test_pre_empted_in_its_grace_time_it_saves_is_put_back_and_ends_with_the_same_losses(cluster, wanted, tmp_path):
    job = Job(cluster, tmp_path / "job", "--partition=long")
    job.wait_for_the_middle()
    urgent = cluster.submit("--partition=urgent", "--ntasks=2", "--output=/dev/null", "--wrap=true")
    assert cluster.wait_until(urgent, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    job.is_resumed_and_ends_as(wanted)


def test_before_its_time_limit_it_saves_is_put_back_and_ends_with_the_same_losses(cluster, wanted, tmp_path):
    job = Job(cluster, tmp_path / "job", "--partition=long")
    job.wait_for_the_middle()
    # The job asks for 60 s of notice; SLURM looks every 30 s, and sends when it may be late the next time.
    cluster.run("scontrol", "update", f"JobId={job.number}", "EndTime=now+85")
    job.is_resumed_and_ends_as(wanted)


def test_however_many_signals_come_it_waits_for_its_ranks_and_is_put_back(cluster, wanted, tmp_path):
    job = Job(cluster, tmp_path / "job", "--partition=long")
    job.wait_for_the_middle()
    for _ in range(2):
        cluster.run("scancel", "--signal=USR1", "--batch", job.number)
    job.is_resumed_and_ends_as(wanted)


def test_a_job_whose_ranks_fail_has_failed_and_is_not_put_back(cluster, tmp_path):
    job = Job(cluster, tmp_path / "job", "--partition=long")
    job.wait_for_the_middle()
    cluster.run("scancel", "--signal=KILL", f"{job.number}.0")
    about = cluster.wait_until(job.number, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    assert (about["JobState"], about["Restarts"]) == ("FAILED", "0"), job.printed


@pytest.fixture
def recorded(cluster, tmp_path):
    """Submits the recorders; answers with the job and with what they have written down."""
    (tmp_path / "recorder.py").write_text(_RECORDER)
    (tmp_path / "batch").write_text(_RECORDED)
    jobs = []

    def submit(*options, to="signals"):
        (tmp_path / "batch").write_text(_RECORDED.replace("signals", to))
        job = cluster.submit("--output=/dev/null", *options, "batch", cwd=tmp_path)
        jobs.append(job)

        def got(who):  # in any order: two that come together, Python handles in the order of their numbers
            lines = (tmp_path / to).read_text().split("\n") if (tmp_path / to).exists() else []
            return sorted(line.split()[1] for line in lines if line.startswith(who))

        wait_for(lambda: all(got(who) for who in ("step", "child", "shell")), cluster.folder)
        return job, got

    yield submit
    for job in jobs:
        cluster.run("scancel", job)
        cluster.wait_until(job, "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")


def urgent(cluster):
    return cluster.submit("--partition=urgent", "--ntasks=2", "--output=/dev/null", "--wrap=true")


def test_at_the_start_of_the_grace_time_steps_get_sigterm_and_the_batch_shell_gets_nothing(cluster, recorded):
    _, got = recorded("--partition=long", "--signal=B:USR1@60")
    job = urgent(cluster)
    wait_for(lambda: "SIGTERM" in got("step"), cluster.folder)
    time.sleep(A_WHILE)
    assert got("step") == ["SIGCONT", "SIGTERM", "ready"]
    assert got("child") == got("shell") == ["ready"]  # neither SIGTERM, nor the signal that --signal asks for
    assert cluster.about(job)["JobState"] == "PENDING"


@pytest.mark.parametrize("partition", ["brief", "none"])
def test_when_the_grace_time_is_over_all_get_sigterm_then_sigkill_and_the_job_is_put_back(cluster, recorded, partition):
    first, got = recorded(f"--partition={partition}")
    cluster.wait_until(urgent(cluster), "COMPLETED")  # it has both processors, so that the recorders are gone
    for who in ("step", "child", "shell"):
        assert {"SIGCONT", "SIGTERM"} <= set(got(who)), who
    assert cluster.about(first)["Restarts"] == "1"


def test_a_job_that_ends_by_itself_in_the_grace_time_is_not_put_back(cluster, tmp_path):
    (tmp_path / "ends.py").write_text(_ENDS)
    options = ("--partition=long", "--requeue", "--output=said")
    job = cluster.submit(*options, "--wrap=srun python ends.py", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "said").exists() and "ready" in (tmp_path / "said").read_text(), cluster.folder)
    cluster.wait_until(urgent(cluster), "COMPLETED")
    about = cluster.about(job)
    assert (about["JobState"], about["Restarts"], about["ExitCode"]) == ("FAILED", "0", "75:0")


def test_the_signal_before_the_time_limit_goes_to_the_steps_and_with_b_to_the_batch_shell_alone(cluster, recorded):
    steps, of_steps = recorded("--partition=long", "--signal=USR1@60", to="steps")
    shell, of_shell = recorded("--partition=long", "--signal=B:USR1@60", to="shell_alone")
    for job in (steps, shell):
        cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now+85")
    wait_for(lambda: "SIGUSR1" in of_steps("step") and "SIGUSR1" in of_shell("shell"), cluster.folder)
    time.sleep(A_WHILE)
    signalled = ["SIGCONT", "SIGUSR1", "ready"]
    assert [of_steps(who) for who in ("step", "child", "shell")] == [signalled, ["ready"], ["ready"]]
    assert [of_shell(who) for who in ("step", "child", "shell")] == [["ready"], ["ready"], signalled]


def test_the_administrator_can_have_that_signal_sent_at_pre_emption_instead_of_sigterm(cluster, recorded):
    conf = cluster.folder / "slurm.conf"
    before = conf.read_text()
    conf.write_text(before + "SlurmctldParameters=preempt_send_user_signal\n")
    cluster.run("scontrol", "reconfigure")
    try:
        _, got = recorded("--partition=long", "--signal=B:USR1@60")
        urgent(cluster)
        wait_for(lambda: "SIGUSR1" in got("shell"), cluster.folder)
        time.sleep(A_WHILE)
        assert got("shell") == ["SIGCONT", "SIGUSR1", "ready"]
        assert got("step") == got("child") == ["ready"]
    finally:
        conf.write_text(before)
        cluster.run("scontrol", "reconfigure")


def test_salloc_takes_an_allocation_and_srun_opens_a_shell_on_its_node(cluster):
    command = ["salloc", "--partition=urgent", "--nodes=1", "--time=1:00:00", "srun", "--pty", "bash", "--norc"]
    process, terminal = pty.fork()  # salloc insists on one
    if process == 0:
        os.execvpe(command[0], command, cluster.environ)
    os.write(terminal, b"tty; echo job $SLURM_JOB_ID step $SLURM_STEP_ID on $(hostname); exit\n")
    said = b""
    try:
        while piece := os.read(terminal, 4096):
            said += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    said = said.decode()
    print(said)
    assert os.waitstatus_to_exitcode(status) == 0, said
    assert "Granted job allocation" in said
    assert "/dev/pts/" in said
    assert f"step 0 on {NODE}" in said
    assert "Relinquishing job allocation" in said
