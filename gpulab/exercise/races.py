"""Finds data races between streams of a virtual GPU with PyTorch's CUDA Sanitizer, and records them in a list.

A virtual GPU computes all values at once, so that a missing wait does not change them; the sanitizer follows the waits.
In addition: pinned memory counts like the GPU's where a copy reads or writes it; memory must not be freed while a
stream may use it that nobody waited for; the replay of a CUDA graph accesses all that was captured; and a query that
returned True counts as a wait.
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

_PINNED = "_gpulab_raced"  # an attribute of a pinned storage: its name
_names = itertools.count(1)


class Race(NamedTuple):
    """`stream` uses or frees memory that `other` used before, without waiting for it."""

    stream: int
    other: int
    freed: bool = False


@contextmanager
def races() -> Iterator[list[Race]]:
    """Yield a list that collects the races of this thread within the block."""
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
    """Patch `kind.query`: if it returns True, `tell` reports a wait, which PyTorch does not."""
    query = kind.query

    def asked(one: Any) -> bool:
        done: bool = query(one)
        if done:
            tell(one)
        return done

    return mock.patch.object(kind, "query", asked)


@cache
def _listener() -> Any:
    """Return the sanitizer's dispatch mode. Its module is loaded here alone: it registers callbacks at import."""
    spec = find_spec("torch.cuda._sanitizer")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Do not extract the stack at each access, which would take most of the time.
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
            self._graphs = WeakKeyDictionary[CUDAGraph, tuple[set[int], set[int]]]()  # memory read, written
            handler = self.event_handler
            finds = handler._handle_kernel_launch

            def tell(*launch: Any) -> list[Any]:
                for error in finds(*launch):
                    found.append(Race(error.current_access.stream, error.previous_access.stream))
                return []

            def allocated(address: int) -> None:
                if not torch.cuda.is_current_stream_capturing():  # a graph's private pool is not shared
                    self._owners[address] = torch.cuda.current_stream().cuda_stream

            def freed(address: int) -> None:
                """Called before the sanitizer forgets this memory."""
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
            """Return a `CUDAGraph.replay` that counts as one access to all memory of the graph."""
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
    """Return True if an argument is on the GPU: the host's work on its own memory belongs to no stream."""
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
    """Return a negative number for memory of the host, unique over its life, unlike its address."""
    storage: Any = tensor.untyped_storage()
    name: int | None = getattr(storage, _PINNED, None)
    if name is None:
        name = -next(_names)
        setattr(storage, _PINNED, name)
    return name
