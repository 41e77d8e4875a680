"""Every call that takes a device, with the GPU named in every way: what comes back is there, and counted.

The calls are found in PyTorch, see surface_calls.py.
"""

import dataclasses
import warnings

import pytest
import torch

from . import surface_calls
from .surface_scope import SPELLINGS, allocated, default_device, parts, same_values, scope, weight

CALLS = surface_calls.calls()
IDS = [str(call) for call in CALLS]
LAYERS = surface_calls.layers()
DEAF = ("normal", "range")  # PyTorch does not pass them the device of a context, on a GPU as elsewhere
WAYS = [*SPELLINGS, "with device(cuda)", "set_default_device"]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module", params=[True, False], ids=["values", "shapes"])
def gpu(request):
    with scope(compute=request.param) as gpu:
        yield gpu


def context(way):
    return torch.device("cuda") if way.startswith("with") else default_device("cuda")


def make(call, way):
    """The call's result, with the GPU named in this way."""
    if way in SPELLINGS:
        return call(SPELLINGS[way])
    with context(way):
        return call()


@pytest.mark.parametrize("way", WAYS[len(SPELLINGS) :])
def test_data_of_python_goes_where_the_context_says(gpu, way):
    with context(way):
        made = [torch.tensor([0, 1]), torch.as_tensor([1.0, 2.0])]
        assert torch.get_default_device() == torch.device("cuda", 0)
        assert torch.zeros(2, device="cpu").device.type == "cpu"
    assert {tensor.device for tensor in made} == {torch.device("cuda", 0)}
    assert torch.tensor([0, 1]).device.type == "cpu"


def check(gpu, call, way, expected=None):
    before = allocated()
    made = make(call, way)
    assert made.device == torch.device("cuda", 0)
    assert made.is_cuda
    assert not made.is_cpu
    assert not made.is_meta
    assert made.get_device() == 0
    assert all(part.device == torch.device("cuda", 0) for part in parts(made))
    assert allocated() - before == weight(made)
    if expected is not None:
        assert made.shape == expected.shape
        assert made.dtype == expected.dtype
        assert made.layout == expected.layout
        assert [part.stride() for part in parts(made)] == [part.stride() for part in parts(expected)]
        if call.values and gpu.compute:
            assert same_values(made, expected)
    del made
    assert allocated() == before


def without_generator(call):
    return dataclasses.replace(call, generator=False)


def takes_context(call):
    """`with torch.device` speaks to most factories; a tensor made like another one goes where that one is."""
    return not call.name.startswith("Tensor.") and not call.name.endswith("_like") and call.name not in DEAF


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_what_a_factory_makes_is_on_the_gpu(gpu, call, way):
    if way not in SPELLINGS and not takes_context(call):
        assert make(without_generator(call), way).device.type == "cpu"
        return
    check(gpu, call, way, call("cpu"))


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_a_gpu_that_does_not_exist_is_an_invalid_device_ordinal(gpu, call):
    call = without_generator(call)
    for device in ("cuda:7", 7, torch.device("cuda", 7)):
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            call(device)
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        call("cudaa")


LIKE = [call for call in CALLS if call.name.startswith("Tensor.") or call.name.endswith("_like")]


@pytest.mark.parametrize("call", LIKE, ids=map(str, LIKE))
def test_a_tensor_made_like_one_on_the_gpu_is_there_and_elsewhere_when_told(gpu, call):
    like, *rest = call.arguments
    with warnings.catch_warnings():
        moved = surface_calls.Call(call.name, (like.cuda(), *rest), call.keywords, call.values)
    if any(isinstance(item, torch.Tensor) for item in rest):
        moved = surface_calls.Call(call.name, (like.cuda(), *(r.cuda() for r in rest)), call.keywords, call.values)
        if not gpu.compute:
            return
    before = allocated()
    made = moved()
    assert made.device == torch.device("cuda", 0)
    assert allocated() - before == weight(made)
    back = moved("cpu")
    assert back.device.type == "cpu"
    assert not back.is_cuda
    if call.values:
        assert back.reshape(-1)[0] in (0, 1, 7)


def known(tensors):
    """Those whose shapes are known: lazy layers take theirs from the first input."""
    return [t for t in tensors if not isinstance(t, torch.nn.parameter.UninitializedTensorMixin)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("layer", "sizes"), LAYERS, ids=[layer.__name__ for layer, _ in LAYERS])
def test_a_layer_made_on_the_gpu_has_all_its_tensors_there(gpu, layer, sizes, way):
    before = allocated()
    if way in SPELLINGS:
        made = layer(**sizes, device=SPELLINGS[way])
    else:
        with context(way):
            made = layer(**sizes)
    tensors = [*made.parameters(), *made.buffers()]
    assert all(tensor.device == torch.device("cuda", 0) for tensor in tensors)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in made.parameters())
    assert allocated() - before == weight(*known(tensors))
    del made, tensors
    assert allocated(cycles=True) == before


@pytest.mark.parametrize("way", list(SPELLINGS))
@pytest.mark.parametrize(("layer", "sizes"), LAYERS, ids=[layer.__name__ for layer, _ in LAYERS])
def test_a_layer_moved_to_the_gpu_has_all_its_tensors_there(gpu, layer, sizes, way):
    before = allocated()
    if not gpu.compute and layer.__name__.startswith("Lazy"):
        with pytest.raises(NotImplementedError, match="make it on the GPU"):
            layer(**sizes).to(SPELLINGS[way])
        return
    made = layer(**sizes).to(SPELLINGS[way])
    tensors = [*made.parameters(), *made.buffers()]
    assert all(tensor.device == torch.device("cuda", 0) for tensor in tensors)
    assert allocated() - before == weight(*known(tensors))
    del tensors
    host = made.cpu()
    assert all(tensor.device.type == "cpu" for tensor in [*host.parameters(), *host.buffers()])
    assert allocated(cycles=True) == before
