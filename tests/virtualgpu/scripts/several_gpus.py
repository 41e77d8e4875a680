"""Two GPUs in one process: a model across both, copies between them, and what is on which."""

import torch
from torch import nn

assert torch.cuda.device_count() == 2


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32).to("cuda:0")
        self.second = nn.Linear(32, 4).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x.to("cuda:0")).relu().to("cuda:1"))


torch.manual_seed(0)
model = Split()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(8, 16), torch.randint(0, 4, (8,), device="cuda:1")
losses = []
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
assert model.first.weight.grad.device == torch.device("cuda:0")
assert model.second.weight.grad.device == torch.device("cuda:1")
used = [torch.cuda.memory_allocated(i) for i in range(2)]
big = torch.zeros(1 << 20, device="cuda:1")
assert torch.cuda.memory_allocated(0) == used[0]
assert torch.cuda.memory_allocated(1) == used[1] + (4 << 20)
torch.cuda.set_device(1)
assert torch.empty(1, device="cuda").device == torch.device("cuda:1")
with torch.cuda.device(0):
    assert torch.empty(1, device="cuda").device == torch.device("cuda:0")
assert torch.cuda.current_device() == 1
torch.cuda.set_device(0)
assert big.to("cuda:0").device == torch.device("cuda:0")
assert big.cuda(0).cuda(1).device == big.device
assert torch.zeros(2, device=1).device == torch.device("cuda:1")
refused = ""
try:
    torch.ones(3, device="cuda:0") + torch.ones(3, device="cuda:1")
except RuntimeError as error:
    refused = str(error)
assert "cuda:0 and cuda:1" in refused or "cuda:1 and cuda:0" in refused, refused
single = nn.DataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
assert single(torch.ones(3, 4, device="cuda")).shape == (3, 2)
