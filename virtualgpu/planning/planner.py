"""`gpulab.plan()`: predict memory and time of a training step on a GPU that need not exist.

The step runs in shapes-only mode on a virtual GPU of that kind: nothing is computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..choice import DEFAULT, choose
from ..gpus.specs import SPECS, Spec
from ..scope import in_force
from ..units import mib
from .largest_batch import Largest, Trial, search
from .result import Plan

if TYPE_CHECKING:
    from .step_run import Measured, Ranks

_ROOMY = 1 << 50  # bytes: a GPU on which everything fits
_MORE = 1.01  # a higher peak before the steady steps is worth a note from here on


def plan(
    build: Callable[[int], Callable[[], Any]],
    batch: int,
    gpu: str | None = None,
    *,
    where: bool = False,
    largest: bool = False,
    ranks: int | None = None,
    link: str | None = None,
    nodes: int | None = None,
    adapters: int | str | None = None,
) -> Plan:
    """Plan a training step: its memory by category, its time, where it fits.

        def build(batch):
            model = make_model().to("cuda")
            optimizer = torch.optim.AdamW(model.parameters())
            x = torch.randn(batch, 3, 224, 224, device="cuda")

            def step():
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        gpulab.plan(build, batch=32, gpu="A100-40")

    `build(batch)` makes everything the step needs, within it: model, optimizer, data, with ordinary code for `"cuda"`.
    It returns the step, a function without arguments that does one training step. Both run in a scope of their own,
    `VirtualGPU(gpu, compute=False)`, which takes the place of one that is in force: tensors have shapes and no values,
    so the step must not decide on values. Build may be called more than once. `gpu` is a name such as "T4"; without
    it, the virtual GPU in force, else the one that GPULAB_GPU names, else one of the kind of this machine's GPU, else a
    T4.

    The step runs at least three times: once for what the first step allocates, then until its memory repeats.
    `where=True` also finds the line of the step at which the peak is reached. `largest=True` also finds the largest
    batch that fits, with a run for every batch that is tried.

    `ranks` plans the step of one rank of so many, each on such a GPU with `batch` samples of its own: build makes the
    process group as a script does (`torch.distributed.init_process_group("nccl")`, `init_device_mesh`), and wraps or
    shards the model. The other ranks are imagined, equal to this one. `link`, `nodes` and `adapters` say how the GPUs
    are joined (`VirtualGPU`); None is what is usual for such a GPU.

    Raises ValueError or TypeError for an argument that cannot be; what build or step raise passes through.
    """
    if not callable(build):
        raise TypeError(f"build must be a function from a batch size to a step, not {build!r} ({type(build).__name__})")
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"batch must be a whole number such as 32, not {batch!r} ({type(batch).__name__})")
    if batch < 1:
        raise ValueError(f"batch must be 1 or more, not {batch}")
    from . import tensor_roles
    from .step_run import Ranks

    with (
        tensor_roles.existing_objects_protected()
    ):  # all of it is looked through once, and not for each batch that is tried
        return _plan(build, batch, _spec(gpu), Ranks(ranks, link, nodes, adapters), where=where, largest=largest)


def _plan(build: Any, batch: int, spec: Spec, others: Ranks, *, where: bool, largest: bool) -> Plan:
    warned: set[str] = set()
    fits, measured = _measure(build, batch, spec, where=where, warned=warned, ranks=others)
    found = _largest(build, batch, spec, fits, measured, warned, others) if largest else Largest(None, {})
    alone_ms, ddp_alone_ms, why = _alone(build, batch, spec, others)
    notes = (*_notes(measured, fits), *([found.note] if found.note else []), *([why] if why else []))
    seconds = measured.time.seconds
    return Plan(
        gpu=spec.name,
        batch=batch,
        fits=fits,
        memory=spec.memory_bytes,
        context=measured.context,
        **measured.at_peak,
        peak_allocated=measured.peak,
        peak_reserved=measured.in_use - measured.context,
        step_ms=seconds * 1e3,
        gpu_busy=min(1.0, measured.time.busy_seconds / seconds) if seconds else 0.0,
        rates=measured.rates,
        fits_on={name: fits if name == spec.name else _fits(measured, other) for name, other in SPECS.items()},
        where=measured.where,
        largest_batch=found.batch,
        tried=found.tried,
        notes=notes,
        ranks=1 if measured.world is None else measured.world.size,
        joined="" if measured.world is None else measured.world.topology.describe(),
        communication_ms=measured.time.communication.seconds * 1e3,
        exposed_ms=measured.time.communication.exposed * 1e3,
        alone_ms=alone_ms,
        ddp_alone_ms=ddp_alone_ms,
        sent=measured.time.communication.nbytes,
    )


def _spec(gpu: str | None) -> Spec:
    if gpu is None and in_force.current is not None:
        return in_force.current.spec
    mode, name = choose(gpu)
    if gpu is not None and mode != "virtual":
        raise ValueError(f"gpu={gpu!r}: a plan is for a kind of GPU, one of {', '.join(SPECS)}")
    return SPECS[name] if mode == "virtual" else _of_this_machine() or SPECS[DEFAULT]


def _of_this_machine() -> Spec | None:
    """Return the spec of the current real GPU, if it is a known one."""
    import torch

    product = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return next((spec for spec in SPECS.values() if spec.product == product), None)


def _measure(
    build: Any, batch: int, spec: Spec, *, where: bool, warned: set[str], ranks: Ranks
) -> tuple[bool, Measured]:
    """Return True and the measurements if it fits on this GPU, else False and those on a larger one of its kind."""
    import torch

    from .step_run import measure_step

    try:
        return True, measure_step(build, batch, spec, where=where, warned=warned, ranks=ranks)
    except torch.OutOfMemoryError:
        pass
    roomy = dataclasses.replace(spec, memory_bytes=_ROOMY)
    return False, measure_step(build, batch, roomy, where=where, warned=warned, ranks=ranks)


def _alone(build: Any, batch: int, spec: Spec, ranks: Any) -> tuple[float | None, float | None, str]:
    """Return the step's ms on one GPU, without DistributedDataParallel and with it, and why they are unknown if so;
    nothing where there are no other ranks."""
    import torch

    from .step_run import Ranks, measure_step

    if ranks.ranks is None or ranks.ranks == 1:
        return None, None, ""
    one = Ranks(1, ranks.link)
    try:
        with_ddp = plain = measure_step(build, batch, spec, where=False, warned=set(), ranks=one, skips_ddp=True)
        if plain.skipped_ddp:
            with_ddp = measure_step(build, batch, spec, where=False, warned=set(), ranks=one)
    except torch.OutOfMemoryError:
        return None, None, "no scaling: one rank alone has no room for it"
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return None, None, f"no scaling: with one rank build does not run ({type(error).__name__}: {first:.80})"
    return plain.time.seconds * 1e3, with_ddp.time.seconds * 1e3, ""


def _fits(measured: Measured, spec: Spec) -> bool | None:
    """Return True if the same blocks fit on another GPU; None between allocated and reserved: only a run shows."""
    if measured.in_use <= spec.memory_bytes:
        return True
    return False if measured.highest + measured.context > spec.memory_bytes else None


def _notes(measured: Measured, fits: bool) -> list[str]:
    """Return the remarks that the reader needs besides the numbers."""
    if not measured.highest:
        return ['nothing is on the GPU: build and step must use the device "cuda"']
    notes = []
    if measured.growth > 0:
        notes.append(
            f"every step leaves {mib(measured.growth)} more than the one before: something keeps tensors of earlier "
            "steps, such as a loss that is summed up with its graph"
        )
    elif not measured.steady:
        notes.append(f"the memory differs from step to step; this is the highest of {measured.steps - 1}")
    if measured.highest > _MORE * measured.peak:
        notes.append(f"before these steps, in build or in the first one, up to {mib(measured.highest)} are allocated")
    if fits and measured.retries:
        notes.append(
            f"memory is short: in a step the allocator gives its reserve back {measured.retries} times to find room, "
            "and each time the GPU waits"
        )
    return notes


def _largest(
    build: Any, batch: int, spec: Spec, fits: bool, measured: Measured, warned: set[str], ranks: Ranks
) -> Largest:
    """Search for the largest batch that fits on this GPU."""
    import torch

    from .host_limit import HostMemory
    from .step_run import measure_step

    host = HostMemory()

    def trial(batch: int) -> Trial:
        host.check(batch)
        try:
            found = measure_step(build, batch, spec, where=False, warned=warned, ranks=ranks)
        except torch.OutOfMemoryError:
            return Trial(False)
        finally:
            host.note(batch)
        return _trial(found)

    first = _trial(measured) if fits else Trial(False)
    return search(trial, batch, spec.memory_bytes - measured.context, {batch: first})


def _trial(found: Measured) -> Trial:
    return Trial(True, found.highest, found.in_use - found.context, found.traffic)
