"""Let uv make environments and install packages. It says itself what it does, and what went wrong."""

import os
import subprocess
from collections.abc import Sequence

from .terminal import Stop
from .venv import Venv

AGAIN = (
    "the lines above say why (is there a network? behind a proxy, set HTTPS_PROXY). "
    "The same command again goes on from where it is."
)


def install(venv: Venv, arguments: Sequence[str], *, keep_open: int) -> None:
    """Run `uv pip install` for the environment, with uv from there; Stop where it fails.

    `keep_open` is the lock's descriptor, which an installer that outlives this process keeps held.
    """
    if not venv.uv.is_file():
        tested = (venv.root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pinned = next(line for line in tested if line.startswith("uv=="))
        _run("pip", [venv.python, "-m", "pip", "install", "--quiet", "--no-input", pinned], venv, keep_open)
    _run("uv", [venv.uv, "pip", "install", "--python", venv.python, *arguments], venv, keep_open)


def _run(name: str, command: Sequence[object], venv: Venv, keep_open: int) -> None:
    descriptors = () if os.name == "nt" else (keep_open,)
    if subprocess.call([*map(str, command)], cwd=venv.root, env=environ(venv), pass_fds=descriptors) != 0:
        raise Stop(f"{name} could not install the packages; {AGAIN}")


def environ(venv: Venv) -> dict[str, str]:
    """The variables of pip and uv. uv reads none of pip's: a mirror that pip is told to ask, uv asks too; and so with
    certificates."""
    variables = venv.environ() | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    variables.setdefault("UV_SYSTEM_CERTS", "1")
    for ours, pips in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("SSL_CERT_FILE", "PIP_CERT")):
        if variables.get(pips):
            variables.setdefault(ours, variables[pips])
    return variables
