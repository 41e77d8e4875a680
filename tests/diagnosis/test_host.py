"""The host: control groups' limits out of a made-up tree, and what is judged from the readings."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from gpulab.diagnosis import host
from gpulab.diagnosis.finding import Finding
from gpulab.diagnosis.host import Disk, Limits, Memory, Processors

GIB = 2**30


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


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
    finding = only(host.judge_python((3, 10, 14)))
    assert finding.status == "problem"
    assert "3.11" in finding.do
    assert only(host.judge_python((3, 11, 0))).status == "ok"


@pytest.mark.parametrize(
    ("free", "status"), [(0.5, "problem"), (0.99, "problem"), (1, "note"), (1.9, "note"), (2, "ok"), (30, "ok")]
)
def test_little_memory_is_noticed(free: float, status: str) -> None:
    assert only(host.judge_memory(Memory(32 * GIB, int(free * GIB)))).status == status


def test_the_smaller_of_the_machines_memory_and_the_limit_is_reported() -> None:
    finding = only(host.judge_memory(Memory(64 * GIB, 50 * GIB, Limits(4 * GIB, 3.5 * GIB))))  # type: ignore[arg-type]
    assert finding.status == "problem"
    assert finding.what == "0.5 GiB free of 4.0 GiB allowed here (the machine has 64.0 GiB)"


def test_a_limit_above_the_machines_memory_does_not_count() -> None:
    finding = only(host.judge_memory(Memory(8 * GIB, 6 * GIB, Limits(16 * GIB, GIB))))
    assert finding == Finding("Memory", "ok", "6.0 GiB free of 8.0 GiB in this machine")


def test_a_share_of_processor_time_below_the_count_is_a_note() -> None:
    finding = only(host.judge_processors(Processors(64, 64, 1.5)))
    assert finding.status == "note"
    assert "64 of 64 for this process, with 1.5 processors' worth of time" in finding.what
    assert only(host.judge_processors(Processors(64, 2, 2.0))).status == "ok"
    assert only(host.judge_processors(Processors(8, 4))).what == "4 of 8 for this process"


@pytest.mark.parametrize(
    ("free", "writable", "status"),
    [(0.2, True, "problem"), (3, True, "note"), (50, True, "ok"), (50, False, "problem")],
)
def test_a_disk_that_is_full_or_closed_is_noticed(free: float, writable: bool, status: str) -> None:
    finding = only(host.judge_disk(Disk(500 * GIB, int(free * GIB), writable)))
    assert finding.status == status
    assert "of 500.0 GiB where the course is" in finding.what
