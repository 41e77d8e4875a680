"""The process group behind "nccl" on virtual GPUs: each collective is counted, timed and carried out in one place.

PyTorch's front ends (`torch.distributed`, the reducer of DistributedDataParallel, functional collectives, FSDP) call a
group's methods; here each becomes a `Call` with its kind, its bytes as nccl-tests count them, and how it is carried out
by the `Carrier`: over Gloo between real ranks, or from this rank's own tensors where the others are imagined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch._C._distributed_c10d as _C
import torch.distributed as dist

from ..clock import collectives
from ..operations.results import place
from ..scope.in_force import backing, thread
from ..scope.labels import device_of
from ..scope.numbering import device_at, stream_numbers
from . import futures

if TYPE_CHECKING:
    from ..scope.device import Device
    from .world import World

Tensor = torch.Tensor


class Carrier(Protocol):
    """Who brings the values, and what the ranks agree on."""

    def carry(self, call: Call) -> Callable[[], None]:
        """Begin; what is returned ends it, after which the outputs have their values (with values there are any)."""

    def latest(self, call: Call, ready: float) -> Callable[[], float]:
        """Begin to tell the ranks of `call` when each is ready; what is returned knows the latest."""


@dataclass
class Call:
    """A collective: `kind` and `nbytes` as `clock.collectives` takes them, `ranks` the global ones that take part.

    `outputs` and `inputs` are what goes to and comes from each rank of the group in turn, or one tensor where all have
    the same. `root`: the rank within the group that has or gets all; `peer` that of a message.
    """

    kind: str
    outputs: list[Tensor]
    inputs: list[Tensor]
    nbytes: int
    ranks: tuple[int, ...]
    op: tuple[str, float] = ("SUM", 1.0)  # a reduction's name, and what PREMUL_SUM multiplies by before
    root: int = 0
    peer: int = 0
    tag: int = 0


class VirtualWork(_C.Work):  # type: ignore[misc]
    """What a collective gives back: `wait` lets the current stream wait for it, as with NCCL, not the host."""

    def __init__(self, group: VirtualGroup, pending: _Pending | None, outputs: list[Tensor]) -> None:
        super().__init__()
        self._group, self._pending, self._outputs = group, pending, outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._pending is not None:
            self._pending.hold()
        return True

    def block_current_stream(self) -> None:
        self.wait()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._pending is None or self._pending.done()

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self._outputs

    def get_future(self) -> Any:
        """A future that has its value; who waits for it, waits with the current stream."""
        pending = self._pending
        if pending is None:
            return futures.arriving(None, self._outputs, self.wait)
        pending.carried()
        return futures.arriving(pending.device, self._outputs, pending.hold)


class _Pending:
    """A collective on its way: what ends it, and when it will be done, which is known once all ranks have come."""

    def __init__(self, group: VirtualGroup, call: Call, device: Device | None, finish: Any, latest: Any) -> None:
        self.group, self.call, self.device = group, call, device
        self._finish: Callable[[], None] | None = finish
        self._latest: Callable[[], float] = latest
        self.end = 0.0
        self.stream: int | None = None
        self.timed = device is None

    def carried(self) -> None:
        """Its values are there."""
        finish, self._finish = self._finish, None
        if finish is not None:
            with backing:
                finish()

    def settle(self) -> None:
        """Its end is known, and that of all before it."""
        while not self.timed:
            self.group.settle_next()

    def start(self) -> None:
        """Give it its place in time; the group calls this in the order in which the collectives came."""
        self.timed = True
        device = self.device
        assert device is not None
        with backing:
            ready = self._latest()
        seconds, name = self.group.duration(self.call)
        stream = self.group.stream(device) if self.stream is None else self.stream
        self.end = device.timer.collective(stream, ready, seconds, name, self.call.nbytes)

    def hold(self) -> None:
        """The current stream waits for it."""
        self.carried()
        if self.device is not None:
            self.settle()
            self.device.timer.hold(self.device.stream, self.end)

    def done(self) -> bool:
        return self.device is None or (self.timed and self.end <= self.device.timer.clock.host)


class VirtualGroup(dist.ProcessGroup):
    """`ranks` are its members' global ranks, `rank` this process's place among them."""

    def __init__(self, world: World, ranks: tuple[int, ...], rank: int, carrier: Carrier, backend: Any) -> None:
        super().__init__(rank, len(ranks))
        self.world, self.ranks, self.carrier = world, ranks, carrier
        self._place, self._count = rank, len(ranks)
        self._streams: dict[int, int] = {}
        self._waiting: deque[_Pending] = deque()
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._count

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        return "nccl"

    # -- time --------------------------------------------------------------------------------------------------------

    def stream(self, device: Device) -> int:
        """NCCL's own stream of this group on `device`."""
        number = self._streams.get(device.index)
        if number is None:
            number = self._streams[device.index] = next(stream_numbers)
        return number

    def duration(self, call: Call) -> tuple[float, str]:
        """Seconds that a collective takes once all ranks are there, and its name in a trace."""
        kind = "send" if call.kind == "recv" else call.kind
        way = collectives.choice(kind, call.nbytes, call.ranks, self.world.topology)
        return way.seconds, f"{call.kind} of {len(call.ranks)} ranks ({way})"

    def settle_next(self) -> None:
        self._waiting.popleft().start()

    def _run(self, call: Call, asynchronous: bool) -> VirtualWork:
        """Carry out a collective. One that is not asynchronous runs in the current stream, as PyTorch has NCCL do it."""
        tensors = [*call.inputs, *call.outputs]
        device = _device(tensors)
        if device is not None:
            _check(tensors, device)
            if device.observer is not None and not thread.functional:
                device.observer.communicates(tensors)
        with backing:
            finish = self.carrier.carry(call)
            latest: Any = None
            if device is not None:
                clock = device.timer.clock
                clock.enter()
                clock.spend(clock.costs.plain + clock.costs.event)
                ready = max(device.timer.streams.get(device.stream, 0.0), clock.host + clock.launch_s)
                latest = self.carrier.latest(call, ready)
                clock.leave()
        pending = _Pending(self, call, device, finish, latest)
        if device is not None:
            self._waiting.append(pending)
            if not asynchronous:
                pending.stream = device.stream
        elif not asynchronous:
            pending.carried()
        work = VirtualWork(self, pending, call.outputs)
        if not asynchronous:
            work.wait()
        return work

    # -- what PyTorch calls ------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> VirtualWork:
        opts = _C.AllreduceOptions() if opts is None else opts
        if not isinstance(tensors, (list, tuple)):
            tensors = [tensors]
        works = [
            self._run(Call("all_reduce", [t], [t], t.nbytes, self.ranks, op=_reduction(opts.reduceOp)), _asynchronous(opts))
            for t in map(_plain, tensors)
        ]
        return self._together(works)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> VirtualWork:
        opts = _C.BroadcastOptions() if opts is None else opts
        if not isinstance(tensors, (list, tuple)):
            tensors = [tensors]
        tensor = _plain(tensors[0])
        call = Call("broadcast", [tensor], [tensor], tensor.nbytes, self.ranks, root=int(opts.rootRank))
        return self._run(call, _asynchronous(opts))

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> VirtualWork:
        opts = _C.ReduceOptions() if opts is None else opts
        tensor = _plain(tensors[0] if isinstance(tensors, (list, tuple)) else tensors)
        root = int(opts.rootRank)
        call = Call("reduce", [tensor], [tensor], tensor.nbytes, self.ranks, op=_reduction(opts.reduceOp), root=root)
        return self._run(call, _asynchronous(opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        lists = outputs if outputs and isinstance(outputs[0], (list, tuple)) else [outputs]
        pairs = zip(lists, given, strict=True)
        return self._together([self._gather_all(list(outs), tensor, opts, flat=False) for outs, tensor in pairs])

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> VirtualWork:
        # The outputs come by rank, the inputs by tensor.
        return self._together(
            [
                self._gather_all([outs[place] for outs in output_lists], tensor, opts, flat=False)
                for place, tensor in enumerate(input_list)
            ]
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> VirtualWork:
        return self._gather_all(_parts(output, self._count, "output"), tensor, opts, flat=True)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.all_gather_single(out, tensor, opts) for out, tensor in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(self, outputs: list[Tensor], tensor: Tensor, opts: Any, *, flat: bool) -> VirtualWork:
        outputs, tensor = [_plain(out) for out in outputs], _plain(tensor)
        self._expect(len(outputs), "all_gather")
        nbytes = sum(out.nbytes for out in outputs)
        if not flat:
            self._beside(outputs)
        return self._run(Call("all_gather", outputs, [tensor], nbytes, self.ranks), _asynchronous(opts))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> VirtualWork:
        given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        lists = input_lists if input_lists and isinstance(input_lists[0], (list, tuple)) else [input_lists]
        works = [self._scatter_sums(out, list(ins), opts, flat=False) for out, ins in zip(given, lists, strict=True)]
        return self._together(works)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> VirtualWork:
        return self._scatter_sums(output, _parts(tensor, self._count, "input"), opts, flat=True)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.reduce_scatter_single(out, tensor, opts) for out, tensor in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_sums(self, output: Tensor, inputs: list[Tensor], opts: Any, *, flat: bool) -> VirtualWork:
        opts = _C.ReduceScatterOptions() if opts is None else opts
        output, inputs = _plain(output), [_plain(tensor) for tensor in inputs]
        self._expect(len(inputs), "reduce_scatter")
        nbytes = sum(tensor.nbytes for tensor in inputs)
        if not flat:
            self._beside(inputs)
        call = Call("reduce_scatter", [output], inputs, nbytes, self.ranks, op=_reduction(opts.reduceOp))
        return self._run(call, _asynchronous(opts))

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        tensor = _plain(inputs[0] if isinstance(inputs, (list, tuple)) else inputs)
        outputs = [_plain(out) for out in (output_lists[0] if output_lists else [])]
        call = Call("gather", outputs, [tensor], tensor.nbytes * self._count, self.ranks, root=int(opts.rootRank))
        return self._run(call, _asynchronous(opts))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> VirtualWork:
        output = _plain(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)
        inputs = [_plain(tensor) for tensor in (input_lists[0] if input_lists else [])]
        call = Call("scatter", [output], inputs, output.nbytes * self._count, self.ranks, root=int(opts.rootRank))
        return self._run(call, _asynchronous(opts))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None
    ) -> VirtualWork:
        outputs = _split(_plain(output), output_sizes, self._count, "output")
        inputs = _split(_plain(tensor), input_sizes, self._count, "input")
        return self.alltoall(outputs, inputs, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        self._expect(len(outputs), "all_to_all")
        self._expect(len(inputs), "all_to_all")
        outputs, inputs = [_plain(t) for t in outputs], [_plain(t) for t in inputs]
        nbytes = sum(tensor.nbytes for tensor in inputs)
        return self._run(Call("all_to_all", outputs, inputs, nbytes, self.ranks), _asynchronous(opts))

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> VirtualWork:
        tensor = _plain(tensors[0])
        pair = (self.ranks[self._place], self.ranks[dst])
        return self._run(Call("send", [], [tensor], tensor.nbytes, pair, peer=dst, tag=tag), True)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> VirtualWork:
        tensor = _plain(tensors[0])
        pair = (self.ranks[src], self.ranks[self._place])
        return self._run(Call("recv", [tensor], [], tensor.nbytes, pair, peer=src, tag=tag), True)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> VirtualWork:
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")

    def barrier(self, opts: Any = None) -> VirtualWork:
        """With NCCL an all-reduce of one number, for which the host waits."""
        device = device_at(None)
        work = self._run(Call("barrier", [], [], 4, self.ranks), True)
        pending = work._pending
        if pending is not None:
            pending.carried()
            pending.device, pending.timed = device, True
            clock = device.timer.clock
            with backing:
                ready = self.carrier.latest(pending.call, max(device.timer.done, clock.host))()
            seconds, name = self.duration(pending.call)
            pending.end = device.timer.collective(self.stream(device), ready, seconds, name, 4)
            clock.wait(pending.end, "barrier")
        return work

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _together(self, works: list[VirtualWork]) -> VirtualWork:
        return works[0] if len(works) == 1 else _Several(self, works)

    def _expect(self, count: int, what: str) -> None:
        if count != self._count:
            raise ValueError(f"{what} takes a tensor for each of the group's {self._count} ranks, not {count}")

    def _beside(self, tensors: list[Tensor]) -> None:
        """What comes in a list, PyTorch puts into one tensor of the size of all for NCCL, and copies."""
        device = _device(tensors)
        if device is None or len({tensor.nbytes for tensor in tensors}) > 1:
            return  # of several sizes, each goes in a message of its own
        nbytes = sum(tensor.nbytes for tensor in tensors)
        device.touch([nbytes])
        timer = device.timer
        timer.kernel(device.stream, 2 * nbytes / (timer.clock.rates.memory_gbps * 1e9), "copy_")


class _Several(VirtualWork):
    """Some collectives that PyTorch asked for with one call."""

    def __init__(self, group: VirtualGroup, works: list[VirtualWork]) -> None:
        super().__init__(group, None, [out for work in works for out in work._outputs])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([work.wait() for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        for work in self._works:
            if work._pending is not None:
                work._pending.carried()
        return super().get_future()


def _reduction(op: Any) -> tuple[str, float]:
    kind, factor = op.__getstate__() if hasattr(op, "__getstate__") else (op, None)
    return kind.name, 1.0 if factor is None else float(factor)


def _asynchronous(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as numbers that can be sent: complex ones are pairs."""
    if tensor.layout is not torch.strided:
        raise ValueError("Tensors must be CUDA and dense")
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _device(tensors: Sequence[Tensor]) -> Device | None:
    """The virtual GPU of the tensors; None for those of the host."""
    for tensor in tensors:
        found = device_of(tensor)
        if found is not None:
            return found
    return None


def _check(tensors: list[Tensor], device: Device) -> None:
    """RuntimeError where NCCL refuses; what C++ has made meanwhile is put on the GPU."""
    for tensor in tensors:
        if device_of(tensor) is not device:
            place(device, tensor)
        where = device_of(tensor)
        if where is None:
            raise RuntimeError("Tensors must be CUDA and dense")
        if where is not device:
            raise RuntimeError(f"Expected list of tensors on the same device, found {where.name} beside {device.name}")
        if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=torch.channels_last):
            raise RuntimeError("Tensors must be contiguous")


def _parts(tensor: Tensor, count: int, name: str) -> list[Tensor]:
    """A tensor as what belongs to each rank in turn."""
    tensor = _plain(tensor)
    if tensor.numel() % count:
        raise ValueError(f"{name} has {tensor.numel()} elements, which are no equal shares for {count} ranks")
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def _split(tensor: Tensor, sizes: Any, count: int, name: str) -> list[Tensor]:
    """A tensor as what goes to each rank: rows by `sizes`, equal shares without."""
    if not sizes:
        if tensor.dim() and tensor.shape[0] % count:
            raise RuntimeError(f"Tensor's dim 0 does not divide equally across group size: {tensor.shape[0]}, {count}")
        return _parts(tensor, count, name)
    if sum(sizes) != tensor.shape[0]:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {sum(sizes)} of {tensor.shape[0]} ({name})")
    return [part.reshape(-1) for part in tensor.split(list(sizes))]

