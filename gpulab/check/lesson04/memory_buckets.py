"""The check of predicted buckets: held against a step that is really done, on the CPU and on a virtual GPU."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..audit import Kind
from ..base import OPTIMIZERS, Trial, check
from ..wording import as_float, is_number, is_whole, show
from .common import FOUR_BUCKETS, KEEPS, MIB, SEVEN_BILLION, Halves, gpus, no_gpu

BUCKETS = ("weights", "buffers", "gradients", "optimizer_state", "activations")


class Tied(nn.Module):
    """A little language model: output weights tied to the embedding, a frozen table of positions, masks, a buffer that
    two modules have and the forward pass uses."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(length, width), requires_grad=False)
        scale = torch.rand(width)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
        layers = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)]
        self.body = nn.Sequential(*layers, nn.Dropout(0.2))
        self.body.register_buffer("scale", scale, persistent=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = (self.embedding(ids) + self.positions) * self.scale
        logits: torch.Tensor = self.head(x + self.body(x))
        return logits


def pictures(channels: int, classes: int) -> nn.Module:
    """A network with running statistics, an in-place ReLU, indices of a maximum, a frozen first layer, and a product
    of two halves, of whose storage nobody saves more."""
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        Halves(),
        nn.Linear(channels * 49 // 2, classes),
    )
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Case:
    """A model on a device, with inputs, and how it is to be trained."""

    name: str
    model: nn.Module
    inputs: torch.Tensor
    optimizer: str
    amp: bool

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.inputs.device.type, dtype=torch.bfloat16) if self.amp else nullcontext()

    @property
    def words(self) -> str:
        precision = "bfloat16 autocast" if self.amp else "no autocast"
        return f"{self.name} on {self.inputs.device}, {self.optimizer}, {precision}"


def draw(kind: str, device: str, optimizer: str, amp: bool) -> Case:
    if kind == "text":
        words, width, length = random.randrange(90, 120), 4 * random.randrange(6, 10), random.randrange(7, 12)
        model: nn.Module = Tied(words, width, length)
        inputs = torch.randint(words, (random.randrange(3, 6), length))
        name = "a model with tied weights, a frozen table and dropout"
    else:
        model = pictures(random.randrange(9, 15), random.randrange(5, 9))
        inputs = torch.randn(random.randrange(3, 6), 3, 16, 16)
        name = "a network with BatchNorm, pooling and a frozen first layer"
    if kind == "half":
        model, inputs, name = model.bfloat16(), inputs.bfloat16(), name + ", in bfloat16"
    model.to(device)
    for p in model.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad and kind == "pictures" else None  # of a step before
    return Case(name, model, inputs.to(device), optimizer, amp)


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(parameters)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "momentum" else 0.0)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes by storage."""
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


@dataclass
class Truth:
    """A step that was really done: the bytes of each bucket, and what known mistakes come to."""

    bytes: dict[str, int]
    mistakes: dict[str, list[tuple[int, str, str, str]]] = field(default_factory=dict)


def measure(case: Case) -> Truth:
    """Train one step on a copy, and count; to be run in a thread of its own."""
    model = copy.deepcopy(case.model)
    saved: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    handles = [m.register_forward_hook(lambda m, a, y: outputs.append(y.detach())) for m in model.modules()]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), case.autocast():
        out = model(case.inputs)
    for handle in handles:
        handle.remove()
    parameters, buffers = list(model.parameters()), list(model.buffers())
    own, given = storages([*parameters, *buffers]), storages([case.inputs])
    kept = storages(saved)
    activations = sum(n for key, n in kept.items() if key not in own and key not in given)
    optimizer = make_optimizer(case.optimizer, model.parameters())
    out.float().sum().backward()
    gradients = sum(storages(p.grad for p in parameters if p.grad is not None).values())
    optimizer.step()
    states = [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
    truth = Truth(
        {
            "weights": sum(storages(parameters).values()),
            "buffers": sum(storages(buffers).values()),
            "gradients": gradients,
            "optimizer_state": sum(storages(t for t in states if isinstance(t, torch.Tensor)).values()),
            "activations": activations,
        }
    )
    truth.mistakes = _mistakes(case, model, truth.bytes, saved, outputs, out)
    return truth


Known = list[tuple[int, str, str, str]]


def _mistakes(
    case: Case,
    model: nn.Module,
    right: dict[str, int],
    saved: list[torch.Tensor],
    outputs: list[torch.Tensor],
    out: torch.Tensor,
) -> dict[str, Known]:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    tensors = [*parameters, *buffers]
    every = [p for module in model.modules() for p in module.parameters(recurse=False)]
    state = model.state_dict(keep_vars=True)
    named = [state[name] for name, _ in model.named_buffers() if name in state]
    frozen = [p for p in parameters if not p.requires_grad]
    trained = [p for p in parameters if p.requires_grad]
    twice = sum(p.nbytes for p in every) - right["weights"]
    each_time = sum(b.nbytes for module in model.modules() for b in module.buffers(recurse=False))
    halves = (
        "autocast rounds copies of the weights for the forward pass; weights, gradients and states stay as they are"
    )
    own, given = storages(tensors), storages([case.inputs])
    alone = {key: n for key, n in storages(saved).items() if key not in own and key not in given}
    several = sum(t.nbytes for t in saved if not storages([t]).keys() & (own.keys() | given.keys()))
    as_views = sum(
        {
            t.untyped_storage()._cdata: t.nbytes
            for t in saved
            if not storages([t]).keys() & (own.keys() | given.keys())
        }.values()
    )
    saved_as = {t.data_ptr(): t.untyped_storage().nbytes() for t in saved}
    by_address = sum(n for key, n in saved_as.items() if key not in {t.data_ptr() for t in (*tensors, case.inputs)})
    in_state = {t.untyped_storage()._cdata for t in state.values()}
    floats = sum(
        n for key, n in alone.items() if any(t.is_floating_point() for t in saved if t.untyped_storage()._cdata == key)
    )
    per = {"adamw": 2, "momentum": 1, "sgd": 0}[case.optimizer]
    once = "a parameter is in memory once, however many modules use it: model.parameters() names it once"
    sharing = "a layer's input is the output of the one before, and both save it; views share one storage too: count "
    sharing += "each storage once, by t.untyped_storage().data_ptr()"
    weights: Known = [
        (right["weights"] + twice, "tied weights are counted twice", once, FOUR_BUCKETS),
        (right["weights"] - sum(p.nbytes for p in frozen), "frozen parameters are not counted as weights",
         "they get no gradient, but they are in memory", FOUR_BUCKETS),
        (right["weights"] + right["buffers"], "the buffers are counted as weights",
         "they have a bucket of their own here", FOUR_BUCKETS),
        (right["weights"] // 2, "the weights are halved under autocast", halves, SEVEN_BILLION),
        (sum(4 * p.numel() for p in parameters), "every parameter is taken for float32",
         "p.element_size() is the bytes of one element: 2 in bfloat16", SEVEN_BILLION),
        (sum(p.numel() for p in parameters), "elements are counted, not bytes",
         "an element of float32 takes 4 bytes: p.nbytes, or p.numel() * p.element_size()", SEVEN_BILLION),
    ]  # fmt: skip
    gradients: Known = [
        (right["weights"], "frozen parameters are given gradients",
         "backward leaves nothing in .grad where requires_grad is False", FOUR_BUCKETS),
        (right["gradients"] // 2, "the gradients are halved under autocast",
         "a gradient has its parameter's dtype, float32: " + halves, SEVEN_BILLION),
        (2 * sum(p.numel() for p in parameters), "the gradients are halved under autocast",
         "a gradient has its parameter's dtype, float32: " + halves, SEVEN_BILLION),
        (sum(p.nbytes for p in every if p.requires_grad), "tied weights get two gradients", once, FOUR_BUCKETS),
        (sum(4 * p.numel() for p in trained), "every gradient is taken for float32",
         "a gradient has the dtype of its parameter", SEVEN_BILLION),
        (0, "no gradients are predicted", "before the first step there are none: predict what backward will leave",
         FOUR_BUCKETS),
    ]  # fmt: skip
    states: Known = [
        (per * right["weights"], "frozen parameters are given optimizer state",
         "a parameter without a gradient is skipped by step(), and has no state", FOUR_BUCKETS),
        *([(right["optimizer_state"] // 2, "the optimizer state is halved under autocast",
            "autocast does not halve the state: " + halves, SEVEN_BILLION)] if case.amp else []),
        (right["optimizer_state"] // 2, "one Adam moment is counted, not two" if per == 2 else "the state is halved",
         "Adam keeps a running mean of the gradient and one of its square, each as large as the parameter" if per == 2
         else halves, SEVEN_BILLION),
        (2 * sum(p.nbytes for p in trained), "every optimizer is taken for Adam",
         "SGD keeps nothing, and one value for each weight with momentum", FOUR_BUCKETS),
        (per * sum(4 * p.numel() for p in trained), "the state of every parameter is taken for float32",
         "a moment has the dtype of its parameter, as its gradient has", SEVEN_BILLION),
        (0, "no optimizer state is predicted",
         "before the first step there is none: Adam makes two tensors for each parameter, momentum one", FOUR_BUCKETS),
        (right["optimizer_state"] + right["gradients"], "the gradients are counted as optimizer state",
         "they have a bucket of their own: Adam's state are two tensors for each parameter", FOUR_BUCKETS),
    ]  # fmt: skip
    buffer_mistakes: Known = [
        (each_time, "a buffer that two modules have is counted twice",
         "it is in memory once, however many modules use it: model.buffers() names it once", FOUR_BUCKETS),
        (0, "the buffers are forgotten",
         "running statistics and tables are tensors in memory too: model.buffers()", FOUR_BUCKETS),
        (sum(t.nbytes for t in named), "buffers that are not saved are forgotten",
         "state_dict() leaves out what is registered with persistent=False, and it takes memory all the same: "
         "model.buffers()", FOUR_BUCKETS),
        (4 * sum(b.numel() for b in buffers), "every buffer is taken for float32",
         "b.element_size() says it: counters are int64", FOUR_BUCKETS),
    ]  # fmt: skip
    leaves = outputs[:-1] if outputs else outputs
    sums = {sum(t.nbytes for t in outputs), sum(t.nbytes for t in leaves), sum(storages(outputs).values())}
    activations: Known = [
        (0, "no activations are predicted", "under no_grad nothing is kept: predict a pass that backward follows",
         KEEPS),
        (as_views, "a view is counted with its own bytes, not with its storage's",
         "a slice that is saved keeps all of its tensor alive: count tensor.untyped_storage().nbytes(), not "
         "tensor.nbytes", KEEPS),
        (by_address, "two views of one storage are counted as two storages",
         "tensor.data_ptr() is where the view begins, and the halves of a tensor begin at different places: "
         "tensor.untyped_storage().data_ptr() is the same for both", KEEPS),
        (sum(alone.values()) + sum(n for k, n in storages(saved).items() if k in own and k not in in_state),
         "a buffer that is not saved in the state_dict is counted as an activation",
         "state_dict() leaves out what is registered with persistent=False, and it was there before all the same: "
         "take the storages that do not count from model.parameters() and model.buffers()", KEEPS),
        (several, "shared storage is counted more than once", sharing, KEEPS),
        (sum(t.nbytes for t in saved), "all that is saved is added up: weights, inputs and shared storage too",
         sharing + ", and leave out those of parameters, buffers and inputs", KEEPS),
        (sum(alone.values()) + sum(n for k, n in storages(saved).items() if k in own or k in given),
         "saved weights or inputs are counted as activations",
         "autograd saves them, but they were there before: leave out the storages of parameters, buffers and inputs",
         KEEPS),
        (sum(alone.values()) + sum(n for k, n in storages(saved).items() if k in given),
         "the inputs are counted as activations", "they were there before, and belong to the caller: leave them out",
         KEEPS),
        (sum(alone.values()) + sum(n for k, n in storages(saved).items() if k in own),
         "saved weights are counted as activations",
         "autograd saves them for backward, but they were there before: leave out the storages of parameters and "
         "buffers", KEEPS),
        (floats, "masks and indices are forgotten",
         "dropout keeps a mask, pooling the place of each maximum (int64), embedding its ids: backward needs them",
         KEEPS),
        *((value, "activations are taken for the sum of the modules' outputs",
           "an output is kept only where backward wants it; masks, indices and statistics are kept beside. Count what "
           "autograd saves: torch.autograd.graph.saved_tensors_hooks", KEEPS) for value in sums),
        (sum((storages([*saved, out]).get(k, 0)) for k in (alone.keys() | storages([out]).keys()) - own.keys()),
         "the output is counted though backward does not need it",
         "it is alive while somebody holds it, but autograd does not keep it: count what is saved", KEEPS),
    ]  # fmt: skip
    return {
        "weights": weights,
        "buffers": buffer_mistakes,
        "gradients": gradients,
        "optimizer_state": states,
        "activations": activations,
    }


@check(
    lesson=4,
    says="all five buckets as a real step fills them, to the byte, on the CPU and on a GPU",
    imports=[OPTIMIZERS],
)
def memory_buckets(student: Any, trial: Trial) -> None:
    """Check a function of (model, inputs, optimizer, amp): it predicts the bytes of "weights", "buffers", "gradients",
    "optimizer_state" and "activations" of a training step, in a dict."""
    trial.function(student, ("model", "inputs", "optimizer", "amp"))
    for kind, optimizer, amp in (
        ("text", "adamw", False),
        ("pictures", "momentum", False),
        ("half", "adamw", False),
        ("text", "adamw", True),
    ):
        _judge(student, trial, kind, "cpu", optimizer, amp, no_gpu())
    with gpus(1):
        _judge(student, trial, "text", "cuda", "adamw", False)
        _judge(student, trial, "pictures", "cpu", "sgd", True)
        _judge(student, trial, "text", "cuda", "sgd", True)


# What `_judge_unchanged` compares itself, in its own words.
JUDGED: frozenset[Kind] = frozenset(("parameters", "buffers", "grad", "mode"))


def _judge(
    student: Any,
    trial: Trial,
    kind: str,
    device: str,
    optimizer: str,
    amp: bool,
    inside: AbstractContextManager[Any] | None = None,
) -> None:
    made: list[Case] = trial.call(lambda: [draw(kind, device, optimizer, amp)])
    case = made[0]
    truth: Truth = trial.call(lambda: measure(case))
    before = [(name, b, b.clone()) for name, b in case.model.named_buffers()]
    modes = [module.training for module in case.model.modules()]
    weights = [(p, p.detach().clone()) for p in case.model.parameters()]
    gradients = [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in case.model.parameters()]
    got = trial.call(
        lambda: student(case.model, case.inputs, optimizer, amp),
        besides={"model": case.model, "inputs": case.inputs},
        inside=inside,
        may_change={"model": JUDGED},
        explain=_explain,
    )
    trial.expect(
        isinstance(got, dict) and set(got) == set(BUCKETS),
        "what comes back is not the dict that is asked for",
        expected=f"a dict with {', '.join(BUCKETS)}",
        got=show(list(got) if isinstance(got, dict) else got),
        likely="the function ends without a return" if got is None else "its keys are these five",
        read=FOUR_BUCKETS,
    )
    for name in BUCKETS:
        _judge_bucket(trial, name, got[name], truth, case, beside_a_gpu=inside is None)
    _judge_gradients(trial, gradients)
    _judge_unchanged(trial, case, before, modes, weights)


def _judge_bucket(trial: Trial, name: str, got: Any, truth: Truth, case: Case, *, beside_a_gpu: bool) -> None:
    want = truth.bytes[name]
    number = is_number(got)
    if is_whole(got) and got == want:
        return
    rows = {"expected": f"{want:,} bytes of {name}: {case.words}", "got": show(got)}
    if number:
        got = as_float(got)
        rows["got"] = f"{got:,}" if got % 1 else f"{got:,.0f}"
        trial.expect(
            got != want,
            f"{name} is not an int",
            likely="bytes are whole numbers: p.nbytes is an int, and so is a sum of such; int(…) makes one of a float",
            read=FOUR_BUCKETS,
            **rows,
        )
    trial.expect(number, f"{name} is not a number of bytes", likely="an int for each bucket", read=FOUR_BUCKETS, **rows)
    for value, summary, likely, section in truth.mistakes[name]:
        if got == value != want:
            trial.fail(summary, likely=likely, read=section, **rows)
    if name == "activations" and case.amp:
        plain = measure(Case(case.name, case.model, case.inputs, case.optimizer, False)).bytes[name]
        trial.expect(
            got != plain,
            "the activations are those of float32: autocast is on for another type of device, or for none"
            if beside_a_gpu
            else "the activations are those of float32, though the pass runs under autocast",
            likely="it works on tensors of its own type of device only, and there may be a GPU beside a model on the "
            "CPU: torch.autocast(inputs.device.type, dtype=torch.bfloat16)"
            if beside_a_gpu
            else "run the pass that you count under torch.autocast(device_type, dtype=torch.bfloat16)",
            read=KEEPS,
            **rows,
        )
        trial.expect(
            got != plain // 2,
            "autocast is taken to halve all activations",
            likely="norms and losses stay in float32, masks and ids are not rounded, and copies of the weights come on "
            "top: count the pass itself",
            read=KEEPS,
            **rows,
        )
    if name == "activations":
        quiet = copy.deepcopy(case.model).eval()
        evaluating = measure(Case(case.name, quiet, case.inputs, case.optimizer, case.amp)).bytes[name]
        trial.expect(
            got != evaluating,
            "the activations are those of evaluation mode",
            likely="without dropout there is no mask, without batch statistics nothing of them is kept: count the pass "
            "in the mode that trains",
            read=KEEPS,
            **rows,
        )
    if name == "activations" and case.inputs.is_cuda:
        on_the_cpu = Case(case.name, copy.deepcopy(case.model).cpu(), case.inputs.cpu(), case.optimizer, case.amp)
        trial.expect(
            got != measure(on_the_cpu).bytes[name],
            "the activations are counted on the CPU, though the model is on a GPU",
            likely="kernels differ in what they keep: dropout's mask has 1 byte for each element on a GPU, 4 on the "
            "CPU. Run the pass where the model is",
            read=KEEPS,
            **rows,
        )
    if want and abs(got * MIB / want - 1) < 0.05:
        trial.fail(f"{name} is in MiB, not in bytes", likely="the docstring asks for bytes", read=FOUR_BUCKETS, **rows)
    trial.fail(
        f"{name} is not what a step fills",
        likely="do one step on a copy, and count storages: parameters, buffers, .grad, optimizer.state, and what "
        "autograd saves",
        read=KEEPS if name == "activations" else FOUR_BUCKETS,
        **rows,
    )


def _judge_gradients(trial: Trial, before: list[tuple[nn.Parameter, torch.Tensor | None, int]]) -> None:
    """Of a step before, if there are any: they stay, and nothing is added to them."""
    gone = sum(grad is not None and p.grad is not grad for p, grad, _ in before)
    trial.expect(
        not gone,
        "the gradients that were there are gone",
        expected=".grad as it was, of a step before",
        got=f"{gone} of {len(before)} gradients are None, or others",
        likely="zero_grad() belongs to the caller, who may be in the middle of an accumulation",
        read=FOUR_BUCKETS,
    )
    trial.expect(
        all((-1 if p.grad is None else p.grad._version) == version for p, _, version in before),
        "the model came back with other gradients",
        expected=".grad as it was: a prediction trains nothing",
        got="more in .grad than before, or less",
        likely="backward ran on the caller's model: a forward pass is enough, or a copy.deepcopy of it",
        read=FOUR_BUCKETS,
    )


def _judge_unchanged(
    trial: Trial,
    case: Case,
    before: list[tuple[str, torch.Tensor, torch.Tensor]],
    modes: list[bool],
    weights: list[tuple[nn.Parameter, torch.Tensor]],
) -> None:
    shapes = case.inputs.device.type == "cuda"  # no values there
    trial.expect(
        shapes or all(torch.equal(p, old) for p, old in weights),
        "the model came back with other weights",
        expected="the weights as they were: a prediction trains nothing",
        got="other weights",
        likely="an optimizer's step on the caller's model: take a copy.deepcopy of it",
        read=FOUR_BUCKETS,
    )
    trial.expect(
        modes == [module.training for module in case.model.modules()],
        "the model came back in another mode",
        expected="training mode, as it was",
        got="evaluation mode",
        likely="eval() was called: it also takes away dropout's mask",
        read=KEEPS,
    )
    now = dict(case.model.named_buffers())
    moved = [
        name for name, old, copied in before if now.get(name) is not old or not (shapes or torch.equal(old, copied))
    ]
    trial.expect(
        not moved,
        "the forward pass has changed the model's running statistics",
        expected="the buffers as they were",
        got=f"other values in {', '.join(moved)}",
        likely="in training mode BatchNorm updates its buffers in every forward pass: run the pass on a copy.deepcopy "
        "of the model",
        read=KEEPS,
    )


def _explain(error: str) -> str:
    if "expected scalar type" in error or "must have the same dtype" in error:
        return "models come in several dtypes: feed what you were given, and make no tensors of your own"
    return ""
