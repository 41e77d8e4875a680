"""`Plan`, the result of `gpulab.plan()`: a frozen dataclass with text table and picture.

It only formats numbers; no torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..pictures import display
from ..units import in_mib

if TYPE_CHECKING:
    from .peak_line import Where

# attribute -> name in tables and pictures
CATEGORIES: Mapping[str, str] = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "data": "data",
    "temporaries": "temporaries",
    "workspaces": "workspaces",
    "communication": "communication",
}

_ANSWERS = (("fits on", True, ""), ("not on", False, ""), ("perhaps on", None, " (plan for it)"))


@dataclass(frozen=True, repr=False)
class Plan:
    """The memory and time of one training step with `batch` on a `gpu`; every number of bytes and seconds is virtual.

    At the moment of the step when most is allocated, in bytes; together they are `peak_allocated`:

    - `weights`: parameters and buffers of all modules, and other tensors with `requires_grad`; tied ones once
    - `gradients`: tensors that are, or become, the `.grad` of these
    - `optimizer_state`: tensors in the state of the optimizers
    - `activations`: tensors of the forward pass kept for a backward pass, by autograd or by variables of the step
      (the outputs, the loss); copies of weights that autocast makes, too
    - `data`: tensors that the step copies to the GPU or creates there (the batch, masks), and others that existed when
      the step began
    - `temporaries`: results on their way, such as the gradients of activations or an optimizer's intermediate results
    - `workspaces`: temporary memory of kernels (cuBLAS, cuDNN, reductions)
    - `communication`: with several ranks, memory that is sent and received and is none of the above: buckets of
      DistributedDataParallel, gathered parts of parameters, gradients that are being reduced

    `peak_reserved` is the most that PyTorch's allocator has held since build began, `context` the CUDA context outside
    of it (an assumption), `total` both, as `nvidia-smi` would show. `memory` is the GPU's, `free` the rest of it, below
    0 where that much is missing. `fits` is True if build and the steps run on this GPU without an error, its allocator
    releasing cached memory. Otherwise the numbers are those of a larger GPU of the same kind.

    `step_ms` is the time of a steady step by the GPU's clock, without the host's work between its launches (reading
    data, say). `gpu_busy` is the part of it, 0 to 1, in which kernels run, collectives included. `fits_on` maps each
    known GPU to True if this step, with the memory it takes here, would fit there, False if not, None where only a plan
    for that GPU can tell. `where` and `largest_batch` are None unless they were requested; `notes` say if the largest
    batch could not be found.

    With several `ranks` on the topology `joined`, `batch` and all else is one rank's. Of a step, collectives run for
    `communication_ms`, in `exposed_ms` of them no kernel runs beside them, and `sent` bytes go through them. One GPU
    takes `alone_ms` for the same build where DistributedDataParallel does nothing, as in a script without it, and
    `ddp_alone_ms` with its buckets and copies: None where it does not run on one, as `notes` then say. Sharding (FSDP)
    stays active in both, with one rank.
    """

    gpu: str
    batch: int
    fits: bool
    memory: int
    context: int
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    data: int
    temporaries: int
    workspaces: int
    peak_allocated: int
    peak_reserved: int
    step_ms: float
    gpu_busy: float
    rates: str
    fits_on: Mapping[str, bool | None]
    where: Where | None = None
    largest_batch: int | None = None
    tried: Mapping[int, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    communication: int = 0
    ranks: int = 1
    joined: str = ""
    communication_ms: float = 0.0
    exposed_ms: float = 0.0
    alone_ms: float | None = None
    ddp_alone_ms: float | None = None
    sent: int = 0

    @property
    def categories(self) -> dict[str, int]:
        """Bytes by category at the peak, in the order of the table; their sum is `peak_allocated`."""
        return {name: getattr(self, name) for name in CATEGORIES}

    @property
    def total(self) -> int:
        return self.peak_reserved + self.context

    @property
    def free(self) -> int:
        return self.memory - self.total

    @property
    def samples_per_second(self) -> float:
        """`batch`, of all ranks, over the time of a step; 0 for a step that gives the GPU nothing to do."""
        return self.ranks * self.batch / self.step_ms * 1000 if self.step_ms else 0.0

    @property
    def scaling(self) -> float | None:
        """Throughput of all ranks over that of one GPU, each with `batch`; None where that is not known.

        `ranks` would be perfect (weak scaling); the one GPU runs the same build without DistributedDataParallel.
        """
        return self.ranks * self.alone_ms / self.step_ms if self.alone_ms is not None and self.step_ms else None

    @property
    def _a_gpu(self) -> str:
        return f"{'an' if self.gpu[0] in 'AHLR' else 'a'} {self.gpu}"  # as the letters are spoken

    @property
    def finding(self) -> str:
        """State in one sentence whether the batch fits."""
        if self.fits:
            return f"Batch {self.batch:,} fits on {self._a_gpu}, with {in_mib(self.free)} MiB to spare"
        return f"Batch {self.batch:,} does not fit on {self._a_gpu}: {in_mib(-self.free)} MiB are missing"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return (
            f"<Plan for batch {self.batch} on {self._a_gpu}: {fits}, {in_mib(self.total)} of "
            f"{in_mib(self.memory)} MiB, {self.step_ms:,.1f} ms a step, virtual>"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return display.bundle(str(self), svg=self._svg())

    def show(self) -> None:
        """Show text and picture in a notebook, the text in a terminal."""
        display.show(str(self), svg=self._svg())

    def _svg(self) -> str:
        from ..pictures.style import scale
        from .picture import draw_plan

        note = "Virtual. At the moment of the step when most is allocated; what is reserved, at any time."
        return draw_plan(self).text(note=note, scale=scale())

    def rows(self) -> list[tuple[str, int]]:
        """Return name and bytes: the categories, then unallocated reserve and context."""
        return [
            *((CATEGORIES[name], nbytes) for name, nbytes in self.categories.items() if self._shown(name)),
            ("reserved, not allocated", self.peak_reserved - self.peak_allocated),
            ("CUDA context", self.context),
        ]

    def _shown(self, category: str) -> bool:
        return category != "communication" or self.ranks > 1 or self.communication > 0

    def describe(self) -> str:
        """Describe the plan in sentences, as alternative text of the picture."""
        parts = ", ".join(f"{name} {in_mib(nbytes)}" for name, nbytes in self.rows())
        return f"{self.finding}. MiB, virtual: {parts}; together {in_mib(self.total)} of {in_mib(self.memory)}."

    def _lines(self) -> Iterator[str]:
        yield self.finding + " (all numbers virtual)."
        yield ""
        yield f"{'at the peak of a step':<34}{'MiB':>12}"
        *inside, reserve, context = self.rows()
        for name, nbytes in inside:
            yield f"  {name:<32}{in_mib(nbytes):>12}"
        yield f"{'allocated':<34}{in_mib(self.peak_allocated):>12}"
        for name, nbytes in (reserve, context):
            yield f"  {name:<32}{in_mib(nbytes):>12}"
        yield f"{'in use':<34}{in_mib(self.total):>12}"
        yield f"{f'of the {self.gpu}' + chr(39) + 's memory':<34}{in_mib(self.memory):>12}"
        yield ""
        yield (
            f"step         {self.step_ms:,.1f} ms, kernels running {self.gpu_busy:.0%} of it, "
            f"{self.samples_per_second:,.1f} samples/s ({self.rates})"
        )
        if self.ranks > 1:
            yield f"ranks        {self.ranks}: {self.joined}"
            yield (
                f"between them {self.communication_ms:,.2f} ms of a step, {self.exposed_ms:,.2f} ms of it exposed; "
                f"{in_mib(self.sent)} MiB go through collectives"
            )
            if self.scaling is not None:
                with_ddp = "" if self.ddp_alone_ms == self.alone_ms else f", {self.ddp_alone_ms:,.1f} ms with DDP"
                yield f"scaling      {self.scaling:,.2f} times one GPU with a step of {self.alone_ms:,.1f} ms{with_ddp}"
        if self.where is not None:
            first, *further = str(self.where).splitlines()
            yield f"peak         {first}"
            yield from (" " * 13 + line.strip() for line in further)
        for label, answer, more in _ANSWERS:
            gpus = ", ".join(name for name, fits in self.fits_on.items() if fits is answer)
            if gpus:
                yield f"{label:<13}{gpus}{more}"
        if self.largest_batch is not None:
            found = f"batch {self.largest_batch:,}" if self.largest_batch else "not even batch 1 fits"
            yield f"largest      {found} ({len(self.tried)} tried)"
        for note in self.notes:
            yield textwrap.fill(note, 100, initial_indent=f"{'note':<13}", subsequent_indent=" " * 13)
