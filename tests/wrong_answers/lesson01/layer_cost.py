"""Answers to "what a layer costs": FLOPs and bytes of Linear and Conv2d."""

import copy
import math

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpulab.check.lesson01.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("layer_cost", SECTIONS)


def output(layer, x):
    with torch.no_grad():
        return layer(x)


def right_flops(layer, x):
    return 2 * output(layer, x).numel() * layer.weight[0].numel()


def right_bytes(layer, x):
    return sum(tensor.nbytes for tensor in (x, *layer.parameters(), output(layer, x)))


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def runs_the_layer(layer, x):
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.right
def asks_pytorchs_counter(layer, x):
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
    moved = [x, out, layer.weight] + ([] if layer.bias is None else [layer.bias])
    return counter.get_total_flops(), sum(t.numel() * t.element_size() for t in moved)


@BANK.right
def works_on_shapes(layer, x):
    if isinstance(layer, nn.Linear):
        rows = x.numel() // layer.in_features
        products = rows * layer.in_features * layer.out_features
        made = rows * layer.out_features
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
    weight = twin.weight
    flops = 2.0 * out.numel() * weight.numel() / weight.shape[0]
    bias = 0 if twin.bias is None else twin.bias.nbytes
    return flops, x.nbytes + weight.nbytes + bias + out.nbytes


@BANK.right
def counts_from_the_input_of_a_linear(layer, x):
    if isinstance(layer, nn.Linear):
        return 2 * x.numel() * layer.out_features, right_bytes(layer, x)
    out = output(layer, x)
    return 2 * out[:, 0].numel() * layer.weight.numel(), right_bytes(layer, x)


@BANK.right_with_a_gpu
def runs_it_on_the_gpu(layer, x):
    twin = copy.deepcopy(layer).to("cuda") if not x.is_meta else layer
    y = x.to("cuda") if not x.is_meta else x
    with torch.no_grad():
        out = twin(y)
    return 2 * out.numel() * layer.weight[0].numel(), sum(t.nbytes for t in (y, *twin.parameters(), out))


# --- wrong: the operations -----------------------------------------------------------------------------


@BANK.wrong("the multiply-adds were counted, and not the operations", "a multiply-add is two operations")
def counts_multiply_adds(layer, x):
    return right_flops(layer, x) // 2, right_bytes(layer, x)


@BANK.wrong("the FLOPs of one row only", "for each row")
def forgets_the_batch(layer, x):
    return 2 * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong("a dimension of the input was left out", "x.shape[0] is the batch")
def takes_the_first_dimension_for_all_rows(layer, x):
    if isinstance(layer, nn.Linear):
        return 2 * x.shape[0] * layer.weight.numel(), right_bytes(layer, x)
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("a dimension of the input was left out", "the first dimension counts too")
def takes_the_second_to_last_dimension_for_all_rows(layer, x):
    if isinstance(layer, nn.Linear):
        return 2 * x.shape[-2] * layer.weight.numel(), right_bytes(layer, x)
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("the additions of the bias were counted", "leaves them out")
def counts_the_bias(layer, x):
    extra = output(layer, x).numel() if layer.bias is not None else 0
    return right_flops(layer, x) + extra, right_bytes(layer, x)


@BANK.wrong("three times the FLOPs of a forward pass", "backward is not asked for")
def counts_a_training_step(layer, x):
    return 3 * right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("the positions of the input were counted, and not those of the output", "stride, padding and dilation")
def counts_input_positions(layer, x):
    if isinstance(layer, nn.Linear):
        return right_flops(layer, x), right_bytes(layer, x)
    return 2 * x[:, 0].numel() * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong("the groups were not counted", "in_channels / groups channels")
def ignores_the_groups(layer, x):
    groups = getattr(layer, "groups", 1)
    return right_flops(layer, x) * groups, right_bytes(layer, x)


@BANK.wrong("the groups were counted twice", "has in_channels / groups in its second dimension already")
def divides_by_groups_twice(layer, x):
    groups = getattr(layer, "groups", 1)
    return right_flops(layer, x) // groups, right_bytes(layer, x)


@BANK.wrong("one side of the kernel was left out", "height × width")
def forgets_a_side_of_the_kernel(layer, x):
    flops = right_flops(layer, x)
    return flops if isinstance(layer, nn.Linear) else flops // layer.kernel_size[1], right_bytes(layer, x)


@BANK.wrong("the kernel was taken to be square", "which may differ")
def squares_the_first_side(layer, x):
    flops = right_flops(layer, x)
    if isinstance(layer, nn.Conv2d):
        flops = flops // math.prod(layer.kernel_size) * layer.kernel_size[0] ** 2
    return flops, right_bytes(layer, x)


@BANK.wrong("the FLOPs of one image only", "each image of the batch")
def forgets_the_images(layer, x):
    flops = right_flops(layer, x)
    return flops if isinstance(layer, nn.Linear) else flops // x.shape[0], right_bytes(layer, x)


@BANK.wrong("the FLOPs of one output position only", "at each position of each image")
def forgets_the_positions(layer, x):
    if isinstance(layer, nn.Linear):
        return right_flops(layer, x), right_bytes(layer, x)
    return 2 * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong("the FLOPs of one input channel only", "all input channels of its group")
def forgets_the_input_channels(layer, x):
    if isinstance(layer, nn.Linear):
        return right_flops(layer, x), right_bytes(layer, x)
    return 2 * output(layer, x).numel() * math.prod(layer.kernel_size), right_bytes(layer, x)


@BANK.wrong("the FLOPs of one output channel only", "a kernel of its own")
def forgets_the_output_channels(layer, x):
    flops = right_flops(layer, x)
    return flops if isinstance(layer, nn.Linear) else flops // layer.out_channels, right_bytes(layer, x)


@BANK.wrong("the FLOPs came in MFLOP", "as a whole number")
def returns_megaflops(layer, x):
    return right_flops(layer, x) / 1e6, right_bytes(layer, x)


@BANK.wrong("the FLOPs of a Linear are not right", "count the numbers of the output")
def multiplies_all_dimensions(layer, x):
    return 2 * x.numel() * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong("the FLOPs of a Linear are not right", "nearly: floats hold")
def counts_in_single_precision(layer, x):
    sizes = torch.tensor([2, output(layer, x).numel(), layer.weight[0].numel()], dtype=torch.float32)
    return int(sizes.prod()), right_bytes(layer, x)


# --- wrong: the bytes ----------------------------------------------------------------------------------


@BANK.wrong("only the parameters were counted", "input, weight, bias and output")
def counts_parameter_bytes(layer, x):
    return right_flops(layer, x), sum(p.nbytes for p in layer.parameters())


@BANK.wrong("only the weight was counted", "input, weight, bias and output")
def counts_weight_bytes(layer, x):
    return right_flops(layer, x), layer.weight.nbytes


@BANK.wrong("the weight was left out of the bytes", "is read in each call")
def counts_activation_bytes(layer, x):
    return right_flops(layer, x), x.nbytes + output(layer, x).nbytes


@BANK.wrong("the output was left out of the bytes", "must be written")
def forgets_the_output(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) - output(layer, x).nbytes


@BANK.wrong("the input was left out of the bytes")
def forgets_the_input(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) - x.nbytes


@BANK.wrong("the bias was left out of the bytes")
def forgets_the_bias(layer, x):
    return right_flops(layer, x), x.nbytes + layer.weight.nbytes + output(layer, x).nbytes


@BANK.wrong("every number was taken to have 4 bytes", "the dtype decides")
def takes_four_bytes(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) // x.element_size() * 4


@BANK.wrong("every number was taken to have 2 bytes", "the dtype decides")
def takes_two_bytes(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) // x.element_size() * 2


@BANK.wrong("the numbers were counted, and not their bytes", "element_size()")
def counts_numbers(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) // x.element_size()


@BANK.wrong("these are bits", "eight of them")
def counts_bits(layer, x):
    return right_flops(layer, x), 8 * right_bytes(layer, x)


@BANK.wrong("more than the input was counted", "whose whole storage was counted")
def counts_the_storage(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) - x.nbytes + x.untyped_storage().nbytes()


@BANK.wrong("the weight was counted for every row again", "read once for all rows")
def reads_the_weight_for_each_row(layer, x):
    rows = output(layer, x).numel() // layer.weight.shape[0]
    return right_flops(layer, x), right_bytes(layer, x) + (rows - 1) * layer.weight.nbytes


@BANK.wrong("the weight is larger than it is", "in_channels / groups")
def takes_the_weight_without_groups(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) + (getattr(layer, "groups", 1) - 1) * layer.weight.nbytes


@BANK.wrong("the parameters were counted twice", "backward pass")
def counts_gradients_too(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) + sum(p.nbytes for p in layer.parameters())


@BANK.wrong("the bytes came in MB", "as a whole number")
def returns_megabytes(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) / 1e6


@BANK.wrong("the bytes came in MiB", "as a whole number")
def returns_mebibytes(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) / 2**20


@BANK.wrong("the bytes are not right")
def adds_twelve_bytes(layer, x):
    return right_flops(layer, x), right_bytes(layer, x) + 12


# --- wrong: what is returned, and what is left ---------------------------------------------------------


@BANK.wrong("the two numbers are swapped")
def returns_bytes_first(layer, x):
    return right_bytes(layer, x), right_flops(layer, x)


@BANK.wrong("two values are wanted", "without a return")
def returns_nothing(layer, x):
    right_flops(layer, x)


@BANK.wrong("two values are wanted", "one number came back")
def returns_the_intensity(layer, x):
    return right_flops(layer, x) / right_bytes(layer, x)


@BANK.wrong("two values are wanted", "a dict came back")
def returns_a_dict(layer, x):
    return {"flops": right_flops(layer, x), "nbytes": right_bytes(layer, x)}


@BANK.wrong("flops is not a number", "shapes and .numel() give plain ints")
def returns_a_tensor(layer, x):
    return torch.tensor(right_flops(layer, x)), right_bytes(layer, x)


@BANK.wrong("nbytes is not a number", "formatting is for printing")
def returns_text(layer, x):
    return right_flops(layer, x), f"{right_bytes(layer, x):,}"


@BANK.wrong("gradients were left in the layer", "backward is not needed")
def runs_backward(layer, x):
    layer(x).float().sum().backward()
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("the layer came back changed", "change a module itself")
def moves_the_layer_to_meta(layer, x):
    nbytes = right_bytes(layer, x)
    layer.to("meta")
    return right_flops(layer, x.to("meta")), nbytes


@BANK.wrong("the layer came back changed", "change a module itself", same_as="moves_the_layer_to_meta")
def leaves_evaluation_mode(layer, x):
    layer.eval()
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("your function raised AttributeError", "a Conv2d has in_channels")
def knows_linear_only(layer, x):
    rows = x.numel() // layer.in_features
    return 2 * rows * layer.in_features * layer.out_features, right_bytes(layer, x)


@BANK.wrong("your function raised AttributeError", "a Linear has in_features")
def knows_conv_only(layer, x):
    return 2 * output(layer, x).numel() * layer.in_channels, right_bytes(layer, x)


@BANK.wrong("your function raised ValueError", "any number of dimensions")
def unpacks_two_dimensions(layer, x):
    if isinstance(layer, nn.Linear):
        rows, _ = x.shape
        return 2 * rows * layer.weight.numel(), right_bytes(layer, x)
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("your function raised AttributeError", "layer.bias is None")
def asks_the_bias_that_is_not_there(layer, x):
    return right_flops(layer, x), x.nbytes + layer.weight.nbytes + layer.bias.nbytes + output(layer, x).nbytes


@BANK.wrong("your function raised RuntimeError", "shapes and no values")
def looks_at_values(layer, x):
    if float(x.abs().sum()) == 0:
        return 0, right_bytes(layer, x)
    return right_flops(layer, x), right_bytes(layer, x)


# --- wrong: forms that are seldom met ------------------------------------------------------------------


@BANK.wrong("the stride of one side was taken for both", "one for the height and one for the width")
def takes_the_stride_of_one_side(layer, x):
    flops, nbytes = right_flops(layer, x), right_bytes(layer, x)
    if isinstance(layer, nn.Linear):
        return flops, nbytes
    forms = zip(x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, strict=True)
    sides = [(size + 2 * pad - wide * (kernel - 1) - 1) // layer.stride[0] + 1 for size, pad, wide, kernel in forms]
    made = len(x) * layer.out_channels * math.prod(sides)
    return 2 * made * layer.weight[0].numel(), nbytes


@BANK.wrong("the only dimension of the input was taken for rows", "it is one row")
def takes_a_first_dimension_for_granted(layer, x):
    if isinstance(layer, nn.Conv2d):
        return right_flops(layer, x), right_bytes(layer, x)
    rows = x.shape[0] * math.prod(x.shape[1:-1])
    return 2 * rows * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong(
    "a dimension of the input was left out", "x.shape[0] is the batch", same_as="takes_the_first_dimension_for_all_rows"
)
def knows_two_and_three_dimensions(layer, x):
    if isinstance(layer, nn.Conv2d):
        return right_flops(layer, x), right_bytes(layer, x)
    rows = x.shape[0] * (x.shape[1] if x.dim() == 3 else 1)
    return 2 * rows * layer.weight.numel(), right_bytes(layer, x)


@BANK.wrong("the gradients that were there are gone", "zero_grad() belongs to the caller")
def clears_the_gradients(layer, x):
    if not x.is_meta:
        layer(x).sum().backward()
        layer.zero_grad()
    return right_flops(layer, x), right_bytes(layer, x)


@BANK.wrong("the weight was left out of the bytes", "is read in each call", same_as="counts_activation_bytes")
def counts_what_is_trained_only(layer, x):
    trained = [p for p in layer.parameters() if p.requires_grad]
    return right_flops(layer, x), sum(t.nbytes for t in (x, *trained, output(layer, x)))


@BANK.wrong("the bias is smaller than it is", "a number for each output channel")
def divides_the_bias_by_the_groups(layer, x):
    bias = 0 if layer.bias is None else layer.bias.nbytes
    return right_flops(layer, x), right_bytes(layer, x) - bias + bias // getattr(layer, "groups", 1)
