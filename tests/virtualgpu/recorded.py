"""What torch_cuda/ holds: recordings of PyTorch's own CUDA code, and the modules that made them."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent / "torch_cuda"
GPUS = {"7.5": "T4", "8.0": "A100-80", "9.0": "H200"}
"""The recorded compute capabilities, and the GPUs that have them."""
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
of_this_torch = pytest.mark.skipif(TORCH < (2, 15), reason="recorded with torch 2.15; an older one differs in places")


def rows(name):
    return json.loads((HERE / f"{name}.json").read_text())["rows"]


def recorder(name):
    """The module that ran PyTorch's CUDA code; here it runs on the virtual GPU."""
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))
