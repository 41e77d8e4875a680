"""On shapes alone, what PyTorch makes on the host has no values either, from 1 MiB on; the rest keeps them."""

import copy
import io
import pickle
import re
import warnings
import weakref

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope.refusals import NoValues

HUGE = (1 << 20, 1 << 16)  # 256 GiB, more than the machines of the tests have
HERE = re.escape("test_host_shapes.py")


@pytest.fixture(autouse=True)
def shapes():
    with VirtualGPU("T4", compute=False) as gpu, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield gpu


def large(*shape, **kind):
    return torch.randn(shape or (512, 1024), **kind)


@pytest.mark.parametrize("compute", [False, True], ids=["shapes", "values"])
def test_what_is_made_like_a_meta_tensor_is_one(compute):
    """As `fully_shard` makes the parts of a model that is built on the meta device."""
    with VirtualGPU("T4", compute=compute):
        weight = torch.empty(HUGE, device="meta")
        for made in (weight.new_zeros(HUGE), torch.zeros_like(weight), weight.new_full((512, 1024), 1.0)):
            assert made.is_meta
        assert torch.cuda.memory_allocated() == 0


# -- made anywhere ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(512, 1024),
        lambda: torch.ones(512, 1024, device="cpu"),
        lambda: torch.full((512, 1024), 3.0),
        lambda: torch.empty_strided((512, 1024), (1, 512)),
        lambda: torch.arange(1 << 20, dtype=torch.float32),
        lambda: torch.linspace(0, 1, 1 << 20),
        lambda: torch.zeros_like(torch.from_numpy(np.ones((8, 512, 1024)))),
        lambda: torch.from_numpy(np.ones(1)).new_zeros(8, 512, 1024),
        lambda: torch.tensor(1.0).new_full((8, 512, 1024), 2.0),
        lambda: nn.Linear(1024, 1024).weight,
        lambda: nn.init.trunc_normal_(torch.empty(512, 1024)),
        lambda: nn.init.orthogonal_(torch.empty(512, 1024)),
        lambda: large() @ large(1024, 512),
        lambda: large().t().contiguous(),
        lambda: large().half(),
        lambda: large()[3].expand(9, -1) + torch.ones(1024),
        lambda: torch.randint(9, (1 << 24,)),
        lambda: copy.deepcopy(large()),
        lambda: pickle.loads(pickle.dumps(large())),
        lambda: large().pin_memory(),
        lambda: torch.cat([large(), torch.ones(1, 1024)]),
        lambda: torch.ones(1024).add_(large()[0]),
    ],
)
def test_reading_a_value_is_an_error_that_names_the_tensor(make):
    tensor = make()
    assert (tensor.device, tensor.is_cpu, tensor.is_meta, tensor.is_cuda) == (torch.device("cpu"), True, False, False)
    for read in (
        lambda: tensor.flatten()[0].item(),
        lambda: tensor.numpy(),
        lambda: np.asarray(tensor),
        lambda: tensor.tolist(),
        lambda: tensor.nonzero(),
        lambda: tensor[tensor == 1],
        lambda: bool(tensor.argmax() == 1),
        lambda: torch.equal(tensor, tensor.clone()),
        lambda: tensor.double().map_(tensor.double(), max),
        lambda: torch.utils.dlpack.to_dlpack(tensor),
        lambda: tensor.untyped_storage()[0],
    ):
        with pytest.raises(NoValues, match=r"a host tensor .* made by .*compute=False") as caught:
            read()
        assert "values" in str(caught.value) or "bytes" in str(caught.value)


def test_the_error_says_what_was_asked_and_where_the_tensor_was_made():
    weights = torch.empty(300, 2000)
    with pytest.raises(NoValues, match=rf"made by aten\.sum\.default at {HERE}:\d+\."):
        weights.sum().item()
    with pytest.raises(NoValues, match=rf"a host tensor \(300, 2000\) of float32, made by aten\.empty.* at {HERE}:\d+"):
        weights.tolist()


def test_it_takes_no_memory_of_the_host():
    before = psutil.Process().memory_info().rss
    layers = [nn.Linear(16384, 16384) for _ in range(8)]  # 8 GiB
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
    moved = copy.deepcopy(layers[0]).half().to("cuda")
    assert moved.weight.device.type == "cuda"
    assert psutil.Process().memory_info().rss - before < 300 << 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.ones((2048, 1024), np.float32)),
        lambda: torch.from_numpy(np.ones((2048, 1024), np.float32)).double().half(),
        lambda: torch.tensor(np.ones((2048, 1024), np.float32)),
        lambda: torch.as_tensor(np.ones((2048, 1024), np.float32)).clone().pin_memory(),
        lambda: torch.stack([torch.from_numpy(np.ones((1024, 1024))), torch.from_numpy(np.ones((1024, 1024)))]),
        lambda: torch.ones(1000, 100),
    ],
)
def test_what_comes_from_numpy_and_what_is_small_keeps_its_values(make):
    tensor = make()
    assert tensor.float().mean().item() == 1
    assert tensor.cuda().shape == tensor.shape


def test_an_order_and_words_keep_their_values():
    assert sorted(torch.randperm(1 << 18).tolist()) == list(range(1 << 18))
    assert 0 <= torch.randint(9, (1 << 20,)).max() < 9


# -- on its way to the GPU -------------------------------------------------------------------------------------------


def net(device):
    return nn.Sequential(nn.Linear(600, 700, device=device), nn.ReLU(), nn.Linear(700, 10, device=device))


@pytest.mark.parametrize("moved", [lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m.half().cuda().float()])
def test_a_model_made_on_the_host_takes_what_one_made_on_the_gpu_takes(moved):
    peaks = []
    for device in ("cuda", "cpu"):
        torch._C._cuda_clearCublasWorkspaces()  # kept up to PyTorch 2.14: only the first would take one
        model = net(device) if device == "cuda" else moved(net(device))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(large(32, 600, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del model, optimizer
    assert peaks[0] == peaks[1]


def test_tied_weights_optimizers_and_references_follow():
    first, second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)
    second.weight = first.weight
    both = nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(both.parameters(), 0.1)
    seen, reference = [], weakref.ref(first.weight)
    first.weight.register_hook(lambda grad: seen.append(grad.device))
    first.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.device))
    first.weight.note = "mine"
    both.to("cuda")
    assert reference() is first.weight is second.weight is optimizer.param_groups[0]["params"][0]
    assert first.weight.note == "mine"
    first(torch.zeros(2, 1024, device="cuda")).sum().backward()
    assert seen == [torch.device("cuda:0")] * 2
    assert torch.cuda.memory_allocated() > 2 * first.weight.nbytes


@pytest.mark.parametrize("size", [8, 1024])
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_norm(normed, size):
    layer = normed(nn.Linear(size, size)).to("cuda")
    layer(torch.zeros(2, size, device="cuda")).sum().backward()
    assert {p.grad.device for p in layer.parameters()} == {torch.device("cuda:0")}


def test_a_recurrent_layer_that_refers_to_its_weights():
    assert nn.LSTM(512, 512, 2).to("cuda")(large(3, 2, 512, device="cuda"))[0].device.type == "cuda"


def test_training_on_the_host_goes_on_without_values():
    model = net("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 600)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert {p.grad.device for p in model.parameters()} == {torch.device("cpu")}


def test_a_part_that_stays_on_the_host_trains_with_one_on_the_gpu():
    words, head = nn.Embedding(5000, 512), nn.Linear(512, 10, device="cuda")
    head(words(torch.arange(8)).cuda()).sum().backward()
    assert words.weight.grad.device == torch.device("cpu")
    assert words.weight.grad.shape == words.weight.shape


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.t_(),
        lambda t: t[3:5, ::2].t_(),
        lambda t: t.unsqueeze_(0),
        lambda t: t[None].squeeze_(),
        lambda t: t.resize_(2048, 2048),
        lambda t: t.transpose_(0, 1).add_(1),
        lambda t: torch.add(t, 1, out=t.new_empty(0)),
        lambda t: torch.mul(t[0], 1, out=t[1]),
        lambda t: t.view(-1).narrow(0, 5, 9).zero_(),
        lambda t: torch._foreach_mul_([t, t[0]], 2) and t,
    ],
)
def test_what_changes_a_shape_in_place_does(change):
    made, expected = (change(torch.empty(512, 1024, device=device)) for device in ("cpu", "meta"))
    if made is not None:
        assert (made.shape, made.stride(), made.storage_offset()) == (
            expected.shape,
            expected.stride(),
            expected.storage_offset(),
        )
        with pytest.raises(NoValues):
            made.tolist()


def test_other_devices_are_refused_as_on_cuda():
    with pytest.raises(RuntimeError, match=r"mat1 is on cuda:0, different from other tensors on cpu"):
        nn.Linear(1024, 1024)(torch.zeros(1, 1024, device="cuda"))


def test_a_large_copy_from_the_gpu_has_no_values():
    with pytest.raises(NoValues, match="made by a copy from the GPU"):
        torch.zeros(1 << 25, device="cuda").cpu().tolist()


# -- files and processes ---------------------------------------------------------------------------------------------


def test_a_checkpoint_is_saved_and_loaded_without_values_where_they_are_many(tmp_path):
    layer, file = nn.Linear(1024, 1024), tmp_path / "state.pt"
    layer.bias.data.fill_(3)
    torch.save({"layer": layer.state_dict(), "epoch": torch.tensor(7)}, file)
    assert file.stat().st_size > layer.weight.nbytes
    for target in ("cpu", "cuda"):
        state = torch.load(file, map_location=target)
        assert {t.device.type for t in state["layer"].values()} == {target}
    state = torch.load(file)
    assert state["epoch"].item() == 7
    assert state["layer"]["bias"].tolist() == [3] * 1024
    with pytest.raises(NoValues, match=r"made by torch\.load"):
        state["layer"]["weight"].tolist()
    other = nn.Linear(1024, 1024)
    other.load_state_dict(state["layer"])
    other.to("cuda").load_state_dict(state["layer"])


def test_so_it_is_in_the_old_format():
    file = io.BytesIO()
    torch.save(large(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert torch.load(file).shape == (512, 1024)


class Drawn(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return large(600, 600), index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_what_a_data_set_draws_comes_through_a_loader(workers, pinned):
    for images, labels in DataLoader(Drawn(), 3, num_workers=workers, pin_memory=pinned):
        assert images.shape == (3, 600, 600)
        assert images.is_pinned() == pinned
        assert images.cuda(non_blocking=True).device.type == "cuda"
        assert labels.tolist() in ([0, 1, 2], [3, 4, 5])
        with pytest.raises(NoValues):
            images.sum().item()


# -- where values are ------------------------------------------------------------------------------------------------


def test_it_prints_its_shape_and_shared_memory_is_let_be():
    assert repr(large()) == "tensor(..., size=(512, 1024))"
    assert large().share_memory_().shape == (512, 1024)


def test_with_values_the_host_keeps_its_own(monkeypatch):
    with VirtualGPU("T4"):
        assert torch.ones(1 << 20).sum().item() == 1 << 20
        poor = type("Memory", (), {"available": 300 << 20})()
        monkeypatch.setattr(psutil, "virtual_memory", lambda: poor)
        for make in (
            lambda: torch.empty(HUGE),
            lambda: torch.zeros(*HUGE, dtype=torch.uint8),
            lambda: nn.Linear(1 << 15, 1 << 15),
            lambda: torch.zeros(1).new_empty(HUGE),
            lambda: torch.zeros(1, 1).expand(1 << 14, 1 << 14).clone().shape and torch.empty(HUGE),
        ):
            with pytest.raises(
                MemoryError, match=r"on the host, but this machine.*has only 300 MiB left.*--shapes-only"
            ):
                make()


@pytest.mark.parametrize(
    "make",
    [
        lambda number: torch.tensor([number]),
        lambda number: torch.tensor([[1.0, number]], device="cuda"),
        lambda number: torch.as_tensor([number, 2.0]),
        lambda number: torch.asarray((number,), device="cuda"),
        lambda number: number.new_tensor([number]),
        lambda number: torch.FloatTensor([number]),
        lambda number: torch.sparse_coo_tensor([[0]], [number], (2,)),
    ],
)
def test_a_list_that_holds_one_is_not_read(make):
    with pytest.raises(NoValues, match=rf"reads the values of a host tensor \(512, 1024\).*{HERE}"):
        make(large()[0, 0])
    assert torch.tensor([torch.ones(()), torch.zeros(())]).tolist() == [1, 0]


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight.sum().item(),
        lambda weight: (weight + 1).tolist(),
        lambda weight: weight.cuda(),
        lambda weight: torch.zeros(512, 1024, device="cuda").copy_(weight),
        lambda weight: torch.ones(3, device="cuda") * weight[0, 0],
    ],
)
def test_a_scope_with_values_inside_does_not_read_it_either(read):
    weight = large()
    with VirtualGPU("T4"), pytest.raises(NoValues, match=HERE):
        read(weight)


def test_after_the_scope_nothing_of_it_is_left():
    with VirtualGPU("T4", compute=False):
        pass
    names = torch.load, torch.utils.swap_tensors, torch._C.PyTorchFileReader.get_storage_from_record, torch.Tensor.item
    with VirtualGPU("T4"):
        assert torch.randn(1024, 1024).mean().item() < 1
    assert names[0] is torch.load


def allocations(compute):
    with VirtualGPU("T4", compute=compute):
        v = torch.arange(3.0, device="cuda")
        torch.cuda.memory._record_memory_history()
        torch.func.hessian(lambda v: (v**3).sum())(v)
        (events,) = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(enabled=None)
    return [(event["action"], event["size"]) for event in events]


def test_a_product_with_a_tensor_of_zeros_looks_up_its_shape_without_memory():
    """In derivatives forwards PyTorch asks meta kernels written in Python, and without values those met our tensors."""
    assert allocations(compute=False) == allocations(compute=True)


def layouts_of_gradients(compute):
    """Of a convolution into patches whose result's gradient lies channels last: of the image and of the weights."""
    with VirtualGPU("T4", compute=compute):
        image = torch.ones(4, 3, 64, 64, device="cuda", requires_grad=True)
        patches = nn.Conv2d(3, 192, 16, 16, device="cuda")
        along = torch.ones(4, 17, 192, device="cuda")[:, 1:].transpose(1, 2).view(4, 192, 4, 4)
        return [g.stride() for g in torch.autograd.grad(patches(image), (image, patches.weight), along)]


def test_the_gradients_of_a_convolution_lie_as_with_values_however_its_results_does():
    """As in a vision transformer. PyTorch 2.11 goes by that gradient without values, cuDNN by image and weights."""
    assert layouts_of_gradients(compute=False) == layouts_of_gradients(compute=True)
    assert layouts_of_gradients(compute=False)[1] == (768, 256, 16, 1)
