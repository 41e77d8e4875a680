# Small tensors that stay, made while a large one is alive: what is free lies in pieces
import torch

big = torch.empty(9 * 2**30, dtype=torch.uint8, device="cuda")
keep = []
del big
for _ in range(40):
    keep.append(torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda"))
big = torch.empty(9 * 2**30, dtype=torch.uint8, device="cuda")
print("it fits")
