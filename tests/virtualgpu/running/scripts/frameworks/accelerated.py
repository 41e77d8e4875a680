"""accelerate: a loop with accumulation, clipping and a schedule, prepared by an Accelerator."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
precision = sys.argv[1] if len(sys.argv) > 1 else "no"
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=precision)
model = nn.Sequential(nn.Embedding(100, 32), nn.Flatten(), nn.Linear(16 * 32, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randint(100, (48, 16)), torch.arange(48) % 10)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(data, 8), schedule)
losses = []
for _ in range(2):
    model.train()
    for words, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(words), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss).mean().item())
    model.eval()
    right = 0
    for words, labels in loader:
        with torch.no_grad():
            found = model(words).argmax(-1)
        found, labels = accelerator.gather_for_metrics((found, labels))
        right += (found == labels).sum().item()
accelerator.print(f"{accelerator.device}: {losses}, {right} right")
