"""JupyterLab over a copy of the course, as `make lab` starts it, and the Chromium to open it in.

For the browser tests and the benchmarks. It lives in a temporary folder, with Jupyter folders and a progress file of
its own; `notebook_page` drives what it serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import nbformat
from courselib.lab import lab_command, write_overrides
from courselib.lanes import CHROMIUM
from courselib.patience import HANG_SECONDS
from courselib.ready import kernels_here
from courselib.venv import ROOT, Venv
from playwright.sync_api import Browser, sync_playwright

FOLDERS = ("notebooks", "exercises", "solutions", "docs")  # docs has the pictures of texts
TRUSTED = ("notebooks", "solutions")

_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

# An entry of the server that tells of an error, with the lines that belong to it; any traceback, with its last line.
_ERROR = re.compile(r"^(?:\[E .*(?:\n .*)*|( *)Traceback \(.*(?:\n\1 .*)*(?:\n\1\S.*)?)", re.MULTILINE)
# A page is closed while the server writes to it; a kernel is ended (interrupted first) with a message in its hand.
_ENDS = (
    *("tornado.websocket.WebSocketClosedError", "tornado.iostream.StreamClosedError: Stream is closed"),
    *("KeyboardInterrupt", "zmq.error.ZMQError: Socket operation on non-socket"),
)


def chromium_path() -> str | None:
    """The first Chromium on PATH, None where there is none."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def errors_of(log: str) -> list[str]:
    """The errors that a log of JupyterLab tells of, each whole; not those of what Jupyter itself has ended."""
    told = [found[0] for found in _ERROR.finditer(log)]
    return [error for error in told if not error.rsplit("\n", 1)[-1].lstrip().startswith(_ENDS)]


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """The browser at `path`, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class LabServer:
    """JupyterLab on a free port over a copy of the course in `folder`, which must be empty."""

    def __init__(self, folder: Path) -> None:
        self.course = folder / "course"
        self.progress_file = folder / "progress.json"
        self._read = 0  # bytes of the log that were there when it began anew
        self._copy_notebooks()
        self._runtime = tempfile.TemporaryDirectory(prefix="lab-")  # the names of kernels' sockets must be short
        self._environ = _environ(folder) | {"JUPYTER_RUNTIME_DIR": self._runtime.name}
        self._trust()
        self._log = folder / "lab.log"
        self._port = _free_port()
        self._process = self._start()

    def url(self, path: str) -> str:
        """The address of a notebook of the course, with the token that lets the browser in."""
        return f"http://127.0.0.1:{self._port}/lab/tree/{path}?reset&token={self._environ['JUPYTER_TOKEN']}"

    def complaints(self) -> list[str]:
        """The entries of the server's and the kernels' log that tell of an error, since it has begun (anew)."""
        return errors_of(self._log.read_bytes()[self._read :].decode("utf-8", errors="replace"))

    def write(self, path: str, *cells: str) -> str:
        """Make a notebook of these code cells in the course; returns `path`."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.course / path)
        return path

    def progress(self) -> dict[str, Any]:
        """What the progress file holds; empty where there is none yet."""
        if not self.progress_file.exists():
            return {}
        record: dict[str, Any] = json.loads(self.progress_file.read_text(encoding="utf-8"))
        return record

    def begin_anew(self) -> None:
        """As it was when it started: the course's notebooks, no kernel, no progress, no settings of a person."""
        for session in json.loads(self._ask("GET", "/api/sessions")):
            self._ask("DELETE", f"/api/sessions/{session['id']}")
        for name in FOLDERS:
            shutil.rmtree(self.course / name)
        self._copy_notebooks()  # what they were signed as is remembered
        self.progress_file.unlink(missing_ok=True)
        shutil.rmtree(Path(self._environ["JUPYTER_CONFIG_DIR"]) / "lab" / "user-settings", ignore_errors=True)
        self._read = self._log.stat().st_size

    def close(self) -> None:
        """End the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._runtime.cleanup()

    def _copy_notebooks(self) -> None:
        ignored = shutil.ignore_patterns(".ipynb_checkpoints")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.course / name, ignore=ignored, dirs_exist_ok=True)

    def _trust(self) -> None:
        # As `make lab` does, with the signatures in a folder of our own.
        paths = [str(path) for name in TRUSTED for path in sorted((self.course / name).glob("*.ipynb"))]
        command = [sys.executable, "-m", "nbformat.sign", *paths]
        subprocess.run(command, env=self._environ, check=True, capture_output=True)

    def _start(self) -> subprocess.Popen[bytes]:
        # The settings and the command of `make lab`, for a course whose `.venv` holds those settings and no Python.
        stand_in = Venv(root=self.course)
        write_overrides(stand_in)
        overrides = stand_in.folder / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
        settings = json.loads(overrides.read_text(encoding="utf-8"))
        # On a busy machine two saves that overtake each other end in a dialog over the page.
        settings["@jupyterlab/docmanager-extension:plugin"] = {"autosave": False}
        overrides.write_text(json.dumps(settings), encoding="utf-8")
        command = [
            *(sys.executable, *lab_command(stand_in, self._port, folder=self.course, browser=False)[1:]),
            f"--LabApp.app_settings_dir={stand_in.folder / 'share' / 'jupyter' / 'lab' / 'settings'}",
            "--LabApp.expose_app_in_browser=True",
        ]
        if os.name != "nt":  # no ports, which another program may take before the kernel does
            command.append("--KernelManager.transport=ipc")
        with self._log.open("wb") as log:
            process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, cwd=self.course)
        try:
            self._wait_for(process)
        except BaseException:
            process.kill()
            raise
        return process

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + HANG_SECONDS
        while process.poll() is None and time.monotonic() < end:
            try:
                self._ask("GET", "/api/status")
                return
            except URLError:
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not start:\n{self._log.read_text(encoding='utf-8', errors='replace')}")

    def _ask(self, method: str, path: str) -> bytes:
        """What the server answers to a request of its REST interface."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", method=method)
        request.add_header("Authorization", f"token {self._environ['JUPYTER_TOKEN']}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine's ports
        with opener.open(request, timeout=HANG_SECONDS) as answer:
            return bytes(answer.read())


def _environ(folder: Path) -> dict[str, str]:
    """The environment of the server and its kernels: the course's, and none of the person's Jupyter folders."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON", "GPULAB_"))}
    environ |= {k: v for k, v in os.environ.items() if k == "GPULAB_CHECK_SEED"}
    environ |= kernels_here()
    for name in ("CONFIG", "DATA"):
        environ[f"JUPYTER_{name}_DIR"] = str(folder / "jupyter" / name.lower())
    return environ | {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_TOKEN": secrets.token_hex(16),
        "GPULAB_GPU": "virtual:T4",
        "GPULAB_PROGRESS": str(folder / "progress.json"),
        # A browser, a server and a kernel share the processors: with more threads, torch's wait for one another.
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    """One that no system gives away by itself: between this look and the server's start others open ports too."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
