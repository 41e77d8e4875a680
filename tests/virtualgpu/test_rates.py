"""Rates: published ones within what the vendor says, recorded ones recovered from a recording that was made of them."""

import dataclasses
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualgpu.clock import rates
from virtualgpu.gpus.specs import SPECS, spec

every = pytest.mark.parametrize("name", SPECS)


@every
def test_nothing_is_faster_than_its_peak(name):
    gpu, reached = spec(name), rates.rates_of(name)
    for dtype, value in reached.tflops.items():
        peak = gpu.tflops.get(dtype) or gpu.tflops["fp32"]
        above = 1.12 if "RTX" in name or name in ("A10G", "L4", "L40S") else 1  # boards that clock above their boost
        assert 0 < value <= above * peak, dtype
    assert 0.5 * gpu.bandwidth_gbps < reached.memory_gbps <= gpu.bandwidth_gbps
    if gpu.host_link is not None:
        assert reached.pageable_gbps < reached.pinned_gbps <= gpu.host_link.one_way_gbps


@every
def test_a_precision_without_hardware_runs_at_the_rate_of_ordinary_lanes(name):
    gpu, reached = spec(name), rates.rates_of(name)
    for dtype in ("tf32", "bf16"):
        if not gpu.has(dtype):
            assert reached.tflops[dtype] == reached.tflops["fp32"]


def test_published_figures():
    assert rates.rates_of("T4").tflops["fp16"] == pytest.approx(49.4)  # cuBLAS on a T4
    assert rates.rates_of("T4").memory_gbps == pytest.approx(220)  # arXiv 1903.07486
    assert rates.rates_of("T4").pinned_gbps == pytest.approx(12)  # PCIe 3 x16
    assert rates.rates_of("A100-80").tflops["bf16"] == pytest.approx(271.2, rel=1e-3)  # stas00/ml-engineering
    assert rates.published_rates(spec("H100")).tflops["bf16"] == pytest.approx(794.5, rel=1e-3)
    assert rates.rates_of("B200").tflops["bf16"] == pytest.approx(1745, rel=1e-3)
    assert rates.published_rates(spec("H200")).memory_gbps == pytest.approx(0.87 * 4800)
    assert [name for name in SPECS if rates.rates_of(name).source != "published rates"] == ["H100", "H200"]


@given(st.floats(1e-6, 1e-3), st.floats(1e-12, 1e-9), st.lists(st.integers(1, 30), min_size=2, max_size=9, unique=True))
def test_a_line_is_recovered(at_zero, slope, powers):
    found = rates.relative_fit([(2**p, at_zero + slope * 2**p) for p in powers])
    assert found[1] == pytest.approx(slope, rel=1e-5, abs=1e-18)
    assert found[0] == pytest.approx(at_zero, rel=1e-5, abs=1e-12)


def test_a_line_needs_two_points():
    with pytest.raises(ValueError, match="there are 1 points; a line needs two"):
        rates.relative_fit([(1.0, 1.0)])


RECORDING = {
    "kind": "measured on a real GPU",
    "device": {"name": "Tesla T4"},
    "copies": [
        {
            "bytes": n, "h2d_pinned": 0.01 + n / 11e6, "d2h_pinned": 0.01 + n / 13e6, "h2d_pageable": 0.02 + n / 5e6,
            "d2h_pageable": 0.02 + n / 5e6, "d2d": 0.003 + 2 * n / 230e6, "pin_ms": n / 3e6,
        }
        for n in (1 << 20, 1 << 24, 1 << 28)
    ],
    "host": {
        "processor": "Intel(R) Xeon(R) CPU @ 2.20GHz", "cores": 2, "add_us": 6.0, "matmul_us": 7.0,
        "matmul_grad_us": 10.0, "linear_no_grad_us": 16.0, "cast_fp16_us": 8.0, "event_record_us": 9.0,
        "forward_50_us": 1000.0, "forward_backward_50_us": 4000.0, "AdamW_foreach_100_us": 2400.0,
    },
    "first_calls": {
        "matmul_fp32_first_s": 0.09, "matmul_fp32_second_s": 0.01, "convolution_first_s": 0.5,
        "convolution_second_s": 0.02,
    },
    "touched": [{"bytes_each": 1 << 19, "pairs": 1, "bytes_between": 1 << 20, "ms": 0.002 + 2**20 / 1.3e9}],
    "matmul": {
        "launch_us": 3.5, "launch_host_us": 3.4,
        "matmul": [
            {"n": 1024, "fp32_tflops": 5.0, "fp16_tflops": 20.0}, {"n": 8192, "fp32_tflops": 4.2, "fp16_tflops": 25.0},
        ],
    },
}  # fmt: skip


def test_a_recording_gives_the_rates_it_was_made_of():
    found = rates.recorded_rates(spec("T4"), RECORDING)
    assert found.source == "recorded on Tesla T4"
    assert found.pinned_gbps == pytest.approx(12, rel=1e-6)
    assert found.pageable_gbps == pytest.approx(5, rel=1e-6)
    assert found.memory_gbps == pytest.approx(230, rel=1e-6)
    assert found.copy_us == pytest.approx(10, rel=1e-4)
    assert found.pin_gbps == pytest.approx(3)
    assert dict(found.first_ms) == pytest.approx({"cublas": 80, "cudnn": 480})
    assert found.l2_gbps == pytest.approx(1300)
    host = found.host
    assert (host.launch_us, host.operation_us, host.layer_us, host.recorded_us) == (3.0, 3.0, 9.0, 3.0)
    assert (host.backward_us, host.cast_us, host.tensor_us, host.event_us) == (9.0, 5.0, 2.0, 9.0)
    assert host.source == "recorded on the host of Tesla T4"
    assert dict(found.tflops) == {**rates.published_rates(spec("T4")).tflops, "fp32": 5.0, "fp16": 25.0}


@pytest.mark.parametrize("section", ["copies", "matmul", "host", "first_calls", "touched"])
def test_what_a_recording_lacks_stays_as_published(section):
    found = rates.recorded_rates(spec("T4"), {**RECORDING, section: {"error": "out of time"}})
    published = rates.published_rates(spec("T4"))
    unchanged = {
        "copies": "pinned_gbps memory_gbps", "matmul": "tflops", "host": "host", "first_calls": "first_ms",
        "touched": "l2_gbps",
    }[section]  # fmt: skip
    for field in unchanged.split():
        assert getattr(found, field) == getattr(published, field)


def test_a_library_whose_first_call_was_not_recorded_takes_what_is_published():
    calls = {name: s for name, s in RECORDING["first_calls"].items() if name.startswith("matmul")}
    found = rates.recorded_rates(spec("T4"), {**RECORDING, "first_calls": calls})
    assert found.first_ms["cublas"] == pytest.approx(80)
    assert found.first_ms["cudnn"] == rates.published_rates(spec("T4")).first_ms["cudnn"]


def test_a_recording_of_that_gpu_is_taken_and_one_without_a_gpu_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "RECORDINGS", tmp_path)
    rates.rates_of.cache_clear()
    try:
        (tmp_path / "no-gpu-as-T4.json").write_text(json.dumps(RECORDING))
        assert rates.rates_of("T4").source == "published rates"
        rates.rates_of.cache_clear()
        (tmp_path / "Tesla-T4.json").write_text(json.dumps(RECORDING))
        found = rates.rates_of("T4")
        assert found.source == "recorded on Tesla T4"
        assert found.tflops["fp16"] == 25.0
        assert found.pinned_gbps == pytest.approx(12, rel=1e-6)
        # The machine's part is not every T4's.
        server = rates.published_rates(spec("T4"))
        for field in ["host", "pageable_gbps", "copy_us", "pin_gbps", "first_ms"]:
            assert getattr(found, field) == getattr(server, field)
        assert rates.rates_of("L4").source == "published rates"
    finally:
        rates.rates_of.cache_clear()


T4 = rates.rates_of("T4")
sizes = st.integers(1, 5000)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_a_product_takes_no_less_than_its_arithmetic_at_the_full_rate(rows, columns, depth, count):
    seconds = T4.product_seconds(rows, columns, depth, count, "fp16")
    assert seconds >= 2 * rows * columns * depth * count / (T4.tflops["fp16"] * 1e12) * (1 - 1e-9)
    assert math.isfinite(seconds)


@given(sizes, sizes, sizes)
def test_a_product_and_its_transpose_take_the_same_time_and_a_larger_one_no_less(rows, columns, depth):
    seconds = T4.product_seconds(rows, columns, depth, 1, "fp32")
    assert seconds == T4.product_seconds(columns, rows, depth, 1, "fp32")
    assert T4.product_seconds(rows + 128, columns, depth, 1, "fp32") >= seconds * (1 - 1e-9)


def test_large_products_reach_the_full_rate():
    full = 2 * 8192**3 / (T4.tflops["fp16"] * 1e12)
    assert T4.product_seconds(8192, 8192, 8192, 1, "fp16") == pytest.approx(full, rel=0.05)


# 10¹² operations a second of square products in fp16 by `torch.mm`: zzc0721/torch-performance-test-data. Boards that
# meet their power limit are left out.
SIZES = (1024, 2048, 4096, 8192, 10240)
MEASURED = {
    "RTX3060": (16.8, 23.1, 24.1, 24.8, 24.8),
    "RTX4090": (106, 159, 168, 156, 157),
    "RTX5090": (139, 174, 218, 224, 220),
    "V100-16": (57, 78, 96, 97, 89),
}


@pytest.mark.parametrize("name", MEASURED)
def test_products_of_all_sizes_take_about_what_was_measured(name):
    reached = rates.rates_of(name)
    ratios = []
    for n, measured in zip(SIZES, MEASURED[name], strict=True):
        seconds = max(reached.product_seconds(n, n, n, 1, "fp16"), reached.memory_seconds(6 * n * n)) + reached.kernel_s
        ratios.append(2 * n**3 / seconds / 1e12 / measured)
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.15
    assert max(abs(ratio - 1) for ratio in ratios) < 0.5


def test_operands_whose_rows_begin_anywhere_are_slower():
    by_alignment = [T4.product_seconds(4096, 4096, 4096, 1, "fp16", aligned) for aligned in (16, 8, 4, 2)]
    assert by_alignment == sorted(by_alignment)
    assert len(set(by_alignment)) == 4
    assert len({T4.product_seconds(4096, 4096, 4096, 1, "fp32", aligned) for aligned in (16, 8, 4, 2)}) == 1


def test_the_same_arithmetic_is_slower_where_it_is_short():
    a100 = rates.rates_of("A100-80")
    deep = a100.product_seconds(8192, 1024, 4096, 1, "bf16")
    short = a100.product_seconds(8192, 16384, 256, 1, "bf16")
    assert short > 1.3 * deep


def test_rates_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        T4.launch_us = 1.0
