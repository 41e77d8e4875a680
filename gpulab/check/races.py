"""Races between streams of a virtual GPU, found by PyTorch's CUDA Sanitizer and told where it would raise.

A virtual GPU has all values at once, also those that no stream has waited for; who waited for whom is what it tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace

from ..virtual.surface.streams import Event, Stream


@contextmanager
def races() -> Iterator[list[Any]]:
    """The pairs of accesses to one tensor in two streams that this thread makes within the block, of which one is a
    write and neither waits for the other: `current_access` and `previous_access`, each with its `stream`.

    What goes into a CUDA graph is not looked at: it is no access before the replay.
    """
    registries = [one for one in vars(_gpu_trace).values() if isinstance(one, CallbackRegistry)]
    before = [list(one.callback_list) for one in registries]
    found: list[Any] = []
    try:
        with mock.patch.object(torch._C, "_activate_gpu_trace", create=True):
            listener = _listener()(found)
        handler = listener.event_handler
        stream = _answered(Stream, lambda one: handler._handle_stream_synchronization(one.cuda_stream))
        event = _answered(Event, lambda one: one._handle and handler._handle_event_synchronization(one._handle))
        with stream, event, listener:
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

    class Listener(module.CUDASanitizerDispatchMode):  # type: ignore[misc]
        def __init__(self, found: list[Any]) -> None:
            super().__init__()
            finds = self.event_handler._handle_kernel_launch

            def tell(*launch: Any) -> list[Any]:
                found.extend(finds(*launch))
                return []

            self.event_handler._handle_kernel_launch = tell

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.cuda.is_current_stream_capturing():
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Listener
