"""What the checks of lesson 08 share: an optimizer that records, the search for the misconception behind a wrong
gradient, and the proof that one micro-batch at a time is in memory. Not the lesson's loops: each check has its own.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ...virtual.gpu import without_gpu
from ..base import Trial
from ..measure import SavedBytes
from .misconceptions import BATCH_NORM, BYTES, FOUR_PIECES, LAST_WINDOW, PRECISION, RATE, Mistake

Batch = tuple[torch.Tensor, torch.Tensor]


class Loop(Protocol):
    """A reference loop: the gradients it steps with, one by one; right by default, or with the mistakes named."""

    def __call__(self, **mistakes: str) -> Iterator[torch.Tensor]: ...


class Recorder(torch.optim.SGD):
    """SGD that keeps a copy of the whole gradient at each of its steps; with two groups, so that who sees to the first
    alone forgets parameters."""

    def __init__(self, model: nn.Module | Sequence[nn.Parameter], lr: float = 0.1) -> None:
        parameters = [*(model.parameters() if isinstance(model, nn.Module) else model)]
        half = (len(parameters) + 1) // 2
        super().__init__([{"params": part} for part in (parameters[:half], parameters[half:]) if part], lr=lr)
        self.gradients: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None
        self.gradients.append(flat_gradient(p for group in self.param_groups for p in group["params"]))
        with torch.no_grad():  # not super().step(), which would run the hooks of a step a second time
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-group["lr"])
        return loss


def flat_gradient(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """All gradients as one vector on the CPU; zeros where there is none."""
    rows = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten() for p in parameters]
    if len({row.device for row in rows}) > 1:
        rows = [row.cpu() for row in rows]
    return torch.cat(rows).cpu()


def replica(model: nn.Module) -> nn.Module:
    """A deep copy with the gradients too, which deepcopy of a parameter leaves out."""
    twin = copy.deepcopy(model)
    for new, old in zip(twin.parameters(), model.parameters(), strict=True):
        new.grad = None if old.grad is None else old.grad.clone()
    return twin


class Backward:
    """The backward passes of the reference loops of one epoch, each with its own mistakes.

    Where two of them come to the same micro-batch with the same weights and the same share, it is run once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._start = replica(model), [*replica(model).parameters()]
        self._known: dict[tuple[Hashable, bytes], tuple[float, tuple[torch.Tensor, ...]]] = {}

    def parameters(self) -> list[nn.Parameter]:
        """The weights to begin with, and the gradients that the caller has left."""
        new = [nn.Parameter(p.detach().clone()) for p in self._start]
        for p, old in zip(new, self._start, strict=True):
            p.grad = None if old.grad is None else old.grad.clone()
        return new

    def run(
        self,
        parameters: Sequence[nn.Parameter],
        of: Hashable,
        losses: Callable[[nn.Module], tuple[torch.Tensor, torch.Tensor]],
    ) -> float:
        """Add the gradients to these parameters, and return the loss. `losses(model)` are the loss and what backward
        starts from; `of` says what they depend on besides the weights."""
        weights = nn.utils.parameters_to_vector(parameters).detach()
        inputs = of, weights.numpy().tobytes()
        if inputs not in self._known:
            nn.utils.vector_to_parameters(weights, self._model.parameters())
            loss, start = losses(self._model)
            self._known[inputs] = loss.item(), torch.autograd.grad(start, [*self._model.parameters()])
        loss_value, gradients = self._known[inputs]
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient.clone() if p.grad is None else p.grad + gradient
        return loss_value


def windows(batches: Sequence[Batch], steps: int) -> list[Sequence[Batch]]:
    return [batches[i : i + steps] for i in range(0, len(batches), steps)]


@without_gpu()  # all is on the CPU, and the notebook's GPU would look at every operation
def judge(
    trial: Trial,
    got: list[torch.Tensor],
    want: list[torch.Tensor],
    loop: Loop,
    mistakes: Sequence[Mistake],
    within: float,
    inputs: str,
    **values: float,
) -> None:
    """Pass if the recorded gradients are the wanted ones; else name the misconceptions that explain them: the
    fewest, and of these the one that stands first in `mistakes`. `inputs` says what the function was given;
    `values` fill the braces in the text of a mistake."""
    if _match(got, iter(want), within):
        return
    alone = len(got) == len(want) == 1
    rows = {"expected": f"{_norms(want, alone)}, for {inputs}", "got": _norms(got, alone)}
    trial.expect(
        bool(got),
        "the optimizer that was passed in never stepped",
        likely="it is replaced by another optimizer, or by an update by hand; call step() of the argument",
        read=FOUR_PIECES,
        **rows,
    )
    for i, gradient in enumerate(got):
        if not torch.isfinite(gradient).all():
            trial.fail(f"the gradient of step {i + 1} holds NaN or inf", read=FOUR_PIECES, **rows)
    for found in _fewest_first(mistakes):
        if _match(got, loop(**{mistake.aspect: mistake.value for mistake in found}), within):
            first, *rest = found
            also = "; ".join(mistake.summary for mistake in rest)
            trial.fail(first.summary, likely=first.likely.format(**values), also=also, read=first.read, **rows)
    _fail_unexplained(trial, got, want, within, rows)


def _fail_unexplained(
    trial: Trial, got: list[torch.Tensor], want: list[torch.Tensor], within: float, rows: dict[str, str]
) -> NoReturn:
    wrong = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if not _close(a, b, within)), None)
    if len(got) != len(want) or wrong is None:
        trial.fail(
            f"the optimizer stepped {len(got)} times, not {len(want)}",
            likely="one step for each window, the last one too; "
            + ("what is there is right" if wrong is None else f"step {wrong + 1} is the first with another gradient"),
            read=LAST_WINDOW,
            **rows,
        )
    a, b = got[wrong], want[wrong]
    ratio = float(a @ b / (b @ b))
    if ratio and _close(a / ratio, b, within):
        trial.fail(
            f"the gradient of step {wrong + 1} is {ratio:.4g} times the right one",
            likely="its direction is right: loss or gradient is divided by the wrong number, or the gradient clipped",
            read=FOUR_PIECES,
            **rows,
        )
    trial.fail(
        f"the gradient of step {wrong + 1} is another one than the full batch's",
        likely="compare that window by hand: concatenate its micro-batches, one backward, print the gradient",
        read=FOUR_PIECES,
        **rows,
    )


def _fewest_first(mistakes: Sequence[Mistake]) -> Iterator[list[Mistake]]:
    """Every set of up to three mistakes with at most one of each aspect, the small sets first."""
    aspects: dict[str, list[Mistake | None]] = {}
    for mistake in mistakes:
        aspects.setdefault(mistake.aspect, [None]).append(mistake)
    sets = [[mistake for mistake in chosen if mistake] for chosen in itertools.product(*aspects.values())]
    for chosen in sorted((found for found in sets if 0 < len(found) <= 3), key=len):
        yield sorted(chosen, key=mistakes.index)


def _match(got: list[torch.Tensor], want: Iterator[torch.Tensor], within: float) -> bool:
    """Compared step by step, so that a loop is run only as far as it explains what was recorded."""
    pairs = itertools.zip_longest(got, want)
    return all(a is not None and b is not None and _close(a, b, within) for a, b in pairs)


def _close(a: torch.Tensor, b: torch.Tensor, within: float) -> bool:
    return bool((a - b).norm() <= within * b.norm())


def _norms(gradients: list[torch.Tensor], alone: bool) -> str:
    if not gradients:
        return "no step"
    norms = ", ".join(f"{float(g.norm()):.4g}" for g in gradients[:6]) + (", …" if len(gradients) > 6 else "")
    if alone:
        return f"a gradient of norm {norms}"
    return f"{len(gradients)} step{'s' * (len(gradients) > 1)}, gradient norms {norms}"


def judge_place(trial: Trial, model: nn.Module, dtype: torch.dtype) -> None:
    """Fail unless the model is in `dtype` and on the CPU, as every check's model is when the student's code gets it."""
    dtypes = sorted({str(p.dtype) for p in model.parameters()})
    trial.expect(
        dtypes == [str(dtype)],
        "the model came back in another dtype",
        expected=f"parameters in {dtype}, as they were",
        got=" and ".join(dtypes),
        likely="model.to(dtype), or half(), rounds the caller's weights for good. Autocast rounds copies of them, for "
        "one forward pass",
        read=PRECISION,
    )
    places = sorted({str(p.device) for p in model.parameters()})
    trial.expect(
        places == ["cpu"],
        "the model was moved to another device",
        expected="the model on cpu, where its caller put it",
        got=f"parameters on {' and '.join(places)}",
        likely="model.to(device) moves the caller's own model, and leaves the caller's other tensors behind. Move each "
        "micro-batch to where the model is, not the model",
    )


def judge_weights(trial: Trial, got: nn.Module, optimizer: Recorder, start: torch.Tensor, within: float) -> None:
    """Fail unless the weights moved from `start` by the recorded steps, right or wrong, and by nothing else."""
    if not optimizer.gradients or not all(bool(torch.isfinite(g).all()) for g in optimizer.gradients):
        return
    want = start - 0.1 * torch.stack(optimizer.gradients).sum(0)
    moved = nn.utils.parameters_to_vector(got.parameters()).detach()
    fits = moved.shape == want.shape
    trial.expect(
        fits and _close(moved, want, within),
        "the weights are not where the optimizer's steps lead",
        expected="weights moved by optimizer.step() only, at the learning rate it came with",
        got=f"a relative difference of {float((moved - want).norm() / want.norm()):.3g}" if fits else "another model",
        likely="the weights are updated by hand too, or the learning rate was changed",
        read=RATE,
    )


def autocast_dtype() -> torch.dtype | None:
    """The dtype of autocast on the CPU, None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class Passes:
    """The forward passes of a model: how many samples each was given, whether it ran in training mode, the dtype of
    autocast on the CPU where that was on; and the most outputs of earlier ones that were in memory when one began."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: list[int] = []
        self.training: list[bool] = []
        self.autocast: list[torch.dtype | None] = []
        self.kept = 0
        self._outputs: list[StorageWeakRef] = []
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def _begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        self.rows += [len(a) for a in args[:1] if hasattr(a, "__len__")]
        self.training.append(all(module.training for module in model.modules()))
        self.autocast.append(autocast_dtype())
        self._outputs = [output for output in self._outputs if not output.expired()]
        self.kept = max(self.kept, len(self._outputs))

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        self._outputs.append(StorageWeakRef(output.untyped_storage()))


def judge_mode(trial: Trial, passes: Passes) -> None:
    away = passes.training.count(False)
    trial.expect(
        not away,
        "the model runs in evaluation mode",
        expected="forward passes in training mode, in which the model came",
        got=f"evaluation mode in {away} of {len(passes.training)} forward passes",
        likely="eval() switches dropout off, and lets BatchNorm normalise with what it has stored: it is for an "
        "evaluation, not for training",
        read=BATCH_NORM,
    )


def one_at_a_time(trial: Trial, saved: SavedBytes, passes: Passes, largest: int, allowed: int) -> None:
    """Fail when more than one micro-batch went through the model, or was kept for backward or otherwise, at a time."""
    trial.expect(
        max(passes.rows, default=0) <= largest,
        "several micro-batches went through the model at once",
        expected=f"at most {largest} samples in a forward pass: one micro-batch",
        got=f"{max(passes.rows, default=0)} samples in one forward pass",
        likely="the gradient is right, but the memory is that of the large batch, which is what must not fit",
        read=BYTES,
    )
    trial.expect(
        saved.peak <= 1.2 * allowed,
        "the activations of several micro-batches are kept at once",
        expected=f"{allowed:,} bytes kept for backward (measured): those of one micro-batch",
        got=f"{saved.peak:,} bytes (measured), {saved.peak / allowed:.1f} times as many",
        likely="losses are added up and backward runs once for all of them, or retain_graph keeps each graph. "
        "Call backward for each micro-batch, and let its graph go",
        read=BYTES,
    )
    trial.expect(
        passes.kept <= 1,
        "the outputs of several micro-batches are kept at once",
        expected="the output of the micro-batch before, at the most, when a forward pass begins",
        got=f"{passes.kept} outputs of earlier micro-batches in memory",
        likely="outputs are collected in a list, as for a report: take from each the number that is wanted, and let "
        "it go. An output, detached or not, is as large as its micro-batch",
        read=BYTES,
    )


def explain(error: str) -> str:
    """What an exception of an accumulation loop likely means; nothing where it speaks for itself."""
    return next((why for part, why in _ERRORS.items() if part in error), "")


_ERRORS = {
    "on the same device": "the data were moved to one device, and the model is on another. A loop moves a micro-batch "
    "to where the model is, next(model.parameters()).device; here that is the CPU, and nothing need be moved",
    "backward through the graph a second time": "backward runs on a running total, so on graphs that an earlier "
    "backward has freed: call it on the loss of this micro-batch alone",
    "does not require grad": "the loss has no graph: its forward pass ran under no_grad or inference_mode, or the "
    "loss was detached before backward",
    "has no attribute 'backward'": "item() or float() came before backward: a plain number has no graph. Call "
    "backward on the tensor, then take its item()",
    "ZeroDivisionError": "a number that can be 0 divides: len(micro_batches) % steps is 0 when the last window is full",
    "don't yet support saved tensor hooks": "torch.func cannot be measured here; use backward or torch.autograd.grad",
    "inplace operation": "an in-place operation changed what backward needs",
}
