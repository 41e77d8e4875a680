"""Cells of lectures as another machine runs them: one with an older PyTorch."""

from pathlib import Path

import torch

import gpulab

LESSONS = Path(__file__).resolve().parent.parent / "lessons"


def cells(lecture):
    """The code of a lecture's cells by name, in order."""
    parts = (LESSONS / lecture / "lecture.py").read_text(encoding="utf-8").split("\n# %% ")[1:]
    named = (part.partition("\n") for part in parts)
    return {head.split()[0]: code for head, _, code in named if "[markdown]" not in head}


def test_bytes_a_parameter_are_those_of_the_formula_where_workspaces_stay(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")  # as PyTorch up to 2.14 has it
    code, names = cells("13_sharding"), {"torch": torch, "gpulab": gpulab}
    for name in ("imports", "model", "question-ways", "question-build", "held-run"):
        exec(code[name], names)
    for wrap, formula in (("ddp", 4 + 4 + 8), ("by_block", (4 + 4 + 8) / 8)):
        assert round(names["held"](names[wrap])) == formula  # as the lecture prints it
