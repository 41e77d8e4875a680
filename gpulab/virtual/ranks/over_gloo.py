"""Ranks that are real: processes that bring each other values over Gloo, and tell each other their virtual times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C
import torch.distributed as dist

if TYPE_CHECKING:
    from .calls import Call

_unseen: Any = torch._C._DisableTorchDispatch
TIMES = 1 << 20  # added to a message's tag for the time that goes with it


class OverGloo:
    """`gloo` is the backend that carries, `count` and `rank` are of the group."""

    def __init__(self, gloo: Any, count: int, rank: int) -> None:
        self.gloo, self.count, self.rank = gloo, count, rank

    # -- time --------------------------------------------------------------------------------------------------------

    def latest(self, call: Call, ready: float) -> Callable[[], float]:
        """The latest of the ranks' times. Who sends a message does not wait for whom it is sent to."""
        with _unseen():
            return self._latest(call, ready)

    def _latest(self, call: Call, ready: float) -> Callable[[], float]:
        at = torch.tensor([ready], dtype=torch.float64, device="cpu")
        if call.kind == "send":
            work = self.gloo.send([at], call.peer, call.tag + TIMES)
            self._keep(work, at)
            return lambda: ready
        if call.kind == "recv":
            work = self.gloo.recv([at], call.peer, call.tag + TIMES)
            return lambda: max(ready, float(_waited(work, at)[0]))
        options = _C.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        work = self.gloo.allreduce([at], options)
        return lambda: float(_waited(work, at)[0])

    def _keep(self, work: Any, tensor: torch.Tensor) -> None:
        self._sent = [(w, t) for w, t in getattr(self, "_sent", []) if not w.is_completed()] + [(work, tensor)]

    # -- values ------------------------------------------------------------------------------------------------------

    def carry(self, call: Call) -> Callable[[], None]:
        tensors = [*call.outputs, *call.inputs]
        if tensors and tensors[0].device.type == "meta":
            return lambda: None
        with torch.no_grad(), _unseen():  # Gloo's threads take over what is in force here
            return _CARRIED[call.kind](self, call)

    def _all_reduce(self, call: Call) -> Callable[[], None]:
        tensor = call.outputs[0]
        return _ending(self.gloo.allreduce([tensor], self._summing(call, tensor)))

    def _summing(self, call: Call, *tensors: torch.Tensor) -> Any:
        """Gloo's options for a reduction. Like NCCL, an average is a sum of what was divided before."""
        options = _C.AllreduceOptions()
        kind, factor = call.op
        if kind in ("AVG", "PREMUL_SUM"):
            for tensor in tensors:
                tensor.mul_(1 / self.count if kind == "AVG" else factor)
            kind = "SUM"
        options.reduceOp = getattr(dist.ReduceOp, kind)
        return options

    def _broadcast(self, call: Call) -> Callable[[], None]:
        options = _C.BroadcastOptions()
        options.rootRank = call.root
        return _ending(self.gloo.broadcast(call.outputs, options))

    def _reduce(self, call: Call) -> Callable[[], None]:
        tensor = call.outputs[0]
        options = _C.ReduceOptions()
        options.reduceOp, options.rootRank = self._summing(call, tensor).reduceOp, call.root
        return _ending(self.gloo.reduce([tensor], options))

    def _all_gather(self, call: Call) -> Callable[[], None]:
        mine = call.inputs[0].contiguous().view(-1)
        if all(out.numel() == mine.numel() for out in call.outputs):
            flat = [out.view(-1) for out in call.outputs]
            return _ending(self.gloo.allgather([flat], [mine], _C.AllgatherOptions()))
        return self._all_to_all_flat([mine.clone() for _ in range(self.count)], call.outputs)

    def _gather(self, call: Call) -> Callable[[], None]:
        options = _C.GatherOptions()
        options.rootRank = call.root
        return _ending(self.gloo.gather([call.outputs] if self.rank == call.root else [], call.inputs, options))

    def _scatter(self, call: Call) -> Callable[[], None]:
        options = _C.ScatterOptions()
        options.rootRank = call.root
        return _ending(self.gloo.scatter(call.outputs, [call.inputs] if self.rank == call.root else [], options))

    def _reduce_scatter(self, call: Call) -> Callable[[], None]:
        parts = [tensor.contiguous().view(-1) for tensor in call.inputs]
        whole = torch.cat(parts)
        work = self.gloo.allreduce([whole], self._summing(call, whole))
        begin = sum(part.numel() for part in parts[: self.rank])

        def finish() -> None:
            _wait(work)
            output = call.outputs[0]
            output.copy_(whole[begin : begin + output.numel()].view_as(output))

        return finish

    def _all_to_all(self, call: Call) -> Callable[[], None]:
        return self._all_to_all_flat([tensor.contiguous().view(-1) for tensor in call.inputs], call.outputs)

    def _all_to_all_flat(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Callable[[], None]:
        given = torch.cat(inputs)
        got = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype, device="cpu")
        splits = [out.numel() for out in outputs], [tensor.numel() for tensor in inputs]
        work = self.gloo.alltoall_base(got, given, *splits, _C.AllToAllOptions())

        def finish() -> None:
            _wait(work)
            for output, part in zip(outputs, got.split(splits[0]), strict=True):
                output.copy_(part.view_as(output))

        return finish

    def _send(self, call: Call) -> Callable[[], None]:
        return _ending(self.gloo.send(call.inputs, call.peer, call.tag))

    def _recv(self, call: Call) -> Callable[[], None]:
        return _ending(self.gloo.recv(call.outputs, call.peer, call.tag))

    def _barrier(self, call: Call) -> Callable[[], None]:
        return _ending(self.gloo.barrier(_C.BarrierOptions()))


def _wait(work: Any) -> None:
    """RuntimeError with Gloo's text where a rank is gone or does not come."""
    work.wait()


def _waited(work: Any, tensor: torch.Tensor) -> torch.Tensor:
    _wait(work)
    return tensor


def _ending(work: Any) -> Callable[[], None]:
    return lambda: _wait(work)


_CARRIED: dict[str, Callable[[OverGloo, Call], Callable[[], None]]] = {
    "all_reduce": OverGloo._all_reduce,
    "reduce": OverGloo._reduce,
    "broadcast": OverGloo._broadcast,
    "all_gather": OverGloo._all_gather,
    "gather": OverGloo._gather,
    "reduce_scatter": OverGloo._reduce_scatter,
    "scatter": OverGloo._scatter,
    "all_to_all": OverGloo._all_to_all,
    "send": OverGloo._send,
    "recv": OverGloo._recv,
    "barrier": OverGloo._barrier,
}
