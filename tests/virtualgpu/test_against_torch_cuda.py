"""The virtual GPU against PyTorch's own CUDA code, which torch_cuda/ has run on a stand-in driver.

`operators.json` says for some 330 operations what they give, in which dtype autocast runs them, and every tensor that
autograd keeps; `steps.json` what whole training steps allocate and reserve. Bytes are compared exactly where the
difference is not declared below, with its reason.
"""

import json
import warnings
from functools import cache
from statistics import median

import pytest
import torch

from gpulab import VirtualGPU

from .recorded import GPUS, HERE, of_this_torch, recorder, rows

# Operations whose saved tensors differ, and why.
DIFFERENT = {
    "dropout_one": "p=1 keeps a scalar of 4 bytes on the GPU, here on the host",
    "ctc": "cuDNN's and the CPU's algorithms keep other things",
    "embedding_bag": "the CPU keeps one offset more",
    "lstm_projected": "the stand-in for cuDNN forgets the projection's weights",
    "affine_grid": "autocast reaches into it on CUDA",
    # Without a GPU cuDNN's reserve is unknown: the stand-in has none, the virtual GPU what backward cannot do without.
    **dict.fromkeys(
        ("lstm", "lstm_two_layers", "lstm_dropout", "lstm_bidirectional", "gru", "gru_two_layers", "gru_dropout", "rnn",
         "rnn_two_layers", "rnn_relu"), "cuDNN's reserve",
    ),
}  # fmt: skip
# Operations whose result depends on values, which the stand-in does not have.
BY_VALUE = {
    "nonzero", "bincount", "unique", "index_mask", "masked_select", "multi_margin", "bce", "gaussian_nll", "prod",
}  # fmt: skip
# The reference of item one: these run with values too, in every mode.
WITH_VALUES = [
    "linear", "conv3x3", "batch_norm", "layer_norm", "group_norm", "rms_norm", "relu", "gelu", "silu", "softmax",
    "dropout", "max_pool", "avg_pool", "sdpa", "sdpa_causal", "sdpa_dropout", "sdpa_bool_mask", "cross_entropy", "mse",
    "embedding", "matmul", "multihead_attention", "encoder_layer",
]  # fmt: skip


@cache
def rows_with(short):
    return json.loads((HERE / "ops.json").read_text().replace('"16"', f'"{short}"'))["rows"]


def rows_of(capability, mode):
    rows = rows_with("f16" if "fp16" in mode else "bf16")
    return [row for row in rows if capability in row["capability"] and mode in row["mode"]]


def kept(row):
    """The saved tensors that take memory: shape, dtype, bytes of the storage, whose it is."""
    return sorted((str(shape), dtype, size, owner) for shape, dtype, size, _, owner in row["saved_tensors"] if size)


def run(capability, mode, compute, only=None, warm_up=False):
    """(operation, recorded, here) for all of them; an error is a dictionary with its text."""
    record_ops = recorder("record_ops")
    dtype, autocast = record_ops.MODES[mode]
    table = record_ops.operators.operators(dtype)
    with VirtualGPU(GPUS[capability], compute=compute), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in rows_of(capability, mode):
            name = row["op"]
            if name not in table or (only is not None and name not in only):
                continue
            torch.manual_seed(0)
            try:
                mine = record_ops.record(table[name], autocast, warm_up)
            except Exception as error:
                mine = {"error": f"{type(error).__name__}: {error}"}
            yield name, row, mine


def differences(pairs):
    found = {}
    for name, theirs, mine in pairs:
        if "error" in theirs or name in BY_VALUE:
            continue
        if "error" in mine:
            found[name] = mine["error"]
        elif theirs["out"] != mine["out"]:
            found[name] = (theirs["out"], mine["out"])
        elif kept(theirs) != kept(mine):
            found[name] = (kept(theirs), kept(mine))
    return found


CASES = [(c, m) for c in GPUS for m in ("fp32", "autocast_fp16", "autocast_bf16", "fp16", "bf16")]


@of_this_torch
@pytest.mark.parametrize(("capability", "mode"), [(c, m) for c, m in CASES if not (c == "7.5" and "bf16" in m)])
def test_results_and_saved_tensors_are_those_of_cuda(capability, mode):
    found = differences(run(capability, mode, compute=False))
    assert {name: what for name, what in found.items() if name not in DIFFERENT} == {}


@of_this_torch
@pytest.mark.parametrize("mode", ["fp32", "autocast_fp16", "autocast_bf16", "fp16", "bf16"])
def test_they_are_the_same_where_values_are_computed(mode):
    pairs = list(run("8.0", mode, compute=True, only=WITH_VALUES))
    assert sorted({name for name, _, _ in pairs}) == sorted(WITH_VALUES)
    assert differences(pairs) == {}


@of_this_torch
def test_every_declared_difference_is_still_one():
    found = differences(run("8.0", "autocast_fp16", compute=False, only=DIFFERENT))
    rest = DIFFERENT.keys() - found  # with values, which takes the processor half a minute for all of them
    found |= differences(run("8.0", "fp32", compute=True, only=rest))
    assert set(found) == set(DIFFERENT)


ATTENTION = ("sdpa", "multihead", "softmax", "log_softmax", "linear", "matmul")


@of_this_torch
@pytest.mark.parametrize(("capability", "mode"), [("7.5", "fp16"), ("8.0", "fp32"), ("8.0", "autocast_fp16")])
def test_attention_allocates_what_it_does_on_cuda(capability, mode):
    """Every allocation and free, but for their order: results stand before what a kernel takes beside them."""
    names = {row["op"] for row in rows_of(capability, mode) if row["op"].startswith(ATTENTION)}
    compared = 0
    for name, theirs, mine in run(capability, mode, compute=False, only=names):
        for events in ("forward_events", "backward_events"):
            if "error" not in theirs and events in theirs:
                assert sorted(mine[events]) == sorted(theirs[events]), (name, events)
                compared += 1
    assert compared > 100


LOSSES = (
    *("mse", "huber", "smooth_l1", "bce", "bce_with_logits", "cross_entropy", "cross_entropy_sum"),
    *("cross_entropy_none", "nll", "l1", "kl_div", "gaussian_nll", "poisson_nll", "logsumexp"),
)


@of_this_torch
@pytest.mark.parametrize(("capability", "mode"), [("7.5", "fp16"), ("9.0", "fp32")])
def test_a_loss_takes_what_it_does_on_cuda(capability, mode):
    """All activations are there by then: what it takes for a moment counts for the peak of a step."""
    compared = [row for row in run(capability, mode, compute=False, only=LOSSES) if "error" not in row[1]]
    assert len(compared) > 8
    assert [(name, t["forward"], m["forward"]) for name, t, m in compared if t["forward"] != m["forward"]] == []


STEPS = [
    ("8.0", "mlp", 4096), ("8.0", "resnet18", 8), ("7.5", "mobilenet_v3_large", 64), ("8.0", "vit_b_16", 8),
    ("8.0", "convnext_tiny", 8), ("7.5", "swin_t", 8), ("8.0", "gpt2_small", 2), ("9.0", "gpt2_small_ckpt", 8),
]  # fmt: skip
ONCE = {"vit_b_16", "convnext_tiny", "gpt2_small"}  # gradients add up as those of the others; four times the work


@of_this_torch
@pytest.mark.slow
def test_peaks_of_training_steps_are_those_of_cuda():
    """Peak allocated and reserved of the first two steps and of a later one, over models and precisions."""
    record_steps = recorder("record_steps")
    recorded = [r for r in rows("steps") if r["workspaces"] == "per call" and r.get("cudnn") != "planned"]
    allocated, reserved = {}, {}
    for capability, model, batch in STEPS:
        gpu = VirtualGPU(GPUS[capability], compute=False)
        gpu.plans_convolutions = False  # the stand-in asks for no workspaces
        with gpu:
            for step in record_steps.plan():
                key = tuple(step.names.values())
                wanted = step.model.name == model and step.batch == batch and step.mode != "tf32"
                if not wanted or step.optimizer != "adamw" or (step.mode == "accum4_bf16" and model in ONCE):
                    continue
                theirs = next(
                    r for r in recorded
                    if capability in r["capability"] and r["model"] == model and r["batch"] == batch
                    and step.mode in r["mode"] and step.optimizer in r["optimizer"]
                )  # fmt: skip
                row = record_steps.record(step)
                assert row["weights"] == theirs["weights"], key
                for peak in ("peak_first_two", "peak"):
                    allocated[key, peak] = abs(row[peak][0] / theirs[peak][0] - 1)
                    reserved[key, peak] = abs(row[peak][1] / theirs[peak][1] - 1)
    assert len(allocated) > 40
    assert median(allocated.values()) <= 0.001
    assert max(allocated.values()) <= 0.01, max(allocated, key=allocated.get)
    assert median(reserved.values()) <= 0.005
