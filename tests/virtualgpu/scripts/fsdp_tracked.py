"""The peak of a step of FSDP2 by PyTorch's FSDPMemTracker, and by the virtual GPU: `python fsdp_tracked.py reshard`."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpulab import VirtualGPU

RANKS, WIDTH = 8, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        seen = ((q @ k.transpose(-1, -2)) / 8).softmax(-1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(1000, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.out = nn.Linear(WIDTH, 1000, bias=False)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def build(device, case):
    mesh = init_device_mesh(device, (RANKS,))
    with torch.device(device):
        model, words = Model(), torch.zeros(8, 64, dtype=torch.long)
    options = {"mesh": mesh, "reshard_after_forward": case != "keep"}
    if case == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if case == "checkpoint":
        model.blocks = nn.ModuleList([checkpoint_wrapper(block) for block in model.blocks])
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model, torch.optim.Adam(model.parameters(), foreach=True), words


def step(model, optimizer, words):
    out = model(words)
    loss = F.cross_entropy(out.flatten(0, 1).float(), words.flatten())
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
