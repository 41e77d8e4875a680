"""Let uv install packages into an environment. It says itself what it does, and what went wrong."""

import os
import subprocess
import sys
from collections.abc import Sequence

from .terminal import Stop, say
from .venv import Venv

AGAIN = (
    "the lines above say why (is there a network? behind a proxy, set HTTPS_PROXY). "
    "The same command again goes on from where it is."
)


def install(venv: Venv, arguments: Sequence[str], *, keep_open: int) -> None:
    """Run `uv pip install` for the environment, with uv from there; Stop where it fails.

    `keep_open` is the lock's descriptor, which an installer that outlives this process keeps held.
    """
    uv = venv.scripts / ("uv.exe" if os.name == "nt" else "uv")
    environ = venv.environ() | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # uv does not read pip's settings: a mirror that pip is told to ask, uv asks too; and so with certificates.
    environ.setdefault("UV_SYSTEM_CERTS", "1")
    if index := environ.get("PIP_INDEX_URL"):
        environ.setdefault("UV_DEFAULT_INDEX", index)
    if certificates := environ.get("PIP_CERT"):
        environ.setdefault("SSL_CERT_FILE", certificates)
    if not uv.is_file():
        tested = (venv.root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pinned = next(line for line in tested if line.startswith("uv=="))
        pip = [venv.python, "-m", "pip", "install", "--quiet", "--no-input", pinned]
        _run("pip", pip, venv, environ, keep_open)
    _run("uv", [uv, "pip", "install", "--python", venv.python, *arguments], venv, environ, keep_open)


def _run(name: str, command: Sequence[object], venv: Venv, environ: dict[str, str], keep_open: int) -> None:
    """On a terminal uv draws how far its downloads are; elsewhere its list of all packages is left out."""
    drawn = sys.stderr.isatty()
    child = subprocess.Popen(
        list(map(str, command)),
        cwd=venv.root,
        env=environ,
        stdout=None if drawn else subprocess.PIPE,
        stderr=None if drawn else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=() if os.name == "nt" else (keep_open,),
    )
    try:
        for line in child.stdout or ():
            if not line.startswith(" + "):
                say(f"  {line.rstrip()}")
        code = child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    if code != 0:
        raise Stop(f"{name} could not install the packages; {AGAIN}")
