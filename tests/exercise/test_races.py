"""What checks find of streams that do not wait for each other: beyond PyTorch's sanitizer, and without false alarms."""

import sys

import pytest
import torch
from torch.cuda import _gpu_trace

from gpulab.exercise.races import Race, races

pytestmark = pytest.mark.filterwarnings("ignore:with compute=False")


@pytest.fixture
def side(gpu):
    return torch.cuda.Stream()


def to_host(side, x):
    """A copy in the side stream that nobody waits for."""
    host = torch.empty(x.shape, pin_memory=True)
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    return host


def test_a_buffer_of_the_host_is_read_before_it_is_filled(side):
    x = torch.ones(1000, device="cuda")
    for wait, wanted in ((False, {Race(0, side.cuda_stream)}), (True, set())):
        with races() as found:
            host = to_host(side, x)
            if wait:
                torch.cuda.current_stream().wait_stream(side)
            host.to("cuda", non_blocking=True)
        assert set(found) == wanted


def test_the_hosts_own_work_on_it_is_no_streams(side):
    with races() as found:
        host = torch.empty(1000, pin_memory=True).fill_(1)  # in the caller's stream, if it were the GPU's
        with torch.cuda.stream(side):
            host.to("cuda", non_blocking=True)
            torch.empty(1000, pin_memory=True).add_(1)
    assert found == []


def test_a_buffer_in_the_place_of_one_that_is_gone_is_another(side):
    x = torch.ones(1000, device="cuda")
    with races() as found:
        for stream in (torch.cuda.current_stream(), side):
            host = to_host(stream, x)
            del host
    assert found == []


@pytest.mark.parametrize("how", ["record_stream", "wait_stream", "synchronize", "kept", "nothing"])
def test_memory_is_freed_while_another_stream_may_use_it(side, how):
    with races() as found:
        x = torch.ones(1000, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sum()
        if how == "record_stream":
            x.record_stream(side)
        elif how == "wait_stream":
            torch.cuda.current_stream().wait_stream(side)
        elif how == "synchronize":
            side.synchronize()
        if how != "kept":
            del x
        torch.ones(1000, device="cuda")
    assert found == ([Race(0, side.cuda_stream, freed=True)] if how == "nothing" else [])


def test_who_asks_until_it_is_done_has_waited(side):
    x = torch.ones(1000, device="cuda")
    with races() as found:
        with torch.cuda.stream(side):
            x.add_(1)
            done = side.record_event()
        while not done.query():
            pass
        x.add_(1)
    assert found == []


def test_afterwards_nobody_listens(gpu):
    registries = [one for one in vars(_gpu_trace).values() if hasattr(one, "callback_list")]
    before = [list(one.callback_list) for one in registries]
    loaded, record = "torch.cuda._sanitizer" in sys.modules, torch.Tensor.record_stream
    with pytest.raises(ZeroDivisionError), races():
        raise ZeroDivisionError
    assert [one.callback_list for one in registries] == before
    assert ("torch.cuda._sanitizer" in sys.modules, torch.Tensor.record_stream) == (loaded, record)


def test_a_replayed_graph_uses_what_it_has_captured(side):
    x = torch.ones(1000, device="cuda")
    for wait, wanted in ((True, set()), (False, {Race(0, side.cuda_stream)})):
        with races() as found:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x.sum()
            with torch.cuda.stream(side):
                x.add_(1)
            if wait:
                torch.cuda.current_stream().wait_stream(side)
            graph.replay()
        assert set(found) == wanted
        torch.cuda.synchronize()
