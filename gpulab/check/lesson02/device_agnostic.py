"""The check of a training step that runs on whatever machine it finds, or where it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import MOVED
from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import show
from .machines import STAND_IN, Asked, with_another_accelerator, without_gpu
from .sections import CHOOSE, MAKE, MODEL, NONE, OPTIMIZER, SEVERAL, TENSOR, TOGETHER

RATE = 0.1


class Net(nn.Module):
    """100 features to 10 logits. The buffer comes after the layer, so that an error tells what was left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(100, 10)
        self.register_buffer("scale", torch.rand(10) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.layer(x) * self.scale
        return scaled


@dataclass(frozen=True)
class Case:
    """One call on one machine, and where all of it has to be afterwards."""

    machine: str
    arguments: tuple[Any, ...]
    place: str
    put_in_force: Callable[[], AbstractContextManager[Asked | None]] = nullcontext
    current: int = 0


CASES = (
    Case("a machine with two GPUs, and device left out", (), "cuda:0"),
    Case("a machine with two GPUs, cuda:1 being current, and device left out", (), "cuda:1", current=1),
    Case('a machine with two GPUs, and device="cuda:1"', ("cuda:1",), "cuda:1"),
    Case('a machine with two GPUs, and device="cpu"', ("cpu",), "cpu"),
    Case('a machine with two GPUs, cuda:1 being current, and device="cuda"', ("cuda",), "cuda:1", current=1),
    Case(
        'a machine with two GPUs, cuda:1 being current, and device=torch.device("cuda:0")',
        *((torch.device("cuda:0"),), "cuda:0"),
        current=1,
    ),
    Case("a machine without a GPU, and device left out", (), "cpu", without_gpu),
    Case("a machine whose GPU is not CUDA's, and device left out", (), STAND_IN, with_another_accelerator),
    Case(
        f'a machine with two GPUs, and device=torch.device("{STAND_IN}"), which stands for one of another kind',
        *((torch.device(STAND_IN),), STAND_IN),
    ),
)


@dataclass(frozen=True)
class Task:
    """A model with a batch, and what one step makes of them, reckoned on the CPU."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    class_weights: list[float]
    logits: torch.Tensor
    start: torch.Tensor
    trained: torch.Tensor
    unweighted: torch.Tensor

    @classmethod
    def draw(cls) -> Task:
        model, inputs, targets = Net(), torch.randn(32, 100), torch.randint(0, 10, (32,))
        weights = (torch.rand(10) * 2 + 0.5).tolist()
        logits, trained = _one_step(model, inputs, targets, torch.tensor(weights))
        unweighted = _one_step(model, inputs, targets, None)[1]
        return cls(model, inputs, targets, weights, logits, _flat(model), trained, unweighted)


def _one_step(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    model, original = Net(), model
    model.load_state_dict(original.state_dict())
    logits = model(inputs)
    F.cross_entropy(logits, targets, weight=weight).backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    return logits.detach(), _flat(model)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


@check(lesson=2, says="one step on any machine: CPU, GPU 0, GPU 1, and a GPU that is not CUDA's")
def device_agnostic(student: Any, trial: Trial) -> None:
    """Check a function of (model, inputs, targets, class_weights, device=None): it takes all of them to the device, or
    to the best one there is, trains for one step of SGD there, and returns the logits and the optimizer."""
    trial.function(student, ("model", "inputs", "targets", "class_weights", "device"))
    for case in CASES:
        task = Task.draw()
        with virtual_gpu(count=2), case.put_in_force() as asked:
            after = _Current(case.current)
            got = trial.call(
                student,
                *(task.model, task.inputs, task.targets, task.class_weights, *case.arguments),
                may_change={"model": MOVED},
                may_leave=("the current GPU",),  # judged below
                inside=after,
                explain=lambda error, case=case: _explain(error, case),  # type: ignore[misc]
            )
            _judge_place(trial, got, task.model, case, asked)
            _judge_optimizer(trial, got[1], task.model, case)
            if case.place != STAND_IN:
                _judge_values(trial, got[0], task, case)
            _judge_other_gpu(trial, case, after.gpu)


def _judge_place(trial: Trial, got: Any, model: nn.Module, case: Case, asked: Asked | None) -> None:
    pair = isinstance(got, tuple | list) and len(got) == 2
    trial.expect(
        pair and isinstance(got[0], torch.Tensor) and isinstance(got[1], torch.optim.Optimizer),
        "a pair of logits and optimizer has to come back",
        expected="(logits, optimizer)",
        got=show(got),
        likely="the function ends without a return" if got is None else "",
        read=OPTIMIZER,
    )
    logits, place = got[0], case.place
    tensors = [*model.named_parameters(), *model.named_buffers()]
    where = sorted({_name(tensor.device) for _, tensor in tensors})
    wrong_model, wrong_logits = where != [place], _name(logits.device) != place
    if place == STAND_IN and asked is not None and {"mps", "xpu"} <= asked.kinds:
        return  # who asks for each kind by name is right too, and cannot know the stand-in
    if not wrong_model and not wrong_logits:
        return
    if not wrong_model:
        trial.fail(
            "the logits are on another device than the model",
            expected=f"on {case.machine}: logits on {place}",
            got=f"logits on {_name(logits.device)}",
            likely="they were fetched with .cpu(), which waits for the GPU: leave that to the caller",
            read=TENSOR,
        )
    trained = _held(got[1]) == {id(p) for p in model.parameters()}
    summary, likely, read = _about_place(case, _name(logits.device), asked, trained)
    trial.fail(
        summary,
        expected=f"on {case.machine}: model and logits on {place}",
        got=f"the model's tensors on {' and '.join(where)}, the logits on {_name(logits.device)}",
        likely=likely,
        read=read,
    )


def _about_place(case: Case, logits: str, asked: Asked | None, trained: bool) -> tuple[str, str, str]:
    """Summary, likely misconception and section for a model that is not on `case.place`; `trained` is whether the
    optimizer holds its parameters."""
    if logits == case.place and trained:
        return (
            "the model has to stay on the device",
            "it was brought back after the step: the caller, who wants to go on there, would move it again",
            MODEL,
        )
    if logits == case.place:
        return (
            "the work was done where it should be, but not with the caller's model",
            "a copy of the model was trained, and the caller's stayed behind: model.to works in place",
            MODEL,
        )
    if case.put_in_force is without_gpu:
        built = asked is not None and asked.built and not asked.available
        return (
            "without a GPU the work has to be done on the CPU",
            "current_accelerator() names what PyTorch was built for, and says cuda on a laptop too: ask with "
            "check_available=True"
            if built
            else "a GPU's name is written into the code: ask what there is, and fall back to the CPU",
            NONE,
        )
    if case.put_in_force is with_another_accelerator:
        asked_it = asked is not None and asked.available
        return (
            "a GPU that is not CUDA's was not used",
            "only cuda is used of what torch.accelerator names: take the device it gives"
            if asked_it
            else "torch.cuda.is_available() knows CUDA and ROCm only; torch.accelerator knows Intel's and Apple's too",
            CHOOSE,
        )
    if case.place == STAND_IN:
        return (
            "the device that was asked for was not used",
            "only the CPU and CUDA's GPUs are known to the code: hand the argument on as it is",
            CHOOSE,
        )
    if case.current and case.place == "cuda:1":
        return (
            "the current GPU was not used",
            "a number is written into the code: current_accelerator() names none, and “cuda” is the current GPU",
            SEVERAL,
        )
    if case.place == "cuda:1" or case.current:
        best = "the argument is not looked at" if logits == "cpu" else "its number got lost: device.type, or 'cuda'"
        return ("the device that was asked for was not used", best, SEVERAL)
    if case.place == "cpu":
        return (
            "the CPU was asked for, and a GPU was used",
            "the argument device decides; what there is matters only when it is None",
            CHOOSE,
        )
    return (
        "the GPU that is there was not used",
        "device=None asks for the best device of the machine: torch.accelerator names it",
        CHOOSE,
    )


def _judge_optimizer(trial: Trial, optimizer: torch.optim.Optimizer, model: nn.Module, case: Case) -> None:
    held = _held(optimizer)
    mine = {id(p) for p in model.parameters()}
    trial.expect(
        held == mine,
        "the optimizer does not hold the model's parameters",
        expected="every parameter of the model, as it is after the move",
        got=f"{len(held & mine)} of {len(mine)} of them, on {case.machine}",
        likely="it was made before the move. From CPU to CUDA the parameters stay the same objects; on other devices "
        "the move puts new ones in. Model first, optimizer second",
        read=OPTIMIZER,
    )

    rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
    trial.expect(
        all(math.isclose(rate, RATE, rel_tol=1e-6) for rate in rates),
        "the optimizer has another learning rate than was asked for",
        expected=f"lr={RATE}, as the caller goes on with it",
        got=f"lr={', '.join(f'{rate:.4g}' for rate in rates)}, on {case.machine}",
        likely="a number was changed, or a schedule made a step: one step of SGD is asked for, and nothing else",
        read=OPTIMIZER,
    )

    decay = max(float(group.get("weight_decay", 0)) for group in optimizer.param_groups)
    trial.expect(
        decay == 0,
        "the weights decay in the step",
        expected=f"torch.optim.SGD with lr={RATE}, whose step follows the gradient of the loss alone",
        got=f"weight_decay={decay:g}",
        likely="it adds a part of each weight to its gradient: too little to be seen in one step, and not asked for",
        read=OPTIMIZER,
    )


def _held(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _judge_values(trial: Trial, logits: torch.Tensor, task: Task, case: Case) -> None:
    got, trained = logits.detach().cpu(), _flat(task.model)
    for what, dtype in (("weights", trained.dtype), ("logits", got.dtype)):
        trial.expect(
            dtype is torch.float32,
            f"the {what} have another dtype",
            expected=f"{what} in torch.float32, as they were on the CPU",
            got=str(dtype),
            likely="only the device changes: to(device) keeps the dtype; half(), double() and to(device, dtype) do not",
            read=TENSOR,
        )
    trial.expect(
        got.shape == task.logits.shape,
        "the logits have another shape",
        expected=str(tuple(task.logits.shape)),
        got=str(tuple(got.shape)),
        read=TOGETHER,
    )
    after = _near(trained, task.trained)
    trial.expect(
        _near(got, task.logits),
        "these are not the logits that the step was taken with",
        expected="what the model gives for the inputs before the step",
        got=f"logits that differ by up to {float((got - task.logits).abs().max()):.2g}",
        likely="the forward pass ran again after the step" if after else "the inputs were changed on the way",
        read=TENSOR,
    )
    likely = ""
    if torch.equal(trained, task.start):
        likely = "nothing was trained: backward or step is missing, or the optimizer was given no parameters"
    elif _near(trained, task.unweighted):
        likely = "the class weights are not in the loss: weight=torch.tensor(class_weights, device=…)"
    trial.expect(
        after,
        "the step is not the one that was asked for",
        expected=f"weights minus {RATE} times the gradient of the weighted cross-entropy, on {case.machine}",
        got=f"weights that differ from that by up to {float((trained - task.trained).abs().max()):.2g}",
        likely=likely,
        read=OPTIMIZER,
    )


class _Current:
    """Makes a GPU current in the thread of the student's code, where each thread has its own, and notes which one is
    when that has ended."""

    def __init__(self, gpu: int) -> None:
        self.gpu = self.before = gpu

    def __enter__(self) -> None:
        if self.before:
            torch.cuda.set_device(self.before)

    def __exit__(self, *error: object) -> None:
        if torch.cuda.is_available():
            self.gpu = torch.cuda.current_device()


def _judge_other_gpu(trial: Trial, case: Case, current: int) -> None:
    trial.expect(
        current == case.current,
        "the function left another GPU current",
        expected=f"cuda:{case.current} is current, as before the call",
        got=f"cuda:{current}: from now on the caller's “cuda” means that one",
        likely="set_device is for the start of a process. Give the device to .to, or use with torch.cuda.device(…)",
        read=SEVERAL,
    )
    if case.place != "cuda:0":
        taken = torch.cuda.max_memory_allocated(0) if case.put_in_force is nullcontext else 0
        trial.expect(
            not taken,
            "memory was taken on a GPU that was not asked for",
            expected=f"on {case.machine}: 0 bytes on cuda:0",
            got=f"{taken:,} bytes at the peak",
            likely="something was made on “cuda”, the current GPU, and moved on from there",
            read=MAKE,
        )


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-4, atol=1e-5))


def _name(device: torch.device) -> str:
    return device.type if device.type in ("cpu", STAND_IN) else str(device)


def _explain(error: str, case: Case) -> str:
    if "got mat1 is on cuda" in error or "got mat2 is" in error:
        return "the model is not where the inputs are: model.to(device), before the forward pass"
    if "got mat1 is" in error:
        return (
            "mat1 is the input of the first Linear: the inputs are not where the model is. inputs.to(device) gives "
            "the copy back, and leaves inputs as they are"
        )
    if "got target is" in error:
        return "the targets are needed by the loss, on the device of the logits"
    if "got weight is" in error:
        return "the class weights are a list: make the tensor on the device, torch.tensor(class_weights, device=…)"
    if "at least two devices" in error:
        return (
            "a buffer stayed behind: model.to(device) moves parameters and buffers, a loop over parameters() does not"
        )
    if "invalid literal for int" in error or "index out of range" in error:
        return "not every device has a number: “cpu” has none, “cuda” is the current GPU. Hand the argument on as it is"
    if "Cannot copy out of meta tensor" in error:
        return (
            "a device of another kind was asked for, and in the middle of the step something was fetched to the CPU: "
            "the loss is computed where the logits are"
        )
    if "meta" in error and "item()" in error:
        return (
            "a number was asked for in the middle of the step, by .item() or by an optimizer that does: that waits for "
            "the GPU, and SGD needs none"
        )
    if "No CUDA GPUs" in error or "NVIDIA driver" in error:
        return f"it was called on {case.machine}: ask what is there before you ask torch.cuda for more"
    if "meta" in error:
        return (
            "a device of another kind, which stands for Intel's or Apple's, was there: give every tensor that is made "
            "to the device of the model"
        )
    return ""
