"""Two real ranks that train with DistributedDataParallel and write down what they see: folder, compute, unequal."""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpulab


def worker(rank, folder, compute, unequal):
    with gpulab.VirtualGPU("H100", compute=compute) as gpu:
        dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
        torch.manual_seed(rank)
        sizes = (6, 3 + rank) if unequal else (6, 3)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(*sizes)).cuda()
        try:
            ddp = DistributedDataParallel(module, gradient_as_bucket_view=compute)
        except RuntimeError as error:
            (folder / f"{rank}.json").write_text(json.dumps(str(error)))
            dist.destroy_process_group()
            return
        started = [parameter.detach().cpu().tolist() if compute else None for parameter in ddp.parameters()]
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
        if rank:
            torch.randn(1 << 22, device="cuda").sort()  # this rank is late
        with gpu.timeline() as timeline:
            for _ in range(2):
                ddp.zero_grad()
                ddp.eval()(data[4 * rank : 4 * rank + 4].cuda()).square().mean().backward()
        spans = [(s.name, s.start, s.seconds, s.waited, s.nbytes) for s in timeline.spans if s.where == "ranks"]
        gradients = [parameter.grad.cpu().tolist() if compute else None for parameter in ddp.parameters()]
        (folder / f"{rank}.json").write_text(json.dumps([spans, started, gradients]))
        del ddp
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(Path(sys.argv[1]), sys.argv[2] == "compute", "unequal" in sys.argv), nprocs=2)
