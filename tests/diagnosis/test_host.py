"""The host: control groups' limits out of a made-up tree, and what is judged from the readings."""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from gpulab.machine.diagnosis import host
from gpulab.machine.diagnosis.finding import Finding
from gpulab.machine.diagnosis.host import Disk, Limits, Memory, Processors

GIB = 2**30


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert host.read_limits(tmp_path) == Limits()


def test_version_2_limits_of_this_group_and_those_above_hold(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    inner = base / "pod/container"
    inner.mkdir(parents=True)
    tree(tmp_path, proc__self__cgroup="0::/pod/container\n")
    (inner / "memory.max").write_text(f"{8 * GIB}\n")
    (inner / "memory.current").write_text(f"{3 * GIB}\n")
    (inner / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (base / "pod/memory.max").write_text(f"{16 * GIB}\n")
    (base / "pod/cpu.max").write_text("150000 100000\n")
    assert host.read_limits(tmp_path) == Limits(8 * GIB, 2 * GIB, 1.5)


def test_version_1_limits_are_read_at_the_mount_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    memory, processor = tmp_path / "sys/fs/cgroup/memory", tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    memory.mkdir(parents=True)
    processor.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text(f"{2 * GIB}")
    (memory / "memory.usage_in_bytes").write_text(f"{GIB}")
    (memory / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 1024\n")
    (processor / "cpu.cfs_quota_us").write_text("200000")
    (processor / "cpu.cfs_period_us").write_text("100000")
    assert host.read_limits(tmp_path) == Limits(2 * GIB, GIB - 1024, 2.0)


def test_no_limit_is_read_as_none_in_both_versions(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="0::/\n4:memory:/\n2:cpu:/\n")
    base = tmp_path / "sys/fs/cgroup"
    for name in ("memory", "cpu"):
        (base / name).mkdir(parents=True)
    (base / "memory.max").write_text("max\n")
    (base / "cpu.max").write_text("max 100000\n")
    (base / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    (base / "cpu/cpu.cfs_quota_us").write_text("-1")
    (base / "cpu/cpu.cfs_period_us").write_text("100000")
    assert host.read_limits(tmp_path) == Limits()


def test_this_host_is_read(tmp_path: Path) -> None:
    assert host.read_python() == sys.version_info[:3]
    assert host.read_memory().total == psutil.virtual_memory().total
    processors = host.read_processors()
    assert 1 <= processors.allowed <= processors.host
    disk = host.read_disk(tmp_path)
    assert 0 <= disk.free <= disk.total
    assert disk.writable


def test_a_python_older_than_the_course_needs_is_a_problem() -> None:
    finding = host.judge_python((3, 10, 14))
    assert finding.status == "problem"
    assert "3.11" in finding.do
    assert host.judge_python((3, 11, 0)).status == "ok"


@pytest.mark.parametrize(
    ("free", "status"), [(0.5, "problem"), (0.99, "problem"), (1, "note"), (1.9, "note"), (2, "ok"), (30, "ok")]
)
def test_little_memory_is_noticed(free: float, status: str) -> None:
    assert host.judge_memory(Memory(32 * GIB, int(free * GIB))).status == status


def test_the_smaller_of_the_machines_memory_and_the_limit_is_reported() -> None:
    finding = host.judge_memory(Memory(64 * GIB, 50 * GIB, Limits(4 * GIB, 3.5 * GIB)))  # type: ignore[arg-type]
    assert finding.status == "problem"
    assert finding.what == "0.5 GiB free of 4.0 GiB allowed here (the machine has 64.0 GiB)"


def test_a_limit_above_the_machines_memory_does_not_count() -> None:
    finding = host.judge_memory(Memory(8 * GIB, 6 * GIB, Limits(16 * GIB, GIB)))
    assert finding == Finding("Memory", "ok", "6.0 GiB free of 8.0 GiB in this machine")


def test_a_share_of_processor_time_below_the_count_is_a_note() -> None:
    finding = host.judge_processors(Processors(64, 64, 1.5))
    assert finding.status == "note"
    assert "64 of 64 for this process, with 1.5 processors' worth of time" in finding.what
    assert host.judge_processors(Processors(64, 2, 2.0)).status == "ok"
    assert host.judge_processors(Processors(8, 4)).what == (
        "4 of 8 for this process; gpulab.setup() lets PyTorch compute with 4 threads at most"
    )


@pytest.mark.parametrize(
    ("processors", "threads", "why"),
    [
        (Processors(8, 8), 8, ""),
        (Processors(8, 4), 4, "4 of 8 processors are allowed"),
        (Processors(64, 64, 2.0), 2, "2 processors' worth of time is allowed"),
        (Processors(64, 64, 1.5), 1, "1.5 processors' worth of time is allowed"),
        (Processors(64, 64, 0.5), 1, "0.5 processors' worth of time is allowed"),
        (Processors(64, 64, 4.0, busy=30.0), 4, "4 processors' worth of time is allowed"),
        (Processors(2, 2, busy=0.4), 2, ""),
        (Processors(2, 2, busy=0.9), 1, "other programs keep 0.9 of 2 processors busy"),
        (Processors(8, 4, 4.0, busy=2.0), 2, "other programs keep 2.0 of 4 processors busy"),
        (Processors(2, 2, busy=2.0), 1, "other programs keep 2.0 of 2 processors busy"),
    ],
)
def test_a_thread_has_a_processor_of_its_own(processors: Processors, threads: int, why: str) -> None:
    assert (processors.threads, processors.why) == (threads, why)


def test_a_busy_machine_is_a_note_with_what_others_take_and_the_threads_that_are_left() -> None:
    finding = host.judge_processors(Processors(4, 4, busy=3.2))
    assert finding.status == "note"
    assert finding.what == (
        "4 of 4 for this process; other programs keep 3.2 busy; "
        "gpulab.setup() lets PyTorch compute with 1 thread at most"
    )
    assert "run gpulab.setup() again" in finding.do


class TestBusy:
    @pytest.mark.parametrize(
        ("load", "now", "busy"),
        [
            (3.0, 1.2, 1.2),  # the load is partly what this process itself did
            (1.0, 4.0, 1.0),  # this moment is an odd one
            (0.1, 4.0, 0.0),
        ],
    )
    def test_the_lower_of_load_and_moment_counts(
        self, load: float, now: float, busy: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0), raising=False)
        monkeypatch.setattr(host, "_busy_now", lambda: now)
        assert host.read_busy(4) == busy

    def test_a_system_without_a_load_is_judged_by_the_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "getloadavg", raising=False)
        monkeypatch.setattr(host, "_busy_now", lambda: 1.5)
        assert host.read_busy(4) == 1.5

    def test_processors_that_this_process_may_not_use_and_its_own_work_do_not_count(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times = namedtuple("times", "user system idle iowait")
        before = [times(0.0, 0.0, 0.0, 0.0)] * 4
        after = [
            times(1.0, 0.0, 0.0, 0.0),
            times(0.5, 0.5, 0.0, 0.0),
            times(0.0, 0.0, 0.5, 0.5),
            times(0, 0.25, 0.75, 0),
        ]
        tables, own = iter([before, after]), iter([7.0, 7.025])
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(tables))
        monkeypatch.setattr(host, "process_time", lambda: next(own))
        monkeypatch.setattr(host, "sleep", lambda seconds: None)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3}, raising=False)
        assert host._busy_now() == pytest.approx(1 + 0 + 0.25 - 0.25)

    def test_this_machine_is_read(self) -> None:
        assert 0 <= host._busy_now() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("free", "writable", "status"),
    [(0.2, True, "problem"), (3, True, "note"), (50, True, "ok"), (50, False, "problem")],
)
def test_a_disk_that_is_full_or_closed_is_noticed(free: float, writable: bool, status: str) -> None:
    finding = host.judge_disk(Disk(500 * GIB, int(free * GIB), writable))
    assert finding.status == status
    assert "of 500.0 GiB where the course is" in finding.what
