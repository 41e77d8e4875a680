"""A trainer in the style of Lightning: the module says what, the trainer says when."""

import torch
from torch import nn
from torch.utils.data import DataLoader, random_split


class Autoencoder(nn.Module):
    def __init__(self, width=64, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, width))

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)

    validation_step = training_step

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


class Trainer:
    def __init__(self, max_epochs=1, accelerator="auto", precision="32", gradient_clip_val=None):
        self.max_epochs, self.clip = max_epochs, gradient_clip_val
        gpu = accelerator == "gpu" or (accelerator == "auto" and torch.accelerator.is_available())
        self.device = torch.device("cuda:0" if gpu else "cpu")
        self.autocast = torch.autocast(self.device.type, torch.float16, enabled=precision == "16-mixed")
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "16-mixed")
        self.history = []

    def fit(self, module, train_loader, val_loader):
        module.to(self.device)
        optimizer, scheduler = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            module.train()
            for index, batch in enumerate(train_loader):
                self.optimize(module, optimizer, batch.to(self.device), index)
            scheduler.step()
            module.eval()
            with torch.no_grad(), self.autocast:
                losses = [module.validation_step(batch.to(self.device), i) for i, batch in enumerate(val_loader)]
            self.history.append(torch.stack(losses).mean().item())
            print(f"epoch {epoch}: val_loss={self.history[-1]:.4f}")

    def optimize(self, module, optimizer, batch, index):
        with self.autocast:
            loss = module.training_step(batch, index)
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), self.clip)
        self.scaler.step(optimizer)
        self.scaler.update()


if __name__ == "__main__":
    torch.manual_seed(0)
    train, val = random_split(torch.randn(96, 4) @ torch.randn(4, 64), [64, 32])
    trainer = Trainer(max_epochs=2, precision="16-mixed", gradient_clip_val=1.0)
    trainer.fit(Autoencoder(), DataLoader(train, 16, shuffle=True), DataLoader(val, 32))
