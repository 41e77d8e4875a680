"""The commands of `make`: finding a Python, setting up once, and one sentence for each thing that goes wrong.

Nothing here downloads; what JupyterLab and the test lanes do is in test_course_lab.py.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from courselib import commands, installing
from courselib.installing import Size, check_space, drop_half_installed, reason_to_start_anew, set_up
from courselib.lock import only_one
from courselib.patience import HANG_SECONDS
from courselib.terminal import Stop
from courselib.venv import Stamp, Venv

ROOT = Path(__file__).resolve().parents[1]
LAB = frozenset({"lab"})
NO_PATH = {"PATH": "", "HOME": "/"}


def course_copy(folder: Path) -> Path:
    """The tool and what it reads, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, folder)
    return folder


def light_venv(root: Path) -> Venv:
    """A real `.venv` without pip or packages, marked as set up."""
    venv = Venv(root)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv.folder], check=True)
    version = venv.version()
    assert version is not None
    venv.write_stamp(Stamp("", ("lab",), venv.fingerprint(version)))
    return venv


def course(
    root: Path, *arguments: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "tools/course.py", *arguments],
        cwd=root,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_SECONDS,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A course folder on a disk of 40 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(mounted)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("NOT tested: a small disk cannot be mounted here (needs root on Linux)")
    yield mounted
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    subprocess.run(["umount", str(mounted)], check=True)


class TestFindingPython:
    def test_the_entry_point_has_no_syntax_that_an_old_python_cannot_read(self) -> None:
        tree = ast.parse((ROOT / "tools/course.py").read_text(), feature_version=(3, 4))
        for node in ast.walk(tree):
            assert not isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr)
            if isinstance(node, ast.FunctionDef):
                assert node.returns is None
                assert all(argument.annotation is None for argument in node.args.args)

    def test_a_python_that_is_too_old_gets_one_sentence(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path)
        pretend = "import sys; sys.version_info = (3, 9, 2); sys.path.insert(0, 'tools'); import course; course.main()"
        done = subprocess.run([sys.executable, "-c", pretend], cwd=root, env=NO_PATH, capture_output=True, text=True)
        assert re.fullmatch(
            r"The course needs Python 3\.11 or newer; this is Python 3\.9\.2, .*: install .* PYTHON=\S+`\.\n",
            done.stderr,
        )

    def test_every_old_python_on_this_machine_reads_it_and_says_so(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path)
        names = ["python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.10"]
        found = [path for name in names if (path := shutil.which(name))]
        found += [str(path) for path in Path.home().glob(".pyenv/versions/*/bin/python")]
        tried = 0
        for name in found:
            is_old = "import sys; sys.exit(sys.version_info >= (3, 11))"
            if subprocess.run([name, "-c", is_old], capture_output=True).returncode == 0:
                real = subprocess.check_output([name, "-c", "import sys; print(sys.executable)"], text=True).strip()
                done = subprocess.run(
                    [real, "tools/course.py", "lab"], cwd=root, env=NO_PATH, capture_output=True, text=True
                )
                assert done.returncode == 1
                assert done.stderr.startswith("The course needs Python 3.11 or newer; this is Python ")
                assert done.stderr.count("\n") == 1
                tried += 1
        if not tried:
            pytest.skip("NOT tested with a real one: no old Python here")

    @pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
    def test_a_newer_python_on_path_takes_over_and_it_says_so(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path / "course")
        binaries = tmp_path / "bin"
        binaries.mkdir()
        (binaries / "python3.13").write_text("#!/bin/sh\nexit 127\n")  # a shim of a version that is not installed
        (binaries / "python3.13").chmod(0o755)
        (binaries / "python3.12").symlink_to(sys.executable)
        pretend = (
            "import sys; sys.version_info = (3, 8, 1); sys.path.insert(0, 'tools'); sys.argv = ['course.py', 'help'];"
            "import course; course.main()"
        )
        environment = os.environ | {"PATH": str(binaries)}
        done = subprocess.run(
            [sys.executable, "-c", pretend], cwd=root, env=environment, capture_output=True, text=True
        )
        assert done.stderr == "Python 3.8.1 is too old for the course; using python3.12.\n"
        assert "make lab" in done.stdout


class TestCommands:
    def test_make_has_a_target_for_each_command_and_help_lists_them(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
        rule = re.search(r"^(help .*):$", makefile, re.MULTILINE)
        assert phony
        assert rule
        assert phony[1].split() == rule[1].split() == ["help", *commands.COMMANDS]
        shown = subprocess.check_output(["make", f"PYTHON={sys.executable}"], cwd=ROOT, text=True)
        for name in commands.COMMANDS:
            assert f"make {name} " in shown

    def test_the_readme_names_only_commands_that_exist(self) -> None:
        readme = (ROOT / "README.md").read_text()
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", readme, re.MULTILINE))
        named |= set(re.findall(r"tools/course\.py ([a-z]+)", readme))
        assert {"lab", "test", "help"} <= named <= {"help", *commands.COMMANDS}

    def test_an_unknown_command_is_answered_with_the_known_ones(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.run(["tset"]) == 1
        assert capsys.readouterr().out.startswith("`tset` is no command: use one of lab, test, ")

    @pytest.mark.parametrize("name", ["CPU", "../x", "c u", "--pre"])
    def test_a_torch_build_that_cannot_exist_is_refused_before_anything_is_touched(
        self, name: str, tmp_path: Path
    ) -> None:
        with pytest.raises(Stop, match=f"TORCH={re.escape(name)} names no build of torch: use TORCH=cpu"):
            set_up(Venv(tmp_path), LAB, name)
        assert list(tmp_path.iterdir()) == []


class TestASecondRun:
    def test_takes_no_pip(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path)
        light_venv(root)  # it has no pip, so a call of pip would fail
        done = course(root, "setup")
        assert done.stdout == f"{root / '.venv'} is ready.\n"

    def test_is_ready_for_fewer_extras_and_any_build_of_torch_but_not_for_more(self, tmp_path: Path) -> None:
        venv = light_venv(course_copy(tmp_path))
        assert venv.is_ready(LAB, None)
        assert venv.is_ready(frozenset(), None)
        assert not venv.is_ready(frozenset({"lab", "test"}), None)
        assert not venv.is_ready(LAB, "cpu")

    @pytest.mark.parametrize("change", ["requirement", "tested version", "moved", "damaged stamp", "no stamp"])
    def test_sets_up_again_after_a_change(self, change: str, tmp_path: Path) -> None:
        root = course_copy(tmp_path / "course")
        venv = light_venv(root)
        if change == "requirement":
            text = (root / "pyproject.toml").read_text()
            (root / "pyproject.toml").write_text(text.replace('"psutil>=', '"emcee", "psutil>='))
        elif change == "tested version":
            text = (root / "constraints.txt").read_text()
            (root / "constraints.txt").write_text(text.replace("torch==", "torch==1"))
        elif change == "moved":
            venv = Venv(root.rename(tmp_path / "elsewhere"))
        elif change == "damaged stamp":
            venv.stamp_file.write_text('{"torch": ')
        else:
            venv.stamp_file.unlink()
        assert not venv.is_ready(LAB, None)

    def test_does_not_set_up_again_for_what_no_installer_reads(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path)
        venv = light_venv(root)
        text = (root / "pyproject.toml").read_text()
        (root / "pyproject.toml").write_text(text.replace("line-length = 110", "line-length = 100"))
        assert venv.is_ready(LAB, None)


class TestAnInterruptedOrBrokenSetUp:
    def test_what_is_not_there_or_works_needs_no_remark(self, tmp_path: Path) -> None:
        assert reason_to_start_anew(Venv(tmp_path), None) == ""

    def test_an_environment_whose_python_has_gone_is_made_anew(self, tmp_path: Path) -> None:
        venv = light_venv(course_copy(tmp_path))
        venv.python.unlink()
        assert "does not work" in (reason_to_start_anew(venv, None) or "")

    def test_an_environment_that_was_left_without_pip_is_made_anew(self, tmp_path: Path) -> None:
        assert "does not work" in (reason_to_start_anew(light_venv(course_copy(tmp_path)), None) or "")

    def test_an_environment_with_another_python_behind_its_link_is_made_anew(self, tmp_path: Path) -> None:
        venv = light_venv(course_copy(tmp_path))
        config = venv.folder / "pyvenv.cfg"
        config.write_text(re.sub(r"(?m)^version = .*$", "version = 3.7.1", config.read_text()))
        assert venv.version() is None
        assert not venv.is_ready(LAB, None)

    def test_a_package_whose_files_were_cut_short_is_forgotten_so_that_it_is_installed(self, tmp_path: Path) -> None:
        for name, files in (("whole-1.dist-info", ("METADATA", "INSTALLER")), ("half-1.dist-info", ("METADATA",))):
            (tmp_path / name).mkdir()
            for file in files:
                (tmp_path / name / file).touch()
        (tmp_path / "~umpy").mkdir()
        (tmp_path / "torch").mkdir()
        assert drop_half_installed(tmp_path) == ["half-1.dist-info", "~umpy"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["torch", "whole-1.dist-info"]

    def test_what_was_asked_for_stays_asked_for_until_it_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        venv = light_venv(course_copy(tmp_path))
        asked: list[list[str]] = []
        states: list[Stamp | None] = []

        def install(venv: Venv, arguments: list[str], **_: object) -> None:
            asked.append(arguments)
            states.append(venv.stamp())
            if len(asked) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(installing, "install", install)
        monkeypatch.setattr(installing, "_create", lambda venv: None)
        monkeypatch.setattr(installing, "check_space", lambda folder, size: 10**12)
        with pytest.raises(KeyboardInterrupt):
            set_up(venv, frozenset({"test", "author"}), "cpu")
        assert [arguments[-1] for arguments in asked] == ["torchvision", ".[author,lab,test]"]
        assert all(arguments[:2] == ["-c", "constraints.txt"] for arguments in asked)
        index = asked[0].index("--default-index")
        assert asked[0][index + 1] == "https://download.pytorch.org/whl/cpu"
        assert [state and state.torch for state in states] == ["", "cpu"]
        assert not venv.is_ready(LAB, None)
        set_up(venv, LAB, None)
        assert asked[-1][-1] == ".[author,lab,test]"
        assert venv.is_ready(frozenset({"lab", "test", "author"}), "cpu")


class TestOneSetUpAtATime:
    HOLD = (
        "import sys, time; from pathlib import Path; from courselib.lock import only_one\n"
        "with only_one(Path(sys.argv[1]), lambda: None): print('held', flush=True); time.sleep(float(sys.argv[2]))"
    )

    def holder(self, file: Path, seconds: float) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", self.HOLD, str(file), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "tools")},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        return child

    def test_the_second_says_once_that_it_waits_and_then_goes_on(self, tmp_path: Path) -> None:
        file = tmp_path / "pyproject.toml"
        file.write_text("unchanged")
        child = self.holder(file, 1)
        said: list[str] = []
        with only_one(file, lambda: said.append("waiting")):
            assert child.wait(HANG_SECONDS) == 0
        assert said == ["waiting"]
        assert file.read_text() == "unchanged"

    def test_a_killed_set_up_leaves_no_lock_behind(self, tmp_path: Path) -> None:
        file = tmp_path / "pyproject.toml"
        file.touch()
        child = self.holder(file, 60)
        child.send_signal(signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
        child.wait(HANG_SECONDS)
        said: list[str] = []
        with only_one(file, lambda: said.append("waiting")):
            pass
        assert said == []


class TestFailures:
    @pytest.mark.slow
    def test_without_a_network_the_set_up_ends_in_a_sentence_and_goes_on_later(self, tmp_path: Path) -> None:
        root = course_copy(tmp_path)
        unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        unreachable |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "UV_HTTP_RETRIES": "0"}
        for uv_is_there, said in ((False, "the requirement uv=="), (True, "tcp connect error")):
            if uv_is_there:
                shutil.copy(shutil.which("uv", path=Path(sys.executable).parent), Venv(root).scripts)
            done = course(root, "setup", **unreachable)
            assert done.returncode == 1
            assert said in done.stdout
            assert done.stdout.splitlines()[-1].endswith("The same command again goes on from where it is.")
            assert "Traceback" not in done.stdout
            assert not Venv(root).is_ready(LAB, None)
            assert reason_to_start_anew(Venv(root), None) is None

    def test_too_small_a_disk_is_refused_before_anything_is_downloaded(self, tmp_path: Path) -> None:
        with pytest.raises(Stop, match=r"Not enough disk space: setting up takes 3000\.0 GB .* free some space"):
            check_space(tmp_path, Size(download=1e12, disk=2e12))
        assert check_space(tmp_path, Size(0, 0)) > 0

    def test_a_full_disk_ends_the_set_up_in_a_sentence(self, small_disk: Path) -> None:
        root = course_copy(small_disk)
        done = course(root, "lab", "TORCH=cpu")
        assert done.returncode == 1
        assert re.search(r"Not enough disk space: .* has 0\.0 GB free; free some space\.$", done.stdout.rstrip())
        assert not (root / ".venv").exists()

    def test_a_read_only_folder_ends_the_set_up_in_a_sentence(self, small_disk: Path) -> None:
        root = course_copy(small_disk)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        done = course(root, "lab")
        assert done.returncode == 1
        assert done.stdout == f"{root} is read-only for you: copy the course to a folder of yours and work there.\n"
