"""Mixed precision with float16 and a gradient scaler, and with bfloat16 without one."""

import sys

import torch
from torch import nn

dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[sys.argv[1] if len(sys.argv) > 1 else "float16"]
torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
criterion = nn.CrossEntropyLoss()
inputs, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
losses = []
for _ in range(6):
    x, y = inputs.to(device), targets.to(device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type="cuda", dtype=dtype):
        output = model(x)
        loss = criterion(output, y)
    assert output.dtype == dtype
    assert loss.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.device.type == "cuda"
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
assert all(p.dtype == torch.float32 and p.grad.dtype == torch.float32 for p in model.parameters())
state = scaler.state_dict()
scaler.load_state_dict(state)
scale = scaler.get_scale()
with torch.autocast("cuda", dtype=dtype), torch.no_grad():
    hidden = model[0](x)
    assert hidden.dtype == dtype
    assert torch.softmax(hidden, -1).dtype == torch.float32
    assert (hidden + x.new_zeros(1)).dtype == torch.float32
    with torch.autocast("cuda", enabled=False):
        assert model[0](x).dtype == torch.float32
        assert torch.mm(x, x.t()).dtype == torch.float32
    assert torch.mm(x, x.t()).dtype == dtype


@torch.autocast("cuda", dtype=dtype)
def forward(batch):
    return model(batch)


assert forward(x).dtype == dtype
