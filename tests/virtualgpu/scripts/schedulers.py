"""Learning rate schedules, gradient hooks in the optimizer, and state of all of them."""

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
makers = [
    lambda o: schedulers.StepLR(o, 2, 0.5),
    lambda o: schedulers.MultiStepLR(o, [1, 3]),
    lambda o: schedulers.ExponentialLR(o, 0.9),
    lambda o: schedulers.CosineAnnealingLR(o, 5),
    lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
    lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=6),
    lambda o: schedulers.LambdaLR(o, lambda step: min(1.0, (step + 1) / 3)),
    lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=2), schedulers.CosineAnnealingLR(o, 3)], [2]
    ),
]
losses = []
for make in makers:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    x, y = torch.randn(5, 6, device="cpu").to(device), torch.zeros(5, 3, device=device)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    losses += [loss.item(), scheduler.get_last_lr()[0]]
    scheduler.load_state_dict(scheduler.state_dict())

torch.manual_seed(0)
model = nn.Linear(6, 3).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
plateau = schedulers.ReduceLROnPlateau(torch.optim.SGD(model.parameters(), lr=0.1), patience=0)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    plateau.step(1.0)
losses.append(loss.item())
