"""What is trained: a small network on the digits, and everything of it that has a state."""

import random

import numpy as np
import torch
from torch import nn

import gpulab

images, labels = gpulab.data.digits("train")
per_epoch = len(images) // 100


def build(device, steps):
    torch.manual_seed(0)  # the same weights in every process
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler(device.type)
    return {"model": net, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)  # also each GPU


def batch(step, rank=0, ranks=1):
    """This rank's part of the 100 samples of a step."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    rows = order[100 * place : 100 * (place + 1)][rank::ranks]
    x = images[rows].roll(random.randint(-1, 1), dims=-1)
    x = x * np.random.uniform(0.8, 1.2)
    x = x + 0.1 * torch.randn(x.shape)
    return x, labels[rows]


def train_step(model, parts, x, y):
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    parts["optimizer"].zero_grad()
    scaler = parts["scaler"]
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(parts["optimizer"])
    scaler.update()
    if scaler.get_scale() >= before:  # else the scaler has skipped the step
        parts["schedule"].step()
    return loss.item()


# For the notebook: what a new process does.


def fresh(number):
    """All parts as they are built, and the generators seeded with `number`."""
    parts = build(torch.device("cuda"), 60)
    seed(number)
    return parts


def train(parts, first, last, late=0):
    """The losses of these steps; `late` batches behind in the data."""
    losses = []
    for step in range(first, last):
        x, y = batch(step - late)
        losses.append(train_step(parts["model"], parts, x, y))
    return losses
