"""The handwritten digits that every lesson trains on: real data, no download.

1797 grey images of 8×8 pixels, ten classes: the test part of the UCI set "Optical Recognition of
Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0), as whole numbers 0 to 16 in the package.
"""

from __future__ import annotations

import csv
import gzip
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

TRAIN_SAMPLES = 1500  # the rest, 297 images, is the test part


class Digits(NamedTuple):
    """`images`: float32, (N, 1, 8, 8), values 0 to 1. `labels`: int64, (N,), values 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor


def digits(split: Literal["train", "test"] | None = None) -> Digits:
    """The digits on the CPU: all 1797, or the first 1500 (`"train"`), or the last 297 (`"test"`).

    Raises ValueError for another split.
    """
    if split not in (None, "train", "test"):
        raise ValueError(f"split must be 'train', 'test' or None for all images, not {split!r}")
    import torch

    raw = gzip.decompress(resources.files("gpulab").joinpath("digits.csv.gz").read_bytes()).decode()
    table = torch.tensor([[int(v) for v in row] for row in csv.reader(raw.splitlines())], device="cpu")
    part = {None: slice(None), "train": slice(TRAIN_SAMPLES), "test": slice(TRAIN_SAMPLES, None)}[split]
    table = table[part]
    images = (table[:, :64].to(torch.float32) / 16).reshape(-1, 1, 8, 8)
    return Digits(images, table[:, 64].clone())
