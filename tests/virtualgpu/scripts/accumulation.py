"""Accumulated gradients with mixed precision and clipping; the last window is shorter and counts as it should."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_amp = device.type == "cuda"
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=6)
scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
loader = DataLoader(TensorDataset(torch.randn(40, 20), torch.randint(0, 5, (40,))), batch_size=4)
window = 4
losses, running, steps = [], torch.zeros((), device=device), 0
for _ in range(2):
    optimizer.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(loader):
        first = i - i % window
        in_window = min(window, len(loader) - first)
        x, y = x.to(device), y.to(device)
        with torch.autocast(device.type, dtype=torch.float16, enabled=use_amp):
            loss = nn.functional.cross_entropy(model(x), y) / in_window
        scaler.scale(loss).backward()
        running += loss.detach()
        if (i + 1) % window == 0 or i + 1 == len(loader):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale:  # it falls when the step was skipped
                scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(running.item())
            running.zero_()
            steps += 1
assert steps == 6
