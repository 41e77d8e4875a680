"""`make versions`: which lanes there are, what is installed in them, and what is told. Nothing is installed here."""

import re
import sys
from pathlib import Path

import pytest
from courselib import versions
from courselib.lanes import Lane
from courselib.terminal import Stop
from courselib.venv import Venv
from courselib.versions import VERSIONS, LaneVenv, constraints, lanes_for, run_versions

ROOT = Path(__file__).resolve().parents[1]
TESTED = (ROOT / "constraints.txt").read_text(encoding="utf-8")


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
    arguments = [argument for lane in lanes_for(version) for argument in lane.arguments]
    for argument in arguments:
        assert not argument.startswith(("tests/", "notebooks")) or (ROOT / argument).exists(), argument
    # Bytes are those of the tested torch: another one's are not compared with what is stored.
    assert ("--nbval" in arguments) == ("torch" not in version.instead)
    assert ("--nbval-lax" in arguments) == ("torch" in version.instead)


def test_a_lane_without_its_python_says_so_and_is_no_failure(monkeypatch, capsys, tmp_path):
    """uv itself looks, and here may not download one."""
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setattr(versions, "VERSIONS", (versions.Version("python3.99", "3.99"),))
    monkeypatch.setattr(versions, "check_space", lambda folder, size: 0)
    monkeypatch.setattr(Venv, "uv", property(lambda venv: Path(sys.executable).with_name("uv")))
    assert run_versions(Venv(tmp_path), "python3.99") == 0
    out = capsys.readouterr().out.partition("=== summary")[2]
    assert "python3.99: NOT RUN: no Python 3.99 is found here, and uv gets none: " in out
    assert not (tmp_path / ".venvs" / "python3.99").exists()


def test_a_lane_that_is_unknown_is_told_the_names():
    with pytest.raises(Stop, match=r"LANE=python2 is not known: use one of python3.11, .*cpu"):
        run_versions(Venv(), "python2")


@pytest.mark.parametrize("codes", [[0, 0, 0], [0, 1, 0]], ids=["passes", "one part fails"])
def test_a_lane_fails_with_one_of_its_parts_and_runs_them_all(codes, monkeypatch, capsys, tmp_path):
    """With a real environment, whose parts are small programs in place of pytest."""
    monkeypatch.setattr(versions, "_make", lambda venv, lane, version: lane.folder.mkdir(parents=True))
    monkeypatch.setattr(versions, "check_space", lambda folder, size: 0)
    parts = [Lane(f"part {n}", "ends", ("-c", f"raise SystemExit({code})")) for n, code in enumerate(codes)]
    monkeypatch.setattr(versions, "lanes_for", lambda version: parts)
    monkeypatch.setattr(LaneVenv, "python", property(lambda lane: Path(sys.executable)))
    assert run_versions(Venv(tmp_path), "python3.12") == max(codes)
    out = capsys.readouterr().out
    for n, code in enumerate(codes):
        assert re.search(rf"{'FAILED' if code else 'passed'} +\d+ s  part {n}: ends", out)
    assert f"python3.12: {'FAILED' if any(codes) else 'passed'}: Python {sys.version.split()[0]}, torch " in out
    assert not (tmp_path / ".venvs" / "python3.12").exists()
