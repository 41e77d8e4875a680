"""A model of `transformers`, from its configuration: BERT with a head, fine-tuned on made-up sentences."""

import torch
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

config = BertConfig(
    vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=64, num_labels=2,
)  # fmt: skip
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = BertForSequenceClassification(config).to(device)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=4)
model.train()
for step in range(4):
    ids = torch.randint(5, 512, (8, 48))
    mask = torch.ones_like(ids)
    mask[:, 40:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}
    outputs = model(**{name: tensor.to(device) for name, tensor in batch.items()})
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step}: {outputs.loss.item():.4f} {tuple(outputs.logits.shape)}")
