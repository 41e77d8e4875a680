"""CUDA graphs and private pools of memory: values as the CPU's, memory in bytes, one launch on the clock, wrong use."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn

from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.scope.refusals import NotMirrored

from .surface_scope import scope

MiB = 1 << 20
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def capture(run, graph=None):
    """Capture what `run` does."""
    graph = torch.cuda.CUDAGraph() if graph is None else graph
    with torch.cuda.graph(graph):
        run()
    return graph


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.RMSNorm(16), nn.Linear(16, 4))


# -- values ----------------------------------------------------------------------------------------------------------


def test_a_replay_computes_again_from_what_lies_in_its_inputs(computing):
    own = model()
    on_gpu = copy.deepcopy(own).cuda()
    x = torch.zeros(3, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = on_gpu(x)
    assert not y.any()  # nothing has run yet
    for seed in (1, 2):
        given = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        x.copy_(given)
        graph.replay()
        with torch.no_grad():
            torch.testing.assert_close(y.cpu(), own(given))


def test_nothing_happens_to_what_is_written_in_a_capture_until_the_replay(computing):
    x, total = torch.ones(4, device="cuda"), torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        total += x.sum()
        x[1:].mul_(2)
    assert (x.tolist(), total.item()) == ([1, 1, 1, 1], 0)
    graph.replay()
    graph.replay()
    assert (x.tolist(), total.item()) == ([3, 10, 10, 10], 8 + 3 + 3 * 5)


def test_a_whole_training_step_in_a_graph_trains_as_the_cpu_does(computing):
    own = model()
    on_gpu = copy.deepcopy(own).cuda()
    steps = [torch.randn(5, 8, generator=torch.Generator().manual_seed(n)) for n in range(4)]

    def step(net, x, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    adam = torch.optim.Adam(own.parameters())
    expected = [step(own, x, adam).item() for x in [steps[0], *steps]]
    x = torch.zeros(5, 8, device="cuda")
    adam = torch.optim.Adam(on_gpu.parameters(), capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.copy_(steps[0])
        first = step(on_gpu, x, adam).item()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(on_gpu, x, adam)
    found = [first]
    for given in steps:
        x.copy_(given)
        graph.replay()
        found.append(loss.item())
    assert found == pytest.approx(expected, rel=1e-4)
    for mine, other in zip(on_gpu.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-3, atol=1e-5)


def test_an_optimizer_that_cannot_be_captured_says_so(gpu):
    net = nn.Linear(3, 3, device="cuda")
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 3, device="cuda")).sum().backward()

    def run():
        net.zero_grad(set_to_none=False)
        adam.step()

    with pytest.raises(RuntimeError, match="capturable is False"):
        capture(run)


def test_random_numbers_are_drawn_anew(computing):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.manual_seed(3)
    before = torch.cuda.get_rng_state()
    with torch.cuda.graph(graph):
        noise = torch.rand(4, device="cuda")
        kept = nn.functional.dropout(torch.ones(64, device="cuda"), 0.5)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    graph.replay()
    first = noise.tolist(), kept.tolist()
    graph.replay()
    assert (noise.tolist(), kept.tolist()) != first
    torch.cuda.manual_seed(3)
    assert torch.rand(4, device="cuda").tolist() == first[0]
    assert nn.functional.dropout(torch.ones(64, device="cuda"), 0.5).tolist() == first[1]


def test_numbers_of_the_host_are_as_they_were_and_pinned_memory_is_read_again(computing):
    scale, given = torch.tensor(3.0), torch.zeros(2).pin_memory()
    x, back = torch.zeros(2, device="cuda"), torch.zeros(2).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(given, non_blocking=True)
        y = x * scale
        back.copy_(y, non_blocking=True)
        other = y.to("cpu", non_blocking=True)
    given.copy_(torch.tensor([1.0, 2.0]))
    scale.fill_(100)
    graph.replay()
    assert y.tolist() == back.tolist() == other.tolist() == [3, 6]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(4, device="cuda"),
        torch.empty_like,
        lambda x: x.new_empty(4),
        lambda x: torch.empty_strided((4,), (1,), device="cuda"),
    ],
)
def test_what_is_only_allocated_in_a_capture_holds_what_the_last_replay_left(computing, make):
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = make(x)
        y.copy_(x)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_number_beside_a_tensor_is_in_each_replay_and_dies_with_its_operation(gpu):
    x = torch.tensor([-1.0, 2.0, -3.0]).cuda()
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_allocated()
    with torch.cuda.graph(graph):
        y = torch.where(x > 0, 5.0, x)
    assert torch.cuda.memory_allocated() - before == 512  # of y
    for _ in range(2):
        graph.replay()
        assert not gpu.compute or y.tolist() == [-1, 5, -3]


@pytest.mark.parametrize("elements", [0, 2])
def test_a_tensor_from_before_that_an_operation_resizes_has_the_graphs_memory(computing, elements):
    x, y = torch.arange(4.0, device="cuda"), torch.empty(elements, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of the elements that are lost
        with torch.cuda.graph(graph):
            torch.add(x, 1, out=y)
            z = y.view(2, 2)[1] * 2
    for first in (0, 10):
        x.copy_(torch.arange(4) + first)
        graph.replay()
        assert y.tolist() == [first + n for n in (1, 2, 3, 4)]
        assert z.tolist() == [2 * first + 6, 2 * first + 8]


def test_what_is_filled_by_out_in_the_capture_and_dies_there_is_the_graphs(computing):
    x, graph = torch.arange(4.0, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.add(x, 1, out=torch.empty(0, device="cuda")) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
    assert y.tolist() == [2, 4, 6, 8]


def test_what_is_made_in_a_capture_keeps_its_size(computing):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(2, device="cuda")
    with pytest.raises(NotMirrored, match="made in the capture of a CUDA graph that changes its size"):
        y.resize_(4)


def test_what_has_no_elements_is_not_missed(computing):
    x, graph = torch.ones(0, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"), torch.cuda.graph(graph):
        y = nn.functional.softsign(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
    assert y.shape == (0,)


def test_batch_norm_counts_only_replays(computing):
    norm = nn.BatchNorm1d(4, device="cuda")
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    graph, on_gpu = torch.cuda.CUDAGraph(), x.cuda()
    with torch.cuda.graph(graph):
        norm(on_gpu)
    assert not norm.running_mean.any()
    own = nn.BatchNorm1d(4)
    own(x)
    own(x)
    graph.replay()
    graph.replay()
    torch.testing.assert_close(norm.running_mean.cpu(), own.running_mean)
    assert norm.num_batches_tracked.item() == 2


def test_graphed_callables_are_the_module_forward_and_backward(computing):
    own = model()
    on_gpu = copy.deepcopy(own).cuda()
    sample = torch.randn(3, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(on_gpu, (sample,))
    for seed in (1, 2):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        x_gpu = x.detach().cuda().requires_grad_()
        own.zero_grad()
        on_gpu.zero_grad()
        y, y_gpu = own(x), graphed(x_gpu)
        y.square().sum().backward()
        y_gpu.square().sum().backward()
        torch.testing.assert_close(y_gpu.detach().cpu(), y.detach())
        torch.testing.assert_close(x_gpu.grad.cpu(), x.grad)
        for mine, other in zip(on_gpu.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), other.grad)


def test_what_was_freed_is_not_kept_by_the_graph(computing):
    x = torch.ones(256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    del x
    assert torch.cuda.memory_allocated() == 1024
    with pytest.warns(UserWarning, match="reads memory that was freed"):
        graph.replay()
    assert y.is_cuda


def test_without_values_a_graph_has_shapes_memory_and_time():
    with scope(compute=False) as gpu:
        net = model().cuda()
        graphed = torch.cuda.make_graphed_callables(net, (torch.randn(3, 8, device="cuda"),))
        before = gpu.clock.kernels()
        y = graphed(torch.randn(3, 8, device="cuda"))
        assert y.shape == (3, 4)
        assert gpu.clock.kernels() > before


# -- memory ----------------------------------------------------------------------------------------------------------


def reserved():
    return torch.cuda.memory_reserved()


def test_a_graph_has_memory_of_its_own_until_it_goes(gpu):
    outside = torch.ones(3 * MiB // 4, device="cuda")
    torch.cuda.synchronize()
    start = reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (outside + 1) * 2  # the sum dies, its block stays in the pool
    assert torch.cuda.memory_allocated() == 2 * 3 * MiB
    assert reserved() == start + 20 * MiB
    pools = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}
    assert pools == {(0, 0), graph.pool()}
    free = torch.cuda.memory_snapshot(graph.pool())[0]["total_size"] - 3 * MiB
    torch.empty(free - 3 * MiB, dtype=torch.uint8, device="cuda")  # no room is taken from the graph's
    torch.cuda.empty_cache()
    assert reserved() == start + 20 * MiB
    del y
    torch.cuda.empty_cache()
    assert reserved() == start + 20 * MiB  # a replay would write there
    graph.replay()
    graph.reset()
    assert reserved() == start + 20 * MiB
    torch.cuda.empty_cache()
    assert reserved() == start


def test_a_graph_that_dies_lets_its_pool_go(gpu):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(MiB, device="cuda")
    assert reserved() == 20 * MiB
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert reserved() == 0


def test_what_dies_in_a_capture_is_used_again_in_it_and_in_the_next_of_the_same_pool(gpu):
    x = torch.ones(MiB, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        y = x + 1
        for _ in range(10):
            y = y * 2
    assert len(torch.cuda.memory_snapshot(pool)) == 1
    with torch.cuda.graph(second, pool=pool):
        z = x * 3
    assert first.pool() == second.pool() == pool
    assert reserved() == 40 * MiB
    first.reset()
    torch.cuda.empty_cache()
    assert reserved() == 40 * MiB  # the second holds it
    del y, z
    second.reset()
    torch.cuda.empty_cache()
    assert reserved() == 20 * MiB


def test_memory_that_is_short_is_not_taken_from_a_graph():
    allocator = CachingAllocator(100 * MiB)
    private = allocator.private.use((1, 0))
    kept = allocator.allocate(40 * MiB, 0, private)
    allocator.free(kept)
    allocator.free(allocator.allocate(30 * MiB))
    allocator.captures = 1
    with pytest.raises(Exception, match="out of memory"):
        allocator.allocate(50 * MiB)
    assert allocator.memory_stats()["num_alloc_retries"] == 0
    allocator.captures = 0
    block = allocator.allocate(50 * MiB)  # the 30 MiB go
    assert allocator.memory_stats()["num_alloc_retries"] == 1
    allocator.free(block)
    said = (
        r"40.00 MiB is allocated by PyTorch, with 40.00 MiB allocated in private pools \(e.g., CUDA Graphs\), and 0 b"
    )
    with pytest.raises(Exception, match=said):
        allocator.allocate(80 * MiB)
    allocator.private.release((1, 0))
    allocator.allocate(80 * MiB)  # now all goes
    assert allocator.memory_stats()["reserved_bytes.all.current"] == 80 * MiB


def test_a_pool_of_memory_is_used_where_it_is_asked_for(gpu):
    pool = torch.cuda.MemPool()
    outside = torch.ones(MiB, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = torch.ones(MiB, device="cuda")
    other = torch.ones(MiB, device="cuda")
    assert pool.use_count() == 1
    assert reserved() == 40 * MiB
    assert [s["segment_pool_id"] for s in pool.snapshot()] == [pool.id]
    del inside
    torch.cuda.empty_cache()
    assert reserved() == 40 * MiB
    del pool
    assert reserved() == 20 * MiB
    assert outside.is_cuda
    assert other.is_cuda


def test_a_graph_can_be_captured_into_a_pool(gpu):
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        torch.ones(3, device="cuda")
    assert graph.pool() == pool.id
    assert pool.use_count() == 2


# -- time ------------------------------------------------------------------------------------------------------------


def many(x):
    for _ in range(50):
        x = x + 1
    return x


def test_a_capture_takes_no_time_on_the_device_and_a_replay_one_launch(gpu):
    x = torch.ones(1 << 16, device="cuda")
    clock = gpu.clock
    host, busy = clock.host, clock.busy()
    many(x)
    eager_host, eager_busy = clock.host - host, clock.busy() - busy
    graph = torch.cuda.CUDAGraph()
    busy, kernels = clock.busy(), clock.kernels()
    with torch.cuda.graph(graph):
        many(x)
    assert (clock.busy(), clock.kernels()) == (busy, kernels)
    torch.cuda.synchronize()
    host = clock.host
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    launch = clock.host - host
    assert launch == pytest.approx(clock.costs.plain)
    assert launch < eager_host / 40
    assert clock.busy() - busy == pytest.approx(eager_busy, rel=1e-6)
    assert clock.kernels() - kernels == 50
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    took = start.elapsed_time(end) * 1e-3
    assert eager_busy <= took < eager_busy + 2e-4


def test_streams_that_fork_and_join_are_in_the_graph(gpu):
    x = torch.ones(1 << 20, device="cuda")
    y = torch.ones(1 << 20, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        assert not side.is_capturing()
        side.wait_stream(torch.cuda.current_stream())
        assert side.is_capturing()
        with torch.cuda.stream(side):
            y.mul_(3)
        x.add_(y)
        torch.cuda.current_stream().wait_event(side.record_event())
    assert not torch.cuda.is_current_stream_capturing()
    before = gpu.clock.kernels()
    graph.replay()
    assert gpu.clock.kernels() - before == 2
    if gpu.compute:
        assert (x[0].item(), y[0].item()) == (4, 3)


# -- wrong use -------------------------------------------------------------------------------------------------------

NOT_PERMITTED = "operation not permitted when stream is capturing"
FORBIDDEN = {
    "item": lambda x: x.sum().item(),
    "nonzero": lambda x: x.nonzero(),
    "cpu": lambda x: x.cpu(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "mask": lambda x: x[x > 0],
    "pageable": lambda x: x.copy_(torch.zeros(4), non_blocking=True),
    "waiting": lambda x: x.copy_(torch.zeros(4).pin_memory()),
    "new": lambda x: torch.tensor([1.0], device="cuda"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_waits_is_not_permitted_and_ends_the_capture(gpu, name):
    if name == "mask" and not gpu.compute:
        pytest.skip("how many a mask takes is a value")
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def run():
        x.add_(1)
        with pytest.raises(torch.AcceleratorError, match=NOT_PERMITTED):
            FORBIDDEN[name](x)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as caught:
        capture(run, graph)
    assert "cudaErrorStreamCaptureInvalidated" in str(caught.value)
    assert not torch.cuda.is_current_stream_capturing()
    if gpu.compute:
        assert x.tolist() == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    torch.cuda.synchronize()
    capture(lambda: x.add_(1)).replay()


def test_the_checks_are_pytorchs(gpu):
    graph = torch.cuda.CUDAGraph()
    for call in (graph.replay, graph.pool):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            call()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with torch.cuda.graph(graph):
        torch.ones(1, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass
    with pytest.raises(NotMirrored, match=r"CUDAGraph\.raw_cuda_graph"):
        graph.raw_cuda_graph()


def test_streams_must_be_joined(gpu):
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def run():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    with pytest.raises(torch.AcceleratorError, match="unjoined work"):
        capture(run)


def test_a_capture_cannot_wait_for_what_is_outside(gpu):
    side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")

    def run():
        x.add_(1)
        with pytest.raises(torch.AcceleratorError, match="uncaptured work in another stream"):
            torch.cuda.current_stream().wait_stream(side)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        capture(run)


def test_a_graph_that_is_not_freed_outlives_its_scope_quietly():
    with scope():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ones(1, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del graph
        gc.collect()
