"""`Tensor.record_stream`: memory that another stream still uses is held, as PyTorch's caching allocator holds it."""

import pytest
import torch

import gpulab

MIB = 2**20


@pytest.fixture
def gpu():
    with gpulab.VirtualGPU("T4", compute=False, settings="", host="reference") as gpu:
        yield gpu


def one_mib():
    return torch.empty(MIB, dtype=torch.uint8, device="cuda")


def from_side(side):
    with torch.cuda.stream(side):
        return one_mib()


def busy(gpu, stream, seconds=0.1):
    gpu.device(0).timer.kernel(stream.stream_id, seconds, "work")


def stats(name):
    return torch.cuda.memory_stats()[name]


def test_without_it_a_block_is_handed_out_again_at_once(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = from_side(side)
    busy(gpu, main)
    address = batch.data_ptr()
    del batch
    assert from_side(side).data_ptr() == address


@pytest.mark.parametrize("view", [False, True])
def test_with_it_a_block_is_handed_out_again_when_the_other_stream_is_done(gpu, view):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = from_side(side)
    address = batch.data_ptr()
    (batch[10:20] if view else batch).record_stream(main)
    busy(gpu, main)
    del batch
    following = from_side(side)
    assert following.data_ptr() != address
    main.synchronize()
    assert from_side(side).data_ptr() == address


def test_its_own_stream_and_a_stream_that_has_nothing_to_do_hold_nothing(gpu):
    side, idle = torch.cuda.Stream(), torch.cuda.Stream()
    batch = from_side(side)
    busy(gpu, side)
    address = batch.data_ptr()
    batch.record_stream(side)
    batch.record_stream(idle)
    del batch
    assert from_side(side).data_ptr() == address


def test_work_that_is_queued_after_it_is_freed_does_not_hold_it(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = from_side(side)
    address = batch.data_ptr()
    batch.record_stream(main)
    del batch
    busy(gpu, main)
    assert from_side(side).data_ptr() == address


def test_a_held_block_is_active_and_not_allocated(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = from_side(side)
    batch.record_stream(main)
    busy(gpu, main)
    del batch
    assert (stats("allocated_bytes.all.current"), stats("active_bytes.all.current")) == (0, MIB)
    assert (stats("allocation.all.freed"), stats("active.all.freed")) == (1, 0)
    (segment,) = torch.cuda.memory_snapshot()
    assert (segment["allocated_size"], segment["active_size"]) == (0, MIB)
    assert segment["blocks"][0]["state"] == "active_pending_free"
    following = from_side(side)
    assert (stats("allocated_bytes.all.peak"), stats("active_bytes.all.peak")) == (MIB, 2 * MIB)
    main.synchronize()
    another = from_side(side)
    assert stats("active_bytes.all.current") == stats("allocated_bytes.all.current") == 2 * MIB
    assert (stats("allocation.all.allocated"), stats("active.all.allocated"), stats("active.all.freed")) == (3, 3, 1)
    del following, another


def test_emptying_the_cache_waits_for_the_other_stream(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batch = from_side(side)
    batch.record_stream(main)
    busy(gpu, main)
    del batch
    before = gpu.clock.host
    torch.cuda.empty_cache()
    assert gpu.clock.host - before > 0.09
    assert torch.cuda.memory_reserved() == stats("active_bytes.all.current") == 0


def test_where_memory_runs_short_the_host_waits_for_what_is_held(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    size = 9 * 2**30  # of 15 GiB
    with torch.cuda.stream(side):
        batch = torch.empty(size, dtype=torch.uint8, device="cuda")
    batch.record_stream(main)
    busy(gpu, main)
    del batch
    before = gpu.clock.host
    kept = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert gpu.clock.host - before > 0.09
    assert kept.is_cuda
    assert stats("num_alloc_retries") == 1


def test_the_history_tells_when_a_block_was_freed_and_when_it_was_free(gpu):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    torch.cuda.memory._record_memory_history()
    batch = from_side(side)
    batch.record_stream(main)
    busy(gpu, main)
    del batch

    def actions():
        return [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]

    assert actions()[-1] == "free_requested"
    main.synchronize()
    from_side(side)
    assert "free_completed" in actions()
    torch.cuda.memory._record_memory_history(enabled=None)
