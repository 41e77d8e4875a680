"""What PyTorch answers on a GPU, and the virtual GPU too: torch.cuda, torch.accelerator, tensors and storages.

surface_answers.json was recorded from PyTorch's own CUDA code, see surface_record.py.
"""

import json
import re

import pytest
import torch

from .surface_record import FILE, evaluate
from .surface_scope import scope

RECORDED = json.loads(FILE.read_text())


def known(expression):
    """Whether this PyTorch has the functions: the recording may be of a newer one."""
    modules = {"torch": torch, "torch.cuda": torch.cuda, "torch.accelerator": torch.accelerator}
    named = re.findall(r"\b(torch(?:\.cuda|\.accelerator)?)\.(\w+)", expression)
    return all(hasattr(modules[module], name) for module, name in named)


ROWS = [(count, *row) for count, rows in RECORDED["gpus"].items() for row in rows if known(row[0])]
# What shows or compares values, which on shapes alone are not there.
OF_VALUES = re.compile(
    r"(str|repr|float|int|complex)\(|bool\(torch.zeros\(1|f\"|torch.tensor\(\[torch"
    r"|.*(zeros\(1\).cuda\(\).item|\.tolist\(|\(\)\[0\]$)"
)


pytestmark = pytest.mark.virtual_gpu_stays


@pytest.fixture(scope="module", params=[True, False], ids=["values", "shapes"])
def in_order(request, tmp_path_factory):
    """One scope for the rows of each number of GPUs: some change what later ones answer."""
    open_scopes = {}
    place = pytest.MonkeyPatch()
    place.chdir(tmp_path_factory.mktemp("surface"))

    def enter(count):
        if count not in open_scopes:
            for gpu in open_scopes.values():
                gpu.stop()
            open_scopes[count] = scope(count=int(count), compute=request.param).start()

    yield request.param, enter
    for gpu in open_scopes.values():
        gpu.stop()
    place.undo()


@pytest.mark.parametrize(
    ("count", "expression", "answer"), ROWS, ids=[f"{count}-{i}" for i, (count, *_) in enumerate(ROWS)]
)
def test_the_answer_is_that_of_a_gpu(in_order, count, expression, answer):
    values, enter = in_order
    enter(count)
    assert (evaluate(expression) == answer) == (values or not OF_VALUES.match(expression)), expression


def test_the_recording_covers_both_numbers_of_gpus():
    assert {count: len(rows) > 50 for count, rows in RECORDED["gpus"].items()} == {"1": True, "2": True}
