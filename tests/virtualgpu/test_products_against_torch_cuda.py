"""Products of matrices on the virtual GPU against PyTorch's own CUDA code, which torch_cuda/ has run on a stand-in.

Every allocation and free in order: results, clones of what cuBLAS cannot take, workspaces, autocast's casts.
"""

import warnings

import pytest
import torch

from gpulab import VirtualGPU

from .recorded import GPUS, of_this_torch, recorder, rows

MODES = ["fp32", "fp16", "bf16", "fp64", "c64", "autocast_fp16", "autocast_bf16"]
ROWS = rows("products")


def differences(capability, mode, compute, every=1):
    """case -> (recorded, here), of every so manieth row; and the numbers of rows that were compared and of cases."""
    record_products = recorder("record_products")
    dtype, autocast = record_products.MODES[mode]
    table = record_products.product_cases.cases(dtype)
    compared = [row for row in ROWS if capability in row["capability"] and mode in row["mode"]][::every]
    found = {}
    with VirtualGPU(GPUS[capability], compute=compute), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = record_products.Engine()
        for row in compared:
            theirs = {key: row[key] for key in ("forward", "backward", "strides") if key in row}
            mine = record_products.record(engine, *table[row["case"]], autocast, warm_up=False)
            if mine != theirs:
                found[row["case"]] = theirs, mine
    return found, len(compared), len(table)


@of_this_torch
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capability", GPUS)
def test_products_allocate_what_they_do_on_cuda(capability, mode):
    if capability == "7.5" and "bf16" in mode:
        pytest.skip("not recorded: bf16 begins with 8.0")
    found, compared, cases = differences(capability, mode, compute=False)
    assert found == {}
    assert compared == cases


@of_this_torch
@pytest.mark.parametrize("mode", ["fp32", "c64", "autocast_fp16"])
def test_they_do_where_values_are_computed(mode):
    found, compared, _ = differences("8.0", mode, compute=True, every=5)
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
