"""Kernels of training steps by operation, beside those of an H200, and the properties that make them so slow."""

import functools

import pytest
import torch
from torch import nn

from gpulab import VirtualGPU
from virtualgpu.scope import in_force
from virtualgpu.validate import kernels as validate_kernels
from virtualgpu.validate import memory, models, predict

RECORDED = predict.load(predict.FOLDER / "NVIDIA-H200.json")


@functools.cache
def by_operation(model, batch, mode):
    """Milliseconds by operation of one step: as recorded, and here."""
    wanted = (model, batch, mode, "adamw")
    (row,) = [r for r in RECORDED["steps"] if (r["model"], r["batch"], r["mode"], r["optimizer"]) == wanted]

    def timed(step):
        step()
        found = {}
        with in_force.current.timeline() as timeline:
            step()
        for span in timeline.spans:
            if span.where == "kernels":
                name = span.name.split(".")[0]
                found[name] = found.get(name, 0.0) + span.seconds * 1e3
        return {"found": found}

    with predict.virtual(RECORDED):
        memory.warm_up()
        step = memory.Step(models.by_name()[model], batch, mode)
        return row["operations_ms"], memory.step_peaks(step, cudnn=False, then=timed)["found"]


@pytest.mark.parametrize(
    ("model", "batch", "mode", "operations"),
    [
        ("convnext_tiny", 64, "amp_bf16", ["aten::native_layer_norm", "aten::native_layer_norm_backward"]),
        ("swin_t", 8, "amp_bf16", ["aten::native_layer_norm", "aten::native_layer_norm_backward"]),
        ("gpt2_small", 2, "amp_bf16", ["aten::native_layer_norm", "aten::native_layer_norm_backward"]),
        ("unet", 4, "fp32", ["aten::native_group_norm", "aten::native_group_norm_backward"]),
        ("gpt2_small_ckpt", 8, "amp_bf16", ["aten::sum", "aten::add"]),
        ("gpt2_small_ckpt", 8, "fp32", ["aten::sum"]),
        ("vit_b_16", 64, "amp_bf16", ["aten::sum", "aten::add", "aten::_foreach_div_", "aten::_foreach_sqrt"]),
        ("gpt2_small", 2, "fp32", ["aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::_foreach_add_"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kernels_take_what_an_h200s_did(model, batch, mode, operations):
    recorded, found = by_operation(model, batch, mode)
    for operation in operations:
        assert found[operation.removeprefix("aten::")] == pytest.approx(recorded[operation], rel=0.25), operation


# -- why -------------------------------------------------------------------------------------------------------------


def seconds(gpu, call):
    """Seconds of the kernels of `call` beyond their least times, of the second of two calls."""
    call()
    with gpu.timeline() as timeline:
        call()
    return sum(span.seconds - gpu.rates.kernel_s for span in timeline.spans if span.where == "kernels")


def test_short_rows_of_a_layer_norm_cost_more_than_their_bytes():
    with VirtualGPU("A100-80", compute=False) as gpu:
        times = []
        for width in (128, 4096):
            layer, x = nn.LayerNorm(width, device="cuda"), torch.empty(1 << 26, device="cuda").view(-1, width)
            times.append(seconds(gpu, lambda layer=layer, x=x: layer(x)))
        assert times[1] < 1.2 * 2 * 4 * (1 << 26) / gpu.rates.memory_rate < times[0] / 2


def test_a_layer_norm_copies_what_is_not_contiguous():
    with VirtualGPU("A100-80", compute=False) as gpu:
        layer, x = nn.LayerNorm(1024, device="cuda"), torch.empty(64, 512, 1024, device="cuda")
        plain, other = (seconds(gpu, lambda x=x: layer(x)) for x in (x, x.view(512, 64, 1024).transpose(0, 1)))
        assert other > 1.9 * plain


def test_few_groups_leave_multiprocessors_idle():
    with VirtualGPU("H200", compute=False) as gpu:
        x = torch.empty(4, 256, 256, 256, device="cuda")
        few, many = (seconds(gpu, lambda g=g: nn.functional.group_norm(x, g)) for g in (8, 256))
        assert few > 3 * many


def test_copies_between_layouts_are_slower_than_copies():
    with VirtualGPU("H200", compute=False) as gpu:
        x = torch.empty(197, 64, 3, 768, device="cuda")
        moved = 2 * x.nbytes
        plain, other = seconds(gpu, lambda: x.clone()), seconds(gpu, lambda: x.movedim(2, 0).contiguous())
        assert plain == pytest.approx(moved / gpu.rates.memory_rate, rel=0.1)
        assert 1.2e12 < moved / other < 1.8e12  # an H200 had 1.4 to 1.6 TB/s
        small = torch.empty(64, 512, 64, device="cuda")  # found in L2
        assert seconds(gpu, lambda: small.transpose(0, 1).contiguous()) < 2.2 * small.nbytes / gpu.rates.memory_rate


def test_sums_of_columns_are_slower_than_sums_of_rows():
    with VirtualGPU("A100-40", compute=False) as gpu:
        x = torch.empty(1 << 14, 1 << 13, device="cuda", dtype=torch.bfloat16)
        rows, columns = (seconds(gpu, lambda dim=dim: x.sum(dim)) for dim in (1, 0))
        assert rows == pytest.approx(x.nbytes / gpu.rates.memory_rate, rel=0.05)
        assert 1.2 * rows < columns < 2 * rows


def test_a_sum_of_two_dtypes_is_slower_than_its_bytes():
    with VirtualGPU("H200", compute=False) as gpu:
        a, b = torch.empty(1 << 25, device="cuda"), torch.empty(1 << 25, device="cuda", dtype=torch.bfloat16)
        assert 1.4 < seconds(gpu, lambda: a + b) / ((4 + 2 + 4) * a.numel() / gpu.rates.memory_rate) < 2


def kernels(gpu, call):
    """Number of kernels of `call`, and its seconds beyond their least times."""
    before = gpu.clock.kernels()
    call()
    return gpu.clock.kernels() - before, seconds(gpu, call)


def test_cudnn_adds_no_bias_and_makes_no_gradient_of_one():
    with VirtualGPU("A100-80", compute=False) as gpu:
        x = torch.empty(64, 64, 112, 112, device="cuda")
        bare, biased = (nn.Conv2d(64, 64, 3, padding=1, bias=bias, device="cuda") for bias in (False, True))
        (few, short), (more, longer) = (kernels(gpu, lambda conv=conv: conv(x)) for conv in (bare, biased))
        assert more == few + 1
        assert longer - short == pytest.approx(2 * x.nbytes / gpu.rates.memory_rate, rel=0.05)
        (few, short), (more, longer) = (kernels(gpu, lambda conv=conv: conv(x).backward(x)) for conv in (bare, biased))
        assert longer - short == pytest.approx(3 * x.nbytes / gpu.rates.memory_rate, rel=0.05)
        depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, device="cuda")
        assert kernels(gpu, lambda: depthwise(x))[0] == 1  # PyTorch's own kernel adds it


def test_a_slices_gradient_is_filled_and_then_written_in_part():
    with VirtualGPU("A100-80", compute=False) as gpu:
        x = torch.empty(64, 1 << 20, device="cuda", requires_grad=True)
        part, whole = x[0], x.nbytes
        gradient = torch.ones_like(part)
        number, took = kernels(gpu, lambda: torch.autograd.grad(part, x, gradient, retain_graph=True))
        assert number == 2
        assert took == pytest.approx(whole * (1 + 2 / 64) / gpu.rates.memory_rate, rel=0.05)


@pytest.mark.parametrize(
    ("name", "share"), [("H200", 320 / 396), ("A100-80", 320 / 324), ("T4", 1), ("L40S", 320 / 426)]
)
def test_320_blocks_of_an_optimizers_kernel_are_shared_out_among_multiprocessors(name, share):
    with VirtualGPU(name, compute=False) as gpu:
        x, y = ([torch.empty(1 << 27, device="cuda")] for _ in range(2))
        bytes_moved = 3 * x[0].nbytes
        assert seconds(gpu, lambda: torch._foreach_add_(x, y)) * share == pytest.approx(
            bytes_moved / gpu.rates.memory_rate, rel=0.01
        )
        assert seconds(gpu, lambda: torch._foreach_addcmul_(x, y, y)) == seconds(gpu, lambda: torch._foreach_add_(x, y))
        few = [torch.empty(1 << 20, device="cuda")]
        assert seconds(gpu, lambda: torch._foreach_sqrt(few)) < 2.1 * few[0].nbytes / gpu.rates.memory_rate


def test_a_long_row_of_a_softmax_is_read_three_times():
    with VirtualGPU("H200", compute=False) as gpu:
        for width, passes in ((1000, 2), (8192, 2), (50257, 4)):
            x = torch.empty(1 << 29, device="cuda")[: (1 << 29) // width * width].view(-1, width)
            assert seconds(gpu, lambda x=x: x.log_softmax(-1)) == pytest.approx(
                passes * x.nbytes / gpu.rates.memory_rate, rel=0.02
            ), width


@pytest.mark.parametrize("name", ["NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"])
def test_long_attention_takes_what_it_was_recorded_to_take(name):
    recording = predict.load(predict.FOLDER / f"{name}.json")
    errors = []
    with predict.virtual(recording):
        for row in recording["layers"]:
            if row["name"].startswith("attention") and row["mode"] == "float16" and row["shape"][2] == 4096:
                causal = row["name"].endswith("causal")
                ours = validate_kernels.attention(tuple(row["shape"]), torch.float16, causal=causal)
                errors += [ours[time] / row[time] for time in ("forward_ms", "both_ms")]
    assert len(errors) == 4
    assert all(0.75 < error < 1.15 for error in errors), errors
