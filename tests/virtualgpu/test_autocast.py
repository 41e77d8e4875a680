"""CUDA's autocast on the virtual GPU: the lists are PyTorch's, and casts of weights last as long as there."""

import pytest
import torch
from torch import nn
from torch.amp import autocast as imported_before_any_gpu
from torch.nn import functional as F

from gpulab import VirtualGPU
from virtualgpu.operations import autocast, cuda_kernels

# Registered by PyTorch for CUDA, and not on a list of ours: its cast is in `recurrent`.
ELSEWHERE = {"aten::_cudnn_rnn"}


def listed():
    lists = (
        autocast.LOWER,
        autocast.FLOAT,
        autocast.SET_DTYPE,
        autocast.APPEND_DTYPE,
        autocast.PROMOTE,
        autocast.REFUSED,
    )
    return {f"aten::{name}" for names in lists for name in names}


def test_the_lists_are_those_that_pytorch_has_registered_for_cuda():
    found = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    # torchvision adds some for detection; up to 2.14 there were overloads for named tensors
    registered = {name for name in found if name.startswith("aten::") and "imname" not in name and "names_" not in name}
    assert registered - listed() == ELSEWHERE
    # An older torch may know fewer; a newer one that drops one makes this fail.
    assert listed() - registered <= {"aten::rms_norm", "aten::linalg_matrix_sqrth", "aten::linalg_vecdot"}


def test_no_operation_is_on_two_lists():
    lists = [autocast.LOWER, autocast.FLOAT, autocast.SET_DTYPE, list(autocast.APPEND_DTYPE), autocast.PROMOTE]
    names = [name for names in lists for name in names]
    assert len(names) == len(set(names))
    assert set(cuda_kernels.MIRRORS) - set(names) == {
        "dropout",
        "one_hot",
        "lstm.input",
        "lstm.data",
        "gru.input",
        "gru.data",
        "rnn_tanh.input",
        "rnn_tanh.data",
        "rnn_relu.input",
        "rnn_relu.data",
        "quantile.scalar",
        "nanquantile.scalar",
    }


@pytest.mark.parametrize("compute", [True, False])
def test_autocast_imported_before_the_scope_works_in_it(compute):
    with VirtualGPU("A100-80", compute=compute):
        x = torch.ones(4, 4, device="cuda")
        with imported_before_any_gpu("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
            assert F.softmax((x @ x), -1).dtype == torch.float32
            assert (x + x).dtype == torch.float32
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.float32


def test_the_hosts_tensors_are_left_alone():
    with VirtualGPU("T4"), torch.autocast("cuda", dtype=torch.float16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


ON_THE_GPU = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: nn.Linear(4, 4, device="cuda")(x),
    "softmax of float16": lambda x: F.softmax(x.half(), -1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "dropout of linear": lambda x: F.dropout(nn.Linear(4, 4, device="cuda")(x), 0.3),
    "conv2d that keeps the size": lambda x: F.conv2d(x[None, None], x[None, None, :3, :3], padding="same"),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "LSTM": lambda x: nn.LSTM(4, 4, device="cuda")(x)[0],
    "GRUCell": lambda x: nn.GRUCell(4, 4, device="cuda")(x),
    "transformer layer": lambda x: nn.TransformerEncoderLayer(4, 2, device="cuda")(x[None]),
    "stack of float16": lambda x: torch.stack([x.half(), x.half()]),
    "cat": lambda x: torch.cat([x, x.half()]),
    "max_pool3d of float16": lambda x: F.max_pool3d(x.half()[None, None, None], 1),
    "reflection_pad2d of float16": lambda x: F.pad(x.half()[None], (1, 1, 1, 1), "reflect"),
    "fft of float32": lambda x: torch.fft.fft(x),
}


@pytest.mark.parametrize("call", ON_THE_GPU)
@pytest.mark.parametrize("compute", [True, False])
def test_autocast_for_the_cpu_leaves_the_gpus_tensors_alone(call, compute):
    """Also beside that for CUDA; the host's own tensors it casts."""
    run = ON_THE_GPU[call]
    with VirtualGPU("T4", compute=compute):
        x = torch.ones(4, 4, device="cuda")
        plain = run(x).dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert run(x).dtype == plain
            host = torch.ones(4, 4)
            assert {(host @ host).dtype, nn.Linear(4, 4)(host).dtype} == {torch.bfloat16}
            with torch.autocast("cuda", dtype=torch.float16):
                both = run(x).dtype
        with torch.autocast("cuda", dtype=torch.float16):
            assert run(x).dtype == both


def test_a_weight_is_cast_once_per_block_and_the_copy_ends_with_it():
    with VirtualGPU("T4"):
        layer = torch.nn.Linear(256, 256, bias=False, device="cuda")
        x = torch.ones(8, 256, device="cuda")
        layer(x)  # an older torch keeps cuBLAS's workspace
        start = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.float16):
            layer(x)
            once = torch.cuda.memory_allocated()
            with torch.autocast("cuda", dtype=torch.float16):
                layer(x)
            assert once - start == 256 * 256 * 2
            assert torch.cuda.memory_allocated() == once
        assert torch.cuda.memory_allocated() == start


def test_without_the_cache_nothing_is_kept():
    with VirtualGPU("T4"):
        layer, x = torch.nn.Linear(256, 256, bias=False, device="cuda"), torch.ones(8, 256, device="cuda")
        layer(x)
        start = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            layer(x)
            assert torch.cuda.memory_allocated() == start


def test_parameters_and_their_gradients_stay_float32():
    with VirtualGPU("T4"):
        layer = torch.nn.Linear(8, 8, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = layer(torch.ones(2, 8, device="cuda")).float().sum()
        loss.backward()
        assert {p.dtype for p in layer.parameters()} == {p.grad.dtype for p in layer.parameters()} == {torch.float32}


def test_16_bit_products_are_float32_products_rounded():
    torch.manual_seed(0)
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    for dtype in (torch.float16, torch.bfloat16):
        a16, b16 = a.to(dtype), b.to(dtype)
        with VirtualGPU("A100-80"):
            product = (a16.cuda() @ b16.cuda()).cpu()
        assert torch.equal(product, (a16.float() @ b16.float()).to(dtype))


@pytest.mark.parametrize("compute", [True, False])
def test_a_weight_that_was_cast_without_gradients_serves_with_gradients(compute):
    with VirtualGPU("T4", compute=compute):
        layer, x = torch.nn.Linear(4, 4).cuda(), torch.zeros(2, 4, device="cuda")
        with torch.autocast("cuda"):
            with torch.no_grad():
                layer(x)
            out = layer(x)
        out.sum().backward()
        assert layer.weight.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_parts_of_a_composite_are_cast_in_inference_mode_too(mode):
    """cross_entropy_loss is in no list; the nll_loss within it is, and so the loss is float32. It asks log_softmax for
    its input's dtype (LossNLL.cpp), which autocast leaves alone (set_opt_dtype in autocast_mode.h)."""
    with VirtualGPU("T4"), mode(), torch.autocast("cuda", dtype=torch.float16):
        scores = F.linear(torch.ones(4, 8, device="cuda"), torch.ones(8, 8, device="cuda"))
        assert scores.dtype is torch.float16
        scores, labels = scores + torch.arange(8, device="cuda").half() / 3, torch.zeros(4, device="cuda").long()
        loss = F.cross_entropy(scores, labels)
        assert loss.dtype is torch.float32
        assert loss == F.nll_loss(F.log_softmax(scores, 1, dtype=torch.float16), labels)
        assert loss != F.cross_entropy(scores.float(), labels)
