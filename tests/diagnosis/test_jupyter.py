"""Jupyter around the kernel: what is installed, which front-end parts are missing, and Colab."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpulab.machine.diagnosis import jupyter
from gpulab.machine.diagnosis.finding import Finding
from gpulab.machine.diagnosis.jupyter import Jupyter, judge_colab, judge_jupyterlab, judge_widgets
from gpulab.machine.diagnosis.pytorch import Device, Torch

MANAGER = "@jupyter-widgets/jupyterlab-manager"
WHOLE = Jupyter(
    {"jupyterlab": "4.6.6", "ipywidgets": "8.1.9", "jupyterlab_widgets": "3.0.17", "anywidget": "0.11.0"},
    {MANAGER: "5.0.15", "anywidget": "0.11.0"},
)


def without(reading: Jupyter, *packages: str, extensions: tuple[str, ...] = ()) -> Jupyter:
    return dataclasses.replace(
        reading,
        packages={**reading.packages, **dict.fromkeys(packages)},
        extensions={**reading.extensions, **dict.fromkeys(extensions)},
    )


def test_this_python_is_read_with_its_front_end_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in __import__("os").environ if name.startswith("COLAB_")]:
        monkeypatch.delenv(name)
    reading = jupyter.read_jupyter()
    assert all(reading.packages.values())
    assert all(reading.extensions.values())
    assert not reading.colab
    assert judge_widgets(reading).status == "ok"


def test_an_extension_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    for folder, version in (("b", "5.0.1"), ("c", "3.0.0")):
        package = tmp_path / folder / MANAGER / "package.json"
        package.parent.mkdir(parents=True)
        package.write_text(f'{{"version": "{version}"}}')
    assert jupyter._extension(MANAGER, [tmp_path / name for name in "abc"]) == "5.0.1"
    assert jupyter._extension("anywidget", [tmp_path / name for name in "abc"]) is None


@pytest.mark.parametrize("how", ["module", "environment"])
def test_colab_is_known_by_its_module_and_by_its_environment(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "module":
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    else:
        monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    assert jupyter.read_jupyter().colab


def test_a_missing_jupyterlab_is_a_note_with_what_to_install() -> None:
    finding = judge_jupyterlab(without(WHOLE, "jupyterlab"))
    assert finding.status == "note"
    assert 'pip install -e ".[lab]"' in finding.do
    assert judge_jupyterlab(WHOLE) == Finding("JupyterLab", "ok", "4.6.6")


def test_colab_needs_neither_jupyterlab_nor_its_extensions() -> None:
    colab = dataclasses.replace(without(WHOLE, "jupyterlab", extensions=(MANAGER, "anywidget")), colab=True)
    assert judge_jupyterlab(colab).status == "ok"
    assert judge_widgets(colab).status == "ok"


@pytest.mark.parametrize("missing", ["ipywidgets", "anywidget"])
def test_a_missing_widget_package_is_a_note(missing: str) -> None:
    finding = judge_widgets(without(WHOLE, missing))
    assert (finding.status, finding.what) == ("note", f"not installed: {missing}")


@pytest.mark.parametrize(("missing", "package"), [(MANAGER, "jupyterlab_widgets"), ("anywidget", "anywidget")])
def test_a_missing_front_end_part_is_a_problem_that_names_its_package(missing: str, package: str) -> None:
    finding = judge_widgets(without(WHOLE, extensions=(missing,)))
    assert finding.status == "problem"
    assert missing in finding.what
    assert f"--force-reinstall {package}," in finding.do


def test_without_jupyterlab_its_extensions_are_not_missed() -> None:
    reading = without(WHOLE, "jupyterlab", extensions=(MANAGER, "anywidget"))
    assert judge_widgets(reading).status == "ok"


def test_a_widget_manager_too_old_for_its_package_is_a_problem() -> None:
    reading = dataclasses.replace(WHOLE, extensions={MANAGER: "3.1.11", "anywidget": "0.11.0"})
    finding = judge_widgets(reading)
    assert finding.status == "problem"
    assert "3.1.11 is too old for ipywidgets 8" in finding.what


def test_colab_without_a_gpu_is_told_where_to_change_it() -> None:
    colab = dataclasses.replace(WHOLE, colab=True)
    finding = judge_colab(colab, Torch("2.15.0", cuda="13.2"))
    assert finding.status == "note"
    assert "Runtime → Change runtime type" in finding.do
    with_gpu = Torch("2.15.0", cuda="13.2", devices=(Device(0, "Tesla T4", (7, 5), 2**34),))
    assert judge_colab(colab, with_gpu).status == "ok"
    assert judge_colab(WHOLE, with_gpu) is None
