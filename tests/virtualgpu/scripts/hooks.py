"""Hooks on modules, tensors, gradients and saved tensors."""

import torch
from torch import nn


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, low):
        ctx.save_for_backward(tensor)
        ctx.low = low
        return tensor.clamp(min=low)

    @staticmethod
    def backward(ctx, grad):
        (tensor,) = ctx.saved_tensors
        return grad * (tensor > ctx.low), None


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    features, gradients, devices = {}, {}, set()
    handles = [
        model[1].register_forward_hook(lambda module, args, output: features.update(relu=output.detach())),
        model[0].register_full_backward_hook(lambda module, grad_in, grad_out: gradients.update(first=grad_out[0])),
        model[2].register_forward_pre_hook(lambda module, args: (args[0] * 1.0,)),
    ]
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        parameter.register_post_accumulate_grad_hook(lambda p: devices.add(p.grad.device))
    x = torch.randn(4, 8).to(device).requires_grad_()
    hidden = model[0](x)
    hidden.retain_grad()
    loss = model(x).square().mean() + hidden.mean()
    loss.backward()
    assert devices == {x.device}, devices
    assert features["relu"].device == x.device
    assert gradients["first"].device == x.device
    assert hidden.grad.device == x.grad.device == x.device
    for handle in handles:
        handle.remove()
    losses = [loss.item(), features["relu"].sum().item(), model[0].weight.grad.sum().item(), x.grad.norm().item()]

    saved = []

    def pack(tensor):
        saved.append((tensor.device, tensor.nbytes))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(torch.randn(4, 8, device=device)).sum()
    assert {where.type for where, _ in saved} == {device.type}
    out.backward()
    with torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda"):
        out = model(torch.randn(4, 8, device=device)).sum()
    out.backward()
    model.zero_grad()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter, optimizer in optimizers.items():  # the optimizer within backward

        def step(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        handles.append(parameter.register_post_accumulate_grad_hook(step))
    model(torch.ones(2, 8, device=device)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    for handle in handles:
        handle.remove()

    z = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    Clamp.apply(z, 0.0).sum().backward()
    assert z.grad.device == z.device
    losses.append(z.grad.sum().item())
    return losses


losses = main()
