"""The peak of one call, and a limit that holds: known sizes, wrong inputs, and what is there afterwards."""

import gc
import re
import weakref

import pytest
import torch

from gpulab import memory
from gpulab.memory import GPUMemoryTracker
from virtualgpu.gpu import VirtualGPU

MIB = 2**20


def take(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def test_the_peak_counts_all_tensors_and_what_came_on_top(gpu):
    kept = take(200)
    cached = take(700)
    del cached

    def call():
        a = take(300)
        del a
        take(12)

    found = memory.peak(call)
    assert (found.bytes, found.above, found.before) == (500 * MIB, 300 * MIB, 200 * MIB)
    assert found.reserved == 900 * MIB  # with what is cached, in which the 300 MiB have room
    assert str(found) == repr(found) == "peak 500.0 MiB allocated, 300.0 MiB above the start (virtual)"
    assert torch.cuda.memory_allocated() == 200 * MIB
    del kept


def test_a_value_that_is_returned_is_not_kept(gpu):
    made = []

    def call():
        x = take(30)
        made.append(weakref.ref(x))
        return x

    found = memory.peak(call)
    assert found.above == 30 * MIB
    assert made[0]() is None
    assert torch.cuda.memory_allocated() == 0


def test_garbage_from_before_does_not_count(gpu):
    circle = [take(50)]
    circle.append(circle)
    gc.disable()
    try:
        del circle
        assert memory.peak(lambda: take(5)).before == 0
    finally:
        gc.enable()


def test_peaks_within_each_other_and_within_a_tracker_keep_their_own(gpu):
    inner = []

    def call():
        take(40)
        inner.append(memory.peak(lambda: take(4)))

    with GPUMemoryTracker() as tracker:
        take(90)
        outer = memory.peak(call)
    assert [inner[0].bytes, outer.bytes, tracker.peak_bytes] == [4 * MIB, 40 * MIB, 90 * MIB]


def test_the_peak_of_another_gpu(two_gpus):
    found = memory.peak(lambda: (take(3, "cuda:0"), take(30, "cuda:1")), device=1)
    assert found.above == 30 * MIB
    assert memory.peak(lambda: take(30, "cuda:1")).above == 0


def test_running_out_passes_through(gpu):
    with pytest.raises(torch.OutOfMemoryError):
        memory.peak(lambda: take(100_000))
    assert memory.peak(lambda: take(1)).above == MIB


@pytest.mark.parametrize("call", [lambda: memory.peak(lambda: None), lambda: memory.limit(8).__enter__()])
def test_without_a_gpu_it_is_an_error_that_helps(no_gpu, call):
    with pytest.raises(RuntimeError, match=r"memory\.(peak|limit) needs a GPU, and there is no GPU here: gpulab.setup"):
        call()


def test_what_cannot_be_measured(gpu):
    with pytest.raises(TypeError, match=r"write memory\.peak\(lambda: step\(x\)\)"):
        memory.peak(take(1))
    with pytest.raises(TypeError, match=r"function gave a generator, whose body has not run"):
        memory.peak(lambda: (i for i in range(3)))
    with pytest.raises(ValueError, match='one GPU, so device must not be "all"'):
        memory.peak(lambda: None, device="all")
    with pytest.raises(RuntimeError, match="there is no GPU 'cpu' here"):
        memory.peak(lambda: None, device="cpu")


def test_a_limit_holds_to_the_byte_and_is_named_in_the_error(gpu):
    with memory.limit(128):
        x = take(100)
        y = take(28)  # 128 MiB reserved, which is allowed
        assert torch.cuda.memory_reserved() == 128 * MIB
        with pytest.raises(torch.OutOfMemoryError) as error:
            take(2)
        assert " 128.00 MiB allowed; " in str(error.value)
    assert take(500).nbytes == 500 * MIB
    del x, y


@pytest.mark.parametrize("name", ["T4", "A100-80", "H200", "H100"])
@pytest.mark.parametrize("mib", [22, 128, 1000, 3070])
def test_it_is_exact_on_every_gpu(name, mib):
    with VirtualGPU(name, compute=False), memory.limit(mib):
        x = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            take(2)
        del x


def test_cached_memory_and_garbage_do_not_count(gpu):
    circle = [take(300)]
    circle.append(circle)
    del circle
    with memory.limit(64):
        assert torch.cuda.memory_reserved() == 0


def test_limits_nest_and_are_put_back_also_after_an_error(gpu):
    torch.cuda.set_per_process_memory_fraction(0.3)

    def inner():
        with memory.limit(64):
            take(100)

    with memory.limit(128):
        with pytest.raises(torch.OutOfMemoryError, match=re.escape(" 64.00 MiB allowed")):
            inner()
        take(128)
        with pytest.raises(torch.OutOfMemoryError, match=re.escape(" 128.00 MiB allowed")):
            take(130)
    assert torch.cuda.get_per_process_memory_fraction() == 0.3


def test_a_limit_of_the_settings_comes_back():
    with VirtualGPU("T4", compute=False, settings="per_process_memory_fraction:0.25"):
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        with memory.limit(8000):
            take(7000)
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            take(4000)


def test_a_limit_on_one_gpu_leaves_the_other(two_gpus):
    with memory.limit(20, device="cuda:1"):
        take(500)
        with pytest.raises(torch.OutOfMemoryError):
            take(500, "cuda:1")


def test_a_gpu_that_ends_within_the_block_takes_the_limit_with_it():
    scope = VirtualGPU("T4", compute=False).start()
    with memory.limit(20):
        scope.stop()
    with VirtualGPU("T4", compute=False):
        take(500)


def test_more_is_reserved_than_shall_be_allowed(gpu):
    x = take(100)
    words = r"memory\.limit\(64\) allows 64\.0 MiB, and PyTorch has 100\.0 MiB reserved for live tensors on cuda:0"
    with pytest.raises(RuntimeError, match=words), memory.limit(64):
        pass
    take(500)
    del x


@pytest.mark.parametrize(
    ("mib", "error", "words"),
    [
        ("128", TypeError, "mib must be a number of MiB such as 128, not '128'"),
        (True, TypeError, "not True"),
        (0, ValueError, "mib is 0; it must be above 0 and at most 15,095"),
        (-1, ValueError, "above 0"),
        (float("nan"), ValueError, "above 0"),
        (15096, ValueError, "at most 15,095, the MiB of cuda:0"),
    ],
)
def test_what_is_no_limit(gpu, mib, error, words):
    with pytest.raises(error, match=words), memory.limit(mib):
        pass


def test_a_gpu_without_fractions_is_named(monkeypatch, gpu):
    from virtualgpu.readings import counters

    monkeypatch.setattr(counters, "_accelerator", lambda: ("xpu", torch.cuda))
    with pytest.raises(RuntimeError, match="needs a GPU of type 'cuda', not 'xpu'"), memory.limit(128):
        pass
