"""Training that looks at values as it goes: LBFGS, averaged batch norm, learning rates that are tensors on the GPU."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(8, 6).to(device), torch.randn(8, 3).to(device)
losses = []
for capturable in (False, device.type == "cuda"):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).to(device)
    lr = torch.tensor(0.01, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=capturable, foreach=capturable)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(3):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert optimizer.param_groups[0]["lr"].device.type == device.type
    steps = {state["step"].device.type for state in optimizer.state.values()}
    assert steps == {"cuda" if capturable else "cpu"}
assert abs(losses[2] - losses[5]) < 1e-6


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
losses += [optimizer.step(closure).item(), closure().item()]

model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(device)
averaged = AveragedModel(model)
averaged.update_parameters(model)
update_bn([x, x + 1], averaged, device=device)
losses.append(averaged.eval()(x).square().mean().item())
if (model(x) > 1e9).any():
    raise AssertionError("the branch must see the value")
kept = x[x[:, 0] > 0]
rows = (x[:, 0] > 0).nonzero().flatten()
assert len(kept) == len(rows)
assert kept.device.type == rows.device.type == device.type
losses.append(nn.functional.gaussian_nll_loss(x, x + 1, x.square() + 1).item())
losses += [float(len(kept)), kept.sum().item(), float(torch.unique(torch.tensor([3, 1, 3], device=device)).sum())]
