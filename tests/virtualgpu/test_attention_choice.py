"""Which kernel an attention is done by, against PyTorch's own CUDA code (torch_cuda/attention.json); and the values."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from gpulab import VirtualGPU
from virtualgpu.operations import attention_choice

from .recorded import GPUS, of_this_torch, recorder, rows


@of_this_torch
@pytest.mark.parametrize("capability", GPUS)
def test_the_kernel_is_the_one_that_cuda_takes(capability):
    record_attention = recorder("record_attention")
    theirs, mine = {}, {}
    with VirtualGPU(GPUS[capability], compute=False):
        for mode, dtype in record_attention.DTYPES.items():
            if capability == "7.5" and mode == "bf16":
                continue
            for row in rows("attention"):
                if capability in row["capability"] and mode in row["mode"]:
                    theirs[row["case"], mode] = row["kernel"]
            for name, arguments in record_attention.cases(dtype).items():
                major, minor = map(int, capability.split("."))
                mine[name, mode] = attention_choice.choose((major, minor), *arguments)
    assert mine == theirs
    assert len(set(theirs.values())) == {"7.5": 2, "8.0": 3, "9.0": 4}[capability]


def attended(device, dtype, *, bias, **settings):
    """The output and the gradients of query, key, value and bias."""
    torch.manual_seed(0)
    # Drawn alike for all: what is drawn in 16 bits differs from version to version.
    q, k, v = (torch.randn(2, heads, 6, 8).to(device, dtype).requires_grad_() for heads in (4, 2, 2))
    learned = torch.randn(6, 6, 4).to(device, dtype).requires_grad_()
    mask = learned.permute(2, 0, 1)[None] if bias else None
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **settings)
    out.backward(torch.ones_like(out))
    return [t.detach().cpu() for t in (out, q.grad, k.grad, v.grad, *([learned.grad] if bias else []))]


@pytest.mark.parametrize(
    "settings", [{"bias": True}, {"bias": True, "scale": -0.3}, {"bias": False, "is_causal": True}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_by_plain_operations_the_values_are_the_cpus(dtype, settings):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = attended("cpu", torch.float32, **settings)
        with VirtualGPU("T4"):
            found = attended("cuda", dtype, **settings)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float(), theirs, atol=2e-2 if dtype is torch.float16 else 1e-5, rtol=2e-2)


def test_a_learned_bias_that_lies_by_heads_costs_the_scores():
    """T5's: no fused kernel takes it, so scores and weights are there; made contiguous, they are not."""
    kept = {}
    with VirtualGPU("A100-80", compute=False):
        q, k, v = (torch.randn(4, 8, 256, 64, device="cuda", requires_grad=True) for _ in range(3))
        for contiguous in (False, True):
            bias = torch.randn(256, 256, 8, device="cuda", requires_grad=True).permute(2, 0, 1)[None]
            bias = bias.contiguous() if contiguous else bias
            before = torch.cuda.memory_allocated()
            out = F.scaled_dot_product_attention(q, k, v, bias)
            kept[contiguous] = torch.cuda.memory_allocated() - before
            del out
    scores = 4 * 8 * 256 * 256 * 4
    assert kept[True] < scores <= kept[False]
