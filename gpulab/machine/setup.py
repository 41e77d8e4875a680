"""Chooses the GPU of a notebook, real or virtual, seeds the random generators, and shows the machine card."""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from virtualgpu import lending
from virtualgpu.choice import DEFAULT, choose
from virtualgpu.pictures.display import show
from virtualgpu.units import gib

from .. import course  # noqa: F401  (it records the folder in which the notebook began)
from .card import Card, as_html, as_svg, as_text
from .debugger import IN_IT, is_attached

if TYPE_CHECKING:
    import torch

    from virtualgpu.gpu import VirtualGPU

# Errors of torch on a machine without a GPU, which need no explanation.
_NO_GPU = re.compile("Found no NVIDIA driver|No (CUDA|HIP) GPUs|not compiled with CUDA")


@dataclass(frozen=True, repr=False)
class Machine:
    """The choice of `setup()`.

    `device` is for tensors. `numbers` is the origin of this notebook's bytes and times. `virtual_of` names the GPU that
    is simulated, None for a real one. `total_memory` is the GPU's in bytes (for Apple's GPU, the most that Metal
    recommends), None on the CPU. `notes` are sentences for the reader. `threads` is the number of PyTorch's threads on
    the CPU, `threads_because` the reason if they are fewer than its default, else "".
    """

    device: torch.device
    name: str
    numbers: Literal["measured", "virtual"]
    virtual_of: str | None = None
    total_memory: int | None = None
    capability: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    threads: int = field(default=1, compare=False)
    threads_because: str = field(default="", compare=False)

    def close(self) -> None:
        """End the virtual GPU that `setup` started; its tensors are on the CPU afterwards."""
        if self.virtual_of is not None:
            _check_within_nothing("close()")
            _end()

    def __repr__(self) -> str:
        return f"<Machine: {self.name}; device {self.device}, numbers {self.numbers}>"


_current: Machine | None = None
_gpu: VirtualGPU | None = None  # the one that `setup` started, while it is in force


def setup(gpu: str | None = None, *, seed: int = 0) -> Machine:
    """Choose the device, seed the random generators, show the machine card, and return the machine.

    PyTorch then has no more threads on the CPU than there are processors for this process, without those that other
    programs keep busy, and never more than before.

    `gpu` is "auto", "real", "virtual:NAME" or a bare NAME such as "T4"; without it the environment
    variable GPULAB_GPU decides, and without that "auto": the CUDA GPU if it works, else a virtual T4.
    "real" insists on a real GPU. `seed` goes to Python's `random`, NumPy (where installed) and torch on
    every device. A virtual GPU stays in force until the next `setup` with another choice, or `machine.close()`;
    under torchrun there is one for every rank of this machine.

    Raises ValueError for a choice or a seed that does not exist, TypeError for one of the wrong type,
    RuntimeError where "real" finds no GPU that works, and within a block of `gpulab.without_gpu()`.
    """
    global _current
    seed = _checked_seed(seed)
    _check_within_nothing("setup()")
    mode, spec = choose(gpu)
    notes: tuple[str, ...] = ()
    lent = lending.gpu
    if lent is not None and (lending.stays or gpu is None or mode == "auto"):
        if gpu is not None and mode != "auto" and (mode, spec) != ("virtual", lent.spec.name):
            notes = (f"setup({gpu!r}) is overruled by `python -m gpulab run --gpu {lent.spec.name}`.",)
        mode, spec = "virtual", lent.spec.name
    if mode == "virtual":
        machine = _virtual(spec, *notes)
    else:
        with _without_virtual():
            machine = _auto() if mode == "auto" else _real("GPULAB_GPU" if gpu is None else "gpu")
    _put_in_force(machine.virtual_of)
    _seed(seed)
    threads, because = _cap_threads()
    if is_attached():
        machine = replace(machine, notes=(*machine.notes, IN_IT))
    machine = replace(machine, threads=threads, threads_because=because)
    earlier, _current = _current, machine
    if earlier is not None and (held := _held_bytes(machine)):
        note = f"earlier cells still hold {held / 2**20:,.1f} MiB: for this page's numbers, Restart and Run All"
        machine = replace(machine, notes=(*machine.notes, note))
    card = _card(machine, seed, earlier)
    show(as_text(card), svg=as_svg(card), html=as_html(card))
    return machine


def _held_bytes(machine: Machine) -> int:
    """Return the GPU memory that is allocated before the notebook has made anything, after garbage collection."""
    if machine.device.type != "cuda":
        return 0
    import torch

    gc.collect()
    return sum(torch.cuda.memory_allocated(number) for number in range(torch.cuda.device_count()))


def _in_force() -> VirtualGPU | None:
    """Return the virtual GPU of `setup`, or the one lent to this program, which `setup` may replace."""
    return lending.gpu or _gpu


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be a whole number from 0 to 2**32 - 1, not {seed!r} ({type(seed).__name__})")
    number = operator.index(seed)
    if not 0 <= number < 2**32:
        raise ValueError(f"seed must be from 0 to 2**32 - 1 (NumPy takes no other), not {number}")
    return number


def _virtual(name: str, *notes: str) -> Machine:
    """Return the machine of the virtual GPU `name`. It must not depend on the host, but for `notes`."""
    import torch

    from virtualgpu.gpus.specs import spec

    gpu = spec(name)
    return Machine(torch.device("cuda", 0), gpu.product, "virtual", name, gpu.memory_bytes, gpu.capability, notes=notes)


def _put_in_force(name: str | None) -> None:
    """Start the virtual GPU `name` unless it runs already, and end any other; for None, end it."""
    global _gpu
    from virtualgpu.gpu import VirtualGPU
    from virtualgpu.scope import in_force

    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    now = _in_force()
    if now is not None and now.active and now.spec.name == name and (now is lending.gpu or now.count == count):
        return
    _end()
    if in_force.current is not None:
        raise RuntimeError(f"setup() was called within a block of {in_force.current!r}: end the block first")
    if name is not None:
        # PyTorch's profiler logs starts, stops and the missing driver to stderr. On a real GPU its errors count.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        _gpu = VirtualGPU(name, count=count).start()


def _check_within_nothing(what: str) -> None:
    """Raise RuntimeError within a block that suspends a virtual GPU, which would come back."""
    from virtualgpu.scope import in_force

    if in_force.suspended:
        raise RuntimeError(f"{what} was called within a block without {in_force.suspended[-1]!r}: end the block first")


def _end() -> None:
    global _gpu
    now = _in_force()
    if now is not None and now.active:
        now.stop()
    _gpu = None
    lending.lend(None)


@contextlib.contextmanager
def _without_virtual() -> Iterator[None]:
    """Suspend the virtual GPU, so that PyTorch sees the real ones."""
    now = _in_force()
    if now is None or not now.active:
        yield
        return
    with now.suspended():
        yield


def _auto() -> Machine:
    """Return the CUDA GPU if a kernel runs on it; else the virtual one, with a note about an unused GPU."""
    cuda, trouble = _find_cuda()
    if cuda is not None:
        return _describe(cuda)
    if trouble is not None:
        return _virtual(DEFAULT, f"A GPU is here, but cannot be used: {trouble} What to do: python -m gpulab doctor")
    other = _find_other()
    if other is not None:
        note = "gpulab.setup('real') uses it; otherwise the lessons use the virtual GPU, so that you get their numbers."
        return _virtual(DEFAULT, f"{_kind(other)} is here: {note}")
    return _virtual(DEFAULT)


def _real(where: str) -> Machine:
    from .diagnosis.pytorch import kernel_trouble

    cuda, trouble = _find_cuda()
    if cuda is not None:
        return _describe(cuda)
    other = _find_other()
    if other is not None:
        other_trouble = kernel_trouble(other)
        if other_trouble is None:
            return _describe(other)
        trouble = _sentence(other_trouble)
    raise RuntimeError(
        f"{where}='real' requires a real GPU, but none works here: {trouble or 'PyTorch finds none.'} "
        "What to do: python -m gpulab doctor. Without a GPU, gpulab.setup('T4') runs every lesson."
    )


def _find_cuda() -> tuple[torch.device | None, str | None]:
    """Return the CUDA device if it works; else None, with the reason if there is a GPU that should."""
    import torch

    from .diagnosis import driver
    from .diagnosis.pytorch import kernel_trouble

    trouble = kernel_trouble("cuda")
    if trouble is None:
        return torch.device("cuda", torch.cuda.current_device()), None
    if _NO_GPU.search(trouble) and not torch.cuda.is_available():
        here = driver.read_driver()
        if not here.gpus and not here.on_bus:
            return None, None
    return None, _sentence(trouble)


def _find_other() -> torch.device | None:
    """Return the GPU of Apple, Intel or another maker that `torch.accelerator` finds."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type == "cuda":
        return None
    return torch.device(found.type, torch.accelerator.current_device_index())


def _describe(device: torch.device) -> Machine:
    import torch

    name, total, capability = _kind(device), None, None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, total = properties.name, properties.total_memory
        capability = (properties.major, properties.minor)
    elif device.type == "xpu":
        name = torch.xpu.get_device_name(device)
        total = torch.xpu.get_device_properties(device).total_memory
    elif device.type == "mps":
        total = torch.mps.recommended_max_memory()
    return Machine(device, name, "measured", None, total, capability)


def _kind(device: torch.device) -> str:
    names = {"mps": "Apple's GPU", "xpu": "Intel's GPU"}
    return names.get(device.type, f"{device.type.upper()} hardware")


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].rstrip(".") + "."


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy  # torch has imported it already where it is installed
    except ImportError:
        return
    numpy.random.seed(seed)


_threads: tuple[int, int] | None = None  # PyTorch's own number, and the one set by `_cap_threads`


def _cap_threads() -> tuple[int, str]:
    """Limit PyTorch's threads to the free processors; return their number, and why they are fewer than before, or "".

    Beside other programs, every operation would wait for the thread whose processor is taken. A number that the user
    chose is never raised, and one from the environment is not changed.
    """
    global _threads
    import torch

    from .diagnosis.host import read_processors

    now = torch.get_num_threads()
    if (now == 1 and _threads is None) or os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return now, ""
    own = _threads[0] if _threads is not None and _threads[1] == now else now
    here = read_processors()
    count = min(own, here.threads)
    if count != now:
        torch.set_num_threads(count)
    _threads = own, count
    return count, here.why if count < own else ""


def _card(machine: Machine, seed: int, earlier: Machine | None) -> Card:
    """Return the card; that of a virtual GPU must be the same on every host, but for notes."""
    device = str(machine.device)
    if machine.virtual_of is not None:
        from virtualgpu.clock import rates

        device += f": {machine.name}"
        source = rates.rates_of(machine.virtual_of).source
        numbers = (
            "bytes and GPU times are virtual: your own PyTorch calls, counted by the rules of PyTorch's CUDA "
            f"allocator, and timed by a model with {source}. Values are computed on this CPU; "
            "figures from elsewhere say recorded."
        )
    else:
        numbers = "measured on this GPU; figures from elsewhere say virtual or recorded"
    if machine.total_memory is not None:
        device += f", {gib(machine.total_memory)}"
        device += " of the machine's memory at most" if machine.device.type == "mps" else " of memory"
    if machine.capability is not None:
        device += f", compute capability {'.'.join(map(str, machine.capability))}"
    rows = [("device", device), ("numbers", numbers), ("seed", f"{seed}, for Python's random, NumPy and PyTorch")]
    if earlier is not None and _choice(earlier) != _choice(machine):
        rows.append(("change", f"replaces the earlier setup: {_choice(earlier)}"))
    rows += [("note", note) for note in machine.notes]
    heading = machine.name if machine.virtual_of is None else f"a virtual {machine.virtual_of}"
    return Card(f"This notebook uses {heading}", tuple(rows), real=machine.virtual_of is None)


def _choice(machine: Machine) -> str:
    """Return the choice without the host's names, since a virtual card may show it."""
    return f"the real GPU ({machine.device})" if machine.virtual_of is None else f"a virtual {machine.virtual_of}"
