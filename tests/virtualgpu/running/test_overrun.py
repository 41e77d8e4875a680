"""After a run out of memory: its allocations in other allocators, and the copy that goes on over the limit."""

import os
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.gpu import VirtualGPU
from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory
from virtualgpu.memory.settings import Settings
from virtualgpu.running import overrun, replay, sandbox
from virtualgpu.running.memory_watch import MemoryWatch
from virtualgpu.running.replay import Record
from virtualgpu.running.source_lines import SourceLines

from .starting import start

MiB = 1 << 20
CONFINES = pytest.mark.skipif(not sandbox.is_supported(), reason="no process can be confined here")
SETTINGS = [Settings(), Settings(expandable_segments=True), Settings(max_split_size_mb=20)]


# -- the record ------------------------------------------------------------------------------------------------------


@given(
    events=st.lists(st.tuples(st.integers(0, 60 * MiB), st.integers(0, 2), st.integers(0, 4)), max_size=80),
    rules=st.sampled_from(SETTINGS),
)
@settings(max_examples=60, deadline=None)
def test_a_replay_is_the_run_once_more(events, rules):
    """It takes the same memory, runs out where the run did, and leaves the same counts."""
    with VirtualGPU("T4") as scope:
        device = scope.devices[0]
        device.allocator = own = CachingAllocator(400 * MiB, rules, context_bytes=100 * MiB)
        watch, held, kept, used, ran_out = MemoryWatch(device, SourceLines("/")), [], [], 0, None

        def settle():
            while kept:
                own.complete(kept.pop())

        own.settle = settle
        for nbytes, stream, what in events:
            if what == 0 and held:
                own.free(held.pop(len(held) // 2))
            elif what == 1 and held:
                kept.append(held.pop())
                own.hold(kept[-1])
            elif what == 2 and kept:
                own.complete(kept.pop())
            elif what == 3:
                own.empty_cache()
            try:
                block = own.allocate(nbytes, stream)
            except OutOfMemory:
                ran_out = replay.request_events(nbytes, stream)
                break
            held += [block] if block else []
            used = max(used, own.memory.taken_bytes)
        fresh = CachingAllocator(400 * MiB, rules, context_bytes=100 * MiB)
        found = replay.replay(watch.record.events + (ran_out or array("q")), fresh)
        assert watch.record.whole
        assert found.fits == (ran_out is None)
        assert found.used == used + 100 * MiB
        assert fresh.memory_stats() == own.memory_stats()


def test_a_record_that_does_not_know_all_is_not_whole(monkeypatch):
    with VirtualGPU("T4") as scope:
        device = scope.devices[0]
        for what in (
            lambda: torch.cuda.set_per_process_memory_fraction(0.5),
            graph,
        ):
            watch = MemoryWatch(device, SourceLines("/"))
            torch.ones(9, device="cuda")
            assert watch.record.whole
            what()
            assert not watch.record.whole
            watch.end()
    record = Record()
    monkeypatch.setattr(replay, "MOST", 2)
    for _ in range(3):
        assert record.whole
        record.emptied()
    assert not record.whole


def graph():
    one = torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        torch.ones(9, device="cuda")


# -- the copy --------------------------------------------------------------------------------------------------------

TRAIN = """
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range({steps}):
    x = torch.randn({batch}, 4096, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with open("steps.txt", "a") as log:
        print(step, file=log)
    print("step", step, flush=True)
torch.save(torch.ones(3), "model.pt")
"""
# pytorch#35901: a large segment is split by small tensors, and serves no large request any more.
PIECES = """
import torch
def part(kept):
    big = torch.empty(9 * 2**30, dtype=torch.uint8, device="cuda")
    del big
    for _ in range(40):
        kept.append(torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda"))
        pad = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda")
kept = []
part(kept)
part(kept)
"""


@pytest.fixture
def written(tmp_path, monkeypatch, run):
    """`written(source, options=…)` runs it on shapes, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def go(source, *options):
        path = tmp_path / "train.py"
        path.write_text(source)
        return run(path, options=("--shapes-only", *options))

    return go


def tried(done):
    assert done.code == 12, done.err
    return done.report.used[0].shortage.tried


@CONFINES
def test_what_a_step_needs_is_what_it_takes_where_it_fits(written, tmp_path):
    found = tried(written(TRAIN.format(steps=3, batch=60_000), "--gpu", "T4"))
    assert (found.until, found.gpu, found.expandable) == ("step", "L4", None)
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]
    whole = written(TRAIN.format(steps=3, batch=60_000), "--gpu", "L4")
    memory = whole.report.used[0].memory
    assert (found.used, found.allocated) == (memory.peak_used, memory.peak_allocated)


@CONFINES
def test_the_smallest_gpu_that_is_named_holds_it_and_the_next_smaller_does_not(written):
    found = tried(written(TRAIN.format(steps=2, batch=80_000), "--gpu", "T4"))
    assert found.gpu == "RTX5090"
    assert written(TRAIN.format(steps=2, batch=80_000), "--gpu", "RTX5090").code == 0
    assert written(TRAIN.format(steps=2, batch=80_000), "--gpu", "RTX4090").code == 12


@CONFINES
def test_where_no_second_step_comes_the_first_is_what_is_known(written):
    found = tried(written(TRAIN.format(steps=1, batch=60_000), "--gpu", "T4"))
    assert found.until in ("step", "end")
    assert found.used < tried(written(TRAIN.format(steps=2, batch=60_000), "--gpu", "T4")).used


@CONFINES
def test_fragmented_memory_fits_with_expandable_segments(written, monkeypatch):
    done = written(PIECES, "--gpu", "T4")
    short = done.report.used[0].shortage
    assert short.fragmented
    assert (short.tried.until, short.tried.expandable, short.tried.gpu) == ("end", 10_320 * MiB, "L4")
    said = " ".join(done.text.split())
    assert "Memory is fragmented: 800.0 MiB are allocated, 9,216 MiB were asked for" in said
    assert "With PYTORCH_ALLOC_CONF=expandable_segments:True it fits on the T4, with a peak of 10,320 MiB" in said
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    done = written(PIECES, "--gpu", "T4")
    assert done.code == 0
    assert done.report.used[0].memory.peak_used == 10_320 * MiB


@CONFINES
def test_expandable_segments_are_not_advised_where_they_run_out_too(written, monkeypatch):
    more = PIECES + "more = torch.empty(8 * 2**30, dtype=torch.uint8, device='cuda')\npart(kept)\n"
    done = written(more, "--gpu", "T4")
    assert done.report.used[0].shortage.fragmented
    assert tried(done).expandable is None
    assert "expandable_segments:True does not help" in done.text
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert written(more, "--gpu", "T4").code == 12


CAUGHT = """
import torch
try:
    torch.empty(99 * 2**30, device="cuda")
except torch.OutOfMemoryError:
    print("caught")
"""


def test_a_run_that_goes_on_leaves_no_copy(written):
    before = {child.pid for child in psutil.Process().children()}
    done = written(CAUGHT, "--gpu", "T4")
    assert done.code == 0
    assert done.out == "caught\n"
    assert done.report.used[0].shortage.tried is None
    assert {child.pid for child in psutil.Process().children()} <= before


def test_what_only_this_process_can_do_is_known_up_to_that_line(written, monkeypatch):
    monkeypatch.setattr(sandbox, "is_supported", lambda: False)
    found = tried(written(TRAIN.format(steps=2, batch=60_000), "--gpu", "T4"))
    assert (found.until, found.gpu) == ("", "V100-16")


def test_where_the_system_gives_no_process_it_is_known_up_to_that_line(written, monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    assert tried(written(TRAIN.format(steps=2, batch=60_000), "--gpu", "T4")).until == ""


@CONFINES
def test_a_copy_that_does_not_end_is_ended(written, monkeypatch):
    monkeypatch.setattr(overrun, "SECONDS", 0.5)
    source = "import torch\ntorch.empty(99 << 30, dtype=torch.uint8, device='cuda')\nwhile True: pass\n"
    found = tried(written(source, "--gpu", "T4"))
    assert (found.until, found.gpu) == ("", "H200")


@CONFINES
def test_with_values_backward_and_checkpoints_go_on_in_the_copy(tmp_path):
    """In a process of its own: with the threads that PyTorch, a progress bar and a loader have."""
    script = tmp_path / "train.py"
    script.write_text(VALUES)
    done = start(
        "--gpu", "T4", script, cwd=tmp_path, env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.012"}
    )  # fmt: skip
    assert done.returncode == 12
    said = " ".join(done.stderr.split())
    assert ": a whole step takes" in said
    assert done.stdout == "begun\n"
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]


VALUES = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(1024, 1024)), batch_size=512, pin_memory=True)
print("begun", flush=True)
for (x,) in tqdm(loader):
    x = x.cuda(non_blocking=True).requires_grad_()
    loss = checkpoint(model, x, use_reentrant=True).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
    torch.save(model.state_dict(), "model.pt")
"""


# -- confined --------------------------------------------------------------------------------------------------------

ATTEMPTS = {
    "print": (lambda: print("said", flush=True), "None"),
    "a file that is open": (lambda: (kept.write("more"), kept.flush()), "(4, None)"),
    "a file to read": (lambda: Path("old.txt").read_text(), "'old'"),
    "a file to write": (lambda: Path("new.txt").write_text("new"), "3"),
    "a file that is there": (lambda: Path("old.txt").write_text("new"), "3"),
    "open of the system": (lambda: os.open("old.txt", os.O_WRONLY | os.O_TRUNC), "OSError"),
    "PyTorch's own file": (lambda: torch.save(torch.ones(3), "old.txt"), "RuntimeError"),
    "removing": (lambda: os.remove("old.txt"), "OSError"),
    "renaming": (lambda: os.rename("old.txt", "new.txt"), "OSError"),
    "a folder": (lambda: os.mkdir("new"), "OSError"),
    "truncating": (lambda: os.truncate("old.txt", 0), "OSError"),
    "changing rights": (lambda: os.chmod("old.txt", 0), "OSError"),
    "a process": (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "OSError"),
    "a fork": (os.fork, "OSError"),
    "a socket": (lambda: __import__("socket").socket(), "OSError"),
    "a signal": (lambda: os.kill(os.getppid(), 9), "OSError"),
    "a thread": (lambda: in_a_thread(lambda: 7), "7"),
    "a product": (lambda: tuple((torch.ones(300, 300) @ torch.ones(300, 300)).shape), "(300, 300)"),
}
kept = None


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@CONFINES
def test_a_confined_process_changes_nothing_outside_itself(tmp_path, monkeypatch, capfd):
    global kept
    monkeypatch.chdir(tmp_path)
    Path("old.txt").write_text("old")
    kept = Path("kept.txt").open("w")  # noqa: SIM115
    answer, answered = os.pipe()
    process = os.fork()
    if not process:
        sandbox.die_with_parent()
        sandbox.confine(answered)
        torch.set_num_threads(1)
        for name, (call, _) in ATTEMPTS.items():
            try:
                found = repr(call())
            except BaseException as error:
                found = type(error).__name__
            os.write(answered, f"{name}: {found}\n".encode())
        os._exit(0)
    os.close(answered)
    with os.fdopen(answer) as answers:
        said = answers.read().splitlines()
    assert os.waitpid(process, 0)[1] == 0
    assert said == [f"{name}: {wanted}" for name, (_, wanted) in ATTEMPTS.items()]
    kept.close()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"old.txt": "old", "kept.txt": ""}
    assert capfd.readouterr() == ("", "")
