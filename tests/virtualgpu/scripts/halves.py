"""Whole models in 16 bits, and the dtypes of results."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
outputs = []
for change in (
    lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float16), lambda m: m.to(device, torch.bfloat16),
    lambda m: m.double(), lambda m: m.to(dtype=torch.float16, device=device),
):  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 5)
    ).to(device)
    model = change(model)
    dtype = next(model.parameters()).dtype
    x = torch.randn(4, 3, 8, 8, device="cpu").to(device, dtype)
    out = model(x)
    assert out.dtype == dtype
    out.float().square().mean().backward()
    assert model[0].weight.grad.dtype == dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    outputs.append(out.float().mean().item())
    small = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Softmax(-1)).to(device).to(dtype)
    assert small(torch.ones(2, 16, dtype=dtype, device=device)).dtype == dtype
a = torch.tensor([70000.0, 1e-8], device=device).half()
huge, tiny = a.isinf()[0], a[1] == 0
attention = nn.functional.scaled_dot_product_attention(
    *[torch.randn(2, 4, 8, 16, device=device).half() for _ in range(3)]
)
assert attention.dtype == torch.float16
embedded = nn.Embedding(5, 8).to(device).half()(torch.tensor([1, 2], device=device))
assert embedded.dtype == torch.float16
refused = ""
try:
    nn.Linear(4, 4).to(device)(torch.ones(2, 4, device=device).half())
except RuntimeError as error:
    refused = str(error)
assert "dtype" in refused, "float16 into a float32 layer must be refused"
