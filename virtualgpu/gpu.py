"""`VirtualGPU`, the context manager in which PyTorch finds a CUDA GPU on any machine.

Entering it replaces what PyTorch says about CUDA and watches every operation; leaving it puts everything back.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import release
from .clock import hosts, links, rates
from .clock.clock import Clock
from .clock.hosts import Host
from .clock.timeline import Timeline, record_timeline
from .gpus.specs import Spec, spec
from .memory import addresses
from .memory.settings import Settings
from .operations import above_autograd, products, shape_cache, watched_threads
from .operations.copies import PinnedCache, UnderWay
from .ranks import world
from .scope import in_force, ownership
from .scope.device import Device
from .scope.patches import Patches
from .scope.refusals import warn_once
from .surface import distributed, install


class VirtualGPU:
    """`count` virtual GPUs of one kind, from `with` (or `start`) to its end (or `stop`).

    `gpu` is a name such as "T4", or a machine's such as "8xH100" (`clock.links.MACHINES`), whose ranks are imagined.
    With `compute=False` tensors have shapes and no values: models larger than the machine can be planned.
    `settings` has the syntax of PYTORCH_CUDA_ALLOC_CONF, which is read without it.
    `counts_host=True` counts the time that this machine spends between the operations as the host's: waits for data
    show, and times no longer repeat exactly.
    `host` is the host that launches: "server" (the default), "reference" (a fast one), or a number: its slowdown
    against the reference.
    `ranks` imagines that this process is rank `rank` of so many, each with such a GPU, on `nodes` machines, joined by
    `link` and between machines by `adapters` (None: what is usual for the GPU): process groups of all ranks are made at
    once, the others are assumed to send what this one sends, and collectives take their time. Without it, ranks are
    processes, as torchrun starts them, and `link` names the interconnect of their GPUs.
    `mirror=False` turns off CUDA's own saved tensors and its libraries' workspaces: plain bookkeeping of what PyTorch
    does on this machine.

    Raises ValueError for a GPU or a setting that does not exist, RuntimeError where one is started twice.
    """

    def __init__(
        self,
        gpu: str = "T4",
        *,
        count: int = 1,
        compute: bool = True,
        settings: str | None = None,
        mirror: bool = True,
        counts_host: bool = False,
        host: str | float | Host | None = None,
        ranks: int | None = None,
        rank: int = 0,
        link: str | None = None,
        nodes: int | None = None,
        adapters: int | str | None = None,
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 64:
            raise ValueError(f"count must be a whole number of GPUs from 1 to 64, not {count!r}")
        gpu = gpu.removeprefix("virtual:")
        self.spec: Spec = spec(links.MACHINES[gpu].gpu if gpu in links.MACHINES else gpu)
        self.link, self.adapters = link, adapters
        self.world = self._imagined(gpu, ranks, rank, nodes)
        if self.world is not None:
            count = max(count, self.world.topology.per_node)
        self.compute = bool(compute)
        self.mirror = bool(mirror)
        self.backing = torch.device("cpu" if compute else "meta")
        self.plans_convolutions = True  # False leaves out the workspaces of cuDNN's convolutions
        self.skips_ddp = False  # True makes DistributedDataParallel do nothing, and counts its uses
        self.skipped_ddp = 0
        self.keeps_workspaces = products.keeps_workspaces()
        self.release = release.running_release()
        self.counts_host = bool(counts_host)
        found = rates.rates_of(self.spec.name)
        self.rates = found if host is None else replace(found, host=hosts.find_host(host))
        self.clock = Clock(count, self.rates)
        self.pinned = PinnedCache()
        self.on_pin: list[Callable[[int], object]] = []  # `observe` adds to it
        self.under_way: UnderWay | None = None
        self.sync_debug_mode = 0
        self.active = False
        self.warned: set[str] = set()
        self.remembered = shape_cache.CacheCount()
        if settings is None:
            names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
            settings = next((os.environ[name] for name in names if os.environ.get(name)), "")
        self.settings = Settings.parse(settings)
        self._count = count
        self.devices: list[Device] = []
        self.chosen = in_force.Chosen()  # the index that `torch.cuda.set_device` chose
        self.process = 0
        self._patches = Patches()
        self._suspensions = 0  # how many blocks without it are open, in all threads
        self._outer: VirtualGPU | None = None

    def _imagined(self, gpu: str, ranks: int | None, rank: int, nodes: int | None) -> world.World | None:
        """Return the imagined ranks, None where there are none."""
        if gpu in links.MACHINES:
            for name, value in (("ranks", ranks), ("nodes", nodes), ("link", self.link), ("adapters", self.adapters)):
                if value is not None:
                    raise ValueError(
                        f"{name} is {value!r}, but gpu={gpu!r} is a machine, which determines it: name its GPU instead"
                    )
            return world.machine_world(gpu, rank)
        if ranks is not None:
            adapters = self.adapters
            return world.imagined_world(self.spec.name, ranks, rank, link=self.link, nodes=nodes, adapters=adapters)
        if rank != 0 or nodes is not None:
            raise ValueError(f"rank is {rank!r} and nodes {nodes!r} without ranks=, the number of imagined ranks")
        return None

    def __repr__(self) -> str:
        many = f"{self._count} x " if self._count > 1 else ""
        kind = "values computed on the CPU" if self.compute else "shapes only"
        return f"<VirtualGPU {many}{self.spec.name}, {kind}{'' if self.active else ', not in force'}>"

    def start(self) -> VirtualGPU:
        with _disable_current_modes():  # the sanitizer's, say, which asks CUDA for its current stream
            ownership.prepare(above_autograd.include)
        if self.active:
            raise RuntimeError(f"{self!r} is already in force")
        self.clock = Clock(self._count, self.rates, counts_host=self.counts_host)
        self.devices = [
            Device(i, self.spec, self.settings, self.clock.devices[i], compute=self.compute) for i in range(self._count)
        ]
        for device in self.devices:
            device.keeps_workspaces = self.keeps_workspaces
            device.plans_convolutions = self.plans_convolutions
            device.release = self.release
            if self.release < release.TIES_BY_AGE:
                device.allocator.memory.addresses = addresses.Ranges(device.index)
        self.chosen = in_force.Chosen()
        self.process = os.getpid()
        self._outer = in_force.current
        if self._outer is not None:
            self._outer._suspend()
        self.active = True
        in_force.current = self
        try:
            install.install(self, self._patches)
            watched_threads.enter()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Put everything back. Tensors that were on this GPU are on the host afterwards."""
        if self._suspensions:
            raise RuntimeError(f"{self!r} cannot end within a block without it: end that block first")
        inner, outer = in_force.current, in_force.current
        while outer is not None and outer is not self:
            outer = outer._outer
        if outer is None:
            return
        if inner is not self:
            raise RuntimeError(f"{self!r} cannot end before {inner!r}, which was started within it")
        distributed.end(self)
        self._suspend()
        for device in self.devices:
            device.close()
        in_force.current, self._outer = self._outer, None
        if in_force.current is not None:
            in_force.current._resume()

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _suspend(self) -> None:
        watched_threads.leave()
        self._patches.restore()
        self._activate(False)

    def _resume(self) -> None:
        self._activate(True)
        install.install(self, self._patches)
        watched_threads.enter()

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Return the attributes of torch and Python that it has replaced: owner, name, original."""
        return self._patches.replaced()

    def _activate(self, on: bool) -> None:
        self.active = on
        for device in self.devices:
            device.active = on

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the GPU in all threads, until the last of them has left such a block."""
        with watched_threads.no_sanitizer():
            yield from self._suspended()

    def _suspended(self) -> Iterator[None]:
        watches = in_force.thread.watched
        with _suspending:
            if not self._suspensions:
                self._suspend()
                in_force.current = None
                in_force.suspended.append(self)
            self._suspensions += 1
        watched_threads.leave()
        try:
            yield
        finally:
            with _suspending:
                self._suspensions -= 1
                if not self._suspensions:
                    in_force.suspended.remove(self)
                    self._take_over()
            if watches:
                watched_threads.enter()
            else:
                watched_threads.leave()

    def _take_over(self) -> None:
        """Come into force again."""
        left = in_force.current
        if left is not None:
            raise RuntimeError(
                f"{left!r} was started within a block without {self!r} and is still in force: end it within the block"
            )
        in_force.current = self
        self._resume()

    def timeline(self) -> contextlib.AbstractContextManager[Timeline]:
        """Record what the host and the GPUs do within a block: `with gpu.timeline() as timeline: …`."""
        return record_timeline(self.clock)

    # -- for the other rooms -----------------------------------------------------------------------------------------

    def device(self, index: int | None) -> Device:
        """Return the GPU with this index, the current one for None; raises torch.AcceleratorError if there is none."""
        if os.getpid() != self.process:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        if index is None:
            index = self.chosen.number
        if not 0 <= index < self._count:
            raise torch.AcceleratorError(INVALID_DEVICE)
        return self.devices[index]

    @property
    def count(self) -> int:
        return self._count

    def warn_unknown(self) -> None:
        warn_once(
            self.warned,
            "with compute=False the virtual GPU knows only shapes, not values: an unknown number is read as 1 "
            "(several as nan), and tests such as isnan treat it as an ordinary, finite number",
        )


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """A block that sees no virtual GPU: PyTorch as it is without gpulab, and the GPU again afterwards.

        with gpulab.without_gpu():
            fast = torch.compile(model)  # compiles for what this machine has

    In it `torch.cuda.is_available()` is this machine's own answer, `torch.compile` compiles, and clocks show what the
    CPU takes (their readings within and outside are not on one scale). It holds for all threads, until the last of
    them has left such a block; threads that are started in it never see the GPU. Without a virtual GPU in force,
    and with a real one, it changes nothing.

    Within the block a tensor of the virtual GPU is its backing tensor: one on "cpu" with the same values, or with
    `compute=False` one on "meta", with a shape alone. Values written into it stay; tensors made from it are the host's
    and remain so. Its memory stays allocated, unless it dies.

    Raises RuntimeError at its end if a virtual GPU that was started within is still in force, which then stays so.
    """
    gpu = in_force.current or (in_force.suspended[-1] if in_force.suspended else None)
    if gpu is None:
        yield
        return
    with gpu.suspended():
        yield


_suspending = threading.RLock()


def _in_forked_child() -> None:
    """Replace locks: one that another thread held when the process was forked would never be released."""
    global _suspending
    _suspending = threading.RLock()
    if in_force.current is not None:
        for device in in_force.current.devices:
            device.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)

INVALID_DEVICE = "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
