"""Lightning: a module that says what, and the library's own trainer."""

import sys
import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(16 * width, 10),
        )  # fmt: skip
        self.losses = []

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        scores = self.net(images)
        self.log("val_loss", nn.functional.cross_entropy(scores, labels))
        self.log("val_acc", (scores.argmax(-1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)}


L.seed_everything(0)
data = TensorDataset(torch.randn(32, 3, 16, 16), torch.arange(32) % 10)
with tempfile.TemporaryDirectory() as folder:
    module = Classifier()
    trainer = L.Trainer(
        max_epochs=2, precision=sys.argv[1] if len(sys.argv) > 1 else "32-true", gradient_clip_val=1.0,
        log_every_n_steps=1, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, 8), DataLoader(data, 16))
    Classifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
losses = [loss.item() for loss in module.losses]
print(f"{trainer.strategy.root_device}: {losses}, {trainer.callback_metrics}")
