"""The course's virtual environment: where its parts are, whether its Python runs, what it was set up with.

Reads and describes only; `installing` makes it and fills it.
"""

import hashlib
import json
import os
import subprocess
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from .terminal import Stop

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stamp:
    """What a set-up has put into `.venv`; `fingerprint` is empty until it has finished."""

    torch: str = ""  # the index that torch came from: "" for the ordinary one, "cpu", "cu126", …
    extras: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True)
class Venv:
    """The environment in `.venv` of the course folder `root`."""

    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / ".venv"

    @property
    def scripts(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.scripts / ("python.exe" if os.name == "nt" else "python")

    @property
    def uv(self) -> Path:
        return self.scripts / ("uv.exe" if os.name == "nt" else "uv")

    @property
    def stamp_file(self) -> Path:
        return self.folder / "gpulab-setup.json"

    def site_packages(self) -> Path | None:
        """The folder of the installed packages, None where there is none yet."""
        pattern = "Lib/site-packages" if os.name == "nt" else "lib/python3*/site-packages"
        return next(iter(self.folder.glob(pattern)), None)

    def has(self, package: str) -> bool:
        """True where a folder of that name is among the installed packages."""
        site_packages = self.site_packages()
        return site_packages is not None and (site_packages / package).is_dir()

    def version(self) -> str | None:
        """ "3.12" where the environment's Python runs and is the one it was made with, else None."""
        try:
            answer = subprocess.run(
                [self.python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            made_with = (self.folder / "pyvenv.cfg").read_text(encoding="utf-8")
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = answer.stdout.strip()
        # A system upgrade can put another Python behind the link; the packages are then out of its sight.
        agrees = any(line.replace(" ", "").startswith(f"version={version}.") for line in made_with.splitlines())
        return version if answer.returncode == 0 and agrees else None

    def stamp(self) -> Stamp | None:
        """What the last set-up left, None where there was none or the file is damaged."""
        try:
            fields = json.loads(self.stamp_file.read_text(encoding="utf-8"))
            return Stamp(fields["torch"], tuple(fields["extras"]), fields["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_stamp(self, stamp: Stamp) -> None:
        beside = self.stamp_file.with_suffix(".new")
        beside.write_text(json.dumps(asdict(stamp)), encoding="utf-8")
        os.replace(beside, self.stamp_file)

    def fingerprint(self, version: str) -> str:
        """Changes with the requirements, the tested versions, the Python and the place of the folder."""
        try:
            project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
            constraints = (self.root / "constraints.txt").read_text(encoding="utf-8")
        except OSError as error:
            raise Stop(f"{error.filename} cannot be read: get the whole course folder again.") from error
        required = [project["build-system"], project["project"], project["tool"]["hatch"]]
        parts = [json.dumps(required, sort_keys=True), constraints, version, str(self.root)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def is_ready(self, extras: frozenset[str], torch: str | None) -> bool:
        """True where nothing is left to install; `torch` None takes whichever build is there."""
        stamp = self.stamp()
        if stamp is None or not extras.issubset(stamp.extras) or torch not in (None, stamp.torch):
            return False
        version = self.version()
        return version is not None and stamp.fingerprint == self.fingerprint(version)

    def environ(self) -> dict[str, str]:
        """The environment for programs run in it, as after `activate`: its Python and kernels come first.

        They keep bytecode, also where the environment says otherwise: uv installs none, and each process that trains
        would compile torch and its compiler anew, in five seconds of the processor.
        """
        unset = ("PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if name not in unset}
        environ["VIRTUAL_ENV"] = str(self.folder)
        environ["PATH"] = os.pathsep.join([str(self.scripts), environ.get("PATH", os.defpath)])
        jupyter = [str(self.folder / "share" / "jupyter"), environ.get("JUPYTER_PATH", "")]
        environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, jupyter))
        return environ
