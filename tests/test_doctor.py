"""`gpulab.doctor()` and the command line: the whole examination, its table, and machines without anything."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab
from gpulab.__main__ import main
from gpulab.machine.diagnosis import Finding, Readers, Report, examine
from gpulab.machine.diagnosis.driver import Driver, Gpu, Process
from gpulab.machine.diagnosis.host import Disk, Memory, Processors
from gpulab.machine.diagnosis.jupyter import Jupyter
from gpulab.machine.diagnosis.pytorch import Device, Torch
from gpulab.machine.diagnosis.table import as_html, as_text

ROOT = Path(gpulab.__file__).parents[1]
GIB = 2**30
NO_NVML = Driver(error="NVMLError_LibraryNotFound: NVML Shared Library Not Found")
HERE = Jupyter(
    {"jupyterlab": "4.6.6", "ipywidgets": "8.1.9", "jupyterlab_widgets": "3.0.17", "anywidget": "0.11.0"},
    {"@jupyter-widgets/jupyterlab-manager": "5.0.15", "anywidget": "0.11.0"},
)
PLAIN = Readers(
    python=lambda: (3, 12, 4),
    torch=lambda: Torch("2.15.0+cpu"),
    driver=lambda: NO_NVML,
    memory=lambda: Memory(16 * GIB, 9 * GIB),
    processors=lambda: Processors(8, 8),
    disk=lambda: Disk(500 * GIB, 100 * GIB, True),
    jupyter=lambda: HERE,
)
REPORT = Report(
    (
        Finding("Python", "ok", "3.12.4"),
        Finding("Disk", "note", "2.0 GiB free", "Free some."),
        Finding("PyTorch", "problem", "<b>is</b> not installed", "Run make lab & wait."),
    )
)


def named(report: Report, name: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.name == name]
    return found


def test_a_laptop_without_a_gpu_has_no_problem() -> None:
    report = examine(PLAIN)
    assert [finding.status for finding in report.findings] == ["ok"] * len(report.findings)
    assert [finding.name for finding in report.findings] == [
        "Python", "PyTorch", "NVIDIA driver", "GPU", "Memory", "Processors", "Disk", "JupyterLab", "Widgets",
    ]  # fmt: skip
    assert "every lesson runs without one" in named(report, "GPU").what


def test_a_machine_with_two_gpus_has_a_line_for_each_and_each_cuda_device() -> None:
    gpus = (
        Gpu(0, "NVIDIA H200", 141 * GIB, 120 * GIB, (9, 0), others=(Process(7, "python", 20 * GIB),)),
        Gpu(1, "NVIDIA T4", None, None, (7, 5), unread=("memory: Not Supported",)),
    )
    devices = (
        Device(0, "NVIDIA H200", (9, 0), 141 * GIB, 120 * GIB),
        Device(1, "NVIDIA T4", (7, 5), 15 * GIB, 14 * GIB),
    )
    readers = dataclasses.replace(
        PLAIN,
        driver=lambda: Driver(version="595.10", cuda=(13, 2), gpus=gpus),
        torch=lambda: Torch("2.15.0", cuda="13.2", devices=devices, arch_list=("sm_75", "sm_90")),
    )
    report = examine(readers)
    assert report.problems == ()
    assert named(report, "GPU 0").status == "note"
    assert "python (pid 7): 20.0 GiB" in named(report, "GPU 0").what
    assert "not readable: memory: Not Supported" in named(report, "GPU 1").what
    assert "runs on it" in named(report, "cuda:0").what
    assert "14.0 GiB free" in named(report, "cuda:1").what


@pytest.mark.parametrize("part", [field.name for field in dataclasses.fields(Readers)])
def test_a_reader_that_fails_becomes_a_visible_problem_and_the_others_stand(part: str) -> None:
    def broken() -> None:
        raise ZeroDivisionError("the sensor\nmelted")

    report = examine(dataclasses.replace(PLAIN, **{part: broken}))  # type: ignore[arg-type]
    failed = [finding for finding in report.findings if "this check itself failed" in finding.what]
    assert failed
    assert all(finding.status == "problem" and finding.do for finding in failed)
    assert "ZeroDivisionError: the sensor" in failed[0].what
    assert any(finding.status == "ok" for finding in report.findings)


def test_a_missing_package_of_the_course_is_answered_with_how_to_install_it() -> None:
    def without() -> Memory:
        raise ModuleNotFoundError("No module named 'psutil'")

    report = examine(dataclasses.replace(PLAIN, memory=without))
    assert "make lab" in named(report, "Memory").do


def test_a_note_or_problem_that_says_nothing_to_do_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="'Disk' is a problem and does not say what to do"):
        Finding("Disk", "problem", "full")


def test_the_text_table_shows_state_name_finding_and_what_to_do() -> None:
    text = as_text(REPORT)
    assert text.splitlines() == [
        "ok       Python   3.12.4",
        "note     Disk     2.0 GiB free",
        "                  do: Free some.",
        "problem  PyTorch  <b>is</b> not installed",
        "                  do: Run make lab & wait.",
        "",
        "3 lines, 1 problem, 1 note. Numbers are measured on this machine.",
    ]


def test_the_text_table_keeps_to_its_width() -> None:
    long = Report((Finding("Memory", "note", "word " * 80, "act " * 80),))
    assert max(map(len, as_text(long, width=80).splitlines())) <= 80


def test_the_html_table_holds_the_same_words_escaped() -> None:
    words: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_data(self, data: str) -> None:
            words.append(data)

    page = as_html(REPORT)
    Reader().feed(page)
    for said in (
        "problem",
        "PyTorch",
        "<b>is</b> not installed",
        " Run make lab & wait.",
        "3 lines, 1 problem, 1 note. Numbers are measured on this machine.",
    ):
        assert said in words
    assert page.count("<tr>") == 4


def test_doctor_prints_the_table_and_returns_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpulab.doctor.__globals__, "examine", lambda: REPORT)
    assert gpulab.doctor() is REPORT
    assert capsys.readouterr().out == as_text(REPORT) + "\n"
    assert repr(REPORT) == "<Report: 3 lines, 1 problem, 1 note>"


# The command line


@pytest.mark.parametrize(("report", "code"), [(REPORT, 1), (Report(REPORT.findings[:2]), 0)])
def test_the_exit_code_tells_of_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], report: Report, code: int
) -> None:
    monkeypatch.setattr("gpulab.machine.diagnosis.examine", lambda: report)
    assert main(["doctor"]) == code
    assert capsys.readouterr().out == as_text(report) + "\n"


def test_the_json_has_every_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("gpulab.machine.diagnosis.examine", lambda: REPORT)
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == 1
    assert [Finding(**finding) for finding in told["findings"]] == list(REPORT.findings)


def test_progress_prints_the_map(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    assert main(["progress"]) == 0
    assert "00_start_here" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"gpulab {gpulab.__version__}\n"


@pytest.mark.parametrize("arguments", [["docter"], []])
def test_an_unknown_or_missing_command_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: python -m gpulab" in capsys.readouterr().err


def test_this_machine_is_examined_and_the_exit_code_agrees_with_the_report() -> None:
    run = subprocess.run([sys.executable, "-m", "gpulab", "doctor", "--json"], capture_output=True, text=True, cwd=ROOT)
    told = json.loads(run.stdout)
    assert run.returncode == (1 if told["problems"] else 0), run.stderr
    by_name = {finding["name"]: finding for finding in told["findings"]}
    assert by_name["Python"]["status"] == "ok"
    assert by_name["PyTorch"]["status"] == "ok"
    assert not [finding for finding in told["findings"] if "this check itself failed" in finding["what"]]


def test_a_python_with_nothing_installed_is_told_what_is_missing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = next(path for path in tmp_path.glob("bare/*/python*") if path.stem == "python")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLAB_")}
    run = subprocess.run(
        [str(python), "-m", "gpulab", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    told = json.loads(run.stdout)
    by_name = {finding["name"]: finding for finding in told["findings"]}
    assert run.returncode == 1, run.stderr
    assert by_name["PyTorch"]["status"] == "problem"
    assert "is not installed" in by_name["PyTorch"]["what"]
    assert "make lab" in by_name["Memory"]["do"]
    assert by_name["JupyterLab"]["status"] == "note"
