"""A student's function on real ranks: what comes back, what is told where it goes wrong, and that nothing stays."""

import os
import random
import sys
import threading
import time
from functools import partial

import psutil
import pytest
import torch
import torch.distributed as dist

import gpulab
from gpulab.distributed import processes, warm
from gpulab.exercise import rank_worker
from gpulab.exercise import ranks as module
from gpulab.exercise.base import CheckFailed, Trial
from gpulab.exercise.groups import in_group, machine
from gpulab.exercise.ranks import Ranks

HERE = 7  # a global of the notebook


@pytest.fixture
def trial():
    return Trial("a_check", 12)


def alone(student, *args):
    return student(*args)


def on_machine(student, *args):
    with machine():
        return student(*args)


def call(trial, student, *of_ranks, through=alone, **options):
    return trial.ranks.call(trial, [partial(through, student, *args) for args in of_ranks], student, **options)


def failure(trial, student, count=2, through=in_group):
    with pytest.raises(CheckFailed) as caught, Ranks(count, trial):
        call(trial, student, *[()] * count, through=through)
    return caught.value


def descendants():
    """What the warm server has started and that runs; who has ended is buried by it a moment later."""
    pid = warm.server_pid()
    return [p for p in psutil.Process(pid).children(recursive=True) if processes.lives(p.pid)] if pid else []


def test_what_each_rank_returned_comes_back_by_rank(trial):
    closed_over = [3]

    def student(x):
        return x + HERE + closed_over[0], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    with Ranks(3, trial):
        assert call(trial, student, (1,), (2,), (3,)) == [(11, 0, 3), (12, 1, 3), (13, 2, 3)]
        assert call(trial, lambda x: x * 2, (torch.ones(2),), (torch.zeros(2),))[0].tolist() == [2, 2]
        assert call(trial, student, (1,), (2,)) == [(11, 0, 2), (12, 1, 2)]
    assert not descendants()


def test_calls_share_processes_and_each_has_a_group_of_its_own(trial):
    def student(x):
        x = torch.tensor(float(x), device="cuda")
        dist.all_reduce(x)
        return x.item(), os.getpid()

    with Ranks(3, trial):
        first = call(trial, student, (1,), (2,), (4,), through=in_group)
        second = call(trial, student, (1,), (2,), through=in_group)
        third = call(trial, student, (3,), (5,), (7,), through=in_group)
    assert [value for value, _ in first + second + third] == [7.0] * 3 + [3.0] * 2 + [15.0] * 3
    assert [pid for _, pid in first] == [pid for _, pid in third]


def test_a_script_opens_and_closes_its_group_in_every_call(trial):
    def student():
        dist.init_process_group("nccl")
        group = dist.get_rank(), dist.get_world_size(), dist.get_backend()
        dist.destroy_process_group()
        os.environ["LOCAL_RANK"] = os.environ["MASTER_PORT"] = "7"
        return group, dist.is_initialized()

    with Ranks(2, trial):
        for _ in range(3):
            assert call(trial, student, (), (), through=on_machine) == [
                ((0, 2, "nccl"), False),
                ((1, 2, "nccl"), False),
            ]


def test_who_closes_the_group_waits_for_the_others(trial):
    def student():
        if dist.get_rank() == 0:
            dist.barrier()
        dist.destroy_process_group()

    failed = failure(trial, student)
    assert failed.rows["got"] == "ranks 0 and 1 of 2 waited in barrier"


def test_an_exception_is_told_also_where_the_group_is_closed_on_its_way(trial):
    def student():
        try:
            if dist.get_rank() == 1:
                raise ValueError("no such label")
            dist.barrier()
        finally:
            dist.destroy_process_group()

    assert failure(trial, student).rows["got"] == "no such label, on rank 1 of 2; rank 0 waited for it"


def test_the_same_is_drawn_on_every_rank_and_in_every_check_of_a_seed(trial):
    def student():
        return torch.rand(3).tolist()

    torch.default_generator.manual_seed(3)
    with Ranks(2, trial):
        one, other = call(trial, student, (), ())
    assert one == other == torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()


def test_a_function_may_name_modules_that_torch_has_put_objects_in_the_place_of(trial):
    def student():
        with torch.backends.cudnn.flags(enabled=False):
            return torch.backends.cudnn.enabled, torch.backends.cuda.is_built()

    with Ranks(2, trial):
        assert call(trial, student, (), ()) == [(False, torch.backends.cuda.is_built())] * 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype at torch.float64, not torch.float32"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic mode at 2, not 0"),
        (lambda: torch.cuda.set_stream(torch.cuda.Stream(priority=-1)), "the current stream of cuda:0 at stream"),
    ],
)
def test_a_setting_that_stays_changed_on_a_rank_is_told_and_is_put_back(trial, setting, said):
    def student():
        setting()

    def settings():
        return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()

    with Ranks(1, trial):
        with pytest.raises(CheckFailed) as caught:
            call(trial, watched(student), (), through=in_group)
        assert caught.value.summary == "your function left a setting changed"
        assert caught.value.rows["got"].startswith(said)
        assert call(trial, settings, ()) == [(torch.float32, False)]


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        (lambda: torch.manual_seed(3), "torch.manual_seed"),
        (lambda: torch.cuda.manual_seed(3), "torch.cuda.manual_seed (GPU 1)"),
        (lambda: random.seed(3), "random.seed"),
    ],
    ids=["torch", "the GPU", "Python"],
)
def test_a_generator_that_is_seeded_on_a_rank_is_told_unless_it_may_be(trial, seeds, told):
    def student():
        if int(os.environ["RANK"]) == 1:
            seeds()

    def draws():
        torch.rand(5, device="cuda"), torch.rand(5), random.random(), torch.randperm(9)
        with torch.random.fork_rng():
            torch.manual_seed(3)

    with Ranks(2, trial):
        call(trial, watched(draws), (), (), through=in_group)
        call(trial, watched(student), (), (), through=in_group, may_seed=True)
        with pytest.raises(CheckFailed, match="your function seeds a global random generator") as caught:
            call(trial, watched(student), (), (), through=in_group)
        assert told in caught.value.rows["got"]


def watched(student):
    return rank_worker.Watched(student, (), {})


def test_an_exception_on_one_rank_names_it_and_who_waited(trial):
    def student():
        if dist.get_rank() == 1:
            raise ValueError("no such label")
        dist.barrier()

    failed = failure(trial, student)
    assert failed.summary == "your function raised ValueError"
    assert failed.rows["got"] == "no such label, on rank 1 of 2; rank 0 waited for it"
    assert failed.notes == [
        f'in student, line {student.__code__.co_firstlineno + 2}: raise ValueError("no such label")'
    ]
    assert not descendants()


def test_a_collective_that_one_rank_does_not_call_is_named_with_its_line(trial):
    def student():
        x = torch.ones((), device="cuda")
        if dist.get_rank() == 0:
            dist.all_reduce(x)

    failed = failure(trial, student)
    assert failed.summary == "your function waits for ever"
    assert failed.rows["got"] == "rank 0 of 2 waited in all_reduce, rank 1 had returned"
    assert failed.notes == [f"in student, line {student.__code__.co_firstlineno + 3}: dist.all_reduce(x)"]
    assert not descendants()


def test_what_waits_after_the_function_has_returned_is_not_laid_to_it(trial):
    names = {}
    text = "def waits_afterwards(student):\n    import time\n    student(), time.sleep(1e6)"
    exec(compile(text, gpulab.__file__, "exec"), names)  # as if it were a check's own line
    failed = failure(trial, lambda: None, through=names["waits_afterwards"])
    assert failed.summary == "your function has returned, and what follows waits for ever"
    assert failed.rows["got"] == "ranks 0 and 1 of 2 waited"
    assert not failed.rows.get("likely")


def test_an_endless_loop_ends(trial, monkeypatch):
    monkeypatch.setattr(module, "LIMIT_SECONDS", 1.0)

    def student():
        while dist.get_rank() == 1:
            pass

    failed = failure(trial, student)
    assert failed.summary == "your function computes for ever"
    assert failed.rows["got"] == "rank 1 of 2 computed, rank 0 had returned"


@pytest.mark.parametrize(
    ("end", "summary"),
    [
        (lambda: os._exit(3), "rank 1 of 2 failed with exit code 3"),
        (lambda: os._exit(0), "rank 1 of 2 ended its process"),
        (lambda: os.kill(os.getpid(), 9), "rank 1 of 2 was killed by SIGKILL"),
        (lambda: sys.exit("enough"), "your function raised SystemExit"),
    ],
)
def test_a_rank_that_ends_is_named(trial, end, summary):
    def student():
        if dist.get_rank() == 1:
            end()
        dist.barrier()

    assert failure(trial, student).summary == summary
    assert not descendants()


def test_a_rank_that_ends_before_anybody_watches_it_is_named(trial, monkeypatch):
    """On a busy machine the notebook may stand still for as long as that takes."""

    def late(pids):
        while any(map(psutil.pid_exists, pids)):
            time.sleep(0.01)
        return watch(pids)

    def student():
        os._exit(3)

    watch = module._Watch
    monkeypatch.setattr(module, "_Watch", late)
    assert failure(trial, student).summary.endswith("failed with exit code 3")


def test_a_call_finds_that_a_rank_has_ended_since_the_last(trial):
    def student():
        return os.getpid()

    with Ranks(2, trial):
        _, pid = call(trial, student, (), ())
        os.kill(pid, 9)
        while any(map(processes.lives, trial.ranks._crew._pids.values())):
            time.sleep(0.01)
        with pytest.raises(CheckFailed) as caught:
            call(trial, student, (), ())
    assert caught.value.summary == "rank 1 of 2 was killed by SIGKILL"


def test_what_a_rank_starts_does_not_outlive_the_check(trial):
    def student():
        if os.fork() == 0:
            time.sleep(10_000)
        return "back"

    with Ranks(2, trial):
        assert call(trial, student, (), ()) == ["back", "back"]
    assert not descendants()


def test_a_function_that_cannot_be_sent_is_told_what_it_holds(trial):
    lock = threading.Lock()
    failed = failure(trial, lambda: lock, through=alone)
    assert failed.summary == "your function cannot be sent to the ranks"
    assert "lock" in failed.rows["got"]


def test_what_ranks_print_is_told_after_the_check(trial):
    def student():
        print("I am", dist.get_rank())

    with Ranks(2, trial):
        call(trial, student, (), (), through=in_group)
    assert trial.printed() == ["(rank 0 printed: I am 0)", "(rank 1 printed: I am 1)"]


def test_after_a_failure_the_next_call_has_ranks_again(trial):
    def student():
        if dist.get_rank() == 0:
            dist.barrier()

    with Ranks(2, trial):
        with pytest.raises(CheckFailed):
            call(trial, student, (), (), through=in_group)
        assert call(trial, lambda: HERE, (), ()) == [HERE, HERE]


def test_a_stub_is_not_attempted(trial):
    def student():
        raise gpulab.NotAttempted

    with pytest.raises(gpulab.NotAttempted, match="not attempted yet"), Ranks(2, trial):
        call(trial, student, (), ())
