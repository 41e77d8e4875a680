"""The virtual GPU as a whole: accounting against torch's MemTracker, random numbers, scopes, what belongs where."""

import os
import warnings
from functools import partial

import psutil
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

from gpulab import VirtualGPU
from virtualgpu.scope.ownership import is_dense


def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)), (32, 64)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 10)
    ), (4, 3, 16, 16)


def transformer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32 * 8, 10)), (4, 8, 32)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def recurrent():
    return Recurrent(), (4, 8, 16)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "adamw": partial(torch.optim.AdamW, foreach=True),
}


def step(model, optimizer, shape, device):
    x, y = torch.randn(shape, device=device), torch.zeros(shape[0], dtype=torch.long, device=device)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [mlp, convolutional, transformer, recurrent])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_mirroring_the_bytes_are_those_of_torchs_memtracker(make, optimizer):
    torch.manual_seed(0)
    model, shape = make()
    trained = OPTIMIZERS[optimizer](model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, trained)
    with warnings.catch_warnings(), tracker:
        warnings.simplefilter("ignore")
        step(model, trained, shape, "cpu")
    theirs = [
        sum(snapshot["Total"] for snapshot in tracker.get_tracker_snapshot(when).values())
        for when in ("peak", "current")
    ]
    torch.manual_seed(0)
    model, shape = make()
    with VirtualGPU("T4", mirror=False):
        model = model.to("cuda")
        torch.cuda.reset_peak_memory_stats()
        trained = OPTIMIZERS[optimizer](model.parameters())
        step(model, trained, shape, "cuda")
        stats = torch.cuda.memory_stats()
    # Adam's step counters, 4 bytes per parameter, are on the host where the parameters are on a GPU; they come last.
    counters = 4 * len(list(model.parameters())) if optimizer == "adamw" else 0
    assert stats["requested_bytes.all.current"] + counters == theirs[1]
    assert stats["requested_bytes.all.peak"] in (theirs[0], theirs[0] - counters)


# -- random numbers --------------------------------------------------------------------------------------------------


def test_dropout_keeps_about_its_part_and_scales_the_rest():
    with VirtualGPU("T4"):
        x = torch.ones(100_000, device="cuda", requires_grad=True)
        y = F.dropout(x, 0.25)
        assert sorted(y.detach().cpu().unique().tolist()) == [0.0, pytest.approx(4 / 3)]
        assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())


# -- who is where ----------------------------------------------------------------------------------------------------


def test_tensors_that_c_plus_plus_makes_for_gpu_tensors_are_on_the_gpu():
    with VirtualGPU("T4"):
        labels = torch.tensor([1, 2], device="cuda")
        assert F.one_hot(labels, 4).device == labels.device
        x = torch.randn(4, 4, device="cuda", requires_grad=True)
        x[1:3, 0].sum().backward()
        assert x.grad.device == labels.device
        assert F.one_hot(torch.tensor([1, 2]), 4).device.type == "cpu"


def test_in_inference_mode_parts_and_results_are_on_the_gpu():
    with VirtualGPU("T4"), torch.inference_mode():
        x = torch.ones(3, 4, device="cuda")
        made = [x.t().reshape(12), x.t().contiguous(), x.half(), x.to(torch.float64), F.linear(x, x), x.t().flatten()]
        assert {t.device.type for t in made} == {"cuda"}


def test_gradients_are_summed_in_place_where_only_the_engine_holds_them():
    """`x` gets two gradients; the second is added onto the first, as without a dispatch mode."""
    with VirtualGPU("T4"):
        x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
        y = x * x + x
        seed = torch.ones_like(y)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        y.backward(seed)
        # two products and their sum, which is written over one of the gradients
        assert torch.cuda.memory_stats()["requested_bytes.all.peak"] - before == 3 * 4_000_000
        assert torch.allclose(x.grad, 2 * x.detach() + 1, atol=1e-6)
        assert torch.equal(seed, torch.ones_like(seed))


@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (3, 1, 0, 2)])
def test_they_may_lie_in_any_order_of_dimensions(dims):
    """Those of attention lie by position, then by head."""
    with VirtualGPU("T4", compute=False):
        x = torch.randn(4, 8, 16, 1024, device="cuda", requires_grad=True)
        back = [dims.index(d) for d in range(4)]
        seed = torch.randn_like(x).permute(dims).contiguous().permute(back)
        y = x * 2 + x * 3
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y.backward(seed)
        assert torch.cuda.max_memory_allocated() - before == 2 * x.nbytes


def test_but_in_one_piece():
    x = torch.randn(4, 6, 8)
    assert all(is_dense(t) for t in (x, x.permute(2, 0, 1), x[1:2, 2], x.permute(1, 0, 2).contiguous().mT, x[:, :0]))
    assert not any(is_dense(t) for t in (x[..., :4], x[::2], x[:, :1].expand_as(x), x[:1, :, ::2].permute(2, 1, 0)))


def test_a_gradient_that_someone_else_holds_is_not_written_over():
    with VirtualGPU("T4"):
        seen = []
        x = torch.randn(8, 8, device="cuda", requires_grad=True)
        h = x * 1
        a, b = h * 2, h * 3
        a.register_hook(seen.append)
        b.register_hook(seen.append)
        (a + b).backward(torch.ones(8, 8, device="cuda"))
        assert all(torch.equal(grad, torch.ones_like(grad)) for grad in seen)
        assert torch.equal(x.grad, torch.full_like(x, 5))


class Scattered(torch.autograd.Function):
    """Its gradient is scattered into zeros that it keeps."""

    @staticmethod
    def forward(ctx, x, zeros):
        ctx.zeros = zeros
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        at = torch.arange(8, device=grad.device)
        return ctx.zeros.index_put((at,), grad, accumulate=True) + ctx.zeros.scatter_add(
            0, at[:, None], grad[:, :1]
        ), None


def test_gradients_are_scattered_into_the_zeros_made_for_them():
    """As without a dispatch mode: one tensor, not the zeros and their copy."""
    with VirtualGPU("T4"):
        x = torch.randn(1000, 1000, device="cuda", requires_grad=True)
        at = torch.arange(10, device="cuda")
        for forward in (
            lambda: x[at], lambda: x.index_select(0, at), lambda: x.gather(0, at[None, :]), lambda: x.topk(2, 0)[0],
        ):  # fmt: skip
            y = forward()
            seed = torch.ones_like(y)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            y.backward(seed)
            assert x.nbytes <= torch.cuda.max_memory_allocated() - before < 1.5 * x.nbytes
            assert x.grad.sum() == y.numel()
            x.grad = None


def test_but_not_into_zeros_that_someone_else_holds():
    with VirtualGPU("T4"):
        zeros = torch.zeros(8, 8, device="cuda")
        x = torch.randn(8, 8, device="cuda", requires_grad=True)
        Scattered.apply(x, zeros).sum().backward()
        assert not zeros.any()
        assert x.grad.sum() == 64 + 8


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_host_without_the_memory_says_so_and_nothing_stays_allocated(monkeypatch):
    poor = type("Memory", (), {"available": 300 << 20})()
    with VirtualGPU("T4"):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: poor)
        with pytest.raises(MemoryError, match=r"this machine.*has only 300 MiB left.*compute=False"):
            torch.empty(100 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 0
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1024\.00 GiB"):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def test_shapes_only_holds_models_that_are_larger_than_the_host():
    before = psutil.Process().memory_info().rss
    with VirtualGPU("H200", compute=False), torch.device("cuda"):
        layers = [nn.Linear(16384, 16384, bias=False) for _ in range(60)]  # 60 GiB
        assert torch.cuda.memory_allocated() == 60 << 30
        assert layers[0].weight.device == torch.device("cuda:0")
    assert psutil.Process().memory_info().rss - before < 200 << 20


def test_grad_scaler_takes_gradients_to_be_finite_where_there_are_no_values():
    with VirtualGPU("T4", compute=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.Linear(8, 8, device="cuda")
        optimizer, scaler = torch.optim.AdamW(layer.parameters()), torch.amp.GradScaler("cuda")
        scaler.scale(layer(torch.ones(2, 8, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.state) == 2  # the step was taken


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gpu": "T5"}, "name is 'T5'; known GPUs: T4"),
        ({"count": 0}, "count must be a whole number of GPUs from 1 to 64, not 0"),
        ({"count": True}, "count must be"),
        ({"settings": "max_split_size_mb:x"}, "max_split_size_mb"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        VirtualGPU(**arguments)


def test_the_environments_settings_hold_unless_others_are_given(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert VirtualGPU().settings.expandable_segments
    assert not VirtualGPU(settings="").settings.expandable_segments


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cannot_use_the_gpu_and_says_why():
    with VirtualGPU("T4"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ones(1, device="cuda")
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            text = "the host's own operation fails"
            try:
                torch.where(torch.arange(4) > 1, 5.0, torch.arange(4))  # as a worker does; C++ makes a scalar for it
                text = "no error"
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                text = str(error) if text == "no error" else text
            os.write(writer, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1000).startswith(b"Cannot re-initialize CUDA in forked subprocess")


@pytest.mark.parametrize("compute", [True, False])
def test_fake_tensors_of_the_host_work_in_a_scope(compute):
    """They ask for their device by an operation of their own."""
    with VirtualGPU("T4", compute=compute), FakeTensorMode():
        layer = nn.Linear(4, 8)
        y = layer(torch.empty(2, 4))
        assert (y.shape, y.device.type) == ((2, 8), "cpu")
        y.sum().backward()
        assert layer.weight.grad.shape == (8, 4)
        assert torch.cuda.memory_allocated() == 0
