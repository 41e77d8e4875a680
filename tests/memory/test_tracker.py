"""GPUMemoryTracker on its own: what it counts, and what it does where things go wrong."""

import gc
import threading
import weakref

import pytest
import torch

from gpulab.memory import GPUMemoryTracker, windows
from virtualgpu.gpu import VirtualGPU

MIB = 2**20


def take(mib, device="cuda"):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def take_and_fail(mib, kept):
    kept.append(take(mib))
    raise KeyError("mine")


@pytest.fixture(autouse=True)
def nothing_left_open():
    yield
    assert windows.open_windows == {}


def test_peak_is_absolute_and_delta_is_what_stays(gpu):
    before = take(10)
    with GPUMemoryTracker() as seen:
        kept = take(4)
        passing = take(8)
        del passing
    assert (seen.peak_memory_mb, seen.memory_delta_mb) == (22, 4)
    assert (seen.peak_bytes, seen.delta_bytes, seen.peak_above_entry_bytes) == (22 * MIB, 4 * MIB, 12 * MIB)
    assert before.numel() + kept.numel() == seen.devices[0].entry_bytes + seen.delta_bytes


def test_values_are_what_pytorch_counts_not_what_was_asked_for(gpu):
    with GPUMemoryTracker() as seen:
        small = torch.empty(1, device="cuda")
    assert seen.delta_bytes == torch.cuda.memory_allocated() == 512
    assert small.nbytes == 4


def test_a_peak_before_entry_does_not_leak_in(gpu):
    del_me = take(100)
    del del_me
    with GPUMemoryTracker() as seen:
        kept = take(1)
    assert seen.peak_bytes == kept.nbytes


def test_memory_freed_inside_gives_a_negative_delta(gpu):
    old = take(6)
    with GPUMemoryTracker() as seen:
        del old
    assert seen.memory_delta_mb == -6
    assert seen.peak_above_entry_bytes == 0


def test_the_outer_peak_survives_an_inner_tracker(gpu):
    with GPUMemoryTracker() as outer:
        passing = take(50)
        del passing
        with GPUMemoryTracker() as inner:
            kept = take(2)
    assert (outer.peak_memory_mb, inner.peak_memory_mb) == (50, 2)
    assert kept.nbytes == outer.delta_bytes


def test_trackers_may_end_in_any_order(gpu):
    first, second = GPUMemoryTracker(), GPUMemoryTracker()
    first.__enter__()
    a = take(8)
    second.__enter__()
    del a
    first.__exit__(None, None, None)
    b = take(20)
    second.__exit__(None, None, None)
    assert (first.peak_memory_mb, first.memory_delta_mb) == (8, 0)
    assert (second.peak_memory_mb, second.memory_delta_mb) == (20, 12)
    assert b.nbytes == 20 * MIB


def test_reading_inside_gives_the_value_so_far_and_costs_no_peak(gpu):
    with GPUMemoryTracker(label="step") as seen:
        a = take(3)
        assert (seen.peak_memory_mb, seen.memory_delta_mb) == (3, 3)
        assert "still open" in repr(seen)
        del a
        assert (seen.peak_memory_mb, seen.memory_delta_mb) == (3, 0)
    assert seen.peak_memory_mb == 3


def test_values_stand_still_after_the_block(gpu):
    with GPUMemoryTracker() as seen:
        pass
    a = take(3)
    assert (seen.peak_bytes, seen.delta_bytes) == (0, 0)
    del a


def test_used_again_it_starts_anew(gpu):
    seen = GPUMemoryTracker()
    with seen:
        a = take(9)
    del a
    with seen:
        b = take(1)
    assert (seen.peak_memory_mb, seen.memory_delta_mb) == (1, 1)
    del b


def test_a_reset_of_ones_own_costs_nothing_if_the_tracker_is_read_first(gpu):
    with GPUMemoryTracker() as seen:
        a = take(9)
        del a
        assert seen.peak_memory_mb == 9
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        b = take(1)
    assert seen.peak_memory_mb == 9
    del b


def test_an_exception_ends_the_measurement_and_goes_on(gpu):
    seen = GPUMemoryTracker()
    kept = []
    with pytest.raises(KeyError, match="mine"), seen:
        take_and_fail(5, kept)
    assert seen.memory_delta_mb == 5
    kept.clear()
    with seen:
        pass
    assert seen.peak_bytes == 0


def test_out_of_memory_inside_keeps_the_peak_that_was_reached(gpu):
    seen = GPUMemoryTracker()
    with pytest.raises(torch.OutOfMemoryError), seen:
        _ = [take(1024), take(1024 * 1024)]
    assert (seen.peak_memory_mb, seen.memory_delta_mb) == (1024, 0)


def test_entering_an_open_tracker_is_refused_and_harms_nothing(gpu):
    with GPUMemoryTracker(label="step") as seen:
        a = take(1)
        with pytest.raises(RuntimeError, match="'step' is already open"), seen:
            pass
        assert seen.memory_delta_mb == 1
    assert seen.memory_delta_mb == 1
    del a


def test_leaving_without_entering_is_refused(gpu):
    with pytest.raises(RuntimeError, match="is not open"):
        GPUMemoryTracker().__exit__(None, None, None)


def test_reading_before_the_first_entry_is_refused(gpu):
    with pytest.raises(RuntimeError, match="measured nothing yet"):
        _ = GPUMemoryTracker().peak_bytes


def test_a_failed_kernel_shows_up_at_the_end_of_the_block(gpu):
    seen = GPUMemoryTracker()
    with pytest.raises(torch.AcceleratorError), seen:
        gpu.devices[0].fail("index out of bounds")
    assert not seen._open


def test_a_failed_kernel_does_not_hide_the_exception_on_its_way(gpu):
    def work():
        gpu.devices[0].fail("index out of bounds")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), GPUMemoryTracker():
        work()


def test_a_failed_kernel_before_entry_leaves_the_tracker_closed(gpu):
    seen = GPUMemoryTracker()
    gpu.devices[0].fail("index out of bounds")
    with pytest.raises(torch.AcceleratorError):
        seen.__enter__()
    gpu.devices[0].fault = None
    with seen:
        a = take(1)
    assert seen.memory_delta_mb == 1
    del a


# -- as a decorator --------------------------------------------------------------------------------------------------


def test_as_a_decorator_it_holds_the_last_call(gpu):
    seen = GPUMemoryTracker(label="f")

    @seen
    def f(mib):
        """Doc."""
        return take(mib)

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    a = f(3)
    assert seen.memory_delta_mb == 3
    b = f(2)
    assert (seen.peak_memory_mb, seen.memory_delta_mb, seen.label) == (5, 2, "f")
    del a, b


def test_as_a_decorator_it_measures_recursion_as_the_outermost_call(gpu):
    seen = GPUMemoryTracker()

    @seen
    def f(depth):
        kept = take(1)
        return f(depth - 1) if depth else kept.numel()

    f(4)
    assert (seen.peak_memory_mb, seen.memory_delta_mb) == (5, 0)


def test_as_a_decorator_it_holds_the_call_that_failed(gpu):
    seen = GPUMemoryTracker()

    @seen
    def f():
        a = take(7)
        del a
        raise KeyError

    with pytest.raises(KeyError):
        f()
    assert seen.peak_memory_mb == 7


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(TypeError, match=r"@GPUMemoryTracker\(\)"):

        @GPUMemoryTracker
        def f():
            pass


def test_decorating_a_generator_is_refused():
    def steps():
        yield

    with pytest.raises(TypeError, match="inside it"):
        GPUMemoryTracker()(steps)


# -- devices ---------------------------------------------------------------------------------------------------------


def test_the_current_gpu_is_the_one_at_entry(two_gpus):
    seen = GPUMemoryTracker()
    with torch.cuda.device(1), seen:
        torch.cuda.set_device(0)
        a, b = take(1, "cuda:0"), take(2, "cuda:1")
    assert [d.device for d in seen.devices] == ["cuda:1"]
    assert seen.memory_delta_mb == 2
    del a, b


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1)])
def test_a_gpu_can_be_named_in_every_spelling(two_gpus, device):
    with GPUMemoryTracker(device) as seen:
        a, b = take(1, "cuda:0"), take(2, "cuda:1")
    assert (seen.memory_delta_mb, seen.devices[0].device) == (2, "cuda:1")
    del a, b


def test_all_gpus_are_counted_apart_and_summed(two_gpus):
    with GPUMemoryTracker("all") as seen:
        a = take(1, "cuda:0")
        with GPUMemoryTracker(1):
            b = take(2, "cuda:1")
        del b
    first, second = seen.devices
    assert (first.peak_bytes, first.delta_bytes) == (MIB, MIB)
    assert (second.peak_bytes, second.delta_bytes) == (2 * MIB, 0)
    assert (seen.peak_memory_mb, seen.memory_delta_mb) == (3, 1)
    assert "2 GPUs together" in repr(seen)
    del a


def test_an_inner_tracker_on_another_gpu_does_not_touch_the_outer(two_gpus):
    with GPUMemoryTracker(0) as outer, GPUMemoryTracker(1) as inner:
        a = take(5, "cuda:1")
    assert (outer.peak_bytes, inner.peak_memory_mb) == (0, 5)
    del a


def test_a_gpu_that_does_not_exist_is_named_at_entry(two_gpus):
    with (
        pytest.raises(ValueError, match=r"cuda:2 does not exist: there are 2 GPUs, cuda:0 to cuda:1"),
        GPUMemoryTracker(2),
    ):
        pass


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        (True, TypeError, "not True"),
        (1.5, TypeError, "not 1.5"),
        (-1, ValueError, "counted from 0"),
        ("forward", ValueError, r"GPUMemoryTracker\(label='forward'\)"),
    ],
)
def test_what_is_no_device_is_refused(device, error, words):
    with pytest.raises(error, match=words):
        GPUMemoryTracker(device)


def test_a_label_must_be_text():
    with pytest.raises(TypeError, match="label must be a text, not 3"):
        GPUMemoryTracker(label=3)


# -- no GPU, other GPUs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:3", "all", "cpu"])
def test_without_a_gpu_it_is_inert(no_gpu, device):
    seen = GPUMemoryTracker(device, label="step")
    assert not seen.available
    with seen:
        assert seen.peak_bytes == 0
    assert not seen.available
    assert (seen.peak_memory_mb, seen.memory_delta_mb, seen.peak_above_entry_bytes) == (0, 0, 0)
    assert (seen.devices, seen.numbers) == ((), None)
    assert repr(seen) == "<GPUMemoryTracker 'step': no GPU, nothing measured>"


def test_without_a_gpu_an_exception_goes_through(no_gpu):
    with pytest.raises(KeyError), GPUMemoryTracker():
        raise KeyError


def test_the_cpu_is_no_gpu_even_beside_one(gpu):
    with GPUMemoryTracker("cpu") as seen:
        pass
    assert not seen.available


def test_an_accelerator_that_keeps_no_counts_is_as_none(no_gpu, monkeypatch):
    def no_counts(*_):
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "memory_allocated", no_counts)
    with GPUMemoryTracker() as seen:
        pass
    assert not seen.available


def test_another_accelerator_is_read_through_torch_accelerator(no_gpu, monkeypatch):
    counts = {"now": 5, "peak": 40}

    def reset(index):
        counts["peak"] = counts["now"]

    for name, value in {
        "current_accelerator": lambda check_available=False: torch.device("xpu"),
        "current_device_index": lambda: 0,
        "synchronize": lambda index: None,
        "memory_allocated": lambda index=0: counts["now"],
        "max_memory_allocated": lambda index: counts["peak"],
        "reset_peak_memory_stats": reset,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, value)
    with GPUMemoryTracker() as seen:
        counts.update(now=7, peak=11)
    assert (seen.devices[0].device, seen.peak_bytes, seen.delta_bytes) == ("xpu:0", 11, 2)


def test_an_inner_virtual_gpu_has_counts_of_its_own(gpu):
    with GPUMemoryTracker() as outer:
        a = take(1)
        with VirtualGPU("H100", compute=False), GPUMemoryTracker() as inner:
            b = take(30)
            assert outer.peak_memory_mb == 0
        c = take(2)
    assert (outer.peak_memory_mb, inner.peak_memory_mb) == (3, 30)
    del a, b, c


def test_a_tracker_outliving_its_gpu_keeps_its_last_reading():
    seen = GPUMemoryTracker()
    with VirtualGPU("T4"):
        seen.__enter__()
        a = take(2)
        assert seen.peak_memory_mb == 2
    seen.__exit__(None, None, None)
    assert (seen.peak_memory_mb, seen.numbers) == (2, "virtual")
    del a


def test_the_numbers_say_whose_they_are(gpu):
    with GPUMemoryTracker(label="step") as seen:
        a = take(1)
    assert seen.numbers == "virtual"
    assert repr(seen) == "<GPUMemoryTracker 'step' on cuda:0: peak 1.00 MiB, change +1.00 MiB, virtual>"
    assert repr(GPUMemoryTracker()) == "<GPUMemoryTracker: not entered yet>"
    del a


# -- threads and garbage ---------------------------------------------------------------------------------------------


def test_allocations_of_other_threads_count(gpu):
    kept = []
    with GPUMemoryTracker() as seen:
        thread = threading.Thread(target=lambda: kept.append(take(4)))
        thread.start()
        thread.join()
    assert seen.memory_delta_mb == 4


def test_trackers_in_many_threads_stay_consistent(gpu):
    failures = []

    def work(mib):
        for _ in range(50):
            with GPUMemoryTracker() as seen:
                a = take(mib)
                if seen.peak_bytes < mib * MIB:
                    failures.append(seen)
            if not seen.peak_bytes >= seen.devices[0].entry_bytes >= 0:
                failures.append(seen)
            del a

    with GPUMemoryTracker() as outer:
        threads = [threading.Thread(target=work, args=(mib,)) for mib in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert (outer.delta_bytes, outer.peak_memory_mb >= 4) == (0, True)


def test_one_tracker_in_two_threads_is_refused_in_the_second(gpu):
    errors = []

    def enter(seen):
        try:
            seen.__enter__()
        except RuntimeError as error:
            errors.append(str(error))

    with GPUMemoryTracker() as seen:
        thread = threading.Thread(target=enter, args=(seen,))
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "already open" in errors[0]


def test_a_tracker_dropped_while_open_leaves_nothing_behind(gpu):
    GPUMemoryTracker().__enter__()
    gc.collect()
    assert windows.open_windows == {}


def test_reading_one_tracker_before_a_reset_of_ones_own_serves_all(gpu):
    with GPUMemoryTracker() as outer, GPUMemoryTracker() as inner:
        a = take(9)
        del a
        assert inner.peak_memory_mb == 9
        torch.cuda.reset_peak_memory_stats()
    assert (outer.peak_memory_mb, inner.peak_memory_mb) == (9, 9)


def test_a_finished_tracker_keeps_no_gpu_alive():
    scope = VirtualGPU("T4", compute=False)
    with scope, GPUMemoryTracker() as seen:
        pass
    gone = weakref.ref(scope)
    del scope
    gc.collect()
    assert gone() is None
    assert seen.numbers == "virtual"
