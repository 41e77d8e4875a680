"""Imagined ranks: what a process group of them answers, counts and takes, with values and on shapes alone."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from gpulab import VirtualGPU
from virtualgpu.clock import collectives
from virtualgpu.clock.timeline import communication
from virtualgpu.operations import known_values
from virtualgpu.scope.refusals import NotMirrored
from virtualgpu.surface.distributed import same_gpus_factory

MODES = pytest.mark.parametrize("compute", [True, False], ids=["values", "shapes"])


@pytest.fixture
def begin():
    """Starts imagined ranks with a process group; all of it ends with the test."""
    started = []

    def start(ranks=4, backend="nccl", **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gpu = VirtualGPU("H100", ranks=ranks, **options).start()
            started.append(gpu)
            dist.init_process_group(backend)
        return gpu

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()
    for gpu in reversed(started):
        gpu.stop()


def between(timeline):
    return [span for span in timeline.spans if span.where == "ranks"]


# -- who is there ----------------------------------------------------------------------------------------------------


@MODES
def test_a_process_finds_itself_as_torchrun_would_have_started_it(begin, compute):
    before = dict(os.environ)
    gpu = begin(16, nodes=2, rank=9, compute=compute)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (9, 16, "nccl")
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")}
    assert found == {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}
    assert torch.cuda.device_count() == 8
    dist.destroy_process_group()
    gpu.stop()
    assert dict(os.environ) == before


def test_it_says_that_the_others_are_imagined():
    with VirtualGPU("T4", ranks=4), pytest.warns(UserWarning, match="rank 0 of 4 runs here; the others are imagined"):
        dist.init_process_group("nccl")
    assert not dist.is_initialized()  # they end with the scope


def test_a_machine_by_its_name(begin):
    with VirtualGPU("4xT4") as gpu:
        assert (gpu.spec.name, gpu.world.size, gpu.count) == ("T4", 4, 4)
    with VirtualGPU("H100", ranks=64) as gpu:
        assert (gpu.world.topology.nodes, gpu.world.topology.per_node) == (8, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks must be a whole number of GPUs from 1 to 65536, not 0"),
        ({"ranks": 2.0}, "ranks must be a whole number"),
        ({"ranks": 4, "rank": 4}, "rank must be a whole number from 0 to 3"),
        ({"ranks": 4, "rank": -1}, "rank must be a whole number from 0 to 3"),
        ({"nodes": 2}, "nodes 2 without ranks="),
        ({"rank": 1}, "rank is 1 .* without ranks="),
        ({"ranks": 9, "nodes": 2}, "nodes is 2; it must divide the 9 ranks"),
        ({"ranks": 8, "link": "nvlink"}, "link is 'nvlink'; known links"),
        ({"gpu": "8xH100", "ranks": 4}, "ranks is 4, but gpu='8xH100' is a machine"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        VirtualGPU(**{"gpu": "H100", **options})


def test_a_program_that_counts_otherwise_hears_of_it():
    with VirtualGPU("T4", ranks=4), pytest.raises(ValueError, match=r"world_size is 2, but the imagined ranks' is 4"):
        dist.init_process_group("nccl", init_method="env://", world_size=2, rank=0)
    assert not dist.is_initialized()


# -- what comes of a collective --------------------------------------------------------------------------------------

SUM = dist.ReduceOp.SUM


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (SUM, 12),
        (dist.ReduceOp.AVG, 3),
        (dist.ReduceOp.PRODUCT, 81),
        (dist.ReduceOp.MIN, 3),
        (dist.ReduceOp.MAX, 3),
    ],
)
def test_a_reduction_over_equal_ranks(begin, op, result):
    begin(4)
    x = torch.full((5,), 3.0, device="cuda")
    dist.all_reduce(x, op)
    assert x.tolist() == [result] * 5
    scattered = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(scattered, torch.full((8,), 3.0, device="cuda"), op)
    assert scattered.tolist() == [result] * 2


def test_bits_and_what_multiplies_before(begin):
    begin(4)
    x = torch.tensor([5], device="cuda")
    dist.all_reduce(x, dist.ReduceOp.BXOR)
    assert x.tolist() == [0]
    y = torch.ones(3, device="cuda")
    dist.all_reduce(y, dist._make_nccl_premul_sum(0.5))
    assert y.tolist() == [2.0] * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_the_rest_of_the_collectives(begin, rank):
    begin(4, rank=rank)
    x = torch.arange(8.0, device="cuda")
    parts = [torch.empty(8, device="cuda") for _ in range(4)]
    dist.all_gather(parts, x)
    whole = torch.empty(32, device="cuda")
    dist.all_gather_into_tensor(whole, x)
    assert all(torch.equal(part, x) for part in [*parts, *whole.chunk(4)])
    got = torch.empty(2, device="cuda")
    dist.reduce_scatter(got, list(x.chunk(4)))
    assert torch.equal(got, 4 * x[2 * rank : 2 * rank + 2])
    exchanged = torch.empty(8, device="cuda")
    dist.all_to_all_single(exchanged, x)
    assert torch.equal(exchanged, x[2 * rank : 2 * rank + 2].repeat(4))  # each sends what this one sends to itself
    dist.broadcast(x, 1)
    dist.reduce(x, rank)
    assert x.tolist() == [4.0 * n for n in range(8)]
    dist.gather(x, parts if rank == 0 else None, 0)
    dist.scatter(x, parts if rank == 0 else None, 0)


@pytest.mark.parametrize("rank", [0, 2])
def test_numbers_that_are_known_on_shapes_are_known_after_a_collective(begin, rank):
    """Lengths and counts: with values and on shapes alone the same comes of them."""
    said = {}
    for compute in (True, False):
        begin(4, rank=rank, compute=compute)
        x = torch.arange(8, device="cuda")
        dist.all_reduce(x)
        parts, whole = [torch.empty_like(x) for _ in range(4)], torch.empty(32, dtype=torch.int64, device="cuda")
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(whole, x)
        got = torch.empty(2, dtype=torch.int64, device="cuda")
        dist.reduce_scatter_tensor(got, x, dist.ReduceOp.MAX)
        exchanged = torch.empty_like(x)
        dist.all_to_all_single(exchanged, x)
        dist.broadcast(x, 1)
        dist.reduce(x, 2)
        said[compute] = [t.tolist() for t in (x, *parts, whole, got, exchanged)]
        dist.destroy_process_group()
    assert said[True] == said[False]


def test_what_is_unknown_after_a_collective_is_said_to_be(begin):
    begin(4, compute=False)
    whole = torch.zeros(8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(whole, torch.randint(9, (2,), device="cuda"))
    part = torch.zeros(8, dtype=torch.int64, device="cuda")
    dist.recv(part[:2], 1)
    assert known_values.value(part) is None
    with pytest.warns(UserWarning, match="an unknown number is read as 1"):
        whole.tolist()


def test_objects_are_those_of_this_rank(begin):
    for compute in (True, False):
        begin(4, compute=compute)
        found = [None] * 4
        dist.all_gather_object(found, {"loss": 0.5})
        assert found == [{"loss": 0.5}] * 4
        objects = ["a", 2]
        dist.broadcast_object_list(objects, src=0)
        assert objects == ["a", 2]
        dist.destroy_process_group()


@MODES
def test_functional_collectives(begin, compute):
    gpu = begin(4, compute=compute)
    x = torch.ones(8, 4, device="cuda")
    with gpu.timeline() as timeline:
        found = [
            functional.all_reduce(x, "sum", dist.group.WORLD),
            functional.all_gather_tensor(x, 0, dist.group.WORLD),
            functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD),
            functional.all_to_all_single(x, None, None, dist.group.WORLD),
            functional.broadcast(x, 0, dist.group.WORLD),
        ]
        results = [(t + 0) for t in found]
    assert [tuple(t.shape) for t in results] == [(8, 4), (32, 4), (2, 4), (8, 4), (8, 4)]
    assert {t.device for t in results} == {torch.device("cuda:0")}
    assert [span.name.split(" ")[0] for span in between(timeline)] == [
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    ]  # fmt: skip
    if compute:
        assert [t[0, 0].item() for t in results] == [4, 1, 1, 1, 1]


def test_a_reduction_that_nobody_knows_says_its_name(begin):
    begin(4)
    sizes = [1, 2, 3, 4]
    with pytest.raises(NotMirrored, match="equal shares"):
        dist.all_to_all_single(torch.empty(10, device="cuda"), torch.ones(10, device="cuda"), sizes, sizes)


def test_what_nccl_refuses(begin):
    begin(4)
    x = torch.ones(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(3))
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        functional.all_gather_tensor(torch.ones(3), 0, dist.group.WORLD)  # as full_tensor() of a DTensor does
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.all_reduce(x.t()[1:])
    with pytest.raises(ValueError, match="same device, found cuda:1 beside cuda:0"):
        dist.all_gather([torch.empty(4, 4, device=f"cuda:{n % 2}") for n in range(4)], x)


def test_a_message_that_is_not_contiguous_is_taken_with_a_warning(begin):
    begin(4)
    with pytest.warns(UserWarning, match="Detected non-contiguous tensor in P2P operations"):
        dist.send(torch.ones(4, 4, device="cuda").t()[1:], 1)


@MODES
def test_a_collective_in_a_cuda_graph_says_its_name(begin, compute):
    begin(4, compute=compute)
    x = torch.ones(4, device="cuda")
    with (
        pytest.raises(NotMirrored, match="all_reduce while a CUDA graph is captured"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        dist.all_reduce(x)


# -- groups ----------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("rank", [1, 6])
def test_a_group_that_is_split(begin, compute, rank):
    gpu = begin(8, compute=compute, rank=rank)
    x = torch.tensor([rank], device="cuda")
    half = dist.split_group(split_ranks=[[0, 1, 2, 3], [4, 5, 6, 7]])
    assert dist.get_process_group_ranks(half) == list(range(rank // 4 * 4, rank // 4 * 4 + 4))
    assert (half.rank(), half.size(), dist.get_backend(half)) == (rank % 4, 4, "nccl")
    with gpu.timeline() as timeline:
        dist.all_reduce(x, group=half)
    assert x.tolist() == [4 * rank]
    assert [span.name.split(" (")[0] for span in between(timeline)] == ["all_reduce of 4 ranks"]
    pair = dist.split_group(half, [[0, 1]])
    assert (pair is dist.GroupMember.NON_GROUP_MEMBER) is (rank == 6)


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ([], "split_ranks cannot be None or empty"),
        ([[0], []], "the split group cannot be empty"),
        ([[0, 0]], "duplicate ranks"),
        ([[0, 9]], r"split_ranks has \[0, 9\]; the parent group's ranks are 0 to 7"),
        ([[1, 0]], r"in a different order, \[1, 0\]"),
    ],
)
def test_a_split_that_cannot_be(begin, splits, words):
    begin(8)
    with pytest.raises((ValueError, NotMirrored), match=words):
        dist.split_group(split_ranks=splits)


def test_what_another_backend_would_do_with_the_gpu_is_named(begin):
    begin(4)
    others = dist.new_group([0, 1], backend="gloo")
    host = torch.ones(2)
    dist.all_reduce(host, group=others)
    assert host.tolist() == [2, 2]
    with pytest.warns(UserWarning, match="backend 'cpu:gloo.*' between imagined ranks.*timed as NCCL's"):
        dist.all_reduce(torch.ones(2, device="cuda"), group=others)


# -- what it takes ---------------------------------------------------------------------------------------------------


@MODES
def test_a_collective_takes_the_time_of_its_topology(begin, compute):
    gpu = begin(16, nodes=2, compute=compute)
    x = torch.ones(1 << 22, device="cuda")
    inner = dist.new_group(list(range(8)))
    with gpu.timeline() as timeline:
        dist.all_reduce(x)
        dist.all_reduce(x, group=inner)
        dist.all_gather_into_tensor(torch.empty(1 << 25, device="cuda"), x, group=inner)
    wanted = [("all_reduce", 16 << 20, 16), ("all_reduce", 16 << 20, 8), ("all_gather", 128 << 20, 8)]
    for span, (kind, nbytes, ranks) in zip(between(timeline), wanted, strict=True):
        seconds = collectives.seconds(kind, nbytes, range(ranks), gpu.world.topology)
        assert (span.nbytes, span.seconds) == (nbytes, pytest.approx(seconds))


@MODES
def test_what_is_waited_for_later_runs_beside_kernels(begin, compute):
    gpu = begin(8, compute=compute)
    a, x = torch.ones(1024, 1024, device="cuda"), torch.ones(1 << 20, device="cuda")
    a @ a  # a library's first call takes long
    for asynchronous in (True, False):
        torch.cuda.synchronize()
        with gpu.timeline() as timeline:
            work = dist.all_reduce(x, async_op=asynchronous)
            for _ in range(8):
                a @ a
            if work is not None:
                work.wait()
            x + 1
        found = communication(timeline.spans)
        (span,) = between(timeline)
        last = [s for s in timeline.spans if s.where == "kernels"][-1]
        assert last.start >= span.start + span.seconds  # it waits for the sum
        assert found.collectives == 1
        assert found.nbytes == x.nbytes
        assert (found.hidden > 0) is asynchronous
        assert found.seconds == pytest.approx(found.hidden + found.exposed)


@MODES
def test_what_nobody_waited_for_is_waited_for_by_synchronize(begin, compute):
    gpu = begin(8, compute=compute)
    x = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with gpu.timeline() as timeline:
        dist.all_reduce(x, async_op=True)
        torch.cuda.synchronize()
    (span,) = between(timeline)
    assert gpu.clock.host >= span.start + span.seconds


@MODES
def test_asking_again_and_again_whether_it_is_done_ends(begin, compute):
    gpu = begin(8, compute=compute)
    with gpu.timeline() as timeline:
        work = dist.all_reduce(torch.ones(1 << 22, device="cuda"), async_op=True)
        asked = 0
        while not work.is_completed():
            asked += 1
    (span,) = between(timeline)
    assert asked > 0
    assert gpu.clock.host >= span.start + span.seconds


@MODES
def test_a_communicator_does_one_at_a_time(begin, compute):
    gpu = begin(8, compute=compute)
    x = torch.ones(1 << 22, device="cuda")
    other = dist.new_group([0, 1, 2, 3])
    with gpu.timeline() as timeline:
        dist.all_reduce(x, async_op=True)
        dist.all_reduce(x, group=other, async_op=True)
        dist.all_reduce(x)  # in another stream
    first, elsewhere, second = between(timeline)
    assert elsewhere.start < first.start + first.seconds
    assert second.start == pytest.approx(first.start + first.seconds)


def test_what_is_sent_and_what_is_received_go_beside_each_other(begin):
    gpu = begin(4)
    x, y = torch.ones(1 << 26, device="cuda"), torch.ones(1 << 26, device="cuda")
    with gpu.timeline() as timeline:
        operations = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 3), dist.P2POp(dist.isend, x, 2)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    first, come, second = between(timeline)
    assert come.start < first.start + first.seconds
    assert second.start == pytest.approx(first.start + first.seconds)


@MODES
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_barrier(begin, compute, asynchronous, backend):
    """The GPU's is an all-reduce in the stream, for which the host waits; the hosts' leaves the GPU alone."""
    gpu = begin(8, compute=compute, backend=backend)
    a = torch.ones(1536, 1536, device="cuda")
    a @ a
    torch.cuda.synchronize()
    with gpu.timeline() as timeline:
        a @ a
        before = gpu.clock.host
        work = dist.barrier(async_op=asynchronous)
        if asynchronous:
            assert gpu.clock.host - before < 1e-4
            work.wait()
    spans = [span for span in timeline.spans if span.where == "kernels"]
    end = spans[-1].start + spans[-1].seconds
    assert (gpu.clock.host > end) is (backend == "nccl")
    assert len(between(timeline)) == (backend == "nccl")


def test_lists_are_gathered_in_a_tensor_of_their_own(begin):
    peaks = {}
    for compute in (True, False):
        begin(4, compute=compute)
        x = torch.ones(1 << 18, device="cuda")
        parts = [torch.empty_like(x) for _ in range(4)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dist.all_gather(parts, x)
        peaks[compute] = torch.cuda.max_memory_allocated() - before
        dist.destroy_process_group()
    assert peaks == {True: 4 << 20, False: 4 << 20}


def test_a_group_of_one_costs_a_launch(begin):
    gpu = begin(1)
    x = torch.ones(1 << 20, device="cuda")
    with gpu.timeline() as timeline:
        dist.all_reduce(x)
    assert x[0].item() == 1
    assert [span.seconds for span in between(timeline)] == [pytest.approx(4e-6)]


@MODES
def test_messages(begin, compute):
    gpu = begin(4, compute=compute)
    x = torch.ones(1 << 20, device="cuda")
    with gpu.timeline() as timeline:
        dist.send(x, 1)
        work = dist.irecv(x, 3)
        work.wait()
        for item in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x, 3)]):
            item.wait()
    assert [span.name.split(" ")[0] for span in between(timeline)] == ["send", "recv", "send", "recv"]


def test_a_merged_trace_shows_them(begin, tmp_path):
    gpu = begin(4)
    with gpu.timeline() as timeline:
        dist.all_reduce(torch.ones(10, device="cuda"))
    text = timeline.save(tmp_path / "trace.json").read_text()
    assert "between ranks" in text
    assert "all_reduce of 4 ranks (tree, LL)" in text or "all_reduce of 4 ranks (ring, LL)" in text


def test_a_spawned_process_has_the_same_host_and_links():
    gpu = VirtualGPU("H100", link="nvswitch-h100", host=3)
    child = same_gpus_factory(gpu)()
    assert (child.link, child.adapters, child.rates.host) == (gpu.link, gpu.adapters, gpu.rates.host)
