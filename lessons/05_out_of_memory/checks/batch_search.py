"""Checks exercise 05.3, "the largest batch": two whole steps in 64 MiB; live memory distinguishes the mistakes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gpulab.exercise.audit import TRAINED
from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.measure import equal_tensors, virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_whole
from virtualgpu.gpu import VirtualGPU
from virtualgpu.gpus.specs import spec

SEARCH, HOLDERS, MISTAKES = "The largest batch that fits", "Who keeps a tensor alive", "Common mistakes"
RESULT, NONE, ALL = "what is returned", "the result where not even batch 1 fits", "the result where all batches fit"
FITS, LARGER = "two steps of this batch fit on a fresh GPU", "two steps of a larger batch fit on a fresh GPU"
BUG, FEW, TRAINS = "the error of a broken model", "batches tried are 24 at most", "attempts are made in training mode"
GRADS, LEFT = "parameters with a gradient afterwards", "bytes left in live tensors"
PARAMETERS, BUFFERS, STATE = "parameters as before", "buffers as before", "the optimizer's state as before"
CPU, GPU = "the CPU's random generator as before", "the GPU's random generator as before"
CLAUSES = (
    Clause("The largest batch size from 1 to `most`", [RESULT], "the result is not a batch size",
           "return a whole number from 0 to most", SEARCH),
    Clause("0 if not even 1 does", [NONE], "the result is wrong", read=SEARCH),
    Clause("from 1 to `most`", [ALL], "the result is wrong", read=SEARCH),
    Clause("with which training fits on the GPU", [FITS], "the batch is too large",
           "it fails when tried on a fresh GPU", SEARCH),
    Clause("The largest batch size", [LARGER], "a larger batch fits too", "it runs when tried on a fresh GPU", SEARCH),
    Clause("do not catch any other error", [BUG], "an error that is not a lack of memory is swallowed",
           read=MISTAKES),
    Clause("bisect the interval, do not step through it", [FEW], "the search takes too many attempts", read=SEARCH),
    Clause("parameters, buffers", [PARAMETERS, BUFFERS], "the model is changed",
           "each step changes the weights, each forward pass in training mode the running averages", SEARCH),
    Clause("the optimizer's state", [STATE], "the optimizer's state is changed", read=SEARCH),
    Clause("no gradients", [GRADS], "gradients of an attempt are left", read=SEARCH),
    Clause("the random generators of CPU and GPU", [CPU, GPU], "the random numbers have moved on",
           "data and dropout draw from them", SEARCH),
    Clause("the memory that live tensors take", [LEFT], "the search leaves tensors on the GPU", read=HOLDERS),
    Clause("in training mode", [TRAINS], "an attempt is not made in training mode", read=SEARCH),
)  # fmt: skip
MIB = 2**20
SAMPLE = 512 * 2**10  # bytes that a forward pass saves for a sample
ROOM = 64  # MiB that PyTorch may take
WIDTH = 512  # two layers of 1 MiB
ATTEMPTS = 24  # more than twice the 9 that halving the interval takes


@dataclass(frozen=True)
class Setup:
    most: int
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    trained: bool = False  # whether the optimizer has its state already
    grows: bool = False  # tensors that grow with the batch make segments that the next attempt cannot use
    frozen: bool = False  # a parameter; and the others are in two groups
    broken_from: int = 10**9  # the batch from which on the model has a fault
    sample_mib: int = 0  # of each sample, beside its activations


SETUPS = {
    "Adam without its state": Setup(500, frozen=True),
    "SGD, and tensors that grow with the batch": Setup(500, torch.optim.SGD, trained=True, grows=True),
    "only batch 1 is allowed": Setup(1, torch.optim.SGD),
    "Adam with its state, and most just fits": Setup(56, trained=True, frozen=True),  # no room for anything else
    "samples of 200 MiB": Setup(8, trained=True, sample_mib=200),
    "a model that is broken from batch 40 on": Setup(300, torch.optim.SGD, frozen=True, broken_from=40),
}
_FITS: dict[tuple[Any, ...], bool] = {}  # what has been tried, in this process


class Activations(torch.autograd.Function):
    """Bytes that a forward pass saves, and a gradient of the same size in backward: taken, and never touched, so that
    they cost no time here. They are in pieces of 1 MiB, or in eight that grow with the batch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, batch: int, grows: bool) -> torch.Tensor:
        nbytes = batch * SAMPLE
        sizes = [nbytes // 8] * 8 if grows else [MIB] * -(-nbytes // MIB)
        ctx.save_for_backward(*(torch.empty(size, dtype=torch.uint8, device=x.device) for size in sizes))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        room = [torch.UntypedStorage(saved[0].nbytes, device=grads[0].device) for _ in saved]  # quicker than tensors
        room.clear()
        return grads[0], None, None


class Network(nn.Module):
    """A little of everything that an attempt changes: weights, running averages, random numbers."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.grows = setup.grows
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH // 4), nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.ones(()))  # has its gradient before the activations take room for theirs
        self.layers[0].bias.requires_grad_(not setup.frozen)

    def forward(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        x = self.norm(self.layers(x).unflatten(1, (-1, 4)))  # four values a channel: a batch of 1 is no error
        x = Activations.apply(self.dropout(x), batch, self.grows)
        loss: torch.Tensor = (self.scale * x).square().mean()
        return loss


class Bug(RuntimeError):
    """A fault of the program that has nothing to do with memory."""


class TooMany(BaseException):
    """Ends a search that tries one batch after the other; no `except Exception` keeps it."""


def limited() -> VirtualGPU:
    return virtual_gpu(settings=f"per_process_memory_fraction:{ROOM * MIB / spec('T4').memory_bytes:.9f}")


def requested() -> int:
    found: int = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    return found


@dataclass
class Job:
    """A model with its optimizer, made on the GPU in force by `prepare`, and what became of each attempt."""

    setup: Setup
    start: nn.Module  # on the CPU
    tried: list[tuple[int, int, int]] = field(default_factory=list)  # a batch, the bytes alive, those cached
    trains: bool = True  # in training mode, at each attempt

    def prepare(self) -> None:
        self.model = copy.deepcopy(self.start).to("cuda")
        parameters = list(self.model.parameters())
        parts = [parameters[:3], parameters[3:]] if self.setup.frozen else [parameters]
        self.optimizer: torch.optim.Optimizer = self.setup.optimizer([{"params": part} for part in parts], lr=1e-3)  # type: ignore[call-arg]
        if self.setup.trained:
            self.model(torch.randn(2, WIDTH, device="cuda"), 1).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
        self.begin = requested()

    def loss_of(self, batch: int) -> torch.Tensor:
        """The loss of a fresh batch of so many samples; its rows are few, and its bytes those of all of them."""
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        self.tried.append((batch, requested(), cached))
        self.trains = self.trains and self.model.training
        if len(self.batches) > ATTEMPTS + 2:
            raise TooMany
        if batch >= self.setup.broken_from:
            raise Bug("mat1 and mat2 shapes cannot be multiplied (a fault of the program, not of memory)")
        torch.empty(batch * self.setup.sample_mib * MIB, dtype=torch.uint8, device="cuda")
        loss: torch.Tensor = self.model(torch.randn(min(batch, 4), WIDTH).to("cuda"), batch)
        return loss

    @property
    def batches(self) -> set[int]:
        return {batch for batch, *_ in self.tried}

    def fits(self, batch: int, steps: int = 2, *, backward: bool = True) -> bool:
        """Tried on a GPU of its own, once for each setup: bytes do not depend on what is drawn."""
        key = (self.setup, batch, steps, backward)
        if key not in _FITS:
            with limited():
                job = Job(self.setup, self.start)
                job.prepare()
                try:
                    for _ in range(steps):
                        loss = job.loss_of(batch)
                        if backward:
                            loss.backward()
                            job.optimizer.step()
                            job.optimizer.zero_grad()
                        del loss
                    _FITS[key] = True
                except torch.OutOfMemoryError:
                    _FITS[key] = False
        return _FITS[key]

    def state(self) -> dict[str, Any]:
        """Copies of everything that must be as before, and the random states of this thread."""
        state = self.optimizer.state_dict()["state"]
        return {
            PARAMETERS: [flat(p) for p in self.model.parameters()],
            BUFFERS: [flat(b) for b in self.model.buffers()],
            STATE: flat(state),
            "moments": flat([{k: v for k, v in of_one.items() if k != "step"} for of_one in state.values()]),
            CPU: flat(torch.get_rng_state()),
            GPU: flat(torch.cuda.get_rng_state()),
        }


def flat(value: Any) -> list[Any]:
    """Its keys, numbers and tensors in their order; of a tensor the device, and a copy on the CPU."""
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in (key, *flat(inner))]
    if isinstance(value, list):
        return [item for inner in value for item in flat(inner)]
    return [str(value.device), value.detach().cpu().clone()] if isinstance(value, torch.Tensor) else [value]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    setup = SETUPS[scene.job]
    job, facts, states = Job(setup, Network(setup)), Facts(f"{ROOM} MiB, most = {setup.most}, {scene.job}"), []

    def search(student: Callable[..., Any], model: Any, optimizer: Any, loss_of: Any, most: int) -> Any:
        """Run in the student's thread, which has random generators of its own."""
        states.append(job.state())
        try:
            got = student(model, optimizer, loss_of, most)
        except (TooMany, Bug) as error:
            return type(error)
        states.append(job.state())
        return got

    with limited():
        job.prepare()
        breaks = setup.broken_from <= setup.most  # an error comes out: then nothing is promised of the mode
        may_change = {"model": TRAINED | {"mode"} if breaks else TRAINED, "optimizer": {"state"}}
        got = call(job.model, job.optimizer, job.loss_of, setup.most, may_change=may_change, through=search)
        grads = [p.grad for p in job.model.parameters() if p.grad is not None]
        left = max(0, requested() - job.begin - sum(grad.nbytes for grad in grads))
    facts.add(FEW, len(job.batches) <= ATTEMPTS, True)
    if facts.hold() and max(job.batches, default=0) >= setup.broken_from:
        facts.add(BUG, "raised" if got is Bug else "swallowed", "raised")
    if breaks or not facts.hold():
        return facts
    facts.add(LEFT, left, 0)
    facts.add(TRAINS, job.trains, True)
    facts.add(GRADS, len(grads), 0)
    facts.seen["gradients other than 0"] = any(bool(grad.any()) for grad in grads)
    before, after = states
    kept = {name: equal_tensors(old, after[name]) for name, old in before.items()}
    facts.seen["only step counts of the optimizer are changed"] = kept.pop("moments") and not kept[STATE]
    for name, is_kept in kept.items():
        facts.add(name, is_kept, True)
    is_size = is_whole(got) and 0 <= got <= setup.most
    facts.add(RESULT, "a batch size" if is_size else brief(got), "a batch size")
    if is_size and job.trains:
        compare(facts, job, int(got))
    return facts


def compare(facts: Facts, job: Job, got: int) -> None:
    """What is told of the number that came back."""
    most = job.setup.most
    if not job.fits(1) or job.fits(most):
        facts.add(*((ALL, got, most) if job.fits(1) else (NONE, got, 0)))
        return
    fits, larger = not got or job.fits(got), got < most and job.fits(got + 1)
    facts.add(FITS, fits, True)
    facts.add(LARGER, larger, False)
    if fits and not larger:
        return
    tried, weights = job.tried, sum(p.nbytes for p in job.start.parameters())
    first_calls = [call for i, call in enumerate(tried) if not i or call[0] != tried[i - 1][0]]
    facts.seen |= {
        "it fits for one step": fits or job.fits(got, 1),
        "it fits for the forward pass": fits or job.fits(got, 2, backward=False),
        "more than the model was alive when the first attempt began": tried[0][1] > job.begin + weights // 2,
        "a failed attempt was alive when another began": max(t[1] for t in tried) > job.begin + 4 * weights + MIB,
        "much was cached when an attempt began": max(t[2] for t in first_calls) > ROOM * MIB // 4,
        "the next larger batch was tried": got + 1 in job.batches,
        "a larger batch was tried": max(job.batches) > got,
        "batches between half and twice of it were tried": any(got // 2 + 1 < b < 2 * got != b for b in job.batches),
    }


EXERCISE = Contract(
    __file__,
    says="the largest batch for two whole steps, and everything is as before",
    imports=[OPTIMIZERS],
    parameters=("model", "optimizer", "loss_of", "most"),
    clauses=CLAUSES,
    edges={"job": tuple(SETUPS)},
    play=play,
)
