"""bitsandbytes on a virtual GPU: bytes counted by hand, with values and on shapes alone, and values as on the CPU."""

import os
import textwrap

import pytest
import torch
from torch import nn

from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope.refusals import NotMirrored

from .starting import start

bnb = pytest.importorskip("bitsandbytes")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="these are real kernels there"),
    pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes"),
    pytest.mark.filterwarnings("ignore:torch.compile runs the code as it is written"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with VirtualGPU("A100-40", compute=request.param) as gpu:
        yield gpu


def taken(*sizes):
    """What the caching allocator gives for these bytes."""
    return sum(-(-size // 512) * 512 for size in sizes)


# -- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [True, False])
def test_a_layer_of_four_bits_by_hand(gpu, kind, double):
    n, k = 384, 1000
    layer = bnb.nn.Linear4bit(k, n, quant_type=kind, compress_statistics=double, compute_dtype=torch.bfloat16)
    layer = layer.to("cuda")
    blocks = n * k // 64
    scales = [blocks * 4]
    if double:  # 8 bits each, a scale of 32 bits for 256 of them, their mean, and a table here and of all layers
        scales = [blocks, -(-blocks // 256) * 4, 4, 256 * 4, 256 * 4]
    assert torch.cuda.memory_allocated() == taken(n * k // 2, *scales, 16 * 4, n * 4)  # with its table and the bias
    weight = layer.weight
    assert (type(weight), weight.shape, weight.dtype) == (bnb.nn.Params4bit, (n * k // 2, 1), torch.uint8)
    assert weight.device == weight.quant_state.absmax.device == torch.device("cuda", 0)


@pytest.mark.parametrize("double", [True, False])
def test_it_computes_what_it_does_on_the_cpu(double):
    def gradient(device):
        torch.manual_seed(0)
        layer = bnb.nn.Linear4bit(256, 192, quant_type="nf4", compress_statistics=double, compute_dtype=torch.float32)
        x = torch.randn(8, 256)
        layer, x = layer.to(device), x.to(device).requires_grad_()
        out = layer(x)
        out.square().mean().backward()
        return out.detach().cpu(), x.grad.cpu()

    on_host = gradient("cpu")
    with VirtualGPU("A100-40"):
        on_gpu = gradient("cuda")
        for there, here in zip(on_gpu, on_host, strict=True):
            torch.testing.assert_close(there, here)


def test_many_rows_take_the_weight_in_sixteen_bits_for_a_moment(gpu):
    """Its kernel for CUDA multiplies by the four bits themselves up to 1,536 rows at most (`gemm_4bit`)."""
    layer = bnb.nn.Linear4bit(1024, 1024, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16).to("cuda")

    def peak(rows):
        x = torch.zeros(rows, 1024, dtype=torch.bfloat16, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            layer(x)
        return torch.cuda.max_memory_allocated() - before - x.nbytes  # without the result

    absmax = 1024 * 1024 // 64 * 4  # without their mean, and with it
    assert peak(2048) == 2 * 1024 * 1024 + 2 * absmax + (8320 << 10)  # and cuBLAS's workspace
    assert peak(4) == 0


@pytest.mark.parametrize("threshold", [0.0, 6.0])
def test_a_layer_of_eight_bits(gpu, threshold):
    layer = bnb.nn.Linear8bitLt(256, 128, bias=False, has_fp16_weights=False, threshold=threshold).to("cuda")
    assert torch.cuda.memory_allocated() == taken(256 * 128, 128 * 4)  # a scale for each row
    x = torch.randn(32, 256, dtype=torch.float16, device="cuda")
    out = layer(x)
    assert (out.shape, out.dtype, out.is_cuda) == ((32, 128), torch.float16, True)
    if gpu.compute:
        exact = nn.functional.linear(x.float(), layer.state.CB.float() * layer.state.SCB[:, None] / 127)
        torch.testing.assert_close(out.float(), exact, atol=0.05, rtol=0.05)


def test_which_kernel_is_chosen_goes_by_the_gpu_in_force():
    def peak(gpu):
        with VirtualGPU(gpu, compute=False):
            layer = bnb.nn.Linear4bit(4096, 4096, bias=False, compute_dtype=torch.float16).to("cuda")
            x = torch.zeros(64, 4096, dtype=torch.float16, device="cuda")
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.no_grad():
                layer(x)
            return torch.cuda.max_memory_allocated() - before

    result, weight, scales, workspace = 64 * 4096 * 2, 4096 * 4096 * 2, 4096 * 4096 // 64 * 4, 32 << 20
    assert [peak("T4"), peak("H100"), peak("T4")] == [result, result + weight + 2 * scales + workspace, result]


# -- optimizers ------------------------------------------------------------------------------------------------------


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(400, 512), nn.Linear(512, 7))


def train(optimizer, device, **options):
    """The weights after two steps, and what the optimizer's state takes on the GPU."""
    net = model().to(device)
    optimizer = getattr(bnb.optim, optimizer)(net.parameters(), lr=1e-2, **options)
    x = torch.linspace(-1, 1, 16 * 400).view(16, 400).to(device)
    held = []
    for _ in range(2):
        net(x).square().mean().backward()
        held.append(torch.cuda.memory_allocated())
        optimizer.step()
        held.append(torch.cuda.memory_allocated())
        optimizer.zero_grad()
    return [p.detach().cpu() for p in net.parameters()], held[1] - held[0]


WEIGHTS = (512 * 400, 512, 7 * 512, 7)
TABLE = 256 * 4


def eight_bits(count, states):
    """A tensor of 4,096 elements or more has a byte for each, and a scale of 32 bits for 256 of them."""
    sizes = [count, -(-count // 256) * 4] if count >= 4096 else [count * 4]
    return taken(*sizes * states)


STATES = {
    "Adam8bit": 2 * TABLE + sum(eight_bits(count, 2) for count in WEIGHTS),
    "AdamW8bit": 2 * TABLE + sum(eight_bits(count, 2) for count in WEIGHTS),
    "Lion8bit": TABLE + sum(eight_bits(count, 1) for count in WEIGHTS),
    "AdamW": 2 * taken(*(count * 4 for count in WEIGHTS)),
    # paged are those of 100,000 elements or more: of the largest the scales alone are PyTorch's memory
    "PagedAdamW8bit": 2 * TABLE + sum(eight_bits(count, 2) for count in WEIGHTS) - 2 * WEIGHTS[0],
    "PagedAdamW32bit": 2 * taken(*(count * 4 for count in WEIGHTS[1:])),
    "PagedLion8bit": TABLE + sum(eight_bits(count, 1) for count in WEIGHTS) - WEIGHTS[0],
}


@pytest.mark.parametrize("optimizer", STATES)
def test_the_state_of_an_optimizer_by_hand(gpu, optimizer):
    assert train(optimizer, "cuda")[1] == STATES[optimizer]


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("optimizer", [*STATES, "RMSprop8bit", "Adagrad8bit", "AdEMAMix8bit", "LAMB"])
def test_an_optimizer_computes_what_it_does_on_the_cpu(optimizer):
    on_host, _ = train(optimizer, "cpu")
    with VirtualGPU("A100-40"):
        for there, here in zip(train(optimizer, "cuda")[0], on_host, strict=True):
            torch.testing.assert_close(there, here)


def test_the_large_state_of_a_paged_optimizer_is_memory_of_both():
    with VirtualGPU("A100-40", compute=False):
        weight = nn.Parameter(torch.zeros(30_000, 10_000, device="cuda"))
        weight.grad = torch.zeros_like(weight)
        optimizer = bnb.optim.PagedAdamW8bit([weight])
        optimizer.step()
        state = optimizer.state[weight]["state1"]
        assert (state.is_cuda, state.is_paged, state.shape) == (False, True, weight.shape)


# -- otherwise -------------------------------------------------------------------------------------------------------


def test_a_c_function_of_it_that_is_no_operator_s_is_refused_by_its_name(gpu):
    a = torch.zeros(32, 32, dtype=torch.int8, device="cuda")
    with pytest.raises(NotMirrored, match=r"^c\w+, a C function, is not mirrored by the virtual GPU"):
        bnb.functional.igemm(a, a)


SCRIPT = """
import torch
{first}
import gpulab
gpulab.VirtualGPU("T4", compute={compute}).start()
import bitsandbytes
layer = torch.nn.Linear(512, 512, device="cuda")
optimizer = bitsandbytes.optim.PagedAdamW8bit(layer.parameters())
layer(torch.ones(4, 512, device="cuda")).sum().backward()
optimizer.step()
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
"""


def test_it_does_not_matter_what_library_of_c_it_has_found(tmp_path):
    """Imported before there is a GPU it has the CPU's; under PyTorch without CUDA too; of a version unknown none."""
    said = set()
    for number, (first, compute, variables) in enumerate(
        (
            ("", False, {}),
            ("import bitsandbytes", True, {}),
            ("torch.version.cuda = None", False, {}),
            ("", True, {"BNB_CUDA_VERSION": "999"}),
        )
    ):
        script = tmp_path / f"script{number}.py"
        script.write_text(SCRIPT.format(first=first, compute=compute))
        folder = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        done = start(module=script.stem, env={**variables, "PYTHONPATH": folder})
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1


def test_an_address_that_c_reads_unseen_is_told_with_its_line(tmp_path):
    script = tmp_path / "reads.py"
    script.write_text(
        textwrap.dedent(
            """
            import ctypes, torch
            x = torch.ones(4, device="cuda")
            print(ctypes.c_float.from_address(x.data_ptr()).value)
            """
        )
    )
    done = start("--gpu", "T4", script)
    assert done.returncode != 0
    assert "Segmentation fault" in done.stderr
    assert 'reads.py", line 4 in <module>' in done.stderr
