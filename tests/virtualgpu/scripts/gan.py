"""A generator against a discriminator: two optimizers, detached samples; the generator steps every other time."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
generator = nn.Sequential(
    nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1),
    nn.LeakyReLU(0.2, inplace=True),
    nn.utils.spectral_norm(nn.Conv2d(16, 1, 4)),
    nn.Flatten(),
).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
losses = []
for i in range(6):
    real = torch.rand(4, 1, 8, 8).to(device)
    noise = torch.randn(4, 8, 1, 1).to(device)
    fake = generator(noise)
    optimizer_d.zero_grad()
    loss_d = criterion(discriminator(real), torch.ones(4, 1, device=device))
    loss_d = loss_d + criterion(discriminator(fake.detach()), torch.zeros(4, 1, device=device))
    loss_d.backward()
    optimizer_d.step()
    losses.append(loss_d.item())
    if i % 2:
        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), torch.ones(4, 1, device=device))
        loss_g.backward()
        optimizer_g.step()
        losses.append(loss_g.item())
