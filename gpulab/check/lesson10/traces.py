"""Chrome traces drawn afresh, with the events that torch.profiler writes: a host, and GPUs whose streams it fills.

What the host does takes its time; a kernel begins when it has been launched and its stream is free; a wait ends with
the last kernel. Nothing is recorded, and no GPU is asked for: only order and time matter here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

Event = dict[str, Any]
LOADERS = tuple(
    f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__" for kind in ("SingleProcess", "MultiProcessing")
)
WAITS = "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"
_LAUNCH, _RETURN = 2.0, 3.0  # µs until a kernel begins, and until a wait that is over returns
_OPERATIONS = (
    ("aten::linear", "aten::addmm"),
    ("aten::conv2d", "aten::convolution"),
    ("aten::relu", "aten::clamp_min"),
)


class Machine:
    """A host at `now` µs and the GPU `gpu`, on which `work` launches kernels."""

    def __init__(self, gpu: int, peak_flops: float, peak_bandwidth: float) -> None:
        self.gpu, self.peaks = gpu, (peak_flops, peak_bandwidth)
        self.now = random.uniform(1e6, 1e9)
        self.loader, self.waits = random.choice(LOADERS), random.choice(WAITS)
        self.events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
        self._free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._launches = 0

    def event(self, cat: str, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def host(self, cat: str, name: str, us: float) -> None:
        self.event(cat, name, self.now, us)
        self.now += us

    def work(self, host: float, kernel: float, flops: float = 0.0, moved: float = 0.0, *on: tuple[int, int]) -> None:
        """An operation of the host that launches a kernel, on each of these (GPU, stream); `flops` and `moved` are the
        parts that it reaches of the peaks."""
        outer, inner = random.choice(_OPERATIONS)
        self.event("cpu_op", outer, self.now, host)
        self.event("cpu_op", inner, self.now + 0.2 * host, 0.7 * host)
        self.event("cuda_runtime", "cudaLaunchKernel", self.now + 0.6 * host, 0.2 * host)
        launched, self.now = self.now + 0.8 * host, self.now + host
        for gpu, stream in on or ((self.gpu, 7),):
            rates = zip(("flops", "bytes"), (flops, moved), self.peaks, strict=True)
            counts = {key: part * peak * kernel / 1e6 for key, part, peak in rates if part}
            self._on_gpu("kernel", inner[6:], gpu, stream, launched, kernel, counts)

    def copy(self, us: float, within: bool = False) -> None:
        """To the GPU, or within its memory and nearly as fast as that is; in a stream of its own."""
        self.event("cuda_runtime", "cudaMemcpyAsync", self.now, 4.0)
        self.now += 4.0
        name = "Memcpy DtoD (Device -> Device)" if within else "Memcpy HtoD (Pinned -> Device)"
        moved = us * (0.9 * self.peaks[1] / 1e6 if within else 25e3)
        self._on_gpu("gpu_memcpy", name, self.gpu, 20, self.now, us, {"bytes": moved})

    def wait(self, name: str = "cudaDeviceSynchronize") -> None:
        """Until all that was launched on this GPU is done."""
        done = max(
            [self.now, *(free for (gpu, stream), free in self._free.items() if gpu == self.gpu and stream != 20)]
        )
        self.host("cuda_runtime", name, done + _RETURN - self.now)

    def fill(self, begin: float, part: float) -> None:
        """A last kernel, so long that gaps make up this part of the time from `begin` to the end of a wait for it; what
        came before had one stream, and more gaps."""
        mine = [e for e in self.events if e.get("cat") == "kernel" and e["ts"] >= begin]
        before = max(self.now + 0.8 * 9.0 + _LAUNCH, self._free[self.gpu, 7]) + _RETURN - begin
        gaps = before - sum(e["dur"] for e in mine)
        self.work(9.0, gaps / part - before, 0.3, 0.36)

    def _on_gpu(
        self, cat: str, name: str, gpu: int, stream: int, launched: float, us: float, counts: dict[str, float]
    ) -> None:
        start = max(launched + _LAUNCH, self._free[gpu, stream])
        self._free[gpu, stream] = start + us
        self.event(cat, name, start, us, f"stream {stream}", device=gpu, stream=stream, **counts)
        self._launches += 1
        arrow = {"cat": "ac2g", "name": "ac2g", "id": self._launches, "pid": 1}
        self.events += [
            {"ph": "s", "tid": 1, "ts": launched, **arrow},
            {"ph": "f", "bp": "e", "tid": f"stream {stream}", "ts": start, **arrow},
        ]
