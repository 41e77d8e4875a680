"""What operations cost: PyTorch's own count of their arithmetic, and the bytes that they move."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpulab import VirtualGPU
from virtualgpu.clock import limits, rates

US = 1e-6


@pytest.fixture(params=["T4", "A100-80"])
def gpu(request):
    with VirtualGPU(request.param, compute=False) as gpu:
        yield gpu


@contextlib.contextmanager
def tf32(of, allowed):
    before, of.allow_tf32 = of.allow_tf32, allowed
    try:
        yield
    finally:
        of.allow_tf32 = before


def kernels_of(gpu, call):
    with gpu.timeline() as timeline:
        call()
    return [span for span in timeline.spans if span.where == "kernels"]


def make(*shape, dtype=torch.float32, grad=False):
    return torch.zeros(*shape, dtype=dtype, device="cuda", requires_grad=grad)


def conv(dimensions, transposed=False, **options):
    kind = f"Conv{'Transpose' if transposed else ''}{dimensions}d"
    layer = getattr(nn, kind)(6, 8, 3, padding=1, device="cuda", **options)
    x = make(4, 6, *([12] * dimensions), grad=True)
    return lambda: layer(x).sum().backward()


def attention(backend, dtype, causal):
    q, k, v = (make(2, 4, 64, 32, dtype=dtype, grad=True) for _ in range(3))

    def call():
        with nn.attention.sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

    return call


COUNTED = {
    "mm": lambda: lambda: make(30, 50) @ make(50, 70),
    "addmm": lambda: lambda: nn.Linear(50, 70, device="cuda")(make(30, 50)).sum().backward(),
    "bmm": lambda: lambda: make(5, 30, 50) @ make(5, 50, 70),
    "baddbmm": lambda: lambda: torch.baddbmm(make(5, 30, 70), make(5, 30, 50), make(5, 50, 70)),
    "conv1d": lambda: conv(1),
    "conv2d": lambda: conv(2),
    "conv3d": lambda: conv(3),
    "conv2d, stride 2": lambda: conv(2, stride=2),
    "conv2d, transposed": lambda: conv(2, transposed=True, stride=2),
    "attention": lambda: attention(nn.attention.SDPBackend.EFFICIENT_ATTENTION, torch.float32, False),
}


@pytest.mark.parametrize("name", COUNTED)
def test_arithmetic_is_what_pytorch_counts(gpu, name):
    call = COUNTED[name]()
    before = gpu.clock.flops()
    call()
    counted = gpu.clock.flops() - before
    with FlopCounterMode(display=False) as counter:
        call()
    assert counted == counter.get_total_flops() > 0


def test_arithmetic_of_a_grouped_convolution_is_three_times_that_of_its_forward_pass(gpu):
    # PyTorch counts the gradient of the weights as if there were no groups.
    call = conv(2, groups=2)
    before = gpu.clock.flops()
    call()
    assert gpu.clock.flops() - before == 3 * (2 * 4 * 8 * 12 * 12 * (6 // 2) * 9)


def test_causal_attention_counts_half():
    with VirtualGPU("A100-80", compute=False) as gpu:
        done = []
        for causal in (False, True):
            before = gpu.clock.flops()
            attention(nn.attention.SDPBackend.FLASH_ATTENTION, torch.float16, causal)()
            done.append(gpu.clock.flops() - before)
    assert done[1] == done[0] / 2


def flush(gpu):
    make(2 * gpu.spec.l2_bytes // 4).zero_()


def moved(gpu, call):
    """Bytes that the one kernel of `call` moves, by its time; nothing is in L2 before."""
    flush(gpu)
    (kernel,) = kernels_of(gpu, call)
    assert kernel.flops == 0
    return (kernel.seconds - gpu.rates.kernel_us * US) * gpu.rates.memory_gbps * 1e9


def test_memory_traffic(gpu):
    n = 1 << 24
    a, b = make(n), make(n)
    half, table, ids = make(n, dtype=torch.float16), make(1 << 12, 1 << 8), make(100, dtype=torch.long)
    assert moved(gpu, lambda: a + b) == pytest.approx(12 * n)
    assert moved(gpu, lambda: a.add_(b)) == pytest.approx(12 * n)
    assert moved(gpu, lambda: a.relu()) == pytest.approx(8 * n)
    assert moved(gpu, lambda: a.half()) == pytest.approx(6 * n)
    assert moved(gpu, lambda: half * 2) == pytest.approx(4 * n)
    assert moved(gpu, lambda: a.zero_()) == pytest.approx(4 * n)
    assert moved(gpu, lambda: torch.zeros(n, device="cuda")) == pytest.approx(4 * n)
    assert moved(gpu, lambda: a.clone()) == pytest.approx(8 * n)
    assert moved(gpu, lambda: torch.cat([a, b])) == pytest.approx(16 * n)
    uneven = -(-320 // gpu.spec.sms) * gpu.spec.sms / 320  # blocks of a kernel for lists
    assert moved(gpu, lambda: torch._foreach_add_([a, b], [b, a])) == pytest.approx(24 * n * uneven)
    assert moved(gpu, lambda: F.embedding(ids, table)) == pytest.approx(2 * 100 * 1024 + 800)  # not the whole table
    assert moved(gpu, lambda: table[ids]) == pytest.approx(2 * 100 * 1024 + 800)


def test_a_normalisation_reads_twice_where_it_must(gpu):
    x, grad = make(64, 16, 128, 128), make(64, 16, 128, 128)
    n, small = x.nbytes, {"rel": 0.01}  # the statistics
    norm = nn.BatchNorm2d(16, device="cuda")
    assert moved(gpu, lambda: F.batch_norm(x, norm.running_mean, norm.running_var)) == pytest.approx(2 * n, **small)
    layer, rows = nn.LayerNorm(128, device="cuda"), x.requires_grad_()
    beside = limits.layer_norm(gpu.rates, rows.numel() // 128) * gpu.rates.memory_rate
    assert moved(gpu, lambda: layer(rows)) == pytest.approx(2 * n + beside, **small)  # a row is short: the cache has it
    out = norm(rows)
    flush(gpu)
    by_name = {kernel.name: kernel.seconds for kernel in kernels_of(gpu, lambda: out.backward(grad))}
    backward = (by_name["native_batch_norm_backward"] - gpu.rates.kernel_s) * gpu.rates.memory_rate
    assert backward == pytest.approx(5 * n, **small)


def test_what_was_touched_a_moment_ago_is_read_from_l2(gpu):
    n = int(gpu.rates.l2_holds) // 16
    a, b = make(n), make(n)
    flush(gpu)
    cold, warm = (kernels_of(gpu, lambda: a + b)[0].seconds - gpu.rates.kernel_s for _ in range(2))
    assert cold == pytest.approx(12 * n / gpu.rates.memory_rate)
    assert 8 * n / gpu.rates.l2_rate < warm < 0.7 * cold
    flush(gpu)
    assert kernels_of(gpu, lambda: a + b)[0].seconds - gpu.rates.kernel_s > 0.6 * cold


def test_in_a_tensor_larger_than_l2_nothing_is_found_again(gpu):
    a = make(gpu.spec.l2_bytes)
    times = [kernels_of(gpu, lambda: a.relu_())[0].seconds for _ in range(3)]
    assert times[1] == times[2] == pytest.approx(2 * a.nbytes / gpu.rates.memory_rate + gpu.rates.kernel_s)


def test_dropout_does_nothing_in_inference(gpu):
    layer, x = nn.Dropout(0.5).eval(), make(1 << 20)
    with torch.inference_mode():
        assert kernels_of(gpu, lambda: layer(x)) == []


def test_the_first_call_of_a_library_takes_longer(gpu):
    a, layer, images = make(64, 64), nn.Conv2d(3, 8, 3, device="cuda"), make(1, 3, 8, 8)
    for library, call in (("cublas", lambda: a @ a), ("cudnn", lambda: layer(images))):
        took = []
        for _ in range(3):
            before = gpu.clock.host
            call()
            took.append(gpu.clock.host - before)
        assert took[1] == pytest.approx(took[2])
        assert took[0] - took[1] == pytest.approx(gpu.rates.first_ms[library] * 1e-3, rel=0.01)


@pytest.mark.parametrize(("width", "slower"), [(4096, False), (4097, True)])
def test_a_product_with_rows_of_an_odd_width_is_slower(gpu, width, slower):
    gpu.devices[0].timer.budget = None
    a, even, b = (
        make(2048, 1024, dtype=torch.float16),
        make(1024, 4096, dtype=torch.float16),
        make(1024, width, dtype=torch.float16),
    )
    usual, here = (kernels_of(gpu, lambda x=x: a @ x)[0].seconds for x in (even, b))
    assert (here > 1.4 * usual) == slower


def test_views_and_uninitialised_memory_take_no_kernel(gpu):
    a = make(64, 64)
    assert kernels_of(gpu, lambda: (a.view(-1), a.t(), a[0], a.detach(), torch.empty(5, device="cuda"))) == []


def test_nothing_takes_no_time(gpu):
    assert kernels_of(gpu, lambda: (make(0) + make(0), torch.zeros(0, device="cuda"))) == []


@pytest.mark.parametrize(
    ("precision", "allowed", "dtype"),
    [("fp32", False, torch.float32), ("tf32", True, torch.float32), ("fp16", False, torch.float16),
     ("bf16", False, torch.bfloat16), ("fp64", False, torch.float64)],
)  # fmt: skip
def test_a_large_product_runs_at_the_rate_of_its_precision(gpu, precision, allowed, dtype):
    gpu.devices[0].timer.budget = None  # for a moment
    a = make(8192, 8192, dtype=dtype)
    with tf32(torch.backends.cuda.matmul, allowed):
        (kernel,) = kernels_of(gpu, lambda: a @ a)
    assert kernel.flops / kernel.seconds == pytest.approx(gpu.rates.tflops[precision] * 1e12, rel=0.05)


def test_tensor_cores_copy_images_that_have_not_channels_last():
    seconds = {}
    with VirtualGPU("A100-80", compute=False) as gpu, tf32(torch.backends.cudnn, False):
        for dtype in (torch.float32, torch.float16):
            layer = nn.Conv2d(256, 256, 3, padding=1, device="cuda", dtype=dtype)
            for form in (torch.contiguous_format, torch.channels_last):
                x = make(32, 256, 56, 56, dtype=dtype).to(memory_format=form)
                weights = layer.to(memory_format=form)
                (kernel,) = [k for k in kernels_of(gpu, lambda x=x, w=weights: w(x)) if "conv" in k.name]
                seconds[dtype, form] = kernel.seconds
    assert seconds[torch.float32, torch.contiguous_format] == seconds[torch.float32, torch.channels_last]
    assert seconds[torch.float16, torch.contiguous_format] > 1.1 * seconds[torch.float16, torch.channels_last]


def test_a_recurrent_layer_pays_for_every_step():
    with VirtualGPU("T4", compute=False) as gpu:
        layer = nn.LSTM(64, 64, device="cuda")
        took = [
            next(k.seconds for k in kernels_of(gpu, lambda t=t: layer(make(t, 8, 64))) if "rnn" in k.name)
            for t in (10, 100)
        ]
    assert took[1] > 5 * took[0]


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_the_same_with_values_and_with_shapes_only(form):
    def step(model, x):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).float().square().mean()
        loss.backward()

    times = []
    for compute in (True, False):
        with VirtualGPU("T4", compute=compute) as gpu:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
            model.to("cuda", memory_format=form)
            x = torch.zeros(4, 3, 8, 8, device="cuda").to(memory_format=form)
            before = gpu.clock.kernels()
            step(model, x)
            times.append((gpu.clock.kernels() - before, gpu.clock.busy(), gpu.clock.now(), gpu.clock.host))
    assert times[0] == times[1]


def test_rates_of_a_scope_are_those_of_its_gpu(gpu):
    assert gpu.rates is rates.rates_of(gpu.spec.name)


@pytest.mark.parametrize(("name", "faster"), [("T4", False), ("V100-16", False), ("A100-40", True)])
def test_only_gpus_that_have_tf32_use_it_for_convolutions(name, faster):
    with VirtualGPU(name, compute=False) as gpu:
        conv, images = nn.Conv2d(64, 64, 3, padding=1).cuda(), torch.zeros(32, 64, 56, 56, device="cuda")
        seconds = []
        for allowed in (True, False):
            with tf32(torch.backends.cudnn, allowed):
                before = gpu.clock.busy()
                conv(images)
                seconds.append(gpu.clock.busy() - before)
    assert (seconds[0] < 0.9 * seconds[1]) == faster
    assert (seconds[0] == pytest.approx(seconds[1])) != faster


def depthwise_backward(dtype, layout, channels=64, side=56, stride=1, taps=3, batch=8):
    """Seconds of the kernels of a depthwise convolution's backward, on an A100."""
    with VirtualGPU("A100-80", compute=False) as gpu:
        form = {"device": "cuda", "dtype": dtype}
        layer = nn.Conv2d(channels, channels, taps, stride, taps // 2, groups=channels, bias=False, **form)
        x = torch.zeros(batch, channels, side, side, requires_grad=True, **form).to(memory_format=layout)
        layer = layer.to(memory_format=layout)
        out = layer(x)
        grad = torch.ones_like(out)
        spans = kernels_of(gpu, lambda: torch.autograd.grad(out, [x, layer.weight], grad))
    return sum(span.seconds for span in spans if span.name.startswith("convolution_backward"))


@pytest.mark.parametrize(
    ("shape", "quick"),
    [
        ({}, True),
        ({"taps": 5}, True),
        ({"taps": 7}, False),
        ({"channels": 16}, False),
        ({"stride": 2}, False),
        ({"stride": 2, "channels": 256}, True),
        ({"stride": 2, "batch": 1}, True),
        ({"stride": 3}, False),
        ({"dtype": torch.bfloat16}, False),
        ({"dtype": torch.float32}, False),
    ],
)
def test_cudnn_takes_the_depthwise_convolutions_that_pytorch_gives_it(shape, quick):
    """With channels first these of float16; with channels last all."""
    shape = {"dtype": torch.float16} | shape
    first = depthwise_backward(layout=torch.contiguous_format, **shape)
    last = depthwise_backward(layout=torch.channels_last, **shape)
    assert (first == pytest.approx(last, rel=0.01)) == quick
    assert first >= 0.99 * last
