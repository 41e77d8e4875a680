"""`make lab` and the lanes of `make test`: port, browser, settings, trust, the kernel's Python, the summary.

Finding a Python and setting up are in test_course_tool.py.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from courselib import cluster, lab, lanes
from courselib.busy import busy
from courselib.cluster import lanes_for_cluster, missing
from courselib.lanes import Lane, lanes_for_exploring, lanes_for_tests, run_exploring, run_lanes, run_tests
from courselib.patience import HANG_SECONDS
from courselib.ready import ASKING
from courselib.terminal import Stop
from courselib.venv import Stamp, Venv

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def ready(tmp_path: Path) -> Venv:
    """A course folder with one notebook and a `.venv` that sees the packages of the running environment."""
    root = tmp_path / "course"
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("execute_result", {"text/html": "<b>1</b>"})])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    (root / "notebooks").mkdir()
    nbformat.write(notebook, root / lab.FIRST_NOTEBOOK)
    venv = Venv(root)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv.folder], check=True)
    site_packages = venv.site_packages()
    assert site_packages is not None
    (site_packages / "outer.pth").write_text(str(Path(nbformat.__file__).parents[1]))
    outer, share = Path(sys.prefix, "share/jupyter"), venv.folder / "share/jupyter"
    (share / "lab").mkdir(parents=True)
    shutil.copytree(outer / "kernels", share / "kernels")
    for part in ("labextensions", "lab/static", "lab/schemas", "lab/themes"):
        (share / part).symlink_to(outer / part)
    venv.write_stamp(Stamp("", ("lab",), venv.fingerprint(venv.version() or "")))
    return venv


def bound(port: int = 0) -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", port))
    taken.listen()
    return taken


def answers(address: str, patience_seconds: float = HANG_SECONDS) -> int:
    """The status of the page; a server prints its address a moment before it listens."""
    end = time.monotonic() + patience_seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=HANG_SECONDS) as page:
                return int(page.status)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > end:
                raise
        time.sleep(0.1)


class TestThePort:
    def test_a_named_port_in_use_stops_with_a_sentence(self) -> None:
        with bound() as taken:
            number = taken.getsockname()[1]
            with pytest.raises(Stop, match=rf"^Port {number} cannot be used .*: give another, as in `make lab PORT="):
                lab.choose_port(str(number))

    def test_the_usual_port_in_use_gives_the_next_free_one_and_says_so(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with bound() as taken:
            number = taken.getsockname()[1]
            chosen = lab.choose_port(None, usual=number)
        assert number < chosen < number + 100
        said = f"Port {number} is in use, perhaps by another JupyterLab; this one takes {chosen}.\n"
        assert capsys.readouterr().out == said

    def test_a_free_port_is_taken_without_a_word(self, capsys: pytest.CaptureFixture[str]) -> None:
        with bound() as taken:
            number = taken.getsockname()[1]
        assert lab.choose_port(str(number)) == lab.choose_port(None, usual=number) == number
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("wanted", ["0", "65536", "-1", "eight", "80.5"])
    def test_what_is_no_port_stops_with_a_sentence(self, wanted: str) -> None:
        with pytest.raises(Stop, match=f"^PORT={re.escape(wanted)} is no port: give a number from 1024 to 65535"):
            lab.choose_port(wanted)


class TestBeforeItOpens:
    def test_the_settings_are_ones_that_the_installed_jupyterlab_knows(self) -> None:
        schemas = Path(sys.prefix, "share/jupyter/lab/schemas")
        for plugin, settings in lab.OVERRIDES.items():
            package, name = plugin.split(":")
            schema = json.loads((schemas / package / f"{name}.json").read_text())
            for key, value in settings.items():
                known = schema["properties"][key]
                assert {"string": str, "boolean": bool}[known["type"]] is type(value)
                assert "oneOf" not in known or value in [choice["const"] for choice in known["oneOf"]]

    def test_the_settings_are_written_once(self, ready: Venv) -> None:
        lab.write_overrides(ready)
        path = ready.folder / "share/jupyter/lab/settings/overrides.json"
        assert json.loads(path.read_text())["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
        os.utime(path, (0, 0))
        lab.write_overrides(ready)
        assert path.stat().st_mtime == 0
        path.write_text("{}")
        lab.write_overrides(ready)
        assert json.loads(path.read_text()) == lab.OVERRIDES

    def test_the_notebooks_are_trusted_and_again_only_after_a_change(
        self, ready: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
        path = ready.root / lab.FIRST_NOTEBOOK
        calls: list[object] = []
        real_run = subprocess.run

        def counting(*arguments: Any, **named: Any) -> Any:
            calls.append(arguments)
            return real_run(*arguments, **named)

        def is_trusted() -> bool:
            from nbformat.sign import NotebookNotary

            notary = NotebookNotary(data_dir=str(tmp_path / "jupyter"))
            try:
                return bool(notary.check_signature(nbformat.read(path, as_version=4)))
            finally:
                notary.store.close()

        monkeypatch.setattr(subprocess, "run", counting)
        lab.trust_notebooks(ready)
        assert is_trusted()
        lab.trust_notebooks(ready)
        assert len(calls) == 1
        path.write_text(path.read_text().replace("<b>1</b>", "<b>2</b>"))
        assert not is_trusted()
        lab.trust_notebooks(ready)
        assert is_trusted()

    def test_without_a_display_no_browser_is_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr("webbrowser.get", lambda: object())
        assert not lab.has_browser({})
        assert lab.has_browser({"WAYLAND_DISPLAY": "wayland-0"})
        monkeypatch.setattr(sys, "platform", "darwin")
        assert lab.has_browser({})
        assert "--no-browser" in lab.lab_command(Venv(), 8888, folder=Path(), browser=False)
        assert "--no-browser" not in lab.lab_command(Venv(), 8888, folder=Path(), browser=True)

    def test_a_missing_first_notebook_stops_with_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(Stop, match=r"^notebooks/00_start_here\.ipynb is missing: `make notebooks` builds it\.$"):
            lab.open_lab(Venv(tmp_path), None)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends Ctrl-C as a signal")
def test_lab_prints_an_address_that_answers_runs_the_course_s_python_and_ends_at_ctrl_c(
    ready: Venv, tmp_path: Path
) -> None:
    for place in ("home/.local/share/jupyter", "elsewhere"):  # kernels of the person's own, by the same name
        spec = tmp_path / place / "kernels/python3/kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text('{"argv": ["false", "{connection_file}"], "display_name": "other", "language": "python"}')
    with bound() as taken:
        port = taken.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    environment |= {"HOME": str(tmp_path / "home"), "JUPYTER_PATH": str(tmp_path / "elsewhere"), "DISPLAY": ""}
    server = subprocess.Popen(
        [sys.executable, "tools/course.py", "lab", f"PORT={port}"],
        cwd=ready.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        printed, address = "", None
        while address is None:
            line = server.stdout.readline()
            assert line, f"the server ended: {printed}"
            printed += line
            address = re.search(rf"http://localhost:{port}/lab/tree/notebooks/00_start_here\.ipynb\?token=(\w+)", line)
        assert answers(address[0]) == 200
        assert all("token=" in one for one in re.findall(r"http://\S+", printed)), "none asks for a token"
        copy = ready.root / "work" / lab.FIRST_NOTEBOOK
        assert copy.read_bytes() == (ready.root / lab.FIRST_NOTEBOOK).read_bytes()
        request = urllib.request.Request(
            f"http://localhost:{port}/api/kernels?token={address[1]}",
            data=b'{"name": "python3"}',
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            kernel = json.load(answer)["id"]
        commands = subprocess.check_output(["ps", "-eo", "args", "-ww"], text=True).splitlines()
        kernels = [command for command in commands if f"kernel-{kernel}" in command]
        assert [command.split()[0] for command in kernels] == [str(ready.python)]
        server.send_signal(signal.SIGINT)
        rest, _ = server.communicate(timeout=HANG_SECONDS)
        assert server.returncode == 0
        assert "Traceback" not in rest
    finally:
        if server.poll() is None:
            server.kill()
            server.communicate()


class TestLanes:
    def test_every_lane_runs_and_one_failure_fails_the_whole(
        self, ready: Venv, capfd: pytest.CaptureFixture[str]
    ) -> None:
        here = [
            Lane("one", "fails", ("-c", "print('first'); raise SystemExit(3)")),
            Lane("two", "cannot run", ("-c", "print('never')"), missing="two NOT run: no such thing"),
            Lane(
                "three", "passes", ("-c", "import os; print(os.environ['GPULAB_GPU'], os.environ['GPULAB_PROGRESS'])")
            ),
        ]
        assert run_lanes(ready, here) == 1
        shown = capfd.readouterr().out
        assert "never" not in shown
        assert shown.count("two NOT run: no such thing") == 2
        assert "virtual:T4 " in shown
        assert str(ready.root) not in re.findall(r"virtual:T4 (.*)", shown)[0]
        summary = shown.split("=== summary\n")[1].splitlines()
        assert re.fullmatch(r"  FAILED +\d+ s  one: fails", summary[0])
        assert re.fullmatch(r"  passed +\d+ s  three: passes", summary[2])
        assert run_lanes(ready, here[1:]) == 0

    def test_what_runs_keeps_its_bytecode_whatever_the_environment_says(
        self, ready: Venv, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        show = ("-c", "import sys; print('without bytecode:', sys.dont_write_bytecode)")
        assert run_lanes(ready, [Lane("one", "shows it", show)]) == 0
        assert "without bytecode: False" in capfd.readouterr().out

    MEETS = (
        "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]); (here / sys.argv[2]).touch()\n"
        "while not all((here / other).exists() for other in sys.argv[3]): time.sleep(0.01)\n"
        "print('met by', sys.argv[2], flush=True); print('told by', sys.argv[2], file=sys.stderr)\n"
        "raise SystemExit(int(sys.argv[4]))"
    )

    def test_lanes_run_side_by_side_and_are_shown_one_after_the_other(
        self, ready: Venv, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """Each of two waits until the other has begun; the last begins when one of them has ended."""

        def meets(name: str, others: str, code: str = "0") -> Lane:
            return Lane(name, "waits", ("-c", self.MEETS, str(tmp_path), name, others, code))

        here = [meets("a", "b"), meets("b", "a", "3"), meets("c", "")]
        assert run_lanes(ready, here, at_once=2) == 1
        said = capfd.readouterr()
        shown = [text for name in "abc" for text in (f"=== {name}: waits", f"met by {name}", f"told by {name}")]
        places = [said.out.index(text) for text in shown]
        assert places == sorted(places)
        assert said.err == ""
        summary = said.out.split("=== summary\n")[1].splitlines()
        assert [line.split()[0] for line in summary] == ["passed", "FAILED", "passed"]
        assert run_lanes(ready, [here[2]]) == 0  # alone, where it is asked for by name
        assert "met by c" in capfd.readouterr().out

    def test_what_a_lane_says_is_shown_as_it_comes(
        self, ready: Venv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It ends when the beginning of its line has been shown, which ends within a letter."""
        seen = tmp_path / "seen"

        class Shown(io.StringIO):
            def write(self, text: str) -> int:
                if "begun" in text:
                    seen.touch()
                return super().write(text)

        waits = (
            "import pathlib, sys, time; sys.stdout.buffer.write('begun ü'.encode()[:-1]); sys.stdout.flush()\n"
            "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
            "sys.stdout.buffer.write('ü'.encode()[-1:])"
        )
        monkeypatch.setattr(sys, "stdout", Shown())
        assert run_lanes(ready, [Lane("one", "waits", ("-c", waits, str(seen)))], at_once=2) == 0
        assert "begun ü\n" in sys.stdout.getvalue()

    def test_stopped_the_lanes_that_wait_for_their_turn_do_not_begin(
        self, ready: Venv, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[str] = []
        monkeypatch.setattr(lanes, "_run", lambda venv, lane, output: ran.append(lane.name) or time.sleep(0.2) or 0)

        def stopped(*of_lane: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(lanes, "_follow", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_lanes(ready, [Lane(name, "", ()) for name in "abcd"], at_once=2)
        assert set(ran) <= {"a", "b"}

    def test_without_chromium_the_browser_tests_are_visibly_not_run(self) -> None:
        without = {lane.name: lane.missing for lane in lanes_for_tests(None)}
        assert without.pop("browser").startswith("browser tests NOT run: no Chromium on PATH")
        assert set(without.values()) == {""}
        with_it = lanes_for_tests("/usr/bin/chromium")
        assert {lane.missing for lane in with_it} == {""}

    def test_the_tests_of_the_cluster_are_another_command_s(self) -> None:
        every = [lane.arguments for lane in lanes_for_tests("chromium") + lanes_for_exploring(1, 0, 5)]
        whole = [arguments for arguments in every if "tests" in arguments]
        assert len(whole) == 2
        assert all("--ignore=tests/cluster" in arguments for arguments in whole)
        files = {f"tests/cluster/{file.name}" for file in (ROOT / "tests" / "cluster").glob("test_*.py")}
        assert {one for lane in lanes_for_cluster() for one in lane.arguments if "test_" in one} == files

    def test_a_part_of_the_cluster_that_cannot_run_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster.platform, "system", lambda: "Darwin")
        assert missing((), False) == "it needs Linux"
        monkeypatch.setattr(cluster.platform, "system", lambda: "Linux")
        monkeypatch.setattr(cluster.shutil, "which", lambda name, path: None if name in ("munged", "slurmd") else name)
        command = "munged and slurmd missing: apt-get install --no-install-recommends munge slurm-wlm"
        assert missing(("munged", "slurmctld", "slurmd"), True) == command
        monkeypatch.setattr(cluster.os, "geteuid", lambda: 1000, raising=False)
        assert missing(("strace",), True) == "it needs root"
        refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
        monkeypatch.setattr(cluster.subprocess, "run", lambda *command, **options: refused)
        why = "this system allows no namespaces (unshare: unshare failed: Operation not permitted)"
        assert missing(("strace",), False) == why
        assert {lane.name: lane.missing for lane in lanes_for_cluster()}["slurm"] == f"slurm NOT run: {command}"

    def test_every_test_is_in_one_lane(self) -> None:
        """Collected lane by lane, but for the browser's own and the exercises, which a marker tells from the rest."""
        run = [lane for lane in lanes_for_tests("chromium") if "--nbval" not in lane.arguments]
        files: dict[Path, set[str]] = {}
        for lane in run:
            skipped = [ROOT / a.partition("=")[2] for a in lane.arguments if a.startswith("--ignore=")]
            for place in (ROOT / argument for argument in lane.arguments if argument.startswith("tests")):
                for file in place.rglob("test_*.py") if place.is_dir() else [place]:
                    if not any(file.is_relative_to(folder) for folder in skipped):
                        files.setdefault(file, set()).add(lane.name)
        assert files.pop(ROOT / "tests" / "test_notebooks.py") == {"unit", "exercises"}
        assert {len(names) for names in files.values()} == {1}
        every = {*(ROOT / "tests").rglob("test_*.py")} - {*(ROOT / "tests" / "cluster").rglob("test_*.py")}
        assert every - {ROOT / "tests" / "test_notebooks.py"} == files.keys()

    @pytest.fixture
    def ran(self, monkeypatch: pytest.MonkeyPatch) -> list[Lane]:
        """The lanes that run, in place of running them."""
        ran: list[Lane] = []

        def run(venv: Venv, lane: Lane, output: object = None) -> int:
            ran.append(lane)
            return 0

        monkeypatch.setattr(lanes, "libraries_ready", lambda venv: nullcontext({"PLACE": "here"}))
        monkeypatch.setattr(lanes, "_run", run)
        monkeypatch.delenv("WORKERS", raising=False)
        return ran

    def test_as_many_run_at_once_as_asked_for(
        self, ready: Venv, monkeypatch: pytest.MonkeyPatch, ran: list[Lane]
    ) -> None:
        asked: list[int] = []
        monkeypatch.setattr(lanes, "run_lanes", lambda venv, found, at_once: asked.append(at_once) or 0)
        run_tests(ready, None)
        monkeypatch.setenv("WORKERS", "8")
        run_tests(ready, None)
        run_tests(ready, "unit")
        assert asked == [3, 8, 1]
        monkeypatch.setenv("WORKERS", "many")
        with pytest.raises(Stop, match="WORKERS=many is no number from 1 to 64: give one, such as WORKERS=3"):
            run_tests(ready, None)

    def test_all_lanes_begin_with_torch_imported(self, ready: Venv, ran: list[Lane]) -> None:
        assert run_tests(ready, None) == 0
        wanted = {lane.name: lane.arguments for lane in lanes_for_tests("chromium")}
        assert len(ran) >= len(wanted) - 1  # the browser's perhaps not
        for lane in ran:
            assert lane.arguments == (*ASKING, *wanted[lane.name])
            assert lane.environ["PLACE"] == "here"

    def test_one_lane_can_be_named_and_an_unknown_one_is_answered_with_the_names(
        self, ready: Venv, ran: list[Lane]
    ) -> None:
        assert run_tests(ready, "unit") == 0
        ((name, arguments),) = [(lane.name, lane.arguments) for lane in ran]
        assert (name, arguments[:2]) == ("unit", ("-m", "pytest"))
        started = arguments[arguments.index("--tx") + 1]
        assert started.startswith("3*popen//python=")
        assert shlex.split(started.partition("=")[2]) == [str(ready.python), *ASKING]
        assert arguments[-3:] == lanes_for_tests(None)[0].shared
        assert lanes._shared(ready, lanes_for_tests(None)[0], 3, False)[-5:-3] == ("-n", "3")
        names = "unit, browser, notebooks, answers, virtual, exercises"
        with pytest.raises(Stop, match=f"LANE=units is not known: use one of {names},"):
            run_tests(ready, "units")

    def test_the_lanes_name_files_that_exist(self) -> None:
        for lane in lanes_for_tests("chromium") + lanes_for_exploring(1, 0, 5) + lanes_for_cluster():
            for argument in lane.arguments:
                if argument in ("notebooks", "solutions", "exercises") or argument.startswith("tests"):
                    assert (ROOT / argument).exists(), argument

    def test_what_the_tests_draw_is_fixed_and_exploring_draws_it_afresh(
        self, ready: Venv, capfd: pytest.CaptureFixture[str]
    ) -> None:
        show = ("-c", "import os; print(*map(os.environ.get, ('GPULAB_CHECK_SEED', 'GPULAB_EXAMPLES')))")
        explore = [replace(lane, arguments=show, beside=0) for lane in lanes_for_exploring(20, 3, 77)]
        assert run_lanes(ready, [Lane("test", "", show), *explore]) == 0
        shown = capfd.readouterr().out
        assert re.findall(r"^(\d+) (\S+)$", shown, re.MULTILINE) == [("0", "None"), ("77", "20"), ("77", "1")]
        assert all("--hypothesis-profile=explore" in lane.arguments for lane in lanes_for_exploring(20, 3, 77))

    def test_each_exploration_has_a_seed_of_its_own_and_takes_one_that_is_given(
        self, ready: Venv, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[Lane] = []
        monkeypatch.setattr(lanes, "_run", lambda venv, lane: ran.append(lane) or 0)
        monkeypatch.delenv("GPULAB_CHECK_SEED")
        for _ in range(2):
            assert run_exploring(ready, "busy") == 0
        monkeypatch.setenv("GPULAB_CHECK_SEED", "12")
        monkeypatch.setenv("BUSY", "3")
        assert run_exploring(ready, "busy") == 0
        seeds = [lane.environ["GPULAB_CHECK_SEED"] for lane in ran]
        assert len(set(seeds)) == 3
        assert seeds[2] == "12"
        assert [lane.beside for lane in ran] == [8, 8, 3]
        monkeypatch.setenv("BUSY", "many")
        with pytest.raises(Stop, match="BUSY=many is no number from 0 to 1000: give one, such as BUSY=8"):
            run_exploring(ready, None)


class TestBusy:
    def test_a_busy_process_computes_and_ends_with_its_block(self) -> None:
        children: list[psutil.Process] = []

        def fails_beside_two() -> None:
            with busy(2) as numbers:
                children.extend(map(psutil.Process, numbers))
                while any(sum(child.cpu_times()[:2]) < 0.3 for child in children):
                    assert all(child.is_running() for child in children)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails_beside_two()
        assert not any(child.is_running() for child in children)

    @pytest.mark.skipif(os.name == "nt", reason="a process keeps the number of a parent that has gone there")
    def test_it_ends_with_its_parent_even_where_that_is_killed(self, tmp_path: Path) -> None:
        code = "from courselib.busy import busy\nwith busy(1) as n: print(*n, flush=True); input()"
        parent = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT / "tools", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.communicate()
        psutil.wait_procs([child], timeout=HANG_SECONDS)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    def test_it_ends_after_its_time(self) -> None:
        with busy(1, most_seconds=0.1) as numbers:
            child = psutil.Process(numbers[0])
            child.wait(HANG_SECONDS)
            assert not child.is_running()
