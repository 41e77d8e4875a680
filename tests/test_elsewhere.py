"""Cells of lectures as another machine runs them: one that has a GPU, or an older PyTorch.

The virtual GPU plays the real one, which `without_gpu` does not take away.
"""

import contextlib
import types
import warnings
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import gpulab

LESSONS = Path(__file__).resolve().parent.parent / "lessons"
WITH_A_GPU = types.SimpleNamespace(without_gpu=contextlib.nullcontext)


def cells(lecture):
    """The code of a lecture's cells by name, in order."""
    parts = (LESSONS / lecture / "lecture.py").read_text(encoding="utf-8").split("\n# %% ")[1:]
    named = (part.partition("\n") for part in parts)
    return {head.split()[0]: code for head, _, code in named if "[markdown]" not in head}


def test_the_gpu_s_activity_alone_is_recorded_where_there_is_one(gpu, capsys):
    names = {"gpulab": WITH_A_GPU, "torch": torch, "warnings": warnings}
    exec(cells("10_profiling")["mistake-cuda-only"], names | {"profile": profile, "ProfilerActivity": ProfilerActivity})
    assert capsys.readouterr().out.startswith("with this GPU: ")


def test_bytes_a_parameter_are_those_of_the_formula_where_workspaces_stay(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")  # as PyTorch up to 2.14 has it
    code, names = cells("13_sharding"), {"torch": torch, "gpulab": gpulab}
    for name in ("imports", "model", "question-ways", "question-build", "held-run"):
        exec(code[name], names)
    for wrap, formula in (("ddp", 4 + 4 + 8), ("by_block", (4 + 4 + 8) / 8)):
        assert round(names["held"](names[wrap])) == formula  # as the lecture prints it
