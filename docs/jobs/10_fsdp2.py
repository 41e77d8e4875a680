# FSDP2: Llama-3-8B on 8 H100, bf16, batch 1 x 8192 a GPU, checkpointing of each layer
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
torch.cuda.set_device(dist.get_rank())
config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    use_cache=False,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable({"use_reentrant": False})
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
model.train()
for _step in range(4):
    ids = torch.randint(0, 128256, (1, 8192), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    model_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
