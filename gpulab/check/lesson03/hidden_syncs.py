"""The check of an epoch without waits: the host goes through all batches before it waits for the GPU."""

from __future__ import annotations

import copy
import gc
import math
import re
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import TRAINED, Kind
from ..base import Trial, check
from ..races import Race, races
from ..wording import is_finite, is_number, is_whole, show
from .common import HIDDEN, STREAMS, WAITS, Arriving, Waits, scope

LARGE, SLOWLY = 3000.0, 1e-4  # in one run the scale of the logits, and a learning rate that hardly changes them
LEAST = 100.0  # mean loss of each batch, in the run whose losses are large
AHEAD = 1000.0  # seconds of work before the first batch: whoever waits in the loop, waits for this
EARLY = "the numbers were read before they were there"
_OTHER_GPU = "torch.cuda.synchronize() alone waits for the current GPU, and the model is on another: pass its device"
_KEYS = ("loss", "best", "hard", "correct")
Batch = tuple[torch.Tensor, torch.Tensor]


def draw_batches() -> list[Batch]:
    sizes = [12, 12, 12, 12, 7]
    return [(torch.randn(n, 6) * 2, torch.randint(0, 3, (n,))) for n in sizes]


def draw_model(scale: float = 1.0) -> nn.Module:
    """`scale` is that of the logits, and so about that of the losses."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter.mul_(scale)
    return model


class Steps(torch.optim.SGD):
    """SGD that counts its steps."""

    def __init__(self, model: nn.Module, lr: float = 0.5) -> None:
        super().__init__(model.parameters(), lr=lr)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        out = super().step(closure)
        self.steps += 1
        return out


class _Mark:
    """Hangs on the graph of one batch, and lives as long as it."""


class Graphs:
    """Which graphs of earlier batches still live; `kept` is how many, at most, besides the last one."""

    def __init__(self, model: nn.Module) -> None:
        self.marks: list[weakref.ref[_Mark]] = []
        self.kept = 0
        self._hook = model.register_forward_hook(self._note)

    def _note(self, module: nn.Module, args: Any, out: Any) -> None:
        self.look()
        node: Any = out.grad_fn if isinstance(out, torch.Tensor) else None
        if node is not None:
            mark = _Mark()
            node.metadata["gpulab"] = mark
            self.marks.append(weakref.ref(mark))

    def look(self) -> None:
        """The last graph may live: names of the loop still hold it."""
        if self._alive():
            gc.collect()
        self.kept = max(self.kept, self._alive())

    def _alive(self) -> int:
        return sum(mark() is not None for mark in self.marks[:-1])

    def close(self) -> None:
        self._hook.remove()


def reference(model: nn.Module, batches: list[Batch], lr: float = 0.5) -> dict[str, float]:
    """What the epoch has to come to, on the CPU."""
    optimizer = Steps(model, lr)
    losses_seen, means, correct = [], [], 0
    for x, y in batches:
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        losses_seen.append(losses.detach())
        means.append(losses.mean().item())
        correct += int((logits.argmax(1) == y).sum())
    every = torch.cat(losses_seen)
    known = {
        "loss": every.mean().item(),
        "best": min(means),
        "hard": every[every > 1].sum().item(),
        "correct": correct,
        # what comes of misconceptions
        "mean of means": sum(means) / len(means),
        "sum": every.sum().item(),
        "last": means[-1],
        "smallest sample": every.min().item(),
        "how many": int((every > 1).sum()),
        "samples": len(every),
    }
    return {name: float(value) for name, value in known.items()}


def explain(error: str) -> str:
    if "cuda:0" in error and "cuda:1" in error:
        return (
            "the model is on another GPU than the current one, and “cuda” is the current one: take the device of its "
            "parameters"
        )
    if "same device" in error:
        return "one of the tensors is on the CPU: running sums are made on the device of the model"
    if "can't convert cuda" in error or "to numpy" in error:
        return "a tensor on the GPU has to be brought to the host, once, at the end"
    if "does not require grad" in error or "second time" in error:
        return "what is kept from batch to batch belongs to no graph: detach it"
    return ""


@check(lesson=3, says="the same epoch, and the host waits only when the last batch has been queued")
def hidden_syncs(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, batches): an epoch that waits for the GPU only after its last step."""
    trial.function(student, ("model", "optimizer", "batches"))
    batches, model = draw_batches(), draw_model()
    while True:  # what comes of misconceptions shall be other numbers
        trained = copy.deepcopy(model)
        want = reference(trained, batches)
        apart = [("loss", "mean of means"), ("best", "last"), ("hard", "how many"), ("hard", "sum")]
        if want["hard"] > 0 and all(abs(want[a] - want[b]) > 3e-3 * want[a] for a, b in apart):
            break
        batches, model = draw_batches(), draw_model()
    with scope(compute=True, count=2) as gpu:
        timer, elsewhere = gpu.device(1).timer, gpu.device(0).timer
        model = model.to("cuda:1")
        graphs = Graphs(model)
        optimizer = Steps(model)
        pinned = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
        timer.kernel(0, AHEAD, "earlier work")
        elsewhere.kernel(0, AHEAD / 2, "earlier work")
        queued: list[int] = []
        waits, arriving = Waits(gpu.clock), Arriving(gpu.clock)
        found: list[Race] = []
        noted, steps = waits.append, optimizer
        others, synchronize = [0], elsewhere.synchronize

        def waits_elsewhere(stream: int | None = None) -> None:
            others[0] += 1
            synchronize(stream)

        elsewhere.synchronize = waits_elsewhere  # type: ignore[method-assign]

        def note(wait: Any) -> None:
            queued.append(steps.steps)
            noted(wait)

        waits.append = note  # type: ignore[method-assign]
        with waits, arriving:
            got = trial.call(
                student,
                *(model, optimizer, pinned),
                may_change=MAY_CHANGE,
                explain=explain,
                inside=_watched(found),
            )
        graphs.close()
        judge_waits(trial, waits, queued, optimizer.steps, len(batches))
        trial.expect(
            not found,
            "a batch is read before it has arrived",
            expected="copies in the stream that computes, or a stream that waits for them",
            got="work in one stream on what another one has not done yet",
            likely="the copies are in a stream of their own, and two streams do not wait for each other by themselves: "
            "main.wait_stream(side) before the forward pass, or no second stream at all",
            read=STREAMS,
        )
        judge_result(trial, got, want, arriving.count, elsewhere=bool(others[0]))
        trial.expect(
            not graphs.kept,
            "the graphs of earlier batches are kept",
            expected="each batch's graph let go when the next one is there",
            got=f"{graphs.kept} graph{'s' if graphs.kept != 1 else ''} of earlier batches still held in the loop",
            likely="a running sum of tensors that are not detached holds the graphs of all of them: "
            "losses = losses.detach() after backward",
            read=HIDDEN,
        )
        ended = [p.detach().cpu() for p in model.parameters()]
    trial.expect(
        all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ended, trained.parameters(), strict=True)),
        "the model is not trained as noisy_epoch trains it",
        expected="one step per batch, with the gradient of the mean loss of the batch",
        got="other weights after the epoch",
        likely="backward runs on loss, the mean, and each batch has its zero_grad and its step",
        read=HIDDEN,
    )
    judge_large_losses(student, trial, batches)


MAY_CHANGE: dict[str, Iterable[Kind]] = {"model": TRAINED, "optimizer": {"state"}}


@contextmanager
def _watched(found: list[Race]) -> Iterator[None]:
    with races() as seen:
        try:
            yield
        finally:
            found += seen


def judge_large_losses(student: Any, trial: Trial, batches: list[Batch]) -> None:
    """A model whose losses are in the hundreds: the smallest of them, too."""
    while True:
        model = draw_model(LARGE)
        want = reference(copy.deepcopy(model), batches, SLOWLY)
        if want["best"] > LEAST:
            break
    with scope(compute=True) as gpu:
        model = model.to("cuda")
        pinned = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
        with Arriving(gpu.clock) as arriving:
            args = model, Steps(model, SLOWLY), pinned
            got = trial.call(student, *args, may_change=MAY_CHANGE, explain=explain)
    judge_result(trial, got, want, arriving.count)


def judge_waits(trial: Trial, waits: Waits, queued: list[int], steps: int, batches: int) -> None:
    trial.expect(
        steps == batches,
        "the optimizer did not step once for each batch",
        expected=f"{batches} steps",
        got=f"{steps}",
        likely="the last batch is left out, or batches are put together" if steps < batches else "",
        read=HIDDEN,
    )
    early = [wait for wait, at in zip(waits, queued, strict=True) if at < steps]
    if early:
        first = early[0]
        lines = dict.fromkeys(wait.line for wait in early if wait.line)
        trial.fail(
            _summary(first.name, first.line),
            expected=f"no wait before the last of {batches} steps is queued",
            got=f"{len(early)} waits, in {len(lines)} line{'s' if len(lines) != 1 else ''}; the first{first.where}",
            likely=_why(first.name, first.line),
            read=WAITS if "to GPU" in first.name else HIDDEN,
        )
    trial.expect(
        bool(waits),
        EARLY,
        expected="one wait, after the loop: .tolist(), .item() or synchronize",
        got="no wait at all",
        likely="a copy to the CPU with non_blocking=True returns at once; what stands there is not yet the result",
        read=WAITS,
    )


def _summary(name: str, line: str) -> str:
    if "to GPU" in name and "pageable" in name:
        return "the host waits for a copy from ordinary memory"
    if "to GPU" in name:
        return "the host waits for a batch to be copied"
    if "synchronize" in name:
        return "the host is told to wait inside the loop"
    return "the host waits for a value inside the loop"


def _why(name: str, line: str) -> str:
    if "to GPU" in name and "pageable" in name:
        return (
            "torch.tensor(..., device=device) sends a number from ordinary memory; torch.zeros and torch.full make it "
            "on the GPU. What is copied anew on the host (clone) is no longer pinned"
        )
    if "to GPU" in name:
        return "the default .to(device) waits; from pinned memory, non_blocking=True does not"
    if "synchronize" in name:
        return "synchronize waits for all that is queued: it belongs behind the loop, if anywhere"
    if ".item()" in line:
        return ".item() needs the value now: keep a running sum on the GPU, and read it after the loop"
    if ".cpu()" in line or ".tolist()" in line or 'to("cpu"' in line or "to('cpu'" in line:
        return "bringing a tensor to the CPU waits for it: gather on the GPU, and bring all of it once"
    if re.search(r"(?<![\w.])(if|elif|while|and|or|not)\b|(?<![\w.])(min|max)\(", line):
        return "Python's if, min and max need a truth value now: torch.minimum and torch.where choose on the GPU"
    if re.search(r"(?<![\w.])(float|int|bool)\(", line):
        return "float() and int() of a tensor are .item(): keep the tensor, and read it after the loop"
    if "[" in line:
        return "the size of losses[mask] depends on values: torch.where(mask, losses, 0.0).sum() has a fixed shape"
    return "Python needs a value that the GPU has not computed yet: keep a tensor, and read it after the loop"


def judge_result(trial: Trial, got: Any, want: dict[str, float], asynchronous: int, *, elsewhere: bool = False) -> None:
    """`asynchronous` copies to the host had not arrived when they were queued: who read one too early got less than 0,
    which no loss is. `elsewhere` is whether the host was told to wait for another GPU than the model's."""
    trial.expect(
        isinstance(got, dict) and set(got) == set(_KEYS),
        "the result is not the dict that was asked for",
        expected="a dict with the keys " + ", ".join(_KEYS),
        got=show(got) if not isinstance(got, dict) else f"the keys {show(sorted(map(str, got)))}",
        likely="the function ends without a return" if got is None else "",
    )
    for key in _KEYS:
        value = got[key]
        if isinstance(value, torch.Tensor):
            trial.fail(
                f"{key} is a tensor, not a number",
                expected="Python numbers: whoever gets the dict may print or log it at any time",
                got=f"a tensor on {value.device.type}",
                likely="torch.stack([...]).tolist() after the loop reads all of them with one wait",
                read=HIDDEN,
            )
        number = is_number(value)
        trial.expect(
            not (asynchronous and number and value < 0),
            EARLY,
            expected=f"{want[key]:.6g} for {key}: a wait between the copy to the CPU and the line that reads it",
            got="what stood in that memory before",
            likely=_OTHER_GPU
            if elsewhere
            else "there is a wait, but it comes too late: .to('cpu', non_blocking=True) returns at once, and what is "
            "read of it before the wait is not yet the result",
            read=WAITS,
        )
        trial.expect(
            is_finite(value),
            f"{key} is not a number",
            expected=f"{want[key]:.6g}",
            got=show(value),
            likely="the smallest so far begins at infinity: torch.full((), float('inf'))" if key == "best" else "",
        )
        if math.isclose(value, want[key], rel_tol=1e-3, abs_tol=1e-4):
            trial.expect(
                key != "correct" or is_whole(value),
                "correct is a float, not an int",
                expected=f"{want[key]:.0f}, an int: it is a number of predictions",
                got=show(value),
                likely="torch.stack([...]).tolist() gives floats when one of the tensors has floats: int(correct)",
                read=HIDDEN,
            )
            continue
        trial.fail(
            f"{key} is not what noisy_epoch gives",
            expected=f"{want[key]:.6g}",
            got=f"{value:.6g}",
            likely=_misread(key, value, want),
            read=HIDDEN,
        )


def _misread(key: str, value: float, want: dict[str, float]) -> str:
    known = {
        ("loss", "mean of means"): "the mean of the batches' means counts the samples of the small last batch more",
        ("loss", "sum"): "this is the sum over all samples: it is to be divided by their number",
        ("loss", "last"): "this is the loss of the last batch",
        ("best", "last"): "this is the loss of the last batch: keep the smaller of the two, torch.minimum(best, loss)",
        ("best", "smallest sample"): "this is the smallest loss of a sample: a batch's mean loss is asked for",
        ("hard", "how many"): "this is how many losses are above 1: their sum is asked for",
        ("hard", "sum"): "this is the sum of all losses: those of 1 and below count 0",
    }
    for (name, which), why in known.items():
        if name == key and math.isclose(value, want[which], rel_tol=1e-3):
            return why
    if key == "best" and value < want["best"] and want["best"] > LEAST:
        return "the smallest so far begins with a number that losses may be above: begin at infinity"
    if key == "correct" and math.isclose(value, want["correct"] / want["samples"], rel_tol=1e-3):
        return "this is the part that is right: the number is asked for"
    return "compare with noisy_epoch on a model and batches of your own"
