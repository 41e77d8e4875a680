"""Moving a model and its data, in every way that a course shows."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 2))
before = next(model.parameters())
assert model.to(device) is model
assert next(model.parameters()).device.type == device.type
assert all(buffer.device.type == device.type for buffer in model.buffers())
if device.type == "cuda":
    assert next(model.parameters()) is before or torch.__future__.get_swap_module_params_on_conversion()
    assert str(before.device) == "cuda:0"

x = torch.randn(32, 10)
moved = x.to(device)
assert moved.to(device) is moved
output = model(moved)
losses = [output.square().mean().item()]
assert output.device == moved.device

if device.type == "cuda":
    for again in (
        x.cuda(), x.cuda(0), x.to("cuda"), x.to("cuda:0"), x.to(0), x.to(torch.device("cuda")), x.to(moved),
        x.to("cuda", torch.float32), x.to(device="cuda", non_blocking=True), x.to(device=0, dtype=torch.float32),
        x.cuda(non_blocking=True), x.to("cuda", copy=True), x.type(torch.cuda.FloatTensor), x.pin_memory().to("cuda"),
    ):  # fmt: skip
        assert again.device == torch.device("cuda:0"), again.device
        assert again.is_cuda
        assert not again.is_cpu
        assert again.dtype == torch.float32
        assert again.get_device() == 0
        back = again.cpu()
        assert back.device.type == "cpu"
        assert back.get_device() == -1
    assert isinstance(model.cuda(), nn.Module)
    assert isinstance(model.to(0), nn.Module)
    assert isinstance(model.to("cuda:0"), nn.Module)

array = np.arange(12, dtype=np.float32).reshape(3, 4)
tensor = torch.from_numpy(array).to(device)
total = tensor.sum()
back = (tensor * 2).cpu().numpy()
host = output.detach().cpu().numpy()
assert back.shape == (3, 4)
assert host.dtype == np.float32
assert torch.Tensor.numpy(torch.zeros(2)).shape == (2,)
refused = ""
try:
    tensor.numpy()
except TypeError as error:
    refused = str(error)
assert ("Use Tensor.cpu() to copy the tensor to host memory first" in refused) == (device.type == "cuda")
model.cpu()
assert next(model.parameters()).device == torch.device("cpu")
assert model(x).device == torch.device("cpu")
grown = torch.zeros_like(moved, device="cpu")
assert grown.device == torch.device("cpu")
values = [total.item(), float(back.sum())]
