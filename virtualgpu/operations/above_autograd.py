"""Kernels registered above autograd: autocast, CUDA's variants of operations, and CUDA's argument checks.

All three are registered on one dispatch key that nothing else uses, and that every watched thread includes.
"""

from __future__ import annotations

import threading

import torch
from torch.library import Library, fallthrough_kernel

from . import autocast, cuda_kernels, cuda_refusals

_library: list[Library] = []
_registering = threading.Lock()


def include(on: bool) -> None:
    """Switch these kernels on or off for this thread's operations."""
    if on:
        register()
    torch._C._dispatch_tls_set_dispatch_key_included(autocast.KEY, on)
    torch._C._dispatch_tls_set_dispatch_key_excluded(autocast.KEY, not on)


def register() -> None:
    """Register the kernels, once in a process."""
    with _registering:
        if _library:
            return
        whole = Library("_", "IMPL")
        whole.fallback(fallthrough_kernel, autocast.KEY.name)
        parts = Library("aten", "IMPL")
        _library.extend((whole, parts))
        known = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
        for names, change in autocast.LISTS:
            for name in names:
                if f"aten::{name}" in known and name not in cuda_kernels.MIRRORS:
                    parts.impl(name, cuda_refusals.first(name, autocast.kernel(name, change)), autocast.KEY.name)
        for name in autocast.COMPOSITE:
            parts.impl(name, cuda_refusals.first(name, autocast.in_parts(name)), autocast.KEY.name)
        for name, mirror in cuda_kernels.MIRRORS.items():
            parts.impl(name, cuda_refusals.first(name, mirror), autocast.KEY.name)
        done = (
            {*autocast.COMPOSITE}
            | cuda_kernels.MIRRORS.keys()
            | {name for names, _ in autocast.LISTS for name in names}
        )
        of_the_cpu = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
        cpus = {name.removeprefix("aten::") for name in of_the_cpu if name.startswith("aten::")}
        for name in (cuda_refusals.BEFORE.keys() | cuda_refusals.INSTEAD.keys() | cpus) - done:
            itself = autocast.cpus_alone(name) if name in cpus else autocast.kernel(name)
            parts.impl(name, cuda_refusals.first(name, cuda_refusals.INSTEAD.get(name) or itself), autocast.KEY.name)
