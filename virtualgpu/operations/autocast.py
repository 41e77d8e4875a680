"""CUDA's autocast for labelled CPU tensors: its lists of operations, and its cache of cast weights.

`torch.autocast("cuda")` itself is PyTorch's. Its casts are registered for CUDA tensors only, so the same lists are
registered here on a dispatch key that nothing else uses, which every thread of a virtual GPU includes. The lists are
those of ATen/autocast_mode.h; a test holds them against what PyTorch has registered for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..scope import in_force
from ..scope.labels import device_of
from .results import tensors_in

KEY: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
_WITHOUT = torch._C.DispatchKeySet(KEY)
_AND_THE_CPUS = _WITHOUT | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
Tensor = torch.Tensor


def _names(text: str) -> list[str]:
    return text.split()


LOWER = _names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
    baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention cudnn_convolution
    cudnn_convolution_transpose
""")
FLOAT = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth
""")
# Their result's dtype is an argument: it becomes float32 where none is given.
SET_DTYPE = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
# They call the overload that takes a dtype.
APPEND_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
PROMOTE = _names("""
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
""")
REFUSED = ["binary_cross_entropy"]

_REFUSAL = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)

# On no list, and made of what is on one. In inference mode they would arrive whole below, where nothing is cast.
COMPOSITE = ["cross_entropy_loss", "nll_loss_nd"]

# The 16-bit copies of parameters, until the outermost autocast block ends; they keep their parameters alive.
_cache: dict[int, tuple[Tensor, Tensor]] = {}


def clear_cache() -> None:
    _cache.clear()


def below(*arguments: Any) -> Any:
    """A context in which operations no longer pass here; nor, where a GPU's tensor is among `arguments`, through
    `torch.autocast("cpu")`, which would take it for the CPU's, where it is computed."""
    cpus = torch.is_autocast_enabled("cpu") and any(map(_on_gpu, tensors_in(arguments)))
    return torch._C._ExcludeDispatchKeyGuard(_AND_THE_CPUS if cpus else _WITHOUT)


def casting() -> bool:
    """Return True if `torch.autocast("cuda")` is on in this thread."""
    return torch.is_autocast_enabled("cuda")


def lower(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the arguments of an operation of the first list."""
    return cast_last_first(args, torch.get_autocast_dtype("cuda"))


def to_float(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the arguments of an operation that autocast runs in float32."""
    return cast_last_first(args, torch.float32)


def overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


Change = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, tuple[Any, ...], dict[str, Any]]]


def kernel(name: str, change: Change | None = None) -> Callable[..., Any]:
    """Return the operation with its call changed by `change` while autocast is on."""
    op = overload(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with below(*args, *kwargs.values()):
            if change is not None and torch.is_autocast_enabled("cuda"):
                called, args, kwargs = change(op, args, kwargs)
                return called(*args, **kwargs)
            return op(*args, **kwargs)

    return run


def in_parts(name: str) -> Callable[..., Any]:
    """Run the operation as its parts, each of which passes through autocast."""
    parts: Callable[..., Any] = overload(name).decompose
    return parts


def cpus_alone(name: str) -> Callable[..., Any]:
    """An operation that is on a list of `torch.autocast("cpu")` only."""
    made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd")
    return in_parts(name) if made_of_others else kernel(name)


def lowered(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op, lower(args), kwargs


def _widened(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op, to_float(args), kwargs


def _dtype_set(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    place = [argument.name for argument in op._schema.arguments].index("dtype")
    given = args[place] if len(args) > place else kwargs.get("dtype")
    if given is None and eligible(args[0]):
        args = args[:place]
        kwargs = {**kwargs, "dtype": torch.float32}
        for argument in op._schema.arguments[len(args) : place]:
            kwargs.setdefault(argument.name, argument.default_value)
    return op, args, kwargs


def _dtype_appended(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not eligible(args[0]):
        return op, args, kwargs
    filled = (*args, *(kwargs.get(a.name, a.default_value) for a in op._schema.arguments[len(args) :]))
    return overload(APPEND_DTYPE[op.name().removeprefix("aten::")]), filled, {"dtype": torch.float32}


def _promoted(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtypes = [t.dtype for t in tensors_in((args, tuple(kwargs.values()))) if eligible(t)]
    widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
    return op, cast_last_first(args, widest), kwargs


def _refused(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _on_gpu(args[0]):
        raise RuntimeError(_REFUSAL)
    return op, args, kwargs


LISTS: list[tuple[Any, Change]] = [
    (LOWER, lowered),
    (FLOAT, _widened),
    (SET_DTYPE, _dtype_set),
    (APPEND_DTYPE, _dtype_appended),
    (PROMOTE, _promoted),
    (REFUSED, _refused),
]


def _on_gpu(tensor: Tensor) -> bool:
    return in_force.current is not None and device_of(tensor) is not None


def eligible(tensor: Any) -> bool:
    """Return True if autocast may cast it: on a GPU, floating, and not float64."""
    return (
        isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.dtype is not torch.float64
        and _on_gpu(tensor)
    )


def cast_last_first(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """In the order of C++, where each is the argument of a call: compilers evaluate the last first."""
    return tuple([_cast(item, dtype) for item in reversed(args)])[::-1]


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, Tensor):
        return _cast_tensor(tree, dtype) if tree.dtype is not dtype and eligible(tree) else tree
    if type(tree) is tuple:
        return tuple([_cast(item, dtype) for item in tree])
    if type(tree) is list:
        return [_cast(item, dtype) for item in tree]
    if type(tree) is dict:
        return {key: _cast(item, dtype) for key, item in tree.items()}
    return tree


def _cast_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast, remembered for float32 parameters that are cast to autocast's own dtype."""
    cacheable = (
        dtype is not torch.float32
        and tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not cacheable:
        return tensor.to(dtype)
    found = _cache.get(id(tensor))
    if found is not None and found[1].dtype is dtype:
        return found[1]
    with torch.enable_grad():  # it serves operations with a gradient too (cached_cast in autocast_mode.cpp)
        cast = tensor.to(dtype)
    _cache[id(tensor)] = (tensor, cast)
    return cast
