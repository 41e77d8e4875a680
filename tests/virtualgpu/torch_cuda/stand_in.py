"""Build the stand-in for CUDA and name the GPUs it can pretend to be. record.py says what is real and what is not."""

import importlib.util
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("driver.c", "cudnn.c", "cudnn_plans.c", "cublaslt.c", "nothing.c")
CONTEXT = 500_000_000

GPUS = {
    "7.5": {"NAME": "Tesla T4", "SMS": "40", "CAPACITY": "15828320256", "SM_KHZ": "1590000", "MEMORY_KHZ": "5001000"},
    "8.0": {
        "NAME": "NVIDIA A100-SXM4-80GB",
        "SMS": "108",
        "CAPACITY": "85095874560",
        "SM_KHZ": "1410000",
        "MEMORY_KHZ": "1593000",
    },
    "9.0": {
        "NAME": "NVIDIA H200",
        "SMS": "132",
        "CAPACITY": "150114336768",
        "SM_KHZ": "1980000",
        "MEMORY_KHZ": "3201000",
    },
}
"""Compute capability -> what the stand-in answers; bytes as the driver shows them."""


def build(folder: Path) -> Path:
    """Compile into `folder`, under every name by which PyTorch looks for the driver; the library."""
    packages = Path(importlib.util.find_spec("torch").origin).parents[1]
    include = ("triton/backends/nvidia/include", "nvidia/cu13/include", "nvidia/cudnn/include")
    library = folder / "stand_in.so"
    headers = [f"-I{packages / path}" for path in include]
    sources = [str(HERE / name) for name in SOURCES]
    subprocess.run(
        ["gcc", "-w", "-O1", "-shared", "-fPIC", *headers, *sources, "-o", library, "-ldl", "-lpthread"], check=True
    )
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    return library


def environment(library: Path, capability: str, devices: int = 1) -> dict[str, str]:
    """The environment of a process that shall see `devices` such GPUs."""
    settings = {f"STAND_IN_{key}": value for key, value in GPUS[capability].items()}
    settings["STAND_IN_CAPABILITY"] = capability.replace(".", "")
    settings |= {"STAND_IN_CONTEXT": str(CONTEXT), "STAND_IN_DEVICES": str(devices)}
    settings |= {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent)}
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("CUBLAS", "PYTORCH", "TORCH"))
    } | settings


def cudnn() -> dict[str, str]:
    """The further environment in which convolutions and attention get the engines and workspaces that cuDNN plans."""
    (library,) = importlib.util.find_spec("nvidia.cudnn").submodule_search_locations
    return {"STAND_IN_CUDNN": f"{library}/lib/libcudnn.so.9"}
