"""Checks exercise 03.3, "find the hidden waits": the host queues all batches before it waits for the GPU.

Long work is queued before the epoch, so that every wait lasts. The clock's record tells what the host waits for, and
with how many steps queued; a number that is read before its copy has ended is told by the virtual GPU, too.
"""

from __future__ import annotations

import copy
import gc
import random
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpulab.exercise.audit import TRAINED
from gpulab.exercise.clocks import scope
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.races import Race, races
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, clip, is_finite, is_number, is_students, is_whole
from virtualgpu.clock.clock import Clock
from virtualgpu.observe import observe

HIDDEN, WAITS, STREAMS = "Hidden waits", "Who waits for a copy", "Two streams at once"
AHEAD = 1000.0  # seconds of work before the first batch: who waits in the loop waits for this
KEYS = ("loss", "best", "hard", "correct")
FORM, INT = "what is no number", "the type of correct"
STEPS, UNREAD = "steps of the optimizer", "numbers read too early"
NUMBER, WHOLE, TRUTH, SIZE = "a number", "a whole number", "a truth value", "a size that depends on values"
PINNED, PAGEABLE = "a copy from pinned memory", "a copy from ordinary memory"
BACK, DONE = "a tensor", "all queued work"
EARLY = {
    what: f"the host waits in the loop for {what}"
    for what in (PINNED, PAGEABLE, NUMBER, WHOLE, TRUTH, SIZE, BACK, DONE)
}
RACES = "a batch is read before it is there", "a batch's memory is freed while it is read"
GRAPHS, WEIGHTS = "graphs of earlier batches", "the model's numbers"
CLAUSES = [
    Clause(quote, facts, summary, rule, {RACES[0]: STREAMS, UNREAD: WAITS}.get(facts[0], HIDDEN))
    for quote, facts, summary, rule in (
        ("one step for each batch", [STEPS], "the optimizer does not step once for each batch", ""),
        ("without waiting for the GPU before the last batch has been queued", [*EARLY.values()],
         "the host waits in the loop", "the host waits for a value, for a size that depends on values, and for a copy "
                                       "without non_blocking=True"),
        ("Train one epoch", RACES, "a batch is not there while it is used",
         "streams do not wait for each other by themselves, and the allocator knows only the stream in which memory "
         "was allocated"),
        ("as `noisy_epoch` does", [WEIGHTS], "the model is not trained as by noisy_epoch",
         "each batch has its zero_grad, its backward of the mean loss and its step"),
        ("a dict of Python numbers", [FORM], "what is returned is not a dict of Python numbers",
         "a dict with these four keys"),
        ("Returns a dict of Python numbers", [UNREAD], "the numbers are read before they are there",
         "a copy with non_blocking=True returns at once: wait before you read the values"),
        ('"loss", the mean over all samples', ["loss"], "the loss is wrong", "compare with noisy_epoch's"),
        ('"best", the smallest mean loss of a batch', ["best"], "the best loss is wrong",
         "it is the smallest of the batches' mean losses, whatever their values"),
        ('"hard", the sum of all losses above 1', ["hard"], "the sum of the hard losses is wrong",
         "add up the losses of samples, only those above 1"),
        ('"correct", an int, how many predictions were right', ["correct", INT], "correct is wrong",
         "an int, counted with the logits that the loss was computed from"),
        ("No batch's graph is kept when the next one is computed", [GRAPHS], "the graphs of earlier batches are kept",
         "a tensor that is not detached keeps its graph alive"),
    )
]  # fmt: skip
EDGES = {
    "batches": (2, 3, 5),
    "losses": ("about 1", "in the hundreds"),
    "mode": ("train", "eval"),
    "gpu": (1, 0),  # 0 is the current one
    "stream": ("the default stream", "a side stream"),
}


class Steps(torch.optim.SGD):
    """SGD that counts its steps."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


class Waits(TorchDispatchMode):
    """Keeps what the host waits for, before the last of `batches` steps or later."""

    def __init__(self, optimizer: Steps, batches: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.optimizer, self.batches, self.line = optimizer, batches, ""
        self.early, self.told = set[str](), False
        self._operation: tuple[str, Any] = "", None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operation = func.overloadpacket.__name__, args[0].dtype if isinstance(args[0], torch.Tensor) else None
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operation = "", None

    def note(self, name: str, seconds: float) -> None:
        if not (name.startswith("copy to ") or name.endswith("synchronize")):
            return
        if self.optimizer.steps == self.batches:
            self.told |= name.endswith("synchronize")
            return
        self.early.add(self._what(name))
        frames = [frame for frame in traceback.extract_stack() if is_students(frame.filename)]
        self.line = self.line or (frames[-1].line or "" if frames else "")

    def _what(self, name: str) -> str:
        if not name.startswith("copy to host"):
            return DONE if name.endswith("synchronize") else PINNED if "pinned" in name else PAGEABLE
        operation, dtype = self._operation
        if operation == "_local_scalar_dense":
            return {torch.bool: TRUTH, torch.int64: WHOLE}.get(dtype, NUMBER)
        return BACK if operation in ("", "copy_") else SIZE


class Copies:
    """Told by the virtual GPU of copies that the host does not wait for; `early`: one was read before its end."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.early = clock, False

    def began(self, storage: Any, way: str, end: float) -> None:
        storage.arrives = end if way == "to host" else 0.0

    def waits(self) -> bool:
        return True

    def used(self, storage: Any, *, writes: bool) -> None:
        self.early |= getattr(storage, "arrives", 0.0) > self._clock.host


class Mark:
    """Hangs on the graph of one batch, and lives as long as it."""


class Graphs:
    """Whether the graph of an earlier batch than the last ever lives when the next one is computed."""

    def __init__(self, model: nn.Module) -> None:
        self.marks, self.kept = list[weakref.ref[Mark]](), False
        model.register_forward_hook(self._note)

    def _note(self, module: nn.Module, args: Any, out: Any) -> None:
        self.look()
        if out.grad_fn is not None:
            mark = out.grad_fn.metadata["gpulab"] = Mark()
            self.marks.append(weakref.ref(mark))

    def look(self) -> None:
        """The last graph may live: names of the loop still hold it."""
        if any(mark() for mark in self.marks[:-1]):
            gc.collect()
            self.kept |= any(mark() for mark in self.marks[:-1])


def draw(scene: Scene) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in model[3].parameters():
            parameter.mul_(3000.0 if scene.losses == "in the hundreds" else 2.0)
    sizes = [12, *random.choices(range(9, 13), k=3), 7][-scene.batches :]
    batches = [(torch.randn(n, 6) * 2, torch.randint(0, 3, (n,))) for n in sizes]
    return model.train(scene.mode == "train"), batches


def epoch(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], lr: float) -> dict[str, float]:
    """What the epoch has to come to, on the CPU; and what it must be told from, by the same names in capitals."""
    optimizer, losses, means, correct, after = Steps(model.parameters(), lr), [], [], 0, 0
    for x, y in batches:
        logits = model(x)
        losses.append(F.cross_entropy(logits, y, reduction="none"))
        means.append(losses[-1].mean().item())
        optimizer.zero_grad()
        losses[-1].mean().backward()
        optimizer.step()
        correct += int((logits.argmax(1) == y).sum())
        after += int((copy.deepcopy(model)(x).argmax(1) == y).sum())
    every = torch.cat(losses).detach()
    known = {"loss": every.mean(), "best": min(means), "hard": every[every > 1].sum(), "correct": correct}
    known |= {"LOSS": sum(means) / len(means), "BEST": means[-1], "HARD": every.sum(), "CORRECT": after}
    return {name: float(value) for name, value in known.items()}


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    lr = 1e-4 if scene.losses == "in the hundreds" else 0.5
    while True:  # what comes of misconceptions are other numbers
        model, batches = draw(scene)
        trained = copy.deepcopy(model)
        want = epoch(trained, batches, lr)
        if (want["best"] > 100 or lr > 0.1) and (
            scene.batches < 5 or all(abs(want[k] - want[k.upper()]) > 3e-3 * want[k] or lr < 0.1 for k in KEYS)
        ):
            break
    facts = Facts(f"batches: {scene.batches}, the model on cuda:{scene.gpu}, losses {scene.losses}")
    with scope(compute=True, count=2) as gpu:
        device, clock, found = gpu.device(scene.gpu), gpu.clock, list[Race]()
        graphs, optimizer = Graphs(model.to(device.name)), Steps(model.parameters(), lr)
        stream = torch.cuda.Stream(scene.gpu).stream_id if scene.stream == "a side stream" else 0
        pinned = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
        copies, waits = Copies(clock), Waits(optimizer, scene.batches)

        def watched(student: Any, model: Any, optimizer: Any, batches: Any) -> Any:
            device.stream = stream
            device.timer.kernel(stream, AHEAD, "earlier work")
            gpu.device(1 - scene.gpu).timer.kernel(0, AHEAD / 2, "earlier work")
            try:
                with races() as seen, waits, observe(gpu, wait=waits.note, copies=copies):
                    return student(model, optimizer, batches)
            finally:
                found.extend(seen)
                device.stream = 0

        may_change = {"model": TRAINED, "optimizer": {"state"}}
        got = call(model, optimizer, pinned, may_change=may_change, through=watched)
        graphs.look()
        numbers = torch.cat([value.flatten().cpu() for value in model.state_dict().values()])
    facts.about += f", the first wait in `{clip(waits.line, 80)}`" if waits.line else ""
    facts.add(STEPS, optimizer.steps, scene.batches)
    if not facts.hold():
        return facts
    for what, name in EARLY.items():
        facts.add(name, what in waits.early, False)
    for name, freed in zip(RACES, (False, True), strict=True):
        facts.add(name, any(race.freed == freed for race in found), False)
    facts.add(WEIGHTS, numbers, Near(torch.cat([value.flatten() for value in trained.state_dict().values()]), 1e-4))
    facts.add(GRAPHS, graphs.kept, False)
    facts.add(FORM, not_numbers(got), [])
    if not facts.seen[FORM]:
        facts.add(UNREAD, ("yes, after a wait" if waits.told else "yes") if copies.early else "no", "no")
        for key in KEYS:
            facts.add(key, as_float(got[key]), Near(want[key], 1e-3))
        facts.add(INT, "int" if is_whole(got["correct"]) else type(got["correct"]).__name__, "int")
    return facts


def not_numbers(got: Any) -> list[str]:
    if not isinstance(got, dict) or {*got} != {*KEYS}:
        return [f"a dict of {', '.join(map(str, got))}" if isinstance(got, dict) else type(got).__name__]
    odd = [value for value in got.values() if not is_finite(value)]
    return sorted({f"{as_float(value):g}" if is_number(value) else type(value).__name__ for value in odd})


EXERCISE = Contract(
    __file__,
    says="the same epoch, and the host waits only when the last batch has been queued",
    parameters=("model", "optimizer", "batches"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.gpu == 0 or scene.stream == "the default stream",  # races are of the current GPU's
    errors={
        "cuda:0 and cuda:1": "the model is on another GPU than the current one: take the device of its parameters",
        "cuda:1 and cuda:0": "the model is on another GPU than the current one: take the device of its parameters",
        "same device": "one of the tensors is on the CPU: make running sums on the model's device",
        "can't convert cuda": "copy tensors from the GPU to the host once, at the end",
        "does not require grad": "what is kept from batch to batch must not be part of a graph: detach it",
        "second time": "what is kept from batch to batch must not be part of a graph: detach it",
    },
)
