"""Profiling a training loop: schedule, named ranges, table and Chrome trace."""

import json
import os
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = tempfile.TemporaryDirectory()
folder = kept.name
traces = []


def ready(prof):
    path = os.path.join(folder, f"trace{len(traces)}.json")
    prof.export_chrome_trace(path)
    traces.append(path)


with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=ready,
    record_shapes=True,
    profile_memory=True,
) as prof:
    for _ in range(5):
        with record_function("data"):
            x, y = torch.randn(8, 32).to(device), torch.randint(0, 4, (8,)).to(device)
        optimizer.zero_grad()
        with record_function("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
        prof.step()
table = prof.key_averages().table(
    sort_by="cpu_time_total", row_limit=-1
)  # all: which are the longest hangs on the machine
print(table)
assert "forward" in table
assert len(traces) == 1
with open(traces[0]) as file:
    events = json.load(file)["traceEvents"]
assert any(event.get("name") == "backward" for event in events)

with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    model(torch.randn(8, 32, device=device)).sum().backward()
prof.key_averages(group_by_input_shape=True).table(sort_by="cuda_time_total", row_limit=5)
with torch.profiler.profile() as prof:
    model(torch.randn(8, 32, device=device))
names = [event.key for event in prof.key_averages()]
assert "aten::addmm" in names, names
with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as prof:
    model(torch.randn(8, 32, device=device))
with torch.autograd.profiler.profile(use_device="cuda") as prof:
    model(torch.randn(8, 32, device=device))
with torch.cuda.nvtx.range("step"):
    model(torch.randn(8, 32, device=device))
kept.cleanup()
