"""The deprecated names, as many tutorials still have them."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.Adam(model.parameters())
scaler = GradScaler()
x, y = torch.randn(8, 16).cuda(), torch.randint(0, 4, (8,)).cuda()
losses = []
for _ in range(3):
    optimizer.zero_grad()
    with autocast():
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
    assert output.dtype == torch.float16
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


with torch.amp.autocast("cuda"):
    hidden = model[0](x)
    squared = Square.apply(hidden)
    assert hidden.dtype == torch.float16
    assert squared.dtype == torch.float32
    squared.sum().backward()
