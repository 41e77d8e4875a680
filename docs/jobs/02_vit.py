# ViT-B/16 in float32, the defaults everywhere
import torch
import torchvision

device = torch.device("cuda")
model = torchvision.models.vit_b_16(num_classes=100).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

for _epoch in range(1):
    model.train()
    for _step in range(5):
        images = torch.randn(64, 3, 224, 224).to(device)
        labels = torch.randint(0, 100, (64,)).to(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    schedule.step()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            images = torch.randn(256, 3, 224, 224).to(device)
            scores = model(images)
