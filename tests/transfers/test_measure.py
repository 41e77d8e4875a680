"""transfers.measure: what it times, what it leaves out and says so, and that it leaves nothing behind."""

import gc

import pytest
import torch

from gpulab import transfers
from gpulab.machine.diagnosis import host
from gpulab.transfers import measuring
from virtualgpu.gpu import VirtualGPU

SIZES = (1e4, 1e6, 1e8)


def test_pinned_and_pageable_copies_of_each_size(shapes):
    found = transfers.measure(SIZES)
    assert [copy.nbytes for copy in found.pinned.copies] == [10_000, 1_000_000, 100_000_000]
    assert (found.numbers, found.how, found.gpu, found.device) == ("virtual", "CUDA events", "Tesla T4", "cuda:0")
    for pinned, pageable in zip(found.pinned.copies, found.pageable.copies, strict=True):
        assert pinned.ms < pageable.ms
        assert pinned.gbps == pytest.approx(pinned.nbytes / pinned.ms / 1e6)
    # The link of a T4 does 16 · 10⁹ bytes a second in one direction.
    assert found.pageable.bandwidth_gbps < found.pinned.bandwidth_gbps < 16
    assert 1 < found.pinned.latency_us < 100
    assert [pin.nbytes for pin in found.pinning] == [10_000, 1_000_000, 100_000_000]
    assert found.pinning[-1].ms > found.pinned.copies[-1].ms  # pinning for one copy costs more than it brings
    assert found.skipped == ()


def test_the_same_numbers_on_every_run_and_with_values():
    def run(compute):
        with VirtualGPU("T4", compute=compute):
            return transfers.measure((1e4, 1e6))

    assert run(True) == run(False) == run(False)


@pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_each_direction_copies_there(gpu, direction, monkeypatch):
    crossed = set()
    own = measuring._Bench._time

    def seen(self, source, target, *, non_blocking=False):
        crossed.add((source.device.type, target.device.type, source.is_pinned() or target.is_pinned(), non_blocking))
        return own(self, source, target, non_blocking=non_blocking)

    monkeypatch.setattr(measuring._Bench, "_time", seen)
    found = transfers.measure((1000,), direction, repeat=2)
    way = ("cpu", "cuda") if direction == "h2d" else ("cuda", "cpu")
    assert crossed == {(*way, True, True), (*way, False, False)}
    assert found.route == ("CPU to cuda:0" if direction == "h2d" else "cuda:0 to CPU")


def test_within_the_gpu_the_host_does_not_matter(shapes):
    found = transfers.measure(SIZES, "d2d")
    assert [series.kind for series in found.series] == ["on the GPU"]
    assert found.bandwidth_gbps > 5 * transfers.measure(SIZES, pinned=True).bandwidth_gbps
    assert found.bandwidth_gbps < 320 / 2  # every byte is read and written
    assert found.pinning == ()


def test_one_kind_alone(shapes):
    found = transfers.measure(SIZES, pinned=False)
    assert found.bandwidth_gbps == found.pageable.bandwidth_gbps
    assert found.latency_us == found.pageable.latency_us
    assert found.pinning == ()
    with pytest.raises(ValueError, match="no pinned copies were measured, but pageable ones"):
        _ = found.pinned
    with pytest.raises(ValueError, match=r"two kinds were measured: read \.pinned\.latency_us or \.page"):
        _ = transfers.measure(SIZES).latency_us


def test_sizes_in_any_order_and_number_type(shapes):
    found = transfers.measure((10**6, 1e4, 1e4), pinned=True, repeat=2)
    assert [copy.nbytes for copy in found.series[0].copies] == [10_000, 1_000_000]


def test_large_copies_are_repeated_less_often(shapes):
    repeats = [len(copy.timing.times_ms) for copy in transfers.measure((1e6, 2e8, 2e9), "d2d").series[0].copies]
    assert repeats == [20, 10, 3]
    assert len(transfers.measure((2e9,), "d2d", repeat=1).series[0].copies[0].timing.times_ms) == 1


def test_the_other_gpu(two_gpus):
    found = transfers.measure((1e6, 1e7), device="cuda:1")
    assert found.device == "cuda:1"
    assert torch.cuda.max_memory_allocated(0) == 0
    assert torch.cuda.max_memory_allocated(1) > 0


# -- what finds no room ----------------------------------------------------------------------------------------------


def test_what_the_gpu_cannot_hold_is_left_out_with_a_sentence(shapes, monkeypatch):
    monkeypatch.setattr(measuring, "_host_free", lambda: 10**15)
    found = transfers.measure((1e6, 1e7, 1e11), pinned=False)
    assert len(found.pageable.copies) == 2
    (why,) = found.skipped
    assert why.startswith("100 GB left out: it needs 100 GB of the GPU's memory, and 15.")
    assert str(found).endswith(why)
    assert why in found.describe()


def test_what_the_host_cannot_hold_is_left_out_with_a_sentence(shapes, monkeypatch):
    monkeypatch.setattr(host, "read_memory", lambda: host.Memory(16 * 10**9, 10**9))
    found = transfers.measure((1e6, 1e7, 1e9))
    assert found.skipped == ("1 GB left out: it needs 3 GB of the host's memory, and 1 GB are free",)


def test_a_containers_limit_counts(shapes, monkeypatch):
    limits = host.Limits(memory=2 * 10**8, used=10**8)
    monkeypatch.setattr(host, "read_memory", lambda: host.Memory(16 * 10**9, 10**9, limits))
    assert transfers.measure((1e6, 1e8)).skipped == (
        "100 MB left out: it needs 300 MB of the host's memory, and 100 MB are free",
    )


def test_the_reserve_that_no_tensor_holds_is_room(shapes):
    del_me = torch.empty(14 * 10**9, dtype=torch.uint8, device="cuda")
    del del_me
    assert torch.cuda.mem_get_info()[0] < 8e9
    assert transfers.measure((4e9,), "d2d", repeat=1).skipped == ()


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory: you tried"])
def test_memory_that_is_refused_after_all_leaves_the_size_out(shapes, monkeypatch, text):
    def full(self):
        raise RuntimeError(text)

    monkeypatch.setattr(torch.Tensor, "pin_memory", full)
    found = transfers.measure((1e6,))
    assert found.skipped == ("1 MB left out: it finds no room in the host's memory",)
    assert found.pinned.copies == found.pageable.copies == ()
    assert found.finding() == "No size was measured"
    assert str(found).endswith(found.skipped[0])


def test_another_error_passes_through(shapes, monkeypatch):
    def broken(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.Tensor, "pin_memory", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        transfers.measure((1e6,))
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


def test_it_leaves_no_memory_behind(gpu):
    transfers.measure((1e4, 1e6))
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0


# -- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"sizes_bytes": ()}, ValueError, "sizes_bytes is empty"),
        ({"sizes_bytes": 1e6}, TypeError, r"several sizes such as \(1e6, 1e8\), not 1000000.0"),
        ({"sizes_bytes": "1 MB"}, TypeError, "several sizes"),
        ({"sizes_bytes": [1e6, -1]}, ValueError, "sizes_bytes holds -1"),
        ({"sizes_bytes": [0]}, ValueError, "sizes_bytes holds 0"),
        ({"sizes_bytes": [True]}, ValueError, "sizes_bytes holds True"),
        ({"sizes_bytes": [1.5]}, TypeError, "sizes_bytes holds 1.5; each size must be a whole number"),
        ({"sizes_bytes": ["1 MB"]}, TypeError, "sizes_bytes holds '1 MB'"),
        ({"direction": "up"}, ValueError, "direction is 'up'; it must be 'h2d'"),
        ({"pinned": "yes"}, ValueError, "pinned is 'yes'; it must be True, False or 'both'"),
        ({"pinned": None}, ValueError, "pinned is None"),
        ({"repeat": 0}, ValueError, "repeat must be a whole number from 1 on, not 0"),
        ({"device": "all"}, ValueError, "one GPU"),
        ({"device": "cuda:1"}, ValueError, "device cuda:1 does not exist"),
        ({"device": "cpu"}, RuntimeError, "no GPU called 'cpu' here"),
    ],
)
def test_wrong_arguments_are_named(shapes, arguments, error, words):
    with pytest.raises(error, match=words):
        transfers.measure(**arguments)


def test_without_a_gpu_it_says_how_to_get_one(no_gpu):
    with pytest.raises(RuntimeError, match=r"there is no GPU here: gpulab.setup\(\) gives you a virtual one"):
        transfers.measure()
