"""`gpulab.without_gpu`: PyTorch as it is without gpulab, for a block; afterwards all is as it was."""

import gc
import threading
import time
import timeit
import warnings

import pytest
import torch

import gpulab
from gpulab.machine import setup as machine
from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope import in_force

MiB = 1 << 20
HERE = torch.cuda.is_available()  # this machine's own answer, asked before there is a virtual GPU


def surroundings():
    """What a scope replaces: the objects themselves."""
    return (
        torch.cuda.is_available, torch.cuda.device_count, torch.Tensor.to, torch.compile, torch.Generator,
        torch.accelerator.current_accelerator, time.perf_counter, timeit.default_timer,
        threading.Thread._bootstrap_inner, torch._C._len_torch_dispatch_stack(), in_force.thread.watched,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def plain():
    """The same before the test's scope; libraries replace functions for good (Lightning does `torch.compile`)."""
    return surroundings()


def in_thread(run):
    """What `run()` gives in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_in_the_block_pytorch_is_as_it_is_without_gpulab(gpu, plain):
    inside = surroundings()
    with gpulab.without_gpu():
        assert surroundings() == plain
        assert torch.cuda.is_available() == HERE
        made = torch.ones(1000, 1000)
    assert made.sum().item() == 1e6
    assert torch.cuda.is_available()
    assert in_force.current is gpu
    assert [type(a) for a in surroundings()] == [type(a) for a in inside]
    kept = torch.ones(MiB, device="cuda")  # and it goes on
    assert torch.cuda.memory_allocated() == 4 * MiB
    del kept


def test_without_a_virtual_gpu_nothing_changes(plain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gpulab.without_gpu():
            assert surroundings() == plain
            with VirtualGPU("L4") as inner:  # nothing of it is left for the end of the block
                assert torch.cuda.is_available()
                assert in_force.current is inner
    assert surroundings() == plain


def test_blocks_nest(gpu, plain):
    with gpulab.without_gpu():
        with gpulab.without_gpu():
            assert surroundings() == plain
        assert surroundings() == plain
    assert in_force.current is gpu
    assert not in_force.suspended


def test_scopes_nest_around_it_and_within_it(gpu, plain):
    with VirtualGPU("L4") as inner:
        with gpulab.without_gpu():
            assert surroundings() == plain
            with VirtualGPU("H100") as within:
                assert torch.cuda.get_device_name() == within.spec.product
                with gpulab.without_gpu():
                    assert surroundings() == plain
                assert in_force.current is within
            assert surroundings() == plain
        assert in_force.current is inner
    assert in_force.current is gpu


def test_an_exception_passes_and_the_gpu_is_there_again(gpu):
    with pytest.raises(ValueError, match="mine"), gpulab.without_gpu(), gpulab.without_gpu():
        raise ValueError("mine")
    assert in_force.current is gpu
    assert torch.ones(3, device="cuda").device == torch.device("cuda:0")


def test_tensors_of_the_gpu_are_in_the_block_what_stands_behind_them():
    with VirtualGPU("T4"):
        x = torch.ones(MiB, device="cuda")
        gone = torch.ones(MiB, device="cuda")
        with gpulab.without_gpu():
            assert x.device == torch.device("cpu")
            y = x + 1
            x[0] = 5
            big = torch.zeros(8 * MiB)
            del gone
        assert x.device == torch.device("cuda:0")
        assert x[:2].tolist() == [5.0, 1.0]
        assert (y.device, big.device) == (torch.device("cpu"), torch.device("cpu"))
        assert y[0] == 2
        assert torch.cuda.memory_allocated() == 4 * MiB
        assert torch.cuda.max_memory_allocated() == 8 * MiB


def test_without_values_they_are_shapes():
    with VirtualGPU("T4", compute=False):
        x = torch.ones(MiB, device="cuda")
        with gpulab.without_gpu():
            assert x.device == torch.device("meta")
            assert torch.ones(3).sum().item() == 3
        assert x.device == torch.device("cuda:0")


def test_training_within_has_nothing_to_do_with_the_gpu(gpu):
    layer = torch.nn.Linear(64, 64, device="cuda")
    before = torch.cuda.memory_allocated(), gpu.clock.kernels(0)
    with gpulab.without_gpu():
        host = torch.nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(host.parameters())
        with torch.autocast("cpu", torch.bfloat16):
            loss = host(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        assert optimizer.state[host.weight]["exp_avg"].abs().sum() > 0
    assert (torch.cuda.memory_allocated(), gpu.clock.kernels(0)) == before
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    assert layer.weight.grad.device.type == "cuda"


# -- torch.compile ---------------------------------------------------------------------------------------------------


class Backend:
    """Counts what dynamo hands over, and runs it as it is."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


def test_torch_compile_compiles_within_and_runs_as_written_outside(gpu):
    backend = Backend()

    def f(x):
        return torch.sin(x) * 2

    x = torch.ones(4)
    with gpulab.without_gpu(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile runs the code as it is written")
        compiled = torch.compile(f, backend=backend)
        assert torch.equal(compiled(x), f(x))
        compiled(x)
    assert (backend.graphs, backend.runs) == (1, 2)
    assert compiled(x.cuda()).device.type == "cuda"
    assert backend.runs == 2
    with gpulab.without_gpu():
        compiled(x)
    assert (backend.graphs, backend.runs) == (1, 3)


def test_what_was_given_to_torch_compile_outside_is_compiled_within(gpu):
    backend = Backend()
    with pytest.warns(UserWarning, match="torch.compile runs the code as it is written"):
        compiled = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    compiled(torch.ones(2, 4))
    assert backend.graphs == 0
    with gpulab.without_gpu():
        compiled(torch.ones(2, 4))
    assert (backend.graphs, backend.runs) == (1, 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_the_plain_one(backend):
    from torch._dynamo.utils import counters

    def gradients(model):
        model(torch.linspace(-1, 1, 32).view(4, 8)).square().mean().backward()
        return [p.grad for p in model.parameters()]

    with VirtualGPU("T4"):
        counters.clear()
        with gpulab.without_gpu():
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
            want = [g.clone() for g in gradients(model)]
            model.zero_grad()
            found = gradients(torch.compile(model, backend=backend, fullgraph=True))
        torch.testing.assert_close(found, want)
        assert counters["stats"]["unique_graphs"] == 1


# -- threads ---------------------------------------------------------------------------------------------------------


def test_it_holds_for_all_threads(gpu):
    with gpulab.without_gpu():
        assert in_thread(torch.cuda.is_available) == HERE
    assert in_thread(torch.cuda.is_available)
    assert in_thread(lambda: torch.ones(3, device="cuda").device) == torch.device("cuda:0")


def test_a_watched_thread_is_watched_again(gpu, plain):
    def work():
        with gpulab.without_gpu():
            as_before = surroundings() == plain
        kept.append(torch.ones(MiB, device="cuda"))
        return as_before, in_force.thread.watched

    kept = []
    assert in_thread(work) == (True, True)
    assert torch.cuda.memory_allocated() == 4 * MiB
    assert in_force.thread.watched


def test_of_blocks_that_overlap_in_two_threads_the_last_brings_the_gpu_back(gpu, plain):
    entered, leave = threading.Event(), threading.Event()
    found = []

    def other():
        with gpulab.without_gpu():
            entered.set()
            leave.wait()
            found.append(surroundings() == plain)
        found.append(torch.ones(3, device="cuda").device.type)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        with gpulab.without_gpu():
            assert surroundings() == plain
        assert in_force.current is None  # the other thread is in its block yet
        assert torch.cuda.is_available() == HERE
    finally:
        leave.set()
        thread.join()
    assert found == [True, "cuda"]
    assert in_force.current is gpu
    assert torch.ones(3, device="cuda").device.type == "cuda"


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_gpu_cannot_end_while_it_is_out_of_sight():
    with VirtualGPU("T4") as gpu:
        with gpulab.without_gpu(), pytest.raises(RuntimeError, match="cannot end within a block without it"):
            gpu.stop()
        assert in_force.current is gpu
    assert in_force.current is None


def test_one_that_outlasts_the_block_is_told(gpu, plain):
    with (
        pytest.raises(RuntimeError, match=r"L4.* was started within a block without .*T4.* and is still in force"),
        gpulab.without_gpu(),
    ):
        left = VirtualGPU("L4").start()
    assert in_force.current is left
    left.stop()
    assert surroundings() == plain


def test_setup_is_not_for_such_a_block(plain):
    here = gpulab.setup("T4")
    try:
        with gpulab.without_gpu():
            assert surroundings() == plain
            for change in (lambda: gpulab.setup("L4"), here.close):
                with pytest.raises(RuntimeError, match="within a block without <VirtualGPU T4"):
                    change()
        assert torch.cuda.get_device_name() == "Tesla T4"
    finally:
        here.close()
        gc.collect()
    assert machine._gpu is None
    assert surroundings() == plain
