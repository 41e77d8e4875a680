"""Making tensors on the GPU in every way that a course shows, and using them."""

import numpy as np
import torch

device = torch.device("cuda")
made = [
    torch.tensor([1.0, 2.0], device="cuda"),
    torch.tensor(3, device="cuda:0"),
    torch.tensor([[True]], device=0),
    torch.tensor(np.ones(3), device=device),
    torch.as_tensor([1, 2], device="cuda"),
    torch.as_tensor(np.ones(2, dtype=np.float32), device="cuda"),
    torch.asarray([1, 2], device="cuda"),
    torch.from_numpy(np.ones(2)).cuda(),
    torch.zeros(2, 3, device="cuda"),
    torch.ones((2, 3), device=device, dtype=torch.float16),
    torch.full((2,), 7, device="cuda"),
    torch.empty(3, device="cuda").fill_(1),
    torch.rand(2, 2, device="cuda"),
    torch.randn(2, 2, device="cuda", requires_grad=True),
    torch.randint(0, 5, (3,), device="cuda"),
    torch.randperm(5, device="cuda"),
    torch.arange(5, device="cuda"),
    torch.linspace(0, 1, 3, device="cuda"),
    torch.logspace(0, 1, 3, device="cuda"),
    torch.eye(3, device="cuda"),
    torch.tril_indices(3, 3, device="cuda"),
    torch.normal(0.0, 1.0, (3,), device="cuda"),
    torch.empty(3, device="cuda").normal_(),
    torch.empty(3, device="cuda").uniform_(-1, 1),
    torch.nn.Parameter(torch.zeros(3, device="cuda")),
    torch.complex(torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")),
    torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (2,), device="cuda"),
    torch.full_like(torch.ones(2, device="cuda"), 4),
]
x = made[0]
made += [
    torch.zeros_like(x), torch.rand_like(x), x.new_zeros(3), x.new_tensor([1, 2]), x.new_ones(2), x.new_full((2,), 5.0),
    x.new_empty(1), x.clone(), x.detach(), x[0], x.view(1, 2), x.expand(3, 2), x.double(), x.long(), x > 1, x.t(),
    torch.cat([x, x]), torch.stack([x, x]), torch.where(x > 1, x, 0.0), x.contiguous(), x.repeat(2), x * 2, 2 / x, -x,
    x.sum(), x.max(), x @ x, torch.outer(x, x), x.sort().values, x.topk(1).indices, x.cumsum(0), x.softmax(0), x.half(),
    torch.nn.functional.one_hot(torch.tensor([0, 2], device="cuda"), 4), torch.einsum("i,j->ij", x, x),
    torch.bmm(x.view(1, 1, 2), x.view(1, 2, 1)), torch.meshgrid(x, x, indexing="ij")[0], torch.tensor_split(x, 2)[0],
    x.roll(1), x.flip(0), x.clamp(0, 1), torch.maximum(x, x), torch.broadcast_to(x, (4, 2)), x.reshape(2, 1), x.pow(2),
    torch.searchsorted(x, x), torch.bucketize(x, x), torch.atleast_2d(x), x.float(), x.int().bitwise_and(1),
]  # fmt: skip
for i, t in enumerate(made):
    assert t.device == torch.device("cuda:0"), (i, t.device)
    assert t.is_cuda, i
assert torch.zeros_like(x, device="cpu").device.type == "cpu"
assert torch.empty(3).to(x.device).is_cuda
x[0] = 5.0
x[1:] = torch.tensor([9.0], device="cuda")
index = torch.tensor([1, 0])
assert x[index].is_cuda
assert x[index.cuda()].is_cuda
assert (x + torch.tensor(1.0)).is_cuda  # a host tensor without dimensions may take part
assert (x * 2.0).is_cuda
x += 1
assert x.is_cuda
assert "device='cuda:0'" in repr(x)
buffer = torch.empty(2)
buffer.copy_(x)
assert buffer.device.type == "cpu"
flags = torch.zeros(4, dtype=torch.bool, device="cuda")
flags[2] = True
packed = torch.utils._pytree.tree_map(lambda t: t.to("cpu"), {"x": x, "y": [x, x]})
assert packed["y"][1].device.type == "cpu"
q, r = torch.linalg.qr(torch.randn(4, 4, device="cuda"))
assert q.is_cuda
assert torch.linalg.norm(q).is_cuda
assert torch.fft.fft(torch.randn(8, device="cuda")).is_cuda
assert torch.cdist(q, r).is_cuda
