"""Commands such as `weights to GPU`, and what is known after them: which tensor lies where, and each line's cost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import prod

from virtualgpu.clock.rates import PAGEABLE, Rates, rates_of
from virtualgpu.gpus.specs import PCIE3, PCIE4, PCIE5, SHOWN, Link
from virtualgpu.memory.blocks import Block
from virtualgpu.memory.out_of_memory import OutOfMemory

SHAPES = {"input_data": (32, 3, 224, 224), "weights": (512, 512), "bias": (512,)}
BYTES = {name: 4 * prod(shape) for name, shape in SHAPES.items()}  # float32
PARAMETERS = {"weights": "weight", "bias": "bias"}  # their names in a Linear layer
SLOTS = {3: PCIE3, 4: PCIE4, 5: PCIE5}
GPUS = {name: gpu for name, gpu in SHOWN.items() if gpu.host_link}
MOST_COMMANDS = 40

_COMMAND = re.compile(r"(?:(?P<name>\w+)\s+to\s+(?P<where>GPU|CPU)|del\s+(?P<gone>\w+)|(?P<sum>weights\s*\+\s*bias))$")
_KNOWN = (
    "Known: NAME to GPU, NAME to CPU, del NAME, weights + bias; NAME is input_data, weights, bias or all,"
    " and for del the name of a copy, such as bias_gpu, too"
)


@dataclass(frozen=True)
class Command:
    """`verb` is "GPU", "CPU", "del" or "+"."""

    verb: str
    name: str = ""

    def __str__(self) -> str:
        return {"del": f"del {self.name}", "+": "weights + bias"}.get(self.verb, f"{self.name} to {self.verb}")


def read(text: str) -> list[Command]:
    """The commands in `text`, apart by ; or lines, `all` being one for each tensor; ValueError for another word."""
    found = []
    for part in filter(None, map(str.strip, re.split(r"[;\n]", text))):
        match = _COMMAND.match(part)
        name = match and (match["name"] or match["gone"])
        copies = () if not match or match["where"] else [f"{each}_gpu" for each in SHAPES]
        if not match or (name and name not in (*SHAPES, *copies, "all")):
            raise ValueError(f"{part!r} is no command. {_KNOWN}.")
        verb = match["where"] or ("del" if name else "+")
        found += [Command(verb, each) for each in (SHAPES if name == "all" else [name or ""])]
    if len(found) > MOST_COMMANDS:
        raise ValueError(f"{len(found)} commands; there may be up to {MOST_COMMANDS}.")
    return found


@dataclass(frozen=True)
class Line:
    """A line of the console, and what it did. Times in seconds."""

    code: str
    way: str = ""  # of a copy: "to GPU" or "to host"
    nbytes: int = 0  # copied
    copies: int = 0
    copy: float = 0.0  # what the bus was busy for
    pinned: bool = False  # all of the host's side of it
    began: float = 0.0
    call: float | None = None  # until the host went on; None where no GPU is in it
    error: str = ""  # Python's last line
    kind: str = ""  # made, pinned, copied, there (already), freed, run, run there (on the host), name, device, memory


@dataclass(frozen=True)
class Held:
    """A tensor where it lies: on the host, where it may be pinned, or in a block of the GPU's memory."""

    name: str
    shape: tuple[int, ...]
    pinned: bool = False
    block: Block | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True)
class Outcome:
    """What there is after the last command, and all lines up to it."""

    host: tuple[Held, ...]
    gpu: tuple[Held, ...]
    lines: tuple[Line, ...]
    reserved: int  # by the allocator, for these tensors
    free: int  # on the GPU, for anybody
    rates: Rates
    link: Link
    bus: tuple[tuple[float, float], ...]  # when each copy began and ended
    finished: float  # when the GPU has done everything
    went_on: float  # when the host had made its last call
    shortage: OutOfMemory | None = None  # of the last command


def link_of(gpu: str, slot: int) -> Link:
    """The slower of the GPU's own link and its slot."""
    own = GPUS[gpu].host_link
    assert own is not None  # GPUS are those that have one
    return min(own, SLOTS[slot], key=lambda link: link.both_ways_gbps)


def rates_over(gpu: str, link: Link) -> Rates:
    """What the GPU reaches, its copies slowed down as `link` is slower than its own; pageable ones where they wait for
    the link, not for the host."""
    rates, own = rates_of(gpu), GPUS[gpu].host_link
    assert own is not None
    slower = link.both_ways_gbps / own.both_ways_gbps
    pinned = rates.pinned_gbps * slower
    return replace(rates, pinned_gbps=pinned, pageable_gbps=min(rates.pageable_gbps, PAGEABLE * pinned))
