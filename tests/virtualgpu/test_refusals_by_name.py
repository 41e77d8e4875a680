"""What a virtual GPU does not do is refused by its name, at once; what another process is sent arrives."""

import importlib
import os
import subprocess
import sys
import textwrap
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from courselib.ready import python_here

import gpulab
from virtualgpu.scope.refusals import NotMirrored
from virtualgpu.surface import import_patches

from .surface_scope import scope

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def group():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# -- sharded tensors -------------------------------------------------------------------------------------------------


def test_a_mesh_of_the_host_works(group):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    with scope():
        whole = distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert (whole * 2).full_tensor().tolist() == [0, 2, 4, 6]


# -- programs for a GPU's cores --------------------------------------------------------------------------------------


@pytest.fixture
def kernel(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    import triton

    def add_one(pointer, n):
        """Never compiled."""

    return triton.jit(add_one)


def test_a_kernel_of_triton_is_refused_by_its_name(gpu, kernel):
    import triton

    x = torch.ones(8, device="cuda")
    tuned = triton.autotune([triton.Config({}), triton.Config({}, num_warps=2)], key=[])
    for launch in (kernel[(1,)], lambda *a: kernel.run(*a, grid=(1,), warmup=False)):
        with pytest.raises(NotMirrored, match=r"^add_one, a kernel of @triton\.jit, is not mirrored"):
            launch(x, 8)
    if torch.version.cuda is None:
        return
    with pytest.raises(NotMirrored, match=r"^add_one, a kernel of @triton\.jit, is not mirrored"):
        tuned(kernel)[(1,)](x, n=8)


def test_tritons_interpreter_works(monkeypatch, tmp_path):
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    code = """
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(pointer, n, BLOCK: tl.constexpr):
        where = tl.arange(0, BLOCK)
        tl.store(pointer + where, tl.load(pointer + where, mask=where < n) + 1, mask=where < n)
    """
    (tmp_path / "interpreted.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    with scope():
        x = torch.zeros(5, device="cuda")
        try:
            importlib.import_module("interpreted").add_one[(1,)](x, 3, BLOCK=8)
        except ModuleNotFoundError as error:
            pytest.skip(str(error))
        assert x.tolist() == [1, 1, 1, 0, 0]
    assert triton


def test_an_extension_with_cuda_sources_is_refused_by_its_name(gpu, tmp_path):
    from torch.utils.cpp_extension import load, load_inline

    with pytest.raises(NotMirrored, match=r"^mine, an extension with CUDA sources, is not mirrored"):
        load_inline("mine", cpp_sources="", cuda_sources="__global__ void f() {}", build_directory=str(tmp_path))
    with pytest.raises(NotMirrored, match=r"^mine, an extension with CUDA sources, is not mirrored"):
        load("mine", [str(tmp_path / "mine.cu")], build_directory=str(tmp_path))


def test_what_is_compiled_at_run_time_is_refused_by_its_name(gpu):
    from torch.cuda.jiterator import _create_jit_fn

    twice = _create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    with pytest.raises(NotMirrored, match="kernels compiled at run time"):
        twice(torch.ones(2, device="cuda"))
    with pytest.raises(NotMirrored, match=r"kernels compiled at run time.*_compile_kernel"):
        torch.cuda._compile_kernel("", "f")
    with pytest.raises(NotMirrored, match="CUDAPluggableAllocator"):
        torch.cuda.memory.CUDAPluggableAllocator("mine.so", "take", "give")


# -- modules that are imported later ---------------------------------------------------------------------------------


def test_a_module_is_changed_when_it_is_imported_and_put_back_at_the_end(tmp_path, monkeypatch):
    (tmp_path / "comes_later.py").write_text("answer = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    with scope() as gpu:
        change = {"comes_later": lambda module, patches: patches.set(module, "answer", 2)}
        import_patches.install(gpu, gpu._patches, change)
        module = importlib.import_module("comes_later")
        assert module.answer == 2
        assert module.__spec__.loader.get_source("comes_later") == "answer = 1\n"
    assert module.answer == 1
    assert sys.meta_path == before
    del sys.modules["comes_later"]
    assert importlib.import_module("comes_later").answer == 1


# -- other processes -------------------------------------------------------------------------------------------------


def test_sharing_memory_changes_nothing_on_a_gpu(gpu):
    x = torch.ones(3, device="cuda")
    address = x.data_ptr()
    assert x.share_memory_() is x
    assert x.is_shared()
    assert x.data_ptr() == address
    assert torch.nn.Linear(3, 3, device="cuda").share_memory().weight.is_cuda


SENDS = """
import torch
import torch.multiprocessing as mp

import gpulab


def receive(inbox, outbox):
    x, layer = inbox.get(timeout=120)
    outbox.put((str(x.device), str(layer.weight.device), torch.cuda.memory_allocated(), tuple(x.shape)))
    x[1:].fill_(7)
    outbox.put("done")
    inbox.get(timeout=120)


if __name__ == "__main__":
    with gpulab.VirtualGPU("T4", count=2, compute=COMPUTE):
        context = mp.get_context("spawn")
        inbox, outbox = context.Queue(), context.Queue()
        child = context.Process(target=receive, args=(inbox, outbox))
        child.start()
        x, layer = torch.zeros(4, 2, device="cuda:1"), torch.nn.Linear(2, 2, device="cuda")
        inbox.put((x[1:], layer))
        print(outbox.get(timeout=120), outbox.get(timeout=120))
        print(x.tolist() if COMPUTE else "", torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1))
        inbox.put(None)
        child.join()
        print(child.exitcode)
"""


@pytest.mark.parametrize("compute", [True, False])
def test_a_tensor_that_is_sent_to_another_process_is_the_same_memory(tmp_path, compute):
    script = tmp_path / "sends.py"
    script.write_text(SENDS.replace("COMPUTE", str(compute)))
    home = {**os.environ, "PYTHONPATH": str(Path(gpulab.__file__).parents[1])}
    run = subprocess.run([*python_here(), str(script)], capture_output=True, text=True, env=home)
    assert run.stdout.splitlines() == [
        "('cuda:1', 'cuda:0', 0, (3, 2)) done",
        ("[[0.0, 0.0], [0.0, 0.0], [7.0, 7.0], [7.0, 7.0]]" if compute else "") + " 1024 512",
        "0",
    ], run.stderr


def test_processes_start_as_ever_afterwards():
    before = vars(BaseProcess)["start"]
    with scope():
        assert vars(BaseProcess)["start"] is not before
    assert vars(BaseProcess)["start"] is before
