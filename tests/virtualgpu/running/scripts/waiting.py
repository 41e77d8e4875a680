"""A rank that waits for another one for good: for what, and where the two meet; says "waits" once all can know it."""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from virtualgpu.ranks import rank_waits


def say():
    while not rank_waits.here.text():
        time.sleep(0.01)
    os.write(1, b"waits\n")  # in one piece: another rank writes there too


for_what, *folder = sys.argv[1:]
rank, telling = int(os.environ["RANK"]), threading.Thread(target=say, daemon=True)
if for_what == "meeting":
    telling.start()
where = {"init_method": f"file://{folder[0]}/meeting", "rank": rank, "world_size": 2} if folder else {}
dist.init_process_group("nccl", **where)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1).cuda())
for batch in range(3 if rank == 0 else 2):
    if batch == 2:
        telling.start()
        if for_what == "message":
            dist.recv(torch.empty(100, device="cuda"), 1)
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    torch.cuda.synchronize()
telling.start()
dist.barrier()
