"""One training step of a torchvision model; its name is the first argument."""

import sys

import torch
import torchvision
from torch import nn

name = sys.argv[1]
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
options = {"vit_b_16": {"image_size": 64}}.get(name, {})
model = getattr(torchvision.models, name)(weights=None, num_classes=10, **options).to(device)
for module in model.modules():
    if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
        module.p = 0.0  # for the same numbers on every device
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x = torch.randn(2, 3, 64, 64).to(device)
y = torch.tensor([3, 7]).to(device)
losses = []
model.train()
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
optimizer.zero_grad()
losses.append(loss.item())
model.eval()
with torch.inference_mode():
    output = model(x[:1])
losses.append(output.float().std().item())
assert output.device.type == device.type
assert {p.device.type for p in model.parameters()} == {device.type}
