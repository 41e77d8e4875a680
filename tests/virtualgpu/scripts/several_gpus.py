"""Two GPUs in one process: a model across both."""

import torch
from torch import nn


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
single = nn.DataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
assert single(torch.ones(3, 4, device="cuda")).shape == (3, 2)
