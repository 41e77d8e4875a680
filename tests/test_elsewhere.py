"""Cells of lectures as another machine runs them: one that has a GPU, or an older PyTorch.

The virtual GPU plays the real one, which `without_gpu` does not take away.
"""

import os
from pathlib import Path

LESSONS = Path(__file__).resolve().parent.parent / "lessons"


def cells(lecture):
    """The code of a lecture's cells by name, in order."""
    parts = (LESSONS / lecture / "lecture.py").read_text(encoding="utf-8").split("\n# %% ")[1:]
    named = (part.partition("\n") for part in parts)
    return {head.split()[0]: code for head, _, code in named if "[markdown]" not in head}


def test_bytes_a_parameter_are_those_of_the_formula_where_workspaces_stay(monkeypatch, capsys):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")  # as PyTorch up to 2.14 has it
    monkeypatch.chdir(start := os.getcwd())  # and back, since the lecture goes into a folder of its own
    code, names = cells("13_sharding"), {}
    before = list(code)[: list(code).index("seen-run") + 1]
    for name in before:
        if "gpulab.VirtualGPU" not in code[name] or name == "seen-run":
            exec(code[name], names)
    os.chdir(start)
    after, _, _ = names["seen"]("fsdp", 64)
    assert round(after, 2) == names["zero"](3, 64, 4, 4, 8) == 0.25
    names["folder"].cleanup()
    names["gpu"].close()
