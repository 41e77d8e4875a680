"""What two real ranks do, each with a virtual GPU: `python real_ranks.py values|shapes folder program...`.

Each program has a virtual GPU and a process group of its own. What rank N has to say of it is written as JSON to
`program`.rankN in that folder, and its trace to `program`.traceN.json.
"""

import contextlib
import gc
import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.distributed import distributed_c10d as c10d

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sharded_programs import PROGRAMS, alone

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
    dist.reduce(y, 1, dist.ReduceOp.AVG)
    found["reduce"] = y
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
    table, other = x.view(2, 2).t(), torch.empty(2, 2, device="cuda").t()  # the same in memory on both
    (dist.send if mine == 0 else dist.recv)(table if mine == 0 else other, 1 - mine)
    found["transposed"] = (table if mine == 0 else other).reshape(-1)
    late = torch.empty(4, device="cuda")
    request = dist.irecv(late, 1) if mine == 0 else None
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)  # the other sends after it
    while not work.is_completed():
        pass
    found["polled"] = y
    if mine == 1:
        request = dist.isend(x, 0)
    while not request.is_completed():
        pass
    found["late"] = late if mine == 0 else x
    half = dist.split_group(split_ranks=[[0], [1]])
    y = x.clone()
    dist.all_reduce(y, group=half)
    found["split"] = y
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": mine})
    box = [f"from {mine}"]
    dist.broadcast_object_list(box, src=0)
    dist.barrier(device_ids=[mine])
    return {"objects": objects, "box": box} | {name: tensor.tolist() for name, tensor in found.items()}


def small_numbers(ranks):
    """Whole numbers that the program knows, other ones on each rank: lengths, counts, which rank this is."""
    dist.init_process_group("nccl")
    mine = dist.get_rank()
    x = torch.arange(4, device="cuda") + 10 * mine
    found = {}
    y = x.clone()
    dist.all_reduce(y)
    found["all_reduce"] = y
    whole = torch.empty(8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(whole, x)
    found["all_gather"] = whole
    y = x.clone()
    dist.broadcast(y, 1)
    found["broadcast"] = y
    y = torch.zeros_like(x)
    (dist.send if mine == 0 else dist.recv)(x if mine == 0 else y, 1 - mine)
    found["message"] = x if mine == 0 else y
    known = torch.randint(5, (4,), device="cuda") if mine == 0 else x.clone()
    dist.all_reduce(known)
    found["of one that nobody knows"] = known
    many = torch.arange(1 << 17, device="cuda")
    dist.all_reduce(many)
    found["many"] = many[:2]
    return {name: tensor.tolist() for name, tensor in found.items()}


def forgotten(ranks):
    """Many sums that nobody waits for: what they take is given back all the same, and `synchronize` waits for them."""
    dist.init_process_group("nccl")
    for _ in range(300):
        dist.all_reduce(torch.ones(256, device="cuda"), async_op=True)
    dist.barrier()  # by now the other has asked for all of them
    dist.all_reduce(torch.ones(256, device="cuda"), async_op=True)
    held = torch.cuda.memory_allocated() // 1024
    x = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(x, async_op=True)
    torch.cuda.synchronize()
    return {"held": held, "left": torch.cuda.memory_allocated(), "sum": x[:2].tolist()}


def straggler(ranks):
    """Rank 1 computes before the sum, rank 0 does not: both are done with it at the same time."""
    dist.init_process_group("nccl")
    x, a = torch.ones(1 << 20, device="cuda"), torch.ones(2048, 2048, device="cuda")
    for _ in range(20 * dist.get_rank()):
        a @ a
    dist.all_reduce(x)
    return []


def normalised(ranks):
    """Uneven parts of a batch in bfloat16 and float32, then all of it on rank 0 and nothing on rank 1."""
    dist.init_process_group("nccl")
    mine = dist.get_rank()
    found = {}
    for name, split, dtype in [("uneven", 2, torch.float32), ("half", 3, torch.bfloat16), ("empty", 6, torch.float32)]:
        norm = torch.nn.SyncBatchNorm(3, momentum=0.3).cuda()
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        whole = torch.arange(6 * 3 * 4.0).cos().view(6, 3, 4)
        x = (whole[:split] if mine == 0 else whole[split:]).to("cuda", dtype).requires_grad_()
        out = norm(x)
        out.backward(out.detach() ** 2)
        grads = [x.grad, norm.weight.grad, norm.bias.grad] if x.numel() else [x]  # without a batch there are none
        tensors = [out, *grads, norm.running_mean, norm.running_var]
        found[name] = [tensor.float().tolist() for tensor in tensors]
    return found


OTHERS = {f.__name__: f for f in (alone, collectives, small_numbers, forgotten, straggler, normalised)}


@contextlib.contextmanager
def meeting(name):
    """The ranks meet in a part of their own of the launcher's store, where an earlier program has left nothing, and
    part together: who leaves early resets a connection that the other still reads from."""
    own, stores = c10d.rendezvous, []

    def rendezvous(*where, **options):
        store, rank, ranks = next(own(*where, **options))
        stores.append(PrefixStore(name, store))
        stores[0].set_timeout(timedelta(minutes=15))
        return iter([(stores[0], rank, ranks)])

    c10d.rendezvous = rendezvous
    try:
        yield
        if dist.is_initialized():
            stores[0].set(f"over on {dist.get_rank()}", "")
            stores[0].wait([f"over on {rank}" for rank in range(dist.get_world_size())])
            dist.destroy_process_group()
    finally:
        c10d.rendezvous = own


def run(mode, name, file):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with VirtualGPU("H100", count=ranks, compute=mode == "values", host="reference") as gpu, meeting(name):
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        with gpu.timeline() as timeline:
            said = {**PROGRAMS, **OTHERS}[name](ranks)
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


def main(mode, folder, *names):
    warnings.simplefilter("ignore")
    for name in names:
        run(mode, name, os.path.join(folder, name))
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
