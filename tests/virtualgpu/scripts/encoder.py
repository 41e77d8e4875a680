"""nn.TransformerEncoder and nn.MultiheadAttention, in training and on the fast path of evaluation."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layer = nn.TransformerEncoderLayer(d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).to(device)
head = nn.Linear(32, 5).to(device)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
x, y = torch.randn(4, 10, 32).to(device), torch.randint(0, 5, (4,)).to(device)
padding = torch.zeros(4, 10, dtype=torch.bool, device=device)
padding[:, 7:] = True
losses = []
for _ in range(3):
    optimizer.zero_grad()
    features = encoder(x, src_key_padding_mask=padding)
    loss = nn.functional.cross_entropy(head(features.mean(dim=1)), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
encoder.eval()
with torch.inference_mode():
    losses.append(encoder(x).square().mean().item())  # the fast path
with torch.no_grad():
    mask = nn.Transformer.generate_square_subsequent_mask(10, device=device)
    losses.append(encoder(x, mask=mask, is_causal=True).square().mean().item())

attention = nn.MultiheadAttention(32, 4, batch_first=True).to(device)
output, weights = attention(x, x, x)
assert weights.shape == (4, 10, 10)
output.sum().backward()
plain, none = attention(x, x, x, need_weights=False)
assert none is None
losses += [output.square().mean().item(), plain.square().mean().item(), weights.std().item()]

model = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True).to(device)
causal = model.generate_square_subsequent_mask(6, device=device)
out = model(x, x[:, :6], tgt_mask=causal, tgt_is_causal=True)
out.sum().backward()
losses.append(out.square().mean().item())
dropping = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True).to(device)
dropping(x).sum().backward()
assert {p.grad.device.type for p in dropping.parameters()} == {device.type}
if device.type == "cuda":
    with torch.autocast("cuda", dtype=torch.float16):
        assert dropping(x).dtype in (torch.float16, torch.float32)
        encoder(x)
