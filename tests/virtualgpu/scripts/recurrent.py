"""LSTM, GRU and RNN: training, packed sequences, state carried over, cells."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
losses = []
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 8, padding_idx=0).to(device)
    net = kind(8, 16, num_layers=2, batch_first=True, bidirectional=kind is nn.LSTM).to(device)
    head = nn.Linear(32 if kind is nn.LSTM else 16, 3).to(device)
    parameters = [*embedding.parameters(), *net.parameters(), *head.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
    sequences = [torch.randint(1, 20, (length,)) for length in (9, 7, 4, 4)]
    lengths = torch.tensor([len(s) for s in sequences])
    tokens = pad_sequence(sequences, batch_first=True).to(device)
    y = torch.tensor([0, 1, 2, 1], device=device)
    for _ in range(2):
        optimizer.zero_grad()
        output, state = net(embedding(tokens))
        loss = nn.functional.cross_entropy(head(output[:, -1]), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses.append(loss.item())
    packed = pack_padded_sequence(embedding(tokens), lengths, batch_first=True, enforce_sorted=True)
    output, _ = net(packed)
    padded, back = pad_packed_sequence(output, batch_first=True)
    assert padded.device.type == device.type
    assert back.tolist() == [9, 7, 4, 4]
    losses.append(padded.square().mean().item())
    net.flatten_parameters()
    with torch.no_grad():
        output, state = net(embedding(tokens), state)
        losses.append(output.abs().mean().item())
    if device.type == "cuda":
        with torch.autocast("cuda", dtype=torch.float16):
            half, _ = net(embedding(tokens))
            assert half.dtype == torch.float16
            half.float().sum().backward()

torch.manual_seed(0)
cell = nn.LSTMCell(8, 16).to(device)
h = c = torch.zeros(4, 16, device=device)
for t in range(3):
    h, c = cell(torch.ones(4, 8, device=device) * t, (h, c))
h.sum().backward()
losses.append(h.sum().item())
layered = nn.LSTM(8, 16, num_layers=2, dropout=0.3, batch_first=True).to(device)
layered(torch.randn(2, 5, 8, device=device))[0].sum().backward()
