"""An image classifier with the usual options."""

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="resnet18", choices=["resnet18", "mobilenet_v3_small"])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU to use")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args()


def images(count):
    labels = torch.arange(count) % 10
    return TensorDataset(torch.randn(count, 3, 64, 64) + labels.view(-1, 1, 1, 1) / 5, labels)


def train(loader, model, criterion, optimizer, device):
    model.train()
    total = 0.0
    for image, target in loader:
        image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
        loss = criterion(model(image), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(loader, model, device):
    model.eval()
    right = sum((model(image.to(device)).argmax(1).cpu() == target).sum().item() for image, target in loader)
    return right / len(loader.dataset)


def main():
    args = arguments()
    device = torch.device("cuda", args.gpu)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.get_model(args.arch, num_classes=10).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(images(4 * args.batch_size), args.batch_size, shuffle=True, pin_memory=True)
    for epoch in range(args.epochs):
        loss = train(loader, model, criterion, optimizer, device)
        scheduler.step()
        accuracy = evaluate(loader, model, device)
        print({"epoch": epoch, "loss": loss, "accuracy": accuracy} if args.json else f"{epoch} {loss:.3f} {accuracy}")


if __name__ == "__main__":
    main()
