"""Checks exercise 02.1, "one step, on any machine": the device that is chosen, what moves there, and the step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import MOVED
from gpulab.exercise.contract import Clause, Contract, Facts, Near, holds
from gpulab.exercise.machines import STAND_IN, with_another_accelerator, without_gpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

CHOOSE, NONE, SEVERAL = "Choosing the device", "The same questions where there is no GPU", "Several GPUs"
MAKE, TENSOR, MODEL = "Made there, or moved there", "What .to does to a tensor", "What .to does to a model"
OPTIMIZER, TOGETHER = "The optimizer and the move", "Together on one device"
GPUS, NO_GPU, ANOTHER = "two GPUs", "no GPU", "a GPU that is not CUDA's"


class Case(NamedTuple):
    """A machine, its current GPU, the device that is asked for, and where all has to be: told by the fact `model`."""

    machine: str
    current: int
    asked: str | torch.device | None
    place: str
    model: str


LEFT_OUT, OF_SEVERAL = "where the model is on a machine with GPUs", "where the model is if GPU 1 is current"
ON_CPU, ON_ANOTHER = "where the model is on a machine without a GPU", "where the model is if the GPU is not CUDA's"
ASKED = "where the model is if a device is given"
CASES = (
    Case(GPUS, 0, None, "cuda:0", LEFT_OUT),
    Case(GPUS, 1, None, "cuda:1", OF_SEVERAL),
    Case(NO_GPU, 0, None, "cpu", ON_CPU),
    Case(ANOTHER, 0, None, STAND_IN, ON_ANOTHER),
    Case(GPUS, 0, "cuda:1", "cuda:1", ASKED),
    Case(GPUS, 1, torch.device("cuda:0"), "cuda:0", ASKED),
    Case(GPUS, 1, "cuda", "cuda:1", ASKED),
    Case(GPUS, 1, torch.device("cuda"), "cuda:1", ASKED),
    Case(GPUS, 0, "cpu", "cpu", ASKED),
    Case(GPUS, 1, torch.device("cpu"), "cpu", ASKED),
    Case(GPUS, 0, torch.device(STAND_IN), STAND_IN, ASKED),
)
PAIR, LOGITS_ON, HOLDS, RATE = (
    "what is returned",
    "where the logits are",
    "parameters that the optimizer holds",
    "learning rates",
)
DTYPES, SHAPE, LOGITS, STEP = "dtypes of the model", "kind of the logits", "the logits", "the change of the weights"
PASSES, CURRENT, TAKEN = "batches that batch norm has counted", "the current GPU afterwards", "bytes on other GPUs"
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, summary, rule, read in (
        ([PAIR], "Returns (logits, optimizer)", "return a pair: the logits and the optimizer", "", OPTIMIZER),
        ([LEFT_OUT, OF_SEVERAL], "if there is one that can be used (of several the current one)",
         "the GPU of the machine was not used, or not the current one",
         "if device is None, use what torch.accelerator names; without a number it is the current GPU", CHOOSE),
        ([ON_CPU], "the CPU otherwise", "without a GPU, work on the CPU",
         "PyTorch may be built for CUDA on a machine that has no GPU", NONE),
        ([ON_ANOTHER], "NVIDIA's, AMD's, Intel's or Apple's", "a GPU that is not CUDA's was not used",
         "torch.accelerator knows it, torch.cuda does not", CHOOSE),
        ([ASKED], "a torch.device, or a string such as", "the device that was asked for was not used",
         "the argument decides, whatever other devices there are; “cuda” is the current GPU", SEVERAL),
        ([LOGITS_ON], "on the device, and the optimizer", "the logits are on another device",
         "leave them where the model is", TENSOR),
        ([DTYPES], "it is moved, and stays there", "the model has another dtype", "only the device changes", MODEL),
        ([HOLDS], "which holds the model's parameters", "the optimizer does not hold the model's parameters",
         "make the optimizer after the move, which may replace the parameters", OPTIMIZER),
        ([RATE], "torch.optim.SGD with lr=0.1", "the optimizer has another learning rate than was asked for",
         "the caller continues with it", OPTIMIZER),
        ([SHAPE], "gives logits of shape (32, 10)", "the logits have another shape or dtype",
         "one float32 per class, as the model returns them", TENSOR),
        ([LOGITS], "the logits before the step", "these are not the logits of the step",
         "the model's output for the inputs, before its weights change", TOGETHER),
        ([STEP], "on the cross-entropy weighted by class", "the step is not the one that was asked for",
         "minus 0.1 times the gradient of F.cross_entropy with these weights", OPTIMIZER),
        ([PASSES], "train for one step there", "the step does not run exactly one forward pass",
         "batch norm counts every forward pass in training mode", TOGETHER),
        ([CURRENT], "The current GPU stays current", "the function left another GPU current",
         "the caller's “cuda” is the same one afterwards", SEVERAL),
        ([TAKEN], "no other GPU's memory is touched", "memory was taken on a GPU that was not asked for",
         "make or copy each tensor where it is needed", MAKE),
    )
]  # fmt: skip


class Net(nn.Module):
    """100 features to 10 logits. The buffer comes after the layer, so that an error tells what was left behind; a bias
    before the norm would have gradients of nothing but rounding, which differ between processors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(100, 10, bias=False), nn.BatchNorm1d(10)
        self.register_buffer("scale", torch.rand(10) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.norm(self.layer(x)) * self.scale
        return scaled


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().cpu().flatten().double() for p in model.parameters()])


def name_of(device: torch.device) -> str:
    return str(device) if device.type == "cuda" else device.type


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    case: Case = scene.case
    given = "device left out" if case.asked is None else f"device={case.asked!r}"
    facts = Facts(f"a machine with {case.machine}, {given}, GPU {case.current} current")
    model, inputs, targets = Net(), torch.randn(32, 100), torch.randint(0, 10, (32,))
    weights = (torch.rand(10) * 2 + 0.5).tolist()
    start, right = flat(model), copy.deepcopy(model)
    logits = right(inputs)
    F.cross_entropy(logits, targets, weight=torch.tensor(weights)).backward()
    torch.optim.SGD(right.parameters(), lr=0.1).step()
    on_gpus, machine = case.machine == GPUS, {NO_GPU: without_gpu, ANOTHER: with_another_accelerator}.get(case.machine)

    def through(
        student: Callable[..., Any], model: Any, inputs: Any, targets: Any, class_weights: Any, device: Any
    ) -> Any:
        got = student(model, inputs, targets, class_weights, *[device] * (device is not None))
        return got, torch.cuda.current_device() if on_gpus else case.current

    with virtual_gpu(count=2), machine() if machine else nullcontext() as kinds:
        inside = torch.cuda.device(case.current) if on_gpus else nullcontext()
        got, current = call(
            *(model, inputs, targets, weights, case.asked), through=through, may_change={"model": MOVED}, inside=inside
        )
        pair = isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], torch.Tensor)
        pair = pair and isinstance(got[1], torch.optim.Optimizer)
        facts.add(PAIR, "logits and an optimizer" if pair else brief(got), "logits and an optimizer")
        if not pair or kinds == {"mps", "xpu"}:  # who asks for each kind by name is right, and does not know this one
            return facts
        facts.add(CURRENT, current, case.current)
        judge_optimizer(facts, got[1], model)
        facts.add(DTYPES, sorted({str(p.dtype) for p in model.parameters()}), ["torch.float32"])
        facts.add(SHAPE, f"{got[0].dtype} {tuple(got[0].shape)}", "torch.float32 (32, 10)")
        facts.seen["device of the logits"] = name_of(got[0].device)
        facts.add(
            case.model, sorted({name_of(t.device) for t in [*model.parameters(), *model.buffers()]}), [case.place]
        )
        if holds(facts, case.model):
            facts.add(LOGITS_ON, name_of(got[0].device), case.place)
            others = [index for index in range(2) if on_gpus and case.place != f"cuda:{index}"]
            facts.add(TAKEN, sum(map(torch.cuda.max_memory_allocated, others)), 0)
        if case.place != STAND_IN and facts.hold():  # where there are values
            facts.add(LOGITS, got[0].detach().cpu(), Near(logits.detach(), 1e-5))
            facts.add(STEP, flat(model) - start, Near(flat(right) - start, 5e-5))
            facts.add(PASSES, int(cast(torch.Tensor, model.norm.num_batches_tracked)), 1)
        return facts


def judge_optimizer(facts: Facts, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    own, held = {id(p) for p in model.parameters()}, {id(p) for g in optimizer.param_groups for p in g["params"]}
    facts.add(
        HOLDS,
        f"{len(held & own)} of {len(own)}, and {len(held - own)} others",
        f"{len(own)} of {len(own)}, and 0 others",
    )
    facts.add(RATE, sorted({round(float(group["lr"]), 6) for group in optimizer.param_groups}), [0.1])


EXERCISE = Contract(
    __file__,
    says="one step on any machine: CPU, GPU 0, GPU 1, and a GPU that is not CUDA's",
    parameters=("model", "inputs", "targets", "class_weights", "device"),
    clauses=CLAUSES,
    edges={"case": CASES},
    play=play,
    every=True,
    errors={
        "mat1 is on cpu": "mat1 is the input of the first Linear: .to returns a copy, and leaves inputs where they are",
        "mat1 is on cuda": "mat1 is the input of the first Linear, and its weights are elsewhere",
        "target is on": "the loss needs the targets on the device of the logits",
        "weight is on": "the loss needs the class weights on the device of the logits",
        "specified index": "set_device takes a number, and the current GPU has to stay current: pass the device to .to",
        "invalid literal for int": "not every device has a number: “cpu” has none, “cuda” is the current GPU",
        "index out of range": "not every device has a number: “cpu” has none, “cuda” is the current GPU",
        "No CUDA GPUs": "not every machine has a CUDA GPU: test for one before you use it",
        "NVIDIA driver": "not every machine has a CUDA GPU: test for one before you use it",
        "meta": "“meta” stands for Intel's or Apple's GPU here: compute everything there, and read no values",
    },
)
