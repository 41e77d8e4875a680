"""Where tensors and modules are, and the insisting on it."""

import pytest
import torch
from torch import nn

from gpulab.devices import WrongDevice, placement, print_tensor_info, tensor_info, verify_model_device
from virtualgpu.gpu import VirtualGPU


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpus(request):
    with VirtualGPU("T4", count=2, compute=request.param) as scope:
        yield scope


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def test_a_tensor_is_told_in_one_line(gpus, capsys):
    print_tensor_info(torch.zeros(32, 100, device="cuda:1", requires_grad=True), "x")
    assert capsys.readouterr().out == "x: shape (32, 100), float32 on cuda:1 (virtual), 12,800 bytes, requires grad\n"
    print_tensor_info(torch.zeros(4, dtype=torch.int64))
    assert capsys.readouterr().out == "tensor: shape (4,), int64 on cpu, 32 bytes, no grad\n"


def test_a_view_says_what_it_keeps_alive():
    found = tensor_info(torch.zeros(1000)[:10])
    assert (found.nbytes, found.storage_bytes) == (40, 4000)
    assert "40 bytes of a storage of 4,000 bytes" in str(found)


def test_a_sparse_tensor_has_the_bytes_of_its_parts():
    assert tensor_info(torch.eye(8).to_sparse()).nbytes == 8 * (2 * 8 + 4)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"batch must be a tensor, not \[1, 2\] \(list\)"):
        print_tensor_info([1, 2], "batch")


@pytest.mark.parametrize("expected", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)])
def test_every_spelling_of_the_current_gpu_agrees(gpus, expected):
    found = verify_model_device(Tied().cuda(), expected)
    assert found.devices == ("cuda:0",)


def test_cuda_means_the_current_gpu(gpus):
    model = Tied().to("cuda:1")
    with torch.cuda.device(1):
        assert verify_model_device(model, "cuda").devices == ("cuda:1",)
    with pytest.raises(WrongDevice, match="not on cuda:0"):
        verify_model_device(model, "cuda")


def test_a_buffer_elsewhere_is_found_and_named(gpus):
    model = Tied().cuda()
    model.norm.running_mean = torch.zeros(4)
    with pytest.raises(
        ValueError, match=r"1 tensor of the model not on cuda:0: buffer norm\.running_mean on cpu"
    ) as caught:
        verify_model_device(model, "cuda")
    assert caught.value.elsewhere == {"norm.running_mean": "cpu"}


def test_many_tensors_elsewhere_are_counted_and_the_first_named():
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(10)])
    with pytest.raises(WrongDevice, match=r"20 tensors of the model not on cuda:0: parameter 0\.weight .* and 12 more"):
        verify_model_device(model, "cuda:0")


def test_a_gpu_is_not_found_where_there_is_none():
    with pytest.raises(WrongDevice, match="not on cuda:0: parameter weight on cpu, parameter bias on cpu"):
        verify_model_device(nn.Linear(2, 2), torch.device("cuda"))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_the_cpu_and_meta_have_one_number_only(place):
    model = Tied().to(place)
    assert verify_model_device(model, place) == verify_model_device(model, f"{place}:0")


@pytest.mark.parametrize(
    ("expected", "error"),
    [(None, TypeError), ("all", TypeError), (True, TypeError), ("gpu", ValueError), (-1, ValueError)],
)
def test_what_is_no_device_is_refused(expected, error):
    with pytest.raises(error, match="expected must"):
        verify_model_device(nn.Linear(2, 2), expected)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not 'resnet18'"):
        verify_model_device("resnet18", "cpu")


def test_tied_weights_count_once(gpus):
    found = placement(Tied().cuda())
    assert found.nbytes == 4 * (10 * 4 + 4 * 4) + 8
    assert found.tied == ("head.weight",)
    assert [(s.dtype, s.parameters, s.buffers, s.nbytes) for s in found.shares] == [
        ("float32", 3, 2, 224),
        ("int64", 0, 1, 8),
    ]


def test_a_module_in_two_places_is_told_by_place_and_dtype(gpus):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half().to("cuda:1"))
    found = placement(model)
    assert found.devices == ("cpu", "cuda:1")
    assert str(found).splitlines() == [
        "cpu      float32          80 bytes  2 parameters, 0 buffers",
        "cuda:1   float16          40 bytes  2 parameters, 0 buffers",
        "the GPU is virtual",
    ]


def test_a_module_of_nothing_is_everywhere():
    assert str(verify_model_device(nn.ReLU(), "cuda")) == "no parameters and no buffers"


def test_a_lazy_module_has_no_bytes_yet():
    found = placement(nn.LazyLinear(4))
    assert (found.nbytes, found.shares[0].parameters) == (0, 2)
