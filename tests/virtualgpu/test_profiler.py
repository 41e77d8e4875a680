"""PyTorch's profiler on the virtual GPU: its kernels are the clock's, and nothing of ours shows."""

import gzip
import json
import time
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler

import gpulab

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


class Net(nn.Module):
    """A convolution, a norm, attention and a head."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        return self.head(self.encoder(x).mean(1))


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with gpulab.VirtualGPU("A100-40", compute=request.param) as scope:
        yield scope


def training():
    """A step of AdamW in bf16, as a function; it has run once."""
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 3, 8, 8).cuda(), torch.arange(4).cuda()

    def step():
        with record_function("forward"), torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    return step


def kernels_of(timeline):
    return [s for s in timeline.spans if s.where != "host"]


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def trace_of(profiler, path):
    profiler.export_chrome_trace(str(path))
    return read(path)


def of(events, *kinds):
    return [e for e in events if e["ph"] == "X" and e.get("cat") in kinds]


def test_the_kernels_are_the_clocks(gpu, tmp_path):
    step = training()
    with gpu.timeline() as timeline, profile(activities=BOTH) as profiler:
        step()
    wanted = sorted((s.name, round(s.seconds * 1e6, 3)) for s in kernels_of(timeline))
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert sorted((e.name, round(e.time_range.elapsed_us(), 3)) for e in events) == wanted
    in_file = of(trace_of(profiler, tmp_path / "trace.json"), "kernel", "gpu_memcpy")
    assert sorted((e["name"], round(e["dur"], 3)) for e in in_file) == wanted
    assert len(wanted) > 100


def test_the_time_of_each_kernel_stands_at_the_operation_that_launched_it(gpu):
    step = training()
    with gpu.timeline() as timeline, profile(activities=BOTH) as profiler:
        step()
    rows = {row.key: row for row in profiler.key_averages()}
    operations = sum(row.self_device_time_total for key, row in rows.items() if "::" in key)
    assert operations == pytest.approx(sum(s.seconds for s in kernels_of(timeline)) * 1e6)
    spans = kernels_of(timeline)
    with_bias = [s for before, s in pairwise([None, *spans]) if s.name == "convolution" or _adds_the_bias(before, s)]
    convolved = sum(s.seconds for s in with_bias) * 1e6
    assert len(with_bias) == 2
    assert rows["aten::convolution"].device_time_total == pytest.approx(convolved, rel=1e-6)
    assert rows["forward"].device_time_total > rows["aten::linear"].device_time_total > 0
    assert rows["cudaLaunchKernel"].count == len([s for s in kernels_of(timeline) if s.where == "kernels"])


def _adds_the_bias(before, span):
    return span.name == "add_" and before is not None and before.name == "convolution"


def test_nothing_of_ours_shows(gpu, tmp_path):
    step = training()
    with profile(activities=BOTH, with_stack=True, record_shapes=True) as profiler:
        step()
    package = str(gpulab.__path__[0])
    for event in profiler.events():
        assert "gpulab" not in event.name.replace("virtualgpu/test_", "").replace("virtualgpu", "gpulab")
        assert "PythonDispatchMode" not in event.name
        assert not [line for line in event.stack if package in line]
    for event in trace_of(profiler, tmp_path / "trace.json"):
        assert "gpulab" not in event["name"].replace("virtualgpu/test_", "").replace("virtualgpu", "gpulab")
        assert package not in event["name"]
    names = {row.key for row in profiler.key_averages()}
    assert {"aten::linear", "aten::addmm", "aten::conv2d", "AddmmBackward0"} <= names
    # What computes the values on this machine: no CUDA kernel is launched from these.
    assert not names & {"aten::mkldnn_convolution", "aten::_slow_conv2d_forward"}


def test_an_operation_takes_its_launches_and_what_the_host_waits_for(gpu):
    x = torch.randn(2000, 2000, device="cuda")
    x @ x  # the first call of a library takes longer
    with gpu.timeline() as timeline, profile(activities=BOTH) as profiler:
        y = x @ x
        torch.cuda.synchronize()
        y += 1
    launch = {s.name: s.seconds for s in timeline.spans if s.where == "host"}
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::mm"].cpu_time_total == pytest.approx(launch["mm"] * 1e6, rel=1e-3)
    assert rows["aten::add_"].cpu_time_total == pytest.approx(launch["add_.Tensor"] * 1e6, rel=1e-3)


def test_in_a_trace_a_kernel_comes_after_its_launch_within_the_operation(gpu, tmp_path):
    step = training()
    with profile(activities=BOTH) as profiler:
        step()
        torch.cuda.synchronize()
    events = trace_of(profiler, tmp_path / "trace.json")
    launches, kernels = of(events, "cuda_runtime"), of(events, "kernel", "gpu_memcpy")
    launches = [e for e in launches if not e["name"].endswith("Synchronize")]
    assert len(launches) == len(kernels)
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == len(kernels)
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"] + 1e-6
    for launch in launches:
        around = [e for e in of(events, "cpu_op") if e["ts"] - 1e-6 <= launch["ts"] <= e["ts"] + e["dur"] + 1e-6]
        assert around
    assert not [e for e in of(events, "cpu_op", "user_annotation", "kernel", "gpu_memcpy") if e["dur"] < 0]


def test_a_schedule_records_its_steps_and_hands_over_a_trace(gpu, tmp_path):
    step, counts = training(), []
    with gpu.timeline() as timeline:
        step()
    once = len(kernels_of(timeline))

    def ready(profiler):
        counts.append(len(of(trace_of(profiler, tmp_path / "trace.json"), "kernel", "gpu_memcpy")))

    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(9):
            step()
            profiler.step()
    assert counts == [2 * once, 2 * once]


def test_events_of_several_cycles_are_added_up(gpu):
    step = training()
    with gpu.timeline() as timeline:
        step()
    plan = schedule(wait=1, warmup=0, active=1, repeat=2)
    with profile(activities=BOTH, schedule=plan, acc_events=True) as profiler:
        for _ in range(4):
            step()
            profiler.step()
    kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 2 * len(kernels_of(timeline))


def test_the_handler_of_tensorboard_writes_its_file(gpu, tmp_path):
    step = training()
    with profile(activities=BOTH, on_trace_ready=tensorboard_trace_handler(str(tmp_path), use_gzip=True)):
        step()
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(".pt.trace.json.gz")
    assert of(read(file), "kernel")


def test_it_is_read_after_the_scopes_end_too(tmp_path):
    with gpulab.VirtualGPU("T4"):
        step = training()
        with profile(activities=BOTH) as profiler:
            step()
    assert "Self CUDA" in profiler.key_averages().table()
    assert of(trace_of(profiler, tmp_path / "trace.json.gz"), "kernel")


def test_the_kernel_of_a_collective_lasts_from_its_own_rank_s_arrival(gpu, tmp_path):
    """NCCL's spins until the last rank has come: long on an early rank, short on the last one."""
    timer = gpu.device(None).timer
    with profile(activities=BOTH) as profiler:
        for name, late in (("early", 10e-3), ("last", 0.0)):
            arrived = gpu.clock.now()
            timer.collective(7, arrived, arrived + late, 2e-3, name, 8_000_000)
    lasted = {e["name"]: e["dur"] for e in of(trace_of(profiler, tmp_path / "trace.json"), "kernel")}
    assert lasted == pytest.approx({"early": 12_000, "last": 2_000})
    table = {row.key: row.self_device_time_total for row in profiler.key_averages() if row.key in lasted}
    assert table == pytest.approx(lasted)


def test_an_exception_passes_through_and_the_clock_is_as_it_was(gpu):
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError, match="must match"), profile(activities=BOTH) as profiler:
        x + torch.ones(7, device="cuda")
    assert gpu.clock.record is None
    assert "enter" not in vars(gpu.clock)
    with profile(activities=BOTH) as profiler:
        x + 1
    assert [row.count for row in profiler.key_averages() if row.key == "cudaLaunchKernel"] == [1]


@pytest.mark.parametrize("counts", [True, False])
def test_the_hosts_own_time_is_in_a_trace_where_the_scope_counts_it(counts, tmp_path):
    with gpulab.VirtualGPU("T4", counts_host=counts):
        x = torch.randn(8, device="cuda")
        with profile(activities=BOTH) as profiler:
            x + 1
            with record_function("the next batch"):
                time.sleep(0.05)
            x + 1
    first, second = sorted(e["ts"] for e in of(trace_of(profiler, tmp_path / "trace.json"), "kernel"))
    assert (second - first > 50_000) == counts
    (row,) = [row for row in profiler.key_averages() if row.key == "the next batch"]
    assert row.cpu_time_total > 25_000  # the profiler turns cycles into time, on a busy machine off by a seventh


def test_columns_of_memory_are_said_to_be_this_machines():
    warned = pytest.warns(UserWarning, match="columns of memory are those of this machine")
    with gpulab.VirtualGPU("T4"), warned, profile(activities=BOTH, profile_memory=True):
        torch.ones(8, device="cuda")


def test_without_device_activity_it_is_pytorchs_own():
    with gpulab.VirtualGPU("T4"), profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(8, device="cuda")
    assert "Self CUDA" not in profiler.key_averages().table()


def test_nvtx_ranges_stand_in_the_timeline_and_not_among_the_profilers_events(gpu, tmp_path):
    x = torch.randn(500, 500, device="cuda")
    x @ x
    with gpu.timeline() as timeline, profile(activities=BOTH) as profiler:
        number = torch.cuda.nvtx.range_start("two steps")
        for _ in range(2):
            with torch.cuda.nvtx.range("step {}", "of two"):
                y = x @ x
                torch.cuda.synchronize()
        torch.cuda.nvtx.range_end(number)
        torch.cuda.nvtx.mark("done")
    ranges = {(s.name, s.start): s.start + s.seconds for s in timeline.spans if s.where == "range"}
    names = [name for name, _ in ranges]
    assert sorted(names) == ["done", "step of two", "step of two", "two steps"]
    (whole,) = [(start, end) for (name, start), end in ranges.items() if name == "two steps"]
    assert whole == (min(start for _, start in ranges), max(ranges.values()))
    launches = [s for s in timeline.spans if s.where == "host" and s.name == "mm"]
    steps = sorted((start, end) for (name, start), end in ranges.items() if name.startswith("step"))
    assert [begin <= launch.start < end for (begin, end), launch in zip(steps, launches, strict=True)] == [True, True]
    assert not [e for e in profiler.events() if "step" in e.name]
    lanes = json.loads(timeline.save(tmp_path / "t.json").read_text())["traceEvents"]
    assert "NVTX ranges (virtual)" in [e["args"]["name"] for e in lanes if e["name"] == "thread_name"]
    assert y.shape == (500, 500)


def test_nvtx_counts_the_depth_of_its_ranges(gpu):
    assert [torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_push("b")] == [0, 1]
    assert [torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop()] == [1, 0, -2]
    torch.cuda.nvtx.range_end(7)


def test_traces_of_two_ranks_become_one_and_keep_their_arrows_apart(gpu, tmp_path):
    step, files = training(), [tmp_path / "0.json", tmp_path / "1.json"]
    for file in files:
        with profile(activities=BOTH) as profiler:
            step()
        profiler.export_chrome_trace(str(file))
    events = read(gpulab.timing.merge_traces(files, tmp_path / "both.json"))
    ends = [e["id"] for e in events if e["ph"] == "f"]
    assert len(ends) == len(set(ends)) == sum(len(of(read(file), "kernel", "gpu_memcpy")) for file in files)
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"rank 0: virtual cuda:0", "rank 1: virtual cuda:0"} <= processes


def test_waits_bear_the_names_of_cudas_calls(gpu, tmp_path):
    x, event = torch.randn(1500, 1500).cuda(), torch.cuda.Event()
    x @ x
    with profile(activities=BOTH) as profiler:
        torch.cuda.synchronize()
        x @ x
        torch.cuda.current_stream().synchronize()
        x @ x
        event.record()
        event.synchronize()
        (x @ x).cpu()
        torch.cuda.synchronize()
    rows = {row.key: row for row in profiler.key_averages() if "Synchronize" in row.key}
    calls = {key: row.count for key, row in rows.items()}
    # One of the device's is the profiler's own, at its end.
    assert calls == {"cudaDeviceSynchronize": 3, "cudaStreamSynchronize": 2, "cudaEventSynchronize": 1}
    product = next(row for row in profiler.key_averages() if row.key == "mm")
    assert rows["cudaEventSynchronize"].cpu_time_total == pytest.approx(product.self_device_time_total / 3, rel=0.1)
    events = trace_of(profiler, tmp_path / "trace.json")
    waits = [e for e in of(events, "cuda_runtime") if e["name"].endswith("Synchronize")]
    assert len(waits) == 6
    ends = [e["ts"] + e["dur"] for e in of(events, "kernel") if e["name"] == "mm"]
    assert [e["ts"] + e["dur"] for e in waits if e["name"] == "cudaEventSynchronize"] == pytest.approx(
        [ends[1]], rel=1e-6
    )


def test_the_gpu_s_activity_alone_shows_calls_of_cuda_and_kernels_as_a_real_one(gpu, tmp_path):
    """An H200 shows `cudaLaunchKernel` and kernels then, and neither operations nor named ranges."""
    step = training()
    with profile(activities=BOTH) as both:
        step()
    with profile(activities=[ProfilerActivity.CUDA]) as alone:
        step()
    host = {event.name for event in alone.events() if event.device_type == torch.autograd.DeviceType.CPU}
    assert "cudaLaunchKernel" in host
    assert not [name for name in host if not name.startswith("cuda")]
    kernels = [
        sorted(event.name for event in one.events() if event.device_type == torch.autograd.DeviceType.CUDA)
        for one in (both, alone)
    ]
    assert kernels[0] == kernels[1] != []
    events = trace_of(alone, tmp_path / "trace.json")
    assert not of(events, "cpu_op", "user_annotation")
    assert of(events, "cuda_runtime")
    assert sorted(e["name"] for e in of(events, "kernel", "gpu_memcpy")) == kernels[0]
