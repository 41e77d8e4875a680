"""A label that does not exist: on a GPU the failure surfaces at the next synchronisation."""

import os

import torch
from torch import nn

at = None
logits, labels = torch.randn(4, 3, device="cuda", requires_grad=True), torch.tensor([0, 1, 2, 7], device="cuda")
try:
    at = "loss"
    loss = nn.functional.cross_entropy(logits, labels)
    at = "backward"
    loss.backward()
    at = "synchronize"
    torch.cuda.synchronize()
    at = "nowhere"
except torch.AcceleratorError as error:
    message = str(error)
    print(at, message)
    assert "device-side assert triggered" in message
expected = "loss" if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else "backward, synchronize"
assert at in expected, at
try:
    torch.ones(1, device="cuda").item()
except torch.AcceleratorError:
    poisoned = True
else:
    poisoned = False
assert poisoned
