"""`torch.distributed.Logger` for shapes-only mode: what DistributedDataParallel reports about itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reducer import Reducer

_ENVIRONMENT = {
    name: name.upper()
    for name in ("master_port", "master_addr", "torch_distributed_debug", "cuda_visible_devices", "nccl_socket_ifname",
                 "nccl_blocking_wait", "nccl_async_error_handling", "nccl_debug", "nccl_nthreads", "nccl_ib_timeout")
}  # fmt: skip
_DTYPES = {"float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double"}


@dataclass
class Data:
    """The fields of `DDPLoggingData`."""

    strs_map: dict[str, str] = field(default_factory=dict)
    ints_map: dict[str, int] = field(default_factory=dict)


class Logger:
    """Implements the methods that DistributedDataParallel calls."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer, self.data = reducer, Data()

    def set_construction_data_and_log(
        self,
        module_name: str,
        device_ids: list[int],
        output_device: int,
        broadcast_buffers: bool,
        has_sync_bn: bool,
        static_graph: bool,
    ) -> None:
        reducer, group = self.reducer, self.reducer.group
        kinds = {str(p.dtype).removeprefix("torch.") for p in reducer.parameters}
        self.data.strs_map |= {
            "module_name": module_name,
            "dtypes": ", ".join(sorted(_DTYPES.get(kind, kind) for kind in kinds)),
            "bucket_sizes": self._sizes(),
            "device_ids": ", ".join(map(str, device_ids)),
            "backend_name": group.getBackendName(),
            **{name: os.environ.get(variable, "N/A") for name, variable in _ENVIRONMENT.items()},
        }
        self.data.ints_map |= {
            "world_size": group.size(),
            "rank": group.rank(),
            "iteration": 0,
            "is_multi_device_module": 0,
            "num_parameter_tensors": len(reducer.parameters),
            "total_parameter_size_bytes": sum(p.nbytes for p in reducer.parameters),
            "output_device": output_device,
            "broadcast_buffers": int(broadcast_buffers),
            "has_sync_bn": int(has_sync_bn),
            "bucket_cap_bytes": reducer.bucket_bytes_cap,
            "find_unused_parameters": int(reducer.finds_unused),
            "gradient_as_bucket_view": int(reducer.gradients.views),
        }
        if static_graph:
            self._set_static_graph()

    def set_runtime_stats_and_log(self) -> None:
        reducer = self.reducer
        if not reducer.statistics.collects:
            return
        unused = sum(reducer.parameters[index].nbytes for index in reducer.unused)
        self.data.ints_map |= {
            "iteration": reducer.statistics.iterations,
            "unused_parameter_size": unused,
            "num_buckets_reduced": reducer.reduced,
        }
        known = self.data.ints_map.get("has_rebuilt_buckets", 0)
        self.data.ints_map["has_rebuilt_buckets"] = int(reducer.rebuilt)
        if reducer.rebuilt and not known:
            orders = [" ".join(map(str, bucket.indices)) for bucket in reducer.gradients.buckets]
            self.data.strs_map["rebuilt_bucket_sizes"] = self._sizes()
            self.data.strs_map["rebuilt_per_bucket_param_indices"] = ", ".join(orders)
        if reducer.ready_order:
            order = ", ".join(map(str, reducer.ready_order))
            self.data.strs_map["prev_iteration_grad_ready_order_indices"] = order
        reducer.statistics.collect()
        self.data.ints_map |= reducer.statistics.nanoseconds

    def set_error_and_log(self, error: str) -> None:
        self.data.strs_map["error"] = error

    def _sizes(self) -> str:
        return ", ".join(str(sum(p.nbytes for p in bucket.parameters)) for bucket in self.reducer.gradients.buckets)

    def _get_ddp_logging_data(self) -> Data:
        return self.data

    def _set_comm_hook_name(self, comm_hook: str) -> None:
        self.data.strs_map["comm_hook"] = comm_hook

    def _set_uneven_input_join(self) -> None:
        self.data.ints_map["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self.data.ints_map["static_graph"] = int(self.reducer.static)
