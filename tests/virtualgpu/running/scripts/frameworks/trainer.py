"""`transformers.Trainer`: a small BERT, fine-tuned on sentences of different lengths."""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, number):
        self.ids = torch.randint(5, 256, (number, 24))
        self.lengths = torch.randint(8, 25, (number,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        mask = (torch.arange(24) < self.lengths[index]).long()
        return {"input_ids": self.ids[index] * mask, "attention_mask": mask, "labels": self.ids[index, 0] % 2}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
model = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    chosen = {name.removeprefix("--"): True for name in sys.argv[1:]}
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, num_train_epochs=2, logging_steps=1, eval_strategy="epoch",
        report_to="none", **chosen,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Sentences(16), eval_dataset=Sentences(8))
    trainer.train()
    trainer.save_model()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
print(f"{trainer.args.device}: {losses}, evaluated {evaluated}")
