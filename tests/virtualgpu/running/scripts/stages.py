"""Loads a model, infers, trains, and stops after the stage that it is told, by an error where it is told so too."""

import sys

import torch
from torch import nn

stages = ["load", "infer", "backward", "train"]
last, *how = sys.argv[1:]
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to("cuda")
cache = torch.empty(1 << 28, device="cuda")  # 1 GiB, of which nothing is written
for stage in stages[: stages.index(last) + 1]:
    if stage == "infer":
        with torch.no_grad():
            print(model(torch.randn(16, 64).cuda()).argmax(-1).shape)
    elif stage == "backward":
        model(torch.randn(16, 64).cuda()).logsumexp(-1).mean().backward()
    elif stage == "train":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.step()
if how == ["raise"]:
    raise ValueError("what went wrong")
if how == ["exit"]:
    sys.exit(3)
if how == ["memory"]:
    torch.empty(1 << 38, device="cuda")
