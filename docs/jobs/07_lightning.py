# Lightning: ResNet-18 on CIFAR-sized images, bf16-mixed
import tempfile

import lightning as L
import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch, _):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("val_acc", (self.net(images).argmax(-1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


data = TensorDataset(torch.randn(2560, 3, 32, 32), torch.randint(0, 10, (2560,)))
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        max_epochs=1,
        precision="bf16-mixed",
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(data, 256, shuffle=True), DataLoader(data, 512))
