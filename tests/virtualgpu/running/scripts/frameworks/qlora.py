"""QLoRA: a small Llama, loaded in 4 bits by bitsandbytes, with peft's adapters and a paged optimizer of 8 bits."""

import sys
import tempfile

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=512, max_position_embeddings=64,
)  # fmt: skip
quantised = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant="double" in sys.argv,
    bnb_4bit_compute_dtype=torch.bfloat16 if "bf16" in sys.argv else torch.float32,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantised, device_map={"": device})
loaded = torch.cuda.memory_allocated()
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = bitsandbytes.optim.PagedAdamW8bit((p for p in model.parameters() if p.requires_grad), lr=1e-2)
ids = torch.randint(0, 512, (2, 32)).to(device)
losses = []
for _ in range(3):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"{device}: {losses}")
