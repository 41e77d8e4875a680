"""Reading the caching allocator: allocated, reserved, peak; what empty_cache does and does not."""

import gc

import torch
from torch import nn

MIB = 2**20
device = torch.device("cuda")


def report(label: str) -> tuple[float, float]:
    allocated, reserved = torch.cuda.memory_allocated() / MIB, torch.cuda.memory_reserved() / MIB
    print(f"{label:20} allocated {allocated:8.1f} MiB  reserved {reserved:8.1f} MiB")
    return allocated, reserved


start = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
x = torch.zeros(1024, 1024, device=device)
assert torch.cuda.memory_allocated() - start == 4 * MIB
assert torch.cuda.memory_reserved() >= 20 * MIB
report("one tensor")
y = torch.zeros(3, device=device)
assert torch.cuda.memory_allocated() - start == 4 * MIB + 512
z = x + 1
assert torch.cuda.max_memory_allocated() - start == 8 * MIB + 512
del z
assert torch.cuda.memory_allocated() - start == 4 * MIB + 512
assert torch.cuda.max_memory_allocated() - start == 8 * MIB + 512
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() - start == 4 * MIB + 512
view = x[:10].view(-1)
del x
assert torch.cuda.memory_allocated() - start == 4 * MIB + 512
del view
gc.collect()
assert torch.cuda.memory_allocated() - start == 512
reserved = torch.cuda.memory_reserved()
del y
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == start
assert torch.cuda.memory_reserved() < reserved
print(torch.cuda.memory_summary(abbreviated=True))
print(torch.cuda.memory_summary(device, abbreviated=False)[:200])
stats = torch.cuda.memory_stats()
for key in (
    "allocated_bytes.all.current",
    "reserved_bytes.all.peak",
    "num_alloc_retries",
    "num_ooms",
    "active.all.current",
):
    assert key in stats, key
assert stats["allocated_bytes.all.current"] == start
assert torch.accelerator.memory_allocated() == start
torch.accelerator.reset_peak_memory_stats()
assert torch.accelerator.max_memory_allocated() == start
free_before = torch.cuda.mem_get_info()[0]
big = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
assert free_before - torch.cuda.mem_get_info()[0] == 64 * MIB
del big
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info()[0] == free_before

model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(8)]).to(device)
weights = 8 * 256 * 256 * 4
assert torch.cuda.memory_allocated() - start == weights
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randn(64, 256, device=device)
loss = model(batch).square().mean()
loss.backward()
optimizer.step()
report("after the first step")
assert torch.cuda.memory_allocated() - start >= 4 * weights
with torch.no_grad():
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    model(batch)
    assert torch.cuda.max_memory_allocated() - held < weights // 2 + 40 * MIB
optimizer.zero_grad()
assert torch.cuda.memory.memory_allocated(0) == torch.cuda.memory_allocated("cuda:0")
torch.cuda.reset_accumulated_memory_stats()
torch.cuda.ipc_collect()
torch.cuda.set_per_process_memory_fraction(0.5)
torch.cuda.set_per_process_memory_fraction(1.0)
assert torch.cuda.get_allocator_backend() == "native"
