"""Milliseconds of batch norms and of depthwise convolutions on a real GPU, by shape, precision and layout.

    python tests/virtualgpu/torch_cuda/measure_norms.py > tests/virtualgpu/torch_cuda/norms_h200.json

It asks torch.cuda only, so that `batch_norm` and `depthwise` run on the virtual GPU too, in test_norm_times.py. Rows:

batch_norms     channels, side, batch, dtype, last (channels last), train; forward, backward
depthwise       channels, side, window, stride, batch, dtype, last; forward, and the gradients of input and weight
"""

import statistics
from itertools import product

import torch
from measure_recurrent import write
from torch import nn

DTYPES = "float32", "float16", "bfloat16"
# channels, side, batch
NORMS = (
    *((64, 112, 64), (256, 56, 64), (512, 28, 64), (1024, 14, 64), (2048, 7, 64)),
    *((64, 112, 8), (256, 56, 8), (2048, 7, 8), (64, 56, 64), (512, 7, 64)),
)
# channels, side, window, stride
DEPTHWISE = (
    *((16, 112, 3, 1), (64, 112, 3, 2), (72, 56, 5, 2), (120, 28, 5, 1), (240, 28, 3, 2), (480, 14, 3, 1)),
    *((672, 14, 5, 1), (960, 7, 5, 1), (96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1)),
    *((256, 56, 3, 1), (256, 56, 7, 1)),
)


def ms(call, times=15):
    """The median, with the host ahead of the device."""
    for _ in range(3):
        call()
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return round(statistics.median(found), 4)


def images(batch, channels, side, dtype, last):
    form = torch.channels_last if last else torch.contiguous_format
    made = torch.randn(batch, channels, side, side, device="cuda", dtype=getattr(torch, dtype))
    return made.to(memory_format=form).requires_grad_(True), form


def batch_norm(channels, side, batch, dtype, last, train, time=ms):
    layer = nn.BatchNorm2d(channels).cuda().train(train)
    x, _ = images(batch, channels, side, dtype, last)
    y = layer(x)
    gradient = torch.randn_like(y)
    row = {"channels": channels, "side": side, "batch": batch, "dtype": dtype, "last": last, "train": train}
    row["forward"] = time(lambda: layer(x))
    return row | {"backward": time(lambda: y.backward(gradient, retain_graph=True))}


def depthwise(channels, side, window, stride, batch, dtype, last, time=ms):
    x, form = images(batch, channels, side, dtype, last)
    layer = nn.Conv2d(channels, channels, window, stride, window // 2, groups=channels, bias=False)
    layer = layer.to("cuda", x.dtype).to(memory_format=form)
    y = layer(x)
    gradient = torch.randn_like(y)
    row = {"channels": channels, "side": side, "window": window, "stride": stride, "batch": batch}
    row |= {"dtype": dtype, "last": last, "forward": time(lambda: layer(x))}
    for name, of in (("input", x), ("weight", layer.weight)):
        row[name] = time(lambda of=of: torch.autograd.grad(y, of, gradient, retain_graph=True))
    return row


def main():
    flags = (False, True)
    norms = [batch_norm(*shape, *rest) for shape, *rest in product(NORMS, DTYPES, flags, (True, False))]
    apart = [
        depthwise(*shape, batch, dtype, last)
        for shape, dtype, last, batch in product(DEPTHWISE, DTYPES, flags, (8, 64))
    ]
    write(batch_norms=norms, depthwise=apart)


if __name__ == "__main__":
    main()
