"""Tensors, layers and storages that go to the GPU, come back, are copied, saved, loaded, differentiated and printed.

What can be said without values is said for both kinds of scope.
"""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import VirtualGPU

from .surface_scope import SPELLINGS, allocated, same_values, scope, weight

GPU = torch.device("cuda", 0)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Tied(nn.Module):
    """An embedding whose weight is the output's too, a buffer, and a layer within a layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.output = nn.Linear(5, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((300,), 2.0))
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, index):
        return self.output(self.inner(self.embedding(index))) * self.scale[0]


def tensors(module):
    return [*module.parameters(), *module.buffers()]


# -- to the GPU and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", SPELLINGS.values(), ids=SPELLINGS)
def test_a_tensor_goes_there_however_the_gpu_is_named(gpu, device):
    host = torch.arange(6.0).reshape(2, 3)
    moved = [
        host.to(device),
        host.to(device=device),
        host.to(device, torch.float32),
        host.to(device, non_blocking=True, copy=True),
        host.cuda(device),
        torch.tensor([[0.0, 1, 2], [3, 4, 5]], device=device),
        torch.as_tensor(host, device=device),
        torch.as_tensor(host.numpy(), device=device),
        torch.asarray(host, device=device),
        torch.asarray(host.numpy(), device=device),
        host.new_tensor(host.tolist(), device=device),
        torch.empty(2, 3, device=device).copy_(host),
    ]
    for tensor in moved:
        assert tensor.device == GPU
        assert tensor.dtype is torch.float32
        assert tensor.shape == (2, 3)
        assert not gpu.compute or tensor.tolist() == host.tolist()
    assert torch.cuda.memory_allocated() == 512 * len(moved)
    assert host.to(device, torch.float16).dtype is torch.float16
    assert torch.tensor(1, device=device, dtype=torch.bool).dtype is torch.bool


@pytest.mark.parametrize("device", SPELLINGS.values(), ids=SPELLINGS)
def test_a_storage_goes_there_however_the_gpu_is_named(gpu, device):
    storage = torch.arange(4).untyped_storage()
    made = torch.UntypedStorage(1000, device=torch.device(device) if isinstance(device, int) and HAS_CUDA else "cuda:0")
    for moved in (storage.to(device=device), storage.cuda(device)) if device != 0 else (storage.cuda(0),):
        assert moved.device == GPU
        assert moved.is_cuda
        assert moved.nbytes() == 32
        assert moved.get_device() == 0
        assert not gpu.compute or bytes(moved.cpu().tolist()) == bytes(storage.tolist())
    assert made.device == GPU
    assert torch.cuda.memory_allocated() == 1024 + 512
    made.resize_(2000)
    assert torch.cuda.memory_allocated() == 2048 + 512


HAS_CUDA = torch._C._has_cuda


def test_a_round_trip_keeps_values_strides_and_dtype(computing):
    tensors = [
        torch.randn(4, 3).t(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.float64)[1:],
        torch.randint(9, (5,)),
        torch.randn(3, dtype=torch.complex64),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([True, False]),
    ]
    for tensor in tensors:
        back = tensor.cuda().cpu()
        assert torch.equal(back, tensor)
        assert back.dtype is tensor.dtype
        assert back.stride() == tensor.cuda().stride() == tensor.clone().stride()
        assert back.data_ptr() != tensor.data_ptr() or not tensor.numel()


def test_to_where_it_is_already_gives_the_tensor_itself(gpu):
    x = torch.ones(3, device="cuda")
    assert x.to("cuda") is x.to(0) is x.cuda() is x.to(x) is x.to("cuda:0", torch.float32) is x
    assert x.to("cuda", copy=True) is not x
    assert x.half().is_cuda
    assert x.data_ptr() == x.detach().data_ptr() == x.view(3, 1).data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4


def test_requires_grad_is_kept_and_leaves_are_as_on_cuda(gpu):
    leaf = torch.ones(3, requires_grad=True)
    moved = leaf.cuda()
    assert moved.requires_grad
    assert not moved.is_leaf
    assert moved.cpu().requires_grad
    assert not leaf.detach().cuda().requires_grad
    assert torch.ones(3).cuda().requires_grad_().is_leaf
    with torch.no_grad():
        assert not leaf.cuda().requires_grad
    with torch.inference_mode():
        assert leaf.cuda().is_inference()


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors_go_and_come_back(computing, layout):
    dense = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 4, 0, 0]])
    made = {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}
    blocks = {"bsr": dense.to_sparse_bsr, "bsc": dense.to_sparse_bsc}
    host = made[layout]() if layout in made else blocks[layout]((2, 2))
    for moved in (host.cuda(), host.to("cuda"), host.to(0, non_blocking=True)):
        assert moved.device == GPU
        assert moved.values().device == GPU
        assert moved.layout == host.layout
        assert same_values(moved, host)
        assert torch.equal(moved.cpu().to_dense(), dense)
    assert torch.cuda.memory_allocated() == weight(moved)
    assert host.to("cuda", torch.float64).dtype is torch.float64


def test_sparse_tensors_are_made_and_used_there(computing):
    before = allocated()
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 3.0]), (2, 2), device="cuda")
    assert torch.equal(sparse.to_dense().cpu(), torch.tensor([[0, 2.0], [3, 0]]))
    assert (sparse @ torch.ones(2, 1, device="cuda")).tolist() == [[2.0], [3.0]]
    assert sparse.coalesce().indices().is_cuda
    values = torch.ones(2, device="cuda", requires_grad=True)
    torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]).cuda(), values, (2, 2)).to_dense().sum().backward()
    assert values.grad.is_cuda
    del sparse, values
    torch._C._cuda_clearCublasWorkspaces()
    assert allocated(cycles=True) == before


# -- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_flow_both_ways_and_land_where_the_leaf_is(computing):
    host = torch.tensor([1.0, 2, 3], requires_grad=True)
    device = torch.tensor([4.0, 5, 6], device="cuda", requires_grad=True)
    (host.cuda() * device).cpu().sum().backward()
    assert host.grad.device.type == "cpu"
    assert host.grad.tolist() == [4, 5, 6]
    assert device.grad.device == GPU
    assert device.grad.tolist() == [1, 2, 3]
    (device.to("cpu", torch.float64) * host).sum().backward()
    assert device.grad.dtype is torch.float32
    assert device.grad.tolist() == [2, 4, 6]


def test_gradients_of_gradients_flow_too(computing):
    x = torch.tensor([1.0, 2], requires_grad=True)
    y = (x.cuda() ** 3).to("cpu").sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.tolist() == [3, 12]
    (second,) = torch.autograd.grad(first.cuda().sum(), x)
    assert second.tolist() == [6, 12]
    assert second.device.type == "cpu"
    assert torch.autograd.gradcheck(
        lambda t: (t.cuda() * 2).cpu().sin(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    )


def test_hooks_and_retained_gradients_see_the_gpu(computing):
    seen = []
    x = torch.ones(2, device="cuda", requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda grad: seen.append(grad.device) or grad * 2)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.device))
    layer = nn.Linear(2, 1).cuda()
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.device))
    layer.register_full_backward_hook(lambda module, grads, outs: seen.append(outs[0].device))
    layer(y).sum().backward()
    assert seen == [GPU] * 4
    assert y.grad.is_cuda
    assert x.grad.is_cuda


# -- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", SPELLINGS.values(), ids=SPELLINGS)
def test_a_model_goes_with_its_buffers_and_its_ties(gpu, device):
    model = Tied()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert model.to(device) is model
    assert all(tensor.device == GPU for tensor in tensors(model))
    assert model.output.weight is model.embedding.weight
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert optimizer.param_groups[0]["params"][0] is model.embedding.weight
    assert model.inner[1].num_batches_tracked.device == GPU
    assert torch.cuda.memory_allocated() == weight(*tensors(model)) == 512 * 9 + 1536
    model(torch.zeros(4, dtype=torch.long, device=device)).sum().backward()
    assert all(p.grad.device == GPU for p in model.parameters())
    optimizer.step()
    for move in (model.half, model.float, model.cpu):
        assert move().output.weight is model.embedding.weight
    assert all(tensor.device.type == "cpu" for tensor in tensors(model))


def test_a_deep_copy_is_as_tied_as_its_original_and_apart_from_it(gpu):
    model = Tied().cuda()
    before = torch.cuda.memory_allocated()
    other = copy.deepcopy(model)
    assert torch.cuda.memory_allocated() == 2 * before
    assert other.output.weight is other.embedding.weight
    assert all(tensor.device == GPU for tensor in tensors(other))
    assert other.scale.data_ptr() != model.scale.data_ptr()
    assert isinstance(other.embedding.weight, nn.Parameter)
    assert copy.copy(model.scale).data_ptr() == model.scale.data_ptr()


def test_a_layer_made_without_memory_gets_it_on_the_gpu(gpu):
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        model.to("cuda")
    model.to_empty(device="cuda")
    assert all(tensor.device == GPU for tensor in tensors(model))


def test_every_initialisation_works_there(gpu):
    for name in nn.init.__all__ if hasattr(nn.init, "__all__") else dir(nn.init):
        if name.endswith("_") and not name.startswith("_"):
            square = torch.empty(4, 4, 3, device="cuda") if name == "dirac_" else torch.empty(4, 4, device="cuda")
            more = {"constant_": (1.0,), "sparse_": (0.5,)}.get(name, ())
            assert getattr(nn.init, name)(square, *more) is square
    assert torch.cuda.memory_allocated() == 512


# -- saving and loading ----------------------------------------------------------------------------------------------

PLACES = {
    "none": (None, GPU),
    "cpu": ("cpu", torch.device("cpu")),
    "device(cpu)": (torch.device("cpu"), torch.device("cpu")),
    "cuda": ("cuda", GPU),
    "cuda:0": ("cuda:0", GPU),
    "device(cuda, 0)": (torch.device("cuda", 0), GPU),
    "a dictionary": ({"cuda:0": "cpu"}, torch.device("cpu")),
    "a function": (lambda storage, place: storage.cuda() if place == "cuda:0" else storage, GPU),
    "a function that leaves it": (lambda storage, place: storage, torch.device("cpu")),
}


def saved(what):
    buffer = io.BytesIO()
    torch.save(what, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(("place", "expected"), PLACES.values(), ids=PLACES)
def test_a_checkpoint_is_loaded_where_it_is_asked_for(gpu, place, expected, weights_only):
    model = Tied().cuda()
    file = saved({"model": model.state_dict(), "step": 3, "view": model.scale[1:3]})
    before = torch.cuda.memory_allocated()
    found = torch.load(file, map_location=place, weights_only=weights_only)
    assert {t.device for t in [*found["model"].values(), found["view"]]} == {expected}
    assert torch.cuda.memory_allocated() - before == (weight(*found["model"].values()) if expected == GPU else 0)
    if gpu.compute:
        assert all(
            torch.equal(a.cpu(), b.cpu())
            for a, b in zip(found["model"].values(), model.state_dict().values(), strict=True)
        )
    other = Tied().cuda()
    assert not other.load_state_dict(found["model"]).missing_keys
    assert other.output.weight is other.embedding.weight
    assert all(tensor.device == GPU for tensor in tensors(other))
    assert not gpu.compute or torch.equal(other.embedding.weight, model.embedding.weight)


def test_a_checkpoint_from_the_host_can_be_loaded_to_the_gpu_and_back_outside(tmp_path):
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "host.pt")
    with scope():
        found = torch.load(tmp_path / "host.pt", map_location="cuda")
        assert {tensor.device for tensor in found.values()} == {GPU}
        assert torch.load(tmp_path / "host.pt")["scale"].device.type == "cpu"
        mapped = torch.load(tmp_path / "host.pt", mmap=True, map_location="cpu")
        assert mapped["scale"].cuda().tolist() == [2.0] * 300
        torch.save(found, tmp_path / "gpu.pt")
        with pytest.raises(RuntimeError, match="cuda"):
            torch.load(tmp_path / "gpu.pt", map_location="cuda:7")
    back = torch.load(tmp_path / "gpu.pt", map_location="cpu")
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())
    model.load_state_dict(back)


def test_the_state_of_an_optimizer_comes_back_to_the_gpu(gpu):
    model = Tied().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
    state = torch.load(saved(optimizer.state_dict()), map_location="cpu")
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(state)
    moments = [entry["exp_avg"] for entry in other.state.values()]
    assert {moment.device for moment in moments} == {GPU}
    copy.deepcopy(optimizer.state_dict())
    other.step()


def test_whole_models_and_tensors_can_be_pickled(gpu):
    model = torch.load(saved(Tied().cuda()), weights_only=False)
    assert all(tensor.device == GPU for tensor in tensors(model))
    assert model.output.weight is model.embedding.weight
    x = torch.arange(5.0, device="cuda", requires_grad=True)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.device == GPU
        assert y.requires_grad
        assert not gpu.compute or y.tolist() == x.tolist()
    sparse = torch.load(saved(torch.eye(3).to_sparse().cuda())) if gpu.compute else torch.eye(3).to_sparse().cuda()
    assert sparse.device == GPU


# -- values ----------------------------------------------------------------------------------------------------------


def test_exports_are_refused_until_the_tensor_is_on_the_host(gpu):
    x = torch.ones(3, device="cuda")
    for export in (x.__dlpack__, lambda: torch.utils.dlpack.to_dlpack(x), lambda: np.from_dlpack(x)):
        with pytest.raises((BufferError, RuntimeError)):
            export()
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.cpu().numpy().shape == x.numpy(force=True).shape == (3,)
    assert np.asarray(torch.ones(3)).tolist() == [1, 1, 1]


def test_values_are_read_from_the_gpu(computing):
    x = torch.tensor([[1.0, -2.5], [3, 4]], device="cuda")
    assert x.tolist() == [[1, -2.5], [3, 4]]
    assert [row.tolist() for row in x] == x.tolist()
    assert x[0, 1].item() == float(x[0, 1]) == -2.5
    assert int(x[1, 1]) == [0, 1, 2, 3, 9].index(9)
    assert list(range(int(x[1, 0]))) == [0, 1, 2]
    assert x[0, 0] > 0
    assert not x[0, 1] > 0
    assert 4 in x
    assert 5 not in x
    assert f"{x[0, 1]:.2f} {x[0, 0]}" == "-2.50 1.0"
    assert len({x, x, x.clone()}) == 2
    assert sorted(x.flatten(), key=float)[0] == -2.5


def test_a_printed_tensor_says_where_it_is(computing):
    x = torch.tensor([1.0, 2], device="cuda")
    assert repr(x) == "tensor([1., 2.], device='cuda:0')"
    assert repr(torch.zeros(2000, device="cuda")) == "tensor([0., 0., 0.,  ..., 0., 0., 0.], device='cuda:0')"
    assert "[torch.storage.UntypedStorage(device=cuda:0) of size 8]" in repr(x.untyped_storage())
    before = torch.cuda.memory_allocated()
    str(x)
    assert torch.cuda.memory_allocated() == before


def test_a_tensor_without_values_prints_its_shape():
    with scope(compute=False):
        assert repr(torch.zeros(2, 3, device="cuda")) == "tensor(..., device='cuda:0', size=(2, 3))"
        assert repr(torch.zeros(2, device="cuda").untyped_storage()).startswith("...\n[torch.storage.UntypedStorage(")


# -- the rest --------------------------------------------------------------------------------------------------------


def test_pinned_memory_is_the_hosts(gpu):
    host = torch.ones(3).pin_memory()
    assert host.pin_memory() is host
    assert torch.cuda.memory_allocated() == 0
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), [3, 2]).pin_memory()
    assert packed.is_pinned()
    assert packed.cuda().is_cuda


def test_subclasses_and_modes_see_the_moves(computing):
    calls = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(3).as_subclass(Watched)
    assert type(x.to("cuda")) is Watched
    assert torch.Tensor.to in calls
    assert x.to("cuda").device == GPU
    assert nn.Parameter(torch.ones(2)).cuda().device == GPU


def test_functional_transforms_work_through_a_move(computing):
    x = torch.tensor([1.0, 2.0])
    assert torch.func.grad(lambda t: (t.cuda() ** 2).sum().cpu())(x).tolist() == [2, 4]
    assert torch.func.vmap(lambda t: t * 2)(x.cuda()).tolist() == [2, 4]
    model = nn.Linear(2, 1).cuda()
    out = torch.func.functional_call(model, {"weight": torch.ones(1, 2, device="cuda")}, (x.cuda(),))
    assert out.is_cuda


# -- several GPUs ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def two(request):
    with scope(compute=request.param, count=2) as gpu:
        yield gpu


def test_each_gpu_has_its_own_memory(two):
    kept = [torch.ones(100, device=f"cuda:{i}") for i in (0, 1, 1)]
    assert [torch.cuda.memory_allocated(i) for i in (0, 1)] == [512, 1024]
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == 1024
        assert kept[0].to("cuda").get_device() == 1
    del kept
    assert [torch.cuda.memory_allocated(i) for i in (0, 1)] == [0, 0]


def test_tensors_go_from_gpu_to_gpu_with_their_gradients():
    with scope(count=2):
        x = torch.tensor([1.0, 2], device="cuda:0", requires_grad=True)
        y = (x.to("cuda:1") * torch.tensor([3.0, 4], device="cuda:1")).to(0)
        assert y.get_device() == 0
        y.sum().backward()
        assert x.grad.tolist() == [3, 4]
        assert x.grad.get_device() == 0
        z = torch.empty(2, device="cuda:1").copy_(x.detach())
        assert z.tolist() == [1, 2]
        assert copy.deepcopy(z).get_device() == z.clone().get_device() == torch.zeros_like(z).get_device() == 1


def test_data_parallel_gives_what_one_gpu_gives():
    with scope(count=2):
        torch.manual_seed(0)
        layer, x = nn.Linear(5, 3).cuda(), torch.randn(8, 5, device="cuda")
        expected = layer(x)
        (whole,) = torch.autograd.grad(expected.sum(), layer.weight)
        out = nn.DataParallel(layer)(x)
        assert out.get_device() == 0
        assert torch.allclose(out, expected)
        out.sum().backward()
        assert torch.allclose(layer.weight.grad, whole)
        assert torch.cuda.max_memory_allocated(1) > 0


def test_a_deep_copy_of_a_host_tensor_stays_on_the_host_with_its_original():
    with VirtualGPU("T4"):
        there, here = torch.ones(10, device="cuda"), torch.rand(10)
        copied = copy.deepcopy(here)
        for tensor in (here, copied):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                there * tensor
            assert tensor.device.type == "cpu"
        moved = copy.deepcopy(there)
        assert moved.device.type == "cuda"
        assert moved.data_ptr() != there.data_ptr()


def test_a_mask_of_the_host_may_say_where_a_number_goes():
    """As an H200 does: the mask is copied over. `masked_fill_` takes none of another device."""
    with VirtualGPU("T4"):
        mask = torch.tensor([True, False, True])
        x = torch.ones(3, 2, device="cuda")
        x[mask] = 0
        x[mask, 1] = 5.0
        assert x.tolist() == [[0, 5], [1, 1], [0, 5]]
        whole = torch.ones(3, device="cuda", dtype=torch.long)
        whole[mask] = 3
        assert whole.tolist() == [3, 1, 3]
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        doubled = leaf * 2
        doubled[mask] = 0.0
        doubled.sum().backward()
        assert leaf.grad.tolist() == [0, 2, 0]
        with pytest.raises(RuntimeError, match="same device"):
            x.masked_fill_(mask[:, None], 0)
        host = torch.ones(3)
        host[mask] = 2.0
        assert host.tolist() == [2, 1, 2]
