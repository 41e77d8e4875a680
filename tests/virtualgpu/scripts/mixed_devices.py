"""Mistakes with devices: each must raise what CUDA raises."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
x = torch.ones(3, 4)
g = x.cuda()
two_devices = "Expected all tensors to be on the same device"
mistakes = {
    "linear": (lambda: model(x), two_devices),
    "add": (lambda: x + g, two_devices),
    "add other way": (lambda: g + x, two_devices),
    "in place": (lambda: x.add_(g), two_devices),
    "matmul": (lambda: g @ x.t(), two_devices),
    "cat": (lambda: torch.cat([x, g]), two_devices),
    "stack": (lambda: torch.stack([g, x]), two_devices),
    "where": (lambda: torch.where(g > 0, g, x), two_devices),
    "loss": (lambda: nn.functional.cross_entropy(model(g), torch.zeros(3, dtype=torch.long)), two_devices),
    "mse": (lambda: nn.functional.mse_loss(g, x), two_devices),
    "embedding": (lambda: nn.Embedding(4, 2).cuda()(torch.tensor([1])), two_devices),
    "batch norm": (lambda: nn.BatchNorm1d(4)(g), two_devices),
    "conv": (lambda: nn.Conv1d(1, 1, 1)(g.unsqueeze(1)), ""),
    "layer norm": (lambda: nn.LayerNorm(4)(g), two_devices),
    "lstm": (lambda: nn.LSTM(4, 2)(g), ""),
    "attention": (lambda: nn.functional.scaled_dot_product_attention(g, x, g), ""),
    "bmm": (lambda: torch.bmm(g.unsqueeze(0), x.t().unsqueeze(0)), two_devices),
    "index of host": (lambda: x[torch.tensor([0], device="cuda")], "indices should be either on cpu"),
    "gather": (lambda: g.gather(1, torch.zeros(3, 1, dtype=torch.long)), two_devices),
    "scatter": (lambda: x.scatter(1, torch.zeros(3, 1, dtype=torch.long).cuda(), 1.0), two_devices),
    "out": (lambda: torch.add(g, g, out=torch.empty(3, 4)), two_devices),
    "masked": (lambda: g.masked_fill(x > 0, 0.0), ""),
    "dot": (lambda: torch.dot(g[0], x[0]), two_devices),
    "numpy": (lambda: g.numpy(), "can't convert cuda:0 device type tensor to numpy"),
    "ordinal": (lambda: torch.zeros(1, device="cuda:5"), "invalid device ordinal"),
    "to ordinal": (lambda: x.to("cuda:3"), "invalid device ordinal"),
    "pin": (lambda: g.pin_memory(), "only dense CPU tensors can be pinned"),
    "nonsense": (lambda: x.to("gpu"), "Expected one of cpu"),
}
missed, raised = [], {}
for name, (mistake, text) in mistakes.items():
    try:
        mistake()
    except (RuntimeError, TypeError, torch.AcceleratorError) as error:
        raised[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        if text not in str(error):
            missed.append(f"{name}: {error}")
    else:
        missed.append(f"{name}: nothing raised")
allowed = [
    g + torch.tensor(1.0), torch.tensor(1.0) * g, g[torch.tensor([0, 1])], torch.where(g > 0, torch.tensor(1.0), g),
    torch.pow(torch.tensor(2.0), g), g.masked_fill(g > 0, torch.tensor(0.0)),
    torch.empty_like(g).copy_(x), x.copy_(g),
]  # fmt: skip
g[0] = torch.zeros(4)
x[0] = g[0]
