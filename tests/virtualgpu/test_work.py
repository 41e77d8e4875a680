"""The arithmetic of operations from their shapes; `test_cost` compares it with PyTorch's own count."""

import math
import subprocess
import sys

import pytest

from virtualgpu.clock import rates, work

T4 = rates.published_rates(rates.spec("T4"))


def test_loads_no_torch():
    code = "import sys, virtualgpu.clock.work; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_a_product_is_as_slow_as_the_slower_of_arithmetic_and_memory():
    large = work.product(T4, 4096, 4096, 4096, 1, "fp16", T4.memory_seconds(3 * 2 * 4096**2))
    assert large.flops == 2 * 4096**3
    assert large.seconds == large.arithmetic > large.memory
    thin = work.product(T4, 1, 4096, 4096, 1, "fp16", T4.memory_seconds(2 * 4096**2))
    assert thin.seconds == thin.memory > thin.arithmetic


def test_tiles_fill_the_multiprocessors_in_waves():
    even, odd = (T4.tiling(rows, 1280, 4096, 1, "fp32") for rows in (512, 513))
    assert (even.height * even.width * even.tiles, even.splits) == (512 * 1280, 1)
    assert even.tiles % T4.sms == 0
    assert odd.seconds > 1.1 * even.seconds
    assert T4.product_seconds(513, 1280, 4096, 1, "fp32") == odd.seconds
    deep = T4.tiling(128, 128, 1 << 20, 1, "fp16")
    assert deep.splits > 1
    for tiling in (even, odd, deep):
        assert (tiling.waves - 1) * T4.sms < tiling.tiles * tiling.splits <= tiling.waves * T4.sms


def test_a_transposed_convolution_is_the_other_one_backwards():
    image, feature, weight = (2, 8, 16, 16), (2, 12, 16, 16), (12, 8, 3, 3)
    (forward,) = work.convolution_parts(T4, image, weight, feature, "fp16")
    (turned,) = work.convolution_parts(T4, feature, weight, image, "fp16", transposed=True, parts=("input",))
    assert forward == turned
    assert forward[1] == 2 * 2 * 16 * 16 * 12 * 8 * 9


def test_groups_divide_the_work():
    shapes = (2, 8, 16, 16), (12, 4, 3, 3), (2, 12, 16, 16)
    (whole,) = work.convolution_parts(T4, (2, 8, 16, 16), (12, 8, 3, 3), (2, 12, 16, 16), "fp16")
    (halves,) = work.convolution_parts(T4, *shapes, "fp16", groups=2)
    assert halves[1] == whole[1] / 2


DEPTHWISE = (64, 32, 56, 56), (32, 1, 3, 3), (64, 32, 56, 56)


def test_a_depthwise_convolution_runs_on_the_lanes_and_loads_a_number_for_each_multiply_add():
    (found,) = work.convolution_parts(T4, *DEPTHWISE, "fp16", groups=32)
    adds = found[1] / 2
    assert found[0] == pytest.approx(max(2 * adds / (T4.tflops["fp32"] * 1e12), adds / (T4.loads_per_us * 1e6)))


@pytest.mark.parametrize(("dtype", "measured"), [("fp32", 17.6), ("fp16", 3.4)])
def test_a_depthwise_convolutions_backward_is_many_times_its_forward(dtype, measured):
    """On an A100, forward and backward over forward: github.com/pytorch/pytorch/issues/18631, for 3 × 3."""
    a100 = rates.rates_of("A100-40")
    nbytes = (4 if dtype == "fp32" else 2) * 2 * 64 * 32 * 56 * 56
    parts = ("forward", "input", "weight")
    found = work.convolution_parts(a100, *DEPTHWISE, dtype, groups=32, by_cudnn=dtype == "fp16", parts=parts)
    forward, by_input, by_weight = (max(seconds, a100.memory_seconds(nbytes)) for seconds, _ in found)
    assert (forward + by_input + by_weight) / forward == pytest.approx(measured, rel=0.6)


@pytest.mark.parametrize(("dtype", "copied"), [("fp32", False), ("tf32", True), ("fp16", True)])
def test_tensor_cores_copy_plain_images(dtype, copied):
    found = work.convolution(T4, [(1e-3, 5.0)], dtype, 1e-6, 300, backward=True)
    if copied:  # at no more than the memory's rate
        assert T4.memory_seconds(600) < found.copies < 2 * T4.memory_seconds(600)
    else:
        assert found.copies == 0
    assert found.seconds == 1e-3 + found.copies


def test_a_forward_convolution_gathers_plain_images_where_that_is_faster():
    copied = work.convolution(T4, [(1e-3, 5.0)], "fp16", 1e-6, 300)
    assert copied.copies
    gathered = work.convolution(T4, [(1e-3, 5.0)], "fp16", 5e-3, 300_000_000)
    assert (gathered.copies, gathered.seconds) == (0, 5e-3)


def test_attention_reaches_its_share():
    found = work.attention(T4, 1e12, "fp16", work.EFFICIENT, 1e-6)
    assert found.seconds == pytest.approx(1e12 / (0.4 * T4.tflops["fp16"] * 1e12))


@pytest.mark.parametrize(
    ("width", "causal", "backward", "low", "high"),
    # arXiv 2307.08691: FlashAttention-2 on an A100 reaches up to 73 % of 312 TFLOP/s forward, 63 % backward
    [
        (128, False, False, 200, 230),
        (128, False, True, 170, 200),
        (64, True, False, 150, 195),
        (64, False, True, 140, 196),
    ],
)
def test_flash_attention_of_a_long_sequence_is_as_fast_as_published(width, causal, backward, low, high):
    a100 = rates.rates_of("A100-80")
    flops = (10.0 if backward else 4.0) * 32 * 8192**2 * width / (2 if causal else 1)
    found = work.flash_attention(a100, 32, 8192, 8192, width, "fp16", flops, 0.0, causal=causal, backward=backward)
    assert low < flops / found.seconds / 1e12 < high


def test_a_short_or_causal_sequence_fills_its_blocks():
    def took(queries, keys, causal=False):
        return work.flash_attention(T4, 8, queries, keys, 64, "fp16", 1.0, 0.0, causal=causal).seconds

    assert took(197, 197) == took(256, 256)
    assert took(256, 256, causal=True) == pytest.approx(0.75 * took(256, 256))
    assert took(4096, 4096, causal=True) == pytest.approx(0.5 * (1 + 1 / 32) * took(4096, 4096))
    assert took(1, 4096) == pytest.approx(took(4096, 4096) / 256)


def test_a_hopper_writes_a_tile_while_it_computes_the_next():
    h200, a100 = rates.rates_of("H200"), rates.rates_of("A100-80")
    shape = 12608, 3072, 768  # as in ViT: an H200 took 85 µs
    assert h200.product_seconds(*shape, 1, "bf16") == pytest.approx(85e-6, rel=0.15)
    for of, share in ((h200, 0.96), (a100, 0.8)):
        ideal = 2.0 * math.prod(shape) / (of.tflops["bf16"] * 1e12)
        assert ideal / of.product_seconds(*shape, 1, "bf16") == pytest.approx(share, abs=0.05)
