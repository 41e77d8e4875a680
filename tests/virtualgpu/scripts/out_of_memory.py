"""Find the largest batch by catching the out-of-memory error; then train on with it."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
limit = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((64 << 20) / limit)


def step(batch):
    x = torch.zeros(batch, 64, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


batch, failures, texts = 4096, 0, []
while True:
    try:
        step(batch)
        break
    except torch.cuda.OutOfMemoryError as error:
        failures += 1
        texts.append(str(error))
        batch //= 2
    gc.collect()
    torch.cuda.empty_cache()
print("largest batch", batch, "after", failures, "failures")
print(texts[0])
assert failures >= 1
assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
assert texts[0].startswith("CUDA out of memory. Tried to allocate ")
assert "GPU 0 has a total capacity of" in texts[0]
assert "allowed; " in texts[0] or "allowed" in texts[0]
held = torch.cuda.memory_allocated()
for _ in range(3):
    step(batch)
assert torch.cuda.memory_allocated() == held
assert torch.cuda.memory_stats()["num_ooms"] == failures
torch.cuda.set_per_process_memory_fraction(1.0)
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    print(error)
