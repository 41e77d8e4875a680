"""Save a checkpoint, load it with map_location, and go on exactly where training stopped."""

import os
import tempfile

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
kept = tempfile.TemporaryDirectory()
path = os.path.join(kept.name, "checkpoint.pt")


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return (
        model,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        torch.amp.GradScaler(device.type, enabled=False),
    )


def train(model, optimizer, scheduler, steps):
    out = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        out.append(loss.item())
    return out


data = torch.Generator().manual_seed(1)
x, y = torch.randn(16, 8, generator=data).to(device), torch.randint(0, 2, (16,), generator=data).to(device)
model, optimizer, scheduler, scaler = build()
losses = train(model, optimizer, scheduler, 3)
torch.save(
    {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(), "step": 3, "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if device.type == "cuda" else None,
    },
    path,
)  # fmt: skip
without_stop = train(model, optimizer, scheduler, 3)

model, optimizer, scheduler, scaler = build()
checkpoint = torch.load(path, map_location=device)
on_host = torch.load(path, map_location="cpu", weights_only=True)
assert checkpoint["model"]["0.weight"].device.type == device.type
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
scaler.load_state_dict(checkpoint["scaler"])
torch.set_rng_state(on_host["rng"])  # host state: loaded to the host
if checkpoint["cuda_rng"] is not None:
    torch.cuda.set_rng_state_all(on_host["cuda_rng"])
resumed = train(model, optimizer, scheduler, 3)
assert resumed == without_stop or resumed[0] != resumed[0], (resumed, without_stop)
losses += resumed

assert on_host["model"]["0.weight"].device == torch.device("cpu")
as_saved = torch.load(path)
assert as_saved["model"]["0.weight"].device.type == device.type
assert as_saved["optimizer"]["state"][0]["exp_avg"].device.type == device.type
fresh, *_ = build()
fresh.load_state_dict(checkpoint["model"], assign=True)
assert next(fresh.parameters()).device.type == device.type
kept.cleanup()
