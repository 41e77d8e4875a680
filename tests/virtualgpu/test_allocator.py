"""The allocator's rules, one by one, with numbers worked out by hand."""

import subprocess
import sys

import pytest

from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory, Shortage, format_size
from virtualgpu.memory.settings import Settings

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


def allocator(settings="", capacity=16 * GiB, context=0):
    return CachingAllocator(capacity, Settings.parse(settings), context_bytes=context)


def now(gpu, name="reserved_bytes"):
    return gpu.statistics.current(name)


def layout(gpu):
    """The size of each block in MiB by segment, live ones negative."""
    return [
        [b["size"] / MiB * (-1 if b["state"] == "active_allocated" else 1) for b in segment["blocks"]]
        for segment in gpu.snapshot()
    ]


def after(operations, settings="", capacity=16 * 1024):
    """An allocator after these: a number allocates so many MiB, `free n` gives back the nth, `empty` the cache."""
    gpu, blocks = allocator(settings, capacity * MiB), []
    for operation in operations:
        if operation == "empty":
            gpu.empty_cache()
        elif isinstance(operation, str):
            gpu.free(blocks[int(operation.removeprefix("free "))])
        else:
            blocks.append(gpu.allocate(int(operation * MiB)))
    return gpu


FREED = ["free 0", "free 1", "free 2"]
OVERSIZE, EXPANDABLE = {"settings": "max_split_size_mb:32"}, {"settings": "expandable_segments:True"}
LAYOUTS = {
    "a remainder of more than 1 MiB is kept": ([9], {}, [[-9, 11]]),
    "and cut again": ([9, 10 - 512 / MiB], {}, [[-9, -10 + 512 / MiB, 1 + 512 / MiB]]),
    "the smallest block that fits is taken": ([40, 30, *FREED[:2], 29, 30], {}, [[-30, 10], [-30]]),
    "ties go to the lower address": ([30, 30, 30, *FREED[::-1], 30], {}, [[-30], [30], [30]]),
    **{
        f"neighbours are joined, freed in the order {order}": ([4, 4, 4, *(FREED[n] for n in order)], {}, [[20]])
        for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2))
    },
    "a hole is not joined with live blocks": ([4, 4, 4, 4, "free 1"], {}, [[-4, 4, -4, -4, 4]]),
    "only segments without a live block are given back": ([4, 30, 1, *FREED[1:], "empty"], {}, [[-4, 16]]),
    "and of none nothing stays": ([4, "free 0", "empty"], {}, []),
    "a smaller request may not take an oversize block": ([32, "free 0", 31], OVERSIZE, [[32], [-32]]),
    "a larger one if less than 20 MiB go to waste": ([60, "free 0", 41], OVERSIZE, [[-60]]),
    "and not if 20 do": ([60, "free 0", 40], OVERSIZE, [[60], [-40]]),
    "a request of the limit itself may take one": ([42, "free 0", 32], OVERSIZE, [[-42]]),
    "one of its own size": ([60, "free 0", 60], OVERSIZE, [[-60]]),
    "max_non_split_rounding_mb moves that limit": (
        [60, "free 0", 33], {"settings": "max_split_size_mb:32,max_non_split_rounding_mb:28"}, [[-60]],
    ),
    # 34 takes the 40 MiB block; for 100 the 80 alone are not enough: 80 and 60 go, nothing else
    "as many oversize blocks are released as are needed": (
        [40, 60, 80, *FREED, 34, 100], {**OVERSIZE, "capacity": 200}, [[-40], [-100]],
    ),
    "releasing stops when exactly enough is released": (
        [36, 40, 60, *FREED, 100], {**OVERSIZE, "capacity": 140}, [[36], [-100]],
    ),
    "one expandable segment grows by pages of 20 MiB": ([15, 50], EXPANDABLE, [[-15, -50, 15]]),
    "small requests grow another one by 2 MiB": ([1] * 5, EXPANDABLE, [[-1, -1, -1, -1, -1, 1]]),
    "any remainder is split off there": ([19], EXPANDABLE, [[-19, 1]]),
    "fragments that end at its edge can be grown": (
        [40, "free 0", 10, 90], {**EXPANDABLE, "capacity": 100}, [[-10, -90]],
    ),
    # the second lies from 30 to 60 MiB: one whole page, from 40 to 60
    "free pages inside it are given back": ([30] * 4 + ["free 1", "empty"], EXPANDABLE, [[-30, 10], [-30, -30]]),
    "an empty one gives back everything": ([30, "free 0", "empty"], EXPANDABLE, []),
}  # fmt: skip


@pytest.mark.parametrize("rule", LAYOUTS)
def test_after_these_requests_blocks_lie_so(rule):
    operations, options, wanted = LAYOUTS[rule]
    gpu = after(operations, **options)
    assert layout(gpu) == wanted
    assert now(gpu) == sum(abs(size) for segment in wanted for size in segment) * MiB
    assert gpu.memory_stats()["num_alloc_retries"] == 0


def test_it_loads_neither_torch_nor_jupyter():
    heavy = {"torch", "numpy", "IPython", "ipywidgets"}
    code = f"import virtualgpu.memory.caching, sys; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


class TestSizes:
    def test_zero_bytes_take_nothing(self):
        gpu = allocator()
        assert gpu.allocate(0) is None
        gpu.free(None)
        assert now(gpu) == now(gpu, "allocation") == 0

    @pytest.mark.parametrize(("nbytes", "size"), [(1, 512), (512, 512), (513, 1024), (1000, 1024), (MiB, MiB)])
    def test_requests_are_rounded_up_to_512(self, nbytes, size):
        gpu = allocator()
        assert gpu.allocate(nbytes).size == size
        assert (now(gpu, "requested_bytes"), now(gpu, "allocated_bytes")) == (nbytes, size)

    @pytest.mark.parametrize(
        ("nbytes", "segment"),
        [
            (1, 2 * MiB),
            (MiB, 2 * MiB),
            (MiB + 1, 20 * MiB),
            (10 * MiB - 512, 20 * MiB),
            (10 * MiB, 10 * MiB),
            (10 * MiB + 1, 12 * MiB),
            (21 * MiB, 22 * MiB),
        ],
    )
    def test_a_segment_is_2_mib_20_mib_or_made_to_measure(self, nbytes, segment):
        gpu = allocator()
        gpu.allocate(nbytes)
        assert now(gpu) == segment

    @pytest.mark.parametrize(
        ("nbytes", "size"),
        [
            (1200, 1536),  # 1200 ≤ 4 × 512: no steps, only 512
            (2049, 2560),  # between 2048 and 4096 in 4 steps of 512
            (5 * MiB, 5 * MiB),  # 4 to 8 MiB in steps of 1 MiB
            (5 * MiB + 1, 6 * MiB),
            (64 * MiB, 64 * MiB),
            (65 * MiB, 80 * MiB),  # 64 to 128 MiB in steps of 16 MiB
        ],
    )
    def test_roundup_power2_divisions_rounds_to_steps_between_powers_of_two(self, nbytes, size):
        assert allocator("roundup_power2_divisions:4").allocate(nbytes).size == size

    def test_divisions_can_differ_by_size(self):
        gpu = allocator("roundup_power2_divisions:[4:8,8:2,>:1]")
        sizes = [gpu.allocate(n * MiB + 1).size for n in (5, 9, 17)]
        assert sizes == [5 * MiB + MiB // 2, 12 * MiB, 18 * MiB]  # 17 MiB + 512, and what is left of its segment


class TestSplitting:
    def test_small_blocks_are_cut_from_one_segment(self):
        gpu = allocator()
        first, second = gpu.allocate(1000), gpu.allocate(1)
        assert second.address == first.address + 1024
        assert layout(gpu) == [[-1024 / MiB, -512 / MiB, (2 * MiB - 1536) / MiB]]

    @pytest.mark.parametrize(("mib", "allocated"), [(18, 18), (19, 20), (11, 12), (12, 12), (10.5, 10.5)])
    def test_a_large_remainder_of_up_to_1_mib_goes_with_the_block(self, mib, allocated):
        gpu = allocator()
        gpu.free(gpu.allocate(9 * MiB) if mib > 12 else None)  # 20 MiB in the cache for the first two
        assert gpu.allocate(int(mib * MiB)).size == allocated * MiB

    def test_split_bytes_are_those_that_cannot_be_given_back(self):
        gpu = allocator()
        block = gpu.allocate(9 * MiB)
        assert (now(gpu, "inactive_split"), now(gpu, "inactive_split_bytes")) == (1, 11 * MiB)
        gpu.free(block)
        assert (now(gpu, "inactive_split"), now(gpu, "inactive_split_bytes")) == (0, 0)


class TestReuse:
    def test_small_and_large_requests_do_not_share_segments(self):
        gpu = allocator()
        gpu.free(gpu.allocate(5 * MiB))
        gpu.allocate(MiB)
        assert [s["segment_type"] for s in gpu.snapshot()] == ["large", "small"]

    def test_a_block_is_reused_on_its_own_stream_only(self):
        gpu = allocator()
        gpu.free(gpu.allocate(30 * MiB, stream=7))
        gpu.allocate(30 * MiB)
        assert now(gpu) == 60 * MiB
        assert gpu.allocate(30 * MiB, stream=7).stream == 7
        assert now(gpu) == 60 * MiB


class TestHandles:
    def test_a_block_cannot_be_freed_twice(self):
        gpu = allocator()
        block = gpu.allocate(3 * MiB)
        gpu.free(block)
        with pytest.raises(ValueError, match="has been freed already"):
            gpu.free(block)
        assert now(gpu, "allocated_bytes") == 0

    def test_not_even_when_its_memory_is_in_use_again(self):
        gpu = allocator()
        block = gpu.allocate(30 * MiB)
        gpu.free(block)
        again = gpu.allocate(30 * MiB)
        assert again.address == block.address
        with pytest.raises(ValueError, match="has been freed already"):
            gpu.free(block)
        assert again.allocated

    def test_a_block_of_another_allocator_is_refused(self):
        mine, other = allocator(), allocator()
        with pytest.raises(ValueError, match="belongs to another allocator"):
            mine.free(other.allocate(1))

    def test_wrong_numbers_are_named(self):
        with pytest.raises(ValueError, match="nbytes is -1"):
            allocator().allocate(-1)
        with pytest.raises(ValueError, match="capacity_bytes is 0"):
            CachingAllocator(0)
        with pytest.raises(ValueError, match="context_bytes is 2"):
            CachingAllocator(1, context_bytes=2)
        with pytest.raises(ValueError, match=r"fraction is 1\.5; it must be from 0 to 1"):
            allocator().set_memory_fraction(1.5)


class TestEmptyCache:
    def test_watch_is_told_what_is_taken_and_given_back(self):
        gpu, seen = allocator(), []
        gpu.watch = lambda event, address, size, stream: seen.append((event, size // MiB, stream))
        gpu.free(gpu.allocate(4 * MiB, stream=5))
        gpu.empty_cache()
        assert seen == [("segment_alloc", 20, 5), ("segment_free", 20, 5)]


class TestOutOfMemory:
    def test_cached_segments_are_released_and_the_allocation_retried(self):
        gpu = allocator(capacity=100 * MiB)
        gpu.free(gpu.allocate(60 * MiB))
        gpu.allocate(80 * MiB)
        stats = gpu.memory_stats()
        assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
        assert now(gpu) == 80 * MiB

    def test_what_does_not_fit_raises_and_a_smaller_request_still_works(self):
        gpu = allocator(capacity=100 * MiB, context=10 * MiB)
        kept = gpu.allocate(60 * MiB)
        with pytest.raises(OutOfMemory) as caught:
            gpu.allocate(40 * MiB)
        stats = gpu.memory_stats()
        assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 1)
        assert caught.value.shortage == Shortage(
            device=0,
            requested=40 * MiB,
            tried=40 * MiB,
            total=100 * MiB,
            free=30 * MiB,
            process=70 * MiB,
            allocated=60 * MiB,
            reserved=60 * MiB,
            allowed=None,
            expandable_segments=False,
        )
        assert gpu.allocate(30 * MiB).allocated
        assert kept.allocated

    def test_fragments_are_reserved_and_of_no_use(self):
        gpu = allocator(capacity=40 * MiB)
        blocks = [gpu.allocate(5 * MiB) for _ in range(8)]  # two full segments of 20 MiB
        for block in blocks[::2]:
            gpu.free(block)
        with pytest.raises(OutOfMemory) as caught:
            gpu.allocate(6 * MiB)
        assert caught.value.shortage.unallocated == 20 * MiB
        assert caught.value.shortage.tried == 20 * MiB

    def test_a_memory_fraction_is_a_limit_of_reserved_memory(self):
        gpu = allocator(capacity=100 * MiB)
        gpu.set_memory_fraction(0.5)
        gpu.allocate(40 * MiB)
        with pytest.raises(OutOfMemory, match=r"50\.00 MiB allowed; Of the allocated memory 40\.00 MiB is") as caught:
            gpu.allocate(20 * MiB)
        assert caught.value.shortage.free == 60 * MiB
        gpu.set_memory_fraction(1.0)
        assert gpu.allocate(20 * MiB).allocated

    def test_it_is_a_runtime_error_as_torch_s_is(self):
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            allocator(capacity=MiB).allocate(1)

    def test_an_exabyte_has_a_text_of_its_own(self):
        with pytest.raises(OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate more than 1EB memory\.$"):
            allocator().allocate(1 << 60)


class TestText:
    def test_sizes_change_units_just_above_them(self):
        sizes = (0, 1024, 1025, MiB, MiB + 1, GiB, GiB + 1, 20 * MiB, 1288490189)
        assert [format_size(n) for n in sizes] == [
            "0 bytes",
            "1024 bytes",
            "1.00 KiB",
            "1024.00 KiB",
            "1.00 MiB",
            "1024.00 MiB",
            "1.00 GiB",
            "20.00 MiB",
            "1.20 GiB",
        ]

    def test_it_reads_as_in_pytorch_issue_16417(self):
        """Up to the address of the documentation, which has moved since that comment of March 2024."""
        shortage = Shortage(
            device=0,
            requested=22 * MiB,
            tried=22 * MiB,
            total=int(23.65 * GiB),
            free=int(11.06 * MiB),
            process=int(23.60 * GiB),
            allocated=int(22.90 * GiB),
            reserved=int(22.90 * GiB) + int(194.87 * MiB),
            allowed=None,
            expandable_segments=False,
        )
        assert shortage.text() == (
            "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 "
            "MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the allocated "
            "memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but unallocated. If "
            "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/"
            "notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )


class TestMaxSplitSize:
    def test_oversize_counts(self):
        gpu = allocator("max_split_size_mb:32")
        gpu.free(gpu.allocate(40 * MiB))
        gpu.allocate(40 * MiB)
        stats = gpu.memory_stats()
        assert stats["max_split_size"] == 32 * MiB
        assert [stats[f"oversize_allocations.{n}"] for n in ("current", "peak", "allocated", "freed")] == [1, 1, 2, 1]
        assert [stats[f"oversize_segments.{n}"] for n in ("current", "peak", "allocated", "freed")] == [1, 1, 1, 0]


class TestGarbageCollection:
    def used(self, gpu):
        """Three cached segments of 30, 32 and 34 MiB; the last was used last."""
        blocks = [gpu.allocate(n * MiB) for n in (30, 32, 34)]
        for block in blocks:
            gpu.free(block)
        gpu.free(gpu.allocate(34 * MiB))

    def test_above_the_threshold_old_segments_go_before_a_new_one_comes(self):
        gpu = allocator("garbage_collection_threshold:0.6", capacity=200 * MiB)
        gpu.set_memory_fraction(0.75)  # of 150 MiB, 90 may be reserved
        self.used(gpu)
        assert now(gpu) == 96 * MiB
        gpu.allocate(40 * MiB)  # ages 2, 2, 1: the first two are above the average
        assert layout(gpu) == [[34], [-40]]
        assert gpu.memory_stats()["num_alloc_retries"] == 0

    def test_without_a_memory_fraction_pytorch_does_not_collect(self):
        gpu = allocator("garbage_collection_threshold:0.1", capacity=200 * MiB)
        self.used(gpu)
        gpu.allocate(40 * MiB)
        assert now(gpu) == 136 * MiB


class TestExpandableSegments:
    def test_every_stream_has_its_own(self):
        gpu = allocator("expandable_segments:True")
        gpu.allocate(5 * MiB, stream=1)
        gpu.allocate(5 * MiB, stream=2)
        assert [(s["stream"], s["is_expandable"]) for s in gpu.snapshot()] == [(1, True), (2, True)]

    def test_without_them_fragments_run_out(self):
        with pytest.raises(OutOfMemory):
            after([40, "free 0", 10, 90], capacity=100)

    def test_pages_come_back_first_and_a_segment_elsewhere(self):
        gpu = allocator("expandable_segments:True")
        blocks = [gpu.allocate(30 * MiB) for _ in range(4)]
        gpu.free(blocks[1])
        gpu.empty_cache()
        assert now(gpu, "segment") == 0  # PyTorch counts cudaMalloc's segments only
        assert gpu.allocate(25 * MiB).address == blocks[1].address
        assert now(gpu) == 120 * MiB
        gpu = allocator("expandable_segments:True")
        block = gpu.allocate(30 * MiB)
        gpu.free(block)
        gpu.empty_cache()
        assert gpu.memory_info() == (16 * GiB, 16 * GiB)
        assert gpu.allocate(30 * MiB).address != block.address

    def test_the_hint_is_another_one(self):
        gpu = allocator("expandable_segments:True", capacity=10 * MiB)
        with pytest.raises(OutOfMemory, match=r"unallocated\. expandable_segments is enabled\. If instead"):
            gpu.allocate(20 * MiB)


class TestStatistics:
    def test_peaks_fall_to_the_current_values_when_reset(self):
        gpu = allocator()
        kept, gone = gpu.allocate(4 * MiB), gpu.allocate(30 * MiB)
        gpu.free(gone)
        gpu.empty_cache()
        assert gpu.statistics.peak("allocated_bytes") == 34 * MiB
        assert gpu.statistics.peak("reserved_bytes") == 50 * MiB
        gpu.statistics.reset_peak()
        stats = gpu.memory_stats()
        assert all(stats[name] == stats[name.replace("peak", "current")] for name in stats if name.endswith("peak"))
        assert stats["allocated_bytes.all.peak"] == kept.size

    def test_allocated_and_freed_start_again_when_reset(self):
        gpu = allocator()
        kept = gpu.allocate(4 * MiB)
        gpu.free(gpu.allocate(30 * MiB))
        names = [f"allocated_bytes.large_pool.{name}" for name in ("current", "peak", "allocated", "freed")]
        assert [gpu.memory_stats()[name] // MiB for name in names] == [4, 34, 34, 30]
        gpu.statistics.reset_accumulated()
        assert [gpu.memory_stats()[name] // MiB for name in names] == [4, 34, 0, 0]
        gpu.free(kept)
        assert [gpu.memory_stats()[name] // MiB for name in names] == [0, 34, 0, 4]
        assert gpu.memory_stats()["num_device_alloc"] == 0

    def test_the_peak_of_both_pools_is_not_the_sum_of_their_peaks(self):
        gpu = allocator()
        gpu.free(gpu.allocate(4 * MiB))
        gpu.allocate(MiB)
        stats = gpu.memory_stats()
        peaks = [stats[f"allocated_bytes.{pool}.peak"] // MiB for pool in ("small_pool", "large_pool", "all")]
        assert peaks == [1, 4, 4]

    def test_the_names_are_those_of_torch(self):
        stats = allocator().memory_stats()
        assert list(stats) == sorted(stats)
        assert len(stats) == 9 * 3 * 4 + 2 * 4 + 7
        assert stats["max_split_size"] == -1

    def test_a_snapshot_has_torch_s_structure(self):
        gpu = allocator()
        block = gpu.allocate(3 * MiB - 100)
        assert gpu.snapshot() == [
            {
                "device": 0,
                "address": block.address,
                "total_size": 20 * MiB,
                "allocated_size": 3 * MiB,
                "active_size": 3 * MiB,
                "requested_size": 3 * MiB - 100,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {
                        "address": block.address,
                        "size": 3 * MiB,
                        "requested_size": 3 * MiB - 100,
                        "state": "active_allocated",
                        "frames": [],
                    },
                    {
                        "address": block.address + 3 * MiB,
                        "size": 17 * MiB,
                        "requested_size": 0,
                        "state": "inactive",
                        "frames": [],
                    },
                ],
            }
        ]
