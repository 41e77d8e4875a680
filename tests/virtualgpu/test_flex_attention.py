"""flex_attention: values as PyTorch's definition has them, memory and time as the fused kernel's."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
)
from torch.nn.functional import scaled_dot_product_attention

from virtualgpu.clock import work
from virtualgpu.gpu import VirtualGPU

KiB = 1 << 10
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:torch.compile runs the code")


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with VirtualGPU("A100-40", settings="", compute=request.param) as gpu:
        yield gpu


@pytest.fixture
def computes():
    with VirtualGPU("A100-40", settings="") as gpu:
        yield gpu


def causal(b, h, q, k):
    return q >= k


def near(b, h, q, k):
    return (q - k).abs() < 70


def heads(*shape, seed, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


def inputs(batch=2, number=4, length=256, width=16, shared=None):
    shapes = [(batch, n, length, width) for n in (number, shared or number, shared or number)]
    return [heads(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]


def on_gpu(tensors):
    return [t.detach().cuda().requires_grad_() for t in tensors]


def compare(mine, own):
    for ours, theirs in zip(mine, own, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["as it is", "compiled"])
@pytest.mark.parametrize("mask_mod", [None, causal, and_masks(causal, near)])
def test_masks_forward_and_backward(computes, mask_mod, how):
    own = inputs()
    q, k, v = on_gpu(own)
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, 256, 256, device="cuda")
    run = flex_attention if how == "as it is" else torch.compile(flex_attention)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = run(q, k, v, block_mask=mask)
    dense = None if mask_mod is None else create_mask(mask_mod, None, None, 256, 256, device="cpu")
    expected = scaled_dot_product_attention(*own, attn_mask=dense)
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    compare((q, k, v), own)


def test_scores_are_changed_by_a_function_and_what_it_learns_gets_a_gradient(computes):
    own = inputs()
    q, k, v = on_gpu(own)
    bias = heads(4, 256, seed=9).requires_grad_()
    table, tune = bias.detach().cuda().requires_grad_(), nn.Linear(1, 1, device="cuda")

    def moved(score, b, h, i, j):
        return score * tune.weight[0, 0] + table[h, j]

    out = flex_attention(q, k, v, score_mod=moved)
    weight = tune.weight.detach().cpu().requires_grad_()
    scores = own[0] @ own[1].transpose(-1, -2) / 4 * weight[0, 0] + bias[:, None]
    expected = scores.softmax(-1) @ own[2]
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    compare((q, k, v, table, tune.weight), (*own, bias, weight))


def test_heads_that_share_keys_and_rows_that_see_nothing(computes):
    own = inputs(number=4, shared=2)
    q, k, v = on_gpu(own)
    lengths = torch.tensor([256, 100], device="cuda")
    mask = create_block_mask(lambda b, h, i, j: j < lengths[b], 2, None, 256, 256, device="cuda")
    out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    dense = torch.stack([torch.arange(256) < n for n in (256, 100)])[:, None, None]
    expected = scaled_dot_product_attention(*own, attn_mask=dense, enable_gqa=True)
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    out.sum().backward()
    expected.sum().backward()
    compare((q, k, v), own)
    nothing = create_block_mask(lambda b, h, i, j: j < 0, None, None, 256, 256, device="cuda")
    assert not flex_attention(q, k, v, block_mask=nothing, enable_gqa=True).any()


def test_sums_and_greatest_scores(computes):
    own = inputs()
    q, k, v = on_gpu(own)
    out, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True))
    scores = own[0] @ own[1].transpose(-1, -2) / 4
    torch.testing.assert_close(aux.lse.detach().cpu(), scores.logsumexp(-1).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(aux.max_scores.cpu(), scores.amax(-1).detach(), rtol=1e-4, atol=1e-5)
    (out.sum() + aux.lse.square().sum()).backward()
    ((scores.softmax(-1) @ own[2]).sum() + scores.logsumexp(-1).square().sum()).backward()
    compare((q, k, v), own)


def test_autocast_takes_it_in_sixteen_bits(gpu):
    q, k, v = on_gpu(inputs())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = flex_attention(q, k, v)
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype is torch.float32


def test_on_the_host_it_works_as_well(computes):
    own = [t.detach() for t in inputs(length=128)]
    mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
    out = flex_attention(*own, block_mask=mask)
    expected = scaled_dot_product_attention(*own, is_causal=True)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_a_graph_computes_it_again(computes):
    q, k, v = (t.detach() for t in on_gpu(inputs(length=128)))
    mask = create_block_mask(causal, None, None, 128, 128, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, block_mask=mask)
    assert not out.any()
    q.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, flex_attention(q, k, v, block_mask=mask))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_there_is_no_matrix_of_scores(gpu):
    q, k, v = on_gpu(inputs(batch=2, number=4, length=1024, width=64))  # 2 MiB each; scores of 32 MiB
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = flex_attention(q, k, v)
    assert torch.cuda.memory_allocated() - start == (2048 + 32) * KiB  # the output and the row sums
    assert torch.cuda.max_memory_allocated() - start == (2048 + 64) * KiB  # and the greatest scores
    grad = torch.empty_like(out)
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out.backward(grad)
    assert torch.cuda.memory_allocated() - start == (3 * 2048 - 32) * KiB  # the sums are not kept any longer
    assert torch.cuda.max_memory_allocated() - start == (3 * 2048 + 32) * KiB


def test_without_a_gradient_the_output_alone_stays(gpu):
    q, k, v = on_gpu(inputs(batch=2, number=4, length=1024, width=64))
    start = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = flex_attention(q, k, v)
    assert torch.cuda.memory_allocated() - start == 2048 * KiB == out.nbytes


def test_results_lie_as_the_query_does(gpu):
    q, k, v = (t.detach().cuda().transpose(1, 2).contiguous().transpose(1, 2) for t in inputs())
    q.requires_grad_()
    out = flex_attention(q, k, v)
    assert out.stride() == q.stride()
    out.sum().backward()
    assert q.grad.stride() == q.stride()


# -- time ------------------------------------------------------------------------------------------------------------


def seconds(gpu, run):
    before = gpu.clock.busy()
    run()
    return gpu.clock.busy() - before


def test_time_goes_by_the_blocks_that_are_left(gpu):
    q, k, v = (torch.empty(1, 8, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    flops = 4 * 8 * 4096**2 * 64
    with torch.no_grad():
        if gpu.compute:
            q, k, v = (t[:, :, :1024] for t in (q, k, v))
            flops //= 16
        length = q.shape[2]
        masks = {
            share: create_block_mask(mod, None, None, length, length, device="cuda")
            for share, mod in {"all": noop_mask, "causal": causal, "near": and_masks(causal, near)}.items()
        }
        took = {share: seconds(gpu, lambda mask=mask: flex_attention(q, k, v, block_mask=mask))
                for share, mask in masks.items()}  # fmt: skip
    blocks = length // 128
    rate = gpu.rates.tflops["fp16"] * 1e12 * work.FLASH
    shares = {"all": 1.0, "causal": (blocks + 1) / 2 / blocks, "near": (2 * blocks - 1) / blocks**2}
    for name, share in shares.items():
        assert took[name] > 0.999 * (flops * share / rate + gpu.rates.kernel_s)
    assert took["all"] - took["causal"] == pytest.approx(flops * (1 - shares["causal"]) / rate, rel=0.05)
    assert took["near"] < took["causal"]


def test_backward_takes_as_a_flash_kernel_does(gpu):
    q, k, v = (torch.empty(1, 4, 1024, 64, device="cuda", requires_grad=True) for _ in range(3))
    forward = gpu.clock.flops()
    out = flex_attention(q, k, v)
    forward = gpu.clock.flops() - forward
    assert forward == 4 * 4 * 1024**2 * 64
    before = gpu.clock.flops()
    out.backward(torch.empty_like(out))
    assert gpu.clock.flops() - before == 2.5 * forward


# -- wrong use -------------------------------------------------------------------------------------------------------


def test_the_checks_are_pytorchs(gpu):
    q, k, v = on_gpu(inputs(number=4, shared=2))
    with pytest.raises(ValueError, match="Try setting enable_gqa=True"):
        flex_attention(q, k, v)
    with pytest.raises(ValueError, match="device"):
        flex_attention(q, k.cpu(), v, enable_gqa=True)
    mask = create_block_mask(causal, None, None, 256, 256, device="cpu")
    with pytest.raises(RuntimeError, match="on the same device but got cuda:0 and cpu"):
        flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert math.isclose(q.shape[-1] ** -0.5, 0.25)
