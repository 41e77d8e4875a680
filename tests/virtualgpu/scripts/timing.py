"""Timing on a GPU: events, streams, synchronize, torch.utils.benchmark, throughput."""

import time

import torch
from torch import nn
from torch.utils import benchmark

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device).eval()
x = torch.randn(64, 128, device=device)
for _ in range(3):
    model(x)
torch.cuda.synchronize()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
with torch.inference_mode():
    for _ in range(5):
        model(x)
end.record()
torch.cuda.synchronize()
assert end.query()
milliseconds = begin.elapsed_time(end) / 5
assert milliseconds > 0
t0 = time.perf_counter()
model(x)
torch.cuda.synchronize(device)
seconds = time.perf_counter() - t0
print(f"{milliseconds:.3f} ms on the GPU's clock, {seconds * 1e3:.3f} ms on the host's")

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side
    y = model(x)
    done = side.record_event()
torch.cuda.current_stream().wait_event(done)
torch.cuda.current_stream().wait_stream(side)
y.record_stream(torch.cuda.current_stream())
side.synchronize()
assert side.query()
assert torch.cuda.current_stream() == torch.cuda.default_stream()
host = torch.empty(64, 10, pin_memory=True)
host.copy_(y, non_blocking=True)
torch.cuda.current_stream().synchronize()
assert torch.equal(host, y.cpu()) or torch.isnan(host).all()

timer = benchmark.Timer("model(x)", globals={"model": model, "x": x})
measured = timer.timeit(3)
assert measured.median > 0
for pinned in (False, True):
    source = torch.empty(1 << 18, pin_memory=pinned)
    begin.record()
    source.to(device, non_blocking=True)
    end.record()
    end.synchronize()
    gigabytes = source.nbytes / begin.elapsed_time(end) / 1e6
    assert gigabytes > 0
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
assert torch.backends.cudnn.enabled
model(x)
torch.backends.cudnn.benchmark = False
torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
