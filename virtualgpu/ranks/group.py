"""The "nccl" process group of virtual GPUs: counts, times and carries out every collective.

PyTorch's front ends (`torch.distributed`, the reducer of DistributedDataParallel, functional collectives, FSDP) call a
group's methods; here each becomes a `Call` with its kind, its bytes as nccl-tests count them, and how it is carried out
by the `Carrier`: over Gloo between real ranks, or from this rank's own tensors where the others are imagined.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C
import torch.distributed as dist

from ..clock import collectives
from ..scope.in_force import backing, thread
from ..scope.numbering import current, device_at, stream_numbers
from ..scope.refusals import NotMirrored, warn_once
from .calls import (
    Awaited,
    Call,
    Carrier,
    as_real,
    check_tensors,
    device_among,
    equal_parts,
    flatten_tensors,
    is_asynchronous,
    reduction,
    split,
)
from .works import Barrier, Pending, Several, VirtualWork

if TYPE_CHECKING:
    from ..scope.device import Device
    from .world import World

Tensor = torch.Tensor
KEPT = 64  # collectives without a wait: beyond that, completed ones are released
_Group: Any = dist.ProcessGroup


class VirtualGroup(_Group):  # type: ignore[misc]
    """A process group: `ranks` are its members' global ranks, `rank` this process's index among them."""

    def __init__(self, world: World, ranks: tuple[int, ...], rank: int, carrier: Carrier, backend: Any) -> None:
        super().__init__(rank, len(ranks))
        self.world, self.ranks, self.carrier = world, ranks, carrier
        self._place, self._count = rank, len(ranks)
        self.asked = "nccl"  # the backend argument, by kind of device where it names several
        self._streams: dict[tuple[int, str], int] = {}
        self._free: dict[tuple[int, str], float] = {}
        self._waiting: dict[Any, deque[Pending]] = defaultdict(deque)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._count

    def getBackendName(self) -> str:
        return "nccl"

    # -- time --------------------------------------------------------------------------------------------------------

    def place(self, call: Call, device: Device, stream: int | None, arrived: float, ready: float) -> float:
        """Schedule a collective that this rank enters at `arrived` and the last rank at `ready`; return when it will
        be done.

        Without a `stream` it runs in NCCL's own. A communicator runs one collective at a time, whatever their streams;
        messages to and from other ranks have communicators of their own.
        """
        lane = (device.index, call.lane)
        if stream is None:
            stream = self._streams.get(lane)
            if stream is None:
                stream = self._streams[lane] = next(stream_numbers)
        kind = "send" if call.kind == "recv" else call.kind
        way = collectives.choice(kind, call.nbytes, call.ranks, self.world.topology)
        name = f"{call.kind} of {len(call.ranks)} ranks ({way})"
        free = self._free.get(lane, 0.0)
        arrived, ready = max(arrived, free), max(ready, free)
        end = self._free[lane] = device.timer.collective(stream, arrived, ready, way.seconds, name, call.nbytes)
        return end

    def settle_next(self, call: Call) -> None:
        """Schedule the first pending collective in the queue of `call`."""
        self._waiting[call.queue].popleft().start()

    def settle_known(self, call: Call) -> None:
        """Schedule the pending collectives in turn whose other ranks have reported their times."""
        waiting = self._waiting[call.queue]
        while waiting and waiting[0].known:
            waiting.popleft().start()

    def _run(self, call: Call, asynchronous: bool) -> VirtualWork:
        """Carry out a collective; a synchronous one in the current stream, as PyTorch does with NCCL."""
        device, outputs = device_among([*call.inputs, *call.outputs]), call.outputs
        if device is not None:
            self._take(call, device)
        pending, _ = self._begin(call, device, None if device is None else device.timer.streams.get(device.stream, 0.0))
        if device is not None and not asynchronous:
            pending.stream = device.stream
        work = VirtualWork(self, pending, outputs)
        if not asynchronous:
            work.wait()
        elif self.world.imagined:
            pending.over()
        return work

    def _take(self, call: Call, device: Device) -> None:
        """Check that NCCL accepts it, and prepare its memory."""
        if device.capture is not None and device.capture.covers(device.stream):
            raise NotMirrored(f"{call.kind} while a CUDA graph is captured is not mirrored by the virtual GPU")
        if self.world.imagined and "nccl" not in self.asked:
            told = f"a process group with backend {self.asked!r} between imagined ranks"
            warn_once(current().warned, f"{told}: what it does with tensors of the GPU is timed as NCCL's")
        check_tensors(call, device)
        if device.observer is not None and not thread.functional:
            device.observer.communicates([*call.inputs, *call.outputs])
        with backing:
            flatten_tensors(call)

    def _begin(self, call: Call, device: Device | None, ready: float | None) -> tuple[Pending, Awaited[float]]:
        """Start the transfer; the GPU's inputs are `ready` at that time."""
        if device is None or ready is None:
            with backing:
                values, latest = self.carrier.begin(call, ready)
            return Pending(self, call, None, 0.0, values, latest), latest
        clock = device.timer.clock
        device.timer.joins()
        clock.enter()
        try:
            clock.spend(clock.costs.plain + clock.costs.event)
            arrived = max(ready, clock.host + clock.launch_s)
            with backing:
                values, latest = self.carrier.begin(call, arrived)
        finally:
            clock.leave()
        pending = Pending(self, call, device, arrived, values, latest)
        unsettled = device.timer.unsettled
        if len(unsettled) >= KEPT:
            for other in [other for other in unsettled if isinstance(other, Pending) and other.come]:
                other.over()
        unsettled[pending] = pending.over
        self._waiting[call.queue].append(pending)
        return pending, latest

    # -- called by PyTorch -------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> VirtualWork:
        opts = _C.AllreduceOptions() if opts is None else opts
        op = reduction(opts.reduceOp)
        calls = [Call("all_reduce", [t], [t], t.nbytes, self.ranks, op=op) for t in map(as_real, _listed(tensors))]
        return self._together([self._run(call, is_asynchronous(opts)) for call in calls])

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None) -> VirtualWork:
        opts = _C.BroadcastOptions() if opts is None else opts
        tensor = as_real(_listed(tensors)[0])
        call = Call("broadcast", [tensor], [tensor], tensor.nbytes, self.ranks, root=int(opts.rootRank))
        return self._run(call, is_asynchronous(opts))

    def reduce(self, tensors: Any, opts: Any = None) -> VirtualWork:
        opts = _C.ReduceOptions() if opts is None else opts
        tensor = as_real(_listed(tensors)[0])
        root = int(opts.rootRank)
        call = Call("reduce", [tensor], [tensor], tensor.nbytes, self.ranks, op=reduction(opts.reduceOp), root=root)
        return self._run(call, is_asynchronous(opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        given = _listed(inputs)
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
        return self._gather_all(equal_parts(output, self._count, "output"), tensor, opts, flat=True)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.all_gather_single(out, tensor, opts) for out, tensor in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(self, outputs: list[Tensor], tensor: Tensor, opts: Any, *, flat: bool) -> VirtualWork:
        outputs, tensor = [as_real(out) for out in outputs], as_real(tensor)
        self._expect(len(outputs), "all_gather")
        nbytes = sum(out.nbytes for out in outputs)
        if not flat:
            self._beside(outputs)
        return self._run(Call("all_gather", outputs, [tensor], nbytes, self.ranks), is_asynchronous(opts))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> VirtualWork:
        given = _listed(outputs)
        lists = input_lists if input_lists and isinstance(input_lists[0], (list, tuple)) else [input_lists]
        works = [self._scatter_sums(out, list(ins), opts, flat=False) for out, ins in zip(given, lists, strict=True)]
        return self._together(works)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> VirtualWork:
        return self._scatter_sums(output, equal_parts(tensor, self._count, "input"), opts, flat=True)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.reduce_scatter_single(out, tensor, opts) for out, tensor in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_sums(self, output: Tensor, inputs: list[Tensor], opts: Any, *, flat: bool) -> VirtualWork:
        opts = _C.ReduceScatterOptions() if opts is None else opts
        output, inputs = as_real(output), [as_real(tensor) for tensor in inputs]
        self._expect(len(inputs), "reduce_scatter")
        nbytes = sum(tensor.nbytes for tensor in inputs)
        if not flat:
            self._beside(inputs)
        call = Call("reduce_scatter", [output], inputs, nbytes, self.ranks, op=reduction(opts.reduceOp))
        return self._run(call, is_asynchronous(opts))

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        tensor = as_real(_listed(inputs)[0])
        outputs = [as_real(out) for out in (output_lists[0] if output_lists else [])]
        call = Call("gather", outputs, [tensor], tensor.nbytes * self._count, self.ranks, root=int(opts.rootRank))
        return self._run(call, is_asynchronous(opts))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> VirtualWork:
        output = as_real(_listed(outputs)[0])
        inputs = [as_real(tensor) for tensor in (input_lists[0] if input_lists else [])]
        call = Call("scatter", [output], inputs, output.nbytes * self._count, self.ranks, root=int(opts.rootRank))
        return self._run(call, is_asynchronous(opts))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None
    ) -> VirtualWork:
        outputs = split(as_real(output), output_sizes, self._count, "output")
        inputs = split(as_real(tensor), input_sizes, self._count, "input")
        return self.alltoall(outputs, inputs, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        self._expect(len(outputs), "all_to_all")
        self._expect(len(inputs), "all_to_all")
        outputs, inputs = [as_real(t) for t in outputs], [as_real(t) for t in inputs]
        nbytes = sum(tensor.nbytes for tensor in inputs)
        return self._run(Call("all_to_all", outputs, inputs, nbytes, self.ranks), is_asynchronous(opts))

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> VirtualWork:
        tensor = as_real(tensors[0])
        pair = (self.ranks[self._place], self.ranks[dst])
        return self._run(Call("send", [], [tensor], tensor.nbytes, pair, peer=dst, tag=tag), True)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> VirtualWork:
        tensor = as_real(tensors[0])
        pair = (self.ranks[src], self.ranks[self._place])
        return self._run(Call("recv", [tensor], [], tensor.nbytes, pair, peer=src, tag=tag), True)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> VirtualWork:
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")

    def barrier(self, opts: Any = None) -> VirtualWork:
        """With NCCL, all-reduce one number in the current stream and wait on the host; with Gloo, a host barrier."""
        named = getattr(opts, "device_ids", None) or []
        device = device_at(named[0] if named else None)
        clock, call = device.timer.clock, Call("barrier", [], [], 4, self.ranks)
        if "cpu" in self.asked and not named:
            pending, latest = self._begin(call, None, clock.host)
        else:
            pending, latest = self._begin(call, device, device.timer.streams.get(device.stream, 0.0))
            pending.stream = None if is_asynchronous(opts) else device.stream
        work = Barrier(self, pending, clock, latest)
        if not is_asynchronous(opts):
            work.wait()
        return work

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _together(self, works: list[VirtualWork]) -> VirtualWork:
        return works[0] if len(works) == 1 else Several(self, works)

    def _expect(self, count: int, what: str) -> None:
        if count != self._count:
            raise ValueError(f"{what} takes a tensor for each of the group's {self._count} ranks, not {count}")

    def _beside(self, tensors: list[Tensor]) -> None:
        """Charge the copy of a list of tensors to or from one flat tensor, which PyTorch makes for NCCL."""
        device = device_among(tensors)
        if device is None or len({tensor.nbytes for tensor in tensors}) > 1:
            return  # tensors of several sizes are sent in messages of their own
        nbytes = sum(tensor.nbytes for tensor in tensors)
        device.touch([nbytes])
        timer = device.timer
        seconds = 2 * nbytes / (timer.clock.rates.memory_gbps * 1e9)
        timer.kernel(device.stream, seconds, "copy_", nbytes=2 * nbytes)


def _listed(tensors: Any) -> list[Tensor]:
    """Return a list of tensors; PyTorch also passes a single one."""
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
