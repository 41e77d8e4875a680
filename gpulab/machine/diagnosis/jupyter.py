"""Reads and judges Jupyter: JupyterLab, the widgets and their front-end parts, and Google Colab.

It reads this Python's installation; a JupyterLab of another one is not seen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from .finding import Finding
from .pytorch import Torch

_PACKAGES = ("jupyterlab", "ipywidgets", "jupyterlab_widgets", "anywidget")
# front-end part -> its package
_EXTENSIONS = {"@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets", "anywidget": "anywidget"}
_INSTALL = 'Run make lab in the course folder, or there: pip install -e ".[lab]"'


@dataclass(frozen=True)
class Jupyter:
    """The versions of packages and of JupyterLab's extensions, None if missing."""

    packages: Mapping[str, str | None] = field(default_factory=dict)
    extensions: Mapping[str, str | None] = field(default_factory=dict)
    colab: bool = False


def read_jupyter() -> Jupyter:
    """Read the packages of this Python, and the extensions in JupyterLab's folders."""
    return Jupyter(
        {name: _version(name) for name in _PACKAGES},
        {name: _extension(name, _folders()) for name in _EXTENSIONS},
        "google.colab" in sys.modules or any(name.startswith("COLAB_") for name in os.environ),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _folders() -> list[Path]:
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return [Path(sys.prefix, "share", "jupyter", "labextensions")]
    return [Path(folder) for folder in jupyter_path("labextensions")]


def _extension(name: str, folders: list[Path]) -> str | None:
    for folder in folders:
        package = folder / name / "package.json"
        if package.is_file():
            return str(json.loads(package.read_text(encoding="utf-8")).get("version", "of unknown version"))
    return None


def judge_jupyterlab(jupyter: Jupyter) -> Finding:
    """Judge whether JupyterLab is installed. Its absence is a note, since there are other front ends."""
    version = jupyter.packages.get("jupyterlab")
    if version:
        return Finding("JupyterLab", "ok", version)
    if jupyter.colab:
        return Finding("JupyterLab", "ok", "not installed; Colab is the front end here")
    return Finding(
        "JupyterLab",
        "note",
        "is not installed in this Python",
        f"{_INSTALL}. If your notebooks open in VS Code or on a hub, leave it.",
    )


def judge_widgets(jupyter: Jupyter) -> Finding:
    """Judge whether widgets will show, which takes packages and front-end parts of fitting versions."""
    missing = [name for name in ("ipywidgets", "anywidget") if not jupyter.packages.get(name)]
    if missing:
        return Finding(
            "Widgets",
            "note",
            f"not installed: {', '.join(missing)}",
            f"{_INSTALL}. Without them, quizzes and simulators show as text and pictures.",
        )
    have = ", ".join(f"{name} {jupyter.packages[name]}" for name in _PACKAGES[1:] if jupyter.packages.get(name))
    if jupyter.colab or not jupyter.packages.get("jupyterlab"):
        return Finding("Widgets", "ok", have)
    absent = [name for name in _EXTENSIONS if not jupyter.extensions.get(name)]
    if absent:
        brought = " ".join(_EXTENSIONS[name] for name in absent)
        return Finding(
            "Widgets",
            "problem",
            f"{have}; JupyterLab has no front-end part {', '.join(absent)}, so sliders stay empty",
            f"Run pip install --force-reinstall {brought}, restart JupyterLab and reload the page.",
        )
    manager = jupyter.extensions["@jupyter-widgets/jupyterlab-manager"] or ""
    if _major(jupyter.packages["ipywidgets"]) >= 8 and _major(manager) < 5:
        return Finding(
            "Widgets",
            "problem",
            f"{have}; JupyterLab's widget manager {manager} is too old for ipywidgets 8",
            'Run pip install --upgrade "jupyterlab_widgets>=3", restart JupyterLab and reload the page.',
        )
    return Finding("Widgets", "ok", f"{have}, with their front-end parts")


def judge_colab(jupyter: Jupyter, torch: Torch) -> Finding | None:
    if not jupyter.colab:
        return None
    if torch.devices:
        return Finding("Colab", "ok", "this runtime has a GPU")
    return Finding(
        "Colab",
        "note",
        "this runtime has no GPU",
        "Choose Runtime → Change runtime type → T4 GPU, then run the notebook from the top; "
        "the lessons also run as it is.",
    )


def _major(version: str | None) -> int:
    head = (version or "").split(".")[0]
    return int(head) if head.isdecimal() else 0
