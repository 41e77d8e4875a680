"""Mixed use of the virtual GPU: nothing stays behind on the GPU, nor on the host.

Training with and without AMP in both backings, checkpointing, out of memory, memory history, trackers, threads, copies
both ways, scopes entered and left. GPULAB_SOAK=1000 makes so many rounds; with `-s` it says how the process has grown.
"""

import gc
import os
import threading
import warnings
from collections import Counter

import psutil
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpulab import GPUMemoryTracker, VirtualGPU
from virtualgpu.scope.labels import Label

ROUNDS = int(os.environ.get("GPULAB_SOAK", "2"))


class Net(nn.Module):
    """A convolution, a norm, attention and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = checkpoint(self.encoder, x, use_reentrant=False)
        return self.head(self.lstm(x)[0][:, -1])


def train(steps: int) -> None:
    """A short training in mixed precision."""
    model = Net().to("cuda")
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(steps):
        x, y = torch.randn(4, 3, 8, 8).to("cuda"), torch.randint(0, 10, (4,), device="cuda")
        with GPUMemoryTracker(), torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    loss.cpu()


def overflow() -> None:
    """Out of memory, caught."""
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()


def one_round() -> None:
    """Everything once."""
    for compute in (True, False):
        with VirtualGPU("T4", compute=compute):
            train(3)
            overflow()
            torch.cuda.memory._record_memory_history(max_entries=1000)
            train(1)
            torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
            thread = threading.Thread(target=train, args=(1,))
            thread.start()
            thread.join()
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # an older torch keeps them
            left = torch.cuda.memory_allocated()
        if left:
            raise RuntimeError(f"{left} bytes stayed allocated on the virtual GPU")


def alive():
    gc.collect()
    kinds = (torch.Tensor, Label, torch.nn.Module)
    return Counter(type(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds))


def test_rounds_of_mixed_use_leave_no_tensor_label_or_module_behind():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one_round()
        before, resident = alive(), psutil.Process().memory_info().rss
        for number in range(1, ROUNDS + 1):
            one_round()
            if number % 50 == 0:
                grown = (psutil.Process().memory_info().rss - resident) / 2**20
                print(f"{number} rounds: the process has grown by {grown:.1f} MiB", flush=True)
    assert alive() - before == Counter()
