"""Observes an epoch of accumulation: when the optimizer steps, and the parts of each step's gradient.

A gradient that adds up those of micro-batches has a share of each. The check solves for the shares, which tell what was
left out, counted twice or weighted wrongly, whatever the loop looks like.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from gpulab.exercise.contract import Clause, Facts, Near
from gpulab.exercise.measure import SavedBytes

# Headings of the lecture.
FOUR_PIECES = "The same gradient in four pieces"
LAST_WINDOW = "The last window"
BATCH_NORM = "What accumulation cannot do: BatchNorm"
BYTES = "What it saves: bytes kept for backward"
RATE = "Learning rate and schedule"

Batch = tuple[torch.Tensor, torch.Tensor]
FULL = 4  # samples of a micro-batch
RATES = 2e-3, 1e-3  # of the optimizer's two groups
PLACE = ["device of the parameters", "dtype of the parameters"]
MODE = "forward passes in evaluation mode"
STEPS = "micro-batches run at each step"
NAN, SHARES = "steps with NaN or inf in the gradient", "share of each micro-batch in its window's gradient"
OTHER = "steps whose gradient no weights of the micro-batches give"
EARLIER = "steps with earlier micro-batches in the gradient"
NORMS = "norm of the gradient at each step"
LEFT = "steps with the caller's gradients in theirs"
MEMORY = ["samples in one forward pass", "bytes kept for backward", "outputs of earlier micro-batches in memory"]
WEIGHTS = "weights after the epoch"
ERRORS = {
    "on the same device": "the data are on one device, and the model is on another: next(model.parameters()).device is "
    "where a micro-batch must be",
    "backward through the graph a second time": "backward runs on a running total, so on graphs that an earlier "
    "backward has freed: call it on the loss of this micro-batch alone",
    "ZeroDivisionError": "a divisor can be 0: remaining micro-batches, samples, or steps",
    "does not require grad": "the loss has no graph: its forward pass ran under no_grad or inference_mode, or the loss "
    "was detached before backward",
    "has no attribute 'backward'": "item() or float() came before backward: a plain number has no graph",
    "saved tensor hooks": "torch.func cannot be measured here; use backward or torch.autograd.grad",
}


def promises(*quotes: str) -> list[Clause]:
    """What every epoch promises, in the words of its exercise."""
    return [Clause(quote, *row) for quote, row in zip(quotes, _PROMISED, strict=True)]


_PROMISED = (
    (PLACE, "the model came back on another device, or in another dtype",
     "model.to(…), half() and double() change the caller's own model, whose optimizer steps next", FOUR_PIECES),
    ([MODE], "the model runs in evaluation mode",
     "eval() switches dropout off, and makes BatchNorm use its running statistics", BATCH_NORM),
    ([NAN, OTHER, SHARES, EARLIER], "a step uses another gradient than that of the mean loss over its window",
     "compare that window by hand: concatenate its micro-batches, one loss, one backward, print the gradient",
     FOUR_PIECES),
    ([LEFT], "a step uses a gradient that was there before the call",
     "what was in .grad at the call belongs to no window", FOUR_PIECES),
    (MEMORY, "more than one micro-batch's activations are in memory at a time",
     "otherwise it takes the memory of the large batch, which does not fit", BYTES),
    ([WEIGHTS], "the weights are not those after the optimizer's steps",
     "only its step() may change them, at its own learning rates", RATE),
)  # fmt: skip


def loss_fn(outputs: torch.Tensor, targets: torch.Tensor, **options: Any) -> torch.Tensor:
    """Not the plain one, so that who calls F.cross_entropy gets other gradients; and steep, so that who clips them to
    a usual norm does."""
    return 300 * F.cross_entropy(outputs, targets, label_smoothing=0.2, **options)


def draw(sizes: Iterable[int], dtype: torch.dtype) -> list[Batch]:
    """Micro-batches of these sizes. Their inputs lie around different points, as sorted data do."""
    return [(torch.randn(n, 6, dtype=dtype) + torch.randn(6, dtype=dtype), torch.randint(0, 3, (n,))) for n in sizes]


def windows(count: int, steps: int) -> list[range]:
    return [range(count)[i : i + steps] for i in range(0, count, steps)]


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().flatten().cpu() for t in tensors])


def flat_gradient(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """All gradients as one vector on the CPU; zeros where there is none."""
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)


def kind(value: Any) -> str:
    """What came back, in a word; of a tensor no digits, which hang on the processor."""
    if isinstance(value, torch.Tensor):
        return "a tensor with its graph" if value.requires_grad else "a tensor"
    return "nothing" if value is None else type(value).__name__


def autocast() -> str:
    """What autocast on the CPU casts to."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else "off"
    return str(dtype).removeprefix("torch.")


class Epoch:
    """A model and an optimizer with two groups, and what a loop over `batches` does with them; these are on the CPU,
    and `handed` on the model's device."""

    def __init__(self, batches: Sequence[Batch], device: str, *, left: bool) -> None:
        self.batches, self.device, self.dtype = batches, device, batches[0][0].dtype
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(self.dtype)
        self._twin = copy.deepcopy(self.model)
        self.model.to(device)
        self.parameters = list(self.model.parameters())
        for p in self.parameters if left else ():
            p.grad = 300 * torch.randn_like(p)
        self._left = flat_gradient(self.parameters).double()
        groups = zip((self.parameters[:2], self.parameters[2:]), RATES, strict=True)
        self.optimizer = torch.optim.SGD([{"params": part, "lr": rate} for part, rate in groups])
        self.handed = [(x.to(device), y.to(device)) for x, y in batches]
        self.saved = SavedBytes(self.parameters)

        self.steps: list[int] = []  # how many micro-batches had run at each
        self.gradients: list[torch.Tensor] = []
        self._start = flat(self.parameters)
        self.ran: dict[int, torch.Tensor] = {}  # the micro-batches that have run, and with which weights
        self.now = 0  # the one that ran last
        self.forwards: list[str] = []  # autocast in each
        self._largest, self._away, self._kept = FULL, 0, 1
        self._outputs: list[StorageWeakRef] = []
        self.model[0].register_forward_pre_hook(self._begin)  # whoever calls model.forward(x) comes here too
        self.model[-1].register_forward_hook(self._end)
        self.optimizer.register_step_post_hook(self._stepped)

    def _begin(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        rows = args[0].detach().cpu()
        self.forwards.append(autocast())
        self._away += not all(module.training for module in self.model.modules())
        self._largest = max(self._largest, len(rows))
        self._outputs = [output for output in self._outputs if not output.expired()]
        self._kept = max(self._kept, len(self._outputs))
        for i, (x, _) in enumerate(self.batches if torch.is_grad_enabled() else ()):
            if torch.isclose(rows.to(x), x[0], rtol=0.02, atol=0.02).all(-1).any():  # in 16 bits, too
                self.now = i
                self.ran.setdefault(i, flat(self.parameters))

    def _end(self, layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        self._outputs.append(StorageWeakRef(output.untyped_storage()))

    def _stepped(self, *_: Any) -> None:
        self.steps.append(len(self.ran))
        self.gradients.append(flat_gradient(self.parameters).double())

    def end(self) -> None:
        """Look at what the loop has left: to be called while the GPU is in force, and the comparisons after that."""
        self._after = flat(self.parameters)
        self._places = [(str(p.device), str(p.dtype)) for p in self.parameters]

    def reference(self, *, casts: bool = False) -> tuple[list[float], torch.Tensor, int]:
        """The mean loss of each micro-batch with the weights with which it ran; its gradients, as columns; and the most
        bytes that one keeps for backward. With `casts` under autocast."""
        losses, columns, saved = [], [], SavedBytes(self._twin.parameters())
        for i, (x, y) in enumerate(self.batches):
            nn.utils.vector_to_parameters(self.ran.get(i, self._start), self._twin.parameters())
            with torch.autocast("cpu", torch.bfloat16, enabled=casts, cache_enabled=False), saved:
                loss = loss_fn(self._twin(x), y)
            losses.append(loss.item())
            columns.append(flat(torch.autograd.grad(loss, [*self._twin.parameters()])).double())
        return losses, torch.stack(columns, 1).nan_to_num(), saved.peak

    def compare_place(self, facts: Facts) -> bool:
        """What must hold for all else to make sense."""
        devices, dtypes = (sorted(set(each)) for each in zip(*self._places, strict=True))
        facts.add(PLACE[0], devices, [self.device])
        facts.add(PLACE[1], dtypes, [str(self.dtype)])
        if facts.hold():
            facts.add(MODE, self._away, 0)
        return facts.hold()

    def compare_steps(self, facts: Facts, stepping: Sequence[range]) -> list[range]:
        """When the optimizer stepped, where `stepping` are the windows in which it should. The windows of its steps, if
        all of these came at the end of one; else none."""
        ends = [window[-1] + 1 for window in stepping]
        facts.add(STEPS, self.steps, ends)
        made = [window for window, end in zip(stepping, ends, strict=True) if end in self.steps]
        return made if self.steps == [window[-1] + 1 for window in made] else []

    def compare_memory(self, facts: Facts, allowed: int) -> None:
        facts.add(MEMORY[0], self._largest, FULL)
        if self._largest == FULL:
            facts.add(MEMORY[1], max(self.saved.peak, allowed), Near(allowed, 0.5))
        facts.add(MEMORY[2], self._kept, 1)

    def compare_weights(self, facts: Facts) -> None:
        """Whether they are where the steps lead, right or wrong."""
        rates = torch.cat([torch.full((p.numel(),), RATES[i // 2]) for i, p in enumerate(self._twin.parameters())])
        moved = self._start - rates * sum(self.gradients, torch.zeros(()))
        facts.add(WEIGHTS, self._after, Near(moved, 1e-4))

    def compare_gradients(
        self, facts: Facts, windows: Sequence[range], columns: torch.Tensor, within: float, max_norm: float = math.inf
    ) -> None:
        """What the gradient of each step is made of, where one was made for each of these windows."""
        facts.add(NAN, [k for k, gradient in enumerate(self.gradients, 1) if not gradient.isfinite().all()], [])
        if facts.seen[NAN]:
            return
        sizes = torch.tensor([float(len(x)) for x, _ in self.batches], dtype=torch.float64)
        shares = [sizes[[*window]] / sizes[[*window]].sum() for window in windows]
        true = torch.stack([columns[:, [*w]] @ share for w, share in zip(windows, shares, strict=True)], 1)
        got = torch.stack(self.gradients, 1)
        basis = torch.cat([columns, self._left.unsqueeze(1)], 1)
        found = torch.linalg.lstsq(basis, got, driver="gelsd").solution  # any rank; "gelsy" errs in torch 2.11
        parts, whole = found.abs() * basis.norm(dim=0).unsqueeze(1), got.norm(dim=0)

        def above(part: float, sizes: Iterable[torch.Tensor]) -> list[int]:
            """The steps in which this is more than that part of the gradient."""
            return [k for k, (size, all) in enumerate(zip(sizes, whole, strict=True), 1) if size > part * all]

        own = [found[[*window], k] for k, window in enumerate(windows)]
        if max_norm < math.inf:  # apart from the norms
            facts.add(NORMS, whole.tolist(), Near(true.norm(dim=0).clamp(max=max_norm).tolist(), within))
            own = [part / part.sum() if part.sum() else part for part in own]
        own = [part.where(part.abs() > 1e-6, 0.0) for part in own]
        facts.add(OTHER, above(3 * within, (got - basis @ found).norm(dim=0)), [])
        if facts.seen[OTHER]:
            facts.seen["shares that fit best"] = torch.cat(own).tolist()
            return
        facts.add(SHARES, torch.cat(own).tolist(), Near(torch.cat(shares).tolist(), within))
        facts.add(EARLIER, above(3 * within, [parts[: window[0], k].sum() for k, window in enumerate(windows)]), [])
        if self._left.any():
            facts.add(LEFT, above(3 * within, parts[-1]), [])
