"""Throughput, the operations of a call, and what part of a GPU's peak they use."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpulab import timing
from virtualgpu.gpu import VirtualGPU
from virtualgpu.gpus.specs import SPECS
from virtualgpu.units import duration_ms


def taken(ms, numbers="measured", how="CUDA events"):
    return timing.Timing((ms,), how, "cuda:0", numbers)


# -- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.0004123, "412.3 ns"),
        (0.4123, "412.3 µs"),
        (0.99996, "1.000 ms"),
        (12.344, "12.34 ms"),
        (999.96, "1.000 s"),
        (75_000, "75.00 s"),
        (0, "0.000 ms"),
    ],
)
def test_durations_have_four_figures_and_a_unit_that_suits(ms, text):
    assert duration_ms(ms) == text


@given(st.floats(1e-6, 1e7))
def test_a_duration_can_be_read_back(ms):
    number, unit = duration_ms(ms).split()
    scale = {"s": 1e3, "ms": 1, "µs": 1e-3, "ns": 1e-6}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(ms, rel=6e-4)


# -- throughput ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.floats(1e-3, 1e6))
def test_throughput_is_number_by_time(items, ms):
    found = timing.throughput(items, taken(ms))
    assert found.per_second == pytest.approx(items / (ms / 1e3))
    assert found.per_second == pytest.approx(timing.throughput(items, ms / 1e3).per_second)


def test_throughput_takes_the_median_and_says_what_it_is():
    took = timing.Timing((1.0, 2.0, 30.0), "CUDA events", "cuda:0", "virtual")
    assert str(timing.throughput(32, took, "images")) == "16,000 images/s (virtual)"


def test_throughput_of_a_timer():
    with VirtualGPU("T4", compute=False):
        a = torch.randn(4096, 4096, device="cuda")
        with timing.Timer() as t:
            _ = a @ a
        found = timing.throughput(4096, t, "rows")
    assert found.per_second == pytest.approx(4096 / t.ms * 1e3)
    assert found.numbers == "virtual"


@pytest.mark.parametrize(
    ("items", "time", "error", "words"),
    [
        (0, 1.0, ValueError, "items must be a number above 0, not 0"),
        ("32", 1.0, TypeError, "items must be a number above 0, not '32'"),
        (32, 0.0, ValueError, "time must be a number above 0, not 0.0"),
        (32, float("nan"), ValueError, "time must be a number above 0"),
        (32, "1 s", TypeError, "time must be a result of timing.measure"),
        (32, True, TypeError, "time must be a result of timing.measure"),
    ],
)
def test_wrong_throughput_is_refused(items, time, error, words):
    with pytest.raises(error, match=words):
        timing.throughput(items, time)


# -- operations ------------------------------------------------------------------------------------------------------


def steps():
    """name -> a step on `device` and its operations, counted by hand; backward has two products for every one."""

    def products(device):
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        x = torch.randn(32, 64, device=device)
        return lambda: model(x)

    def backward(device):
        forward = products(device)
        return lambda: forward().sum().backward()

    def convolution(device):
        model, x = nn.Conv2d(3, 8, 3, padding=1).to(device), torch.randn(2, 3, 10, 12, device=device)
        return lambda: model(x)

    forward = 2 * 32 * (64 * 128 + 128 * 10)
    return {
        "products": (products, forward),
        "backward": (backward, 3 * forward - 2 * 32 * 64 * 128),  # x needs no gradient
        "convolution": (convolution, 2 * 2 * 10 * 12 * 8 * 3 * 3 * 3),
    }


@pytest.mark.parametrize("name", steps())
def test_operations_are_counted_alike_on_the_cpu_and_on_a_virtual_gpu(name):
    build, count = steps()[name]
    assert timing.flops(build("cpu")) == count
    for compute in (True, False):
        with VirtualGPU("A100-40", compute=compute):
            assert timing.flops(build("cuda")) == count
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert timing.flops(build("cuda")) == count


def test_attention_is_counted_on_a_virtual_gpu(gpu):
    q = torch.randn(2, 4, 128, 32, device="cuda", dtype=torch.float16)
    count = timing.flops(lambda: nn.functional.scaled_dot_product_attention(q, q, q))
    assert count == 2 * (2 * 2 * 4 * 128 * 128 * 32)


def test_an_exception_of_the_step_passes_through():
    with pytest.raises(ZeroDivisionError):
        timing.flops(lambda: 1 // 0)
    with pytest.raises(TypeError, match=r"write timing.flops\(lambda: step\(x\)\)"):
        timing.flops(3)


# -- utilisation -----------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 1.0), st.floats(1e-3, 1e4), st.floats(0.1, 5000))
def test_mfu_is_the_part_of_the_peak(part, ms, peak):
    found = timing.mfu(part * peak * 1e12 * ms / 1e3 * 0.999, taken(ms), peak_tflops=peak)
    assert found.fraction == pytest.approx(part * 0.999)
    assert found.tflops == pytest.approx(part * 0.999 * peak)


def test_the_peak_is_the_dense_one_of_the_gpu_in_force():
    with VirtualGPU("A100-40", compute=False):
        found = timing.mfu(156e12, taken(1000, "virtual"), torch.bfloat16)
        assert str(found) == "MFU 50.0%: 156 of 312 TFLOP/s (virtual; NVIDIA A100-SXM4-40GB, bf16, dense)"
        assert timing.mfu(78e12, taken(1000), "tf32").fraction == 0.5
        assert timing.mfu(9.75e12, taken(1000), torch.float32).fraction == 0.5


def test_a_product_on_a_virtual_gpu_stays_below_its_peak(shapes):
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    found = timing.mfu(timing.flops(lambda: a @ a), timing.measure(lambda: a @ a, repeat=3), a.dtype)
    assert 0.3 < found.fraction < 1
    assert found.numbers == "virtual"


def test_a_petaflop_on_a_t4_is_an_error_that_says_what_is_wrong(shapes):
    a = torch.randn(8192, 8192, device="cuda")
    with timing.Timer() as t:
        _ = a @ a
    with pytest.raises(timing.TooFast) as raised:
        timing.mfu(2 * 8192**3, 1e-3, "fp32")  # the launch alone, in seconds
    assert raised.value.tflops == pytest.approx(1099.5, rel=1e-3)
    assert raised.value.peak_tflops == 8.1
    assert str(raised.value).startswith("1,100 TFLOP/s is 136 times the peak of 8.1 (Tesla T4, fp32, dense)")
    assert "call torch.cuda.synchronize() before each reading of the clock" in str(raised.value)
    assert timing.mfu(2 * 8192**3, t, "fp32").fraction < 1


@pytest.mark.parametrize(
    ("flops", "time", "dtype", "cause"),
    [
        (30e12, taken(1000), "fp32", "as fp16 it would be 46% of the peak"),
        (8.5e12, taken(1000), "fp32", "The GPU's clock was above the one its data sheet assumes"),
        (70e12, taken(1000), "fp16", "on another stream or another GPU than the events"),
        (70e12, taken(1000, how="host clock"), "fp16", "The time is that of the host's clock"),
        (
            70e12,
            timing.Timing((1e3,), "CUDA events", "cuda:0", "measured", "", 500.0),
            "fp16",
            "Other streams were still running",
        ),
        (700e12, 1.0, "fp16", "several steps or several GPUs"),
    ],
)
def test_what_is_too_fast_has_its_likely_cause(shapes, flops, time, dtype, cause):
    with pytest.raises(timing.TooFast, match=cause):
        timing.mfu(flops, time, dtype)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, r"dtype says which peak of Tesla T4.*'fp32' \(8.1\), 'fp16' \(65\), or peak_tflops="),
        ({"dtype": "bf16"}, ValueError, "'bf16', for which Tesla T4 has no hardware"),
        ({"dtype": "fp8"}, ValueError, "dtype is 'fp8'; it must be"),
        ({"dtype": "fp16", "peak_tflops": 130}, ValueError, "twice the 65 that Tesla T4 does in fp16.*2:4 sparsity"),
        ({"peak_tflops": 0}, ValueError, "peak_tflops must be a number above 0, not 0"),
        ({"dtype": "fp16", "device": "all"}, ValueError, "one GPU"),
        ({"dtype": "fp16", "model_flops": 0}, ValueError, "model_flops must be a number above 0, not 0"),
    ],
)
def test_wrong_arguments_are_named(shapes, arguments, error, words):
    with pytest.raises(error, match=words):
        timing.mfu(**{"model_flops": 1e12, "time": 1.0} | arguments)


def test_a_gpu_without_a_data_sheet_asks_for_its_peak(shapes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA A30")
    with pytest.raises(ValueError, match="no data sheet of 'NVIDIA A30': give its dense peak"):
        timing.mfu(1e12, 1.0, "fp16")
    assert timing.mfu(1e12, 1.0, peak_tflops=165).fraction == pytest.approx(1 / 165)


def test_a_peak_that_no_vendor_publishes_is_asked_for():
    assert SPECS["RTX4090"].tflops["tf32"] is None
    with VirtualGPU("RTX4090", compute=False), pytest.raises(ValueError, match="publishes no tf32 peak"):
        timing.mfu(1e12, 1.0, "tf32")


def test_without_a_gpu_the_peak_must_be_given(no_gpu):
    with pytest.raises(RuntimeError, match=r"give peak_tflops=, or gpulab.setup\(\)"):
        timing.mfu(1e12, 1.0, "fp16")
    found = timing.mfu(1e12, 1.0, peak_tflops=4)
    assert str(found) == "MFU 25.0%: 1.00 of 4 TFLOP/s (measured; peak as given)"
