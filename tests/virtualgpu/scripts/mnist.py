"""A complete example on one GPU: data, model, training, evaluation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * 5 * 5, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


images = torch.rand(96, 1, 28, 28)
labels = torch.randint(0, 10, (96,))
train = DataLoader(
    TensorDataset(images[:64], labels[:64]), batch_size=16, shuffle=True, pin_memory=device.type == "cuda"
)
test = DataLoader(TensorDataset(images[64:], labels[64:]), batch_size=16)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for epoch in range(2):
    model.train()
    for data, target in train:
        data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    correct = total = 0
    test_loss = torch.zeros((), device=device)
    with torch.no_grad():
        for data, target in test:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum")
            correct += (output.argmax(dim=1) == target).sum().item()
            total += target.size(0)
    print(f"epoch {epoch}: loss {test_loss.item() / total:.4f}, accuracy {correct / total:.2%}")
values = [test_loss.item()]
