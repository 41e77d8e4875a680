"""Operators that a program registers with torch.library, and C functions that it calls, on a virtual GPU."""

import ctypes
import itertools
import time

import numpy as np
import pytest
import torch

from virtualgpu.memory.addresses import Ranges, Rising
from virtualgpu.scope.refusals import NotMirrored, NoValues

from .surface_scope import scope

NUMBERS = itertools.count()
pytestmark = pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")


@pytest.fixture
def name():
    """A new operator's, of a tensor: what it gives is another one."""
    name = f"foreign_test::operator{next(NUMBERS)}"
    torch.library.define(name, "(Tensor x) -> Tensor")
    return name


def operator(name):
    namespace, name = name.split("::")
    return getattr(getattr(torch.ops, namespace), name)


def twice(x):
    return x * torch.tensor([2.0], device=x.device)


def library_impl(name, kernel, key):
    library = torch.library.Library("foreign_test", "IMPL")
    library.impl(name.split("::")[1], kernel, key)
    return library  # its kernels end with it


REGISTER = {
    "register_kernel, any device": lambda name, f: torch.library.register_kernel(name, None, f),
    "register_kernel, default": lambda name, f: torch.library.register_kernel(name, "default", f),
    "register_kernel, cuda": lambda name, f: torch.library.register_kernel(name, "cuda", f),
    "register_kernel, both": lambda name, f: torch.library.register_kernel(name, ["cpu", "cuda"], f),
    "impl, CUDA": lambda name, f: torch.library.impl(name, "cuda", f),
    "Library.impl, CompositeExplicitAutograd": lambda name, f: library_impl(name, f, "CompositeExplicitAutograd"),
    "Library.impl, CompositeImplicitAutograd": lambda name, f: library_impl(name, f, "CompositeImplicitAutograd"),
    "Library.impl, CUDA": lambda name, f: library_impl(name, f, "CUDA"),
}


@pytest.mark.parametrize("how", REGISTER)
def test_a_kernel_makes_tensors_where_its_argument_is(gpu, name, how):
    registered = REGISTER[how](name, twice)
    before = torch.cuda.memory_allocated()
    x = torch.ones(4, device="cuda")
    out = operator(name)(x)
    assert (out.device, out.shape) == (x.device, (4,))
    assert torch.cuda.memory_allocated() - before == 2 * 512
    assert torch.cuda.max_memory_allocated() - before == 3 * 512  # with the constant
    if gpu.compute:
        assert out.tolist() == [2, 2, 2, 2]
    del registered


@pytest.mark.parametrize("devices", [None, "cuda", ("cpu", "cuda")])
def test_a_custom_op_and_its_gradient(gpu, devices):
    kernel = torch.library.custom_op(f"foreign_test::op{next(NUMBERS)}", mutates_args=(), device_types=devices)

    @kernel
    def times(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * torch.tensor([factor], device=x.device)

    times.register_autograd(
        lambda ctx, gradient: (gradient * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    x = torch.ones(4, device="cuda", requires_grad=True)
    times(x, 3.0).sum().backward()
    assert x.grad.device == x.device
    if gpu.compute:
        assert x.grad.tolist() == [3, 3, 3, 3]


def test_an_operator_without_a_tensor_is_told_its_device(gpu):
    @torch.library.custom_op(f"foreign_test::op{next(NUMBERS)}", mutates_args=())
    def made(n: int, device: torch.device) -> torch.Tensor:
        return torch.arange(n, device=device) + torch.ones(n, device=device)

    out = made(3, torch.device("cuda"))
    assert out.is_cuda
    if gpu.compute:
        assert out.tolist() == [1, 2, 3]
    assert not made(3, torch.device("cpu")).is_cuda


def test_the_kernel_for_cuda_comes_before_the_one_for_any_device(gpu, name):
    x = torch.ones(4, device="cuda")
    torch.library.register_kernel(name, None, lambda x: x.new_zeros(1))
    assert operator(name)(x).shape == (1,)
    torch.library.register_kernel(name, "cuda", lambda x: x.new_zeros(2))  # also when it has been called already
    torch.library.register_kernel(name, "cpu", lambda x: x.new_zeros(3))
    assert operator(name)(x).shape == (2,)
    assert operator(name)(x.cpu()).shape == (3,)


def test_a_kernel_for_the_cpu_alone_is_an_error_as_on_a_gpu(gpu, name):
    torch.library.register_kernel(name, "cpu", twice)
    with pytest.raises(NotImplementedError, match=rf"^Could not run '{name}' with arguments from the 'CUDA' backend"):
        operator(name)(torch.ones(4, device="cuda"))
    assert operator(name)(torch.ones(4)).tolist() == [2, 2, 2, 2]


def test_a_kernel_may_go_by_the_host(gpu, name):
    torch.library.register_kernel(name, "cuda", lambda x: torch.from_numpy(np.sin(x.cpu().numpy())).to(x.device))
    out = operator(name)(torch.zeros(4, device="cuda"))
    assert out.is_cuda
    assert not gpu.compute or out.tolist() == [0, 0, 0, 0]


def test_what_depends_on_values_has_the_shape_that_register_fake_says(name):
    torch.library.register_kernel(name, "cuda", lambda x: x.new_zeros(len(x.nonzero())))
    with scope(compute=False):
        x = torch.randn(300, device="cuda")
        with pytest.raises(NoValues):
            operator(name)(x)
        torch.library.register_fake(name, lambda x: torch.empty_like(x))
        before = torch.cuda.memory_allocated()
        assert operator(name)(x).shape == (300,)
        out = operator(name)(x)
        assert torch.cuda.memory_allocated() - before == 1536
        assert out.is_cuda


# -- kernels in C++, which Python does not know the body of ----------------------------------------------------------


@pytest.fixture
def in_cpp(name):
    """As if a shared library had registered what is registered for CUDA: Python keeps no account of it then."""
    torch.library.register_kernel(name, "cuda", twice)
    torch.library._impls.remove(f"{name.replace('::', '/')}/CUDA")
    return name


def test_a_kernel_in_cpp_for_cuda_alone_is_refused_by_its_name(in_cpp):
    with scope():
        said = r"^foreign_test\.operator\d+\.default is not mirrored by the virtual GPU with values: .* in C\+\+"
        with pytest.raises(NotMirrored, match=said + ".*Use PyTorch's own"):
            operator(in_cpp)(torch.ones(4, device="cuda"))
        torch.library.register_fake(in_cpp, lambda x: torch.empty_like(x))
        with pytest.raises(NotMirrored, match=said + ".*--shapes-only"):
            operator(in_cpp)(torch.ones(4, device="cuda"))


def test_on_shapes_alone_it_needs_to_say_its_shape(in_cpp):
    with scope(compute=False):
        x = torch.ones(4, device="cuda")
        with pytest.raises(NotMirrored, match=r"^foreign_test\.operator\d+\.default is not mirrored in shapes-only"):
            operator(in_cpp)(x)
        torch.library.register_fake(in_cpp, lambda x: x.new_empty(7))
        assert (operator(in_cpp)(x).shape, operator(in_cpp)(x).is_cuda) == ((7,), True)


def test_with_a_kernel_for_the_cpu_its_values_are_those(in_cpp):
    torch.library.register_kernel(in_cpp, "cpu", twice)
    with scope():
        out = operator(in_cpp)(torch.ones(4, device="cuda"))
        assert (out.is_cuda, out.tolist()) == (True, [2, 2, 2, 2])


# -- C functions -----------------------------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None)


def memset(tensor):
    """Every byte of a tensor is 1 afterwards."""
    LIBC.memset(ctypes.c_void_p(tensor.data_ptr()), 1, ctypes.c_size_t(tensor.nbytes))


@pytest.mark.parametrize(
    "call",
    [
        memset,
        lambda x: LIBC.memset(ctypes.c_size_t(x.data_ptr()), 0, 4),
        lambda x: LIBC.memset(ctypes.c_void_p(x[2:].data_ptr()), 0, 4),
        lambda x: LIBC.memset(ctypes.c_void_p(x.untyped_storage().data_ptr()), 0, 4),
        lambda x: LIBC.memcpy((ctypes.c_void_p * 1)(x.data_ptr()), None, ctypes.c_size_t(0)),
        lambda x: LIBC.memcpy(ctypes.byref(ctypes.c_void_p(x.data_ptr())), None, ctypes.c_size_t(0)),
        lambda x: ctypes.CDLL(None).memset(ctypes.c_void_p(x.data_ptr()), 0, 4),
    ],
)
def test_a_c_function_with_an_address_of_the_gpu_is_refused_by_its_name(gpu, call):
    with pytest.raises(
        NotMirrored, match=r"^mem(set|cpy), a C function, is not mirrored by the virtual GPU.*Use PyTor"
    ):
        call(torch.zeros(4, device="cuda"))


def test_ctypes_own_functions_and_prototypes_too(gpu):
    x = torch.zeros(4, device="cuda")
    with pytest.raises(NotMirrored, match="a C function"):
        ctypes.memset(x.data_ptr(), 0, 4)
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    with pytest.raises(NotMirrored, match="a C function"):
        prototype(("memset", LIBC))(x.data_ptr(), 0, 4)


def test_elsewhere_c_is_called_as_ever_and_again_at_the_end(gpu):
    x = torch.zeros(2, dtype=torch.uint8)
    memset(x)
    assert x.tolist() == [1, 1]
    assert LIBC.abs(-3) == 3


def test_nothing_of_ctypes_stays_replaced():
    kind = type(ctypes.memset)
    before = vars(ctypes.CDLL)["__init__"], ctypes.CFUNCTYPE, vars(kind).get("__call__")
    with scope():
        assert vars(kind).get("__call__") is not before[2]
    assert (vars(ctypes.CDLL)["__init__"], ctypes.CFUNCTYPE, vars(kind).get("__call__")) == before


@pytest.mark.parametrize("kind", [Rising, Ranges])
def test_an_address_is_the_gpu_s_that_has_given_it(kind):
    first, second = kind(0), kind(1)
    assert not first.covers(first.reserve(0, 1))
    address = first.reserve(2 << 20, 2 << 20)
    first.give_back(address, 2 << 20)
    assert all(first.covers(place) for place in (address, address + (2 << 20) - 1))
    assert not any(each.covers(place) for each, place in ((first, address - 1), (second, address), (first, 0)))


def filled(x):
    out = torch.empty_like(x, dtype=torch.uint8)
    kept = torch.ones(1024, device=x.device)  # what the kernel takes beside its result
    memset(out)
    del kept
    return out


def test_in_an_operator_it_is_left_out_and_the_kernel_for_the_cpu_gives_the_values(gpu, name):
    torch.library.register_kernel(name, "cuda", filled)
    x = torch.zeros(300, device="cuda")
    before = torch.cuda.memory_allocated()
    if gpu.compute:
        said = r"^foreign_test\.operator\d+\.default is not mirrored .* calls memset, a C function, .*--shapes-only"
        with pytest.raises(NotMirrored, match=said):
            operator(name)(x)
        torch.library.register_kernel(name, "cpu", lambda x: torch.full(x.shape, 1, dtype=torch.uint8, device=x.device))
    out = operator(name)(x)
    assert torch.cuda.max_memory_allocated() - before == 512 + 4096
    assert torch.cuda.memory_allocated() - before == 512
    assert not gpu.compute or out.tolist() == [1] * 300


def test_computing_its_values_takes_none_of_the_hosts_time(name):
    def slow(x):
        time.sleep(0.5)
        return x.clone()

    def calls_c(x):
        out = torch.empty_like(x)
        ctypes.memset(out.data_ptr(), 0, 16)
        return out

    torch.library.register_kernel(name, "cuda", calls_c)
    torch.library.register_kernel(name, "cpu", slow)
    with scope(counts_host=True) as gpu:
        x = torch.ones(4, device="cuda")
        assert operator(name)(x).tolist() == [1.0] * 4  # the first call imports and looks up
        before = gpu.clock.perf_counter()
        operator(name)(x)
        assert gpu.clock.perf_counter() - before < 0.25


def test_a_graph_would_not_replay_it(gpu, name):
    torch.library.register_kernel(name, "cuda", filled)
    torch.library.register_kernel(name, "cpu", lambda x: torch.full(x.shape, 1, dtype=torch.uint8))
    x = torch.zeros(300, device="cuda")
    graph = torch.cuda.CUDAGraph()
    if gpu.compute:
        with pytest.raises(NotMirrored, match=r"in a CUDA graph .* calls memset"), torch.cuda.graph(graph):
            operator(name)(x)
    else:
        with torch.cuda.graph(graph):
            out = operator(name)(x)
        graph.replay()
        assert out.shape == x.shape


def test_what_a_kernel_has_written_before_it_calls_c_is_not_written_twice(gpu):
    name = f"foreign_test::operator{next(NUMBERS)}"
    torch.library.define(name, "(Tensor(a!) x) -> ()")

    def on_cuda(x):
        x.mul_(2)
        memset(x)

    def on_cpu(x):
        x.mul_(2).add_(1)

    torch.library.register_kernel(name, "cuda", on_cuda)
    torch.library.register_kernel(name, "cpu", on_cpu)
    x = torch.ones(4, device="cuda")
    operator(name)(x)
    assert not gpu.compute or x.tolist() == [3, 3, 3, 3]


def test_on_shapes_alone_what_c_would_write_on_the_host_is_unknown_afterwards():
    name = f"foreign_test::operator{next(NUMBERS)}"
    torch.library.define(name, "(Tensor x, Tensor(a!) y) -> ()")
    torch.library.register_kernel(name, "cuda", lambda x, y: memset(x))
    with scope(compute=False):
        x, y = torch.ones(4, device="cuda"), torch.ones(4)
        operator(name)(x, y)
        with pytest.raises(NoValues):
            y.tolist()


def test_a_kernel_of_triton_in_an_operator(gpu, name, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def add_one(pointer, n):
        """Never compiled."""

    kernel = triton.jit(add_one)

    def launch(x):
        out = torch.empty_like(x)
        kernel[(1,)](out, 4)
        return out

    torch.library.register_kernel(name, None, launch)
    x = torch.ones(4, device="cuda")
    if gpu.compute:
        said = (
            r"^foreign_test\.operator\d+\.default is not mirrored .* calls add_one, a kernel of @triton\.jit.*--shapes"
        )
        with pytest.raises(NotMirrored, match=said):
            operator(name)(x)
    else:
        assert (operator(name)(x).shape, operator(name)(x).is_cuda) == ((4,), True)
