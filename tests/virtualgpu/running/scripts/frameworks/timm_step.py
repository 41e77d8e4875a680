"""timm: the steps of its own training script, with mixup, gradient scaling and an average of the weights."""

import sys

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy, random_seed

random_seed(0)
name, amp = sys.argv[1], "--amp" in sys.argv
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
size = {"img_size": 64} if name.startswith("vit") else {}
model = timm.create_model(name, num_classes=10, **size).to(device)
average = ModelEmaV3(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1)
mixup = Mixup(mixup_alpha=0.8, num_classes=10, label_smoothing=0.1)
criterion, scaler = SoftTargetCrossEntropy(), NativeScaler()
losses = []
model.train()
for step in range(3):
    images, labels = torch.randn(4, 3, 64, 64).to(device), torch.randint(10, (4,)).to(device)
    images, targets = mixup(images, labels)
    with torch.autocast(device.type, torch.float16, enabled=amp and device.type == "cuda"):
        loss = criterion(model(images), targets)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), create_graph=False)
    average.update(model, step=step)
    schedule.step(step)
    losses.append(loss.item())
average.eval()
with torch.no_grad():
    (right,) = accuracy(average(images), labels)
print(f"{device}: {losses}, accuracy {right.item()}")
