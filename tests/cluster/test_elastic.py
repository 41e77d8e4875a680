"""A rank is killed in the middle; torchrun starts all of them again; the losses are those of a run left alone."""

import signal
import subprocess

import psutil
import pytest

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
