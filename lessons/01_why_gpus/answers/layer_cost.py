"""Answers to `layer_cost` that are no formula for one number: right ones written differently, and other wrong ones."""

import copy
import math

from banks.bank import Bank
from banks.edits import add, change
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BANK = Bank("layer_cost")
FLOPS, RETURN = "flops = 2 * out.numel() * layer.weight[0].numel()", "return flops, nbytes"
RUN = "with torch.no_grad():\n        out = layer(x)"


@BANK.right
def asks_pytorchs_counter(layer, x):
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
    moved = [x, out, layer.weight] + ([] if layer.bias is None else [layer.bias])
    return counter.get_total_flops(), sum(t.numel() * t.element_size() for t in moved)


@BANK.right
def works_on_shapes(layer, x):
    if isinstance(layer, nn.Linear):
        made = x.numel() // layer.in_features * layer.out_features
        products = made * layer.in_features
    else:
        sides = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride, strict=True
            )
        ]
        made = x.shape[0] * layer.out_channels * math.prod(sides)
        products = made * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    parameters = sum(p.numel() for p in layer.parameters())
    return [2 * products, (x.numel() + parameters + made) * x.element_size()]


@BANK.right
def copies_the_layer_to_meta(layer, x):
    twin = copy.deepcopy(layer).to("meta")
    out = twin(x.to("meta"))
    flops = 2.0 * out.numel() * twin.weight.numel() / twin.weight.shape[0]
    return flops, x.nbytes + sum(p.nbytes for p in twin.parameters()) + out.nbytes


BANK.mistakes(
    ("the two numbers are swapped", "", change(RETURN, "return nbytes, flops")),
    ("two values are wanted", "the function ends without a return", change(RETURN, "pass")),
    ("two values are wanted", "one number came back", change(RETURN, "return flops / nbytes")),
    ("two values are wanted", "a dict came back", change(RETURN, "return {'flops': flops, 'nbytes': nbytes}")),
    ("flops is not a number", ".numel() give plain ints", change(RETURN, "return torch.tensor(flops), nbytes")),
    ("nbytes is not a number", "formatting is for printing", change(RETURN, "return flops, f'{nbytes:,}'")),
    ("the FLOPs of a Linear are not right", "", change(FLOPS, "flops = 2 * x.numel() * layer.weight.numel()")),
    ("the FLOPs of a Conv2d are not right", "",
     change(FLOPS, FLOPS + "\n    if x.dim() == 4 and layer.weight.dim() == 4: flops += 2 * x.numel()")),
    ("the bytes are not right", "", change(RETURN, "return flops, nbytes + 12")),
    ("your function changed its argument layer: layer.weight.grad has other values", "",
     change(RUN, "out = layer(x)\n    if layer.weight.requires_grad: out.sum().backward()")),
    ("your function changed its argument layer: layer.weight.grad is None, and was a tensor", "",
     add("layer.zero_grad()", before=RETURN)),
    ("your function changed its argument layer: layer.weight is another object", "",
     add("layer.to('meta')", before=RETURN)),
    ("your function changed its argument layer: it is left in eval mode", "", add("layer.eval()", before=RETURN)),
    ("your function raised AttributeError", "a Conv2d has in_channels",
     change(FLOPS, "flops = 2 * x.numel() // layer.in_features * layer.weight.numel()")),
    ("your function raised AttributeError", "a Linear has in_features",
     change(FLOPS, "flops = 2 * out.numel() * layer.in_channels")),
    ("your function raised AttributeError", "layer.bias is None",
     change("(x, *layer.parameters(), out)", "(x, layer.weight, layer.bias, out)")),
    ("your function raised ValueError", "any number of dimensions",
     add("rows, _ = x.shape", before="with torch.no_grad")),
    ("your function raised RuntimeError", "a shape and no values",
     add("if float(x.abs().sum()) == 0.5: return 0, 0", before="with torch.no_grad")),
)  # fmt: skip
