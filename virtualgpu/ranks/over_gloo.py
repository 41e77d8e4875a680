"""Real ranks: processes that exchange values and virtual times over Gloo."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C
import torch.distributed as dist

from ..operations import known_values
from . import rank_waits
from .calls import Awaited

if TYPE_CHECKING:
    from .calls import Call

_unseen: Any = torch._C._DisableTorchDispatch
TIMES = 1 << 20  # added to a message's tag for the message with its time
SMALL = 1 << 16  # bytes: smaller integer tensors are transferred in shapes-only mode


class OverGloo:
    """A carrier over the backend `gloo`; `count` and `rank` are the group's."""

    def __init__(self, gloo: Any, count: int, rank: int) -> None:
        self.gloo, self.count, self.rank = gloo, count, rank
        self._begun = 0  # the GPU's collectives, counted alike on all ranks

    def begin(self, call: Call, ready: float | None) -> tuple[Awaited[None], Awaited[float]]:
        if not call.lane and ready is not None:
            self._begun += 1
            call.number = self._begun
        tensors = [*call.outputs, *call.inputs]
        with torch.no_grad(), _unseen():  # Gloo's threads inherit this state
            if ready is None:  # tensors of the host
                return _CARRIED[call.kind](self, call), Awaited(lambda: 0.0)
            if not tensors or tensors[0].device.type != "meta":
                values, said = _CARRIED[call.kind](self, _apart(call)), self._say(call, ready)
            elif tensors[0].dtype in known_values.WHOLE and call.nbytes <= SMALL and call.kind != "all_to_all":
                values, said = self._small(call, ready)
            else:
                known_values.written(call.outputs)
                values, said = Awaited(_nothing), self._say(call, ready)
        if call.kind == "send":  # it does not wait for the receiver
            return Awaited(_both(values.take, said.take), values.there), Awaited(lambda: ready)
        return values, Awaited(lambda: max(ready, said.take()[0]), said.there)

    def _say(self, call: Call, ready: float, unknown: bool = False) -> Awaited[list[float]]:
        """Exchange the time at which each rank is ready, and whether its values are unknown; return both maxima."""
        at = torch.tensor([ready, unknown], dtype=torch.float64, device="cpu")
        if call.kind == "send":
            come = _message(call, self.gloo.send([at], call.peer, call.tag + TIMES))
        elif call.kind == "recv":
            come = _message(call, self.gloo.recv([at], call.peer, call.tag + TIMES))
        else:
            options = _C.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX
            come = _carried(call, self.gloo.allreduce([at], options))

        def said() -> list[float]:
            come.take()
            return [float(number) for number in at]

        return Awaited(said, come.there)

    def _small(self, call: Call, ready: float) -> tuple[Awaited[None], Awaited[list[float]]]:
        """In shapes-only mode, transfer integers that all ranks know, which makes the result known."""
        given = [known_values.value(tensor) for tensor in call.inputs]
        inputs = [_zeros(t) if v is None else v.clone() for t, v in zip(call.inputs, given, strict=True)]
        outputs = inputs if call.in_place else [_zeros(tensor) for tensor in call.outputs]
        values = _CARRIED[call.kind](self, replace(call, inputs=inputs, outputs=outputs))
        said = self._say(call, ready, any(value is None for value in given))

        def finish() -> None:
            values.take()
            if call.outputs:
                known_values.written(call.outputs, None if said.take()[1] else outputs)

        return Awaited(finish, values.there), said

    def _all_reduce(self, call: Call) -> Awaited[None]:
        tensor = call.outputs[0]
        return _carried(call, self.gloo.allreduce([tensor], self._summing(call, tensor)))

    def _summing(self, call: Call, *tensors: torch.Tensor) -> Any:
        """Return Gloo's options for a reduction. As in NCCL, an average divides first and then sums."""
        options = _C.AllreduceOptions()
        kind, factor = call.op
        if kind in ("AVG", "PREMUL_SUM"):
            for tensor in tensors:
                tensor.mul_(1 / self.count if kind == "AVG" else factor)
            kind = "SUM"
        options.reduceOp = getattr(dist.ReduceOp, kind)
        return options

    def _broadcast(self, call: Call) -> Awaited[None]:
        options = _C.BroadcastOptions()
        options.rootRank = call.root
        return _carried(call, self.gloo.broadcast(call.outputs, options))

    def _reduce(self, call: Call) -> Awaited[None]:
        tensor = call.outputs[0].clone()  # Gloo overwrites it on the other ranks, NCCL does not
        options = _C.ReduceOptions()
        options.reduceOp, options.rootRank = self._summing(call, tensor).reduceOp, call.root

        def finish() -> None:
            if self.rank == call.root:
                call.outputs[0].copy_(tensor)

        return _carried(call, self.gloo.reduce([tensor], options), finish)

    def _all_gather(self, call: Call) -> Awaited[None]:
        mine = call.inputs[0].contiguous().view(-1)
        if all(out.numel() == mine.numel() for out in call.outputs):
            flat = [out.view(-1) for out in call.outputs]
            return _carried(call, self.gloo.allgather([flat], [mine], _C.AllgatherOptions()))
        return self._all_to_all_flat(call, [mine.clone() for _ in range(self.count)], call.outputs)

    def _gather(self, call: Call) -> Awaited[None]:
        options = _C.GatherOptions()
        options.rootRank = call.root
        return _carried(call, self.gloo.gather([call.outputs] if self.rank == call.root else [], call.inputs, options))

    def _scatter(self, call: Call) -> Awaited[None]:
        options = _C.ScatterOptions()
        options.rootRank = call.root
        return _carried(call, self.gloo.scatter(call.outputs, [call.inputs] if self.rank == call.root else [], options))

    def _reduce_scatter(self, call: Call) -> Awaited[None]:
        parts = [tensor.contiguous().view(-1) for tensor in call.inputs]
        whole = torch.cat(parts)
        work = self.gloo.allreduce([whole], self._summing(call, whole))
        begin = sum(part.numel() for part in parts[: self.rank])

        def finish() -> None:
            output = call.outputs[0]
            output.copy_(whole[begin : begin + output.numel()].view_as(output))

        return _carried(call, work, finish)

    def _all_to_all(self, call: Call) -> Awaited[None]:
        parts = [tensor.contiguous().view(-1) for tensor in call.inputs]
        return self._all_to_all_flat(call, parts, call.outputs)

    def _all_to_all_flat(self, call: Call, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Awaited[None]:
        given = torch.cat(inputs)
        got = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype, device="cpu")
        splits = [out.numel() for out in outputs], [tensor.numel() for tensor in inputs]
        work = self.gloo.alltoall_base(got, given, *splits, _C.AllToAllOptions())

        def finish() -> None:
            for output, part in zip(outputs, got.split(splits[0]), strict=True):
                output.copy_(part.view_as(output))

        return _carried(call, work, finish)

    def _send(self, call: Call) -> Awaited[None]:
        return _message(call, self.gloo.send(call.inputs, call.peer, call.tag))

    def _recv(self, call: Call) -> Awaited[None]:
        return _message(call, self.gloo.recv(call.outputs, call.peer, call.tag))

    def _barrier(self, call: Call) -> Awaited[None]:
        return _carried(call, self.gloo.barrier(_C.BarrierOptions()))


def _apart(call: Call) -> Call:
    """Return aliases that do not own their memory: Gloo's threads release theirs some time after they are done.

    The caller keeps its tensors until the call is over.
    """
    inputs = [_alias(tensor) for tensor in call.inputs]
    return replace(
        call, inputs=inputs, outputs=inputs if call.in_place else [_alias(tensor) for tensor in call.outputs]
    )


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return tensor.new_empty(0)
    memory = (ctypes.c_char * tensor.nbytes).from_address(torch._C.TensorBase.data_ptr(tensor))
    return torch.frombuffer(memory, dtype=tensor.dtype)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _nothing() -> None:
    """Do nothing."""


def _both(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _carried(call: Call, work: Any, finish: Callable[[], None] = _nothing) -> Awaited[None]:
    """Wait for Gloo's work, then call `finish`. Raises RuntimeError with Gloo's text where a rank is gone."""

    def over(seconds: float) -> bool:
        if not work.is_completed():
            with contextlib.suppress(RuntimeError):  # the time slice ended; Gloo's own error is raised below
                work.wait(timedelta(seconds=seconds))
        return bool(work.is_completed())

    def take() -> None:
        rank_waits.here.until(over, call.wait)
        work.wait()
        finish()

    return Awaited(take, work.is_completed)


def _message(call: Call, work: Any) -> Awaited[None]:
    """Wait for a message in a thread, since Gloo reports its arrival only to a waiting caller."""
    apart = rank_waits.Apart(work.wait)
    return Awaited(lambda: apart.take(call.wait), apart.there)


_CARRIED: dict[str, Callable[[OverGloo, Call], Awaited[None]]] = {
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
