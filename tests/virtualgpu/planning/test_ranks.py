"""A step of one rank of many: what it takes, what goes between the ranks, and how they scale."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gpulab

WIDTH, LAYERS = 512, 4
WEIGHTS = 4 * LAYERS * (WIDTH + 1) * WIDTH


def model():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def training(wrap):
    def build(batch):
        if wrap is not plain:
            dist.init_process_group("nccl")
        wrapped = wrap(model().cuda())
        optimizer, x = torch.optim.AdamW(wrapped.parameters()), torch.randn(batch, WIDTH, device="cuda")

        def step():
            wrapped(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def sharded(module):
    from torch.distributed.fsdp import fully_shard

    for layer in module:
        fully_shard(layer)
    return fully_shard(module)


def plain(module):
    return module


parallel = training(nn.parallel.DistributedDataParallel)


@pytest.mark.parametrize("batch", [8, 4096])
def test_ranks_are_compared_with_the_script_without_ddp(batch):
    """What DistributedDataParallel itself costs, buckets and copies, is no work: two ranks do less than that of two."""
    plan, one = gpulab.plan(parallel, batch, "A100-80", ranks=2), gpulab.plan(training(plain), batch, "A100-80")
    on_one = gpulab.plan(parallel, batch, "A100-80", ranks=1)
    assert plan.alone_ms == pytest.approx(one.step_ms, rel=1e-9)
    assert plan.ddp_alone_ms == pytest.approx(on_one.step_ms, rel=1e-9)
    assert plan.scaling == pytest.approx(2 * one.step_ms / plan.step_ms)
    assert plan.alone_ms < plan.ddp_alone_ms
    assert f"one GPU with a step of {plan.alone_ms:,.1f} ms, {plan.ddp_alone_ms:,.1f} ms with DDP" in str(plan)


def test_without_ddp_its_whole_interface_is_still_there():
    def with_all_of_it(module):
        module = nn.Sequential(module, nn.BatchNorm1d(WIDTH).cuda())  # of buffers, which DDP broadcasts each time
        wrapped = nn.parallel.DistributedDataParallel(module, device_ids=[0], find_unused_parameters=True)
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        with wrapped.no_sync():
            wrapped(torch.randn(8, WIDTH)).sum().backward()  # moved to the GPU
        assert wrapped._get_ddp_logging_data() is not None
        assert next(iter(wrapped.state_dict())).startswith("module.")
        return wrapped

    def without(module):
        return nn.Sequential(module, nn.BatchNorm1d(WIDTH).cuda())

    one = gpulab.plan(training(without), 64, "T4", ranks=1)
    plan = gpulab.plan(training(with_all_of_it), 64, "T4", ranks=2)
    assert plan.alone_ms is not None, plan.notes
    assert plan.alone_ms == pytest.approx(one.step_ms)


def test_ddp_keeps_buckets_and_sends_every_gradient():
    plan = gpulab.plan(parallel, 64, "H100", ranks=8)
    assert plan.ranks == 8
    assert plan.communication == pytest.approx(WEIGHTS, rel=0.001)
    assert plan.gradients == pytest.approx(WEIGHTS, rel=0.001)  # the buckets are a second copy of the gradients
    assert plan.sent == WEIGHTS
    assert 0 < plan.exposed_ms <= plan.communication_ms < plan.step_ms
    assert sum(plan.categories.values()) == plan.peak_allocated
    assert plan.samples_per_second == pytest.approx(8 * 64 / plan.step_ms * 1000)
    assert plan.scaling == pytest.approx(8 * plan.alone_ms / plan.step_ms)
    text = str(plan)
    assert "ranks        8: 8 x H100, NVSwitch (NVLink 4)" in text
    assert "between them" in text
    assert "scaling" in text
    assert not dist.is_initialized()


def test_a_slow_link_shows():
    fast, slow = (gpulab.plan(parallel, 64, gpu, ranks=4) for gpu in ("A100-40", "T4"))
    assert slow.exposed_ms > 5 * fast.exposed_ms


@pytest.mark.parametrize("ranks", [8, 64])
def test_fsdp_keeps_a_share(ranks):
    plan = gpulab.plan(training(sharded), 64, "H100", ranks=ranks)
    assert plan.optimizer_state == pytest.approx(2 * WEIGHTS / ranks, rel=0.05, abs=512 * 4 * LAYERS)
    assert plan.scaling > 0.5 * ranks
    assert plan.ddp_alone_ms == plan.alone_ms
    assert "with DDP" not in str(plan)


def test_what_only_many_ranks_have_room_for_is_not_compared_with_one():
    def build(batch):
        dist.init_process_group("nccl")
        with torch.device("meta"):
            layers = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(4)])  # 4 GiB, with AdamW 16
        cut = sharded(layers).to_empty(device="cuda")
        optimizer, x = torch.optim.AdamW(cut.parameters(), fused=True), torch.randn(batch, 16384, device="cuda")

        def step():
            cut(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    plan = gpulab.plan(build, 8, "T4", ranks=8)
    assert plan.fits
    assert plan.alone_ms is plan.scaling is None
    assert "no scaling: one rank alone has no room for it" in plan.notes


def test_without_ranks_nothing_is_said_of_them():
    plan = gpulab.plan(lambda batch: lambda: torch.ones(batch, device="cuda") + 1, 8, "T4")
    assert (plan.ranks, plan.communication, plan.sent, plan.scaling) == (1, 0, 0, None)
    assert "communication" not in str(plan)
    assert "ranks" not in str(plan)


def test_a_build_for_so_many_ranks_alone_has_no_scaling_and_says_why():
    def build(batch):
        from torch.distributed.device_mesh import init_device_mesh

        init_device_mesh("cuda", (2, 2))
        return lambda: torch.ones(batch, device="cuda") + 1

    plan = gpulab.plan(build, 8, "H100", ranks=4)
    assert plan.scaling is None
    assert any(note.startswith("no scaling: with one rank build does not run") for note in plan.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"ranks": 0}, "ranks must be"), ({"nodes": 2}, "without ranks="), ({"ranks": 2, "link": "x"}, "link is 'x'")],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        gpulab.plan(parallel, 8, "H100", **options)
