"""A small training program, as anybody's: nothing in it knows of a virtual GPU."""

import torch
from torch import nn


def make_model(width: int = 512) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches, device: str = "cuda") -> float:
    """Train on (images, labels) from the host; return the mean loss."""
    total = torch.zeros((), device=device)
    count = 0
    for images, labels in batches:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()  # no .item() here: it would wait for the GPU in every step
        count += 1
    return (total / count).item()
