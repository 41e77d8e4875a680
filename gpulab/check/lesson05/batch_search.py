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
from ..audit import Kind
from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import is_whole, show
from .sections import CACHE, HOLDERS, MISTAKES, SEARCH

MIB = 2**20
WIDTH = 1024
SAMPLE = 512 * 2**10  # bytes that a forward pass saves for a sample
ROOM = 128  # MiB that PyTorch may take
MOST = 500
ATTEMPTS = 24  # more than twice the 9 that halving the interval takes
ENOUGH = 2 * ATTEMPTS  # then the search is ended


class Activations(torch.autograd.Function):
    """Bytes that a forward pass saves, and a gradient of the same size in backward: taken, and never touched, so that
    they cost no time here. `piece` is the size of each tensor, 0 for eight that grow with the batch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, piece: int) -> torch.Tensor:
        nbytes = len(x) * SAMPLE
        number = -(-nbytes // piece) if piece else 8
        ctx.save_for_backward(*_pieces(number, piece or nbytes // 8, x.device))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        _pieces(len(saved), saved[0].nbytes, grads[0].device)
        return grads[0], None


def _pieces(number: int, nbytes: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(number)]


class Network(nn.Module):
    """A little of everything that an attempt changes: weights, running averages, random numbers."""

    def __init__(self, piece: int) -> None:
        super().__init__()
        self.piece = piece
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH // 4), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(x).unflatten(1, (-1, 4)))  # four values a channel: a batch of 1 is no error
        x = self.dropout(x)
        loss: torch.Tensor = Activations.apply(x, self.piece).square().mean()
        return loss


class Bug(RuntimeError):
    """A fault of the program that has nothing to do with memory."""


class TooMany(BaseException):
    """Ends a search that tries one batch after the other; no `except Exception` keeps it."""


def limited() -> VirtualGPU:
    from ...virtual.gpus.specs import spec

    return virtual_gpu(settings=f"per_process_memory_fraction:{ROOM * MIB / spec('T4').memory_bytes:.9f}")


def requested() -> int:
    found: int = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    return found


@dataclass
class Job:
    """A model with its optimizer on the GPU in force, and what became of each attempt."""

    start: nn.Module  # on the CPU
    trained: bool = False  # whether the optimizer has its state already
    adam: bool = True
    failure: int = 0  # the batch from which on the model is broken: 0 for none
    tensor_mib: int = 0  # of each sample, beside its activations
    batches: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self.model = copy.deepcopy(self.start).to("cuda").train()
        kind = torch.optim.Adam if self.adam else torch.optim.SGD
        self.optimizer: torch.optim.Optimizer = kind(self.model.parameters(), lr=1e-3)
        if self.trained:
            self.step(2)
            torch.cuda.empty_cache()
        self.batches.clear()
        self.alive.clear()
        self.cached.clear()
        self.begin = requested()

    def loss_of(self, batch: int) -> torch.Tensor:
        """The loss of a fresh batch of so many samples."""
        self.batches.append(batch)
        if self.tried > ENOUGH:
            raise TooMany
        self.alive.append(requested())
        self.cached.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
        if self.failure and batch >= self.failure:
            raise Bug("mat1 and mat2 shapes cannot be multiplied (a fault of the program, not of memory)")
        if self.tensor_mib:
            torch.empty(batch * self.tensor_mib * MIB, dtype=torch.uint8, device="cuda")
        loss: torch.Tensor = self.model(torch.randn(batch, WIDTH, device="cuda"))
        return loss

    @property
    def tried(self) -> int:
        """How many different batches."""
        return len(set(self.batches))

    def step(self, batch: int, *, backward: bool = True) -> None:
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        if backward:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def fits(self, batch: int, steps: int = 2, *, backward: bool = True) -> bool:
        """Tried on a GPU of its own."""
        with limited():
            self.prepare()
            try:
                for _ in range(steps):
                    self.step(batch, backward=backward)
            except torch.OutOfMemoryError:
                return False
            return True

    def largest(self, fits: Callable[[int], bool]) -> int:
        low, high = 0, MOST + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def state_of(job: Job) -> dict[str, Any]:
    """Copies of everything that must be as before, and the random states of this thread."""
    state = job.optimizer.state_dict()
    return {
        "parameters": [p.detach().cpu().clone() for p in job.model.parameters()],
        "buffers": [b.detach().cpu().clone() for b in job.model.buffers()],
        "optimizer": {
            i: {k: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v for k, v in s.items()}
            for i, s in state["state"].items()
        },
        "groups": [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]],
        "mode": [m.training for m in job.model.modules()],
        "random": torch.get_rng_state(),
        "random_gpu": torch.cuda.get_rng_state(),
    }


@check(lesson=5, says="the largest batch of two whole steps, and all is as it was")
def batch_search(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, loss_of, most): the largest batch from 0 to `most` of which two training
    steps fit; model, optimizer, random numbers and memory are as before."""
    trial.function(student, ("model", "optimizer", "loss_of", "most"))
    start = Network(MIB)  # in pieces, so that it does not matter where the optimizer's state comes to lie
    _search(student, trial, Job(start), MOST)
    _small(student, trial, Job(start, trained=True), 3, 3, "all batches up to `most` fit")
    _small(student, trial, Job(start, tensor_mib=200), 8, 0, "not even batch 1 fits")
    _broken(student, trial, Job(start, failure=1))
    _search(student, trial, Job(Network(0), adam=False), MOST)  # tensors that grow: segments of other attempts matter


# What `_judge_state` compares itself, in its own words, after a search that has come to its end.
JUDGED: dict[str, set[Kind]] = {
    "model": {"parameters", "buffers", "grad", "mode"},
    "optimizer": {"state", "settings"},
}


def _run(student: Any, trial: Trial, job: Job, most: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """What the student's function returns, and the state before and after it, both taken where it runs."""
    box: dict[str, Any] = {}

    def search(model: Any, optimizer: Any, loss_of: Any, most: int) -> Any:
        box["before"] = state_of(job)
        try:
            result = student(model, optimizer, loss_of, most)
        except TooMany:
            return None
        box["after"] = state_of(job)
        return result

    got = trial.call(search, job.model, job.optimizer, job.loss_of, most, may_change=JUDGED, explain=_explain)
    if job.tried > ENOUGH:
        _judge_attempts(trial, job, most)
    return got, box["before"], box["after"]


def _search(student: Any, trial: Trial, job: Job, most: int) -> None:
    with limited():
        job.prepare()
        got, before, after = _run(student, trial, job, most)
        end, grads = requested(), [p.grad is not None for p in job.model.parameters()]
    seen = Job(job.start, job.trained, job.adam)
    seen.batches, seen.alive, seen.cached = list(job.batches), list(job.alive), list(job.cached)
    seen.begin = job.begin
    _judge_number(trial, got, most)
    right = Job(job.start, job.trained, job.adam)
    if not (right.fits(got or 1) and not right.fits(got + 1)):
        _judge_batch(trial, got, seen, right)
    _judge_state(trial, before, after, grads)
    left = end - job.begin
    trial.expect(
        left <= 0,
        "the search leaves tensors on the GPU",
        expected="no more bytes in live tensors than before",
        got=f"{left:,} bytes more (virtual)",
        likely="a copy, an exception kept in a variable, or the last attempt's loss: whatever holds a reference",
        read=HOLDERS,
    )
    _judge_attempts(trial, seen, most)


def _judge_attempts(trial: Trial, job: Job, most: int) -> None:
    trial.expect(
        job.tried <= ATTEMPTS,
        "the search takes too many attempts",
        expected=f"at most {ATTEMPTS} batches tried: halving the interval takes {most.bit_length()}",
        got=f"more than {ENOUGH} batches tried, then ended" if job.tried > ENOUGH else f"{job.tried} batches tried",
        likely="one batch after the other; each attempt may take minutes on a real model",
        read=SEARCH,
    )


def _small(student: Any, trial: Trial, job: Job, most: int, want: int, words: str) -> None:
    with limited():
        job.prepare()
        got, before, after = _run(student, trial, job, most)
        grads = [p.grad is not None for p in job.model.parameters()]
    _judge_number(trial, got, most)
    trial.expect(
        got == want,
        f"the result is wrong where {words}",
        expected=f"{want}, with most = {most}",
        got=show(got),
        likely="0 is an answer too: begin with low = 0, which needs no attempt"
        if want == 0
        else "`most` itself is allowed: begin with high = most + 1, which needs no attempt",
        read=SEARCH,
    )
    _judge_state(trial, before, after, grads)


def _broken(student: Any, trial: Trial, job: Job) -> None:
    box: dict[str, Any] = {}

    def search(model: Any, optimizer: Any, loss_of: Any, most: int) -> Any:
        try:
            return student(model, optimizer, loss_of, most)
        except Bug:
            box["raised"] = True

    with limited():
        job.prepare()
        got = trial.call(search, job.model, job.optimizer, job.loss_of, 16, may_change=JUDGED, explain=_explain)
    trial.expect(
        "raised" in box,
        "an error that is not a lack of memory is swallowed",
        expected="the RuntimeError of a broken model comes out of the search",
        got=f"{show(got)}, as if nothing fitted",
        likely="`except RuntimeError`, or a bare except, catches every fault of the program: catch "
        "torch.OutOfMemoryError",
        read=MISTAKES,
    )


def _judge_number(trial: Trial, got: Any, most: int) -> None:
    trial.expect(
        is_whole(got) and 0 <= got <= most,
        "the result is no batch size",
        expected=f"a whole number from 0 to {most}",
        got=show(got),
        likely="the function ends without a return"
        if got is None
        else "a division with / gives a float: use //"
        if isinstance(got, float)
        else "",
        read=SEARCH,
    )


def _judge_batch(trial: Trial, got: int, seen: Job, right: Job) -> None:
    best = right.largest(right.fits)
    rows = {"expected": f"batch {best}, the largest with two whole steps in {ROOM} MiB", "got": f"batch {got}"}
    if got > best:
        one = right.fits(got, 1)
        if one and got > best + 2:
            trial.fail(
                "the batch fits for one step only",
                likely="an attempt is two whole steps: Adam's state is made at the end of the first, and is there "
                "during the second",
                read=SEARCH,
                **rows,
            )
        trial.expect(
            got <= best + 2 or not right.fits(got, 1, backward=False),
            "the batch fits for the forward pass only",
            likely="an attempt needs backward() and the optimizer's step too: gradients and what they are made from "
            "come on top",
            read=SEARCH,
            **rows,
        )
        trial.fail(
            "the batch is too large",
            likely="this batch fails when it is tried on a fresh GPU: is low the last one that fitted?",
            read=SEARCH,
            **rows,
        )
    weights = sum(p.nbytes for p in right.start.parameters())
    usual = seen.begin + 4 * weights + MIB
    if seen.alive and seen.alive[0] > seen.begin + weights // 2:
        trial.fail(
            "something large lies on the GPU while the search runs",
            likely="a copy of the model or of its state takes memory from the attempts: keep it on the host",
            also=f"{(seen.alive[0] - seen.begin) / MIB:.1f} MiB more than the model were alive in the first attempt",
            read=SEARCH,
            **rows,
        )
    if max(seen.alive, default=0) > usual:
        place = next(i for i, alive in enumerate(seen.alive) if alive > usual)
        trial.fail(
            "a failed attempt is still alive during the next one",
            likely="the next attempt runs inside `except`, where the exception holds the frames of the failed one; or "
            "the exception is kept in a variable. Leave the block first",
            also=f"when batch {seen.batches[place]} began, {(seen.alive[place] - seen.begin) / MIB:.0f} MiB more than "
            "the model were alive",
            read=HOLDERS,
            **rows,
        )
    between = [b for b in seen.batches if got // 2 + 1 < b < 2 * got and b != got]
    if got and not between and got < best:
        trial.fail(
            "the search doubles or halves, and never looks between",
            likely="the first size that fails and the last that fits enclose the answer: bisect between them",
            read=SEARCH,
            **rows,
        )
    first_calls = [i for i, batch in enumerate(seen.batches) if not i or batch != seen.batches[i - 1]]
    if any(seen.cached[i] > ROOM * MIB // 4 for i in first_calls):
        trial.fail(
            "the segments of earlier attempts take room from the later ones",
            likely="a tensor that sits in a larger cached segment wastes the rest of it: torch.cuda.empty_cache() "
            "before each attempt, while nothing is alive",
            read=CACHE,
            **rows,
        )
    if got + 1 in seen.batches:
        likely = f"batch {got + 1} was tried, and it fits: the answer is the last one that fitted, without a margin"
    elif any(batch > got for batch in seen.batches):
        likely = f"batch {got + 1} was never tried: the search goes on until high is low + 1"
    else:
        likely = "this batch fits, and larger ones do: is high the first that failed?"
    trial.fail("a larger batch fits too", likely=likely, read=SEARCH, **rows)


def _judge_state(trial: Trial, before: dict[str, Any], after: dict[str, Any], grads: list[bool]) -> None:
    def equal(name: str) -> bool:
        old, new = before[name], after[name]
        return len(old) == len(new) and all(map(torch.equal, old, new))

    back = "state_dict() before and load_state_dict() after; its tensors are the live ones, so copy them to the host"
    trial.expect(
        equal("parameters"),
        "the parameters are changed",
        expected="the weights as they were before the search",
        got="other weights",
        likely=f"the attempts' steps move them: {back}",
        read=SEARCH,
    )
    trial.expect(
        equal("buffers"),
        "BatchNorm's running averages are changed",
        expected="buffers as they were before the search",
        got="other buffers",
        likely="each forward pass in training mode advances them; they are in model.state_dict(), and not in "
        "model.parameters()",
        read=SEARCH,
    )
    old, new = before["optimizer"], after["optimizer"]
    same = old.keys() == new.keys() and all(_same_state(old[i], new[i]) for i in old)
    trial.expect(
        same and before["groups"] == after["groups"],
        "the optimizer's state is changed",
        expected="no state, as before" if not old else "step counts and moments as they were",
        got="no state" if not new else f"state for {len(new)} parameters, with other values",
        likely="Adam counts the attempts as steps and keeps their moments: optimizer.state_dict() before, copied to "
        "the host, and load_state_dict() after",
        read=SEARCH,
    )
    trial.expect(
        not any(grads),
        "gradients of an attempt are left",
        expected="None in every .grad, as before",
        got=f"gradients for {sum(grads)} parameters",
        likely="zero_grad() after the last attempt, also when it failed",
        read=SEARCH,
    )
    trial.expect(
        before["mode"] == after["mode"],
        "the model's mode is changed",
        expected="training mode, as before",
        got="another mode",
        likely="train() and eval() last beyond the search",
        read=SEARCH,
    )
    trial.expect(
        torch.equal(before["random"], after["random"]) and torch.equal(before["random_gpu"], after["random_gpu"]),
        "the random numbers have moved on",
        expected="the generators of CPU and GPU as before",
        got="another state of "
        + ("the GPU's" if torch.equal(before["random"], after["random"]) else "the CPU's")
        + " generator",
        likely="data and dropout draw from them: with torch.random.fork_rng() puts both back",
        read=SEARCH,
    )


def _same_state(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old.keys() == new.keys() and all(
        torch.equal(v, new[k]) if isinstance(v, torch.Tensor) and isinstance(new[k], torch.Tensor) else v == new[k]
        for k, v in old.items()
    )


def _explain(error: str) -> str:
    if "out of memory" in error:
        return "an attempt that does not fit must be caught: `except torch.OutOfMemoryError`"
    if error.startswith("KeyError") and "exp_avg" in error:
        return "an attempt that failed within optimizer.step() left half of Adam's state: restore it after each attempt"
    if "loading state dict" in error:
        return "load_state_dict() wants what state_dict() gave"
    if "RecursionError" in error:
        return "the recursion has no end: what of a batch that never fits?"
    return ""
