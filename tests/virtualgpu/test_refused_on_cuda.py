"""What the CPU or a shape function computes and CUDA refuses; and what of sparse tensors is known without values."""

import pytest
import torch
from torch import nn

import gpulab
from virtualgpu.scope.refusals import NotMirrored

LINALG = {
    "cholesky_cusolver": torch.linalg.cholesky,
    "cholesky_cuda_potrs": lambda a: torch.cholesky_solve(a, a),
    "lu_factor_cusolver": lambda a: torch.linalg.solve(a, a),
    "svd_cuda_gesvdj": torch.linalg.svd,
    "linalg_eigh_cuda": torch.linalg.eigh,
    "linalg_eig_cuda": torch.linalg.eigvals,
    "geqrf_cuda": torch.linalg.qr,
    "orgqr_cuda": lambda a: torch.linalg.householder_product(a, a[0]),
    "ldl_factor_cusolver": torch.linalg.ldl_factor,
}


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with gpulab.VirtualGPU("T4", compute=request.param) as scope:
        yield scope


@pytest.mark.parametrize("kernel", LINALG)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_matrix_of_16_bits_is_factorised(gpu, kernel, dtype):
    name = {torch.float16: "Half", torch.bfloat16: "BFloat16"}[dtype]
    with pytest.raises(NotImplementedError, match=f"^\"{kernel}\" not implemented for '{name}'$"):
        LINALG[kernel](torch.eye(4, device="cuda").to(dtype))
    LINALG[kernel](torch.eye(4, device="cuda"))


OF_FLOATS = {  # of PyTorch's messages on a GPU, by what calls the kernel
    "host_softmax": lambda t: torch.softmax(t, 1),
    "GeluCUDAKernelImpl": nn.functional.gelu,
    "silu_cuda": nn.functional.silu,
    "elu_cuda": nn.functional.elu,
    "leaky_relu_cuda": nn.functional.leaky_relu,
    "softplus_cuda": nn.functional.softplus,
    "glu_cuda": lambda t: nn.functional.glu(t, 1),
    "mse_cuda": lambda t: nn.functional.mse_loss(t, t),
    "smooth_l1_cuda": lambda t: nn.functional.smooth_l1_loss(t, t),
    "lerp_cuda": lambda t: torch.lerp(t, t, 0.5),
    "avg_pool2d_out_cuda_frame": lambda t: nn.functional.avg_pool2d(t, 2),
    "max_pool2d_with_indices_out_cuda_frame": lambda t: nn.functional.max_pool2d(t, 2, return_indices=True),
    "upsample_bilinear2d_out_frame": lambda t: nn.functional.interpolate(t, scale_factor=2, mode="bilinear"),
    "upsample_nearest2d_out_frame": lambda t: nn.functional.interpolate(t, scale_factor=2),
    "binary_cross_entropy_out_cuda": lambda t: nn.functional.binary_cross_entropy(t, t),
}


@pytest.mark.parametrize("kernel", OF_FLOATS)
def test_a_kernel_of_floats_takes_no_whole_numbers(gpu, kernel):
    numbers = torch.ones(1, 2, 4, 4, device="cuda")
    OF_FLOATS[kernel](numbers)
    with pytest.raises(
        (NotImplementedError, ValueError), match=f"\"{kernel}\" not implemented for 'Long'|cannot be safely"
    ):
        OF_FLOATS[kernel](numbers.long())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: nn.functional.cross_entropy(x, torch.zeros(4, device="cuda", dtype=torch.int32)),
            "Byte, but got Int",
        ),
        (lambda x: nn.functional.binary_cross_entropy(x, x.long()), "Found dtype Long but expected Float"),
        (
            lambda x: torch.multinomial(x.long(), 1),
            "multinomial only supports floating-point dtypes for input, got: Long",
        ),
        (lambda x: x.long().var(), "std and var only support floating point"),
        (lambda x: torch.bernoulli(x.long()), "\"bernoulli_tensor_cuda_p_\" not implemented for 'Long'"),
        (lambda x: x.long().uniform_(), "\"check_uniform_bounds\" not implemented for 'Long'"),
        (lambda x: x & x, "not implemented for 'Float'"),
        (lambda x: x.to(torch.float8_e4m3fn) + 1, "not implemented for 'Float8_e4m3fn'"),
        (lambda x: x.to(torch.float8_e4m3fn) * x.to(torch.float8_e4m3fn), "not implemented for 'Float8_e4m3fn'"),
        (lambda x: x.to(torch.float8_e4m3fn) @ x.to(torch.float8_e4m3fn).t(), '"addmm_cuda" not implemented for'),
    ],
)
def test_dtypes_that_do_not_go_together_are_refused(gpu, call, words):
    with pytest.raises(RuntimeError, match=words):
        call(torch.full((4, 4), 0.5, device="cuda"))


def test_random_numbers_stay_those_of_cuda():
    """The checks of dtypes stand before the draws, not in their place."""
    with gpulab.VirtualGPU("T4"):
        state = torch.cuda.get_rng_state()
        torch.bernoulli(torch.full((1000,), 0.25, device="cuda"))
        assert not torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize(("name", "runs"), [("T4", False), ("A100-80", False), ("L4", True), ("H100", True)])
def test_products_of_8_bits_need_a_gpu_that_has_them(name, runs):
    with gpulab.VirtualGPU(name, compute=False):
        a, b = (torch.zeros(32, 32, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device="cuda")
        if runs:
            assert torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16).shape == (32, 32)
        else:
            with pytest.raises(
                RuntimeError, match=r"only supported on CUDA devices with compute capability >= 9\.0 or 8\.9"
            ):
                torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


# -- torch.use_deterministic_algorithms ------------------------------------------------------------------------------

ATOMIC = {
    "adaptive_avg_pool2d_backward_cuda": lambda x: nn.functional.adaptive_avg_pool2d(x, 3).sum().backward(),
    "grid_sampler_2d_backward_cuda": lambda x: nn.functional.grid_sample(
        x, torch.zeros(1, 2, 2, 2, device=x.device), align_corners=False
    ).sum().backward(),
    "_bincount_cuda": lambda x: torch.bincount(torch.zeros(3, dtype=torch.int64, device=x.device), x[0, 0, 0, :3]),
    "_histc_cuda with floating point input": lambda x: torch.histc(x, 4),
    "median CUDA with indices output": lambda x: x.median(0),
}  # fmt: skip


@pytest.fixture
def deterministic():
    yield lambda **how: torch.use_deterministic_algorithms(True, **how)
    torch.use_deterministic_algorithms(False)


def image(device="cuda"):
    return torch.ones(1, 3, 8, 8, device=device, requires_grad=True)


@pytest.mark.parametrize("kernel", ATOMIC)
def test_a_kernel_that_adds_atomically_is_refused_where_that_is_asked_for(deterministic, kernel):
    with gpulab.VirtualGPU("T4"):
        ATOMIC[kernel](image())
        deterministic()
        ATOMIC[kernel](image("cpu"))
        words = (
            f"^{kernel} does not have a deterministic implementation, but you set .*You can turn off determinism just"
        )
        with pytest.raises(RuntimeError, match=words):
            ATOMIC[kernel](image())
        deterministic(warn_only=True)
        with pytest.warns(
            UserWarning, match=rf"^{kernel} does not have .*True, warn_only=True\)'\. You can file an issue"
        ):
            ATOMIC[kernel](image())


def test_counting_without_weights_is_deterministic(deterministic):
    with gpulab.VirtualGPU("T4"):
        deterministic()
        assert torch.bincount(torch.tensor([0, 2, 2], device="cuda")).tolist() == [1, 0, 2]


# -- what has no kernel for CUDA -------------------------------------------------------------------------------------


def test_a_layer_that_is_quantised_for_cpus_does_not_run_on_a_gpu():
    weight = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8), None)
    assert torch.ops.quantized.linear_dynamic(torch.ones(2, 4), weight).shape == (2, 4)
    with (
        gpulab.VirtualGPU("T4"),
        pytest.raises(
            NotImplementedError, match="Could not run 'quantized::linear_dynamic' with arguments from the 'CUDA'"
        ),
    ):
        torch.ops.quantized.linear_dynamic(torch.ones(2, 4, device="cuda"), weight)


def test_complex_numbers_have_no_order():
    with gpulab.VirtualGPU("T4"):
        z = torch.ones(3, dtype=torch.complex64, device="cuda")
        with pytest.raises(NotImplementedError, match="\"compare_cuda\" not implemented for 'ComplexFloat'"):
            z < z  # noqa: B015


def test_a_transform_of_16_bits_is_refused_by_its_name(gpu):
    assert torch.fft.rfft(torch.ones(8, device="cuda")).dtype == torch.complex64
    for transform in (torch.fft.fft, torch.fft.rfft, torch.fft.ihfft, torch.fft.fftn):
        with pytest.raises(NotMirrored, match=r"torch\.fft of float16 is not mirrored"):
            transform(torch.ones(8, 8, device="cuda", dtype=torch.float16))


def test_an_export_is_refused_by_its_name_and_does_not_end_the_process():
    model = nn.Linear(3, 3)
    with gpulab.VirtualGPU("T4"):
        with pytest.raises(NotMirrored, match=r"torch\.export\.export is not mirrored.*without_gpu"):
            torch.export.export(model.cuda(), (torch.ones(2, 3, device="cuda"),))
        with gpulab.without_gpu():
            exported = torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),))
    assert exported.module()(torch.ones(2, 3)).shape == (2, 3)


# -- sparse gradients without values ---------------------------------------------------------------------------------

OPTIMIZERS = {
    "SparseAdam": torch.optim.SparseAdam,
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, foreach=False),
}


def sparse_training(optimizer):
    """Stored elements, bytes at the end and at the peak of three steps on 5,000 rows of 100,000."""
    embedding = nn.Embedding(100_000, 64, sparse=True).cuda()
    optimizer = OPTIMIZERS[optimizer](list(embedding.parameters()))
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.arange(5000, device="cuda")).sum().backward()
        optimizer.step()
    return embedding.weight.grad._nnz(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparse_gradients_take_the_same_memory_without_values(optimizer):
    found = []
    for compute in (True, False):
        with gpulab.VirtualGPU("T4", compute=compute):
            found.append(sparse_training(optimizer))
    assert found[0] == found[1]
    assert found[0][0] == 5000


def test_what_is_not_known_of_sparse_tensors_is_refused_by_its_name():
    with gpulab.VirtualGPU("T4", compute=False):
        embedding = nn.Embedding(100, 8, sparse=True).cuda()
        embedding(torch.arange(5, device="cuda")).sum().backward()
        with pytest.raises(NotMirrored, match="of a sparse tensor is not mirrored in shapes-only mode"):
            embedding(torch.arange(5, device="cuda")).sum().backward()  # the sum of two sparse gradients


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, r"torch\.cuda\.FloatTensor"), (torch.bfloat16, "CUDABFloat16Type")]
)
def test_a_saved_tensor_that_was_overwritten_has_cudas_type(gpu, dtype, name):
    weight = torch.ones(4, device="cuda", dtype=dtype, requires_grad=True)
    out = weight.exp()
    out.add_(1)
    with pytest.raises(RuntimeError, match=rf"inplace operation: \[{name} \[4\]\], which is output 0"):
        out.sum().backward()


def test_a_saved_tensor_of_the_hosts_keeps_its_type(gpu):
    out = torch.ones(4, requires_grad=True).exp()
    out.add_(1)
    with pytest.raises(RuntimeError, match=r"inplace operation: \[torch\.FloatTensor \[4\]\]"):
        out.sum().backward()
