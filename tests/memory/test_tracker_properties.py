"""Any nesting and overlap of trackers, against a reference that notes the allocated bytes after every allocation."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.memory import GPUMemoryTracker
from virtualgpu.gpu import VirtualGPU

DEVICES = (0, 1, "all")
SIZES = st.one_of(st.integers(1, 4096), st.integers(4096, 40 << 20))
WHICH = st.integers(0, 1000)
STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 1), SIZES),
    st.tuples(st.just("spike"), st.integers(0, 1), SIZES),
    st.tuples(st.just("free"), WHICH),
    st.tuples(st.just("enter"), st.sampled_from(DEVICES)),
    st.tuples(st.just("leave"), WHICH),
    st.tuples(st.just("read"), WHICH),
    st.tuples(st.just("empty cache")),
)


class Reference:
    """One tracker as the plain maximum of what was noted while it was open."""

    def __init__(self, device):
        self.tracker = GPUMemoryTracker(device).__enter__()
        self.devices = [0, 1] if device == "all" else [device]
        self.noted = []
        self.note()

    def note(self):
        self.noted.append([torch.cuda.memory_allocated(device) for device in self.devices])

    def agrees(self):
        by_device = list(zip(*self.noted, strict=True))
        peaks = [max(noted) for noted in by_device]
        deltas = [noted[-1] - noted[0] for noted in by_device]
        found = self.tracker.devices
        assert [d.peak_bytes for d in found] == peaks
        assert [d.delta_bytes for d in found] == deltas
        assert (self.tracker.peak_bytes, self.tracker.delta_bytes) == (sum(peaks), sum(deltas))
        assert self.tracker.peak_above_entry_bytes == sum(peaks) - sum(noted[0] for noted in by_device)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_every_tracker_has_the_exact_peak_and_change(steps):
    tensors, trackers = [], []

    def note():
        for reference in trackers:
            reference.note()

    with VirtualGPU("T4", count=2, compute=False):
        for what, *rest in steps:
            if what in ("take", "spike"):
                device, size = rest
                tensor = torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
                note()
                if what == "take":
                    tensors.append(tensor)
                del tensor
            elif what == "free" and tensors:
                tensors.pop(rest[0] % len(tensors))
            elif what == "enter":
                trackers.append(Reference(rest[0]))
            elif what == "leave" and trackers:
                reference = trackers.pop(rest[0] % len(trackers))
                reference.tracker.__exit__(None, None, None)
                reference.agrees()
            elif what == "read" and trackers:
                trackers[rest[0] % len(trackers)].agrees()
            elif what == "empty cache":
                torch.cuda.empty_cache()
            note()
        for reference in trackers:
            reference.tracker.__exit__(None, None, None)
            reference.agrees()
