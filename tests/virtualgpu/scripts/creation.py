"""Tensors of the GPU as operands: each result is there, whatever made it."""

import torch

x = torch.tensor([1.0, 2.0], device="cuda")
made = [
    torch.empty(3, device="cuda").normal_(), torch.empty(3, device="cuda").uniform_(-1, 1),
    torch.complex(torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")), x.clone(), x.detach(), x[0],
    x.view(1, 2), x.expand(3, 2), x.double(), x.long(), x > 1, x.t(),
    torch.cat([x, x]), torch.stack([x, x]), torch.where(x > 1, x, 0.0), x.contiguous(), x.repeat(2), x * 2, 2 / x, -x,
    x.sum(), x.max(), x @ x, torch.outer(x, x), x.sort().values, x.topk(1).indices, x.cumsum(0), x.softmax(0), x.half(),
    torch.nn.functional.one_hot(torch.tensor([0, 2], device="cuda"), 4), torch.einsum("i,j->ij", x, x),
    torch.bmm(x.view(1, 1, 2), x.view(1, 2, 1)), torch.meshgrid(x, x, indexing="ij")[0], torch.tensor_split(x, 2)[0],
    x.roll(1), x.flip(0), x.clamp(0, 1), torch.maximum(x, x), torch.broadcast_to(x, (4, 2)), x.reshape(2, 1), x.pow(2),
    torch.searchsorted(x, x), torch.bucketize(x, x), torch.atleast_2d(x), x.float(), x.int().bitwise_and(1),
    torch.fft.fft(torch.randn(8, device="cuda")), *torch.linalg.qr(torch.randn(4, 4, device="cuda")),
]  # fmt: skip
made += [torch.cdist(made[-1], made[-2]), torch.linalg.norm(made[-1])]
x[0] = 5.0
x[1:] = torch.tensor([9.0], device="cuda")
index = torch.tensor([1, 0])
made += [x[index], x[index.cuda()], x + torch.tensor(1.0), x * 2.0]  # a host tensor without dimensions may take part
x += 1
for i, t in enumerate([*made, x]):
    assert t.device == torch.device("cuda:0"), (i, t.device)
    assert t.is_cuda, i
packed = torch.utils._pytree.tree_map(lambda t: t.to("cpu"), {"x": x, "y": [x, torch.empty(2).copy_(x)]})
assert packed["x"].device.type == packed["y"][1].device.type == "cpu"
