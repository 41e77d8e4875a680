"""Evaluation loops: no_grad and inference_mode, metrics read with .item(), .tolist(), .cpu()."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3)
)
model.to(device).eval()
loader = DataLoader(TensorDataset(torch.randn(30, 1, 8, 8), torch.randint(0, 3, (30,))), batch_size=8)


def evaluate(context):
    loss, correct, count = 0.0, 0, 0
    matrix = torch.zeros(3, 3, dtype=torch.long, device=device)
    everything = []
    with context():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            assert not logits.requires_grad
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
            predicted = logits.argmax(dim=1)
            correct += (predicted == y).sum().item()
            matrix.view(-1).index_add_(0, y * 3 + predicted, torch.ones_like(y))
            everything.append(predicted.cpu())
            count += len(y)
            top = logits.topk(2, dim=1).indices
            assert top.shape == (len(y), 2)
    return loss / count, correct / count, matrix, torch.cat(everything)


losses = []
for context in (torch.no_grad, torch.inference_mode):
    loss, accuracy, matrix, everything = evaluate(context)
    losses += [loss, accuracy, float(matrix.sum()), float(everything.sum()), float(matrix[0, 0])]
    print(f"loss {loss:.4f} accuracy {accuracy:.2%}")
    recall = matrix.diag() / matrix.sum(dim=1).clamp(min=1)
    print(recall.tolist(), recall.cpu().numpy().shape)
with torch.inference_mode():
    frozen = model(torch.ones(1, 1, 8, 8, device=device))
assert frozen.is_inference()
assert frozen.device.type == device.type
with torch.set_grad_enabled(False):
    assert not model(torch.ones(1, 1, 8, 8, device=device)).requires_grad
