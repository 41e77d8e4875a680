"""Programs of sharded training, each of which PyTorch's own tools make: what `test_sharding.py` and real ranks run.

Each takes the number of ranks, trains a small model, and returns what it has to say; on any number of ranks, real or
imagined.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH, LAYERS, WORDS, LENGTH, BATCH = 128, 3, 512, 32, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def batch():
    return torch.arange(BATCH * LENGTH, device="cuda").view(BATCH, LENGTH) % WORDS


def loss_of(model):
    words = batch()
    return F.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())


def train(model, optimizer=None, steps=2, clip=False):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if optimizer is None else optimizer
    losses = []
    for _ in range(steps):
        torch.cuda.reset_peak_memory_stats()
        loss = loss_of(model)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def shard(model, mesh, **options):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def alone(ranks):
    return train(Model().cuda())


def fsdp(ranks, **options):
    return train(shard(Model().cuda(), init_device_mesh("cuda", (ranks,)), **options))


def kept_after_forward(ranks):
    return fsdp(ranks, reshard_after_forward=False)


def clipped(ranks):
    return train(shard(Model().cuda(), init_device_mesh("cuda", (ranks,))), clip=True)


def in_bfloat16(ranks):
    return fsdp(ranks, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def in_float16(ranks):
    return fsdp(ranks, mp_policy=MixedPrecisionPolicy(torch.float16, torch.float16))


def offloaded(ranks):
    return train(shard(Model(), init_device_mesh("cuda", (ranks,)), offload_policy=CPUOffloadPolicy()))


def from_meta(ranks):
    with torch.device("meta"):
        model = Model()
    shard(model, init_device_mesh("cuda", (ranks,))).to_empty(device="cuda")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return train(model)


def checkpointed(ranks):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Model()
    model.layers = nn.ModuleList([checkpoint_wrapper(layer) for layer in model.layers])
    return train(shard(model.cuda(), init_device_mesh("cuda", (ranks,))))


def accumulated(ranks):
    model = shard(Model().cuda(), init_device_mesh("cuda", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for part in range(3):
        model.set_requires_gradient_sync(part == 2)
        loss_of(model).backward()
    optimizer.step()
    return []


def scaled(ranks):
    model = shard(Model().cuda(), init_device_mesh("cuda", (ranks,)))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", torch.float16):
        loss = loss_of(model)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return [loss.detach()]


def hybrid(ranks):
    return train(shard(Model().cuda(), init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("copies", "parts"))))


def tensor_parallel(ranks):
    model = Model().cuda()
    plan = {f"layers.{n}.up": ColwiseParallel() for n in range(LAYERS)}
    plan |= {f"layers.{n}.down": RowwiseParallel() for n in range(LAYERS)}
    parallelize_module(model, init_device_mesh("cuda", (ranks,)), plan)
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False))


def sequence_parallel(ranks):
    model = Model().cuda()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for n in range(LAYERS):
        plan |= {
            f"layers.{n}.norm": SequenceParallel(),
            f"layers.{n}.up": ColwiseParallel(input_layouts=Shard(1)),
            f"layers.{n}.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    parallelize_module(model, init_device_mesh("cuda", (ranks,)), plan)
    return train(model)


def loss_in_parts(ranks):
    model = Model().cuda()
    plan = {"out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(model, init_device_mesh("cuda", (ranks,)), plan)
    with loss_parallel():
        loss = loss_of(model)
        loss.backward()
    return [loss.detach().to_local()]


def both_ways(ranks):
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = Model().cuda()
    plan = {f"layers.{n}.up": ColwiseParallel() for n in range(LAYERS)}
    plan |= {f"layers.{n}.down": RowwiseParallel() for n in range(LAYERS)}
    parallelize_module(model, mesh["tensor"], plan)
    model = shard(model, mesh["data"])
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False))


def saved(ranks):
    """Sharded files, which are read again; the losses before and after."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = shard(Model().cuda(), init_device_mesh("cuda", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, steps=1)
    before = loss_of(model).detach()
    weights, state = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as alone:
        folder = os.environ.get("CHECKPOINT") or alone
        checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
        train(model, optimizer, steps=1)
        weights, state = get_state_dict(model, optimizer)
        checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return [before, loss_of(model).detach()]


def redundancy(ranks):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("nccl")
    model = Model().cuda()
    return train(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3))


def first_edition(ranks):
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("nccl")
    return train(FullyShardedDataParallel(Model().cuda(), device_id=torch.cuda.current_device()))


def pipeline(ranks):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("nccl")
    rank, parts = dist.get_rank(), 2 * ranks
    given = torch.zeros(2, WIDTH, device="cuda", requires_grad=rank > 0)
    made = torch.zeros(2, WIDTH, device="cuda", requires_grad=True)
    device = torch.device("cuda", torch.cuda.current_device())
    stage = PipelineStage(Layer().cuda(), rank, ranks, device, input_args=(given,), output_args=(made,))
    schedule = Schedule1F1B(stage, n_microbatches=parts, loss_fn=lambda out, wanted: (out - wanted).square().mean())
    whole, losses = torch.ones(2 * parts, WIDTH, device="cuda"), []
    last = rank == ranks - 1
    given = (whole,) if rank == 0 else ()
    schedule.step(*given, **({"target": whole, "losses": losses} if last else {}))
    return [loss.detach() for loss in losses]


PROGRAMS = {
    program.__name__: program
    for program in (
        fsdp, kept_after_forward, clipped, in_bfloat16, in_float16, offloaded, from_meta, checkpointed, accumulated,
        scaled, hybrid, tensor_parallel, sequence_parallel, loss_in_parts, both_ways, saved, redundancy, first_edition,
        pipeline,
    )
}  # fmt: skip
