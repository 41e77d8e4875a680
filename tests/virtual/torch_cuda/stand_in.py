"""Build the stand-in for CUDA and name the GPUs it can pretend to be. record.py says what is real and what is not."""

import importlib.util
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("driver.c", "cudnn.c", "cublaslt.c", "nothing.c")
CONTEXT = 500_000_000

GPUS = {
    "7.5": {"NAME": "Tesla T4", "CAPABILITY": "75", "SMS": "40", "CAPACITY": "15828320256"},
    "8.0": {"NAME": "NVIDIA A100-SXM4-80GB", "CAPABILITY": "80", "SMS": "108", "CAPACITY": "85095874560"},
    "9.0": {"NAME": "NVIDIA H200", "CAPABILITY": "90", "SMS": "132", "CAPACITY": "150114336768"},
}
"""Compute capability -> what the stand-in answers; bytes as the driver shows them."""


def build(folder: Path) -> Path:
    """Compile into `folder`, under every name by which PyTorch looks for the driver; the library."""
    packages = Path(importlib.util.find_spec("torch").origin).parents[1]
    include = ("triton/backends/nvidia/include", "nvidia/cu13/include", "nvidia/cudnn/include")
    library = folder / "stand_in.so"
    headers = [f"-I{packages / path}" for path in include]
    sources = [str(HERE / name) for name in SOURCES]
    subprocess.run(["gcc", "-w", "-O1", "-shared", "-fPIC", *headers, *sources, "-o", library, "-lpthread"], check=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    return library


def environment(library: Path, capability: str, devices: int = 1) -> dict[str, str]:
    """The environment of a process that shall see `devices` such GPUs."""
    settings = {f"STAND_IN_{key}": value for key, value in GPUS[capability].items()}
    settings |= {"STAND_IN_CONTEXT": str(CONTEXT), "STAND_IN_DEVICES": str(devices)}
    settings |= {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent)}
    return {key: value for key, value in os.environ.items() if not key.startswith(("CUBLAS", "PYTORCH"))} | settings
