# diffusers: the UNet of Stable Diffusion 1.5 fine-tuned on latents, bf16 autocast, batch 4
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel

unet = UNet2DConditionModel(cross_attention_dim=768, sample_size=64).to("cuda")
ema = EMAModel(unet.parameters())
ema.to("cuda")
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
schedule = DDPMScheduler(num_train_timesteps=1000)
unet.train()
for _step in range(3):
    latents = torch.randn(4, 4, 64, 64, device="cuda")
    text = torch.randn(4, 77, 768, device="cuda")
    noise = torch.randn_like(latents)
    t = torch.randint(0, 1000, (4,))
    noisy = schedule.add_noise(latents.cpu(), noise.cpu(), t).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        predicted = unet(noisy, t.to("cuda"), text).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    ema.step(unet.parameters())
