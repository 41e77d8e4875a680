"""A script whose DataLoader has workers: forked, or spawned with `spawn`."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda")
torch.cuda.set_device(0)  # at import: a spawned worker does it too


class Squares(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.full((8,), float(index))
        return x, x.square().sum() / 1000, os.getpid()


def main():
    loader = DataLoader(
        Squares(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True,
        multiprocessing_context=sys.argv[1],
    )  # fmt: skip
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pids = set()
    for _ in range(2):
        for x, y, pid in loader:
            loss = (model(x.to(device, non_blocking=True)).squeeze(1) - y.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pids.update(pid.tolist())
    print(f"{len(pids - {os.getpid()})} workers, main {__name__}")


if __name__ == "__main__":
    main()
