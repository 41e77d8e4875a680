"""The arithmetic of operations from their shapes; `test_cost` compares it with PyTorch's own count."""

import subprocess
import sys

import pytest

from gpulab.virtual.clock import rates, work

T4 = rates.published(rates.spec("T4"))


def test_loads_no_torch():
    code = "import sys, gpulab.virtual.clock.work; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_product_is_as_slow_as_the_slower_of_arithmetic_and_memory():
    large = work.product(T4, 4096, 4096, 4096, 1, "fp16", 3 * 2 * 4096**2)
    assert large.flops == 2 * 4096**3
    assert large.seconds == large.arithmetic > large.memory
    thin = work.product(T4, 1, 4096, 4096, 1, "fp16", 2 * 4096**2)
    assert thin.seconds == thin.memory > thin.arithmetic


def test_tiles_fill_the_multiprocessors_in_waves():
    even, odd = (T4.tiling(rows, 1024, 4096, 1, "fp16") for rows in (640, 641))
    assert (even.side, even.tiles, even.splits, even.waves) == (128, 40, 1, 1)
    assert odd.seconds > 1.5 * even.seconds
    assert T4.product_seconds(641, 1024, 4096, 1, "fp16") == odd.seconds
    deep = T4.tiling(128, 128, 1 << 20, 1, "fp16")
    assert deep.tiles == 1
    assert deep.splits == 40
    for tiling in (even, odd, deep):
        assert (tiling.waves - 1) * T4.sms < tiling.tiles * tiling.splits <= tiling.waves * T4.sms


def test_a_transposed_convolution_is_the_other_one_backwards():
    image, feature, weight = (2, 8, 16, 16), (2, 12, 16, 16), (12, 8, 3, 3)
    (forward,) = work.convolved(T4, image, weight, feature, "fp16")
    (turned,) = work.convolved(T4, feature, weight, image, "fp16", transposed=True, parts=("input",))
    assert forward == turned
    assert forward[1] == 2 * 2 * 16 * 16 * 12 * 8 * 9


def test_groups_divide_the_work():
    shapes = (2, 8, 16, 16), (12, 4, 3, 3), (2, 12, 16, 16)
    (whole,) = work.convolved(T4, (2, 8, 16, 16), (12, 8, 3, 3), (2, 12, 16, 16), "fp16")
    (halves,) = work.convolved(T4, *shapes, "fp16", groups=2)
    assert halves[1] == whole[1] / 2


def test_a_depthwise_convolution_runs_on_the_lanes():
    (found,) = work.convolved(T4, (1, 8, 16, 16), (8, 1, 3, 3), (1, 8, 16, 16), "fp16", groups=8)
    assert found[0] == pytest.approx(found[1] / (T4.tflops["fp32"] * 1e12))


@pytest.mark.parametrize(("dtype", "copied"), [("fp32", False), ("tf32", True), ("fp16", True)])
def test_tensor_cores_copy_plain_images(dtype, copied):
    found = work.convolution(T4, [(1e-3, 5.0)], dtype, 1000, 300)
    assert found.copies == (T4.memory_seconds(600) if copied else 0)
    assert found.seconds == 1e-3 + found.copies


def test_attention_reaches_its_share():
    found = work.attention(T4, 1e12, "fp16", work.EFFICIENT, 1000)
    assert found.seconds == pytest.approx(1e12 / (0.4 * T4.tflops["fp16"] * 1e12))
