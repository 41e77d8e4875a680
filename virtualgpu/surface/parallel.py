"""DistributedDataParallel on virtual GPUs: PyTorch's reducer with values, our own in shapes-only mode.

C++ takes a parameter for one of the host. So what it makes is put on the parameters' GPU, its events are recorded
there, and what it sends to compare parameters is sent as tensors of the GPU.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import batchnorm
from torch.utils._python_dispatch import TorchDispatchMode

from ..scope.labels import FLOATING, NAME, PINNED, device_of, storage_of
from ..scope.patches import Patches

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the C++ functions of DistributedDataParallel, while `gpu` is in force."""
    import torch.distributed as dist

    if gpu.skips_ddp:
        _skip(gpu, patches)
        return
    if not gpu.compute:
        patches.set(batchnorm, "sync_batch_norm", _sync_batch_norm(batchnorm.sync_batch_norm))  # type: ignore[attr-defined]
    known = vars(dist)
    own = {name: known[name] for name in ("Reducer", "Logger", "_register_comm_hook", "_register_builtin_comm_hook")}
    reducer = _reducer(own["Reducer"])
    patches.set(dist, "Reducer", reducer if gpu.compute else _by_parameters(reducer))
    patches.set(dist, "Logger", _logger(own["Logger"]))
    patches.set(dist, "_register_comm_hook", _registering(own["_register_comm_hook"]))
    builtin = _registering_builtin(own["_register_builtin_comm_hook"])
    patches.set(dist, "_register_builtin_comm_hook", builtin)
    patches.set(dist, "_verify_params_across_processes", _verifying(known["_verify_params_across_processes"]))


# -- without it ------------------------------------------------------------------------------------------------------


class _Nobody:
    """In place of a reducer or its logger: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def _get_ddp_logging_data(self) -> Any:
        from ..ranks.logger import Data

        return Data()


def _skip(gpu: VirtualGPU, patches: Patches) -> None:
    """DistributedDataParallel wraps a module and does nothing: no buckets, no exchange, no broadcast of buffers."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def reducer(*args: Any, **kwargs: Any) -> Any:
        gpu.skipped_ddp += 1
        return _Nobody()

    for name in ("_register_comm_hook", "_register_builtin_comm_hook", "_verify_params_across_processes"):
        patches.set(dist, name, lambda *args, **kwargs: None)
    patches.set(dist, "Reducer", reducer)
    patches.set(dist, "Logger", lambda of: _Nobody())
    patches.set(DistributedDataParallel, "will_sync_module_buffers", lambda self: False)
    patches.set(DistributedDataParallel, "_post_forward", lambda self, output: output)


# -- with values -----------------------------------------------------------------------------------------------------


class _Adopting(TorchDispatchMode):
    """Mode for C++ factories: with a device, their results are on this GPU, without one on the host."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        storage = storage_of(out) if isinstance(out, torch.Tensor) else None
        if storage is None or (kwargs or {}).get("device") is None:
            if func is torch.ops.aten.zeros.default:  # flags, which C++ copies through page-locked memory to a GPU
                setattr(storage, PINNED, True)
        elif getattr(storage, NAME, None) is FLOATING:
            self.device.put(storage)
        return out


def _reducer(own: Any) -> Any:
    """PyTorch's reducer, which holds the buckets: they are there from the start."""
    from ..ranks.agreement import on_one_gpu
    from ..ranks.statistics import Statistics

    class Reducer(own):  # type: ignore[misc]
        def __init__(self, parameters: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
            device = None if device_of(parameters[0]) is None else on_one_gpu(parameters)
            self.group = args[2]
            self._making = contextlib.nullcontext() if device is None else _Adopting(device)
            with self._making:
                super().__init__(parameters, *args, **kwargs)
            self.statistics = Statistics(device)
            self._asked = False
            if device is not None:
                nodes = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in parameters]
                hook = _telling(weakref.ref(self))
                self._nodes = [(node, node.register_hook(hook)) for node in nodes]

        def prepare_for_forward(self) -> None:
            super().prepare_for_forward()
            self.statistics.iterations += 1
            self.statistics.record("forward_start")

        def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
            super().prepare_for_backward(outputs)
            self.statistics.record("backward_compute_start")
            self._asked = not self.statistics.collects

        def in_backward(self) -> None:
            """Record the reducer's last events at the end of the pass."""
            from ..ranks import futures

            if not self._asked:
                self._asked = True
                futures.at_backward_end(lambda: futures.at_backward_end(self._at_end))

        def _at_end(self) -> None:
            for event in ("backward_comm_start", "backward_compute_end", "backward_comm_end"):
                self.statistics.record(event)

        def _run_allreduce_hook(self, bucket: Any) -> Any:
            """The future of an all-reduce for which a stream can wait; C++ gives one that is done."""
            return self.group.allreduce([bucket.buffer()]).get_future()

        def _update_process_group(self, new_process_group: Any) -> None:
            super()._update_process_group(new_process_group)
            self.group = new_process_group

        def _rebuild_buckets(self) -> bool:
            with self._making:
                return bool(super()._rebuild_buckets())

        def _set_static_graph(self) -> None:
            with self._making:
                super()._set_static_graph()

        def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
            super()._set_ddp_runtime_logging_sample_rate(sample_rate)
            self.statistics.rate = sample_rate

    return Reducer


def _telling(reducer: Any) -> Any:
    def hook(*gradients: Any) -> None:
        found = reducer()
        if found is not None:
            found.in_backward()

    return hook


def _logger(own: Any) -> Any:
    """Wrap PyTorch's logger to add the host's waits on a GPU; our reducer gets our logger."""
    from ..ranks import reducer as on_shapes
    from ..ranks.logger import Data
    from ..ranks.logger import Logger as OnShapes

    class Logger(own):  # type: ignore[misc]
        def __init__(self, reducer: Any) -> None:
            super().__init__(reducer)
            self._statistics = weakref.ref(reducer)

        def set_runtime_stats_and_log(self) -> None:
            super().set_runtime_stats_and_log()
            reducer = self._statistics()
            if reducer is not None:
                reducer.statistics.collect()

        def _get_ddp_logging_data(self) -> Any:
            """PyTorch's, with the virtual GPU's times for this machine's; those of communication are not known."""
            data = super()._get_ddp_logging_data()
            reducer = self._statistics()
            if reducer is None or reducer.statistics.device is None:
                return data
            integers = {name: value for name, value in data.ints_map.items() if "_time" not in name}
            times = {name: value for name, value in reducer.statistics.nanoseconds.items() if "comm" not in name}
            return Data(dict(data.strs_map), integers | times)

    def of(reducer: Any) -> Any:
        return OnShapes(reducer) if isinstance(reducer, on_shapes.Reducer) else Logger(reducer)

    return of


# -- on shapes alone -------------------------------------------------------------------------------------------------


def _by_parameters(in_cpp: Any) -> Any:
    from ..ranks.reducer import Reducer as OnShapes

    def reducer(parameters: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """Return our reducer for parameters of a virtual GPU, PyTorch's for those of the host."""
        return (in_cpp if device_of(parameters[0]) is None else OnShapes)(parameters, *args, **kwargs)

    return reducer


def _sync_batch_norm(own: Any) -> Any:
    """Wrap PyTorch's function of `nn.SyncBatchNorm`, where the other ranks' element counts are unknown."""
    from ..operations.shapes_only import each_rank_has_a_batch

    class SyncBatchNorm(own):  # type: ignore[misc]
        @classmethod
        def apply(cls, *args: Any) -> Any:
            with each_rank_has_a_batch():
                return super().apply(*args)

    return SyncBatchNorm


# -- in both ---------------------------------------------------------------------------------------------------------


def _verifying(own: Any) -> Any:
    from ..ranks.agreement import verify_parameters
    from ..ranks.group import VirtualGroup

    def verify(group: Any, parameters: list[torch.Tensor], logger: Any = None) -> None:
        if device_of(parameters[0]) is None or not isinstance(group, VirtualGroup):
            own(group, parameters, logger)
        else:
            verify_parameters(group, parameters)

    return verify


def _registering(own: Any) -> Any:
    from ..ranks import reducer as on_shapes

    def register(reducer: Any, state: Any, hook: Any) -> None:
        if isinstance(reducer, on_shapes.Reducer):
            reducer.register_hook(lambda bucket: hook(state, bucket))
        else:
            own(reducer, state, hook)

    return register


def _registering_builtin(own: Any) -> Any:
    """The hooks that PyTorch has in C++ too are taken in Python: there they are the same operations."""

    def register(reducer: Any, kind: Any) -> None:
        import torch._C._distributed_c10d as _C
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {
            _C.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
            _C.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
        }
        if getattr(reducer, "statistics", None) is None or reducer.statistics.device is None:
            own(reducer, kind)
        else:
            vars(dist)["_register_comm_hook"](reducer, reducer.group, hooks[kind])

    return register
