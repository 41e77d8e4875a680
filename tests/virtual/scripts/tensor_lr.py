"""Learning rates that are tensors on the GPU, as captured and compiled training steps want them."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")
losses = []
for capturable in (False, True):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).to(device)
    lr = torch.tensor(0.01, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=capturable, foreach=capturable)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.ones(4, 6).to(device)
    for _ in range(3):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert optimizer.param_groups[0]["lr"].is_cuda
    steps = {state["step"].device.type for state in optimizer.state.values()}
    assert steps == {"cuda" if capturable else "cpu"}
assert abs(losses[2] - losses[5]) < 1e-6
