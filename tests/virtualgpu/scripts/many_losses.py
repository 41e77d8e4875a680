"""Other tasks in short: regression, multi-label, metric learning, CTC, bags of embeddings, KL distillation, VAE."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
a = torch.randn(6, 8).to(device).requires_grad_()
b = torch.randn(6, 8).to(device)
labels = torch.randint(0, 8, (6,)).to(device)
signs = (torch.randint(0, 2, (6,)) * 2 - 1).to(device)
losses = []
tasks = [
    lambda: F.l1_loss(a, b),
    lambda: F.huber_loss(a, b),
    lambda: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
    lambda: F.binary_cross_entropy_with_logits(a, b.sigmoid(), pos_weight=torch.ones(8, device=device) * 2),
    lambda: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"),
    lambda: F.cosine_embedding_loss(a, b, signs),
    lambda: F.triplet_margin_loss(a, b, b.flip(0)),
    lambda: F.margin_ranking_loss(a[:, 0], b[:, 0], signs),
    lambda: F.multi_margin_loss(a, labels),
    lambda: F.poisson_nll_loss(a, b.abs()),
    lambda: F.cross_entropy(a, b.softmax(1)),
    lambda: F.nll_loss(a.log_softmax(1), labels),
    lambda: (F.normalize(a) @ F.normalize(b).t() / 0.1).logsumexp(1).mean(),
    lambda: torch.cdist(a, b).mean(),
    lambda: F.cosine_similarity(a, b).mean(),
    lambda: F.pairwise_distance(a, b).mean(),
    lambda: a.std() + a.var(0).sum(),
    lambda: F.softplus(a).sum() + F.elu(a).sum() + F.mish(a).sum() + F.hardswish(a).mean() + F.glu(a).mean(),
    lambda: torch.linalg.vector_norm(a) + torch.linalg.matrix_norm(a @ a.t()),
    lambda: a.clamp(-1, 1).prod(1).sum(),
    lambda: a.cumsum(1).max(1).values.sum() + a.sort(1).values[:, 0].sum() + a.topk(2).values.sum(),
    lambda: torch.where(a > 0, a, -a).gather(1, labels.view(-1, 1)).sum(),
    lambda: torch.zeros(6, 8, device=device).scatter_add(1, labels.view(-1, 1), a[:, :1]).square().sum(),
    lambda: torch.einsum("bi,bj->bij", a, b).triu().sum(),
    lambda: a.masked_fill(b > 0, 0.0).index_select(1, labels).sum(),
]
for task in tasks:
    a.grad = None
    loss = task()
    loss.backward()
    assert a.grad.device.type == device.type
    losses += [loss.item(), a.grad.norm().item()]

scores = torch.randn(12, 2, 5).to(device).log_softmax(2).detach().requires_grad_()
targets = torch.randint(1, 5, (2, 4)).to(device)
ctc = F.ctc_loss(scores, targets, torch.tensor([12, 12]), torch.tensor([4, 3]))
ctc.backward()
losses.append(ctc.item())
bag = nn.EmbeddingBag(10, 4, mode="mean").to(device)
pooled = bag(torch.tensor([1, 2, 4, 5, 4], device=device), torch.tensor([0, 2], device=device))
pooled.sum().backward()
losses.append(pooled.square().sum().item())
encoder, decoder = nn.Linear(8, 8).to(device), nn.Linear(4, 8).to(device)
mean, log_variance = encoder(b).chunk(2, dim=1)
noise = torch.ones(6, 4).to(device) * 0.3
rebuilt = decoder(mean + (0.5 * log_variance).exp() * noise)
elbo = F.mse_loss(rebuilt, b) - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
elbo.backward()
losses.append(elbo.item())
low = nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)).to(device)
orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)).to(device)
(low(b).sum() + orthogonal(b).square().sum()).backward()
losses.append(low(b).sum().item())
