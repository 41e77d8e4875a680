"""torch.func on tensors of the GPU: per-sample gradients, vmap, functional_call, jacobians."""

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, stack_module_state, vjp, vmap

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
x, y = torch.randn(5, 6).to(device), torch.randint(0, 3, (5,)).to(device)
parameters = {name: p.detach() for name, p in model.named_parameters()}


def loss_of(parameters, sample, target):
    logits = functional_call(model, parameters, (sample.unsqueeze(0),))
    return nn.functional.cross_entropy(logits, target.unsqueeze(0))


single = grad(loss_of)(parameters, x[0], y[0])
each = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
assert {g.device.type for g in (*single.values(), *each.values())} == {device.type}
assert each["0.weight"].shape == (5, 8, 6)
_, value = grad_and_value(loss_of)(parameters, x[0], y[0])
losses = [sum(g.norm().item() for g in each.values()), value.item(), single["2.bias"].abs().sum().item()]


def f(v):
    return (v**3).sum()


v = torch.arange(3.0, device=device)
second = hessian(f)(v)
rows = jacrev(lambda v: v**2)(v)
assert second.device.type == device.type
losses += [second.diag().sum().item(), rows.sum().item()]
_, tangent = jvp(torch.sin, (v,), (torch.ones_like(v),))
_, pull = vjp(torch.sin, v)
losses += [tangent.sum().item(), pull(torch.ones_like(v))[0].sum().item()]
models = [nn.Linear(6, 2).to(device) for _ in range(3)]
stacked, buffers = stack_module_state(models)
skeleton = nn.Linear(6, 2, device="meta")
together = vmap(lambda p, b, v: functional_call(skeleton, (p, b), (v,)), in_dims=(0, 0, None))(stacked, buffers, x)
assert together.shape == (3, 5, 2)
losses.append(together.square().mean().item())
