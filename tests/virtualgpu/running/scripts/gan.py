"""A DCGAN on random images: two networks, two optimizers."""

import torch
from torch import nn

device = torch.device("cuda")
torch.manual_seed(0)
width, latent, batch = 16, 32, 16


def initialise(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)


generator = nn.Sequential(
    nn.ConvTranspose2d(latent, width * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(width * 2), nn.ReLU(True),
    nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
    nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
).to(device)  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(width, width * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 2), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(width * 2, 1, 4, 1, 0), nn.Flatten(),
).to(device)  # fmt: skip
generator.apply(initialise)
discriminator.apply(initialise)
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed = torch.randn(4, latent, 1, 1, device=device)
images = torch.rand(64, 3, 16, 16) * 2 - 1

for i in range(6):
    discriminator.zero_grad()
    real = images[torch.randperm(64)[:batch]].to(device)
    real_loss = criterion(discriminator(real), torch.ones(batch, 1, device=device))
    fake = generator(torch.randn(batch, latent, 1, 1, device=device))
    fake_loss = criterion(discriminator(fake.detach()), torch.zeros(batch, 1, device=device))
    (real_loss + fake_loss).backward()
    optimizer_d.step()
    if i % 2:  # the generator steps every other time
        generator.zero_grad()
        loss = criterion(discriminator(fake), torch.ones(batch, 1, device=device))
        loss.backward()
        optimizer_g.step()
        print(f"{i}: D {(real_loss + fake_loss).item():.3f} G {loss.item():.3f}")

generator.eval()
with torch.no_grad():
    print(tuple(generator(fixed).cpu().shape))
