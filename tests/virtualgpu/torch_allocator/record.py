"""Record what PyTorch's own caching allocator does under random requests, without a GPU: recording.json beside this.

    python tests/virtualgpu/torch_allocator/record.py

Needs Linux, gcc and a CUDA build of torch. The allocator's code is PyTorch's; only the calls it makes to CUDA are
answered by cuda_stand_in.c, which hands out addresses. test_against_torch.py holds gpulab's allocator against it.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONTEXT = 300_000_000
EVENTS, EVERY = 2000, 250
SETTINGS = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,2:4,16:2,>:16]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.3,max_split_size_mb:100",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:40",
    "expandable_segments:True,garbage_collection_threshold:0.5,roundup_power2_divisions:8",
    "large_segment_size_mb:32",
    "per_process_memory_fraction:0.7",
]
CAPACITIES = [1_500_000_000, 3_000_000_000, 16_000_000_000]


def main() -> None:
    with tempfile.TemporaryDirectory() as where:
        runs = []
        environment = dict(os.environ, **stand_in(Path(where)), STAND_IN_CONTEXT=str(CONTEXT))
        for seed, (settings, capacity) in enumerate((s, c) for s in SETTINGS for c in CAPACITIES):
            chosen = {"PYTORCH_CUDA_ALLOC_CONF": settings, "STAND_IN_CAPACITY": str(capacity)}
            command = [sys.executable, __file__, "--one", str(seed)]
            done = subprocess.run(command, env=environment | chosen, capture_output=True, text=True, check=True)
            runs.append({"settings": settings, "capacity": capacity, "seed": seed} | json.loads(done.stdout))
            print(f"{settings or 'defaults'}, {capacity:,} B: {runs[-1]['out_of_memory']} times out of memory")
    head = {"torch": runs[0]["torch"], "context": CONTEXT, "events": EVENTS, "every": EVERY}
    lines = ",\n".join(json.dumps({k: v for k, v in run.items() if k != "torch"}) for run in runs)
    (HERE / "recording.json").write_text(json.dumps(head)[:-1] + f', "runs": [\n{lines}\n]}}\n')


def stand_in(folder: Path) -> dict[str, str]:
    """Compile the stand-in; the environment in which a program finds it in CUDA's place."""
    headers = Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "include"
    library = folder / "stand_in.so"
    source = HERE / "cuda_stand_in.c"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", f"-I{headers}", source, "-o", library], check=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(library)
    return {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(folder)}


def one(seed: int) -> None:
    """One run, in a process of its own: PyTorch reads its settings once. The result is printed as JSON."""
    import torch

    where = importlib.util.spec_from_file_location("traffic", HERE.parent / "traffic.py")
    traffic = importlib.util.module_from_spec(where)
    where.loader.exec_module(traffic)

    class Torch:
        def __init__(self):
            torch.empty(0, device="cuda")
            self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(traffic.STREAMS - 1))]
            self.set_memory_fraction = torch.cuda.set_per_process_memory_fraction
            self.empty_cache = torch.cuda.empty_cache
            self.reset_peak = torch.cuda.reset_peak_memory_stats
            self.reset_accumulated = torch.cuda.reset_accumulated_memory_stats
            self.memory_stats = torch.cuda.memory_stats

        def allocate(self, nbytes, stream):
            try:
                with torch.cuda.stream(self.streams[stream]):
                    return torch.empty(nbytes, dtype=torch.uint8, device="cuda"), None
            except torch.OutOfMemoryError as error:
                return None, str(error)

        def free(self, tensor):
            pass  # the caller has let go of it

        def snapshot(self):
            number = {stream.cuda_stream: i for i, stream in enumerate(self.streams)}
            return [{**segment, "stream": number[segment["stream"]]} for segment in torch.cuda.memory_snapshot()]

    target, errors, checkpoints = Torch(), [], []
    for event in traffic.drive(target, seed, EVENTS, errors=errors):
        if (event + 1) % EVERY == 0:
            bytes_now = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            checkpoints.append([*bytes_now, traffic.digest(target, errors)])
    result = {"torch": torch.__version__, "out_of_memory": len(errors), "first_error": (errors or [None])[0]}
    print(json.dumps(result | {"checkpoints": checkpoints}))


if __name__ == "__main__":
    one(int(sys.argv[2])) if "--one" in sys.argv else main()
