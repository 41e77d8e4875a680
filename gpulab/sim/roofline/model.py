"""Five operations on one GPU: their arithmetic, their bytes, and the time that the virtual GPU's clock gives them.

The formulas are the clock's own (`virtualgpu.clock.work`, `rates`); here are only the shapes. Forward passes, no
gradients kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from virtualgpu.clock import limits, rates, work
from virtualgpu.clock.rates import Rates, Tiling
from virtualgpu.gpus.specs import SPECS, Spec

from ..base.simulator import Result, Row
from ..base.words import article, count, duration, many, percent, size

OPERATIONS = {
    "matmul": "matrix product",
    "layer_norm": "layer norm",
    "gelu": "GELU",
    "attention": "attention",
    "conv": "convolution",
}
DTYPES = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}
HEAD = 64  # width of an attention head
IMAGE = 64  # pixels in a line of the convolution's image
WINDOW = 3
# Operations per element, counted by hand: layer norm's mean 1, variance 3, normalising 2, scale and shift 2; GELU's
# two products, one sum, one halving, and erf as one. The clock leaves them out: they never decide.
BY_HAND = {"layer_norm": 8, "gelu": 5}
ROWS = tuple(2**i for i in range(15))  # at which the selected operation is looked at too
VERDICTS = {"arithmetic": "compute-bound", "memory": "memory-bound", "least time": "launch-bound"}
# What attention returns beside its result: a state of the random numbers, and flash attention's sums by row.
STATE, FLASH_STATE = 16, 24
RECORDED, VIRTUAL = "recorded: data sheet", "virtual"


@dataclass(frozen=True)
class Operation:
    """One operation; times in seconds. `least` is what its kernels take at least, `busy` what they take beyond."""

    name: str
    shape: str
    flops: float
    nbytes: int  # read and written, copies to another layout included
    arithmetic: float
    memory: float
    least: float
    busy: float
    copies: float = 0.0  # part of `memory`: to another layout
    kernels: int = 1
    tiling: Tiling | None = None

    @property
    def words(self) -> str:
        return OPERATIONS[self.name]

    @property
    def seconds(self) -> float:
        return self.busy + self.least

    @property
    def intensity(self) -> float:
        """Operations per byte moved."""
        return self.flops / self.nbytes

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds

    @property
    def bound(self) -> str:
        """What takes most of the time: "arithmetic", "memory" or "least time"."""
        if self.least >= max(self.arithmetic, self.memory):
            return "least time"
        return "arithmetic" if self.arithmetic > self.memory else "memory"

    @property
    def verdict(self) -> str:
        """The same in words."""
        return VERDICTS[self.bound]


@dataclass(frozen=True)
class Roofs(Result):
    """A GPU's two roofs in one dtype, what its data sheet says and what it reaches, and the operations below."""

    gpu: str
    dtype: str
    selected: str
    size: int  # its rows
    operations: Mapping[str, Operation]
    by_rows: Mapping[int, Operation]  # the selected one with fewer and more rows, and with its own

    @property
    def operation(self) -> Operation:
        return self.operations[self.selected]

    @property
    def spec(self) -> Spec:
        return SPECS[self.gpu]

    @property
    def rates(self) -> Rates:
        return rates.rates_of(self.gpu)

    @property
    def peak_dtype(self) -> str:
        """The dtype whose rate in the data sheet applies: FP32 where the GPU has none for this one."""
        return self.dtype if self.has_dtype and self.spec.tflops[self.dtype] else "fp32"

    @property
    def peak(self) -> float:
        """Operations per second."""
        return (self.spec.tflops[self.peak_dtype] or 0) * 1e12

    @property
    def reached(self) -> float:
        """Operations per second of a large product."""
        return self.rates.tflops[self.dtype] * 1e12

    @property
    def balance(self) -> float:
        """Operations per byte from which arithmetic takes longer than memory, at the rates reached."""
        return self.reached / self.rates.memory_rate

    @property
    def sheet_balance(self) -> float:
        """The same by the data sheet."""
        return self.peak / (self.spec.bandwidth_gbps * 1e9)

    @property
    def finding(self) -> str:
        op, kind, gpu = self.operation, DTYPES[self.dtype], article(self.gpu)
        name = f"This {op.words}"
        if op.bound == "least time":
            least = "a kernel takes" if op.kernels == 1 else f"{op.kernels} kernels take"
            whole, part = duration(op.seconds), duration(op.least)
            of = f"{part} of its {whole}" if part != whole else f"its {whole}"
            return f"{name} is too small for {gpu}: {of} are the least that {least}"
        if op.bound == "memory" and op.intensity >= self.balance:
            found = f"{name} is memory-bound: its reads and writes take longer than its arithmetic"
        elif op.bound == "memory":
            found = (
                f"{name} is memory-bound: {digits(op.intensity)} FLOP per byte where {gpu} needs {digits(self.balance)}"
            )
        else:
            found = f"{name} is compute-bound: {percent(op.rate / self.peak)} of the {DTYPES[self.peak_dtype]} peak"
        gelu = self.operations["gelu"]
        if self.peak_dtype != self.dtype:
            found += f"; {f'no {kind} peak is published' if self.has_dtype else f'{gpu} has no {kind} units'}"
        elif op.bound == "arithmetic" and op.tiling and op.flops / op.arithmetic < 0.8 * self.reached:
            tiles, sms = op.tiling.tiles * op.tiling.splits, self.spec.sms
            uneven = f"do not come out even on {sms} SMs" if tiles > sms else f"leave some of {sms} SMs idle"
            found += f"; its {tiles:,} tiles {uneven}"
        elif op.bound == "arithmetic" and op.name == "matmul" and gelu.bound == "memory":
            found += f"; GELU: {percent(gelu.rate / self.peak)}"
        return found

    @property
    def has_dtype(self) -> bool:
        return self.spec.has(self.dtype)

    @property
    def full(self) -> float:
        """Part of the SMs' turns that have a tile of the selected operation to work on; 1 where there are no tiles."""
        tiling = self.operation.tiling
        return tiling.tiles * tiling.splits / (tiling.waves * self.spec.sms) if tiling else 1.0

    @property
    def tiles(self) -> str:
        """How the selected operation is shared out among the SMs."""
        tiling, sms = self.operation.tiling, self.spec.sms
        if tiling is None:
            return ""
        parts = f", each in {tiling.splits} along the depth" if tiling.splits > 1 else ""
        return (
            f"{many(tiling.tiles, 'tile')} of {tiling.height} × {tiling.width}{parts} on {sms} SMs:"
            f" {many(tiling.waves, 'wave')}, {percent(self.full)} full"
        )

    def rows(self) -> list[Row]:
        op, kind = self.operation, DTYPES[self.dtype]
        found = [
            ("operation", f"{op.words}, {op.shape}", ""),
            ("arithmetic", flop(op.flops), ""),
            ("memory traffic", size(op.nbytes) if op.nbytes >= 2**20 else f"{op.nbytes:,} bytes", ""),
            ("intensity", f"{digits(op.intensity)} FLOP per byte", ""),
            (f"balance of the {self.gpu}, as reached", f"{digits(self.balance)} FLOP per byte", VIRTUAL),
            ("balance by its data sheet", f"{digits(self.sheet_balance)} FLOP per byte", RECORDED),
            ("time", duration(op.seconds), f"{VIRTUAL}: {self.rates.source}"),
            ("waits for", op.verdict, VIRTUAL),
            ("reached", rate(op.rate), VIRTUAL),
            (f"{DTYPES[self.peak_dtype]} peak", rate(self.peak), RECORDED),
            (f"{kind}, large products reach", rate(self.reached), VIRTUAL),
            ("memory, peak", f"{self.spec.bandwidth_gbps:.0f} GB/s", RECORDED),
            ("memory, reached", f"{self.rates.memory_gbps:.0f} GB/s", VIRTUAL),
        ]
        if op.tiling:
            found.append(("tiles", self.tiles, VIRTUAL))
        if op.copies:
            found.append(("copies to channels last", f"{duration(op.copies)} of the time", VIRTUAL))
        if op.kernels > 1:
            found.append(("kernels", f"{op.kernels}, as nothing fused takes {kind} on a {self.gpu}", VIRTUAL))
        found += [
            (other.words, f"{duration(other.seconds)}, {other.verdict}", VIRTUAL)
            for other in self.operations.values()
            if other is not op
        ]
        return found


def simulate(gpu: str, dtype: str, op: str, rows: int, columns: int, depth: int, channels_last: bool) -> Roofs:
    """The five operations at these sizes; "tf32" is float32 with TF32 allowed.

    A product of (rows, depth) and (depth, columns); layer norm and GELU over (rows, columns); attention of `rows`
    tokens in heads of 64 that make up `columns`; a 3 × 3 convolution of an image of about `rows` pixels, from `depth`
    to `columns` channels.
    """
    reached = rates.rates_of(gpu)
    width = 4 if dtype in ("fp32", "tf32") else 2
    used = "fp32" if dtype == "tf32" and not SPECS[gpu].has("tf32") else dtype
    makers: dict[str, Callable[[int], Operation]] = {
        "matmul": lambda rows: _product(reached, used, width, rows, columns, depth),
        "layer_norm": lambda rows: _elementwise(reached, "layer_norm", width, rows, columns),
        "gelu": lambda rows: _elementwise(reached, "gelu", width, rows, columns),
        "attention": lambda rows: _attention(SPECS[gpu], reached, used, width, rows, heads(columns)),
        "conv": lambda rows: _convolution(reached, used, width, rows, columns, depth, channels_last),
    }
    by_rows = {number: makers[op](number) for number in sorted({*ROWS, rows})}
    return Roofs(gpu, dtype, op, rows, {name: make(rows) for name, make in makers.items()}, by_rows)


def heads(columns: int) -> int:
    """Attention heads of 64 that a width of `columns` makes, at least one."""
    return max(1, columns // HEAD)


def image(rows: int) -> tuple[int, int]:
    """Height and width of the image for a convolution over about `rows` positions."""
    return (1, rows) if rows < IMAGE else (-(-rows // IMAGE), IMAGE)


def _product(reached: Rates, dtype: str, width: int, rows: int, columns: int, depth: int) -> Operation:
    nbytes = width * (rows * depth + depth * columns + rows * columns)
    aligned = _aligned(width * depth, width * columns)
    found = work.product(reached, rows, columns, depth, 1, dtype, reached.memory_seconds(nbytes), aligned)
    shape = f"{rows:,} × {depth:,} by {depth:,} × {columns:,}"
    tiling = reached.tiling(rows, columns, depth, 1, dtype, aligned)
    return _operation(reached, "matmul", shape, [(found, nbytes)], tiling)


def _aligned(*widths: int) -> int:
    """The power of two of bytes, up to 16, at which all rows of so many bytes begin."""
    return min(16, *(width & -width for width in widths))


def _elementwise(reached: Rates, name: str, width: int, rows: int, columns: int) -> Operation:
    elements = rows * columns
    nbytes, beside = 2 * width * elements, 0.0
    if name == "layer_norm":
        nbytes += 2 * width * columns + 2 * 4 * rows  # weight and bias; mean and deviation of each row, in float32
        beside = limits.layer_norm(reached, rows)
    found = work.Work(0.0, reached.memory_seconds(nbytes) + beside, float(BY_HAND[name] * elements))
    return _operation(reached, name, f"{rows:,} × {columns:,} elements", [(found, nbytes)])


def _attention(spec: Spec, reached: Rates, dtype: str, width: int, tokens: int, number: int) -> Operation:
    elements = tokens * number * HEAD
    scores = number * tokens * tokens
    flops = 4.0 * scores * HEAD
    shape = f"{many(tokens, 'token')}, {count(number, 'head')} of {HEAD}"
    ampere = spec.capability >= (8, 0)
    if dtype == "bf16" and not ampere:
        return _operation(reached, "attention", shape, _unfused(reached, tokens, number))
    nbytes, share = 4 * width * elements + STATE, work.EFFICIENT
    if width == 2 and ampere:  # cuDNN's kernels from Hopper on, flash attention's before
        if spec.capability not in ((9, 0), (10, 0)) or tokens == 1:  # which cuDNN refuses
            nbytes += 4 * tokens * number + FLASH_STATE - STATE
        moving = reached.memory_seconds(nbytes)
        flash = work.flash_attention(reached, number, tokens, tokens, HEAD, dtype, flops, moving)
        return _operation(reached, "attention", shape, [(flash, nbytes)])
    found = work.attention(reached, flops, dtype, share, reached.memory_seconds(nbytes))
    return _operation(reached, "attention", shape, [(found, nbytes)])


def _unfused(reached: Rates, tokens: int, number: int) -> list[tuple[work.Work, int]]:
    """The kernels of PyTorch's own attention in 16 bits: in float32, with every score written to memory."""
    elements, scores = tokens * number * HEAD, number * tokens * tokens
    moved = [6 * elements] * 3 + [8 * elements] * 2 + [8 * scores, 6 * scores, 6 * elements]  # casts, scales, softmax
    kernels = [(work.Work(0.0, reached.memory_seconds(nbytes), 0.0), nbytes) for nbytes in moved]
    for columns, depth in ((tokens, HEAD), (HEAD, tokens)):
        nbytes = 8 * elements + 4 * scores
        moving = reached.memory_seconds(nbytes)
        kernels.append((work.product(reached, tokens, columns, depth, number, "fp32", moving), nbytes))
    return kernels


def _convolution(
    reached: Rates, dtype: str, width: int, rows: int, columns: int, depth: int, channels_last: bool
) -> Operation:
    high, wide = image(rows)
    tensor, weight, out = (1, depth, high, wide), (columns, depth, WINDOW, WINDOW), (1, columns, high, wide)
    into, made = width * high * wide * depth, width * high * wide * columns
    nbytes = into + made + width * columns * depth * WINDOW**2
    # One pixel is the same in both layouts, and torch calls it contiguous: it is copied all the same.
    plain = into + made if not channels_last or high * wide == 1 else 0
    parts = work.convolution_parts(reached, tensor, weight, out, dtype)
    found = work.convolution(reached, parts, dtype, reached.memory_seconds(nbytes), plain)
    copied = 2 * plain if found.copies else 0
    product = work.convolution_products(tensor, weight, out)["small"]
    shape = f"{high:,} × {wide:,} pixels, {depth:,} to {columns:,} channels"
    return _operation(reached, "conv", shape, [(found, nbytes + copied)], reached.tiling(*product, 1, dtype))


def _operation(
    reached: Rates, name: str, shape: str, kernels: Sequence[tuple[work.Work, int]], tiling: Tiling | None = None
) -> Operation:
    done = [kernel for kernel, _ in kernels]
    return Operation(
        name=name,
        shape=shape,
        flops=sum(kernel.flops for kernel in done),
        nbytes=sum(nbytes for _, nbytes in kernels),
        arithmetic=sum(kernel.arithmetic for kernel in done),
        memory=sum(kernel.memory + kernel.copies for kernel in done),
        least=reached.kernel_s * len(done),
        busy=sum(kernel.seconds for kernel in done),
        copies=sum(kernel.copies for kernel in done),
        kernels=len(done),
        tiling=tiling,
    )


def digits(number: float) -> str:
    """A number to two or three digits: `0.25`, `3.4`, `223`, `5,461`."""
    if number >= 9.95:
        return f"{number:,.0f}"
    return f"{number:.2g}"


def flop(number: float) -> str:
    """`137 GFLOP`."""
    larger = (("TFLOP", 1e12), ("GFLOP", 1e9))
    unit, factor = next((pair for pair in larger if number >= 0.9995 * pair[1]), ("MFLOP", 1e6))
    return f"{digits(number / factor)} {unit}"


def rate(per_second: float) -> str:
    """`47 TFLOP/s`."""
    return f"{flop(per_second)}/s"
