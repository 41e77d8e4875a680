"""A masked nn.TransformerEncoder in training: sentences of different lengths, some words hidden, as BERT learns."""

import sys

import torch
from torch import nn

precision = sys.argv[1] if len(sys.argv) > 1 else "float32"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
words, width, length, hidden = 100, 32, 20, 99


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width))
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        return self.head(self.encoder(x, src_key_padding_mask=ids == 0))


model = Masked().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
model.train()
for _ in range(3):
    ids = torch.randint(1, 90, (6, length))
    ids[torch.arange(length) >= torch.randint(8, length + 1, (6, 1))] = 0
    chosen = (torch.rand(6, length) < 0.3) & (ids != 0)
    targets = ids.masked_fill(~chosen, -100).to(device)
    ids = ids.masked_fill(chosen, hidden).to(device)
    with torch.autocast(device, getattr(torch, precision), enabled=precision != "float32"):
        scores = model(ids)
        loss = nn.functional.cross_entropy(scores.view(-1, words), targets.view(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    losses.append(loss.item())
print(f"{device}: {losses}")
