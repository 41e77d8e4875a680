"""Every optimizer that a course uses, in the forms that CUDA has: for-loop, foreach, fused, capturable."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device.type == "cuda"
optim = torch.optim
cases = [
    ("sgd", lambda p: optim.SGD(p, lr=0.1)),
    ("momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    ("sgd fused", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True)),
    ("sgd loop", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=False)),
    ("adam", lambda p: optim.Adam(p, lr=1e-2)),
    ("amsgrad", lambda p: optim.Adam(p, lr=1e-2, amsgrad=True)),
    ("adam capturable", lambda p: optim.Adam(p, lr=1e-2, capturable=on_gpu)),
    ("adamw", lambda p: optim.AdamW(p, lr=1e-2)),
    ("adamw foreach", lambda p: optim.AdamW(p, lr=1e-2, foreach=True)),
    ("adamw fused", lambda p: optim.AdamW(p, lr=1e-2, fused=True)),
    ("adamw loop", lambda p: optim.AdamW(p, lr=1e-2, foreach=False)),
    ("adafactor", lambda p: optim.Adafactor(p, lr=1e-2)),
    ("rmsprop", lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True)),
    ("adagrad", lambda p: optim.Adagrad(p, lr=1e-2)),
    ("adagrad fused", lambda p: optim.Adagrad(p, lr=1e-2, fused=not on_gpu)),
    ("adamax", lambda p: optim.Adamax(p, lr=1e-3)),
    ("nadam", lambda p: optim.NAdam(p, lr=1e-3)),
    ("radam", lambda p: optim.RAdam(p, lr=1e-3)),
    ("adadelta", lambda p: optim.Adadelta(p)),
    ("rprop", lambda p: optim.Rprop(p)),
    ("asgd", lambda p: optim.ASGD(p)),
    ("muon", lambda p: optim.Muon([q for q in p if q.dim() == 2], lr=1e-3)),
]
losses, peaks = [], {}
for name, make in cases:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    optimizer = make(list(model.parameters()))
    x, y = torch.randn(8, 16).to(device), torch.randn(8, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        optimizer.step()
    losses.append(loss.item())
    if on_gpu:
        peaks[name] = torch.cuda.max_memory_allocated() - held
        for state in optimizer.state.values():
            for key, value in state.items():
                if torch.is_tensor(value) and value.dim():
                    assert value.is_cuda, (name, key)
    del model, optimizer, loss
if on_gpu:
    assert peaks["adamw foreach"] == peaks["adamw"] > peaks["adamw fused"] == 0

torch.manual_seed(0)
embedding = nn.Embedding(10, 4, sparse=True).to(device)
optimizer = optim.SparseAdam(embedding.parameters(), lr=0.1)
loss = embedding(torch.tensor([1, 3, 3], device=device)).square().sum()
loss.backward()
assert embedding.weight.grad.is_sparse
optimizer.step()
losses.append(embedding.weight.sum().item())
