"""What two real ranks do, each with a virtual GPU: `python real_ranks.py values|shapes program [file]` under torchrun.

Writes to `file`.rankN what rank N has to say as JSON.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from virtual.sharded_programs import PROGRAMS, alone

from gpulab import VirtualGPU


def collectives(ranks):
    """All of them, with other values on each rank."""
    dist.init_process_group("nccl")
    mine = dist.get_rank()
    x = torch.arange(4.0, device="cuda") + 10 * mine
    found = {}
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        y = x.clone()
        dist.all_reduce(y, getattr(dist.ReduceOp, op))
        found[f"all_reduce {op}"] = y
    y = x.clone()
    dist.all_reduce(y, dist._make_nccl_premul_sum(0.5))
    found["all_reduce PREMUL_SUM"] = y
    parts = [torch.empty(4, device="cuda") for _ in range(ranks)]
    dist.all_gather(parts, x)
    found["all_gather"] = torch.cat(parts)
    whole = torch.empty(ranks * 4, device="cuda")
    work = dist.all_gather_into_tensor(whole, x, async_op=True)
    work.wait()
    found["all_gather_into_tensor"] = whole
    uneven = [torch.empty(n + 1, device="cuda") for n in range(ranks)]
    dist.all_gather(uneven, torch.full((mine + 1,), float(mine), device="cuda"))
    found["all_gather uneven"] = torch.cat(uneven)
    out = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(out, x)
    found["reduce_scatter_tensor"] = out.clone()
    dist.reduce_scatter(out, list(x.chunk(ranks)), dist.ReduceOp.AVG)
    found["reduce_scatter"] = out
    out = torch.empty(4, device="cuda")
    dist.all_to_all_single(out, x)
    found["all_to_all_single"] = out
    gives, takes = ([1, 3], [1, 2]) if mine == 0 else ([2, 2], [3, 2])
    out = torch.empty(sum(takes), device="cuda")
    dist.all_to_all_single(out, x, takes, gives)
    found["all_to_all_single by sizes"] = out
    y = x.clone()
    dist.broadcast(y, 1)
    found["broadcast"] = y
    y = x.clone()
    dist.reduce(y, 1)
    found["reduce"] = y if mine == 1 else x
    dist.gather(x, parts if mine == 0 else None, 0)
    found["gather"] = torch.cat(parts) if mine == 0 else x
    y = torch.empty(2, device="cuda")
    dist.scatter(y, list(x.chunk(ranks)) if mine == 0 else None, 0)
    found["scatter"] = y
    half = x.to(torch.bfloat16)
    dist.all_reduce(half)
    found["bfloat16"] = half.float()
    message = torch.empty(4, device="cuda")
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, 1 - mine), dist.P2POp(dist.irecv, message, 1 - mine)]
    ):
        request.wait()
    found["exchange"] = message
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": mine})
    dist.barrier()
    return {"objects": objects} | {name: tensor.tolist() for name, tensor in found.items()}


def straggler(ranks):
    """Rank 1 computes before the sum, rank 0 does not: both are done with it at the same time."""
    dist.init_process_group("nccl")
    x, a = torch.ones(1 << 20, device="cuda"), torch.ones(2048, 2048, device="cuda")
    for _ in range(20 * dist.get_rank()):
        a @ a
    dist.all_reduce(x)
    return []


def main(mode, name, file):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    with VirtualGPU("H100", count=ranks, compute=mode == "values", host="reference") as gpu:
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        with gpu.timeline() as timeline:
            said = {**PROGRAMS, "alone": alone, "collectives": collectives, "straggler": straggler}[name](ranks)
        spans = [span for span in timeline.spans if span.where == "ranks"]
        if isinstance(said, list):
            said = {"losses": [loss.item() for loss in said] if mode == "values" else []}
        said |= {
            "allocated": torch.cuda.memory_allocated(),
            "peak": torch.cuda.max_memory_allocated(),
            "ends": [span.start + span.seconds for span in spans],
            "sent": [(span.name, span.nbytes) for span in spans],
        }
        timeline.save(f"{file}.trace{rank}.json")
        Path(f"{file}.rank{rank}").write_text(json.dumps(said))
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
