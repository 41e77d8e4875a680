"""What a virtual GPU says to wrong code, and to right code that looks wrong, is what PyTorch's CUDA code says.

torch_cuda/errors.json has what CUDA code said line by line; here each line is run again on virtual GPUs.
"""

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

from gpulab.virtual.gpu import VirtualGPU

HERE = Path(__file__).parent / "torch_cuda"
sys.path.insert(0, str(HERE))
import record_errors  # noqa: E402

sys.path.remove(str(HERE))

RECORDED = json.loads((HERE / "errors.json").read_text())
GPUS = {"7.5": "T4", "8.0": "A100-80", "9.0": "H200"}
DECLARED = {}


def rows(capability):
    return [row for row in RECORDED["rows"] if capability in row["capability"]]


def run(row):
    names = record_errors.namespace()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = record_errors.outcome(row["code"], names)
    if said:
        out["warning"] = str(said[-1].message)
    with contextlib.suppress(Exception):
        torch.cuda.set_device(0)
    torch.set_default_device(None)
    while torch.is_autocast_enabled("cuda"):
        torch.set_autocast_enabled("cuda", False)
    return out
