"""Hosts by name and by factor, and what of a step is theirs."""

import pytest
import torch

from gpulab import VirtualGPU
from virtualgpu.clock import hosts


def test_a_host_that_takes_twice_as_long_does_so_for_everything():
    twice = hosts.REFERENCE.times(2)
    assert (twice.backward_us, twice.event_us) == (2 * hosts.REFERENCE.backward_us, 2 * hosts.REFERENCE.event_us)
    assert twice.name == "reference × 2"
    assert hosts.find_host(2) == twice
    assert hosts.find_host(twice) is twice
    assert hosts.find_host("server") is hosts.SERVER


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), True])
def test_a_factor_is_a_number_above_0(wrong):
    with pytest.raises((ValueError, TypeError), match="must be"):
        hosts.find_host(wrong)


def test_an_unknown_host_is_named_with_those_that_there_are():
    with pytest.raises(ValueError, match="host is 'laptop'; known hosts: server, reference; or a number"):
        VirtualGPU("T4", host="laptop")
    with pytest.raises(TypeError, match="not list"):
        VirtualGPU("T4", host=[])


def step_ms(host, network, data, **autocast):
    """The third step of forward and backward."""
    with VirtualGPU("A100-80", compute=False, host=host) as gpu:
        model, x = network().cuda(), data()
        for _ in range(3):
            began = gpu.clock.host
            with torch.autocast("cuda", **autocast or {"enabled": False}):
                out = model(x)
            out.float().sum().backward()
            torch.cuda.synchronize()
        return 1e3 * (gpu.clock.host - began), gpu.clock.busy()


def deep():
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50)))


def test_a_step_of_small_kernels_takes_what_its_host_takes():
    (fast, busy), (slow, same) = (step_ms(n, deep, lambda: torch.zeros(8, 64, device="cuda")) for n in (1, 3))
    assert slow == pytest.approx(3 * fast, rel=0.01)
    assert same == pytest.approx(busy)


def test_such_a_step_takes_no_longer_for_a_larger_batch_and_longer_under_autocast():
    steps = [step_ms(None, deep, lambda n=n: torch.zeros(n, 64, device="cuda"))[0] for n in (1, 2, 4, 8)]
    assert max(steps) == pytest.approx(min(steps), rel=0.01)
    mixed, _ = step_ms(None, deep, lambda: torch.zeros(1, 64, device="cuda"), dtype=torch.float16)
    assert mixed > 1.2 * steps[0]


def test_events_the_hosts_clock_and_the_gpus_agree_where_the_host_is_the_limit():
    import time

    with VirtualGPU("A100-80", compute=False) as gpu:
        model, x = deep().cuda(), torch.zeros(8, 64, device="cuda")
        for _ in range(3):
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began, at = time.perf_counter(), gpu.clock.host
            start.record()
            model(x).sum().backward()
            end.record()
            torch.cuda.synchronize()
            wall = time.perf_counter() - began
    by_events, by_clock = start.elapsed_time(end) / 1e3, gpu.clock.host - at
    assert by_events == pytest.approx(by_clock, rel=0.05)
    assert wall >= by_clock * (1 - 1e-9)


def host_us(function):
    """What a second call with a small tensor takes on the host."""
    with VirtualGPU("T4", compute=False, host="reference") as gpu, torch.no_grad():
        x = torch.zeros(8, 8, device="cuda")
        function(x)
        began = gpu.clock.host
        function(x)
        return 1e6 * (gpu.clock.host - began)


class Activation(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


def test_what_autograd_records_costs_more():
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    with VirtualGPU("T4", compute=False, host="reference") as gpu:
        x, weight = torch.zeros(8, 8, device="cuda"), weight.to("cuda").detach().requires_grad_()
        x @ x, weight @ x
        costs = []
        for call in (lambda: x @ x, lambda: weight @ x):
            began = gpu.clock.host
            call()
            costs.append(1e6 * (gpu.clock.host - began))
    assert costs[1] - costs[0] == pytest.approx(hosts.REFERENCE.recorded_us)


def test_a_layers_call_costs_more_than_a_lines():
    reference = hosts.REFERENCE
    plain = reference.operation_us + reference.launch_us
    for function in (torch.relu, torch.nn.functional.gelu, lambda x: x @ x, lambda x: x + 1):
        assert host_us(function) == pytest.approx(plain)
    for layer in (torch.nn.ReLU(), Activation()):
        assert host_us(layer) == pytest.approx(plain + reference.layer_us)


def test_plan_and_report_agree_with_the_events_where_the_host_is_the_limit():
    from virtualgpu import planning
    from virtualgpu.running.memory_watch import MemoryWatch
    from virtualgpu.running.meters import VirtualMeter
    from virtualgpu.running.source_lines import SourceLines

    def build(batch):
        model, x = deep().to("cuda"), torch.zeros(batch, 64, device="cuda")

        def step():
            model.zero_grad()
            model(x).sum().backward()

        return step

    planned = planning.plan(build, batch=8, gpu="A100-80").step_ms
    with VirtualGPU("A100-80", compute=False) as gpu:
        meter = VirtualMeter(gpu, [MemoryWatch(device, SourceLines(__file__)) for device in gpu.devices])
        step, spent = build(8), []
        for _ in range(3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began, busy, kernels = gpu.clock.host, gpu.clock.busy(), gpu.clock.kernels()
            start.record()
            step()
            end.record()
            torch.cuda.synchronize()
            spent.append(gpu.clock.host - began)
        time = meter.time(0)
        busy, kernels = gpu.clock.busy() - busy, gpu.clock.kernels() - kernels
    assert busy < 0.3 * spent[-1]
    assert start.elapsed_time(end) == pytest.approx(planned, rel=0.05)
    assert 1e3 * spent[-1] == pytest.approx(planned, rel=0.05)
    assert time.launch == pytest.approx(spent[-1] / kernels, rel=0.15)  # beside events
