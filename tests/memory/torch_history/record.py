"""Record PyTorch's own memory history beside its counts, without a GPU: recording.json beside this.

    python tests/memory/torch_history/record.py

Needs what tests/virtualgpu/torch_allocator/record.py needs, whose stand-in answers for CUDA here too; the allocator and
its history are PyTorch's. test_replay.py holds the replayed history against the counts.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ALLOCATOR = HERE.parents[1] / "virtualgpu" / "torch_allocator"
SETTINGS = ["", "max_split_size_mb:30", "expandable_segments:True", "garbage_collection_threshold:0.3"]
CAPACITY, CONTEXT, STEPS = 1_000_000_000, 300_000_000, 250


def main() -> None:
    sys.path.insert(0, str(ALLOCATOR))
    from record import stand_in

    with tempfile.TemporaryDirectory() as where:
        runs = []
        for seed, settings in enumerate(SETTINGS):
            (folder := Path(where) / str(seed)).mkdir()
            environment = dict(os.environ, **stand_in(folder))
            chosen = {"PYTORCH_CUDA_ALLOC_CONF": settings}
            chosen |= {"STAND_IN_CAPACITY": str(CAPACITY), "STAND_IN_CONTEXT": str(CONTEXT)}
            command = [sys.executable, __file__, "--one", str(seed)]
            done = subprocess.run(command, env=environment | chosen, capture_output=True, text=True, check=True)
            runs.append({"settings": settings} | json.loads(done.stdout))
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    (HERE / "recording.json").write_text(f"[\n{lines}\n]\n")


def one(seed: int) -> None:
    """Random traffic from a half-filled start; prints the first snapshot, the events, and the counts at every step."""
    import torch

    rng = random.Random(seed)
    live = [torch.empty(rng.randint(1, 9 << 20), dtype=torch.uint8, device="cuda") for _ in range(10)]
    del live[3], live[4], live[5]
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000, clear_history=True)
    first = torch.cuda.memory._snapshot()
    assert first["device_traces"] == [[]]
    counts = [_counts()]
    for _ in range(STEPS):
        draw = rng.random()
        if draw < 0.55 or not live:
            try:
                live.append(torch.empty(int(2 ** rng.uniform(0, 27)), dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                live = live[::2]
        elif draw < 0.98:
            live.pop(rng.randrange(len(live)))
        else:
            torch.cuda.empty_cache()
        counts.append(_counts())
    events = [[e["action"], e.get("addr", 0), e["size"]] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    segments = [
        {key: segment[key] for key in ("device", "address", "total_size", "is_expandable")}
        for segment in first["segments"]
    ]
    for kept, segment in zip(segments, first["segments"], strict=True):
        kept["blocks"] = [{key: block[key] for key in ("address", "size", "state")} for block in segment["blocks"]]
    start = {
        "segments": segments,
        "allocator_settings": {"max_split_size": first["allocator_settings"]["max_split_size"]},
    }
    json.dump({"torch": torch.__version__, "first": start, "events": events, "counts": counts}, sys.stdout)


def _counts() -> list[int]:
    import torch

    stats = torch.cuda.memory_stats()
    requests = stats["allocation.all.allocated"] + stats["allocation.all.freed"]
    return [stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"], requests]


if __name__ == "__main__":
    if "--one" in sys.argv:
        one(int(sys.argv[-1]))
    else:
        main()
