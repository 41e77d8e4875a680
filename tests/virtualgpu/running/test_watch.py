"""The watch beside the allocator: its numbers are the allocator's, and every byte has its line."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.gpu import VirtualGPU
from virtualgpu.memory.out_of_memory import OutOfMemory
from virtualgpu.running.memory_watch import MemoryWatch
from virtualgpu.running.source_lines import Line, SourceLines

MiB = 1 << 20
HERE = __file__.rpartition("/")[0]


class _Lines:
    """Stands in for `Places`: the next allocation is from line `now`."""

    now = 1

    def line(self, place):
        return Line(*place, "")

    def here(self):
        return "made.py", self.now


@pytest.fixture
def gpu():
    with VirtualGPU("T4", count=2) as scope:
        yield scope


@given(
    events=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40 * MiB), st.booleans(), st.booleans()), max_size=60)
)
@settings(max_examples=60, deadline=None)
def test_peaks_and_lines_add_up_to_the_allocator_s_counts(events):
    with VirtualGPU("T4") as scope:
        device, lines = scope.devices[0], _Lines()
        watch = MemoryWatch(device, lines)
        allocator, held, peak, at_peak = device.allocator, [], 0, {}
        for line, nbytes, free, reset in events:
            if free and held:
                allocator.free(held.pop(len(held) // 2)[0])
            lines.now = line
            held.append((allocator.allocate(nbytes), line))
            by_line = {}
            for block, at in held:
                by_line[at] = by_line.get(at, 0) + (block.size if block else 0)
            if sum(by_line.values()) > peak:
                peak, at_peak = sum(by_line.values()), by_line
            if reset:
                allocator.statistics.reset_peak()  # the script's own, which the watch outlives
        memory = watch.memory()
        assert memory.end_allocated == allocator.statistics.current("allocated_bytes")
        assert memory.end_reserved == allocator.statistics.current("reserved_bytes")
        assert memory.peak_allocated == peak
        assert memory.peak_reserved >= memory.end_reserved
        assert {share.line.line: share.nbytes for share in memory.peak_shares} == {
            k: v for k, v in at_peak.items() if v
        }
        watch.end()
        assert allocator.allocate.__self__ is allocator


def test_each_gpu_is_watched_apart(gpu):
    first, second = (MemoryWatch(device, SourceLines(HERE)) for device in gpu.devices)
    kept = torch.ones(MiB, device="cuda:1")
    assert (first.memory().peak_allocated, second.memory().peak_allocated) == (0, 4 * MiB)
    assert second.memory().peak_line.code == 'kept = torch.ones(MiB, device="cuda:1")'
    del kept
    assert second.memory().end_allocated == 0
    assert second.memory().end_reserved == 20 * MiB


def test_a_gradient_belongs_to_the_line_of_backward(gpu):
    watch = MemoryWatch(gpu.devices[0], SourceLines(HERE))
    layer = torch.nn.Linear(2048, 2048, bias=False).cuda()
    loss = layer(torch.ones(1, 2048, device="cuda")).sum()
    loss.backward()
    shares = {share.line.code: share.nbytes for share in watch.memory().peak_shares}
    assert shares["loss.backward()"] >= 16 * MiB
    assert shares["layer = torch.nn.Linear(2048, 2048, bias=False).cuda()"] == 16 * MiB


def test_what_does_not_fit_is_kept_with_what_held_the_memory(gpu):
    allocator = gpu.devices[0].allocator
    lines = _Lines()
    watch = MemoryWatch(gpu.devices[0], lines)
    lines.now = 7
    large = allocator.allocate(10 << 30)
    lines.now = 8
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(6 << 30)
    short = watch.shortage
    assert (short.line.line, short.requested, short.allocated) == (8, 6 << 30, 10 << 30)
    assert short.free == caught.value.shortage.free
    assert short.missing == (6 << 30) - short.free
    assert [(share.line.line, share.nbytes) for share in short.shares] == [(7, 10 << 30)]
    allocator.free(large)
    assert watch.memory().failures == 1


def test_the_line_is_the_script_s_and_not_a_library_s(tmp_path):
    def run(file, source, **names):
        exec(compile(source, str(file), "exec"), names)
        return names

    script, other, installed = (
        tmp_path / name for name in ("job/train.py", "other/tools.py", "lib/site-packages/p.py")
    )
    places = SourceLines(str(tmp_path / "job"))
    found = []
    inner = run(installed, "def call(f):\n    f()\n")["call"]
    helper = run(other, "def call(f):\n\n    g(f)\n", g=inner)["call"]
    run(script, "\n\n\nhelper(note)\n", helper=helper, note=lambda: found.append(places.here()))
    # The innermost of the script's folder, though this test's own file is nearer.
    assert found == [(str(script), 4)]
    far = SourceLines(str(tmp_path / "elsewhere"))
    run(other, "\ndef call(f):\n    g(f)\n\ncall(note)\n", g=inner, note=lambda: found.append(far.here()))
    assert found[1][0] == __file__  # nothing of the script: the innermost that is no library's


def test_an_installed_module_that_is_run_is_the_script(tmp_path):
    home = tmp_path / "lib/site-packages/pack"
    places, found = SourceLines(str(home)), []
    names = {"note": lambda: found.append(places.here())}
    exec(compile("\nnote()", str(home / "train.py"), "exec"), names)
    assert found == [(str(home / "train.py"), 2)]


def test_a_line_without_source_has_its_place(tmp_path):
    gone, elsewhere = str(tmp_path / "job" / "gone.py"), str(tmp_path / "gone.py")
    places = SourceLines(str(tmp_path / "job"))
    assert [str(places.line((file, 3))) for file in (gone, elsewhere)] == ["gone.py:3", f"{elsewhere}:3"]


def test_what_another_stream_still_uses_is_no_longer_allocated_once_it_is_freed(gpu):
    watch = MemoryWatch(gpu.devices[0], _Lines())
    side = torch.cuda.Stream()
    x = torch.empty(4096, 4096, device="cuda")
    with torch.cuda.stream(side):
        x = x @ x
    x.record_stream(torch.cuda.default_stream())
    torch.empty(2048, 2048, device="cuda") @ torch.empty(2048, 2048, device="cuda")
    del x
    kept = torch.empty(4096, 4096, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.current"] > torch.cuda.memory_allocated() == 64 * MiB
    assert watch.memory().end_allocated == torch.cuda.memory_allocated()
    assert watch.memory().peak_allocated == torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    del kept
    torch.empty(1, device="cuda")
    assert watch.memory().end_allocated == torch.cuda.memory_allocated() == 0
