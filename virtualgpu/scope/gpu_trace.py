"""Fire the callbacks of `torch.cuda._gpu_trace`, which PyTorch's CUDA Sanitizer registers.

They report allocations, streams, events and waits, where PyTorch 2.15 does (c10/cuda/CUDAEvent.h, CUDAFunctions.h, the
caching allocator). Handles of streams and events are numbers. Without a listener a call costs a look at an empty list.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch.cuda import _gpu_trace

if TYPE_CHECKING:
    from ..memory.blocks import Block

events = itertools.count(1)  # their handles

event_made = _gpu_trace.EventCreationCallbacks.fire_callbacks
event_gone = _gpu_trace.EventDeletionCallbacks.fire_callbacks
event_recorded = _gpu_trace.EventRecordCallbacks.fire_callbacks
event_awaited = _gpu_trace.EventWaitCallbacks.fire_callbacks
host_waits_for_event = _gpu_trace.EventSynchronizationCallbacks.fire_callbacks
stream_made = _gpu_trace.StreamCreationCallbacks.fire_callbacks
host_waits_for_stream = _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks
host_waits_for_all = _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks

_of_allocations = _gpu_trace.MemoryAllocationCallbacks.callback_list
_of_frees = _gpu_trace.MemoryDeallocationCallbacks.callback_list


def allocated(block: Block | None) -> None:
    if _of_allocations and block is not None:
        _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(block.address)


def freed(block: Block) -> None:
    if _of_frees:
        _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(block.address)


def stream_waits(stream: int, other: int) -> None:
    """Report that a stream waits for another, by an event of its own."""
    if _gpu_trace.EventWaitCallbacks.callback_list:
        event = next(events)
        event_made(event)
        event_recorded(event, other)
        event_awaited(event, stream)
        event_gone(event)
