"""Lessons that count bytes, where cuBLAS keeps its workspaces: up to PyTorch 2.14, and 65 MiB of them on an H200.

TORCH_CUBLAS_WORKSPACE_CACHE=1 has later releases keep them too, and the virtual GPU does as PyTorch does. What is in a
sentence of the lesson (three tensors, twice a graph, room below a limit) must hold with them as without.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here

ROOT = Path(__file__).resolve().parent.parent
CELL = re.compile(r"^# %% (?P<name>[\w-]+)(?! \[markdown\])[^\n]*\n(?P<code>.*?)(?=^# %%|\Z)", re.S | re.M)


def printed(source, *names, after=""):
    """What these cells of a source print on a virtual H200, and the code `after` them."""
    text = (ROOT / "lessons" / source).read_text(encoding="utf-8")
    cells = {cell["name"]: cell["code"] for cell in CELL.finditer(text)}
    kept = "import os; os.environ['TORCH_CUBLAS_WORKSPACE_CACHE'] = '1'"  # which a Python that has torch has not read
    command = [*python_here(), "-c", "\n".join([kept, *(cells[name] for name in names), after])]
    env = os.environ | {"GPULAB_GPU": "virtual:H200"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def out_of_memory():
    names = "setup", "question-code", "question-predict", "question-run", "tried-predict", "tried-run", "message-run"
    after = "with gpulab.memory.limit(128):\n    attempt(2_000)\nprint('batch 2,000 fits')"
    return printed("05_out_of_memory/lecture.py", *names, "leaks-predict", "leaks-run", "leaks-row", after=after)


def test_a_batch_fits_alone_and_none_after_a_failed_one(out_of_memory):
    assert "virtual: 17 (no prediction" in out_of_memory
    assert "batch 2,000 fits" in out_of_memory


def test_what_a_segment_a_loss_and_a_row_take(out_of_memory):
    for value in ("20 MiB", "512 bytes", "786,432 bytes"):
        assert f"virtual: {value} (no prediction" in out_of_memory


def test_the_peak_of_a_step_has_three_tensors_of_the_logits_size():
    names = "setup", "gpt", "buckets-predict", "buckets-count", "buckets-run", "peak-predict", "peak-run"
    found = re.search(r"([\d.]+) times the logits", printed("04_memory/lecture.py", *names))
    assert 3 < float(found[1]) < 3.2


def test_the_batch_search_of_an_exercise_has_a_gpu_that_is_large_enough():
    found = printed("05_out_of_memory/exercises.py", "setup", "largest_batch", "search-try")
    assert int(re.search(r"in 128 MiB: batch ([\d,]+)", found)[1].replace(",", "")) > 1000


def test_a_model_that_steps_in_backward_can_go():
    """C++ holds the hook, and so all that the hook refers to."""
    after = """
import gc, weakref
block = Block(32, 4)
for parameter in block.parameters():
    parameter.optimizer = torch.optim.AdamW([parameter])
    parameter.register_post_accumulate_grad_hook(step_and_free)
block(torch.randn(1, 4, 32)).sum().backward()
seen = weakref.ref(parameter)
del block, parameter
gc.collect()
print("gone:", seen() is None)
"""
    assert "gone: True" in printed(
        "06_less_memory/lecture.py", "setup", "imports", "model", "backward-run", after=after
    )
