"""Weights that two layers share stay shared on the GPU, and the optimizer keeps following them."""

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Embedding(20, 8)
        self.decode = nn.Linear(8, 20, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(self.encode(x))


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # made before the model moves
model.to(device)
assert model.decode.weight is model.encode.weight
assert len(list(model.parameters())) == 1
assert optimizer.param_groups[0]["params"][0] is model.encode.weight
x = torch.randint(0, 20, (16,)).to(device)
losses = []
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.half()
assert model.decode.weight is model.encode.weight
del loss
model.float().cpu()
assert model.decode.weight is model.encode.weight
