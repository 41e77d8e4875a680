"""Open JupyterLab at the student's first notebook: its settings, the trust in the course's notebooks, port and browser.

The server runs in place of this process; nothing of it is configured outside `.venv`.
"""

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from . import work
from .terminal import Stop, say
from .venv import Venv

FIRST_NOTEBOOK = "notebooks/00_start_here.ipynb"
PORT = 8888

# The news popup would stand over the first cell; callbacks of widgets run in the kernel's main thread, in
# order with the cells, and not in a subshell. The dates of files would leave their names half of the column.
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"},
    "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": False},
}

# Once the authors' extra is installed, these would put menus and buttons for grading into a student's JupyterLab.
PAGE_CONFIG = {"disabledExtensions": {"@jupyter/nbgrader": True, "jupyterlab-jupytext": True}}


def open_lab(venv: Venv, wanted_port: str | None) -> int:
    """Prepare and start JupyterLab; `wanted_port` is what the person asked for, None for the usual one."""
    if not (venv.root / FIRST_NOTEBOOK).is_file():
        raise Stop(f"{FIRST_NOTEBOOK} is missing: `make notebooks` builds it.")
    port = choose_port(wanted_port)
    write_overrides(venv)
    trust_notebooks(venv)
    folder = work.refresh(venv.root)
    browser = has_browser()
    say(f"JupyterLab starts on port {port}; the address to open, with its token, comes below (Ctrl-C here ends it).")
    if not browser and "SSH_CONNECTION" in os.environ:
        say(f"From your own computer: ssh -N -L {port}:localhost:{port} to this machine, then open that address.")
    command = lab_command(venv, port, folder=folder, browser=browser)
    if os.name == "nt":  # where exec does not replace the process
        return subprocess.call(command, env=venv.environ(), cwd=folder)
    os.chdir(folder)
    os.execve(command[0], command, venv.environ())


def lab_command(venv: Venv, port: int, *, folder: Path, browser: bool) -> list[str]:
    """The command line of the server for `folder`; it prints the full address with its token when it is ready."""
    command = [
        str(venv.python),
        *("-m", "jupyterlab"),
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.jpserver_extensions={'virtualgpu.pictures.asleep': True}",  # what it saves of a widget can be read
        "--Application.log_level=ERROR",  # the address, and what goes wrong
        "--ServerApp.answer_yes=True",  # Ctrl-C ends it without a question
        "--KernelManager.transport_encryption=auto",  # several people may share the machine
    ]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return command


def choose_port(wanted: str | None, usual: int = PORT) -> int:
    """A free port: the wanted one or a Stop; without a wish the usual one or the next that is free."""
    if wanted is not None:
        if not wanted.isdecimal() or not 1 <= int(wanted) <= 65535:
            raise Stop(f"PORT={wanted} is no port: give a number from 1024 to 65535, as in `make lab PORT=8890`.")
        if not _is_free(int(wanted)):
            raise Stop(
                f"Port {wanted} cannot be used (another program has it, or it needs more rights): give another, "
                "as in `make lab PORT=8890`, or leave PORT out and a free one is chosen."
            )
        return int(wanted)
    for port in range(usual, usual + 100):
        if _is_free(port):
            if port != usual:
                say(f"Port {usual} is in use, perhaps by another JupyterLab; this one takes {port}.")
            return port
    raise Stop(f"All ports from {usual} to {usual + 99} are in use: name a free one, as in `make lab PORT=9999`.")


def _is_free(port: int) -> bool:
    for family, _, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if os.name != "nt":  # there it would allow a port that is in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # a machine with IPv6 names and no IPv6
                    return False
    return True


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """True where a graphical browser can be opened from here."""
    graphical = sys.platform != "linux" or any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return graphical


def write_overrides(venv: Venv) -> None:
    """JupyterLab's default settings for this environment, written only where they differ."""
    folder = venv.folder / "share" / "jupyter" / "lab" / "settings"
    for name, settings in (("overrides.json", OVERRIDES), ("page_config.json", PAGE_CONFIG)):
        path, text = folder / name, json.dumps(settings, indent=2) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def trust_notebooks(venv: Venv) -> None:
    """Sign the course's notebooks, so that their saved pictures show; only when one of them has changed."""
    notebooks = sorted(path for folder in ("notebooks", "solutions") for path in venv.root.glob(f"{folder}/*.ipynb"))
    # The signatures lie in the person's own Jupyter folder.
    digest = hashlib.sha256(str(Path.home()).encode())
    for path in notebooks:
        digest.update(path.read_bytes())
    record = venv.folder / "gpulab-trusted"
    if record.is_file() and record.read_text(encoding="utf-8") == digest.hexdigest():
        return
    command = [str(venv.python), "-m", "nbformat.sign", *map(str, notebooks)]
    signed = subprocess.run(command, env=venv.environ(), capture_output=True, text=True)
    if signed.returncode != 0:
        say("The notebooks could not be marked as trusted; in JupyterLab, run a notebook to see its pictures.")
        return
    if os.access(venv.folder, os.W_OK):
        record.write_text(digest.hexdigest(), encoding="utf-8")
