"""Time as a user meets it: events, streams, timers of Python, waits that nobody asked for."""

import json
import threading
import time
import timeit
import warnings

import pytest
import torch
from torch import nn
from torch.utils import benchmark

from gpulab import VirtualGPU
from virtualgpu.surface import host_clock

US = 1e-6


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with VirtualGPU("T4", count=2, compute=request.param) as gpu, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield gpu


def events(number=2):
    return [torch.cuda.Event(enable_timing=True) for _ in range(number)]


def sleep(milliseconds):
    torch.cuda._sleep(round(milliseconds * 1e-3 * 8.1e12 / (2 * 2560)))


def host(gpu, call):
    """Seconds that the host is held up by `call`, and the call's result."""
    before = gpu.clock.host
    result = call()
    return gpu.clock.host - before, result


def test_events_measure_the_device(gpu):
    start, end = events()
    start.record()
    sleep(3)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(3, abs=0.02)


def test_an_event_that_is_not_done_cannot_be_read(gpu):
    start, end = events()
    start.record()
    sleep(3000)  # asking takes the time that it really takes
    end.record()
    assert not end.query()
    with pytest.raises(ValueError, match=r"^Both events must be completed before calculating elapsed time\.$"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 2900


def test_events_can_be_read_when_their_gpu_has_gone():
    with VirtualGPU("T4"):
        start, end = events()
        start.record()
        sleep(3)
        end.record()
    assert start.elapsed_time(end) == pytest.approx(3, abs=0.02)
    end.synchronize()


def test_asking_again_and_again_comes_to_an_end(gpu):
    _, end = events()
    sleep(0.5)
    end.record()
    asked = 0
    while not end.query():
        asked += 1
        assert asked < 100_000
    assert asked
    while not torch.cuda.current_stream().query():
        asked += 1
        assert asked < 200_000


def test_so_it_does_for_one_who_sleeps_in_between_on_a_busy_machine(gpu, monkeypatch):
    monkeypatch.setattr(host_clock, "_own_sleep", lambda seconds: None)  # it takes as long as it takes
    gpu.clock.ignores_own = True
    _, end = events()
    sleep(500)
    end.record()
    before = time.perf_counter()
    while not end.query():
        time.sleep(0.01)
    assert 0.5 <= time.perf_counter() - before < 0.52


def test_without_waiting_a_timer_of_python_sees_the_launch_only(gpu):
    a = torch.zeros(4096, 4096, device="cuda")
    a @ a  # takes its memory from the driver
    torch.cuda.synchronize()
    # The best of some: this machine has other things to do, too.
    expected = 2 * 4096**3 / (gpu.rates.tflops["fp32"] * 1e12)
    launch, whole, kept = [], [], []
    while len(launch) < 50 and min(launch, default=1) >= expected / 4:
        began = time.perf_counter()
        kept.append(a @ a)  # this machine takes its time to free memory, too
        launch.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - began)
    assert min(launch) < expected / 4
    assert min(whole) > expected


def test_timers_of_python_are_put_back():
    before = time.perf_counter, time.perf_counter_ns, timeit.default_timer
    with VirtualGPU("T4"):
        assert time.perf_counter is not before[0]
        sooner, between, later = time.perf_counter(), time.perf_counter_ns() * 1e-9, time.perf_counter()
        assert sooner <= between + 1e-6 <= later + 2e-6
        assert time.time() > 1.7e9  # dates stay dates
    assert (time.perf_counter, time.perf_counter_ns, timeit.default_timer) == before


def test_perf_counter_goes_forward_through_all_of_it(gpu):
    seen = []
    x = torch.zeros(64, 64, device="cuda")
    for _ in range(20):
        seen.append(time.perf_counter())
        (x @ x).sum().item()
        seen.append(time.perf_counter())
        time.sleep(0.001)
    assert seen == sorted(seen)
    slept = [after - before for before, after in zip(seen[1::2], seen[2::2], strict=False)]
    assert min(slept) >= 0.001


def test_pytorchs_benchmark_timer_waits_for_the_gpu():
    with VirtualGPU("V100-16", compute=False) as gpu:
        a = torch.zeros(4096, 4096, device="cuda")
        expected = 2 * 4096**3 / (gpu.rates.tflops["fp32"] * 1e12)
        measured = benchmark.Timer("a @ a", globals={"a": a}).blocked_autorange(min_run_time=0.3)
    assert measured.median == pytest.approx(expected, rel=0.2)


def test_it_is_the_same_every_time():
    def run():
        with VirtualGPU("T4") as gpu:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                start, end = events()
                start.record()
                loss = model(torch.randn(8, 100).to("cuda")).sum()
                loss.backward()
                optimizer.step()
                loss.item()
                end.record()
                torch.cuda.synchronize()
            return start.elapsed_time(end), gpu.clock.host, gpu.clock.busy(), gpu.clock.kernels()

    assert run() == run()


WAITS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.cpu().numpy(),
    "copy_": lambda x: torch.zeros(100).copy_(x),
    "from the host": lambda x: torch.zeros(100).to("cuda"),
    "from pinned memory": lambda x: torch.zeros(100).pin_memory().to("cuda"),
    "pageable, non_blocking": lambda x: torch.zeros(100).to("cuda", non_blocking=True),
    "torch.tensor": lambda x: torch.tensor([1.0, 2.0], device="cuda"),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "accelerator": lambda x: torch.accelerator.synchronize(),
    "empty_cache": lambda x: torch.cuda.empty_cache(),
}
VALUES = {  # and whether it waits for them
    "print": (lambda x, *_: repr(x), True),
    "print a number": (lambda x, *_: repr(x[0]), True),
    "if": (lambda x, *_: bool(x.sum() > 1), True),
    "nonzero": (lambda x, *_: x.nonzero(), True),
    "mask": (lambda x, *_: x[x > 0], True),
    "equal": (lambda x, *_: torch.equal(x, x), True),
    "allclose": (lambda x, *_: torch.allclose(x, x), True),
    "count classes": (lambda x, mask, classes, _: nn.functional.one_hot(classes), True),
    "known classes": (lambda x, mask, classes, _: nn.functional.one_hot(classes, 3), False),
    "a number through a mask": (lambda x, mask, *_: x.__setitem__(mask, 0.0), False),
    "by index_put_": (lambda x, mask, *_: x.index_put_((mask,), torch.tensor(0.0)), False),
    "values through a mask": (lambda x, mask, _, nothing: x.__setitem__(mask, nothing), True),
}
FREE = {
    "add": lambda x: x + 1,
    "pinned, non_blocking": lambda x: torch.zeros(100, pin_memory=True).to("cuda", non_blocking=True),
    "back, non_blocking": lambda x: x.to("cpu", non_blocking=True),
    "copy_ to pinned": lambda x: torch.zeros(100, pin_memory=True).copy_(x, non_blocking=True),
    "zeros": lambda x: torch.zeros(100, device="cuda"),
    "view": lambda x: x.view(10, 10).shape,
}


@pytest.fixture
def busy(gpu):
    """A GPU with 50 milliseconds of work ahead, and something of 100 numbers on it."""
    x = torch.ones(100, device="cuda")
    torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    sleep(50)
    return x


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_for_the_work_before_it(gpu, busy, name):
    assert host(gpu, lambda: WAITS[name](busy))[0] > 0.049


@pytest.mark.parametrize("name", VALUES)
def test_what_waits_for_values(name):
    call, waits = VALUES[name]
    with VirtualGPU("T4") as gpu:
        x, mask = torch.ones(100, device="cuda"), torch.zeros(100, dtype=torch.bool, device="cuda")
        classes, nothing = torch.tensor([0, 2], device="cuda"), torch.zeros(0, device="cuda")
        sleep(50)
        assert (host(gpu, lambda: call(x, mask, classes, nothing))[0] > 0.049) == waits


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait(gpu, busy, name):
    assert host(gpu, lambda: FREE[name](busy))[0] < 0.001


def test_a_copy_back_that_does_not_block_is_pinned(gpu):
    out = torch.ones(100, device="cuda").to("cpu", non_blocking=True)
    assert out.is_pinned()
    assert not torch.ones(100, device="cuda").to("cpu").is_pinned()


def test_pinning_takes_the_host_time_by_its_size(gpu):
    small, large = (host(gpu, torch.zeros(n).pin_memory)[0] for n in (1 << 10, 1 << 24))
    assert large == pytest.approx(gpu.rates.malloc_us * US + (1 << 26) / (gpu.rates.pin_gbps * 1e9))
    assert gpu.rates.malloc_us * US < small < large / 100


def test_pinned_memory_that_is_free_again_is_not_page_locked_anew(gpu):
    source = torch.zeros(1 << 20)
    first, held = host(gpu, source.pin_memory)
    second, other = host(gpu, source.pin_memory)
    del held
    third, _ = host(gpu, source[: (1 << 20) - 5].pin_memory)  # of the same power of two
    assert first == second > 4 * third
    assert third == pytest.approx((4 * ((1 << 20) - 5)) / (gpu.rates.host_copy_gbps * 1e9))
    del other
    gpu.pinned.empty()
    assert host(gpu, source.pin_memory)[0] == pytest.approx(first)
    assert host(gpu, lambda: torch.empty(0, pin_memory=True))[0] == 0


@pytest.mark.skipif(not hasattr(torch.accelerator, "empty_host_cache"), reason="torch 2.12 has it first")
def test_pinned_memory_can_be_given_back(gpu):
    source = torch.zeros(1 << 20)
    first, _ = host(gpu, source.pin_memory)
    torch.accelerator.empty_host_cache()
    assert host(gpu, source.pin_memory)[0] == pytest.approx(first)


def test_copies_on_a_side_stream_hide_behind_kernels(gpu):
    source = torch.zeros(3_000_000, dtype=torch.float32, pin_memory=True)  # a millisecond over PCIe 3
    target = torch.zeros(3_000_000, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()

    def both(stream):
        start, end = events()
        start.record()
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        sleep(2)
        torch.cuda.current_stream().wait_stream(stream)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    assert both(side) == pytest.approx(2, abs=0.05)
    assert both(torch.cuda.current_stream()) == pytest.approx(3, abs=0.1)


def test_a_stream_waits_for_an_event_of_another_gpu(gpu):
    done = torch.cuda.Event()
    with torch.cuda.device(1):
        sleep(10)
        done.record()
    torch.cuda.current_stream().wait_event(done)
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    assert host(gpu, lambda: torch.cuda.synchronize(0))[0] > 0.009


def test_a_copy_between_gpus_waits_for_both(gpu):
    x = torch.zeros(1 << 20, device="cuda:0")
    torch.cuda.synchronize()
    sleep(10)
    x.to("cuda:1", non_blocking=True)
    assert host(gpu, lambda: torch.cuda.synchronize(1))[0] > 0.009


def test_only_what_goes_to_it_is_waited_for(gpu):
    sleep(10)
    assert host(gpu, lambda: torch.cuda.synchronize(1))[0] < 0.001


def test_launch_blocking_waits_for_every_kernel(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with VirtualGPU("V100-16", compute=False) as gpu:
        a = torch.zeros(4096, 4096, device="cuda")
        assert host(gpu, lambda: a @ a)[0] > 0.01


def test_taking_memory_from_the_driver_takes_the_host_time(gpu):
    def step():
        return torch.empty(100 << 20, dtype=torch.uint8, device="cuda")

    first, second = host(gpu, step)[0], host(gpu, step)[0]
    torch.cuda.empty_cache()
    assert first == pytest.approx(gpu.rates.malloc_us * US)
    assert second == 0
    assert host(gpu, step)[0] == pytest.approx(first)


@pytest.mark.parametrize("name", ["item", "cpu", "copy_", "from the host", "stream"])
def test_hidden_waits_are_told_where_that_is_asked_for(gpu, busy, name):
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAITS[name](busy)
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        WAITS[name](busy)
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not_told(gpu, busy, name):
    torch.cuda.set_sync_debug_mode("error")
    FREE[name](busy)
    torch.cuda.synchronize()


def test_repeats_whose_sum_is_said_are_not_waited_for(gpu):
    """As on an H200: the shape does not depend on values then."""
    x, repeats = torch.ones(3, device="cuda"), torch.tensor([1, 2, 3]).cuda()
    torch.cuda.set_sync_debug_mode("error")
    assert torch.repeat_interleave(x, repeats, output_size=6).shape == (6,)
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        torch.repeat_interleave(x, repeats)
    torch.cuda.set_sync_debug_mode("default")


def test_counting_the_hosts_time_shows_a_slow_pipeline():
    def step(counts):
        with VirtualGPU("T4", counts_host=counts):
            start, end = events()
            start.record()
            time.sleep(0.02)
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end)

    assert step(False) < 1
    assert step(True) >= 20


def test_a_timeline_has_the_kernels_and_the_waits(gpu, tmp_path):
    a = torch.zeros(256, 256, device="cuda")
    with gpu.timeline() as timeline:
        (a @ a).relu()
        a.cpu()
    assert [s.name for s in timeline.spans if s.where == "kernels"] == ["mm", "relu"]
    assert any(s.where == "to host" for s in timeline.spans)
    assert "2 kernels" in repr(timeline)
    assert "(virtual)" in repr(timeline)
    path = timeline.save(tmp_path / "trace.json")
    assert {e["name"] for e in json.loads(path.read_text())["traceEvents"]} >= {"mm", "relu"}
    with pytest.raises(FileNotFoundError, match=r"path is .*nowhere"):
        timeline.save(tmp_path / "nowhere" / "trace.json")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_training_step_of_a_larger_model_takes_longer_and_a_faster_gpu_shorter():
    def step(name, width):
        with VirtualGPU(name, compute=False):
            model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).cuda()
            x = torch.zeros(4096, width, device="cuda")
            model(x).sum().backward()
            start, end = events()
            start.record()
            model(x).sum().backward()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end)

    assert step("T4", 2048) > step("T4", 1024) > step("L4", 1024) > step("H100", 1024)


def test_an_index_of_the_host_is_brought_over_and_waited_for(gpu):
    table, on_gpu = torch.zeros(4096, 1024, device="cuda"), torch.tensor([1, 2], device="cuda")
    sleep(1)
    assert host(gpu, lambda: table[on_gpu])[0] < 20 * US
    assert host(gpu, lambda: table[7])[0] < 20 * US
    assert host(gpu, lambda: table[[1, 2]])[0] > 900 * US  # it waits for the work before it
    sleep(1)
    assert host(gpu, lambda: table[torch.tensor([1, 2])])[0] > 900 * US


def test_a_mask_of_the_host_is_looked_up_there():
    with VirtualGPU("T4") as gpu:
        table, mask = torch.zeros(1000, device="cuda"), torch.zeros(1000, dtype=torch.bool)
        torch.cuda.synchronize()
        before = gpu.clock.devices[0].copied
        assert table[mask].numel() == 0
        assert gpu.clock.devices[0].copied == before
        mask[:10] = True
        assert table[mask].numel() == 10
        assert gpu.clock.devices[0].copied == before + 80


@pytest.mark.parametrize("product", ["mm", "addmm", "bmm", "baddbmm"])
def test_a_product_into_a_given_tensor_takes_as_long_as_a_new_one(gpu, product):
    batch = (2,) if product.endswith("bmm") else ()
    operands = [torch.zeros(*batch, 512, 512, device="cuda") for _ in range(3 if "add" in product else 2)]
    out, busy = torch.empty(*batch, 512, 512, device="cuda"), []
    for options in ({}, {"out": out}):
        before = gpu.clock.busy()
        getattr(torch, product)(*operands, **options)
        busy.append(gpu.clock.busy() - before)
    assert busy[0] == pytest.approx(busy[1])
    assert busy[0] > 40 * US


def test_only_pinned_memory_that_goes_as_it_is_crosses_without_the_host(gpu):
    pinned = torch.zeros(2048, 1024).pin_memory()
    for send, straight in (
        (lambda: pinned.to("cuda", non_blocking=True), True),
        (lambda: pinned.t().to("cuda", non_blocking=True), True),  # the same block of memory, transposed there too
        (lambda: pinned[:1000].to("cuda", non_blocking=True), True),
        (lambda: pinned[:, :1000].to("cuda", non_blocking=True), False),
        (lambda: pinned.to("cuda", torch.float16, non_blocking=True), True),  # changed on the GPU
    ):
        torch.cuda.synchronize()
        assert (host(gpu, send)[0] < 200 * US) == straight  # 100 of them for new memory


def test_staging_in_the_driver_is_no_wait_that_pytorch_tells(gpu):
    torch.cuda.set_sync_debug_mode("error")
    torch.zeros(1000).to("cuda", non_blocking=True)
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        torch.zeros(1000).to("cuda")


def test_pinning_takes_time_in_every_thread_but_the_loaders(gpu):
    def pinned_in(name):
        thread = threading.Thread(target=lambda: torch.zeros(1 << 20).pin_memory(), name=name)
        before = gpu.clock.host
        thread.start()
        thread.join()
        return gpu.clock.host - before

    assert pinned_in("a worker") > 100 * US
    assert pinned_in("Thread-7 (_pin_memory_loop)") == 0


@torch.library.custom_op("gpulab_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, device=x.device).copy_(x) * 2


def test_an_operation_written_in_python_makes_its_tensors_on_the_gpu(gpu):
    before = torch.cuda.memory_allocated()
    out = twice(torch.ones(1000, device="cuda"))
    assert out.device.type == "cuda"
    assert torch.cuda.memory_allocated() - before == 4096
    assert twice(torch.ones(2)).tolist() == [2, 2]


def test_a_copy_that_changes_the_dtype_does_it_on_the_host_or_with_non_blocking_on_the_gpu(gpu):
    images = torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()

    def crossed(call):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, memory = gpu.clock.devices[0].copied, torch.cuda.memory_allocated()
        result = call()
        peak = torch.cuda.max_memory_allocated() - memory
        return result, gpu.clock.devices[0].copied - before, peak

    there, sent, peak = crossed(lambda: images.to("cuda", torch.float32))
    assert (sent, peak) == (4 << 20, 4 << 20)
    _, sent, peak = crossed(lambda: images.to("cuda", torch.float32, non_blocking=True))
    assert (sent, peak) == (1 << 20, 5 << 20)
    _, sent, peak = crossed(lambda: there.to("cpu", torch.uint8))
    assert (sent, peak) == (4 << 20, 0)
    _, sent, peak = crossed(lambda: there.to("cpu", torch.uint8, non_blocking=True))
    assert (sent, peak) == (1 << 20, 1 << 20)


def test_timeit_shows_the_launch_and_not_what_the_values_take_here():
    with VirtualGPU("T4") as gpu:
        gpu.clock.ignores_own = True
        a = torch.zeros(2048, 2048, device="cuda")
        kept = []
        timeit.timeit(lambda: kept.append(a @ a), number=1)  # the first one loads cuBLAS
        assert timeit.Timer(lambda: kept.append(a @ a)).timeit(3) < 1000 * US  # the values take longer here
        assert timeit.timeit(lambda: kept.append(a @ a), number=3) < 1000 * US
        assert timeit.timeit(torch.cuda.synchronize, number=1) > 300 * US


def test_a_kernels_bytes_are_those_it_moves_to_and_from_memory():
    with VirtualGPU("A100-80", compute=False) as gpu:
        x = torch.empty(2**26, device="cuda")  # 256 MiB, more than any cache
        with gpu.timeline() as timeline:
            y = x + x.neg()
            z = y.clone()
        moved = {span.name: span.nbytes for span in timeline.spans if span.where == "kernels"}
        assert moved["neg"] == 2 * x.nbytes
        assert moved["add.Tensor"] == 3 * x.nbytes
        assert sum(moved.values()) == 7 * x.nbytes
        rate = {span.name: span.nbytes / span.seconds for span in timeline.spans if span.where == "kernels"}
        assert max(rate.values()) < 2039e9
        assert z.shape == x.shape
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x.neg()
        with gpu.timeline() as timeline:
            graph.replay()
        assert [span.nbytes for span in timeline.spans if span.where == "kernels"] == [2 * x.nbytes]


@pytest.mark.parametrize(("priority", "waits"), [(0, True), (-1, False)])
def test_a_stream_of_high_priority_does_not_wait_for_what_is_queued(gpu, priority, waits):
    a, small = (torch.empty(size, device="cuda") for size in (1 << 28, 1 << 20))
    side = torch.cuda.Stream(priority=priority)
    torch.cuda.synchronize()
    with gpu.timeline() as timeline:
        for _ in range(20):
            a.mul_(2)
        with torch.cuda.stream(side):
            small.mul_(2)
        torch.cuda.synchronize()
    kernels = [span for span in timeline.spans if span.where == "kernels"]
    ends = [span.start + span.seconds for span in kernels]
    assert (ends[-1] > ends[-2]) is waits
