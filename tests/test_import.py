"""What `import gpulab` costs and offers, seen from a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import gpulab

HEAVY = ("torch", "torchvision", "numpy", "matplotlib", "ipywidgets", "IPython", "anywidget", "pynvml", "psutil")


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run(f"import sys, gpulab; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_setup_loads_torch_and_no_drawing_or_vision_library() -> None:
    code = f"import sys, gpulab; gpulab.setup(); print([m for m in {HEAVY} if m in sys.modules])"
    loaded = run(code, GPULAB_GPU="virtual:T4").splitlines()[-1]
    assert "'torch'" in loaded
    for name in ("torchvision", "matplotlib", "ipywidgets", "IPython", "anywidget"):
        assert f"'{name}'" not in loaded


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(AttributeError, match=r"'gpulab' has no attribute 'setpu'; it has: .*doctor.*setup"):
        _ = gpulab.setpu


def test_dir_lists_the_public_names() -> None:
    assert set(dir(gpulab)) == set(gpulab.__all__)
    assert {"setup", "doctor", "progress", "predict", "quiz", "check", "sim", "style", "data"} <= set(dir(gpulab))


@pytest.mark.parametrize("name", gpulab.__all__)
def test_each_public_name_resolves(name: str) -> None:
    assert getattr(gpulab, name) is not None


@pytest.mark.parametrize("name", ["setup", "doctor", "progress", "predict", "quiz"])
def test_each_public_verb_can_be_called_in_a_fresh_interpreter(name: str) -> None:
    code = f"import gpulab; gpulab.setup; gpulab.doctor; print(callable(gpulab.{name}))"
    assert run(code).strip() == "True"


def test_every_export_is_public_and_every_public_name_is_exported() -> None:
    assert set(gpulab._HOMES) < set(gpulab.__all__)
