"""Random numbers of the GPU: seeds, generators, states, sampling."""

import torch

torch.manual_seed(7)
a = torch.randn(4, device="cuda")
torch.manual_seed(7)
b = torch.randn(4, device="cuda")
torch.cuda.manual_seed_all(8)
c = torch.randn(4, device="cuda")
torch.cuda.manual_seed(8)
d = torch.randn(4, device="cuda")
generator = torch.Generator(device="cuda").manual_seed(3)
assert generator.device.type == "cuda"
e = torch.rand(4, device="cuda", generator=generator)
generator.manual_seed(3)
f = torch.rand(4, device="cuda", generator=generator)
assert generator.initial_seed() == 3
state = torch.cuda.get_rng_state()
g = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
h = torch.rand(4, device="cuda")
host = torch.rand(4)
torch.manual_seed(7)
torch.rand(100, device="cuda")
first = torch.rand(1)
torch.manual_seed(7)
second = torch.rand(1)
assert torch.equal(first, second)  # the GPU's numbers leave the host's alone
with torch.random.fork_rng(devices=[0]):
    torch.rand(3, device="cuda")
assert torch.randperm(5, device="cuda", generator=generator).is_cuda
assert torch.multinomial(torch.ones(3, device="cuda"), 2, generator=generator).is_cuda
assert torch.bernoulli(torch.full((3,), 0.5, device="cuda"), generator=generator).is_cuda
x = torch.empty(5, device="cuda").normal_(generator=generator)
dropped = torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.3)
for bad in (
    lambda: torch.rand(4, device="cuda", generator=torch.Generator()),
    lambda: torch.rand(4, generator=generator),
):
    refused = ""
    try:
        bad()
    except RuntimeError as error:
        refused = str(error)
    assert "generator" in refused, "a generator of the wrong device must be refused"
normal = torch.distributions.Normal(torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"))
assert normal.sample((2,)).is_cuda
assert normal.rsample().is_cuda
assert torch.distributions.Categorical(logits=torch.zeros(4, device="cuda")).sample().is_cuda
print(torch.cuda.initial_seed(), torch.initial_seed())
pairs = [(a, b), (c, d), (e, f), (g, h)]
kept = (dropped == 0).float().mean()
