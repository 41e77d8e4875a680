"""`nn.SyncBatchNorm` over several ranks: plain batch norm of all their batches together, on the CPU, is the measure."""

import contextlib
import copy
import gc
import warnings

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpulab import VirtualGPU
from virtualgpu.scope.refusals import NotMirrored

from .recorded import GPUS, recorder, rows

MODES = pytest.mark.parametrize("compute", [True, False], ids=["values", "shapes"])
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@contextlib.contextmanager
def ranks(count, compute=True, gpu="H100", **options):
    with warnings.catch_warnings(), VirtualGPU(gpu, ranks=count, compute=compute, **options) as virtual:
        warnings.simplefilter("ignore")
        dist.init_process_group("nccl")
        try:
            yield virtual
        finally:
            dist.destroy_process_group()


def batch(shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return (3 * torch.randn(shape, generator=generator) + 2).to(dtype)


def layer(channels, dims, **options):
    """A batch norm on the CPU that has learned something: no weight is 1, no bias 0."""
    norm = PLAIN[dims](channels, **options)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
            if tensor is not None:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return norm


def run(norm, x, weigh):
    """What comes of a forward and a backward pass: output, gradients, running statistics."""
    x = x.detach().requires_grad_()
    out = norm(x)
    out.backward(weigh(out) * torch.ones_like(out))
    return {
        "out": out.detach(),
        "grad": x.grad,
        **{name: parameter.grad for name, parameter in norm.named_parameters()},
        **dict(norm.named_buffers()),
    }


def rising(out):
    """Other factors for each element, so that no gradient vanishes."""
    return torch.linspace(-1, 2, out[:1].numel(), device=out.device).view(out[:1].shape) ** 2


def close(found, wanted, **tolerance):
    torch.testing.assert_close(found.cpu(), wanted, check_stride=False, **tolerance)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 7])
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (4, 3, 5, 2), (2, 3, 4, 3, 2)], ids=len)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_equal_ranks_normalise_as_one_does_the_batch_of_all(count, shape, options):
    """The others have what this one has: the whole batch is this one so many times, also for the unbiased variance."""
    norm, x = layer(3, len(shape), **options), batch(shape)
    whole = run(copy.deepcopy(norm), x.repeat(count, *[1] * (len(shape) - 1)), rising)
    with ranks(count):
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(norm).cuda()
        found = run(synced, x.cuda(), rising)
        assert {tensor.device.type for tensor in found.values()} == {"cuda"}
        for name in ("out", "grad"):
            close(found[name], whole[name][: len(x)], rtol=1e-4, atol=1e-5)
        for name in {"weight", "bias"} & found.keys():  # each rank's own, which DistributedDataParallel adds up
            close(count * found[name], whole[name], rtol=1e-4, atol=1e-4)
        for name in {"running_mean", "running_var", "num_batches_tracked"} & found.keys():
            close(found[name], whole[name])


def test_the_unbiased_variance_counts_the_elements_of_all_ranks():
    x = torch.tensor([[0.0], [2.0]])  # mean 1, squares about it 2 on each rank
    with ranks(3):
        norm = nn.SyncBatchNorm(1, momentum=1.0).cuda()
        norm(x.cuda())
        assert norm.running_mean.item() == pytest.approx(1)
        assert norm.running_var.item() == pytest.approx(3 * 2 / (3 * 2 - 1), rel=1e-4)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5), st.sampled_from([1e-5, 1e-3, 0.1]))
@settings(max_examples=25)
def test_statistics_of_uneven_parts_make_those_of_the_whole(counts, channels, eps):
    x = batch((sum(counts), channels, 3))
    norm = nn.BatchNorm1d(channels, eps=eps, momentum=0.3)
    norm(x)
    with VirtualGPU("T4"):
        parts = [torch.batch_norm_stats(part, eps) for part in x.cuda().split(counts)]
        means, invstds = (torch.stack(each) for each in zip(*parts, strict=True))
        running = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
        numbers = 3.0 * torch.tensor(counts).cuda()
        mean, invstd = torch.batch_norm_gather_stats_with_counts(x.cuda(), means, invstds, *running, 0.3, eps, numbers)
        close(mean, x.mean((0, 2)), rtol=1e-4, atol=1e-5)
        close(invstd, (x.var((0, 2), correction=0) + eps).rsqrt(), rtol=1e-3, atol=1e-5)
        close(running[0], norm.running_mean, rtol=1e-4, atol=1e-5)
        close(running[1], norm.running_var, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half_weights", [False, True])
def test_sixteen_bits_are_computed_in_32(dtype, half_weights):
    """Rounded once at the end; statistics, and what ranks send each other, stay in 32 bits."""
    norm, x = layer(3, 4), 100 * batch((4, 3, 5, 5), dtype)  # the squares are above what float16 holds
    norm = norm.to(dtype) if half_weights else norm
    whole = run(copy.deepcopy(norm).float(), x.repeat(2, 1, 1, 1).float(), rising)
    with ranks(2) as gpu, gpu.timeline() as timeline:
        found = run(nn.SyncBatchNorm.convert_sync_batchnorm(norm).cuda(), x.cuda(), rising)
        sent = [span.nbytes for span in timeline.spans if span.where == "ranks"]
        kept = torch.batch_norm_stats(x.cuda(), 1e-5)
    assert sent == [2 * 4 * (2 * 3 + 1), 4 * 2 * 3]
    assert {t.dtype for t in kept} == {torch.float32}
    assert found["out"].dtype is found["grad"].dtype is dtype
    assert found["weight"].dtype is found["running_var"].dtype is (dtype if half_weights else torch.float32)
    once = torch.finfo(dtype).eps
    close(found["out"].float(), whole["out"][:4], rtol=once, atol=1e-4)
    close(found["grad"].float(), whole["grad"][:4], rtol=2 * once, atol=1e-2 * once)
    close(2 * found["weight"].float(), whole["weight"], rtol=2 * once, atol=1e-2)
    close(found["running_var"].float(), whole["running_var"], rtol=once, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast(dtype):
    with ranks(2, gpu="A100-80"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4)).cuda()
        with torch.autocast("cuda", dtype=dtype):
            out = model(batch((2, 3, 8, 8)).cuda())
        out.float().square().sum().backward()
        assert out.dtype is dtype
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        assert out.float().mean().item() == pytest.approx(0, abs=1e-3)


@MODES
def test_one_rank_is_plain_batch_norm(compute):
    norm, x = layer(3, 4), batch((4, 3, 5, 2))
    whole = run(copy.deepcopy(norm), x, rising)
    with ranks(1, compute) as gpu, gpu.timeline() as timeline:
        found = run(nn.SyncBatchNorm.convert_sync_batchnorm(norm).cuda(), x.cuda(), rising)
        if compute:
            for name, tensor in found.items():
                close(tensor, whole[name], rtol=1e-4, atol=1e-4)
    assert "native_batch_norm" in {span.name for span in timeline.spans}
    assert not [span for span in timeline.spans if span.where == "ranks"]


@MODES
def test_in_evaluation_it_asks_nobody(compute):
    with ranks(4, compute) as gpu, gpu.timeline() as timeline:
        out = nn.SyncBatchNorm(3).cuda().eval()(batch((2, 3, 4, 4)).cuda())
    assert out.shape == (2, 3, 4, 4)
    assert not [span for span in timeline.spans if span.where == "ranks"]


# -- shapes, layouts, memory, time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "compute"), [*((each, False) for each in GPUS), ("8.0", True)])
def test_kernels_allocate_and_refuse_what_they_do_on_cuda(compute, capability):
    """Results with their layouts and dtypes, each allocation in its order, and the words of what is refused."""
    record_sync_norm = recorder("record_sync_norm")
    theirs = {row.pop("case"): row for row in rows("sync_norm") if capability in row.pop("capability")}
    cases = record_sync_norm.cases()
    assert set(cases) == set(theirs)
    with VirtualGPU(GPUS[capability], compute=compute):
        mine = {name: record_sync_norm.record(case, warm_up=False) for name, case in cases.items()}
    assert {name: row for name, row in mine.items() if row != theirs[name]} == {}


def looked_at(compute, shape, dtype, form, options):
    """Shapes, dtypes, layouts, bytes, and what runs when."""
    gc.collect()
    with ranks(8, compute) as gpu, gpu.timeline() as timeline:
        norm = nn.SyncBatchNorm(shape[1], **options).cuda()
        x = torch.ones(shape, dtype=dtype, device="cuda").to(memory_format=form)
        found = run(norm, x, lambda out: torch.ones_like(out))
        tensors = {name: (t.shape, t.dtype, t.stride()) for name, t in found.items()}
        memory = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        spans = [(s.name, s.where, s.nbytes, s.start, s.seconds) for s in timeline.spans if s.where != "host"]
        return tensors, memory, spans, gpu.clock.host


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
@pytest.mark.parametrize("shape", [(300, 8), (64, 24, 20, 20), (3, 8, 4, 6, 5)], ids=len)
def test_shapes_alone_say_the_same(dtype, last, options, shape):
    if dtype is torch.float64:
        options = {**options, "dtype": dtype}
    form = LAST.get(len(shape), torch.contiguous_format) if last else torch.contiguous_format
    values, shapes = (looked_at(compute, shape, dtype, form, options) for compute in (True, False))
    assert values[:3] == shapes[:3]
    assert values[3] == pytest.approx(shapes[3], abs=1e-12)


@MODES
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4, 5, 6)], ids=len)
@pytest.mark.parametrize(("input_last", "gradient_last"), [(False, False), (True, True), (True, False), (False, True)])
def test_channels_last_stay_so_where_input_and_gradient_have_them(compute, shape, input_last, gradient_last):
    forms = {False: torch.contiguous_format, True: LAST[len(shape)]}
    with ranks(2, compute):
        x = torch.ones(shape, device="cuda").to(memory_format=forms[input_last]).requires_grad_()
        out = nn.SyncBatchNorm(3).cuda()(x)
        above = torch.ones(shape, device="cuda").to(memory_format=forms[gradient_last])
        (gradient,) = torch.autograd.grad(out, x, above)
        assert out.is_contiguous(memory_format=forms[input_last])
        assert gradient.is_contiguous(memory_format=forms[input_last and gradient_last])


@MODES
@pytest.mark.parametrize(
    ("shape", "last", "staging"),
    [
        ((64, 32, 28, 28), False, 0),
        ((64, 32, 28, 28), True, 128 * 32 * 4),  # 50176 rows: 196 blocks of 16 times 16 rows, but 128 at most
        ((64, 40, 28, 28), True, 128 * 40 * 4),
        ((4, 32, 20, 20), True, 0),  # 1600 rows are for 7 blocks: from 8 on they share
        ((5, 32, 20, 20), True, 8 * 32 * 4),
        ((512, 64), False, 0),
        ((8192, 64), False, 32 * 64 * 4),  # a table's channels are last
    ],
)
def test_blocks_that_share_a_channel_meet_in_memory(compute, shape, last, staging):
    """Four numbers forward and two backward for each block and channel, and 512 bytes for semaphores."""
    with VirtualGPU("H100", compute=compute):
        x = torch.ones(shape, device="cuda").to(memory_format=torch.channels_last if last else torch.contiguous_format)

        def taken(call):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            held = call()
            results = torch.cuda.memory_allocated() - before
            return held, results, torch.cuda.max_memory_allocated() - before - results

        (mean, invstd), results, beside = taken(lambda: torch.batch_norm_stats(x, 1e-5))
        assert results == 2 * 512
        assert beside == (4 * staging + 512 if staging else 0)
        given = x, x, mean, invstd, torch.ones_like(mean), True, True, True
        _, results, beside = taken(lambda: torch.batch_norm_backward_reduce(*given))
        assert results == 4 * 512
        assert beside == (2 * staging + 512 if staging else 0)


@MODES
def test_the_host_waits_three_times_for_ranks_without_a_batch(compute):
    """PyTorch takes their statistics out by a mask (nn/modules/_functions.py)."""
    with ranks(4, compute) as gpu:
        norm, x = nn.SyncBatchNorm(3).cuda(), torch.ones(2, 3, 4, 4, device="cuda")
        with gpu.timeline() as timeline:
            norm(x)
        assert sum(span.where == "to host" for span in timeline.spans) == 3
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            norm(x)
        torch.cuda.set_sync_debug_mode("default")


def test_statistics_of_other_ranks_take_no_time_for_the_input():
    """It is given for its dtype; the input's bytes are read for this rank's statistics, and for what comes out."""
    with ranks(2, compute=False) as gpu:
        norm, x = nn.SyncBatchNorm(64).cuda(), torch.ones(256, 64, 56, 56, device="cuda")
        with gpu.timeline() as timeline:
            norm(x)
        seconds = {span.name: span.seconds for span in timeline.spans if span.where == "kernels"}
        once = x.nbytes / (gpu.rates.memory_gbps * 1e9)
    assert seconds["batch_norm_gather_stats_with_counts"] < 3e-6
    assert seconds["batch_norm_stats"] == pytest.approx(once, rel=0.05)
    assert seconds["batch_norm_elemt"] == pytest.approx(2 * once, rel=0.05)


def test_resnet18_over_64_ranks_sends_what_the_arithmetic_says():
    models = pytest.importorskip("torchvision").models
    with ranks(64, compute=False) as gpu:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(models.resnet18()).cuda()
        channels = [m.num_features for m in model.modules() if isinstance(m, nn.SyncBatchNorm)]
        ddp = DistributedDataParallel(model, broadcast_buffers=False)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(8, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (8,), device="cuda")
        for _ in range(2):
            with gpu.timeline() as timeline:
                nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        parameters = sum(p.nbytes for p in model.parameters())
    spans = [span for span in timeline.spans if span.where == "ranks"]
    assert len(channels) == 20
    gathered = [span.nbytes for span in spans if span.name.startswith("all_gather")]
    assert gathered == [64 * 4 * (2 * c + 1) for c in channels]
    reduced = [span.nbytes for span in spans if span.name.startswith("all_reduce")]
    assert sorted(n for n in reduced if n <= 4 * 2 * 512) == sorted(4 * 2 * c for c in channels)
    assert sum(n for n in reduced if n > 4 * 2 * 512) == parameters  # in DistributedDataParallel's buckets


# -- what is refused -------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("dtype", "norm", "words"),
    [
        (torch.float32, {"dtype": torch.float16}, "Expected weight to have type Float but got Half"),
        (torch.bfloat16, {"dtype": torch.float16}, "Expected weight to have type Float but got Half"),
        (torch.float64, {}, "Expected mean to have type Float but got Double"),
        (torch.float32, {"dtype": torch.float64}, "Expected mean to have type Double but got Float"),
        (torch.float16, {"track_running_stats": False}, "Expected counts to have type Half but got Float"),
    ],
)
def test_dtypes_that_do_not_go_together(compute, dtype, norm, words):
    with ranks(2, compute):
        synced, x = nn.SyncBatchNorm(3, **norm).cuda(), torch.ones(2, 3, 4, 4, device="cuda", dtype=dtype)
        with pytest.raises(RuntimeError, match=words):
            synced(x)
        if norm == {"dtype": torch.float16}:
            kind = "expected scalar type Float but found Half"
            with pytest.raises(RuntimeError, match=kind):
                synced(x.to(memory_format=torch.channels_last))


@MODES
def test_what_else_is_refused(compute):
    with ranks(2, compute):
        norm = nn.SyncBatchNorm(3).cuda()
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
            norm(torch.ones(2, 3, 4, 4))
        with pytest.raises(NotImplementedError, match="\"batch_norm_stats_cuda\" not implemented for 'Long'"):
            norm(torch.ones(2, 3, 4, 4, device="cuda", dtype=torch.int64))
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            norm(torch.ones(2, 3, 4, 4, device="cuda:1"))
        with (
            pytest.raises(NotMirrored, match="all_gather while a CUDA graph is captured"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            norm(torch.ones(2, 3, 4, 4, device="cuda"))
