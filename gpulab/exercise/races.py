"""Races between streams of a virtual GPU, found by PyTorch's CUDA Sanitizer and told where it would raise.

A virtual GPU has all values at once, also those that no stream has waited for; who waited for whom is what it tells.
Beyond the sanitizer's own: pinned memory counts as the GPU's does where a copy reads or writes it; memory must not be
freed while a stream that no one waits for may use it; a CUDA graph uses what it has captured when it is replayed; and
who asked whether all is done, and was told so, has waited.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock
from weakref import WeakKeyDictionary

import torch
from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace

from virtualgpu.surface.graphs import CUDAGraph
from virtualgpu.surface.streams import Event, Stream

_PINNED = "_gpulab_raced"  # on a storage of the host: what it is known by
_names = itertools.count(1)


class Race(NamedTuple):
    """`stream` uses, or frees, what `other` was given to use before, and does not wait for it."""

    stream: int
    other: int
    freed: bool = False


@contextmanager
def races() -> Iterator[list[Race]]:
    """The races that this thread makes within the block."""
    registries = [one for one in vars(_gpu_trace).values() if isinstance(one, CallbackRegistry)]
    before = [list(one.callback_list) for one in registries]
    found: list[Race] = []
    try:
        with mock.patch.object(torch._C, "_activate_gpu_trace", create=True):
            listener = _listener()(found)
        handler, record = listener.event_handler, torch.Tensor.record_stream

        def recorded(tensor: torch.Tensor, stream: Any) -> None:
            listener.recorded.add((tensor.untyped_storage().data_ptr(), stream.stream_id))
            record(tensor, stream)

        stream = _answered(Stream, lambda one: handler._handle_stream_synchronization(one.cuda_stream))
        event = _answered(Event, lambda one: one._handle and handler._handle_event_synchronization(one._handle))
        recording = mock.patch.object(torch.Tensor, "record_stream", recorded)
        with stream, event, recording, mock.patch.object(CUDAGraph, "replay", listener.replaying()), listener:
            yield found
    finally:
        for registry, callbacks in zip(registries, before, strict=True):
            registry.callback_list[:] = callbacks


def _answered(kind: Any, tell: Callable[[Any], object]) -> Any:
    """Who asked and was told that all is done has waited as well; PyTorch does not say so."""
    query = kind.query

    def asked(one: Any) -> bool:
        done: bool = query(one)
        if done:
            tell(one)
        return done

    return mock.patch.object(kind, "query", asked)


@cache
def _listener() -> Any:
    """The sanitizer's mode. Its module is loaded for this alone: from its import on, it listens to all that happens."""
    spec = find_spec("torch.cuda._sanitizer")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Of the stack at each access, which nobody will read here, it makes no list: that would be most of the time.
    module.traceback = SimpleNamespace(
        StackSummary=SimpleNamespace(extract=lambda *args, **kwargs: []), walk_stack=lambda frame: ()
    )

    class Arguments(module.ArgumentHandler):  # type: ignore[misc]
        def _handle_argument(self, value: Any, is_write: bool, metadata_only: bool, *args: Any, **options: Any) -> None:
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.is_pinned():
                name = _name_of(value)
                self.tensor_aliases.setdefault(name, [])
                if not metadata_only or is_write:
                    (self.dataptrs_written if is_write else self.dataptrs_read).add(name)
            super()._handle_argument(value, is_write, metadata_only, *args, **options)

    class Listener(module.CUDASanitizerDispatchMode):  # type: ignore[misc]
        def __init__(self, found: list[Race]) -> None:
            super().__init__()
            self.recorded: set[tuple[int, int]] = set()  # of memory and streams
            self._owners: dict[int, int] = {}
            self._graphs = WeakKeyDictionary[CUDAGraph, tuple[set[int], set[int]]]()  # what each reads and writes
            handler = self.event_handler
            finds = handler._handle_kernel_launch

            def tell(*launch: Any) -> list[Any]:
                for error in finds(*launch):
                    found.append(Race(error.current_access.stream, error.previous_access.stream))
                return []

            def allocated(address: int) -> None:
                if not torch.cuda.is_current_stream_capturing():  # a graph's own pool gives memory to nobody else
                    self._owners[address] = torch.cuda.current_stream().cuda_stream

            def freed(address: int) -> None:
                """Called before the sanitizer forgets what was there."""
                owner, info = self._owners.pop(address, None), handler.tensors_accessed.accesses.get(address)
                if owner is None or info is None:
                    return
                for access in [*info.reads, *filter(None, [info.write])]:
                    known = (address, access.stream) in self.recorded
                    if not known and not handler.syncs.is_ordered_after(owner, access.seq_num, access.stream):
                        found.append(Race(owner, access.stream, freed=True))
                self.recorded = {(place, stream) for place, stream in self.recorded if place != address}

            handler._handle_kernel_launch = tell
            _gpu_trace.MemoryAllocationCallbacks.callback_list.append(allocated)
            _gpu_trace.MemoryDeallocationCallbacks.callback_list.insert(0, freed)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not (_on_gpu(args) or (kwargs and _on_gpu(kwargs.values()))):
                return func(*args, **(kwargs or {}))
            if not torch.cuda.is_current_stream_capturing():
                return super().__torch_dispatch__(func, types, args, kwargs)
            uses, makes = Arguments(), bool(module.FACTORY_FUNCTION_REGEX.match(func._schema.name))
            uses.parse_inputs(func._schema, args, kwargs or {}, is_factory=makes)
            outputs = func(*args, **(kwargs or {}))
            uses.parse_outputs(func._schema, outputs, is_factory=makes)
            graph = CUDAGraph.get_currently_capturing_graph()
            reads, writes = self._graphs.setdefault(graph, (set(), set()))
            reads |= uses.dataptrs_read
            writes |= uses.dataptrs_written
            return outputs

        def replaying(self) -> Callable[[CUDAGraph], None]:
            """`CUDAGraph.replay`, one access to all that went into the graph."""
            replay, launch = CUDAGraph.replay, self.event_handler._handle_kernel_launch

            def replayed(graph: CUDAGraph) -> None:
                reads, writes = self._graphs.get(graph, (set(), set()))
                stream = torch.cuda.current_stream().cuda_stream
                launch(stream, reads - writes, writes, set(), "replay", defaultdict(list))
                replay(graph)

            return replayed

    module.ArgumentHandler = Arguments
    return Listener


def _on_gpu(given: Any) -> bool:
    """Whether the GPU has a part in it: the host's own work on its memory is none of a stream's."""
    for item in given:
        if isinstance(item, torch.Tensor):
            found = item.is_cuda
        elif isinstance(item, list | tuple):
            found = _on_gpu(item)
        else:
            found = isinstance(item, torch.device) and item.type == "cuda"
        if found:
            return True
    return False


def _name_of(tensor: torch.Tensor) -> int:
    """A number for memory of the host, which no address of a GPU is; an address may be another buffer's afterwards."""
    storage: Any = tensor.untyped_storage()
    name: int | None = getattr(storage, _PINNED, None)
    if name is None:
        name = -next(_names)
        setattr(storage, _PINNED, name)
    return name
