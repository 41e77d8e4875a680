"""PyTorch's own allocator under the same requests: every count, address, block and error text is equal.

torch_allocator/recording.json holds what PyTorch did, under every setting and at three capacities; record.py beside it
makes it anew.
"""

import json
from pathlib import Path

import pytest

from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory
from virtualgpu.memory.settings import Settings

from . import traffic

RECORDING = json.loads((Path(__file__).parent / "torch_allocator" / "recording.json").read_text())


class Target:
    """gpulab's allocator with errors given back as text, as `traffic.drive` wants it."""

    def __init__(self, run):
        self.allocator = CachingAllocator(
            run["capacity"], Settings.parse(run["settings"]), context_bytes=RECORDING["context"]
        )
        self.free = self.allocator.free
        self.empty_cache = self.allocator.empty_cache
        self.set_memory_fraction = self.allocator.set_memory_fraction
        self.reset_peak = self.allocator.statistics.reset_peak
        self.reset_accumulated = self.allocator.statistics.reset_accumulated
        self.memory_stats = self.allocator.memory_stats
        self.snapshot = self.allocator.snapshot

    def allocate(self, nbytes, stream):
        try:
            return self.allocator.allocate(nbytes, stream), None
        except OutOfMemory as error:
            return None, str(error)


@pytest.mark.parametrize(
    "run", RECORDING["runs"], ids=lambda run: f"{run['settings'] or 'defaults'}-{run['capacity'] // 10**6}MB"
)
def test_equals_pytorch_to_the_byte(run):
    target, errors, checkpoints = Target(run), [], []
    for event in traffic.drive(target, run["seed"], RECORDING["events"], errors=errors):
        if (event + 1) % RECORDING["every"] == 0:
            current = target.allocator.statistics.current
            checkpoints.append([current("allocated_bytes"), current("reserved_bytes"), traffic.digest(target, errors)])
    assert [point[:2] for point in checkpoints] == [point[:2] for point in run["checkpoints"]]
    assert (errors or [None])[0] == run["first_error"]
    assert len(errors) == run["out_of_memory"]
    assert checkpoints == run["checkpoints"]


def test_the_recording_reaches_what_it_is_for():
    """Each setting has a run that fills the device and one that does not."""
    for settings in {run["settings"] for run in RECORDING["runs"]}:
        failures = [run["out_of_memory"] for run in RECORDING["runs"] if run["settings"] == settings]
        assert max(failures) > 10
        assert min(failures) == 0
