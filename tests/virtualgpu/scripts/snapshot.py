"""Record the allocator's history and write a snapshot for PyTorch's memory viewer; the path is the first argument."""

import pickle
import sys

import torch
from torch import nn

torch.cuda.memory._record_memory_history(max_entries=100_000)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot(sys.argv[1])
torch.cuda.memory._record_memory_history(enabled=None)
with open(sys.argv[1], "rb") as file:
    content = pickle.load(file)
assert content["segments"]
actions = {event["action"] for event in content["device_traces"][0]}
assert {"alloc", "free_requested", "free_completed", "segment_alloc"} <= actions, actions
assert any("snapshot.py" in frame["filename"] for event in content["device_traces"][0] for frame in event["frames"])
