"""The machine a notebook runs on: `setup()` chooses it, seeds, and shows a card that says what the numbers are.

It chooses and tells; it measures nothing, and finding faults is `doctor`'s work.
"""

from __future__ import annotations

import contextlib
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

from .. import course  # noqa: F401  (it notes the folder in which the notebook began)
from .card import Card, as_html, as_svg, as_text
from .debugger import IN_IT, is_attached

if TYPE_CHECKING:
    import torch

    from virtualgpu.gpu import VirtualGPU

# What torch says where there is no GPU at all, so that nothing need be explained.
_NO_GPU = re.compile("Found no NVIDIA driver|No (CUDA|HIP) GPUs|not compiled with CUDA")


@dataclass(frozen=True, repr=False)
class Machine:
    """What `setup()` chose.

    `device` is where tensors go. `numbers` says what this notebook's bytes and times are. `virtual_of`
    names the GPU that is stood in for, None for a real one. `total_memory` is the GPU's in bytes (for
    Apple's GPU, the most that Metal recommends), None on the CPU. `notes` are sentences for the reader.
    `threads` is how many threads PyTorch computes with on the CPU, and `threads_because` why they are fewer than it
    would take, "" where they are not.
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
        """End the virtual GPU that `setup` put in place; what was on it is on the CPU afterwards."""
        if self.virtual_of is not None:
            _check_within_nothing("close()")
            _end()

    def __repr__(self) -> str:
        return f"<Machine: {self.name}; device {self.device}, numbers {self.numbers}>"


_current: Machine | None = None
_gpu: VirtualGPU | None = None  # the one that `setup` started, while it is in force


def setup(gpu: str | None = None, *, seed: int = 0) -> Machine:
    """Choose the device, seed the random generators, show the machine card, and return the machine.

    On the CPU, PyTorch then computes with no more threads than this process has processors for, counting those that
    other programs keep busy; it never gets more than it had.

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
        machine = _virtual(spec, notes)
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
    card = _card(machine, seed, earlier)
    show(as_text(card), svg=as_svg(card), html=as_html(card))
    return machine


def _in_force() -> VirtualGPU | None:
    """The one of `setup`, or that was lent to this program and that `setup` may replace."""
    return lending.gpu or _gpu


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be a whole number from 0 to 2**32 - 1, not {seed!r} ({type(seed).__name__})")
    number = operator.index(seed)
    if not 0 <= number < 2**32:
        raise ValueError(f"seed must be from 0 to 2**32 - 1 (NumPy takes no other), not {number}")
    return number


def _virtual(name: str, notes: tuple[str, ...] = ()) -> Machine:
    """The virtual GPU `name`. Nothing of the host may enter it but `notes`."""
    import torch

    from virtualgpu.gpus.specs import spec

    gpu = spec(name)
    return Machine(torch.device("cuda", 0), gpu.product, "virtual", name, gpu.memory_bytes, gpu.capability, notes=notes)


def _put_in_force(name: str | None) -> None:
    """Start the virtual GPU `name` unless it runs already; end another one, and any for None."""
    global _gpu
    from virtualgpu.gpu import VirtualGPU
    from virtualgpu.scope import in_force

    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    now = _in_force()
    if now is not None and now.active and now.spec.name == name and (now is lending.gpu or now.count == count):
        return
    _end()
    if in_force.current is not None:
        raise RuntimeError(f"setup() within a block of {in_force.current!r}: end that first")
    if name is not None:
        # PyTorch's profiler logs starts and stops to stderr, and that there is no driver. On a real GPU errors count.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        _gpu = VirtualGPU(name, count=count).start()


def _check_within_nothing(what: str) -> None:
    """Refuse to change the GPU where it is only out of sight: it comes back."""
    from virtualgpu.scope import in_force

    if in_force.suspended:
        raise RuntimeError(f"{what} within a block without {in_force.suspended[-1]!r}: end that first")


def _end() -> None:
    global _gpu
    now = _in_force()
    if now is not None and now.active:
        now.stop()
    _gpu = None
    lending.lend(None)


@contextlib.contextmanager
def _without_virtual() -> Iterator[None]:
    """Ask PyTorch for the GPUs that are really there."""
    now = _in_force()
    if now is None or not now.active:
        yield
        return
    with now.suspended():
        yield


def _auto() -> Machine:
    """The CUDA GPU if a kernel runs on it; else the virtual one, with a note where a GPU is here unused."""
    cuda, trouble = _find_cuda()
    if cuda is not None:
        return _describe(cuda)
    if trouble is not None:
        return _virtual(
            DEFAULT,
            (f"A GPU is here, but cannot be used: {trouble} What to do: python -m gpulab doctor",),
        )
    other = _find_other()
    if other is not None:
        return _virtual(
            DEFAULT,
            (
                f"{_kind(other)} is here: gpulab.setup('real') uses it; "
                "without that the lessons leave it, so that their numbers hold.",
            ),
        )
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
        f"{where}='real' insists on a real GPU, and none works here: {trouble or 'PyTorch finds none.'} "
        "What to do: python -m gpulab doctor. Without a GPU, gpulab.setup('T4') runs every lesson."
    )


def _find_cuda() -> tuple[torch.device | None, str | None]:
    """The CUDA device if it works; else None, with the reason where there is a GPU that should."""
    import torch

    from .diagnosis import driver
    from .diagnosis.pytorch import kernel_trouble

    trouble = kernel_trouble("cuda")
    if trouble is None:
        return torch.device("cuda", torch.cuda.current_device()), None
    if _NO_GPU.search(trouble) and not torch.cuda.is_available():
        here = driver.read()
        if not here.gpus and not here.on_bus:
            return None, None
    return None, _sentence(trouble)


def _find_other() -> torch.device | None:
    """Apple's, Intel's or another maker's GPU, as `torch.accelerator` knows it."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type == "cuda":
        return None
    return torch.device(found.type, torch.accelerator.current_device_index())


def _describe(device: torch.device) -> Machine:
    """A real GPU's name, memory and compute capability."""
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
    """The first sentence of an error, with its full stop."""
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


_threads: tuple[int, int] | None = None  # what PyTorch had by itself, and what `_cap_threads` made of it


def _cap_threads() -> tuple[int, str]:
    """Let PyTorch compute with no more threads than have a processor each: how many, and why they are fewer.

    Beside other programs, every operation would wait for the thread whose processor is taken. A number that somebody
    has chosen is never raised, and one in the environment is left alone.
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
    """What the card says. For a virtual machine it must be the same on every host, notes apart."""
    device = str(machine.device)
    if machine.virtual_of is not None:
        device += f": {machine.name}"
        numbers = (
            "bytes and GPU times are virtual: your own PyTorch calls, counted by the rules of PyTorch's CUDA "
            f"allocator, and timed by a model with {_rates(machine.virtual_of)}. Values are computed on this CPU; "
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


def _rates(name: str) -> str:
    from virtualgpu.clock import rates

    return rates.rates_of(name).source


def _choice(machine: Machine) -> str:
    """What was chosen, without the host's names: a virtual card may show it."""
    return f"the real GPU ({machine.device})" if machine.virtual_of is None else f"a virtual {machine.virtual_of}"
