"""A DataLoader with workers that pins its batches, and a prefetcher on a side stream."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = np.random.default_rng(index)
        return {"x": torch.from_numpy(generator.standard_normal(8, dtype=np.float32)), "y": index % 3}


class Prefetcher:
    """Copies the next batch on a side stream while the current one is being used."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def _copy(self, batch):
        if self.stream is None:
            return batch
        with torch.cuda.stream(self.stream):
            return {k: v.to(self.device, non_blocking=True) for k, v in batch.items()}

    def __iter__(self):
        batches = iter(self.loader)
        following = self._copy(next(batches))
        while following is not None:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                for value in following.values():
                    value.record_stream(torch.cuda.current_stream())
            batch = following
            upcoming = next(batches, None)
            following = None if upcoming is None else self._copy(upcoming)
            yield batch


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Squares(48),
        batch_size=8,
        num_workers=2,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        prefetch_factor=2,
        drop_last=True,
    )
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for batch in Prefetcher(loader, device) if epoch else loader:
            if not epoch:
                assert batch["x"].is_pinned() == (device.type == "cuda")
                assert batch["x"].device.type == "cpu"
            x = batch["x"].to(device, non_blocking=True)
            y = batch["y"].to(device, non_blocking=True)
            assert x.device.type == device.type
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if device.type == "cuda":
        host = torch.empty(8, 8, pin_memory=True)
        assert host.is_pinned()
        host.copy_(x, non_blocking=True)
        torch.cuda.synchronize()
        assert host.device.type == "cpu"
    return losses


if __name__ == "__main__":
    losses = main()
