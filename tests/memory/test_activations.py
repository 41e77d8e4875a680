"""What autograd keeps for backward, in bytes: on the CPU, on shapes alone, and on the virtual GPU."""

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpulab.memory import GPUMemoryTracker, activation_bytes
from virtualgpu.gpu import VirtualGPU

WIDTH, BATCH = 64, 32
ACTIVATION = WIDTH * BATCH * 4


@pytest.fixture(params=["cpu", "meta", "values", "shapes"])
def device(request):
    if request.param in ("cpu", "meta"):
        yield request.param
    else:
        with VirtualGPU("T4", compute=request.param == "values"):
            yield "cuda"


def stack(device, depth=4):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


def batch(device, **kwargs):
    return torch.randn(BATCH, WIDTH, device=device, **kwargs)


def test_activations_count_and_weights_and_inputs_do_not(device):
    found = activation_bytes(stack(device), batch(device))
    # Each ReLU keeps its output, which is also what the next layer keeps: one storage.
    assert found.total == 4 * ACTIVATION
    assert found.input_bytes == ACTIVATION
    assert found.output_bytes == 0
    assert found.by_module == {"1": ACTIVATION, "3": ACTIVATION, "5": ACTIVATION, "7": ACTIVATION}


def test_an_output_that_autograd_does_not_keep_is_told_apart(device):
    found = activation_bytes(nn.Linear(WIDTH, WIDTH).to(device), batch(device))
    assert (found.total, found.input_bytes, found.output_bytes) == (0, ACTIVATION, ACTIVATION)


def test_it_leaves_no_memory_behind():
    with VirtualGPU("T4"):
        model, x = stack("cuda"), batch("cuda")
        model(x)
        before = torch.cuda.memory_allocated()
        activation_bytes(model, x)
        assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("compute", [True, False], ids=["values", "shapes"])
def test_with_the_output_it_is_what_a_forward_pass_adds_to_allocated_memory(compute):
    with VirtualGPU("T4", compute=compute, mirror=False):
        model, x = stack("cuda"), batch("cuda")
        found = activation_bytes(model, x)
        with GPUMemoryTracker() as seen:
            y = model(x)
        assert seen.delta_bytes == found.total + found.output_bytes
        del y


def test_views_of_one_storage_count_once_and_whole(device):
    weight = nn.Parameter(torch.ones(WIDTH, device=device))

    def model(x):
        both = torch.cat([x, x])
        first, second = both.chunk(2)
        return first * weight, second * weight

    found = activation_bytes(model, batch(device))
    assert found.total == 2 * ACTIVATION
    assert found.output_bytes == 2 * ACTIVATION


def test_parameters_do_not_count_in_a_function_either(device):
    model = stack(device)
    assert activation_bytes(lambda x: model(x), batch(device)).total == 4 * ACTIVATION


def test_what_the_graph_has_let_go_of_does_not_count(device):
    model = stack(device)

    def twice(x):
        model(x)
        return model(x)

    assert activation_bytes(twice, batch(device)).total == 4 * ACTIVATION


def test_nothing_is_kept_without_grad(device):
    with torch.no_grad():
        found = activation_bytes(stack(device), batch(device))
    assert (found.total, found.input_bytes, found.output_bytes) == (0, 0, ACTIVATION)
    with torch.inference_mode():
        assert activation_bytes(stack(device), batch(device)).total == 0


def test_an_input_that_requires_grad_is_still_an_input(device):
    found = activation_bytes(lambda x: x.square(), batch(device, requires_grad=True))
    assert (found.total, found.input_bytes) == (0, ACTIVATION)


def test_checkpointing_keeps_only_what_enters_each_part(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(stack(device) for _ in range(3))

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=False)
            return x

    found = activation_bytes(Model(), batch(device))
    assert (found.total, found.input_bytes, found.output_bytes) == (2 * ACTIVATION, ACTIVATION, ACTIVATION)


def test_keyword_inputs_and_nested_outputs_are_seen(device):
    def model(*, pair):
        return {"a": [pair[0] * pair[1]]}

    x, y = batch(device, requires_grad=True), batch(device)
    found = activation_bytes(model, pair=(x, y))
    assert (found.total, found.input_bytes, found.output_bytes) == (0, ACTIVATION, ACTIVATION)


def test_dropout_on_the_gpu_keeps_a_mask_of_one_byte():
    with VirtualGPU("T4"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)).cuda()
        assert activation_bytes(model, batch("cuda")).by_module == {"1": WIDTH * BATCH}


def test_lesson_04_s_vgg_keeps_less_than_8_bytes_per_parameter():
    with VirtualGPU("T4", compute=False):
        model = torchvision.models.vgg16().to("cuda")
        kept = activation_bytes(model, torch.randn(12, 3, 224, 224, device="cuda")).total
        states = 8 * sum(p.numel() for p in model.parameters())
    assert (round(kept / 2**20), round(states / 2**20)) == (832, 1056)


def test_copies_of_weights_in_16_bits_count():
    with VirtualGPU("T4"):
        model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            found = activation_bytes(model, batch("cuda", requires_grad=True))
    assert found.total == WIDTH * WIDTH * 2 + ACTIVATION // 2


def test_the_model_is_left_as_it_was(device):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)).to(device)
    model[2].eval()
    buffers = dict(model.named_buffers())
    versions = {name: buffer._version for name, buffer in buffers.items()}
    activation_bytes(model, batch(device))
    assert [module.training for module in model] == [True, True, False]
    assert {name: buffer._version for name, buffer in model.named_buffers()} == versions
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_random_numbers_go_on_as_if_nothing_had_happened(where):
    with VirtualGPU("T4"):
        model, x = nn.Dropout(0.5), batch(where)
        torch.manual_seed(1)
        expected = torch.rand(3, device=where).tolist(), torch.rand(3).tolist()
        torch.manual_seed(1)
        activation_bytes(model, x)
        assert (torch.rand(3, device=where).tolist(), torch.rand(3).tolist()) == expected


def test_an_exception_of_the_model_passes_through_and_leaves_no_hook(device):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH, device=device)

        def forward(self, x):
            raise KeyError(self.inner(x).shape)

    model = Broken()
    with pytest.raises(KeyError):
        activation_bytes(model, batch(device))
    assert not model.inner._forward_hooks
    y = model.inner(batch(device)).exp()
    assert isinstance(y.grad_fn._saved_result, torch.Tensor)


def test_a_lazy_model_is_made_and_its_parameters_do_not_count():
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU())
    assert activation_bytes(model, batch("cpu")).total == ACTIVATION


def test_a_sparse_tensor_counts_by_its_parts():
    sparse = torch.eye(8).to_sparse().requires_grad_()
    found = activation_bytes(lambda dense: torch.sparse.mm(sparse, dense), torch.randn(8, 4))
    assert found.input_bytes == 8 * 4 * 4
    assert found.total == sparse._indices().nbytes + sparse._values().nbytes


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="model must be a module or a function, not 3"):
        activation_bytes(3)


def test_it_reads_as_one_line():
    assert str(activation_bytes(stack("cpu"), batch("cpu"))) == (
        "32,768 bytes kept for backward, besides 8,192 bytes of the inputs"
    )
