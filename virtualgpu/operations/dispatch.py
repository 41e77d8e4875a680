"""The dispatch mode below autograd: runs each operation on the backing tensors and labels its results.

What an operation is (view, factory, copy, …) is worked out once per overload, from its schema; what it costs in memory
is what appears: no operation is listed by name here except those that choose a device themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..clock.clock import real
from ..scope import in_force, ownership
from ..scope.in_force import backing, thread
from ..scope.labels import FLOATING, device_of, is_wrapper_type, parts_of, storage_of
from ..scope.refusals import NotMirrored
from . import (
    assertions,
    captured,
    copies,
    cost,
    cuda_refusals,
    device_checks,
    factories,
    foreign,
    handlers,
    host_shapes,
    known_values,
    layers,
    nested,
    random,
    shapes_only,
    temporaries,
)
from .results import capture_of, float_, join, look, map_tensors, place, resized, tensors_in

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
Run = Callable[["VirtualGPU", Any, tuple[Any, ...], dict[str, Any]], Any]

_storage: Any = torch._C.TensorBase.untyped_storage
_wraps = cache(is_wrapper_type)


class Dispatch(TorchDispatchMode):
    """The dispatch mode of all scopes, entered in every thread; without a GPU in force it changes nothing."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and the guard would cost every operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu = in_force.current
        if gpu is None or thread.inside:
            return func(*args, **kwargs) if kwargs else func(*args)
        if types and any(map(_wraps, types)):
            return NotImplemented  # the wrapper's own code comes first, and what it calls is seen
        try:
            run = _PLANS[id(func)][0]
        except KeyError:
            run = _planned(func)
        if nested.seen and nested.any_nested((args, kwargs.values() if kwargs else ())):
            run = _run_nested
        if gpu.under_way is not None and run not in _SEEN_WITHIN and gpu.under_way.waits():
            _tell_uses(gpu.under_way, func, args, kwargs or _NOTHING)
        out = run(gpu, func, args, kwargs or _NOTHING)
        if not gpu.compute and run is not _run_higher:
            known_values.follow(func, args, kwargs or _NOTHING, out)
        return out


def _tell_uses(under_way: copies.UnderWay, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Report host memory that an operation reads or writes, except copies to the GPU."""
    name = func.name()
    if "_like" in name or "::new_" in name:
        return  # these use only the shape of their arguments
    if name == "aten::_to_copy" or name in _COPYING:
        device = kwargs.get("device")
        if (device is not None and device.type == "cuda") or look(args, None, None, None)[0] is not None:
            return
    written = known_values.written_by(func)
    for argument, item in (*enumerate(args), *kwargs.items()):
        for tensor in tensors_in(item):
            if device_of(tensor) is None:
                under_way.used(storage_of(tensor), writes=argument in written)


NAMESPACES: dict[str, Run] = {}  # namespaces of operations that another room runs
MODE = Dispatch()  # type: ignore[no-untyped-call]
_NOTHING: dict[str, Any] = {}


def _planned(func: Any) -> Run:
    if id(func) not in _PLANS:
        plan = (_plan_primitive if func.name().startswith("prims::") else _plan)(func)
        asserts = plan is not _run_higher and assertions.asserts(func)
        if func in cuda_refusals.NOT_DETERMINISTIC:
            plan = partial(_run_alerting, plan)
        _PLANS[id(func)] = partial(_run_asserting, plan) if asserts else plan, func
    return _PLANS[id(func)][0]


def _plan(func: Any) -> Run:
    """Plan for running an overload."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return _run_higher
    if func.name() in shapes_only.SYNCHRONISING:
        return _run_synchronising
    if foreign.is_foreign(func):
        return _run_foreign
    return _plan_native(func)


def _plan_native(func: Any) -> Run:
    """Return the plan of an operation whose kernels are PyTorch's, or in C++."""
    schema = func._schema
    name = func.name()
    if name.partition("::")[0] in NAMESPACES:
        return NAMESPACES[name.partition("::")[0]]
    if func in _PARTS:
        return _run_in_parts
    if name.startswith("prim::"):
        return _run_plainly  # a fake tensor asks for its device
    if any(argument.name == "device" for argument in schema.arguments):
        return factories.run_factory
    if func is torch.ops.aten.add.Tensor:
        return _run_add
    if func in _IN_PLACE:
        return _run_scattering
    if name.startswith(("aten::index.Tensor", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index")):
        return _run_indexing
    if func in handlers.HANDLERS:
        return _run_handled
    if torch.Tag.nondeterministic_seeded in func.tags:
        handlers.HANDLERS[func] = random.drawn
        return _run_handled
    if name.startswith("aten::record_stream"):
        return _run_plainly
    if name in _COPYING:
        return _run_copy
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "CompositeImplicitAutograd") and not has(name, "CPU"):
        return _run_composite
    returns = schema.returns
    if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        return _run_plainly  # views of one storage
    if name.startswith(("aten::resize", "aten::set_")) or any(a.is_out for a in schema.arguments):
        return _run_resizing
    return _run


def _plan_primitive(func: Any) -> Run:
    """Return the plan of a primitive of PyTorch's Python decompositions.

    Without values tensors are meta tensors, and then it is a kernel for those that asks: the product of a tensor of
    zeros, as derivatives forwards have them, looks up its shape there (`mul_zerotensor` in BinaryOps.cpp), which takes
    no memory on a GPU.
    """
    with_values = _plan(func)

    def run(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (with_values if gpu.compute else _run_plainly)(gpu, func, args, kwargs)

    return run


def _run_alerting(plan: Run, gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation whose kernel on a GPU is not deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        cuda_refusals.alert(func, args, kwargs)
    return plan(gpu, func, args, kwargs)


def _run_asserting(plan: Run, gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation whose kernel asserts; without values, check the known ones."""
    out = plan(gpu, func, args, kwargs)
    if not gpu.compute and (device := device_of(args[0])) is not None and device.fault is None:
        given = _by_place(func, args, kwargs)
        ignored = assertions.ignored(func, given)
        if any(known_values.outside(*each, ignored) for each in assertions.reads(func, given)):
            handlers.fail(device, assertions.condition(func, args, kwargs))
    return out


def _run_higher(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that calls others, which are seen."""
    higher = _HIGHER.get(func.name())
    if higher is None:
        raise NotMirrored(f"the higher-order operator {func.name()} is not mirrored by the virtual GPU")
    with MODE:
        return higher(*args, **kwargs)


_HIGHER: dict[str, Callable[..., Any]] = {
    # DTensor's random numbers: each rank draws what is its own, so the offsets of the others are skipped
    "run_dtensor_rng_op": lambda before, after, op, *args, **kwargs: op(*args, **kwargs),
}


def _run_plainly(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if gpu.compute:
        return func._op(*args, **kwargs)
    with backing:
        return func._op(*args, **kwargs)


def _run(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], handler: Any = None) -> Any:
    """The general case: find the GPU among the arguments, run, label new storages, charge the time."""
    # The path of most operations: below, `look` is inlined for speed.
    began = real()
    device = host = floating = None
    for item in args:
        if isinstance(item, Tensor):
            try:
                label = _storage(item)._gpulab
            except (RuntimeError, NotImplementedError):
                device, host, floating = look(parts_of(item), device, host, floating)
                continue
            if label is None:
                if host is None or not host.dim():
                    host = item
            elif label is FLOATING or not label.device.active:
                device, host, floating = look((item,), device, host, floating)
            elif device is None:
                device = label.device
            elif label.device is not device:
                device, host, floating = look((item,), device, host, floating)
        elif item.__class__ is list or item.__class__ is tuple:
            device, host, floating = look(item, device, host, floating)
    if kwargs:
        device, host, floating = look(kwargs.values(), device, host, floating)
    if device is None:
        if handler is not None:
            random.check_host_generator(kwargs)
        if host_shapes.any_host_shape(args) or (kwargs and host_shapes.any_host_shape(kwargs.values())):
            return host_shapes.run_on_shapes(func, args, kwargs)
        gpu.clock.skip(real() - began)
        out = func._op(*args, **kwargs)
        if floating is not None and (host is None or not host.dim()):
            out = float_(gpu, out)
        return out
    clock = gpu.clock
    clock.enter()
    if host is not None and func not in handlers.HOSTED:
        args, kwargs = device_checks.settle(gpu, device, func, args, kwargs)
    if floating is not None:
        join(device, floating)
    if device.fault is not None:
        device.raise_fault()
    capture: Any = device.capture
    if capture is not None:
        capture = capture if capture.covers(device.stream) else None
        if capture is not None:
            capture.before(func, args, kwargs)
    if handler is not None:
        out = handler(gpu, device, func, args, kwargs)
    elif gpu.compute:
        try:
            out = func._op(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            out = handlers.recover(gpu, device, func, args, kwargs, error)
    else:
        out = shapes_only.run_on_meta(gpu, device, func, args, kwargs)
    if out.__class__ is Tensor:
        try:
            storage = _storage(out)
        except (RuntimeError, NotImplementedError):
            place(device, out)
        else:
            if storage._gpulab is None:
                storage._gpulab = device.allocate(storage.nbytes())
    else:
        place(device, out)
    if capture is not None:
        out = capture.note(partial(_again, gpu, func, handler), args, kwargs, out)
    if id(func) in temporaries.IDS and gpu.mirror:
        temporaries.take(device, func, _by_place(func, args, kwargs) if kwargs else args, out)
    if out is None and kwargs and "out" in kwargs:  # what is written, and nothing is returned: FSDP's copies
        args = (*args, kwargs["out"])
    cost.charge(device, func, args, out)
    clock.leave()
    return out


def _again(gpu: VirtualGPU, func: Any, handler: Any, device: Device, args: Any, kwargs: Any) -> Any:
    """Compute an operation in a replay of a CUDA graph."""
    if handler is not None:
        return handler(gpu, device, func, args, kwargs)
    try:
        return func._op(*args, **kwargs)
    except (RuntimeError, IndexError) as error:
        return handlers.recover(gpu, device, func, args, kwargs, error)


def _by_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments in the order of the schema."""
    return *args, *(kwargs.get(a.name, a.default_value) for a in func._schema.arguments[len(args) :])


def _run_add(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In backward, write the sum of two gradients over the first where nothing else needs it.

    Autograd's engine does so itself (accumulate in input_buffer.cpp), but not while a dispatch mode is active.
    """
    if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled() and gpu.mirror and not kwargs:
        into, more = args
        references = sys.getrefcount(into)
        if (
            isinstance(more, Tensor)
            and isinstance(into, Tensor)
            and into.shape == more.shape
            and into.dtype is more.dtype
            and ownership.owns(func, into, references)
            and ownership.is_dense(into)
        ):
            _run(gpu, torch.ops.aten.add_.Tensor, args, kwargs)
            known_values.forget(into)
            return into
    return _run(gpu, func, args, kwargs)


def _run_scattering(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In backward, scatter gradients in place into the zeros that were made for them.

    PyTorch's formulas do so themselves, but not while a dispatch mode is active (areAnyTensorSubclassLike).
    """
    if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled() and gpu.mirror:
        into = args[0]
        references = sys.getrefcount(into)
        if ownership.owns(func, into, references):
            _plan(_IN_PLACE[func])(gpu, _IN_PLACE[func], args, kwargs)
            known_values.forget(into)
            return into
    return (_run_indexing if func is torch.ops.aten.index_put.default else _run)(gpu, func, args, kwargs)


_IN_PLACE = {
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
}


def _run_composite(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Decompose a composite operation, which arrives whole in inference mode, so that its parts are seen."""
    with MODE:  # it is off while an operation is handled
        out = func.decompose(*args, **kwargs)
    if out is NotImplemented:
        return _run(gpu, func, args, kwargs)
    return out


def _run_in_parts(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation that CUDA's code implements by calling others, which are seen."""
    given = _by_place(func, args, kwargs)
    device, host, _ = look(given, None, None, None)
    if device is not None:
        if host is not None:
            device_checks.settle(gpu, device, func, args, kwargs)
        with MODE:
            out = _PARTS[func](*given)
        if out is not NotImplemented:
            return out
    return _run(gpu, func, args, kwargs, handlers.HANDLERS.get(func) if device is not None else None)


def _run_nested(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on a nested tensor: mirrored, or, with values, with only its results accounted."""
    if func in nested.PARTS:
        with MODE:
            return nested.PARTS[func](*_by_place(func, args, kwargs))
    if func in nested.ASKS:
        return _run_plainly(gpu, func, args, kwargs)
    run = _planned(func)
    if run is not _run_composite:
        nested.only_results(gpu, func)
    return run(gpu, func, args, kwargs)


def _run_foreign(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator of a library, whose kernel may be registered at any time."""
    return foreign.run_operator(MODE, _native(func), gpu, func, args, kwargs)


def _run_handled(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation whose CUDA kernel returns other tensors than the CPU's, or draws random numbers."""
    return _run(gpu, func, args, kwargs, handlers.HANDLERS[func])


def _run_copy(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `copy_`, also between host and GPU."""
    device, _, floating = look(args, None, None, None)
    if device is None:
        if host_shapes.any_host_shape(args):
            return host_shapes.copy(gpu, func, args, kwargs)
        return func._op(*args, **kwargs)
    gpu.clock.enter()
    if floating is not None:
        join(device, floating)
    if device.fault is not None:
        device.raise_fault()
    capture = capture_of(device)
    if capture is not None:
        capture.before(func, args, kwargs)
    out = func._op(*args, **kwargs) if gpu.compute else shapes_only.copy_without_values(gpu, func, args, kwargs)
    if capture is not None:
        capture.note(partial(_again, gpu, func, None), args, kwargs, out, live=True)
    non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
    pairs = zip(*args[:2], strict=True) if isinstance(args[0], (list, tuple)) else [args[:2]]
    for into, source in pairs:
        copies.charge(into, source, non_blocking=non_blocking)
    gpu.clock.leave()
    return out


def _run_resizing(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation that may resize a storage."""
    if func.name().startswith("aten::set_") and look(args, None, None, None)[0] is None:
        return func._op(*args, **kwargs)  # a host storage stays on the host
    try:
        out = _run(gpu, func, args, kwargs)
    except RuntimeError as error:
        if "storage that is not resizable" in str(error):
            captured.refuse_to_resize(tensors_in((args, tuple(kwargs.values()))))
        raise
    for item in [*args, *kwargs.values(), out]:
        for tensor in item if isinstance(item, (list, tuple)) else [item]:
            if isinstance(tensor, Tensor):
                device = resized(storage_of(tensor))
                if device is not None and (capture := capture_of(device)) is not None:
                    capture.resized(tensor)
    return out


_REPEAT = torch.ops.aten.repeat_interleave.Tensor


def _run_synchronising(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a synchronizing operation: its result is a Python number, or its shape depends on values."""
    device = device_of(args[0]) if isinstance(args[0], Tensor) else None
    if device is None or (func is _REPEAT and kwargs.get("output_size") is not None):  # the shape is known then
        return _run(gpu, func, args, kwargs)
    _, other, _ = look(args, None, None, None)
    if other is not None:
        device_checks.settle(gpu, device, func, args, kwargs)
    device.raise_fault()
    device.check_capture()
    out = _run(gpu, func, args, kwargs) if gpu.compute else _known_or_not(gpu, device, func, args, kwargs)
    copies.read_back(device)
    return out


def _known_or_not(gpu: VirtualGPU, device: Device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Without values, return the result and its shape where they follow from constants."""
    found = known_values.compute(func, args, kwargs)
    if found is None:
        out = shapes_only.unknown_value(gpu, func, _by_place(func, args, kwargs))
        place(device, out)
        return out
    with backing:
        shapes = map_tensors(lambda t: t.to("meta"), found)
    place(device, shapes)
    return shapes


def _run_indexing(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an indexing operation; the host waits to copy host indices, and for the number of true mask elements."""
    device = device_of(args[0])
    if device is not None:
        copies.send_indices(device, args[1])
    taken = device is not None and not gpu.compute and func in _TAKING
    out = _run(gpu, func, args, kwargs, shapes_only.index if taken else None)
    if device is not None and not _fills(func, args, kwargs):
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8) and device_of(index) is not None:
                copies.read_back(device)
                break
    return out


_TAKING = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)


def _fills(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if it writes a host scalar through one mask: a masked_fill (canDispatchToMaskedFill)."""
    if "index_put" not in func.name():
        return False
    values = args[2] if len(args) > 2 else kwargs["values"]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    masks = [index for index in args[1] if index is not None]
    a_mask = len(masks) == 1 and masks[0].dtype in (torch.bool, torch.uint8)
    return a_mask and not accumulate and values.numel() == 1 and device_of(values) is None


_PARTS = layers.PARTS | nested.MAKES
_native = cache(_plan_native)
_COPYING = {"aten::copy_", "aten::_copy_from", "aten::_foreach_copy_"}
# Operations that read no values, and operations that call others that do.
_SEEN_WITHIN = {_run_plainly, _run_higher, _run_composite, _run_foreign}
# By the overload's id, since its hash is computed in Python; the overload itself keeps that from being another's.
_PLANS: dict[int, tuple[Run, Any]] = {}
