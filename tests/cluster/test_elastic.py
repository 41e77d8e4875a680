"""A rank is killed, or a notice comes, in the middle under torchrun; the losses are those of a run left alone."""

import signal
import subprocess

import psutil
import pytest
from courselib.patience import HANG_SECONDS

from .lesson import STEPS, environ, losses, torchrun, uninterrupted, write_programs
from .watching import printed, wait_for

IN_THE_MIDDLE = 25  # the run saves every 10 steps
RUN = ("--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rank_is_killed_and_the_losses_are_those_of_the_run_left_alone(tmp_path, device):
    program = ("train.py", "--device", device)  # "cuda" is a virtual GPU for each rank, where there are no real ones
    wanted = uninterrupted(tmp_path / "alone", torchrun(*RUN, *program))
    folder = tmp_path / "killed"
    folder.mkdir()
    write_programs(folder)
    with open(folder / "log", "w") as log:
        run = subprocess.Popen(
            torchrun(*RUN, "--max-restarts", "1", *program),
            cwd=folder,
            env=environ(folder, pause=IN_THE_MIDDLE),
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: f"step {IN_THE_MIDDLE}:" in printed(folder), folder, run)
        (rank,) = [p for p in psutil.Process(run.pid).children(recursive=True) if p.environ().get("RANK") == "1"]
        (folder / "pause" / "sitecustomize.py").unlink()  # once is enough
        rank.send_signal(signal.SIGKILL)
        wait_for(lambda: run.poll() is not None, folder)
    finally:
        run.terminate()  # torchrun ends its ranks
        run.wait()
    seen = printed(folder)
    assert run.returncode == 0, seen
    assert seen.count(f"step {IN_THE_MIDDLE}:") == 2, seen  # done again, and the same
    assert "goes on from step00000020.pt" in seen
    assert losses(seen) == wanted
    assert len(wanted) == STEPS


@pytest.mark.parametrize("to", ["a rank", "torchrun", "torchrun, by USR1"])
def test_a_notice_is_saved_leaves_a_mark_and_starts_no_rank_again(tmp_path, to):
    program = ("train.py", "--device", "cpu")
    wanted = uninterrupted(tmp_path / "alone", torchrun(*RUN, *program))
    folder = tmp_path / "noticed"
    folder.mkdir()
    write_programs(folder)
    handed_on = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1") if "USR1" in to else ()
    command = torchrun(*RUN, "--max-restarts", "1", *handed_on, *program)
    with open(folder / "log", "w") as log:
        env = environ(folder, pause=IN_THE_MIDDLE)
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: f"step {IN_THE_MIDDLE}:" in printed(folder), folder, run)
        if to == "a rank":  # the one that waits: rank 0, which prints
            ranks = psutil.Process(run.pid).children(recursive=True)
            next(p for p in ranks if p.environ().get("RANK") == "0").send_signal(signal.SIGTERM)
        else:
            run.send_signal(signal.SIGUSR1 if handed_on else signal.SIGTERM)
        run.wait(HANG_SECONDS)
    finally:
        run.terminate()
        run.wait()
    seen = printed(folder)
    assert run.returncode == (0 if to == "a rank" else 1), seen  # so that the exit code tells nothing
    assert (folder / "kept" / "again").exists(), seen
    assert "goes on" not in seen
    assert sorted(losses(seen)) == list(range(IN_THE_MIDDLE + 1))
    done = subprocess.run(command, cwd=folder, env=environ(folder), stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert f"rank 1 goes on from step{IN_THE_MIDDLE + 1:08}.pt" in done.stdout
    assert losses(seen + done.stdout) == wanted
