"""PyTorch's CUDA Sanitizer on a virtual GPU: it finds the races that are there, and no other."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace
from torch.nn import functional as F
from torchvision.models import resnet18

from virtualgpu.gpu import VirtualGPU, without_gpu

pytestmark = pytest.mark.filterwarnings("ignore:with compute=False")
NAME = "torch.cuda._sanitizer"


@pytest.fixture
def listeners():
    """Whoever begins to listen listens no longer afterwards."""
    registries = [one for one in vars(_gpu_trace).values() if isinstance(one, CallbackRegistry)]
    before = [list(one.callback_list) for one in registries]
    yield
    for registry, callbacks in zip(registries, before, strict=True):
        registry.callback_list[:] = callbacks


@pytest.fixture
def sanitizer(gpu, listeners):
    """The sanitizer, enabled."""
    module = importlib.import_module(NAME)
    module.enable_cuda_sanitizer()
    yield module
    module.cuda_sanitizer.disable()
    del sys.modules[NAME]


@pytest.fixture
def streams(sanitizer):
    """`first` and `second` use one tensor in two streams."""
    x, sides = torch.zeros(1000, device="cuda"), [torch.cuda.Stream(), torch.cuda.Stream()]

    def use(side, write):
        with torch.cuda.stream(side):
            if write:
                x.add_(1)
            else:
                x.sum()

    torch.cuda.synchronize()
    return SimpleNamespace(use=use, one=sides[0], other=sides[1], x=x, error=sanitizer.CUDASanitizerErrors)


def by_an_event(streams):
    streams.other.wait_event(streams.one.record_event())


def by_an_event_that_waits(streams):
    event = torch.cuda.Event()
    event.record(streams.one)
    event.wait(streams.other)


def by_an_event_on_the_host(streams):
    streams.one.record_event().synchronize()


def reads_a_number(streams):
    with torch.cuda.stream(streams.one):
        torch.ones(1, device="cuda").item()


def copies_and_waits(streams):
    with torch.cuda.stream(streams.one):
        torch.ones(8, device="cuda").cpu()


def by_a_third(streams):
    third = torch.cuda.Stream()
    third.wait_stream(streams.one)
    streams.other.wait_stream(third)


ORDERS = [
    lambda streams: streams.other.wait_stream(streams.one),
    lambda streams: streams.one.synchronize(),
    lambda streams: torch.cuda.synchronize(),
    *(by_an_event, by_an_event_that_waits, by_an_event_on_the_host, reads_a_number, copies_and_waits, by_a_third),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("writes", "then_writes"), [(True, False), (False, True), (True, True)])
def test_who_has_waited_may_use_it(streams, order, writes, then_writes):
    streams.use(streams.one, writes)
    order(streams)
    streams.use(streams.other, then_writes)


def nothing(streams):
    pass


def an_event_too_early(streams):
    streams.other.wait_event(streams.event)


def the_wrong_way(streams):
    streams.one.wait_stream(streams.other)


def of_another_stream(streams):
    torch.cuda.Stream().synchronize()


def copies_without_waiting(streams):
    with torch.cuda.stream(streams.one):
        torch.ones(8, device="cuda").to("cpu", non_blocking=True)


@pytest.mark.parametrize(
    "order", [nothing, an_event_too_early, the_wrong_way, of_another_stream, copies_without_waiting]
)
@pytest.mark.parametrize(("writes", "then_writes"), [(True, False), (False, True), (True, True)])
def test_who_has_not_waited_is_told(streams, order, writes, then_writes, capsys):
    streams.event = streams.one.record_event()
    streams.use(streams.one, writes)
    order(streams)
    with pytest.raises(streams.error):
        streams.use(streams.other, then_writes)
    assert f"data pointer {streams.x.data_ptr()}" in capsys.readouterr().err


def test_two_that_read_need_not_wait(streams):
    streams.use(streams.one, False)
    streams.use(streams.other, False)


def test_memory_that_is_used_again_begins_anew(sanitizer):
    addresses = set()
    for stream in (torch.cuda.Stream, torch.cuda.current_stream):
        with VirtualGPU("T4"), torch.cuda.stream(stream()):
            addresses.add(torch.ones(1000, device="cuda").data_ptr())
    assert len(addresses) == 1


def test_of_a_copy_between_gpus_each_stream_waits_for_the_other(listeners):
    recorded, waits = {}, []
    _gpu_trace.register_callback_for_event_record(recorded.__setitem__)
    _gpu_trace.register_callback_for_event_wait(lambda event, stream: waits.append((stream, recorded[event])))
    with VirtualGPU("T4", count=2):
        x, here, there = torch.ones(1000, device="cuda:0"), torch.cuda.Stream(0), torch.cuda.Stream(1)
        with torch.cuda.stream(there), torch.cuda.stream(here):
            x.to("cuda:1")
    here, there = here.cuda_stream, there.cuda_stream
    assert waits == [(here, there), (there, here)]


def test_events_and_streams_come_and_go(gpu, listeners):
    heard = []
    for name in ("event_creation", "event_record", "event_deletion", "stream_creation"):
        register = getattr(_gpu_trace, f"register_callback_for_{name}")
        register(lambda *handles, name=name: heard.append((name, handles)))
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    assert heard == [("stream_creation", (side.cuda_stream,))]  # CUDA makes an event when it is first recorded
    event.record(side)
    event.record()
    del event
    (_, (handle,)), *_ = made = heard[1:]
    assert made == [
        ("event_creation", (handle,)),
        ("event_record", (handle, side.cuda_stream)),
        ("event_record", (handle, 0)),
        ("event_deletion", (handle,)),
    ]


@pytest.mark.parametrize("make", [resnet18, lambda: nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)])
def test_training_in_one_stream_has_no_race(sanitizer, make):
    with torch.device("cuda"):
        model = make()
        x = torch.randn(2, 3, 64, 64) if isinstance(model, type(resnet18())) else torch.randn(2, 8, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(out := model(x), torch.zeros_like(out)).backward()
        optimizer.step()


def test_enabled_before_there_is_a_gpu_it_sees_what_is_on_it(sanitizer, gpu):
    with VirtualGPU("T4"):
        x, side = torch.zeros(10, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side), pytest.raises(sanitizer.CUDASanitizerErrors):
            x.add_(1)
    assert not torch.zeros(3).is_cuda


def test_memory_comes_and_goes(gpu, listeners):
    there = set()
    _gpu_trace.register_callback_for_memory_allocation(there.add)
    _gpu_trace.register_callback_for_memory_deallocation(there.remove)
    x, y = (torch.ones(1000, device="cuda") for _ in range(2))
    assert there == {x.data_ptr(), y.data_ptr()}
    del x
    torch.cuda.memory_allocated()  # where the virtual GPU notices what has died
    assert there == {y.data_ptr()}


def test_without_the_gpu_it_looks_at_nothing_and_afterwards_again(sanitizer):
    x, side = torch.zeros(10, device="cuda"), torch.cuda.Stream()
    with without_gpu():
        assert (torch.zeros(3) + 1).tolist() == [1, 1, 1]  # it would ask a driver that is not there
        with without_gpu():
            assert not torch.zeros(3).is_cuda
    with torch.cuda.stream(side), pytest.raises(sanitizer.CUDASanitizerErrors):
        x.add_(1)
