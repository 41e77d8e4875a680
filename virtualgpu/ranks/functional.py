"""Functional collectives (`torch.ops._c10d_functional`), on which DTensor and tensor parallelism are built.

Their results are new tensors of the GPU, which may not be read before `wait_tensor`. PyTorch's C++ allocates them and
calls the group; here they are allocated in Python, where the virtual GPU sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..operations import dispatch
from ..operations.results import tensors_in
from ..scope.in_force import thread
from ..scope.labels import device_of, storage_of
from ..scope.refusals import NotMirrored

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from .group import VirtualGroup
    from .works import VirtualWork

Tensor = torch.Tensor
_resolve: Any = vars(c10d)["_resolve_process_group"]
NAMESPACE = "_c10d_functional"
_WORK = "_gpulab_work"  # on the storage of a result in flight


def run_collective(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a functional collective of tensors on the virtual GPU; PyTorch's own code runs those of the host."""
    name = func._schema.name.removeprefix(NAMESPACE + "::")
    if not any(device_of(tensor) is not None for tensor in tensors_in((*args, *kwargs.values()))):
        _refuse_host_tensors(func, args, kwargs)
        return func._op(*args, **kwargs)
    made = _MADE.get(name)
    if made is None:
        raise NotMirrored(f"the functional collective {name} is not mirrored by the virtual GPU")
    thread.functional = True
    try:
        with dispatch.MODE, torch.no_grad():
            return made(*args, **kwargs)
    finally:
        thread.functional = False


def _refuse_host_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse host tensors as NCCL does, where real GPUs would join the group through NCCL alone."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    if "group_name" in given and "cpu" not in getattr(_group(given["group_name"]), "asked", "cpu"):
        raise RuntimeError("No backend type associated with device type cpu")


def install() -> None:
    """Route these operations of the virtual GPU here."""
    dispatch.NAMESPACES[NAMESPACE] = run_collective


def _group(named: Any) -> VirtualGroup:
    found: VirtualGroup = _resolve(named) if isinstance(named, str) else named
    return found


def _begun(work: VirtualWork, *results: Tensor) -> None:
    for result in results:
        setattr(storage_of(result), _WORK, work)


_OPS = {
    name: getattr(dist.ReduceOp, name.upper())
    for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
}


def _with(options: Any, op: str) -> Any:
    options.reduceOp = _OPS[op.lower()]
    options.asyncOp = True
    return options


def _all_reduce_(tensor: Tensor, op: str, group: Any) -> Tensor:
    _begun(_group(group).allreduce([tensor], _with(_C.AllreduceOptions(), op)), tensor)
    return tensor


def _all_reduce(tensor: Tensor, op: str, group: Any) -> Tensor:
    return _all_reduce_(tensor.clone(memory_format=torch.contiguous_format), op, group)


def _all_gather(tensor: Tensor, count: int, group: Any) -> Tensor:
    tensor = tensor.contiguous()
    shape = [count, *tensor.shape[1:]] if not tensor.dim() else [count * tensor.shape[0], *tensor.shape[1:]]
    return _all_gather_out(tensor, count, group, out=tensor.new_empty(shape))


def _all_gather_out(tensor: Tensor, count: int, group: Any, *, out: Tensor) -> Tensor:
    options = _C.AllgatherOptions()
    options.asyncOp = True
    _begun(_group(group)._allgather_base(out, tensor.contiguous(), options), out)
    return out


def _reduce_scatter(tensor: Tensor, op: str, count: int, group: Any) -> Tensor:
    if tensor.shape[0] % count:
        raise ValueError(f"input has {tensor.shape[0]} rows, which {count} ranks cannot share equally")
    out = tensor.new_empty([tensor.shape[0] // count, *tensor.shape[1:]])
    return _reduce_scatter_out(tensor, op, count, group, out=out)


def _reduce_scatter_out(tensor: Tensor, op: str, count: int, group: Any, *, out: Tensor) -> Tensor:
    options = _with(_C.ReduceScatterOptions(), op)
    _begun(_group(group)._reduce_scatter_base(out, tensor.contiguous(), options), out)
    return out


def _all_to_all(tensor: Tensor, output_sizes: list[int], input_sizes: list[int], group: Any) -> Tensor:
    tensor = tensor.contiguous()
    rows = sum(output_sizes) if output_sizes else tensor.shape[0]
    out = tensor.new_empty([rows, *tensor.shape[1:]])
    _begun(_group(group).alltoall_base(out, tensor, output_sizes, input_sizes, _C.AllToAllOptions()), out)
    return out


def _broadcast_(tensor: Tensor, source: int, group: Any) -> Tensor:
    options = _C.BroadcastOptions()
    options.rootRank, options.asyncOp = source, True
    _begun(_group(group).broadcast([tensor], options), tensor)
    return tensor


def _broadcast(tensor: Tensor, source: int, group: Any) -> Tensor:
    return _broadcast_(tensor.clone(memory_format=torch.contiguous_format), source, group)


def _wait(tensor: Tensor) -> Tensor:
    storage = storage_of(tensor)
    work = getattr(storage, _WORK, None)
    if work is not None:
        delattr(storage, _WORK)
        work.wait()
    return tensor


def _coalesced(collective: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    return lambda tensors, *rest: [collective(tensor, *rest) for tensor in tensors]


_MADE: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_,
    "all_reduce_coalesced": _coalesced(_all_reduce),
    "all_reduce_coalesced_": _coalesced(_all_reduce_),
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather_out,
    "all_gather_into_tensor_coalesced": _coalesced(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter_out,
    "reduce_scatter_tensor_coalesced": _coalesced(_reduce_scatter),
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "broadcast_": _broadcast_,
    "wait_tensor": _wait,
}
