"""Mixed use of the virtual GPU for a while: does the host's memory grow?  `python tools/evidence/soak.py [MINUTES]`

Training with and without AMP in both backings, checkpointing, out of memory, memory history, trackers, threads, copies
both ways, scopes entered and left. Prints the process's memory once a minute, and at the end its growth after the first
fifth. It is no test: CI has no hour; `tests/virtualgpu/test_soak.py` runs a few rounds of it.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings

import psutil
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpulab import GPUMemoryTracker, VirtualGPU


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


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def main(minutes: float) -> None:
    warnings.simplefilter("ignore")
    began = told = time.monotonic()
    rounds, base = 0, 0.0
    while time.monotonic() - began < minutes * 60:
        one_round()
        rounds += 1
        if not base and time.monotonic() - began > minutes * 12:
            base = resident_mib()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{(told - began) / 60:5.1f} min  {rounds:5d} rounds  {resident_mib():8.1f} MiB", flush=True)
    end = resident_mib()
    print(f"{rounds} rounds; {end:.1f} MiB at the end, {end - base:+.1f} MiB since the first fifth")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
