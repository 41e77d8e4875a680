"""The check of a training loop that was repaired: what it returns is the same, and no step leaves memory behind."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import TRAINED, Kind
from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import show
from .sections import EVALUATION, LEAKS

ROWS, HELD_OUT, WIDTH, CLASSES, STEPS = 256, 192, 128, 32, 8
SCALARS = 64  # bytes a step that a list of 0-dim tensors may take
Pair = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES))


def requested() -> int:
    """Bytes in live tensors on the GPU, without the rounding to blocks."""
    found: int = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    return found


def segments_freed() -> int:
    found: int = torch.cuda.memory_stats().get("segment.all.freed", 0)
    return found


class Loader:
    """Batches on the GPU, made when they are asked for and kept by nobody; notes the live bytes at each step."""

    def __init__(self, data: list[Pair], optimizer: Optimizer) -> None:
        self.data, self.optimizer = data, optimizer
        self.live: list[int] = []
        self.ahead = 0  # batches asked for before the one before was trained on

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Pair]:
        self.live.clear()
        for i, (x, y) in enumerate(self.data):
            self.live.append(requested())
            self.ahead += self.optimizer.steps < i
            yield x.to("cuda"), y.to("cuda")
        self.live.append(requested())

    @property
    def growth(self) -> int:
        """Bytes by which a step raises what lives, once the first two have made what stays."""
        return (self.live[-2] - self.live[2]) // (len(self.live) - 4) if len(self.live) > 5 else 0


class Optimizer(torch.optim.SGD):
    """Counts what it is asked for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.05)
        self.steps = self.clears = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.clears += 1
        super().zero_grad(set_to_none)


@dataclass
class Forwards:
    """What was in force when the model saw the held-out rows, all at once or some at a time."""

    held_out: torch.Tensor
    graphs: int = 0
    training: int = 0
    seen: int = 0
    rows: int = 0
    evaluating: int = 0  # batches that were trained on in evaluation mode

    def note(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        rows = len(args[0]) if args and isinstance(args[0], torch.Tensor) else 0
        self.evaluating += rows == ROWS and torch.is_grad_enabled() and not model.training
        own = rows and args[0].untyped_storage()._cdata == self.held_out.untyped_storage()._cdata
        if own or rows == HELD_OUT or (rows and not torch.is_grad_enabled() and not model.training):
            self.seen += 1
            self.rows += rows
            self.graphs += torch.is_grad_enabled()
            self.training += model.training


def reference(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Any,
    held_out: Pair,
    *,
    losses: str = "number",
    scores: str = "number",
    hardest: str = "host",
) -> tuple[list[Any], list[Any], list[Any]]:
    """The loop, right by default, or with the leaks named.

    losses   number · elements: the tensor of mse_loss, whose storage is as large as its elements
    scores   number · graph: with the graph of the validation
    hardest  host · view: a row that keeps its batch · gpu: a copy of the row on the GPU
    """
    kept: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for x, y in batches:
        model.train()
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept[0].append(loss.detach() if losses == "elements" else loss.item())
        row = x[(output.detach() - y).square().sum(1).argmax()]
        kept[2].append({"host": row.cpu(), "view": row, "gpu": row.clone()}[hardest])
        model.eval()
        with torch.set_grad_enabled(scores == "graph"):
            score = F.l1_loss(model(held_out[0]), held_out[1])
        kept[1].append(score if scores == "graph" else score.item())
        model.train()
    return kept


LEAKY = {
    "graph": ("scores", "graph", "the graph of every validation stays alive"),
    "view": ("hardest", "view", "each hardest row keeps its whole batch alive"),
    "elements": ("losses", "elements", "something as large as the outputs stays alive with each step"),
    "gpu": ("hardest", "gpu", "the hardest rows stay on the GPU"),
}
WHY = {
    "graph": "the scores are kept with their graph, and no backward ever frees what it saved: no_grad() around the "
    "validation, and a number in the list",
    "view": "x[i] is a view, also after detach(): it has no memory of its own, and keeps the batch's. Copy it to the "
    "host",
    "elements": "mse_loss returns a scalar whose storage is as large as its elements, which are as many as the "
    "outputs, and detach() shares it: keep loss.item(). Kept outputs take the same bytes",
    "gpu": "a detached copy on the GPU is memory of the GPU: .cpu() moves it to where there is more",
}


@dataclass(frozen=True)
class Case:
    model: nn.Module
    data: list[Pair]
    held_out: Pair

    def run(self, function: Any, **mistakes: str) -> tuple[Any, Loader]:
        """`function` on copies of everything, on the GPU in force."""
        model = copy.deepcopy(self.model).to("cuda")
        optimizer = Optimizer(model)
        loader = Loader(self.data, optimizer)
        torch.manual_seed(0)
        held = self.held_out[0].to("cuda"), self.held_out[1].to("cuda")
        return function(model, optimizer, loader, held, **mistakes), loader


@check(lesson=5, says="the same numbers, and no step leaves more than the one before")
def memory_leak(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, batches, held_out): it trains one epoch and returns losses, scores and
    hardest rows, and the live memory does not grow with the steps."""
    trial.function(student, ("model", "optimizer", "batches", "held_out"))

    def draw(rows: int) -> Pair:
        return torch.randn(rows, WIDTH), torch.randn(rows, CLASSES)

    case = Case(network(), [draw(ROWS) for _ in range(STEPS)], draw(HELD_OUT))
    with virtual_gpu():
        want, right = case.run(reference)
    with virtual_gpu() as gpu:
        model = copy.deepcopy(case.model).to("cuda")
        held = case.held_out[0].to("cuda"), case.held_out[1].to("cuda")
        forwards, optimizer = Forwards(held[0]), Optimizer(model)
        loader = Loader(case.data, optimizer)
        model.register_forward_pre_hook(forwards.note)
        freed = segments_freed()
        torch.manual_seed(0)  # the GPU's too: dropout must draw the same
        may_change: dict[str, Iterable[Kind]] = {
            "model": {*TRAINED, "mode"},
            "optimizer": {"state"},
        }  # the mode is judged below
        with gpu.timeline() as timeline:
            got = trial.call(student, model, optimizer, loader, held, may_change=may_change, explain=_explain)
            now = gpu.clock.host
        late = [s for s in timeline.spans if s.where == "to host" and s.start + s.seconds > now]
        emptied = segments_freed() > freed
        clears = optimizer.clears
        _judge_work(trial, optimizer, forwards, loader)
        _judge_growth(trial, case, loader, right, emptied=emptied, clears=clears)
        _judge_modes(trial, forwards)
        _judge_result(trial, got, want, clears)
        trial.expect(
            not late,
            "a row is still on its way to the host when the function returns",
            expected="the hardest rows on the CPU, with their values",
            got="a copy that nobody has waited for",
            likely="non_blocking=True returns before the values have come: .cpu() waits, and so does the next .item()",
            read=LEAKS,
        )
        trial.expect(
            model.training,
            "the model came back in evaluation mode",
            expected="training mode, as it was",
            got="model.training is False",
            likely="eval() for the validation, and train() after it",
            read=EVALUATION,
        )


def _judge_work(trial: Trial, optimizer: Optimizer, forwards: Forwards, loader: Loader) -> None:
    trial.expect(
        optimizer.steps == STEPS,
        "the optimizer that was passed in does not step once for each batch",
        expected=f"{STEPS} steps",
        got=f"{optimizer.steps}",
        likely="the loop must still train: repair what it keeps, not what it does",
        read=LEAKS,
    )
    trial.expect(
        not loader.ahead,
        "several batches are on the GPU at once",
        expected="one batch at a time, taken from the loader when its turn comes",
        got=f"{loader.ahead} of {STEPS} batches were asked for before their turn",
        likely="list(batches) holds the whole epoch in memory",
        read=LEAKS,
    )
    trial.expect(
        forwards.rows == STEPS * HELD_OUT,
        "the held-out rows are not scored once for each batch",
        expected=f"{STEPS} times the {HELD_OUT} held-out rows, {STEPS * HELD_OUT:,} rows in all",
        got=f"{forwards.rows:,} rows in {forwards.seen} forward passes",
        likely="the loop must still validate after each step: repair what it keeps, not what it does",
        read=LEAKS,
    )


def _judge_growth(trial: Trial, case: Case, loader: Loader, right: Loader, *, emptied: bool, clears: int) -> None:
    growth = loader.growth
    if growth <= right.growth + SCALARS:
        return
    also = []
    if emptied:
        also.append("empty_cache() is called, and gives back only what no tensor holds: it cannot end a leak")
    if clears > STEPS + 1:
        also.append("zero_grad() is called again: gradients lie in one buffer, and are not what grows")
    rows = {
        "expected": "the same live bytes when each step begins",
        "got": f"{growth:,} bytes more with every step (virtual)",
    }
    found = _explanation(case, growth)
    if not found:
        trial.fail(
            "live memory grows with every step",
            likely="something that is kept for each step holds tensors on the GPU: outputs, losses with their graph, "
            "or what a hook collects",
            also="; ".join(also),
            read=LEAKS,
            **rows,
        )
    first, *rest = found
    also = [LEAKY[name][2] for name in rest] + also
    trial.fail(LEAKY[first][2], likely=WHY[first], also="; ".join(also), read=LEAKS, **rows)


def _explanation(case: Case, growth: int) -> list[str]:
    """The leaks of the table that together come to this growth; none where they do not."""
    sizes = {}
    for name, (aspect, value, _) in LEAKY.items():
        with virtual_gpu():
            _, loader = case.run(reference, **{aspect: value})
        sizes[name] = loader.growth
    names = list(LEAKY)
    chosen = [[n for i, n in enumerate(names) if bits >> i & 1] for bits in range(1, 2 ** len(names))]
    for some in sorted(chosen, key=len):
        if {"view", "gpu"} <= set(some):
            continue
        if abs(sum(sizes[n] for n in some) - growth) <= SCALARS:
            return some
    return []


def _judge_result(trial: Trial, got: Any, want: tuple[list[Any], ...], clears: int) -> None:
    shape = isinstance(got, tuple | list) and len(got) == 3 and all(isinstance(part, list | tuple) for part in got)
    trial.expect(
        shape and all(len(part) == STEPS for part in got),
        "what came back is not three lists with one entry for each batch",
        expected=f"(losses, scores, hardest), each with {STEPS} entries",
        got=show(got),
        likely="the function ends without a return" if got is None else "",
    )
    for name, part in zip(("losses", "scores"), got[:2], strict=True):
        trial.expect(
            all(isinstance(value, float) for value in part),
            f"the {name} are not numbers of Python",
            expected="floats",
            got=f"the first is {show(part[0])}",
            likely="a tensor holds its storage, on its device: take .item()",
            read=LEAKS,
        )
    for name, part, wanted in zip(("losses", "scores"), got[:2], want[:2], strict=True):
        near = [abs(a - b) <= 1e-4 * max(1, abs(b)) for a, b in zip(part, wanted, strict=True)]
        trial.expect(
            all(near),
            f"the {name} are not those of the loop as it was",
            expected=", ".join(f"{v:.4f}" for v in wanted[:4]) + ", …",
            got=", ".join(f"{v:.4f}" for v in part[:4]) + ", …",
            likely="the repair changed what is computed: validate after the step, and clear the gradients once a step"
            if clears
            else "the gradients are never cleared: each step uses the sum of all before. That is wrong, and no leak",
            read=LEAKS,
        )
    for i, (row, wanted) in enumerate(zip(got[2], want[2], strict=True)):
        tensor = isinstance(row, torch.Tensor)
        trial.expect(
            tensor and row.shape == wanted.shape and row.device.type == "cpu" and bool(torch.equal(row, wanted)),
            "the hardest rows are not those of the loop as it was, on the host",
            expected=f"of each batch, the row of x with the largest squared error: {show(wanted)}, on cpu",
            got=f"for batch {i + 1}: {show(row)}{f', on {row.device}' if tensor else ''}",
            likely="take the row from x of this batch, by the outputs from before the step",
            read=LEAKS,
        )
    trial.expect(
        all(row.untyped_storage().nbytes() == row.nbytes for row in got[2]),
        "each hardest row keeps a whole batch on the host",
        expected=f"a storage of {want[2][0].nbytes} bytes for each row",
        got=f"{got[2][0].untyped_storage().nbytes():,} bytes",
        likely="the batch was copied to the host and a view of it was kept: copy the row, x[i].cpu(), not x.cpu()[i]",
        read=LEAKS,
    )


def _judge_modes(trial: Trial, forwards: Forwards) -> None:
    trial.expect(
        not forwards.graphs,
        "the validation builds a graph",
        expected="no_grad() or inference_mode() around the validation",
        got=f"gradients were on in {forwards.graphs} of {forwards.seen} validations",
        likely="eval() changes dropout and BatchNorm, not autograd; and what is detached afterwards was built before",
        read=EVALUATION,
    )
    trial.expect(
        not forwards.training,
        "the validation runs in training mode",
        expected="model.eval() before it, model.train() after it",
        got=f"training mode in {forwards.training} of {forwards.seen} validations",
        likely="no_grad() changes autograd, not dropout and BatchNorm",
        read=EVALUATION,
    )
    trial.expect(
        not forwards.evaluating,
        "the training steps run in evaluation mode",
        expected="training mode for every batch that is trained on",
        got=f"evaluation mode in {forwards.evaluating} of {STEPS} steps",
        likely="train() is missing after the validation: eval() lasts until then",
        read=EVALUATION,
    )


def _explain(error: str) -> str:
    if "does not require grad" in error:
        return "no_grad() reaches further than the validation: the training step needs its graph"
    if "can't convert cuda" in error:
        return "NumPy needs the host: .cpu() before .numpy()"
    return ""
