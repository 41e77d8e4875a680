"""What holds after any sequence of requests, under every setting."""

import random
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory
from virtualgpu.memory.settings import Settings

KiB, MiB = 1 << 10, 1 << 20
CONF = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,16:2,>:16]",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:40",
    "large_segment_size_mb:32",
    "per_process_memory_fraction:0.7",
]
CAPACITY, CONTEXT = 1200 * MiB + 12345, 100 * MiB + 77


def allocator(conf):
    return CachingAllocator(CAPACITY, Settings.parse(conf), context_bytes=CONTEXT)


def check(gpu, live):
    """Every promise of the allocator about its state, given the blocks that are in use."""
    segments = gpu.snapshot()
    blocks = [(segment, block) for segment in segments for block in segment["blocks"]]

    # Blocks tile their segments, and segments do not overlap.
    end = 0
    for segment in segments:
        assert segment["address"] >= end
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            assert block["size"] % 512 == 0
            assert block["size"] > 0
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in pairwise(states)  # merging is complete

    # What is in use is what was handed out and not given back.
    used = {block["address"]: (block["size"], s["stream"]) for s, block in blocks if block["state"] != "inactive"}
    assert used == {block.address: (block.size, block.stream) for block in live}
    assert all(block.allocated and block.requested <= block.size for block in live)

    # The counts are the sums.
    stats = gpu.memory_stats()
    for kind in ("small", "large"):
        of_kind = [segment for segment in segments if segment["segment_type"] == kind]
        mine = [block for block in live if block.pool.small == (kind == "small")]
        assert stats[f"reserved_bytes.{kind}_pool.current"] == sum(s["total_size"] for s in of_kind)
        assert stats[f"allocated_bytes.{kind}_pool.current"] == sum(block.size for block in mine)
        assert stats[f"requested_bytes.{kind}_pool.current"] == sum(block.requested for block in mine)
        assert stats[f"allocation.{kind}_pool.current"] == len(mine)
        if not gpu.settings.expandable_segments:
            assert stats[f"segment.{kind}_pool.current"] == len(of_kind)
            split = [
                b["size"] for s in of_kind for b in s["blocks"] if len(s["blocks"]) > 1 and b["state"] == "inactive"
            ]
            assert stats[f"inactive_split.{kind}_pool.current"] == len(split)
            assert stats[f"inactive_split_bytes.{kind}_pool.current"] == sum(split)
    for name in [name.removesuffix(".all.current") for name in stats if name.endswith(".all.current")]:
        for end in ("current", "allocated", "freed"):
            assert stats[f"{name}.all.{end}"] == stats[f"{name}.small_pool.{end}"] + stats[f"{name}.large_pool.{end}"]
        assert stats[f"{name}.all.allocated"] - stats[f"{name}.all.freed"] == stats[f"{name}.all.current"]
    assert all(stats[name.replace("current", "peak")] >= stats[name] >= 0 for name in stats if "current" in name)
    reserved = stats["reserved_bytes.all.current"]
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"] <= reserved
    assert gpu.memory_info() == (CAPACITY - CONTEXT - reserved, CAPACITY)
    assert reserved <= CAPACITY - CONTEXT
    assert reserved <= gpu.settings.per_process_memory_fraction * CAPACITY


def empty_twice(gpu, live):
    gpu.empty_cache()
    check(gpu, live)
    once = gpu.snapshot()
    gpu.empty_cache()
    assert gpu.snapshot() == once
    if not gpu.settings.expandable_segments:  # whose page may stretch beyond its last live block
        assert all(any(b["state"] == "active_allocated" for b in segment["blocks"]) for segment in once)


def free_everything(gpu, live):
    for block in live:
        gpu.free(block)
    check(gpu, [])
    gpu.empty_cache()
    assert gpu.snapshot() == []
    assert gpu.memory_stats()["reserved_bytes.all.current"] == 0


sizes = st.one_of(
    st.integers(1, 2 * MiB),
    st.integers(MiB, 30 * MiB),
    st.integers(20 * MiB, 400 * MiB),
    st.sampled_from([512, MiB, MiB + 1, 2 * MiB, 10 * MiB, 20 * MiB, 64 * MiB]),
)
operations = st.one_of(
    st.tuples(st.just("allocate"), sizes, st.integers(0, 1)),
    st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
    st.tuples(st.just("empty"), st.just(0), st.just(0)),
)


@given(st.sampled_from(CONF), st.lists(operations, max_size=40))
@settings(max_examples=400, deadline=None)
def test_every_promise_holds_after_every_call(conf, calls):
    gpu, live = allocator(conf), []
    for name, number, stream in calls:
        if name == "allocate":
            with suppress(OutOfMemory):
                live.append(gpu.allocate(number, stream))
        elif name == "free" and live:
            gpu.free(live.pop(number % len(live)))
        elif name == "empty":
            empty_twice(gpu, live)
        check(gpu, live)
    free_everything(gpu, live)


@pytest.mark.parametrize("conf", CONF)
def test_ten_thousand_calls_leave_no_disorder(conf):
    rng, gpu, live, failures = random.Random(5), allocator(conf), [], 0
    for call in range(10_000):
        dice = rng.random()
        if live and dice < 0.48:
            gpu.free(live.pop(rng.randrange(len(live))))
        elif dice < 0.481:
            empty_twice(gpu, live)
        else:
            low, high = rng.choice([(1, 4 * KiB), (4 * KiB, MiB), (MiB, 10 * MiB), (10 * MiB, 100 * MiB)])
            try:
                live.append(gpu.allocate(rng.randint(low, high), rng.randrange(2)))
            except OutOfMemory:
                failures += 1
        if call % 250 == 0:
            check(gpu, live)
    check(gpu, live)
    assert 0 < failures < 2000
    free_everything(gpu, live)


@pytest.mark.parametrize("conf", CONF)
def test_a_thousand_random_sequences_end_in_order(conf):
    """Ten thousand sequences over all settings, each from an empty allocator to an empty one."""
    for seed in range(10_000 // len(CONF) + 1):
        rng, gpu, live = random.Random(seed), allocator(conf), []
        for _ in range(rng.randint(1, 30)):
            if live and rng.random() < 0.4:
                gpu.free(live.pop(rng.randrange(len(live))))
            else:
                low, high = rng.choice([(1, 4 * KiB), (4 * KiB, MiB), (MiB, 10 * MiB), (10 * MiB, 400 * MiB)])
                with suppress(OutOfMemory):
                    live.append(gpu.allocate(rng.randint(low, high), rng.randrange(2)))
        check(gpu, live)
        free_everything(gpu, live)
