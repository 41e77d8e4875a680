# BERT-base fine-tuned with transformers.Trainer, fp16, evaluation at the end
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, number, length=256):
        self.ids = torch.randint(1000, 30000, (number, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": int(i % 2)}


model = BertForSequenceClassification(BertConfig())
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        max_steps=5,
        fp16=True,
        logging_steps=1,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=5,
        report_to="none",
    )
    trainer = Trainer(model, arguments, train_dataset=Reviews(160), eval_dataset=Reviews(128))
    trainer.train()
