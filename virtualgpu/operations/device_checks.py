"""Check operands on different devices: accept what CUDA accepts, and raise its error otherwise.

It decides by how the operation's CUDA kernel checks (`generated_checks` knows which begin with a
generated check); copies between devices never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.labels import FLOATING, device_of, storage_of
from . import host_shapes
from .generated_checks import wrapper
from .results import map_tensors, tensors_in

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
HOST = torch.device("cpu")
Named = Iterable[tuple[str, Any]]
Check = Callable[[Any, dict[str, Any]], None]
"""Raises CUDA's error for an operation and its arguments by name; returns the device where CUDA would run it."""


def settle(
    gpu: VirtualGPU, device: Device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with which the operation can run; raises RuntimeError where CUDA would."""
    if gpu.compute and (
        host_shapes.any_host_shape(args) or host_shapes.any_host_shape(kwargs.values())
    ):  # of another GPU, without
        raise host_shapes.refusal((*args, *kwargs.values()), func)
    check = _CHECKS.get(func)
    if check is None:
        check = _CHECKS[func] = _check(func)
    if check is _plainly_iterated and not kwargs and _one_number(device, args):
        return args, kwargs
    check(func, _by_name(func, args, kwargs))
    if gpu.compute:
        return args, kwargs
    with backing:
        return map_tensors(_shape_of, args), map_tensors(_shape_of, kwargs)


def where(tensor: Tensor) -> torch.device:
    """Return the device of a tensor, as its user sees it."""
    device = device_of(tensor)
    return HOST if device is None or device is FLOATING.device else device.name


def _shape_of(tensor: Tensor) -> Tensor:
    return tensor.to("meta") if tensor.dim() else tensor


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs


def _check(func: Any) -> Check:
    """Return CUDA's device check of this overload."""
    _, _, name = func._schema.name.partition("::")
    found = _OWN.get(name)
    if found is not None:
        return found
    out = any(argument.is_out for argument in func._schema.arguments)
    method = wrapper(name, func._schema.overload_name, out=out)
    if method is not None:
        return _generated(method)
    writes = any(argument.alias_info is not None for argument in func._schema.arguments)
    return _iterated if writes or func._schema.name in _NO_NUMBERS else _plainly_iterated


# -- the check at the start of a generated wrapper -------------------------------------------------------------------


def _generated(method: str) -> Check:
    def check(func: Any, given: dict[str, Any]) -> None:
        arguments = func._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        names = outs + [a.name for a in arguments if not a.kwarg_only]
        check_same_device(method, [(name, given.get(name)) for name in names])

    return check


def check_same_device(method: str, named: Named) -> None:
    """Do check_and_update_common_device for one argument after the other: the first one decides."""
    common = None
    for name, value in named:
        for tensor in tensors_in(value):
            if _floats(tensor):
                continue
            device = where(tensor)
            if common is None:
                common = device
            elif device != common:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but got {name} is on {device}, different from"
                    f" other tensors on {common} (when checking argument in method {method})"
                )


def _floats(tensor: Tensor) -> bool:
    return getattr(storage_of(tensor), "_gpulab", None) is FLOATING


# -- TensorIterator --------------------------------------------------------------------------------------------------


_NO_NUMBERS = {"aten::mse_loss", "aten::smooth_l1_loss"}  # they do not say allow_cpu_scalars


def _iterated(func: Any, given: dict[str, Any]) -> None:
    """Do TensorIterator's compute_types: the first GPU decides; host scalars (0-dim tensors) are allowed."""
    written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    order = sorted(given, key=lambda name: name not in written)  # outputs first
    operands = [(name in written, t) for name in order for t in tensors_in(given[name]) if not _floats(t)]
    common = next((where(t) for _, t in operands if where(t) != HOST), HOST)
    scalars = 0
    for is_output, tensor in operands:
        device = where(tensor)
        if device == common:
            continue
        if device == HOST and not tensor.dim() and not is_output and func._schema.name not in _NO_NUMBERS:
            scalars += 1
            if scalars > 1:
                raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {common} and {device}!"
        )


def _plainly_iterated(func: Any, given: dict[str, Any]) -> None:
    """Check an operation that writes to none of its arguments."""
    _iterated(func, given)


def _one_number(device: Device, args: tuple[Any, ...]) -> bool:
    """Return True if all is on the GPU except one scalar of the host: the common case, decided fast."""
    numbers = 0
    for item in args:
        if isinstance(item, Tensor):
            label = getattr(storage_of(item), "_gpulab", None)
            if label is None and not item.dim():
                numbers += 1
            elif label is None or label.device is not device:
                return False
        elif isinstance(item, (list, tuple)):
            return False
    return numbers <= 1


# -- checks by hand --------------------------------------------------------------------------------------------------


def _number(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.dim()


def _index(func: Any, given: dict[str, Any]) -> None:
    """Allow indices on the host, but not the values to write (TensorAdvancedIndexing.cpp)."""
    at = where(given["self"])
    for tensor in tensors_in(given["indices"]):
        if where(tensor) not in (at, HOST):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({at})")
    values = given.get("values")
    if isinstance(values, Tensor) and where(values) != at and (values.dim() or where(values) != HOST):
        first, second = (at, where(values)) if at != HOST else (where(values), at)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
        )


def _masked_fill(func: Any, given: dict[str, Any]) -> None:
    at, mask = where(given["self"]), where(given["mask"])
    if at != mask:
        raise RuntimeError(f"expected self and mask to be on the same device, but got mask on {mask} and self on {at}")
    value = given.get("value")
    if isinstance(value, Tensor) and value.dim():
        raise RuntimeError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.dim()} dimension(s)."
        )


def _where(func: Any, given: dict[str, Any]) -> None:
    """Accept any number of host scalars, which the operation copies itself."""
    _iterated(func, {name: value for name, value in given.items() if not _number(value) or where(value) != HOST})


def _embedding(func: Any, given: dict[str, Any]) -> None:
    check_same_device("wrapper_CUDA__index_select", [("self", given["weight"]), ("index", given["indices"])])


def _mv(func: Any, given: dict[str, Any]) -> None:
    """Check `mv`, whose result is allocated on the vector's device."""
    check_same_device("wrapper_CUDA_addmv_", [("self", given["vec"]), ("mat", given["self"]), ("vec", given["vec"])])


def _of_two_parts(name: str, first: str, second: str) -> Check:
    """Check an operation that allocates its result on the first argument's device, and continues with `out=`."""

    def check(func: Any, given: dict[str, Any]) -> None:
        parts = [("out", given[first]), (first, given[first]), (second, given[second])]
        check_same_device(f"wrapper_CUDA_out_{name}_out", parts)

    return check


def _stack(func: Any, given: dict[str, Any]) -> None:
    check_same_device("wrapper_CUDA_cat", [("tensors", given["tensors"])])


def _trilinear(func: Any, given: dict[str, Any]) -> None:
    """Check F.bilinear: two batched products."""
    for name in ("i2", "i3"):
        check_same_device("wrapper_CUDA_bmm", [("self", given["i1"]), ("mat2", given[name])])


def _in_place(name: str) -> Check:
    """Check an operation that copies its first argument and continues in place."""
    return _generated(f"wrapper_CUDA__{name}_")


def _batch_norm(func: Any, given: dict[str, Any]) -> None:
    """cuDNN's, where it is used (use_cudnn in Normalization.cpp)."""
    needed = ["weight", "bias"] + ([] if given.get("training") else ["running_mean", "running_var"])
    cudnn = torch.backends.cudnn.enabled and where(given["input"]) != HOST and all(
        given.get(name) is not None for name in needed
    )  # fmt: skip
    names = ("input", "weight", "bias", "running_mean", "running_var")
    check_same_device(
        f"wrapper_CUDA__{'cudnn' if cudnn else 'native'}_batch_norm", [(name, given.get(name)) for name in names]
    )


def _convolution(func: Any, given: dict[str, Any]) -> None:
    """check_input_same_type_as_parameters in Convolution.cpp, then cuDNN's wrapper."""
    tensor = given["input"]
    kind = legacy_type(tensor)
    for name in ("weight", "bias"):
        parameter = given.get(name)
        if isinstance(parameter, Tensor) and legacy_type(parameter) != kind:
            mkldnn = where(tensor) == HOST and name == "weight"
            raise RuntimeError(
                f"Input type ({kind}) and {name} type ({legacy_type(parameter)}) should be the same"
                + (" or input should be a MKLDNN tensor and weight is a dense tensor" if mkldnn else "")
            )
    turned = "_transpose" if given.get("transposed") else ""
    check_same_device(f"wrapper_CUDA__cudnn_convolution{turned}", [("self", tensor), ("weight", given["weight"])])


def legacy_type(tensor: Tensor) -> str:
    """`Tensor.type()`: torch.cuda.FloatTensor."""
    with backing:
        name: str = torch.empty(0, dtype=tensor.dtype).type()
    return name if where(tensor) == HOST else name.replace("torch.", "torch.cuda.", 1)


def _attention(func: Any, given: dict[str, Any]) -> None:
    attention(given["query"], given["key"], given["value"])
    method = wrapper(func._schema.name.partition("::")[2], func._schema.overload_name, out=False)
    if method is not None:
        _generated(method)(func, given)
    else:
        _iterated(func, given)


def attention(query: Tensor, key: Tensor, value: Tensor, *, dtypes: bool = True) -> None:
    """validate_sdpa_input in attention.cpp."""
    at = [where(tensor) for tensor in (query, key, value)]
    if len(set(at)) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: {} key.device: {} and"
            " value.device: {} instead.".format(*at)
        )
    kinds = [scalar_type(tensor.dtype) for tensor in (query, key, value)]
    if dtypes and len(set(kinds)) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: {} key.dtype: {} and"
            " value.dtype: {} instead.".format(*kinds)
        )


_CPP_NAMES = {
    torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float64: "double",
    torch.int64: "int64_t", torch.int32: "int", torch.bool: "bool",
}  # fmt: skip


def scalar_type(dtype: torch.dtype) -> str:
    """Return C++'s name of a dtype."""
    return _CPP_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _block_diag(func: Any, given: dict[str, Any]) -> None:
    first, *rest = [where(tensor) for tensor in tensors_in(given["tensors"])]
    for number, device in enumerate(rest, 1):
        if device != first:
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. Input 0 is on device"
                f" {first} and input {number} is on device {device}"
            )


def _lengths(func: Any, given: dict[str, Any]) -> None:
    """CTC reads the lengths on the host."""
    check_same_device("wrapper_CUDA___ctc_loss", [(name, given[name]) for name in ("log_probs", "targets")])


def _taken(func: Any, given: dict[str, Any]) -> None:
    """Accept host tensors, which the operation reads there or copies."""


def _index_fill(func: Any, given: dict[str, Any]) -> None:
    """Check `x[index, 0] = 0`, which allows a host index; a direct call of `index_fill_` on CUDA would not."""
    _index(func, {"self": given["self"], "indices": [given["index"]]})


_OWN: dict[str, Check] = {
    "index_fill_": _index_fill,
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _index,
    "index_put_": _index,
    "_unsafe_index_put": _index,
    "_index_put_impl_": _index,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill,
    "where": _where,
    "embedding": _embedding,
    "mv": _mv,
    "complex": _of_two_parts("complex", "real", "imag"),
    "polar": _of_two_parts("polar", "abs", "angle"),
    "stack": _stack,
    "_trilinear": _trilinear,
    "masked_scatter": _in_place("masked_scatter"),
    "put": _in_place("put"),
    "native_batch_norm": _batch_norm,
    "convolution": _convolution,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "block_diag": _block_diag,
    "_ctc_loss": _lengths,
    "_use_cudnn_ctc_loss": _lengths,
    "_cudnn_ctc_loss": _lengths,
    "_pack_padded_sequence": _taken,
    "slice_scatter": _taken,
    "select_scatter": _taken,
    "diagonal_scatter": _taken,
    "as_strided_scatter": _taken,
}
_CHECKS: dict[Any, Check] = {}
