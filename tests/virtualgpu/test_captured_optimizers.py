"""An optimizer's step in a CUDA graph: replayed, it moves the weights as the same steps on the CPU do."""

import contextlib
import copy
import math
import warnings

import pytest
import torch
from torch import nn, optim

from .surface_scope import scope

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:This instance was constructed with capturable")

WARM_UPS, REPLAYS = 3, 4
NOT_PERMITTED = "operation not permitted when stream is capturing"
# One row for each kind of state that an optimizer with `capturable` keeps.
OPTIONS = {
    optim.Adam: [{}, {"amsgrad": True, "weight_decay": 0.1}],
    optim.AdamW: [{}, {"amsgrad": True, "weight_decay": 0.1}],
    optim.NAdam: [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    optim.RAdam: [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    optim.Adamax: [{}, {"weight_decay": 0.1}],
    optim.ASGD: [{"t0": 4}, {"weight_decay": 0.1}],
    optim.Adadelta: [{}, {"weight_decay": 0.1}],
    optim.RMSprop: [{}, {"weight_decay": 0.1, "momentum": 0.9, "centered": True}],
    optim.Rprop: [{}, {"step_sizes": (1e-3, 0.02)}],
}
SGD = [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}]
FUSED = (optim.Adam, optim.AdamW, optim.SGD)
TABLE = [
    pytest.param(kind, way, options, id=f"{kind.__name__}-{way}-{'options' if place else 'plain'}")
    for kind, rows in (OPTIONS | {optim.SGD: SGD}).items()
    for way in ("loop", "foreach", *(["fused"] if kind in FUSED else []))
    for place, options in enumerate(rows)
]
# They take lr from the GPU, as PyTorch's code has it: `add_(…, alpha=-lr)`.
READ_BY_THE_HOST = {(optim.SGD, "loop"), (optim.SGD, "foreach"), (optim.Adadelta, "loop"), (optim.RMSprop, "loop")}


@pytest.fixture(autouse=True)
def in_float64():
    """Where it computes on tensors, `capturable` loses digits that Python's numbers have: RAdam's first steps all."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False))


def inputs():
    return [torch.randn(4, 3, generator=torch.Generator().manual_seed(n)) for n in range(WARM_UPS + REPLAYS)]


def made(kind, net, way, lr, options):
    """The optimizer of `net`, on a GPU one that a graph can hold."""
    options = options if kind is optim.SGD or not next(net.parameters()).is_cuda else options | {"capturable": True}
    return kind(
        net.parameters(), lr=lr, foreach=way == "foreach", **({"fused": True} if way == "fused" else {}), **options
    )


def step(net, optimizer, x, *, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    net(x).square().sum().backward()
    optimizer.step()


@contextlib.contextmanager
def on_a_side_stream():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def captured(run, warm_ups=WARM_UPS):
    """A graph of what `run(number)` does, after calls beside it."""
    with on_a_side_stream():
        for number in range(warm_ups):
            run(number)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(warm_ups)
    return graph


def on_the_cpu(kind, way, lr, options, *, set_lr=None):
    net, given = model(), inputs()
    optimizer = made(kind, net, way, lr, options)
    for number, x in enumerate(given):
        if set_lr is not None and number == WARM_UPS + 2:
            optimizer.param_groups[0]["lr"] = set_lr
        step(net, optimizer, x)
    return [p.detach() for p in net.parameters()]


def on_the_gpu(kind, way, lr, options, change=None, *, set_to_none=True):
    """The weights after warm-ups and replays; `change(optimizer)` is called before the third replay."""
    net, given = model().cuda(), inputs()
    optimizer = made(kind, net, way, lr, options)
    x = torch.empty(4, 3, device="cuda")

    def run(number):
        if number < WARM_UPS:
            x.copy_(given[number])
        step(net, optimizer, x, set_to_none=set_to_none)

    graph = captured(run)
    for number in range(WARM_UPS, WARM_UPS + REPLAYS):
        if change is not None and number == WARM_UPS + 2:
            change(optimizer)
        x.copy_(given[number])
        graph.replay()
    return [p.detach().cpu() for p in net.parameters()]


def assert_alike(found, expected):
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-10)


# -- the learning rate -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "way", "options"), TABLE)
@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zero"])
def test_a_replay_moves_the_weights_as_a_step_does_and_a_number_for_lr_is_frozen(kind, way, options, set_to_none):
    with scope():
        found = on_the_gpu(
            kind, way, 0.01, options, lambda o: o.param_groups[0].update(lr=1.0), set_to_none=set_to_none
        )
    assert_alike(found, on_the_cpu(kind, way, 0.01, options))


@pytest.mark.parametrize(("kind", "way", "options"), [row for row in TABLE if row.values[:2] not in READ_BY_THE_HOST])
def test_a_tensor_for_lr_takes_effect_where_it_is_changed_in_place(kind, way, options):
    with scope():
        lr = torch.tensor(0.01, device="cuda")
        found = on_the_gpu(kind, way, lr, options, lambda _: lr.fill_(0.25))
    assert_alike(found, on_the_cpu(kind, way, 0.01, options, set_lr=0.25))


@pytest.mark.parametrize(("kind", "way", "options"), [row for row in TABLE if row.values[:2] in READ_BY_THE_HOST])
def test_a_tensor_for_lr_that_the_host_reads_ends_the_capture(kind, way, options):
    with scope():
        lr = torch.tensor(0.01, device="cuda")
        with pytest.raises(torch.AcceleratorError, match="previous error during capture") as caught:
            on_the_gpu(kind, way, lr, options)
        assert NOT_PERMITTED in str(caught.value.__context__)


@pytest.mark.parametrize("way", ["loop", "foreach"])
def test_a_tensor_of_the_host_for_lr_is_frozen(way):
    with scope():
        lr = torch.tensor(0.01)
        found = on_the_gpu(optim.SGD, way, lr, {}, lambda _: lr.fill_(0.25))
    assert_alike(found, on_the_cpu(optim.SGD, way, 0.01, {}))


# -- what PyTorch says of `capturable` -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)
def test_without_capturable_no_step_is_captured(gpu, kind):
    net, x = model().cuda(), torch.ones(4, 3, device="cuda")
    optimizer = kind(net.parameters())
    said = f"graph capture of step\\(\\) for an instance of {kind.__name__} but param_groups' capturable is False"
    with pytest.raises(RuntimeError, match=said):
        captured(lambda _: step(net, optimizer, x))


def test_capturable_without_a_capture_is_warned_of_once_where_the_optimizer_is_a_copy(gpu):
    net, x = model().cuda(), torch.ones(4, 3, device="cuda")
    made_here = optim.Adam(net.parameters(), capturable=True)  # PyTorch says nothing of those
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for optimizer in (made_here, copy.deepcopy(made_here)):
            step(net, optimizer, x)
            step(net, optimizer, x)
    assert ["step() is running without CUDA graph capture" in str(w.message) for w in said] == [True]


# -- state, gradients, scalers ---------------------------------------------------------------------------------------


def test_state_that_is_made_in_the_capture_is_made_anew_by_each_replay():
    with scope():
        net, x = model().cuda(), torch.ones(4, 3, device="cuda")
        optimizer = optim.Adam(net.parameters(), capturable=True)
        graph = captured(lambda _: step(net, optimizer, x), warm_ups=0)
        for _ in range(3):
            graph.replay()
            assert [state["step"].item() for state in optimizer.state.values()] == [1, 1, 1]


def test_gradients_are_in_the_graphs_pool_where_the_capture_makes_them(gpu):
    net, x = nn.Linear(1024, 1024, bias=False, device="cuda"), torch.ones(1, 1024, device="cuda")

    def run(set_to_none):
        net.zero_grad(set_to_none=set_to_none)
        net(x).sum().backward()

    def held(graph):
        blocks = [b for s in torch.cuda.memory_snapshot(graph.pool()) for b in s["blocks"]]
        return sum(block["size"] for block in blocks if block["state"] == "active_allocated")

    before = torch.cuda.memory_allocated()
    into_what_was_there = captured(lambda _: run(False), warm_ups=1)
    assert held(into_what_was_there) == 0
    made_anew = captured(lambda _: run(True), warm_ups=1)
    assert held(made_anew) == net.weight.nbytes == torch.cuda.memory_allocated() - before
    net.weight.grad = None
    made_anew.replay()
    assert torch.cuda.memory_allocated() == before  # a replay writes there, and gives `grad` nothing


def scaled_step(net, optimizer, scaler, x):
    optimizer.zero_grad()
    scaler.scale(net(x).square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_a_scaler_in_a_capture_leaves_out_the_steps_whose_gradients_are_not_finite():
    given = [*inputs()[:5], torch.full((4, 3), math.nan), *inputs()[5:]]
    own = model()
    optimizer, scaler = optim.Adam(own.parameters(), fused=True), torch.amp.GradScaler("cpu", 8.0, growth_interval=4)
    for x in given:
        scaled_step(own, optimizer, scaler, x)
    with scope():
        net, x = model().cuda(), torch.empty(4, 3, device="cuda")
        on_gpu = optim.Adam(net.parameters(), fused=True, capturable=True)
        gpu_scaler = torch.amp.GradScaler("cuda", 8.0, growth_interval=4)

        def run(number):
            if number < WARM_UPS:
                x.copy_(given[number])
            scaled_step(net, on_gpu, gpu_scaler, x)

        graph = captured(run)
        for batch in given[WARM_UPS:]:
            x.copy_(batch)
            graph.replay()
        assert gpu_scaler.get_scale() == scaler.get_scale() == 8.0  # doubled after four, and halved again
        assert_alike([p.detach().cpu() for p in net.parameters()], [p.detach() for p in own.parameters()])


@pytest.mark.parametrize("way", ["loop", "foreach"])
def test_a_scaler_asks_for_an_optimizer_that_is_fused(gpu, way):
    if not gpu.compute:
        pytest.skip("whether gradients are finite is known without values")
    net, x = model().cuda(), torch.ones(4, 3, device="cuda")
    optimizer, scaler = made(optim.Adam, net, way, 0.01, {}), torch.amp.GradScaler()
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as caught:
        captured(lambda _: scaled_step(net, optimizer, scaler, x))
    assert NOT_PERMITTED in str(caught.value.__context__)


# -- without values --------------------------------------------------------------------------------------------------


def bytes_of_a_captured_step(kind, way, options, *, compute):
    with scope(compute=compute) as gpu:
        net, x = model().cuda(), torch.ones(4, 3, device="cuda")
        optimizer = made(kind, net, way, torch.tensor(0.01, device="cuda") if way == "fused" else 0.01, options)
        graph = captured(lambda _: step(net, optimizer, x))
        graph.replay()
        stats = torch.cuda.memory_stats()
        names = ("allocated", "active", "reserved", "requested")
        sizes = {n: (stats[f"{n}_bytes.all.current"], stats[f"{n}_bytes.all.peak"]) for n in names}
        return sizes, sum(s["total_size"] for s in torch.cuda.memory_snapshot(graph.pool())), gpu.clock.kernels()


@pytest.mark.parametrize(("kind", "way", "options"), TABLE)
def test_without_values_a_captured_step_takes_the_same_bytes_and_kernels(kind, way, options):
    with_values = bytes_of_a_captured_step(kind, way, options, compute=True)
    assert bytes_of_a_captured_step(kind, way, options, compute=False) == with_values
