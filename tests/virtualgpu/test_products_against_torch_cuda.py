"""Products of matrices on the virtual GPU against PyTorch's own CUDA code, which torch_cuda/ has run on a stand-in.

Every allocation and free in order: results, clones of what cuBLAS cannot take, workspaces, autocast's casts.
"""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

from gpulab import VirtualGPU

HERE = Path(__file__).parent / "torch_cuda"
NAMES = {"7.5": "T4", "8.0": "A100-80", "9.0": "H200"}
MODES = ["fp32", "fp16", "bf16", "fp64", "c64", "autocast_fp16", "autocast_bf16"]
ROWS = json.loads((HERE / "products.json").read_text())["rows"]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))

recorded = pytest.mark.skipif(
    TORCH < (2, 15), reason=f"recorded with torch 2.15; what {torch.__version__} takes differs in places"
)


@pytest.fixture(scope="module")
def recorder():
    """The module that ran PyTorch's CUDA code; here it runs on the virtual GPU."""
    sys.path.insert(0, str(HERE))
    try:
        import record_products

        yield record_products
    finally:
        sys.path.remove(str(HERE))


def differences(recorder, capability, mode, compute, every=1):
    """case -> (recorded, here), of every so manieth row; and the number of rows that were compared."""
    dtype, autocast = recorder.MODES[mode]
    table = recorder.product_cases.cases(dtype)
    rows = [row for row in ROWS if capability in row["capability"] and mode in row["mode"]][::every]
    found = {}
    with VirtualGPU(NAMES[capability], compute=compute), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = recorder.Engine()
        for row in rows:
            theirs = {key: row[key] for key in ("forward", "backward", "strides") if key in row}
            mine = recorder.record(engine, *table[row["case"]], autocast, warm_up=False)
            if mine != theirs:
                found[row["case"]] = theirs, mine
    return found, len(rows)


@recorded
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capability", NAMES)
def test_products_allocate_what_they_do_on_cuda(recorder, capability, mode):
    if capability == "7.5" and "bf16" in mode:
        pytest.skip("not recorded: bf16 begins with 8.0")
    found, compared = differences(recorder, capability, mode, compute=False)
    assert found == {}
    assert compared == len(recorder.product_cases.cases(recorder.MODES[mode][0]))


@recorded
@pytest.mark.parametrize("mode", ["fp32", "c64", "autocast_fp16"])
def test_they_do_where_values_are_computed(recorder, mode):
    found, compared = differences(recorder, "8.0", mode, compute=True, every=5)
    assert found == {}
    assert compared > 10


def test_the_clone_of_an_expanded_gradient_counts_for_the_peak():
    """By hand: the gradient of a sum is one number, expanded; each of the two products clones it."""
    with VirtualGPU("A100-80", compute=False):
        a, b = (torch.ones(1024, 1024, device="cuda", requires_grad=True) for _ in range(2))
        out = torch.mm(a, b)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.sum().backward()
        peak = torch.cuda.max_memory_allocated() - before
    matrix, workspace = 1024 * 1024 * 4, (8 << 20) + (128 << 10)
    assert peak >= 3 * matrix + workspace  # two gradients and the clone


def test_a_bias_is_added_in_place_where_rows_do_not_follow_one_another():
    with VirtualGPU("A100-80", compute=False):
        x = torch.ones(64, 8, 512, device="cuda").transpose(0, 1)
        layer = torch.nn.Linear(512, 2048, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            y = layer(x)
        peak = torch.cuda.max_memory_allocated() - before
    assert peak < 2 * y.nbytes + (9 << 20)
