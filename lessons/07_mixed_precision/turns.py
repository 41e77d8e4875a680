"""Judges the turn of lesson 07: a format for each of four machines and jobs."""

from __future__ import annotations

from typing import Any

import torch

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

FORMATS = {"bf16": torch.bfloat16, "fp16 with scaler": torch.float16, "TF32": torch.float32, "float32": torch.float32}
JOBS = {  # the GPU, the significant bits that are needed, the largest activation
    "T4, 8 bits, activations up to 900": ("T4", 8, 900.0),
    "H100, 8 bits, activations up to 80,000": ("H100", 8, 8e4),
    "A100, 10 bits, activations up to 200,000": ("A100-80", 10, 2e5),
    "T4, 8 bits, activations up to 80,000": ("T4", 8, 8e4),
}


def _fault(format: str, gpu: str, bits: int, largest: float) -> str:
    """Why the products of this job cannot run in this format; nothing if they can."""
    with virtual_gpu(gpu, compute=False):
        has = torch.cuda.is_bf16_supported(including_emulation=False)  # and TF32: both came with Ampere
    if format in ("bf16", "TF32") and not has:
        return f"a {gpu} has no {format} in hardware, which came with Ampere: what is supported there is emulated"
    if torch.tensor(largest).to(FORMATS[format]).isinf():
        return "activations beyond 65504 become inf in fp16, and the scaler does not help: it scales gradients"
    if format == "bf16" and bits > 8:
        return "bf16 keeps 8 significant bits; fp16 and TF32 keep 11"
    return ""


_DEARER = {
    "fp16 with scaler": "bf16 does it too, and needs no scaler",
    "TF32": "it does, and stores 4 bytes for each number; a 16-bit format fits, and stores 2",
    "float32": "it does, and runs past the tensor cores: a cheaper format fits",
}


@turn("fp16 with its scaler on the T4, bf16 on the H100, and where neither fits TF32, or float32")
def format_for(answer: Any) -> None:
    """A function that returns {job: one of FORMATS}: the first that the GPU has, and that the numbers fit."""
    got = answer()
    if not isinstance(got, dict) or set(got) != set(JOBS):
        raise NotYet(
            brief(got), expected="the dict of the four jobs", likely="a key was changed, or the return is missing"
        )
    if all(format is None for format in got.values()):
        raise AsGiven("all four are None")
    for job, format in got.items():
        right = next(name for name in FORMATS if not _fault(name, *JOBS[job]))
        if format == right:
            continue
        if format not in FORMATS:
            likely = f"the four words are {', '.join(FORMATS)}"
        else:
            likely = _fault(format, *JOBS[job]) or _DEARER[format]
        raise NotYet(f"{brief(format)} for {job}", expected=right, likely=likely)
