"""Record allocations and frees with stack traces, in the format of PyTorch's memory viewer.

`torch.cuda.memory._record_memory_history` starts it; each event has its Python stack.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import deque
from types import FrameType
from typing import TYPE_CHECKING, Any

from .blocks import Block

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device
    from .out_of_memory import Shortage


class History:
    """The last `most` events of one GPU, without the actions to `skip`; with Python stacks if `stacks`."""

    def __init__(self, device: Device, most: int, stacks: bool, skip: frozenset[str] = frozenset()) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=most)
        self.device = device
        self.stacks = stacks
        self.skip = skip
        self.frames: dict[int, list[dict[str, Any]]] = {}
        device.allocator.watch = self._segment

    def allocated(self, block: Block) -> None:
        frames = self._stack()
        self.frames[block.address] = frames
        self._add("alloc", block.address, block.requested, block.stream, frames, pool_id=block.pool.id)

    def freed(self, block: Block, *, completed: bool = True) -> None:
        """Record a free; it is not `completed` while another stream uses the block."""
        for action in ("free_requested", "free_completed") if completed else ("free_requested",):
            self._free(action, block)
        if completed:
            self.frames.pop(block.address, None)

    def completed(self, block: Block) -> None:
        """Record that other streams no longer use a freed block."""
        self._free("free_completed", block)
        self.frames.pop(block.address, None)

    def _free(self, action: str, block: Block) -> None:
        frames = self.frames.get(block.address, [])
        self._add(action, block.address, block.requested, block.stream, frames, pool_id=block.pool.id)

    def out_of_memory(self, shortage: Shortage) -> None:
        self._add("oom", 0, shortage.tried, 0, self._stack(), device_free=shortage.free)

    def looked_at(self, active: int) -> None:
        """Record that a snapshot was taken, as PyTorch does for the next one."""
        self._add("snapshot", 0, active, 0, self._stack())

    def _segment(self, action: str, address: int, size: int, stream: int) -> None:
        self._add(action, address, size, stream, self._stack())

    def _add(self, action: str, address: int, size: int, stream: int, frames: list[Any], **more: Any) -> None:
        if action in self.skip:
            return
        event = {"action": action, "addr": address, "size": size, "stream": stream, "frames": frames}
        now = time.time_ns() // 1000
        self.events.append({**event, "time_us": now, "compile_context": "N/A", "user_metadata": "", **_POOL, **more})

    def _stack(self) -> list[dict[str, Any]]:
        if not self.stacks:
            return []
        out: list[dict[str, Any]] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_engine_run_backward":
                break  # on CUDA, backward runs in a thread of autograd's, without frames of the program
            if not code.co_filename.startswith(_OWN):
                out.append(_frame(code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return out


@functools.lru_cache(maxsize=4096)  # one for each line: a long history has millions of frames
def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


_POOL = {"pool_id": (0, 0)}
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def record(gpu: VirtualGPU, enabled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Start ("state" or "all") or stop (None) recording; arguments of `_cuda_record_memory_history`."""
    named = dict(zip(("context", "stacks", "max_entries", "clear_history"), args, strict=False)) | kwargs
    most = min(int(named.get("max_entries") or sys.maxsize), 2**31) if enabled == "all" else 0
    skip = frozenset(named.get("skip_actions") or ())
    for device in gpu.devices:
        with device.lock:
            device.drain()
            before, device.history, device.allocator.watch = device.history, None, None
            if enabled is None:
                continue
            device.history = History(device, most, named.get("context") is not None, skip)
            if before is not None and not named.get("clear_history"):
                device.history.events.extend(before.events)
                device.history.frames.update(before.frames)


def snapshot(gpu: VirtualGPU, pool: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the result of `torch.cuda.memory._snapshot`, or the segments of one private pool only."""
    segments, traces = [], []
    for device in gpu.devices:
        with device.lock:
            device.drain()
            found = [s for s in device.allocator.snapshot() if pool in (None, s["segment_pool_id"])]
            history = device.history
            for segment in found if history is not None else []:
                for block in segment["blocks"]:
                    block["frames"] = history.frames.get(block["address"], [])
            segments += found
            traces.append([] if history is None else list(history.events))
            if history is not None:
                history.looked_at(sum(segment["active_size"] for segment in found))
    settings = gpu.settings
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1 if settings.max_split_size_mb is None else settings.max_split_size_mb << 20,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    }
