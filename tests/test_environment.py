"""One list of dependencies: constraints.txt and environment.yml must agree with pyproject.toml.

conda cannot be run here: its file is read, and its pip part is installed for real.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text())
# torch's own pins, different for each build of it and absent from most
TORCH_BRINGS = re.compile(r"^(cuda-.*|triton|nvidia-(?!ml-py$).*)$")


def lines() -> list[Requirement]:
    text = (ROOT / "constraints.txt").read_text()
    return [Requirement(line) for line in text.splitlines() if not line.startswith("#")]


def constraints(python: str = platform.python_version()) -> dict[str, str]:
    """The tested versions by name, for a version of Python."""
    where = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    return {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==")
        for line in lines()
        if line.marker is None or line.marker.evaluate(where)
    }


def required() -> list[Requirement]:
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(line) for lines in lists for line in lines]


def installed() -> dict[str, importlib.metadata.Distribution]:
    # Of this environment's folders: setuptools may have put copies of its own beside them.
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {canonicalize_name(found.name): found for found in importlib.metadata.distributions(path=folders)}


def conda_parts() -> tuple[list[str], list[str]]:
    """What environment.yml takes from conda, and the lines that it gives to pip."""
    from_conda = [entry for entry in CONDA["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict)]
    return from_conda, pip


class TestConstraints:
    @pytest.mark.parametrize("requirement", required(), ids=str)
    def test_each_requirement_has_a_tested_version_that_satisfies_it(self, requirement: Requirement) -> None:
        pin = constraints()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} does not allow the tested {pin}"

    def test_names_exact_versions_of_one_package_a_line_in_order(self) -> None:
        names = []
        for requirement in lines():
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            assert not Version(specifier.version).local, "a local version exists on one index only"
            names.append(requirement.name.lower())
        assert names == sorted(names)
        for python in ("3.11.0", "3.11.2", "3.11.5", "3.12.0", "3.14.1"):  # one version of each, on any
            assert constraints(python).keys() == set(map(canonicalize_name, names))
        assert len(names) - len(set(names)) == sum(line.marker is not None for line in lines()) / 2

    def test_the_oldest_python_that_is_promised_can_have_what_is_tested(self) -> None:
        """Debian 12 has Python 3.11.2: a version that wants a later one needs a second line for the earlier."""
        oldest = Version(PROJECT["requires-python"].removeprefix(">=") + ".0")
        here, pins = installed(), constraints(f"{oldest}")
        too_new = [
            name
            for name, pin in pins.items()
            if name in here and Version(here[name].version).public == pin
            if oldest not in SpecifierSet(here[name].metadata.get("Requires-Python") or "")
        ]
        assert too_new == []

    def test_does_not_pin_what_only_some_builds_of_torch_have(self) -> None:
        assert [name for name in constraints() if TORCH_BRINGS.match(name)] == []

    def test_is_the_set_that_is_installed_here(self) -> None:
        here = installed()
        different = {
            name: f"tested {pin}, here {here[name].version}"
            for name, pin in constraints().items()
            if name in here and Version(here[name].version).public != pin
        }
        assert different == {}

    def test_covers_everything_that_the_package_brings(self) -> None:
        here, pins = installed(), constraints()
        seen: set[tuple[str, str]] = set()
        todo = [(requirement, "") for requirement in required()]
        while todo:
            requirement, extra = todo.pop()
            name = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if not wanted or TORCH_BRINGS.match(name):
                continue
            assert name in pins, f"{name} is needed here and has no tested version"
            for of in {"", *requirement.extras}:
                if (name, of) not in seen:
                    seen.add((name, of))
                    todo += [(Requirement(line), of) for line in here[name].requires or []]
        assert len(seen) > len(required())


class TestEnvironmentYml:
    def test_takes_python_and_pip_from_conda_and_nothing_else(self) -> None:
        assert set(CONDA) == {"name", "channels", "dependencies"}
        assert CONDA["name"] == PROJECT["name"]
        assert CONDA["channels"] == ["conda-forge"]
        from_conda, _ = conda_parts()
        assert [entry.split()[0] for entry in from_conda] == ["python", "pip"]

    def test_its_python_is_one_that_the_package_allows(self) -> None:
        conda_python = SpecifierSet(conda_parts()[0][0].removeprefix("python").strip())
        package = SpecifierSet(PROJECT["requires-python"])
        minors = [f"3.{minor}.1" for minor in range(6, 30)]
        chosen = list(conda_python.filter(minors))
        assert chosen
        assert set(chosen) <= set(package.filter(minors))
        assert min(chosen, key=Version) == min(package.filter(minors), key=Version)

    def test_gives_pip_the_package_with_every_extra_and_the_tested_versions(self) -> None:
        _, pip = conda_parts()
        assert pip[0] == "-c constraints.txt"
        assert len(pip) == 2
        package = re.fullmatch(r"-e \.\[([a-z,]+)\]", pip[1])
        assert package
        assert set(package[1].split(",")) == set(PROJECT["optional-dependencies"])

    @pytest.mark.slow
    def test_its_pip_part_installs_the_package_as_conda_would_run_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PYTHONPATH", raising=False)  # it may name this checkout
        course = tmp_path / "course"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for package in ("gpulab", "virtualgpu", "lessons"):
            shutil.copytree(ROOT / package, course / package, ignore=ignored)
        for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "LICENSE-TEXT"):
            shutil.copy(ROOT / name, course)
        # conda writes the pip lines into a file beside environment.yml and runs pip there.
        (course / "condaenv.requirements.txt").write_text("\n".join(conda_parts()[1]))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
        python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = subprocess.check_output([python, "-c", where], text=True)
        # What is installed here counts as installed there, so that nothing is downloaded.
        Path(packages.strip(), "outer.pth").write_text(str(Path(pytest.__file__).parents[1]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_BUILD_ISOLATION": "0"}
        command = [python, "-m", "pip", "install", "-U", "-r", "condaenv.requirements.txt", "--exists-action=b"]
        done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        probe = "import gpulab, jupyterlab, pytest; print(gpulab.__file__)"
        where = subprocess.check_output([python, "-c", probe], cwd=tmp_path, text=True)
        assert Path(where.strip()) == course / "gpulab" / "__init__.py"
        command = [python, "-m", "gpulab", "--version"]
        assert subprocess.check_output(command, cwd=tmp_path, text=True).startswith("gpulab ")
