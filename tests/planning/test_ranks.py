"""A step of one rank of many: what it takes, what goes between the ranks, and how they scale."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gpulab

WIDTH, LAYERS = 512, 4
WEIGHTS = 4 * LAYERS * (WIDTH + 1) * WIDTH


def model():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def training(wrap):
    def build(batch):
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


parallel = training(nn.parallel.DistributedDataParallel)


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
