"""The recordings agree with themselves and with what is worked out by hand; record.py beside this makes them anew."""

import json
from itertools import accumulate
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
OPS, STEPS, ERRORS = (json.loads((HERE / f"{name}.json").read_text())["rows"] for name in ("ops", "steps", "errors"))
MiB = 1 << 20


def op(name, mode, capability="8.0"):
    (row,) = (r for r in OPS if r["op"] == name and mode in r["mode"] and capability in r["capability"])
    return row


def rounded(nbytes):
    """As the caching allocator rounds a request, up or down to a multiple of 512."""
    size = max(512, -(-abs(nbytes) // 512) * 512)
    return size if nbytes > 0 else -size


def test_a_linear_layer_keeps_its_input_and_its_weight():
    row = op("linear", "fp32")
    assert row["out"] == [[[8, 256, 2048], "f32"]]
    assert row["saved"] == 8 * 256 * 512 * 4 + 512 * 2048 * 4
    assert row["saved_own"] == 0
    assert row["forward"][0] == 8 * 256 * 2048 * 4
    assert row["gradients"] == 8 * 256 * 512 * 4 + (512 + 1) * 2048 * 4


def test_dropout_keeps_one_byte_an_element():
    assert op("dropout", "fp32")["saved"] == op("dropout", "bf16")["saved"] == 8 * 256 * 512


def test_attention_is_chosen_by_capability():
    kernels = {"7.5": "efficient", "8.0": "flash", "9.0": "cudnn"}
    for capability, kernel in kernels.items():
        assert op("sdpa", "fp16", capability)["calls"] == [f"_scaled_dot_product_{kernel}_attention(16)"]
        assert op("sdpa", "fp32", capability)["calls"] == ["_scaled_dot_product_efficient_attention(f32)"]


def test_autocast_runs_products_in_16_bits_and_norms_in_32():
    assert op("linear", "autocast_bf16")["out"][0][1] == op("conv3x3", "autocast_fp16")["out"][0][1] == "16"
    assert op("layer_norm", "autocast_bf16")["out"][0][1] == op("softmax", "autocast_fp16")["out"][0][1] == "f32"


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_delta_and_peak_follow_from_the_events(way):
    """A block of over 1 MiB may be up to 1 MiB larger than its request: the allocator does not split off less."""
    checked = 0
    for row in OPS:
        if row.get(f"{way}_events"):
            running = list(accumulate(rounded(event) for event in row[f"{way}_events"]))
            slack = MiB * sum(event > MiB for event in row[f"{way}_events"])
            assert abs(row[way][1] - max(0, *running)) <= slack, row["op"]
            assert abs(row[way][0] - running[-1]) <= slack, row["op"]
            checked += 1
    assert checked > 900


def test_what_is_kept_is_the_sum_of_the_storages():
    for row in OPS:
        storages = {
            number: (size, owner) for _, _, size, number, owner in row.get("saved_tensors", []) if owner != "cpu"
        }
        assert row.get("saved", 0) == sum(size for size, _ in storages.values()), row["op"]
        assert row.get("saved_not_input", 0) == sum(size for size, owner in storages.values() if owner != "input")


def test_every_operator_is_there_for_every_mode_and_capability():
    names = {row["op"] for row in OPS}
    assert len(names) > 300
    for capability, modes in {"7.5": 3, "8.0": 5, "9.0": 5}.items():
        cells = [(row["op"], mode) for row in OPS if capability in row["capability"] for mode in row["mode"]]
        cells = [(name, mode) for name, mode in cells if capability != "7.5" or "bf16" not in mode]
        assert len(cells) == len(set(cells)) == len(names) * modes


def test_adamw_holds_four_times_the_weights_and_its_step_one_time_more():
    (row,) = (
        r
        for r in STEPS
        if (r["model"], r["batch"], r["optimizer"], r["workspaces"]) == ("mlp", 64, "adamw", "per call")
        if "fp32" in r["mode"] and "8.0" in r["capability"] and "cudnn" not in r
    )
    assert row["marks"]["optimizer"] == 4 * row["weights"]
    assert row["steady"] == 3 * row["weights"]
    assert row["peak"][0] == 5 * row["weights"]


def test_steps_run_out_of_memory_with_pytorchs_words_or_have_their_numbers():
    for row in STEPS:
        if "error" in row:
            assert row["error"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate ")
        else:
            assert row["steady"] <= row["peak"][0] <= row["peak"][1]
            assert row["requested_peak"] <= row["peak"][0]


def test_every_wrong_line_has_an_outcome():
    lines = [line for line in (HERE / "wrong_code.txt").read_text().splitlines() if line and not line.startswith("# ")]
    assert {row["code"] for row in ERRORS} == set(lines)
    for row in ERRORS:
        assert row["ok"] or (row["type"] and row["message"])
