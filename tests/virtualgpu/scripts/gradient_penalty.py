"""A gradient of a gradient: the penalty of WGAN-GP, and second-order MAML's inner step."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
critic = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
losses = []
for _ in range(2):
    real, fake = torch.rand(3, 1, 4, 4).to(device), torch.rand(3, 1, 4, 4).to(device)
    mix = torch.rand(3, 1, 1, 1).to(device)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between)
    (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
    penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [loss.item(), penalty.item()]

weight = torch.tensor([1.0, -2.0], device=device, requires_grad=True)
inner = (weight**2).sum()
(first,) = torch.autograd.grad(inner, weight, create_graph=True)
outer = ((weight - 0.1 * first) ** 2).sum()
outer.backward()
losses.append(weight.grad.sum().item())
assert weight.grad.device.type == device.type
hessian = torch.autograd.functional.hessian(lambda w: (w**4).sum(), weight.detach())
losses.append(hessian.sum().item())
