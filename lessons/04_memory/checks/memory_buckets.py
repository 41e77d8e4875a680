"""Checks exercise 04.2, "fill the buckets": the bytes of a training step, against a real step of a copy."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from gpulab.exercise.base import OPTIMIZERS, Trial
from gpulab.exercise.machines import on_the_cpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.numbers import Clause, Numbers, Part, number, whole
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_number
from gpulab.memory.storages import storages

from .common import Halves

BUCKETS, KEEPS = "Four buckets, and the logits", "What the forward pass keeps"


class Net(nn.Module):
    """Two layers with one weight, a frozen table, a norm, dropout, an in-place ReLU whose output two save, indices of a
    maximum, a product of two halves of one storage, a counter, a buffer that two modules have and state_dict() leaves
    out. Of words (numbers for an embedding, or else floats) the output is not saved; else the last layer saves it."""

    def __init__(self, size: int, words: bool, length: int, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width), requires_grad=False)
        self.register_buffer("scale", torch.rand(width), persistent=False)
        self.scale: torch.Tensor
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
        self.stem = nn.Embedding(size, width) if words else nn.Linear(size, width)
        self.norm, self.pool = nn.BatchNorm1d(length), nn.MaxPool1d(2)
        wide = 2 * width + 1
        first, self.again = nn.Linear(width, wide), nn.Linear(width, wide, bias=False)
        self.again.weight = first.weight
        self.body = nn.Sequential(first, nn.ReLU(inplace=True), nn.Linear(wide, wide), nn.Dropout(0.2), Halves())
        self.last = nn.Identity() if words else nn.Tanh()
        self.to(dtype).norm.float()  # as one does: norms stay in float32
        self.to(device).body.register_buffer("scale", self.scale, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.norm((self.stem(inputs) + self.table) * self.scale)
        result: torch.Tensor = self.last(self.pool(self.again(x + self.body(x))))
        return result


def bytes_in(tensors: Iterable[torch.Tensor]) -> int:
    """Each storage once, whole."""
    return sum(storages(tensors).values())


def each(tensors: Iterable[torch.Tensor]) -> int:
    """Each tensor, as often as it comes."""
    return sum(t.nbytes for t in tensors)


def elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() for t in tensors)


class Pass:
    """One forward pass of a copy of `model`: what autograd saved of it, and what its modules returned."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor, amp: bool) -> None:
        self.model: Any = copy.deepcopy(model)
        self.saved: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        watches = [
            module.register_forward_hook(lambda module, args, out: self.outputs.append(out.detach()))
            for module in self.model.modules()
        ]
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=amp), hooks:
            self.model(inputs)
        for watch in watches:
            watch.remove()
        own = [*self.model.parameters(), *self.model.buffers()]
        self.places = {t.data_ptr() for t in (*own, inputs)}
        saved, of_model, of_inputs = storages(self.saved), storages(own), storages([inputs])
        self.of_model = sum(nbytes for key, nbytes in of_model.items() if key in saved)
        self.of_inputs = sum(nbytes for key, nbytes in of_inputs.items() if key in saved)
        self.new = [t for t in self.saved if t.untyped_storage()._cdata not in of_model.keys() | of_inputs.keys()]
        self.kept = bytes_in(self.new)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved.append(tensor.detach())
        return self.saved[-1]


@dataclass(eq=False)
class Job:
    """What is asked for; `gpu` says whether the machine has one. A copy, the twin, does the forward pass at once,
    before any of the student's code runs: all numbers are taken from that."""

    model: nn.Module
    inputs: torch.Tensor
    optimizer: str
    amp: bool
    gpu: bool = field(default_factory=lambda: torch.cuda.is_available())  # as it is asked then

    def __post_init__(self) -> None:
        self.step = Pass(self.model, self.inputs, self.amp)
        self.twin, self.device = self.step.model, self.inputs.device.type
        self.now = each(p.grad for p in self.model.parameters() if p.grad is not None)
        self.states = {"adamw": 2, "momentum": 1, "sgd": 0}[self.optimizer]  # for each gradient
        self.parameters = self._behind(self.twin.parameters())
        self.tied_twice = self._behind(p for m in self.twin.modules() for p in m.parameters(recurse=False))
        self.right = {of: each(parameters) for of, parameters in self.parameters.items()}
        self.right |= {"buffers": bytes_in(self.twin.buffers()), "activations": self.step.kept}

    def _behind(self, parameters: Iterable[nn.Parameter]) -> dict[str, list[nn.Parameter]]:
        """Those of which each bucket has a tensor, as often as it has one."""
        found = list(parameters)
        trained = [p for p in found if p.requires_grad]
        return {"weights": found, "gradients": trained, "optimizer_state": self.states * trained}

    @cached_property
    def others(self) -> dict[str, int]:
        """Activations of passes that nobody asked for: autocast where there is to be none, and none where it is."""
        twin = copy.deepcopy(self.twin)
        return {
            "switched": Pass(twin, self.inputs, not self.amp).kept,
            "in eval mode": Pass(twin.eval(), self.inputs, self.amp).kept,
            "on the CPU": Pass(twin.train().cpu(), self.inputs.cpu(), self.amp).kept,
        }

    @property
    def plain(self) -> int:
        return self.others["switched"] if self.amp else self.step.kept

    def about(self) -> str:
        where = str(self.inputs.device) if self.device == "cuda" else "the CPU" + " beside two GPUs" * self.gpu
        dtype = " in bfloat16 with norms in float32" * (self.twin.table.dtype == torch.bfloat16)
        return f"a model{dtype} on {where}, {self.optimizer}, {'bfloat16' if self.amp else 'no'} autocast"


# In which any two values meet that can matter to each other: where, in which precision, for which optimizer, whether
# words go in (or floats), and whether there are gradients of a step before.
JOBS = (
    ("cpu", "float32", "adamw", True, True),
    ("cpu", "autocast", "adamw", False, True),
    ("cpu", "bfloat16", "adamw", True, False),
    ("cpu beside GPUs", "autocast", "momentum", True, False),
    ("cuda:1", "float32", "sgd", False, True),
    ("cuda:1", "autocast", "momentum", True, False),
)


def draw(edge: Scene) -> Job:
    place, precision, optimizer, words, gradients = edge.job
    count, length, width, size = (random.randrange(*ends) for ends in ((3, 6), (5, 9), (16, 24), (50, 70)))
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    device = "cuda:1" if place == "cuda:1" else "cpu"
    model = Net(size, words, length, width, dtype, device)
    inputs = torch.randint(size, (count + 1, length)) if words else torch.randn(count + 1, length, size).to(dtype)
    for p in model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad and gradients else None
    part_of_more = inputs.to(device)[1:]
    return Job(model, part_of_more, optimizer, precision == "autocast", place != "cpu")


STAY = "autocast makes rounded copies of the weights for the forward pass; weights, gradients and states stay"
MISTAKES = [
    *((of, f"{of} is in MiB, not in bytes", "the exercise asks for bytes", lambda j, of=of: j.right[of] / 2**20)
      for of in ("weights", "activations")),
    *(row for of in ("weights", "gradients", "optimizer_state") for row in (
        (of, f"{of}: tied weights are counted twice",
         "a parameter is in memory once, however many modules use it: model.parameters() yields it once",
         lambda j, of=of: each(j.tied_twice[of])),
        (of, f"{of}: halved under autocast", STAY, lambda j, of=of: j.right[of] // (1 + j.amp)),
        (of, f"{of}: every parameter is counted as float32",
         "an element has 2 bytes in bfloat16, as p.element_size() says; gradients and states have their parameter's "
         "dtype", lambda j, of=of: 4 * elements(j.parameters[of])),
        (of, f"{of}: all are counted with the first parameter's dtype",
         "a model can mix dtypes, for example norms in float32 and the rest in bfloat16: use each one's .nbytes",
         lambda j, of=of: j.twin.table.element_size() * elements(j.parameters[of])),
    )),
    ("weights", "frozen parameters are not counted as weights", "they get no gradient, but they are in memory",
     lambda j: j.right["gradients"]),
    ("weights", "the buffers are counted as weights", "they have a bucket of their own here",
     lambda j: j.right["weights"] + j.right["buffers"]),
    ("weights", "elements are counted, not bytes",
     "an element of float32 takes 4 bytes: p.nbytes, or p.numel() * p.element_size()",
     lambda j: elements(j.parameters["weights"])),
    ("buffers", "the buffers are forgotten", "running statistics and tables are tensors in memory too: model.buffers()",
     lambda j: 0),
    ("buffers", "buffers that are not saved are forgotten",
     "state_dict() leaves out what is registered with persistent=False, but that takes memory too: model.buffers()",
     lambda j: j.right["buffers"] - j.twin.scale.nbytes),
    ("buffers", "a buffer that two modules have is counted twice",
     "it is in memory once, however many modules use it: model.buffers() yields it once",
     lambda j: j.right["buffers"] + j.twin.scale.nbytes),
    ("buffers", "every buffer is counted as float32", "b.element_size() says it: counters are int64",
     lambda j: 4 * elements(j.twin.buffers())),
    ("gradients", "frozen parameters are given gradients",
     "backward leaves nothing in .grad where requires_grad is False", lambda j: j.right["weights"]),
    ("gradients", "no gradients are predicted",
     "before the first step there are none: predict what backward will leave", lambda j: 0, lambda j: j.now),
    ("optimizer_state", "frozen parameters are given optimizer state",
     "a parameter without a gradient is skipped by step(), and has no state", lambda j: j.states * j.right["weights"]),
    ("optimizer_state", "one Adam moment is counted, not two",
     "Adam keeps a running mean of the gradient and one of its square, each as large as the parameter",
     lambda j: min(j.states, 1) * j.right["gradients"]),
    ("optimizer_state", "every optimizer is treated as Adam",
     "SGD keeps nothing, and one value for each weight with momentum", lambda j: 2 * j.right["gradients"]),
    ("optimizer_state", "SGD without momentum is given a state",
     "without momentum a step needs the gradient alone, and nothing is kept from step to step",
     lambda j: max(j.states, 1) * j.right["gradients"]),
    ("optimizer_state", "no optimizer state is predicted",
     "before the first step there is none: Adam makes two tensors for each parameter, momentum one", lambda j: 0),
    ("optimizer_state", "the gradients are counted as optimizer state",
     "they have a bucket of their own: Adam's state is two tensors for each parameter",
     lambda j: (j.states + 1) * j.right["gradients"]),
    ("optimizer_state", "Adam's step counters are counted", "the exercise leaves them out, 4 bytes for each parameter",
     lambda j: j.right["optimizer_state"] + 2 * len(j.parameters["optimizer_state"]) * (j.optimizer == "adamw")),
    ("activations", "no activations are predicted",
     "a pass that backward can follow keeps some: under no_grad nothing is kept, and on meta no storage has an address",
     lambda j: 0),
    ("activations", "a view is counted with its own bytes, not with its storage's",
     "a slice that is saved keeps all of its tensor alive: count tensor.untyped_storage().nbytes(), not tensor.nbytes",
     lambda j: sum({t.untyped_storage().data_ptr(): t.nbytes for t in j.step.new}.values())),
    ("activations", "two views of one storage are counted as two storages",
     "tensor.data_ptr() is where the view begins, and the halves of a tensor begin at different places: "
     "tensor.untyped_storage().data_ptr() is the same for both",
     *(lambda j, of=of: sum({t.data_ptr(): t.untyped_storage().nbytes() for t in of(j)}.values()) for of in (
         lambda j: j.step.new, lambda j: [t for t in j.step.saved if t.data_ptr() not in j.step.places]))),
    ("activations", "a buffer that is not saved in the state_dict is counted as an activation",
     "state_dict() leaves out what is registered with persistent=False, but that existed before: take the storages to "
     "leave out from model.parameters() and model.buffers()",
     lambda j: j.step.kept + j.twin.scale.nbytes),
    ("activations", "shared storage is counted more than once",
     "a layer's input is the output of the one before, and both save it; views share one storage too: count each "
     "storage once, by t.untyped_storage().data_ptr(), and none of parameters, buffers and inputs",
     lambda j: each(j.step.new), lambda j: sum(t.untyped_storage().nbytes() for t in j.step.new),
     lambda j: each(j.step.saved)),
    ("activations", "the inputs are counted as activations",
     "they existed before, and belong to the caller: leave out their whole storage, of which they may be a part",
     lambda j: j.step.kept + j.step.of_inputs),
    ("activations", "saved weights are counted as activations",
     "autograd saves them, but they existed before: leave out the storages of parameters, buffers and inputs",
     lambda j: j.step.kept + j.step.of_model, lambda j: bytes_in(j.step.saved)),
    ("activations", "masks and indices are forgotten",
     "dropout keeps a mask, pooling the place of each maximum (int64), embedding its ids: backward needs them",
     lambda j: bytes_in(t for t in j.step.new if t.is_floating_point())),
    ("activations", "activations are computed as the sum of the modules' outputs",
     "an output is kept only if backward needs it; masks, indices and statistics are kept too. Count what autograd "
     "saves: torch.autograd.graph.saved_tensors_hooks",
     lambda j: each(j.step.outputs), lambda j: bytes_in(j.step.outputs)),
    ("activations", "the output is counted though backward does not need it",
     "it is alive while something refers to it, but autograd does not keep it: count what is saved",
     lambda j: bytes_in([*j.step.new, j.step.outputs[-1]])),
    ("activations", "the output is left out though backward needs it",
     "a last layer such as tanh saves its own output, which then counts",
     lambda j: bytes_in(j.step.new) - sum(storages(j.step.new).get(key, 0) for key in storages(j.step.outputs[-1:]))),
    ("activations", "the activations are those of float32, though the pass runs under autocast",
     "run the pass that you count under torch.autocast(device_type, dtype=torch.bfloat16)", lambda j: j.plain),
    ("activations", "the activations are those of float32: autocast is on for another type of device",
     "it works on tensors of its own type of device only, and there may be a GPU beside a model on the CPU: "
     "torch.autocast(inputs.device.type, dtype=torch.bfloat16)",
     lambda j: j.step.kept if j.device == ("cuda" if j.gpu else "cpu") else j.plain,
     lambda j: j.step.kept if j.device == "cpu" else j.plain),
    ("activations", "autocast is on though amp is False", "torch.autocast(…, enabled=amp) is off then",
     lambda j: j.step.kept if j.amp else j.others["switched"]),
    ("activations", "autocast is assumed to halve all activations",
     "norms and losses stay in float32, masks and ids are not rounded, and copies of the weights come on top: count "
     "the pass itself", lambda j: j.plain // (1 + j.amp)),
    ("activations", "the activations are those of evaluation mode",
     "without dropout there is no mask, and without batch statistics none are kept: count the pass in training mode",
     lambda j: j.others["in eval mode"]),
    ("activations", "the activations are counted on the CPU, though the model is on a GPU",
     "kernels differ in what they keep: dropout's mask has 1 byte for each element on a GPU, 4 on the CPU. Run the "
     "pass where the model is", lambda j: j.others["on the CPU"] if j.device == "cuda" else j.step.kept),
]  # fmt: skip
CLAUSES: list[Clause[Job]] = [
    Clause('"weights": the parameters', "weights", "weights is not what the parameters take",
           "each storage once, whatever its dtype, and frozen or not"),
    Clause("the buffers, also those that state_dict() leaves out", "buffers", "buffers is not what the buffers take",
           "each storage once, in its own dtype"),
    Clause("what backward will leave in .grad", "gradients", "gradients is not what backward leaves",
           "one for each parameter that is trained, in its dtype"),
    Clause("the tensors that the optimizer will keep, each as large as its parameter", "optimizer_state",
           "optimizer_state is not what the optimizer keeps", "AdamW keeps two for each gradient, momentum one"),
    Clause("the forward pass runs under autocast with bfloat16", "activations",
           "the activations are not those of a pass under autocast", "what autograd saves in that pass, without the "
           "storages of parameters, buffers and inputs", lambda j: j.amp),
    Clause("what autograd keeps for backward when the forward pass is over, without the storages of parameters, "
           "buffers and inputs", "activations", "activations is not what autograd keeps", "each storage once, whole"),
]  # fmt: skip
ERRORS = {
    "scalar type": "models come in several dtypes: pass the inputs that you were given, and make none of your own",
    "same dtype": "models come in several dtypes: pass the inputs that you were given, and make none of your own",
    "same device": "the model may be on any GPU, or on the CPU beside one: inputs.device says where",
}


def nbytes(trial: Trial, value: Any, name: str, read: str) -> float:
    """An int; or a number that is none anyway, as of MiB."""
    return (whole if is_number(value) and value % 1 == 0 else number)(trial, value, name, read)


def part(of: str) -> Part[Job]:
    read = KEEPS if of == "activations" else BUCKETS
    return Part(lambda j: j.right[of], read, nbytes, same=lambda j, got: got == j.right[of], unit="bytes")


EXERCISE = Numbers(
    __file__,
    says="all five buckets as a real step fills them, to the byte, on the CPU and on a GPU",
    parameters=("model", "inputs", "optimizer", "amp"),
    job=Job,
    edges={"job": JOBS},
    draw=draw,
    keyed=True,
    parts={of: part(of) for of in ("weights", "buffers", "gradients", "optimizer_state", "activations")},
    clauses=CLAUSES,
    mistakes=MISTAKES,
    explain=lambda j, error: next((likely for text, likely in ERRORS.items() if text in error), ""),
    scope=lambda: virtual_gpu(count=2),
    around=lambda j: nullcontext() if j.gpu else on_the_cpu(),
    own_gpu=True,
    imports=[OPTIMIZERS],
    about=Job.about,
)
