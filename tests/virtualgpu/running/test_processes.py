"""What needs a process of its own: how it ends, the processes it starts, ranks; and what a shell sees of it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from courselib.patience import HANG_SECONDS

from .starting import SCRIPTS, begun, start

ENDINGS = SCRIPTS / "endings.py"


def reports(text):
    """The reports in what was written to standard error."""
    return re.findall(r"^gpulab run: (.*)$", text, re.MULTILINE)


def test_it_ends_as_the_script_does_and_the_report_comes_last():
    done = start("--gpu", "L4", ENDINGS, "raise", "--gpu", "H100")
    assert done.returncode == 1
    # All after the script's name is the script's; what it left for the exit finds the GPU.
    assert done.stdout.splitlines() == [
        f"__main__, ['{ENDINGS}', 'raise', '--gpu', 'H100']",
        "at exit the sum is 1000000",
    ]
    trace, report = done.stderr.split("\n\ngpulab run: ")
    assert trace.splitlines()[0] == "Traceback (most recent call last):"
    assert re.findall(r'File ".*?(\w+\.py)", line \d+, in (\S+)', trace) == [
        ("endings.py", "<module>"),
        ("endings.py", "fail"),
    ]
    assert trace.endswith("ValueError: what went wrong\nand more of it")
    assert report.startswith("endings.py on a virtual L4\n")
    assert "Verdict: ended by ValueError: what went wrong, exit code 1, after " in report


def test_a_forked_child_does_not_report():
    done = start(ENDINGS, "fork")
    assert done.returncode == 0
    assert "the child's exit code: 3" in done.stdout
    assert done.stdout.count("at exit") == 1
    assert reports(done.stderr) == ["endings.py on a virtual T4"]


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [("SIGTERM", -signal.SIGTERM, "ended by SIGTERM, after"), ("SIGINT", 130, "exit code 130, after")],
)
def test_a_signal_ends_it_and_the_report_still_comes(name, code, says, tmp_path):
    done = start("--json", tmp_path / "r.json", ENDINGS, name)
    assert done.returncode == code
    assert says in done.stderr
    assert len(reports(done.stderr)) == 1
    assert ("KeyboardInterrupt" in done.stderr) == (name == "SIGINT")
    assert json.loads((tmp_path / "r.json").read_text())["gpus"][0]["memory"]["end_allocated"] > 4_000_000


def test_workers_that_are_spawned_find_the_gpu():
    done = start(SCRIPTS / "workers.py", "spawn")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 workers, main __main__\n"
    assert reports(done.stderr) == ["workers.py on a virtual T4"]
    assert "8 of SGD" in done.stderr


@pytest.mark.slow
def test_each_rank_of_torchrun_has_its_gpu_and_its_report(tmp_path):
    words = ["--standalone", "--nproc-per-node", "2", "-m", "gpulab", "run", "--json", tmp_path / "r.json"]
    done = start(*words, SCRIPTS / "ddp.py", module="torch.distributed.run")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 on Tesla T4 cuda:{rank}" for rank in range(2)]
    assert sorted(reports(done.stderr)) == [f"ddp.py on a virtual T4, rank {rank} of 2" for rank in range(2)]
    for block in done.stderr.split("gpulab run: ")[1:]:  # each in one piece
        assert [line.split()[0] for line in block.splitlines()[1:4]] == ["Verdict:", "Memory", "peak"]
    first, second = (json.loads((tmp_path / f"r.rank{rank}.json").read_text()) for rank in range(2))
    assert (first["rank"], second["rank"], second["world_size"]) == (0, 1, 2)
    peaks = [[gpu["memory"]["peak_allocated"] for gpu in rank["gpus"]] for rank in (first, second)]
    assert peaks[0][1] == peaks[1][0] == 0  # each its own
    assert peaks[1][1] > peaks[0][0] > 0  # and the second has the larger batch


@pytest.mark.slow
def test_spawned_ranks_find_the_same_gpus():
    done = start("--gpus", "2", SCRIPTS.parents[1] / "scripts" / "ddp_spawn.py")
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"rank {rank}: nccl on cuda:{rank}") for rank in range(2)] == [1, 1]
    assert len(reports(done.stderr)) == 1
    assert "What processes that it starts put on theirs is not in this report." in " ".join(done.stderr.split())


def test_a_reader_that_has_enough_does_not_cost_the_report():
    command = [sys.executable, "-m", "gpulab", "run", str(ENDINGS), "raise"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert reports(err) == ["endings.py on a virtual T4"]
    assert "Error in atexit" not in err


def test_without_a_script_the_way_to_call_it_is_shown():
    done = start()
    assert done.returncode == 2
    assert "python -m gpulab run [options] script.py [args ...]" in done.stderr
    assert "Traceback" not in done.stderr


WAITING = SCRIPTS / "waiting.py"


def waits_in(text):
    """What each report says its rank waits in, by rank; lines are joined again."""
    found = {}
    for block in text.split("gpulab run: ")[1:]:
        rows = re.search(r"^  waits in +(.*(?:\n {18}.*)*)", block, re.MULTILINE)
        found[int(re.search(r"rank (\d) of 2", block)[1])] = " ".join(rows[1].split())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--shapes-only"]], ids=["values", "shapes"])
def test_ranks_that_hang_say_in_what_and_for_whom(more):
    """Rank 1 has one batch less: as with NCCL both wait for good, and SIGTERM, which torchrun sends on, ends them."""
    words = ["--standalone", "--nproc-per-node", "2", "-m", "gpulab", "run", *more, WAITING, "batches"]
    with begun(*words, module="torch.distributed.run") as hung:
        assert [hung.stdout.readline() for _ in range(2)] == ["waits\n"] * 2
        hung.send_signal(signal.SIGTERM)
        _, err = hung.communicate(timeout=HANG_SECONDS)
    assert waits_in(err) == {
        0: "all_reduce of 260 bytes (collective 8 of ranks 0, 1), for rank 1, which waits in barrier "
        "(collective 8 of ranks 0, 1)",
        1: "barrier (collective 8 of ranks 0, 1), for rank 0, which waits in all_reduce of 260 bytes "
        "(collective 8 of ranks 0, 1)",
    }
    assert re.search(r"^  at .*waiting.py:\d+ +dist.barrier\(\)$", err, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("for_what", ["message", "meeting"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_rank_that_waits_handles_signals(tmp_path, for_what, number):
    with contextlib.ExitStack() as all_ranks:
        started = [
            all_ranks.enter_context(
                begun(WAITING, for_what, tmp_path, env={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
            )
            for rank in range(2 if for_what == "message" else 1)
        ]
        for rank in started:
            assert rank.stdout.readline() == "waits\n"
        first = started[0]  # of the others Gloo says that it is gone
        first.send_signal(number)
        report = first.communicate(timeout=HANG_SECONDS)[1]
        assert first.returncode == (130 if number == signal.SIGINT else -number)
    where = waits_in(report)[0]
    if for_what == "meeting":
        assert where.startswith("the making of a process group of 2 ranks, for rank 1, which waits for nobody")
    else:
        assert where.startswith("a message of 400 bytes from rank 1 to rank 0, for rank 1, which waits in barrier")
