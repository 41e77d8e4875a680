"""What is there, and is it what the script expects?"""

import torch

print("PyTorch", torch.__version__, "CUDA available:", torch.cuda.is_available())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
names, total_gib = [], []
if device.type == "cuda":
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        names.append(torch.cuda.get_device_name(i))
        total_gib.append(properties.total_memory / 2**30)
        print(i, properties.name, f"{total_gib[-1]:.1f} GiB", f"{properties.major}.{properties.minor}")
        assert torch.cuda.get_device_capability(i) == (properties.major, properties.minor)
        assert properties.multi_processor_count > 0
    assert torch.cuda.current_device() == 0
    assert torch.cuda.is_initialized()
    print(torch.cuda.get_arch_list(), torch.cuda.is_bf16_supported(), torch.backends.cudnn.is_available())
    torch.cuda.init()
    torch.cuda.synchronize()
    torch.cuda.set_device(0)
    with torch.cuda.device(0):
        assert torch.empty(2, device="cuda").get_device() == 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("cuda")
    assert torch.accelerator.device_count() == torch.cuda.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()

best = (torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None) or torch.device("cpu")
x = torch.randn(4, 4, device=best)
print(x.device, (x @ x).device, x)
