"""Cross-stream dependencies during CUDA graph capture: a stream that waits on a captured one joins it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..scope.device import Device

ISOLATION = (
    "CUDA error: dependency created on uncaptured work in another stream\n"
    "Search for `cudaErrorStreamCaptureIsolation' in"
    " https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
)


def wait(device: Device, stream: int, mark: int) -> None:
    """Make `stream` wait for an event of the current capture."""
    if device.timer.recording is None:
        raise RuntimeError("no CUDA graph is being captured on this GPU")
    device.timer.recording.wait(stream, mark)


def check(device: Device, stream: int) -> None:
    """Raise torch.AcceleratorError where a captured stream would wait for work outside the capture."""
    if device.capture is not None and device.capture.covers(stream):
        device.capture.break_off()
        raise torch.AcceleratorError(ISOLATION)
