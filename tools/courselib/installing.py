"""Make `.venv` and install the package into it, once; an interrupted set-up is taken up again.

What is installed is said by pyproject.toml (the requirements) and constraints.txt (the tested versions).
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .installer import AGAIN, install
from .lock import only_one
from .terminal import Stop, say
from .venv import Stamp, Venv

TORCH_INDEX = "https://download.pytorch.org/whl/"


@dataclass(frozen=True)
class Size:
    """What there is to download and what it takes on disk, in bytes."""

    download: float
    disk: float

    def __str__(self) -> str:
        return f"about {self.download / 1e9:.1f} GB to download, {self.disk / 1e9:.1f} GB on disk"


# Measured on Linux with all extras: torch 2.15 with CUDA, torch 2.13 without.
WITH_CUDA = Size(download=2.7e9, disk=6.5e9)
WITHOUT_CUDA = Size(download=0.4e9, disk=1.9e9)
ADDITION = Size(download=0.1e9, disk=0.4e9)


def set_up(venv: Venv, extras: frozenset[str], torch: str | None = None) -> None:
    """Make sure that `.venv` holds the package with these extras; returns at once where it does.

    `torch` is the name of one of torch's own package indexes ("cpu", "cu126"); None takes the build that is
    there, or else the ordinary one.
    """
    if torch is not None and not re.fullmatch(r"[a-z]+[0-9.]*", torch):
        raise Stop(f"TORCH={torch} names no build of torch: use TORCH=cpu, or leave it out.")
    if venv.is_ready(extras, torch):
        return
    for folder in filter(Path.exists, (venv.root, venv.folder)):
        if not os.access(folder, os.W_OK):
            raise Stop(f"{folder} is read-only for you: copy the course to a folder of yours and work there.")
    with only_one(venv.root / "pyproject.toml", lambda: say("Another set-up is at work here; waiting …")) as lock:
        if not venv.is_ready(extras, torch):
            _install(venv, extras, torch, lock)


def reason_to_start_anew(venv: Venv, torch: str | None) -> str | None:
    """Why the present `.venv` cannot be kept; "" where there is none, None where it can."""
    if not venv.folder.exists():
        return ""
    pip = [str(venv.python), "-m", "pip", "--version"]
    if venv.version() is None or subprocess.run(pip, capture_output=True).returncode != 0:
        return ".venv does not work (its Python has gone, or making it was interrupted): it is made anew."
    stamp = venv.stamp() or Stamp()
    if torch not in (None, stamp.torch) and venv.has("torch"):
        return f".venv holds another build of torch than TORCH={torch}: it is made anew."
    return None


def drop_half_installed(site_packages: Path) -> list[str]:
    """Remove the record of packages whose installation was cut short; returns their names.

    A package counts as installed as soon as its METADATA is there, which is before its last files are; INSTALLER is
    written at the end.
    """
    halves = [info for info in site_packages.glob("*.dist-info") if not (info / "INSTALLER").is_file()]
    halves += site_packages.glob("~*")  # an uninstallation that was cut short
    for half in halves:
        shutil.rmtree(half, ignore_errors=True)
    return sorted(half.name for half in halves)


def _install(venv: Venv, extras: frozenset[str], torch: str | None, lock: int) -> None:
    started = time.monotonic()
    before = venv.stamp() or Stamp()
    build = before.torch if torch is None else torch
    anew = reason_to_start_anew(venv, torch)
    if anew:
        say(anew)
    first = anew is not None or not venv.has("torch")
    size = _size(build) if first else ADDITION
    say(f"Setting up .venv: {size}." if first else "Bringing .venv up to date.")
    if first and not build and has_no_nvidia():
        say("No NVIDIA GPU is found here; torch's CPU build is a much smaller download: Ctrl-C, make lab TORCH=cpu")
    if not venv.folder.exists():
        check_space(venv.root, size)
    if anew is not None:
        _create(venv)
    free = check_space(venv.folder, size)
    # Packages in uv's cache are linked, not copied, where both are on one disk; a full one keeps no cache.
    options = ["--no-cache"] if free < size.disk + 2 * size.download else []
    wanted = Stamp(build, tuple(sorted(extras.union(before.extras))))
    _fill(venv, wanted, "" if anew is not None else before.torch, options, lock)
    say(f"Set up in {time.monotonic() - started:.0f} s.")


def _fill(venv: Venv, wanted: Stamp, torch_there: str, options: list[str], lock: int) -> None:
    """Install what is `wanted`; the stamp says at each moment what is there."""
    venv.write_stamp(replace(wanted, torch=torch_there))
    if site_packages := venv.site_packages():
        drop_half_installed(site_packages)
    if wanted.torch:
        # Without dependencies: torch's own index has not the tested versions of them.
        index = ["--no-deps", "--default-index", TORCH_INDEX + wanted.torch]
        install(venv, ["-c", "constraints.txt", *options, *index, "torch", "torchvision"], keep_open=lock)
        venv.write_stamp(wanted)
    package = f".[{','.join(wanted.extras)}]"
    install(venv, ["-c", "constraints.txt", *options, "-e", package], keep_open=lock)
    venv.write_stamp(replace(wanted, fingerprint=venv.fingerprint(venv.version() or "")))


def _size(build: str) -> Size:
    cuda = build.startswith(("cu", "rocm")) or (not build and sys.platform == "linux")
    return WITH_CUDA if cuda else WITHOUT_CUDA


def has_no_nvidia() -> bool:
    """True on a Linux machine that shows no sign of an NVIDIA GPU."""
    here = os.path.exists("/proc/driver/nvidia") or shutil.which("nvidia-smi") is not None
    return sys.platform == "linux" and not here


def check_space(folder: Path, size: Size) -> int:
    """The free bytes where `folder` is; Stop where they are too few for the downloads and the packages."""
    free = shutil.disk_usage(folder).free
    needed = size.download + size.disk
    if free < needed:
        raise Stop(
            f"Not enough disk space: setting up takes {needed / 1e9:.1f} GB while it runs and {folder} has "
            f"{free / 1e9:.1f} GB free; free some space"
            + (", or take torch's smaller CPU build (make lab TORCH=cpu)." if size == WITH_CUDA else ".")
        )
    return free


def _create(venv: Venv) -> None:
    base = getattr(sys, "_base_executable", sys.executable)  # in case this is the .venv's own Python
    made = subprocess.run([base, "-I", "-m", "venv", "--clear", venv.folder], capture_output=True, text=True)
    if made.returncode == 0:
        return
    text = made.stdout + made.stderr
    if "ensurepip" in text or "No module named venv" in text:
        raise Stop(
            f"{base} cannot make virtual environments: install its venv module (on Debian and Ubuntu `sudo apt "
            f"install python{sys.version_info[0]}.{sys.version_info[1]}-venv`), then run the same command again."
        )
    say("\n".join(text.splitlines()[-12:]))
    raise Stop(f"{base} could not make {venv.folder}; {AGAIN}")
