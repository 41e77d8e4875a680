"""DistributedDataParallel's reducer for shapes-only mode, where PyTorch's C++ would read values.

It mirrors memory, bytes, order and time of PyTorch 2.15, torch/csrc/distributed/c10d/reducer.cpp: hooks on
AccumulateGrad nodes fill buckets, full ones are reduced in their order during the backward pass, and at its end the
streams wait, and the results are copied into the gradients. After the first pass the buckets are rebuilt in the order
in which gradients came.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._C._distributed_c10d as _C

from . import agreement, futures
from .buckets import Bucket, GradBucket
from .gradients import Gradients
from .reducer_errors import raise_reducer_error
from .statistics import Statistics
from .unsupported import Named, not_mirrored, sparse

Tensor = torch.Tensor


class Reducer(Named):
    """Has the arguments and methods of `torch.distributed.Reducer` that DistributedDataParallel uses."""

    def __init__(
        self,
        params: list[Tensor],
        bucket_indices: list[list[int]],
        per_bucket_size_limits: list[int],
        process_group: Any,
        expect_sparse_gradients: list[bool] | None = None,
        bucket_bytes_cap: int = 25 << 20,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: dict[int, str] | None = None,
        first_bucket_types_cap: int = 1 << 20,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Iterable[int] = (),
        batched_grad_copy: bool = False,
        lazy_bucket_allocation: bool = False,
    ) -> None:
        if any(expect_sparse_gradients or ()):
            raise sparse()
        if use_python_reducer:
            raise not_mirrored("torch._dynamo's optimize_ddp='python_reducer'")
        if lazy_bucket_allocation:
            raise not_mirrored("lazy_bucket_allocation=True")
        self.parameters, self.group = params, process_group
        self.bucket_bytes_cap = bucket_bytes_cap
        self.limits = list(bucket_bytes_cap_list) or [first_bucket_types_cap, bucket_bytes_cap]
        self.finds_unused, self.skips_unused = find_unused_parameters, skip_all_reduce_unused_params
        self.gradients = Gradients(params, process_group, views=gradient_as_bucket_view, batched=batched_grad_copy)
        self.names = dict(param_to_name_mapping or {})
        self.statistics = Statistics(agreement.on_one_gpu(params))
        self.static = self.rebuilt = False
        self.hook: Callable[[GradBucket], Any] | None = None
        self.unused: list[int] = []
        self.ready_order: list[int] = []  # order of gradients in this pass
        self._first_order: list[int] = []  # order for rebuilding the buckets
        self._marked: set[int] = set()  # parameters of this pass whose gradient is in its bucket
        self._expects = self._unfinished = self._has_marked_unused = False
        self._next = self.reduced = 0
        self._hooks_left: list[int] = []
        self._hooks_of_first_pass = [0] * len(params)
        self._installed: list[Any] = []
        self._logger: Any = None
        self.gradients.make(bucket_indices)
        self._accumulators = [torch.autograd.graph.get_gradient_edge(p).node for p in params]
        self._handles = [
            node.register_hook(_calling(weakref.ref(self), index)) for index, node in enumerate(self._accumulators)
        ]
        self.used: agreement.UsedMap | None = None
        if find_unused_parameters:
            self.used = agreement.UsedMap(len(params), params[0].device)

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", ()):
            handle.remove()

    # -- buckets -----------------------------------------------------------------------------------------------------

    def _may_rebuild(self) -> bool:
        return (self.static or not self.finds_unused) and not self.rebuilt

    def _rebuild_buckets(self) -> bool:
        """Rebuild the buckets once, before the second forward pass, in the order of rank 0's gradients."""
        self._check_reducer_finalized()
        if not self._may_rebuild() or not self._first_order:
            return False
        order = self._first_order
        last_is_small = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
        if last_is_small:
            order = order[::-1]
        of_order = [self.parameters[index] for index in order]
        buckets = _C._compute_bucket_assignment_by_size(of_order, self.limits, [False] * len(order), order)[0]
        if last_is_small:
            buckets = buckets[::-1]
        where = self.parameters[0].device
        flat = [index for bucket in buckets for index in bucket]
        *flat, count = agreement.broadcast_numbers([*flat, len(buckets)], self.group, where)
        sizes = [len(buckets[min(place, len(buckets) - 1)]) for place in range(count)]
        sizes = agreement.broadcast_numbers(sizes, self.group, where)
        self.rebuilt, self._first_order = True, []
        remaining = iter(flat)
        self.gradients.make([[next(remaining) for _ in range(size)] for size in sizes])
        return True

    def _push_all_rebuilt_params(self) -> None:
        if self._may_rebuild() and not self._first_order:
            self._first_order = list(range(len(self.parameters)))

    # -- a pass ------------------------------------------------------------------------------------------------------

    def prepare_for_forward(self) -> None:
        self.statistics.iterations += 1
        self.statistics.record("forward_start")

    def prepare_for_backward(self, outputs: list[Tensor]) -> None:
        self.statistics.record("backward_compute_start")
        self._expects, self._next, self._has_marked_unused = True, 0, False
        self.reduced = 0
        self.ready_order, self._marked = [], set()
        for bucket in self.gradients.buckets:
            bucket.pending, bucket.deferred = len(bucket.indices), []
        self._hooks_left = list(self._hooks_of_first_pass)
        if self._searches():
            found = _accumulators_below(outputs)
            self.unused = [i for i, node in enumerate(self._accumulators) if node not in found]

    def _searches(self) -> bool:
        return self.finds_unused and not self.static

    def _in_first_of_static(self) -> bool:
        return self.static and self.statistics.iterations == 1

    def on_gradient(self, index: int) -> None:
        """Handle the accumulated gradient of parameter `index`."""
        if (self._searches() or self._in_first_of_static()) and self.parameters[index].grad is not None:
            self._used().flags[index] = 1
        if self._in_first_of_static():
            self._hooks_of_first_pass[index] += 1
            return
        if not self._expects:
            return
        self.ready_order.append(index)
        if not self._has_marked_unused:
            self._has_marked_unused = True
            for unused in self.unused:
                self._mark(unused)
        if self.static:
            if not self._hooks_left[index]:
                raise_reducer_error(self, "changed", index)
            self._hooks_left[index] -= 1
            if self._hooks_left[index]:
                return
        if self._may_rebuild():
            self._first_order.append(index)
        self._mark(index)

    def _used(self) -> agreement.UsedMap:
        assert self.used is not None
        return self.used

    def _mark(self, index: int) -> None:
        """Put a gradient into its bucket, and reduce full buckets in turn."""
        if index in self._marked:
            raise_reducer_error(self, "twice", index)
        self._marked.add(index)
        self._unfinished = True
        bucket = self.gradients.fill(index)
        bucket.pending -= 1
        if not bucket.pending:
            self.gradients.flush(bucket)
            while self._next < len(self.gradients.buckets) and not self.gradients.buckets[self._next].pending:
                if not self._next:
                    self.statistics.record("backward_comm_start")
                following = self.gradients.buckets[self._next]
                if not (self.skips_unused and set(following.indices) <= set(self.unused)):
                    self._reduce(following)
                    self.reduced += 1
                else:
                    following.future = None
                self._next += 1
        if self._next == len(self.gradients.buckets):
            if self._searches():
                self._used().reduce(self.group)
            futures.at_backward_end(self._at_end)

    def _reduce(self, bucket: Bucket) -> None:
        given = GradBucket(bucket, self._next, len(self.gradients.buckets))
        bucket.future = self._run_allreduce_hook(given) if self.hook is None else self.hook(given)
        if not isinstance(bucket.future, torch.futures.Future):
            kind = type(bucket.future)
            raise RuntimeError(
                "DDP communication hook's callback must return a torch.futures.Future object, but got "
                f"{kind.__module__}.{kind.__qualname__}"
            )

    def _run_allreduce_hook(self, bucket: GradBucket) -> Any:
        return self.group.allreduce([bucket.buffer()]).get_future()

    def _run_comm_hook(self, bucket: GradBucket) -> Any:
        return self._run_allreduce_hook(bucket) if self.hook is None else self.hook(bucket)

    def _at_end(self) -> None:
        self.statistics.record("backward_compute_end")
        if self.static and self.statistics.iterations > 1 and self._may_rebuild():
            self._first_order += self.unused
        self._finish()

    def _delay_all_reduce(self) -> None:
        """Reduce all buckets at the end of the first pass of a static graph."""
        self.statistics.record("backward_compute_end")
        self.statistics.record("backward_comm_start")
        self._used().reduce(self.group)
        self._unfinished = True
        self.unused = [index for index, count in enumerate(self._hooks_of_first_pass) if not count]
        for index in range(len(self.parameters)):
            self.gradients.fill(index)
        for bucket in self.gradients.buckets:
            self.gradients.flush(bucket)
            self._reduce(bucket)
        self._finish()

    # -- its end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._expects = self._unfinished = False
        for bucket in self.gradients.buckets:
            if bucket.future is None:
                continue
            result = bucket.future.wait()
            if isinstance(result, (list, tuple)) and self.hook is None:
                result = result[0]
            if not isinstance(result, Tensor):
                raise RuntimeError(f"Unable to cast {result} to Tensor")
            bucket.results = bucket.views_of(result)
            self.gradients.give_back(bucket, self._is_used)
        for future in self._installed:
            future.wait()
        self._installed = []
        if (self._searches() or self._in_first_of_static()) and not self._used().reduced:
            self._used().wait()
        if self._searches():
            self._used().clear()
        self.statistics.record("backward_comm_end")

    def _is_used(self, index: int) -> bool:
        """Return True if some rank has used a parameter; for one unused on this rank, the host waits for the answer."""
        if not (self.static or self.finds_unused):
            return True
        used = self._used()
        if not used.flags[index] and not used.reduced:
            used.fetch()
        return bool(used.flags[index])

    def _check_reducer_finalized(self) -> None:
        if self._unfinished:
            raise_reducer_error(self, "unfinished")

    # -- other methods that are called -------------------------------------------------------------------------------

    def register_hook(self, hook: Callable[[GradBucket], Any]) -> None:
        if self.hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self.hook = hook
        self.gradients.divides = False

    def set_logger(self, logger: Any) -> None:
        self._logger = weakref.ref(logger)

    def _set_static_graph(self) -> None:
        if self.statistics.iterations:
            raise RuntimeError(
                "set_static_graph() should be called before training loop starts and after DistributedDataParallel is "
                "constructed."
            )
        self.static = True
        self.used = agreement.UsedMap(len(self.parameters), self.parameters[0].device)

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        self.statistics.rate = sample_rate

    def _install_post_backward_futures(self, futures: list[Any]) -> None:
        self._installed += futures

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _set_optimizer_in_backward(self) -> None:
        self.gradients.stepped = True

    def _update_process_group(self, new_process_group: Any) -> None:
        self.group = self.gradients.group = new_process_group

    def _reset_state(self) -> None:
        self.rebuilt = self._expects = self._unfinished = False
        self._first_order = []
        if self.used is not None:
            self.used.clear()


def _calling(reducer: Any, index: int) -> Callable[..., None]:
    """Return a hook for an AccumulateGrad node that does not keep the reducer alive."""

    def hook(*gradients: Any) -> None:
        found = reducer()
        if found is not None:
            found.on_gradient(index)

    return hook


def _accumulators_below(outputs: list[Tensor]) -> set[Any]:
    """Return the nodes that a backward pass from `outputs` reaches."""
    reached: set[Any] = set()
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None and node not in reached:
                reached.add(node)
                pending.append(node)
    return reached
