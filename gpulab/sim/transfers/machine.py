"""Three tensors, host memory, a GPU and the bus between them, while commands run.

Memory goes through the virtual GPU's allocator and time through its clock, so both are those of a virtual GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from virtualgpu.clock.clock import Clock, Span
from virtualgpu.clock.rates import Rates
from virtualgpu.gpus.specs import Link
from virtualgpu.memory.blocks import STEP, Block
from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory

from .model import BYTES, PARAMETERS, SHAPES, Command, Held, Line, Outcome

CONTEXT_BYTES = 300 << 20  # as the virtual GPU's


class _Refused(Exception):
    """A line of Python that raised; `kind` says what sort of refusal it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass
class Machine:
    """Both memories and the clock, while commands run on a GPU that a model has filled up to `room` MiB.

    `assign` says what becomes of a copy: it gets a "new" name, or the "same" one, or weights and bias belong to a
    "module", which moves as a whole.
    """

    memory_bytes: int
    rates: Rates
    room: int
    assign: str
    non_blocking: bool
    names: dict[str, Held] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    code: str = ""  # of the command that is run

    def __post_init__(self) -> None:
        full, rest = divmod(self.memory_bytes - CONTEXT_BYTES - (self.room << 20), STEP)
        full *= STEP  # a model is whole segments; the rest counts as the context's, so that what is asked is free
        self.allocator = CachingAllocator(self.memory_bytes, context_bytes=CONTEXT_BYTES + rest)
        self.allocator.allocate(full)
        self.model_bytes = full
        self.calls = self.allocator.memory.calls
        self.clock = Clock(1, self.rates)
        self.clock.record = self.spans
        self.gpu = self.clock.devices[0]
        self.locked: list[int] = []  # page-locked memory that nothing holds any more, which PyTorch keeps
        self.shortage: OutOfMemory | None = None

    def make(self, pinned: bool) -> None:
        """The three tensors on the host."""
        for name, shape in SHAPES.items():
            if self.assign == "module" and name in PARAMETERS:
                self.names[name] = Held(f"layer.{PARAMETERS[name]}", shape)
                if name == "weights":
                    self.lines.append(Line("layer = nn.Linear(512, 512)", kind="made"))
                continue
            began = self.clock.host
            self.names[name] = Held(name, shape, pinned=pinned)
            if pinned:
                self._pin(BYTES[name])
            code = f"{name} = torch.randn({', '.join(map(str, shape))}){'.pin_memory()' if pinned else ''}"
            call = self.clock.host - began if pinned else None
            self.lines.append(Line(code, call=call, kind="pinned" if pinned else "made"))

    def run(self, command: Command) -> None:
        began = self.clock.host
        self.shortage = None
        try:
            if command.verb == "+":
                line = self._add()
            elif command.verb == "del":
                line = self._delete(command.name)
            else:
                line = self._move(command.name, to_gpu=command.verb == "GPU")
        except _Refused as error:
            line = Line("", error=str(error), kind=error.kind)
        timed = line.kind in ("copied", "run")
        call = self.clock.host - began if timed else None
        self.lines.append(replace(line, code=self.code, began=began, call=call))

    def _move(self, name: str, *, to_gpu: bool) -> Line:
        options = f'"{"cuda" if to_gpu else "cpu"}"{", non_blocking=True" if self.non_blocking else ""}'
        if self.assign == "module" and name in PARAMETERS:
            self.code = f"layer.to({options})"
            there = [key for key in PARAMETERS if key in self.names]
            moved = [self._copy(key, key, to_gpu) for key in there if (self.names[key].block is None) == to_gpu]
        else:
            source, target = name, name
            if self.assign == "new":
                source = name if to_gpu or f"{name}_gpu" not in self.names else f"{name}_gpu"
                target = f"{name}_gpu" if to_gpu else name
            self.code = f"{target} = {source}.to({options})"
            moved = [self._copy(source, target, to_gpu)] if (self._find(source).block is None) == to_gpu else []
        if not moved:
            return Line("", kind="there")
        nbytes, seconds, pinned = zip(*moved, strict=True)
        way = "to GPU" if to_gpu else "to host"
        return Line("", way, sum(nbytes), len(moved), sum(seconds), all(pinned), kind="copied")

    def _copy(self, source: str, target: str, to_gpu: bool) -> tuple[int, float, bool]:
        """Copy a tensor and give its name to the copy: bytes, seconds on the bus, whether pinned."""
        tensor = self.names[source]
        label = target if "." not in tensor.name else tensor.name
        nbytes = tensor.nbytes
        if to_gpu:
            copy, pinned = Held(label, tensor.shape, block=self._allocate(nbytes)), tensor.pinned
        else:
            pinned = self.non_blocking  # PyTorch then takes pinned memory for the copy
            copy = Held(label, tensor.shape, pinned=pinned)
            if pinned:
                self._pin(nbytes, copied=False)
        way = "to GPU" if to_gpu else "to host"
        self.gpu.copy(0, nbytes, way, pinned=pinned, wait=not self.non_blocking)
        self._bind(target, copy)
        rate = self.rates.pinned_gbps if pinned else self.rates.pageable_gbps
        return nbytes, self.rates.copy_us * 1e-6 + nbytes / (rate * 1e9), pinned

    def _delete(self, name: str) -> Line:
        if self.assign == "new" and name not in self.names and f"{name}_gpu" in self.names:
            name = f"{name}_gpu"
        module = self.assign == "module" and name in PARAMETERS
        self.code = f"del layer.{PARAMETERS[name]}" if module else f"del {name}"
        self._drop(self._find(name))
        del self.names[name]
        return Line("", kind="freed")

    def _find(self, name: str) -> Held:
        if name in self.names:
            return self.names[name]
        if self.assign == "module" and name in PARAMETERS:
            raise _Refused("name", f"AttributeError: 'Linear' object has no attribute '{PARAMETERS[name]}'")
        raise _Refused("name", f"NameError: name '{name}' is not defined")

    def _add(self) -> Line:
        if self.assign == "module":
            used = ["weights", "bias"]
            self.code = "out = layer.weight + layer.bias"
        else:
            used = [f"{key}_gpu" if f"{key}_gpu" in self.names else key for key in PARAMETERS]
            self.code = f"out = {' + '.join(used)}"
        one, two = map(self._find, used)
        if (one.block is None) != (two.block is None):
            raise _Refused(
                "device",
                "RuntimeError: Expected all tensors to be on the same device, but found at least two devices,"
                " cuda:0 and cpu!",
            )
        if one.block is None:
            self._bind("out", Held("out", one.shape))
            return Line("", kind="run there")
        out = Held("out", one.shape, block=self._allocate(one.nbytes))
        moved = one.nbytes + two.nbytes + out.nbytes
        self.gpu.kernel(0, self.rates.memory_seconds(moved) + self.rates.kernel_s, "add")
        self._bind("out", out)
        return Line("", kind="run")

    def _allocate(self, nbytes: int) -> Block | None:
        try:
            block = self.allocator.allocate(nbytes)
        except OutOfMemory as error:
            self.shortage = error
            raise _Refused("memory", f"torch.OutOfMemoryError: {error}") from None
        calls = self.allocator.memory.calls
        self.clock.spend((calls - self.calls) * self.rates.malloc_us * 1e-6)
        self.calls = calls
        return block

    def _pin(self, nbytes: int, *, copied: bool = True) -> None:
        """The host's time for page-locked memory, as the virtual GPU counts it."""
        size = 1 << (nbytes - 1).bit_length()
        if size in self.locked:
            self.locked.remove(size)
            self.clock.spend(nbytes / (self.rates.host_copy_gbps * 1e9) if copied else 0.0)
        else:
            self.clock.spend(self.rates.malloc_us * 1e-6 + nbytes / (self.rates.pin_gbps * 1e9))

    def _bind(self, name: str, tensor: Held) -> None:
        """Give a name to a tensor; what had it is gone, since nothing else refers to it."""
        before = self.names.get(name)
        self.names[name] = tensor
        if before is not None:
            self._drop(before)

    def _drop(self, tensor: Held) -> None:
        self.allocator.free(tensor.block)
        if tensor.pinned:
            self.locked.append(1 << (tensor.nbytes - 1).bit_length())

    def outcome(self, link: Link) -> Outcome:
        tensors = sorted(self.names.values(), key=lambda tensor: order(tensor.name))
        return Outcome(
            host=tuple(tensor for tensor in tensors if tensor.block is None),
            gpu=tuple(tensor for tensor in tensors if tensor.block is not None),
            lines=tuple(self.lines),
            reserved=self.allocator.statistics.current("reserved_bytes") - self.model_bytes,
            free=self.allocator.memory.free_bytes,
            rates=self.rates,
            link=link,
            bus=tuple((span.start, span.start + span.seconds) for span in self.spans if span.where.startswith("to ")),
            finished=max(self.gpu.done, self.clock.host),
            went_on=self.clock.host,
            shortage=self.shortage,
        )


def order(name: str) -> int:
    """input_data, weights, bias, out, whatever each is called now."""
    return next(i for i, part in enumerate(("input", "weight", "bias", "out")) if part in name)
