"""Workspaces and times of single convolutions, as an H200 had them."""

import json
import statistics
from functools import partial

import pytest
import torch
from torch import nn

from gpulab import VirtualGPU
from virtualgpu import release

from .recorded import HERE, recorder

measure_convolutions = recorder("measure_convolutions")
MEASURED = json.loads((HERE / "convolutions_h200.json").read_text())
# Precision and layout -> rows whose bytes are exact, forward and backward: of 162, 110, 162, 110. What is left out:
# splits of a sum, Fourier's way, and which of several kernels cuDNN prefers where sizes are odd.
EXACT = {("fp32", False): (160, 140), ("tf32", False): (63, 50), ("fp16", False): (145, 100), ("fp16", True): (88, 30)}


def event_us(call):
    """Of the device, with the host ahead."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000)
    begin.record()
    out = call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3, out


@pytest.fixture(scope="module")
def pairs():
    """(recorded, predicted) of every row."""
    allowed = torch.backends.cudnn.allow_tf32
    gpu = VirtualGPU("H200", compute=False)
    gpu.keeps_workspaces = True
    gpu.release = release.parse_release(MEASURED["torch"])
    found = []
    with gpu:
        torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda")
        for row in MEASURED["rows"]:
            predicted = measure_convolutions.measured(row)
            layer, x, gradient = measure_convolutions.made(row)
            predicted["forward_us"], y = event_us(partial(layer, x))
            predicted["backward_us"], _ = event_us(partial(y.backward, gradient))
            found.append((row, predicted))
            del layer, x, y, gradient  # the next row finds an empty GPU
    torch.backends.cudnn.allow_tf32 = allowed
    return found


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: f"{kind[0]}{'-last' if kind[1] else ''}")
def test_workspaces_are_those_of_an_h200(pairs, kind):
    rows = [(row, predicted) for row, predicted in pairs if (row["mode"], row["last"]) == kind]
    exact = [sum(row[way] == predicted[way] for row, predicted in rows) for way in ("forward", "backward")]
    assert exact >= list(EXACT[kind]), (exact, len(rows))
    assert all(
        abs(row["backward"][0] - predicted["backward"][0]) < 1 << 20 for row, predicted in rows
    )  # gradients: blocks aside


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: f"{kind[0]}{'-last' if kind[1] else ''}")
def test_kernels_take_about_as_long_as_on_an_h200(pairs, kind, way):
    """Of 64 images, where they are longer than a launch: the time of all, and the median of the layers."""
    rows = [(r, p) for r, p in pairs if (r["mode"], r["last"]) == kind and r["image"][0] == 64 and r["forward_us"] > 5]
    assert len(rows) > 40
    recorded, predicted = (sum(one[index][f"{way}_us"] for one in rows) for index in (0, 1))
    assert 0.65 < predicted / recorded < 1.25
    assert 0.6 < statistics.median(p[f"{way}_us"] / r[f"{way}_us"] for r, p in rows) < 1.4


def extra_mib(layer, shape):
    """What the weight's gradient takes beside its results, on an H200, in float32."""
    with VirtualGPU("H200", compute=False), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        layer, x = layer.cuda(), torch.empty(shape, device="cuda")  # no gradient of the input
        y = layer(x)
        gradient = torch.empty_like(y)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y.backward(gradient)
        return (torch.cuda.max_memory_allocated() - before - layer.weight.nbytes) / 2**20


def test_only_an_ordinary_convolution_goes_winograds_way():
    """As measured: stride and dilation 1, nothing transposed, one group."""
    shape, channels = (8, 256, 28, 28), (256, 256, 3)
    assert extra_mib(nn.Conv2d(*channels, padding=1, bias=False), shape) > 30
    for other in (
        nn.Conv2d(*channels, padding=2, dilation=2, bias=False),
        nn.ConvTranspose2d(*channels, padding=1, bias=False),
        nn.Conv2d(*channels, padding=1, groups=32, bias=False),
    ):
        assert extra_mib(other, shape) < 1


@pytest.mark.parametrize(("side", "stride", "turned"), [(28, 1, False), (14, 1, False), (7, 1, True), (28, 2, True)])
def test_single_points_are_a_product_where_planes_begin_at_8_bytes(side, stride, turned):
    with VirtualGPU("H200", compute=False), torch.no_grad():
        layer = nn.Conv2d(256, 64, 1, stride, bias=False).cuda().half()
        x = torch.empty(8, 256, side, side, device="cuda", dtype=torch.float16)
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    assert extra == (-(-(x.nbytes + y.nbytes + 16) // 512) * 512 if turned else 0)
