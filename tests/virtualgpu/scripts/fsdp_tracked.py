"""The peak of a step of FSDP2 by PyTorch's FSDPMemTracker, and by the virtual GPU: `python fsdp_tracked.py reshard`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpulab import VirtualGPU

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sharded_programs import Model, shard

RANKS = 8


def build(device, case):
    mesh = init_device_mesh(device, (RANKS,))
    with torch.device(device):
        model, words = Model(), torch.zeros(16, 64, dtype=torch.long)
    options = {"reshard_after_forward": case != "keep"}
    if case == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if case == "checkpoint":
        model.layers = nn.ModuleList([checkpoint_wrapper(layer) for layer in model.layers])
    shard(model, mesh, **options)
    return model, torch.optim.Adam(model.parameters(), foreach=True), words


def step(model, optimizer, words):
    out = model(words)
    loss = nn.functional.cross_entropy(out.flatten(0, 1).float(), words.flatten())
    del out
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    case = sys.argv[1]
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    model, optimizer, words = build("cpu", case)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((words,))
    with tracker:
        step(model, optimizer, words)
    tracked = sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())
    dist.destroy_process_group()
    del model, optimizer, words, tracker
    with VirtualGPU("H100", ranks=RANKS, compute=False, mirror=False):  # mirror: what CUDA's kernels take besides
        made = build("cuda", case)
        step(*made)
        ours = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    print(tracked, ours)
