# ResNet-50 on ImageNet-sized images, mixed precision, batch 128
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FakeData

device = "cuda"
transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
data = FakeData(size=128 * 6, image_size=(3, 224, 224), num_classes=1000, transform=transform)
loader = DataLoader(data, batch_size=128, shuffle=True, num_workers=8, pin_memory=True, drop_last=True)
model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
scaler = torch.amp.GradScaler(device)

model.train()
for _step, (images, labels) in enumerate(loader):
    images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    labels = labels.to(device, non_blocking=True)
    with torch.autocast(device, dtype=torch.float16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
