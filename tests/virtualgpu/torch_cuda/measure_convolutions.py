"""What each convolution of some networks takes by itself on a real GPU, by batch, precision and layout.

    python tests/virtualgpu/torch_cuda/measure_convolutions.py > tests/virtualgpu/torch_cuda/convolutions_h200.json

It asks torch.cuda only, so that `measured` runs on the virtual GPU too, in test_convolutions.py. A row:

image, out, window, stride, padding, groups     the layer; `image` has the batch
mode, last              fp32, tf32, fp16; whether its images have channels last
forward                 bytes more at the peak than at the end
backward                bytes at the end, and at the peak, more than before
forward_us, backward_us microseconds that kernels run
"""

import torch
from measure_recurrent import write
from torch import nn

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
PLAIN = ("fp32", False), ("fp16", False)
ALL = (*PLAIN, ("tf32", False), ("fp16", True))
# Networks, batch, modes.
RUNS = (
    (("resnet18", "resnet50"), 8, ALL),
    (("resnet18", "resnet50"), 64, ALL),
    (("mobilenet_v3_large", "convnext_tiny"), 8, PLAIN),
    (("mobilenet_v3_large", "convnext_tiny"), 64, ALL),
)


def layers():
    """Rows without results, of each different convolution."""
    import torchvision

    for names, batch, modes in RUNS:
        seen = {}

        def look(layer, given, _, seen=seen, batch=batch):
            window = layer.kernel_size, layer.stride, layer.padding
            seen[(batch, *given[0].shape[1:]), layer.out_channels, *(each[0] for each in window), layer.groups] = True

        for name in names:
            network = getattr(torchvision.models, name)().eval()
            for layer in network.modules():
                if isinstance(layer, nn.Conv2d):
                    layer.register_forward_hook(look)
            with torch.no_grad():
                network(torch.zeros(1, 3, 224, 224))
        for image, out, window, stride, padding, groups in seen:
            for mode, last in modes:
                yield {
                    "image": image, "out": out, "window": window, "stride": stride, "padding": padding,
                    "groups": groups, "mode": mode, "last": last,
                }  # fmt: skip


def made(row):
    """The layer, its input, and a gradient of its result, after one run."""
    torch.backends.cudnn.allow_tf32 = row["mode"] == "tf32"
    dtype, channels = DTYPES[row["mode"]], row["image"][1]
    form = torch.channels_last if row["last"] else torch.contiguous_format
    window = row["window"], row["stride"], row["padding"]
    layer = nn.Conv2d(channels, row["out"], *window, groups=row["groups"], bias=False, device="cuda", dtype=dtype)
    layer = layer.to(memory_format=form)
    x = torch.randn(row["image"], device="cuda", dtype=dtype).to(memory_format=form).requires_grad_(channels != 3)
    y = layer(x)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    layer.weight.grad = x.grad = None
    return layer, x, gradient


def measured(row):
    """Bytes of forward and backward."""
    layer, x, gradient = made(row)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    y = layer(x)
    after = torch.cuda.memory_allocated()
    forward = torch.cuda.max_memory_allocated() - after
    torch.cuda.reset_peak_memory_stats()
    y.backward(gradient)
    backward = [torch.cuda.memory_allocated() - after, torch.cuda.max_memory_allocated() - after]
    return {"forward": forward, "backward": backward}


def timed(row):
    """What the kernels of a call take together."""
    layer, x, gradient = made(row)
    with profiled() as forward:
        y = layer(x)
    with profiled() as backward:
        y.backward(gradient)
    return {"forward_us": _together(forward), "backward_us": _together(backward)}


def profiled():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def _together(profile):
    torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return round(sum(event.device_time for event in kernels), 2)


if __name__ == "__main__":
    write(rows=[row | measured(row) | timed(row) for row in layers()])
