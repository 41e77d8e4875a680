"""The check of a batch search: the largest batch of two whole steps, and nothing left behind.

The student's function runs on a virtual GPU whose memory is limited to a few MiB. What each attempt finds alive when it
begins tells why a wrong result is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...virtual.gpu import VirtualGPU
from ...virtual.gpus.specs import spec
from ..audit import Kind
from ..base import OPTIMIZERS
from ..contract import Clause, Contract, Facts, holds
from ..measure import virtual_gpu
from ..scenes import Scene
from ..wording import is_whole, show
from .sections import HOLDERS, MISTAKES, SEARCH

TRAINS = "attempts are made in training mode"
FITS, LARGER = "two steps of this batch fit on a fresh GPU", "two steps of a larger batch fit on a fresh GPU"
CLAUSES = (
    Clause(
        "The largest batch size from 1 to `most`",
        ["what is returned"],
        "the result is no batch size",
        "a whole number from 0 to most is asked for",
        SEARCH,
    ),
    Clause("0 if not even 1 does", ["the result where not even batch 1 fits"], "the result is wrong", read=SEARCH),
    Clause("from 1 to `most`", ["the result where all batches up to most fit"], "the result is wrong", read=SEARCH),
    Clause(
        "with which training fits on the GPU",
        [FITS],
        "the batch is too large",
        "this batch fails when it is tried on a fresh GPU: is low the last one that fitted?",
        SEARCH,
    ),
    Clause(
        "The largest batch size",
        [LARGER],
        "a larger batch fits too",
        "this batch fits, and larger ones do: is high the first that failed?",
        SEARCH,
    ),
    Clause(
        "other errors are not yours to catch",
        ["the error of a broken model comes out of the search"],
        "an error that is not a lack of memory is swallowed",
        read=MISTAKES,
    ),
    Clause(
        "halve the interval, do not walk it",
        ["batches tried are 24 at most"],
        "the search takes too many attempts",
        read=SEARCH,
    ),
    Clause(
        "parameters, buffers",
        ["parameters as before", "buffers as before"],
        "the model is changed",
        "each attempt's steps move the weights, and each forward pass in training mode the running averages",
        SEARCH,
    ),
    Clause(
        "the optimizer's state", ["the optimizer's state as before"], "the optimizer's state is changed", read=SEARCH
    ),
    Clause("no gradients", ["parameters with a gradient afterwards"], "gradients of an attempt are left", read=SEARCH),
    Clause(
        "the random generators of CPU and GPU",
        ["the CPU's random generator as before", "the GPU's random generator as before"],
        "the random numbers have moved on",
        "data and dropout draw from them: with torch.random.fork_rng() puts both back",
        SEARCH,
    ),
    Clause(
        "the memory that live tensors take",
        ["bytes left in live tensors"],
        "the search leaves tensors on the GPU",
        "a copy, an exception kept in a variable, or the last attempt's loss: whatever holds a reference",
        HOLDERS,
    ),
    Clause("in training mode", ["the mode as before", TRAINS], "the model's mode is changed", read=SEARCH),
)

EDGES = {
    "end": ("inside", "all fit", "none fits", "broken from 40 on"),
    "trained": (False, True),  # whether the optimizer has its state already
    "optimizer": (torch.optim.Adam, torch.optim.SGD),
    "pieces": ("of 1 MiB", "that grow with the batch"),  # growing ones make segments that the next attempt cannot use
    "parameters": ("in one group", "in two groups, one of them frozen"),
}
MAY_CHANGE: dict[str, set[Kind]] = {  # what the facts tell in words of their own
    "model": {"parameters", "buffers", "grad", "mode"},
    "optimizer": {"state", "settings"},
}
MIB = 2**20
SAMPLE = 512 * 2**10  # bytes that a forward pass saves for a sample
ROOM = 64  # MiB that PyTorch may take
WIDTH = 512  # two layers of 1 MiB
MOST = {"inside": 500, "all fit": 1, "none fits": 8, "broken from 40 on": 300}
FULL = 56  # the last batch that fits where Adam has its state: "all fit" leaves no room for anything else then
BROKEN_FROM = {"broken from 40 on": 40}
TENSOR_MIB = {"none fits": 200}  # of each sample, beside its activations
ATTEMPTS = 24  # more than twice the 9 that halving the interval takes
ENOUGH = ATTEMPTS + 2  # then the search is ended


_FITS: dict[tuple[Any, ...], bool] = {}  # what has been tried, in this process


class Activations(torch.autograd.Function):
    """Bytes that a forward pass saves, and a gradient of the same size in backward: taken, and never touched, so that
    they cost no time here. `piece` is the size of each tensor, 0 for eight that grow with the batch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, batch: int, piece: int) -> torch.Tensor:
        nbytes = batch * SAMPLE
        number = -(-nbytes // piece) if piece else 8
        ctx.save_for_backward(*_pieces(number, piece or nbytes // 8, x.device))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved, device = ctx.saved_tensors, grads[0].device
        room: list[Any] = [torch.UntypedStorage(saved[0].nbytes, device=device) for _ in saved]  # quicker than tensors
        room.clear()
        return grads[0], None, None


def _pieces(number: int, nbytes: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(number)]


class Network(nn.Module):
    """A little of everything that an attempt changes: weights, running averages, random numbers."""

    def __init__(self, piece: int, frozen: bool) -> None:
        super().__init__()
        self.piece = piece
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH // 4), nn.Dropout(0.1)
        self.layers[0].bias.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        x = self.norm(self.layers(x).unflatten(1, (-1, 4)))  # four values a channel: a batch of 1 is no error
        loss: torch.Tensor = Activations.apply(self.dropout(x), batch, self.piece).square().mean()
        return loss


class Bug(RuntimeError):
    """A fault of the program that has nothing to do with memory."""


class TooMany(BaseException):
    """Ends a search that tries one batch after the other; no `except Exception` keeps it."""


def most_of(scene: Scene) -> int:
    return FULL if scene.end == "all fit" and scene.trained else MOST[scene.end]


def limited() -> VirtualGPU:
    return virtual_gpu(settings=f"per_process_memory_fraction:{ROOM * MIB / spec('T4').memory_bytes:.9f}")


def requested() -> int:
    found: int = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    return found


@dataclass
class Job:
    """A model with its optimizer on the GPU in force, and what became of each attempt."""

    scene: Scene
    start: nn.Module  # on the CPU
    batches: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    trains: bool = True  # in training mode, at each attempt

    def prepare(self) -> None:
        scene = self.scene
        self.model = copy.deepcopy(self.start).to("cuda").train()
        parameters = list(self.model.parameters())
        parts = [parameters] if scene.parameters == "in one group" else [parameters[:3], parameters[3:]]
        self.optimizer = scene.optimizer([{"params": part} for part in parts], lr=1e-3)
        if scene.trained:
            self.model(torch.randn(2, WIDTH, device="cuda"), 1).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
        for seen in (self.batches, self.alive, self.cached):
            seen.clear()
        self.begin, self.trains = requested(), True

    def loss_of(self, batch: int) -> torch.Tensor:
        """The loss of a fresh batch of so many samples; its rows are few, and its bytes those of all of them."""
        self.batches.append(batch)
        if len(set(self.batches)) > ENOUGH:
            raise TooMany
        self.alive.append(requested())
        self.trains = self.trains and self.model.training
        self.cached.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
        if batch >= BROKEN_FROM.get(self.scene.end, batch + 1):
            raise Bug("mat1 and mat2 shapes cannot be multiplied (a fault of the program, not of memory)")
        torch.empty(batch * TENSOR_MIB.get(self.scene.end, 0) * MIB, dtype=torch.uint8, device="cuda")
        loss: torch.Tensor = self.model(torch.randn(min(batch, 4), WIDTH).to("cuda"), batch)
        return loss

    def step(self, batch: int, *, backward: bool = True) -> None:
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        if backward:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def fits(self, batch: int, steps: int = 2, *, backward: bool = True) -> bool:
        """Tried on a GPU of its own, once for each kind of scene: bytes do not hang on what is drawn."""
        tried = (*vars(self.scene).values(), batch, steps, backward)
        if tried not in _FITS:
            with limited():
                self.prepare()
                try:
                    for _ in range(steps):
                        self.step(batch, backward=backward)
                except torch.OutOfMemoryError:
                    _FITS[tried] = False
                else:
                    _FITS[tried] = True
        return _FITS[tried]


def state_of(job: Job) -> dict[str, Any]:
    """Copies of everything that must be as before, and the random states of this thread."""
    return {
        "parameters as before": [p.detach().cpu().clone() for p in job.model.parameters()],
        "buffers as before": [b.detach().cpu().clone() for b in job.model.buffers()],
        "the optimizer's state as before": _flat(job.optimizer.state_dict()),
        "the mode as before": [m.training for m in job.model.modules()],
        "the CPU's random generator as before": [torch.get_rng_state()],
        "the GPU's random generator as before": [torch.cuda.get_rng_state()],
    }


def _flat(value: Any) -> list[Any]:
    """Its keys, numbers and tensors in their order; the tensors as copies on the CPU."""
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in (key, *_flat(inner))]
    if isinstance(value, list):
        return [item for inner in value for item in _flat(inner)]
    return [value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value]


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x is y or x == y
        for x, y in zip(a, b, strict=True)
    )


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    job = Job(scene, Network(MIB if scene.pieces == "of 1 MiB" else 0, scene.parameters != "in one group"))
    kept = "with its state" if scene.trained else "without its state"
    facts = Facts(f"{ROOM} MiB, most = {most_of(scene)}, {scene.optimizer.__name__} {kept}, activations {scene.pieces}")
    box: dict[str, Any] = {}

    def search(student: Callable[..., Any], model: Any, optimizer: Any, loss_of: Any, most: int) -> Any:
        """Run in the student's thread, which has random generators of its own."""
        box["before"] = state_of(job)
        try:
            result = student(model, optimizer, loss_of, most)
        except TooMany:
            return None
        except Bug:
            return Bug
        box["after"] = state_of(job)
        return result

    with limited():
        job.prepare()
        handed = job.model, job.optimizer, job.loss_of, most_of(scene)
        got = call(*handed, may_change=MAY_CHANGE, through=search)
        grads = [p.grad for p in job.model.parameters() if p.grad is not None]
        left = max(0, requested() - job.begin - sum(grad.nbytes for grad in grads))
    if len(set(job.batches)) > ENOUGH:
        facts.add("batches tried are 24 at most", False, True)
        return facts
    if scene.end in BROKEN_FROM:
        facts.add("the error of a broken model comes out of the search", got is Bug, True)
        return facts
    facts.add("bytes left in live tensors", left, 0)
    facts.add("batches tried are 24 at most", len(set(job.batches)) <= ATTEMPTS, True)
    facts.add(TRAINS, job.trains, True)
    facts.add("parameters with a gradient afterwards", len(grads), 0)
    facts.seen["gradients other than 0"] = any(bool(grad.any()) for grad in grads)
    for name, old in box["before"].items():
        facts.add(name, _same(old, box["after"][name]), True)
    _result(facts, job, got)
    return facts


def _result(facts: Facts, job: Job, got: Any) -> None:
    """What is told of the number that came back."""
    end, most = job.scene.end, most_of(job.scene)
    is_size = is_whole(got) and 0 <= got <= most
    facts.add("what is returned", "a batch size" if is_size else show(got), "a batch size")
    if not is_size:
        return
    if end == "none fits":
        facts.add("the result where not even batch 1 fits", int(got), 0)
    elif end == "all fit":
        facts.add("the result where all batches up to most fit", int(got), most)
    else:
        tried, alive, begin = list(job.batches), list(job.alive), job.begin
        weights = sum(p.nbytes for p in job.start.parameters())
        first_calls = [i for i, batch in enumerate(tried) if not i or batch != tried[i - 1]]
        cached = any(job.cached[i] > ROOM * MIB // 4 for i in first_calls)
        fits = not got or job.fits(got)
        facts.add(FITS, fits, True)
        facts.add(LARGER, got < most and job.fits(got + 1), False)
        if holds(facts, FITS) and holds(facts, LARGER):
            return
        facts.seen |= {
            "it fits for one step": fits or job.fits(got, 1),
            "it fits for the forward pass": fits or job.fits(got, 2, backward=False),
            "more than the model was alive when the first attempt began": alive[:1] > [begin + weights // 2],
            "a failed attempt was alive when another began": max(alive, default=0) > begin + 4 * weights + MIB,
            "much was cached when an attempt began": cached,
            "the next larger batch was tried": got + 1 in tried,
            "a larger batch was tried": any(batch > got for batch in tried),
            "batches between half and twice of it were tried": any(
                got // 2 + 1 < b < 2 * got and b != got for b in tried
            ),
        }


def possible(scene: Scene) -> bool:
    """A long search takes long, so there are two: one in which Adam's state is made, for parameters of two kinds, and
    one in which tensors grow, so that the segments of other attempts are in the way."""
    grows = scene.pieces == "that grow with the batch"
    if scene.end == "all fit":
        return not grows and scene.trained == (scene.optimizer is torch.optim.Adam)
    if scene.end != "inside":
        return not grows
    return bool((scene.optimizer is torch.optim.SGD) == grows == scene.trained == (scene.parameters == "in one group"))


EXERCISE = Contract(
    __file__,
    says="the largest batch of two whole steps, and all is as it was",
    imports=[OPTIMIZERS],
    parameters=("model", "optimizer", "loss_of", "most"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
)
