"""The PyTorch release, where releases behave differently on a GPU: (2, 15) for 2.15.1."""

from __future__ import annotations

import re

import torch

KEEPS_NO_WORKSPACES = (2, 15)  # the first that takes cuBLAS's workspaces anew for every call
TIES_BY_AGE = (2, 12)  # the first whose allocator does not choose between equal blocks by their addresses
SMALL_RECURRENT_WANTS_LESS = (2, 15)  # the first with a cuDNN (9.26) whose kernels for small hidden sizes want less
SEEDS_ON_GPU = (2, 14)  # the first whose attention without dropout makes its two empty seeds on the GPU


def parse_release(version: str) -> tuple[int, int]:
    """Parse the text of `torch.__version__`; raises ValueError where it begins with no release."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"version is {version!r}; it must begin as 2.15 does")
    return int(found[1]), int(found[2])


def running_release() -> tuple[int, int]:
    """Return the release of the imported torch."""
    return parse_release(str(torch.__version__))
