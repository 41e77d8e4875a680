"""`make versions`: which lanes there are, what is installed in them, and what is told. Nothing is installed here."""

import sys
from pathlib import Path

import pytest
from courselib import versions
from courselib.terminal import Stop
from courselib.venv import Venv
from courselib.versions import VERSIONS, LaneVenv, constraints, counted, parts, python_of, run_versions

ROOT = Path(__file__).resolve().parents[1]
TESTED = (ROOT / "constraints.txt").read_text(encoding="utf-8")
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message="x">y</failure></testcase>
<testcase name="c"><skipped message="needs root"/></testcase>
<testcase name="d"><skipped message="needs root"/></testcase>
<testcase name="e"><error message="x"/></testcase>
</testsuite></testsuites>"""


def test_there_is_a_lane_for_each_python_and_for_the_oldest_torch():
    assert {version.python for version in VERSIONS} == {"3.11", "3.12", "3.13"}
    assert [version.name for version in VERSIONS if version.instead] == ["torch2.11"]
    assert '"torch>=2.11"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_lane_takes_the_tested_versions_but_for_those_it_names(version):
    before, after = TESTED.splitlines(), constraints(TESTED, version.instead).splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert sorted(changed) == sorted(package + wanted for package, wanted in version.instead.items())


def test_a_package_that_has_no_line_is_told():
    with pytest.raises(Stop, match="0 lines of nothing"):
        constraints(TESTED, {"nothing": "==1"})


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_what_the_parts_run_is_there(version):
    arguments = [argument for arguments in parts(version).values() for argument in arguments]
    for argument in arguments:
        assert not argument.startswith(("tests/", "notebooks")) or (ROOT / argument).exists(), argument
    # Bytes are those of the tested torch: another one's are not compared with what is stored.
    assert ("--nbval" in arguments) == ("torch" not in version.instead)
    assert ("--nbval-lax" in arguments) == ("torch" in version.instead)


def test_outcomes_are_counted_and_reasons_told(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    counts, reasons = counted(report)
    assert counts == {"passed": 1, "failed": 2, "not run": 2}
    assert reasons == ["not run, 2: needs root"]


def test_a_python_is_found_by_what_it_says_of_itself(tmp_path, monkeypatch):
    assert python_of(HERE) is not None
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_of("3.99") is None


def test_a_lane_without_its_python_says_so_and_is_no_failure(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(versions, "python_of", lambda version: None)
    assert run_versions(Venv(tmp_path), "python3.13") == 0
    assert "NOT RUN: no Python 3.13 is found here" in capsys.readouterr().out


def test_a_lane_that_is_unknown_is_told_the_names():
    with pytest.raises(Stop, match=r"LANE=python2 is not known: use one of python3.11, .*cpu"):
        run_versions(Venv(), "python2")


@pytest.mark.parametrize("codes", [[0, 0, 0], [0, 1, 0]], ids=["passes", "one part fails"])
def test_a_lane_fails_with_one_of_its_parts_and_runs_them_all(codes, monkeypatch, capsys, tmp_path):
    """With a real environment, whose parts are small programs in place of pytest."""
    write = "import sys; path = sys.argv[1].partition('=')[2]; open(path, 'w').write(sys.argv[2]); sys.exit({})"

    def make(lane, version, python):
        lane.folder.mkdir(parents=True)

    programs = {f"part {n}": ("-c", write.format(code)) for n, code in enumerate(codes)}
    monkeypatch.setattr(versions, "python_of", lambda version: [sys.executable])
    monkeypatch.setattr(versions, "_make", make)
    monkeypatch.setattr(versions, "parts", lambda version: programs)
    monkeypatch.setattr(LaneVenv, "python", property(lambda lane: Path(sys.executable)))
    call = versions.subprocess.call
    monkeypatch.setattr(versions.subprocess, "call", lambda command, **more: call([*command, REPORT], **more))
    assert run_versions(Venv(tmp_path), "python3.12") == max(codes)
    out = capsys.readouterr().out.partition("=== summary")[2]
    assert f"Python {sys.version.split()[0]}, torch " in out
    for n in range(3):
        assert f"part {n}: 1 passed, 2 failed, 2 not run" in out
    assert not (tmp_path / ".venvs" / "python3.12").exists()
