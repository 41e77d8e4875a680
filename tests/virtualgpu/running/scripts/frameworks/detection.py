"""A detector of torchvision: training steps on small images, then boxes."""

import sys

import torch
from torchvision.models import detection

name = sys.argv[1] if len(sys.argv) > 1 else "fasterrcnn_mobilenet_v3_large_320_fpn"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
options = {"weights": None, "weights_backbone": None, "num_classes": 3, "min_size": 64, "max_size": 96}
if "rcnn" in name:  # as many as there are: none is left out at random
    options |= {"rpn_batch_size_per_image": 10_000, "box_batch_size_per_image": 10_000}
model = getattr(detection, name)(**options).to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
images = [torch.rand(3, 64, 80).to(device), torch.rand(3, 72, 64).to(device)]
boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [20.0, 10.0, 60.0, 50.0]])
targets = [{"boxes": boxes.to(device), "labels": torch.tensor([1, 2]).to(device)} for _ in images]
losses = []
model.train()
for _ in range(2):
    found = model(images, targets)
    loss = sum(found.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    boxes = model(images)[0]["boxes"]
print(f"{device}: {losses}, {boxes.shape[1]} numbers a box")
