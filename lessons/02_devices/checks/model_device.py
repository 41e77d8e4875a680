"""Checks exercise 02.2, "is the whole model there?": buffers, devices without an index, and the error's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from gpulab.exercise.audit import ANYTHING, Audit
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.machines import without_gpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import text_of

SEE, MODEL, SEVERAL = "Seeing where things are", "What .to does to a model", "Several GPUs"
NONE = "The same questions where there is no GPU"
THERE, ELSEWHERE = "error for a model that is there", "error for a model that is elsewhere"
CURRENT, OTHER = "error for “cuda” and the current GPU", "error for “cuda” and another GPU"
EMPTY, ALONE = "error for a model without tensors", "error on a machine without a GPU"
PARAMETERS, BUFFERS = "error for parameters elsewhere", "error for buffers elsewhere"
MISSING, SHORT = "tensors elsewhere that it does not name", "tensors elsewhere without their full name"
EXTRA, DEVICES = "tensors named that are there", "devices that it does not name"
EACH, CHANGED = "the text, where two tensors change devices", "changed in the model"
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, summary, rule, read in (
        ([EMPTY], "One without any tensors is always accepted", "a model without tensors was rejected",
         "if no tensor is elsewhere, raise nothing", SEE),
        ([ALONE], "Works on a machine without a GPU too", "a model on the CPU was rejected on a machine without a GPU",
         "the device is the CPU, and everything is on it", NONE),
        ([CURRENT, OTHER], 'Without a number, as "cuda", it means the current GPU',
         "“cuda” was not treated as the current GPU",
         "a model on the current GPU is in the right place, one on another GPU is not", SEVERAL),
        ([THERE, ELSEWHERE], "Raise ValueError unless every parameter and every buffer of `model` is on `device`",
         "a model in the right place was rejected, or one elsewhere was accepted",
         "each GPU has memory of its own, and so has the CPU", SEE),
        ([PARAMETERS], "every parameter", "a model with a parameter elsewhere was accepted",
         "every parameter counts, frozen ones too", SEE),
        ([BUFFERS], "every buffer of `model` is on `device`", "a model with buffers elsewhere was accepted",
         "every buffer counts, at any depth, saved in the state_dict or not", MODEL),
        ([MISSING], "The message names every tensor that is elsewhere",
         "the error does not name every tensor that is elsewhere",
         "all parameters and buffers, however many", SEE),
        ([SHORT], "by its full name such as", "the error names a tensor by only a part of its name",
         "the name from the model down to the tensor, with its dots", SEE),
        ([EXTRA], "and no other", "the error names tensors that are in the right place",
         "name only those that are elsewhere", SEE),
        ([DEVICES, EACH], "and the device that each is on", "the error does not say where each of them is",
         "give each tensor's actual device", SEE),
        ([CHANGED], "which is not changed", "the model was changed",
         "the function only looks, and must not change anything", MODEL),
    )
]  # fmt: skip
NO_GPU = "cpu, without a GPU"
NOTHING, ON_ANOTHER, ON_OTHER_KIND = "nothing", "all, on another GPU", "all, on another kind of device"
PARTS = {
    "a frozen bias": {"last.bias": "cpu"},
    "a mask": {"mask": "cuda:0"},
    "running averages": {"block.1.running_mean": "cpu", "block.1.running_var": "cpu"},
    "a buffer that is not saved": {"window": "meta"},
    "two tensors": {"scale": "cpu", "block.1.num_batches_tracked": "cuda:0"},
}
EDGES = {
    "elsewhere": (NOTHING, ON_ANOTHER, ON_OTHER_KIND, *PARTS),
    "asked": (("cuda:0", 1), ("cuda:1", 0), ("cuda", 1), ("cpu", 0), (NO_GPU, 0)),  # and which GPU is current
    "given": (str, torch.device),
    "model": ("layers", "many layers", "buffers alone", "no tensors"),
}


class Layers(nn.Module):
    """Parameters at two depths, one of them tied, a parameter and a buffer that are None, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first = nn.Linear(2, 2)
        self.block = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
        self.last = nn.Linear(2, 2)
        self.last.weight = self.first.weight
        self.last.bias.requires_grad_(False)
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("window", torch.ones(2), persistent=False)
        self.register_buffer("cache", None)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": Layers,
    "many layers": lambda: nn.ModuleDict({f"{letter}_layer": nn.Linear(1, 1) for letter in "abcdefghijk"}),
    "buffers alone": lambda: nn.BatchNorm1d(2, affine=False),
    "no tensors": nn.ReLU,
}


def tensors_of(model: nn.Module) -> list[tuple[torch.device, list[str]]]:
    """The device of each, and its names: a tied one has several."""
    found: dict[int, tuple[torch.device, list[str]]] = {}
    parameters, buffers = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    for name, tensor in [*parameters, *buffers]:
        found.setdefault(id(tensor), (tensor.device, []))[1].append(name)
    return list(found.values())


def leave(model: nn.Module, name: str, place: str) -> None:
    """Put another tensor, which is on `place`, where the one with this name is."""
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    old = getattr(module, own)
    new = old.detach().to(place)
    setattr(module, own, nn.Parameter(new, old.requires_grad) if own in module._parameters else new)


def says(text: str, name: str) -> bool:
    """Whether the name stands in the text, and is no part of another one."""
    return bool(re.search(rf"(?<!\w)(?<!\w\.){re.escape(name)}(?!\w)(?!\.\w)", text.replace("model.", "")))


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    (wanted, current), places = scene.asked, PARTS.get(scene.elsewhere, {})
    facts = Facts(f"{scene.model}, elsewhere {scene.elsewhere}; {wanted} is asked for, GPU {current} is current")
    texts = [look(call, scene, facts, places)]
    if len({*places.values()}) > 1 and facts.hold():
        texts.append(look(call, scene, facts, dict(zip(places, reversed(places.values()), strict=True))))
        facts.add(EACH, "the same" if texts[0] == texts[1] else "another", "another")
    facts.about += f"; the error says “{texts[0][:100]}”" if texts[0] else ""
    return facts


def look(call: Callable[..., Any], scene: Scene, facts: Facts, places: dict[str, str]) -> str:
    """Call it with a model of which the tensors with these names are on these places: what the error says."""
    (wanted, current), raised = scene.asked, list[Exception]()

    def through(student: Callable[..., Any], model: nn.Module, device: Any) -> None:
        try:
            student(model, device)
        except NotImplementedError:  # the exercise may not be written yet
            raise
        except Exception as error:
            if scene.elsewhere == NOTHING and not isinstance(error, ValueError):
                raise
            raised.append(error)

    with virtual_gpu(count=2), without_gpu() if wanted == NO_GPU else nullcontext():
        device = torch.device({"cuda": f"cuda:{current}", NO_GPU: "cpu"}.get(wanted, wanted))
        another, kind = f"cuda:{int(device.index != 1)}", "meta" if device.type == "cpu" else "cpu"
        place = {ON_ANOTHER: another, ON_OTHER_KIND: kind}.get(scene.elsewhere, str(device))
        model = MODELS[scene.model]().to(torch.device(place))
        for name, place in places.items():
            leave(model, name, place)
        tensors, audit = tensors_of(model), Audit({"model": model}, {})
        inside = nullcontext() if wanted == NO_GPU else torch.cuda.device(current)
        call(model, scene.given(wanted.split(",")[0]), through=through, may_change={"model": ANYTHING}, inside=inside)
        facts.add(CHANGED, [change.words for change in audit.changes()][:3], [])
    return judge(facts, scene, tensors, device, raised[0] if raised else None)


def judge(
    facts: Facts, scene: Scene, tensors: list[tuple[torch.device, list[str]]], device: torch.device, error: Any
) -> str:
    """What is raised, and what it says; that is returned."""
    wanted, elsewhere = scene.asked[0], scene.elsewhere
    if elsewhere == NOTHING:
        fact = EMPTY if scene.model == "no tensors" else {"cuda": CURRENT, NO_GPU: ALONE}.get(wanted, THERE)
    elif elsewhere in PARTS:
        fact = PARAMETERS if elsewhere in ("a frozen bias", "two tensors") else BUFFERS
    else:
        fact = OTHER if (wanted, elsewhere) == ("cuda", ON_ANOTHER) else ELSEWHERE
    kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
    facts.add(fact, kind if error else "none", "none" if elsewhere == NOTHING else "ValueError")
    text = text_of(error, 10_000) if error else ""
    if facts.wanted[fact] == kind:
        away = [(place, names) for place, names in tensors if place != device]
        missing = [names[0] for _, names in away if not any(says(text, name) for name in names)]
        short = [name for name in missing if "." in name and says(text, name.rpartition(".")[2])]
        facts.add(MISSING, [name for name in missing if name not in short][:3], [])
        facts.add(SHORT, short[:3], [])
        facts.add(EXTRA, [n for place, names in tensors if place == device for n in names if says(text, n)][:3], [])
        places = {place for place, names in away if names[0] not in missing or names[0] in short}
        facts.add(DEVICES, sorted(str(p) for p in places if str(p) not in text and repr(p) not in text), [])
    return text


def possible(scene: Scene) -> bool:
    part, whole = scene.elsewhere in PARTS, scene.elsewhere in (ON_ANOTHER, ON_OTHER_KIND)
    if part != (scene.asked == ("cuda:1", 0)) or (part and scene.model != "layers"):
        return False
    return not whole or (scene.model != "no tensors" and scene.asked[0] != NO_GPU)


EXERCISE = Contract(
    __file__,
    says="every parameter and buffer is checked, “cuda” is the current GPU, and the error gives the names",
    parameters=("model", "device"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    hides=lambda scene: ("asked", "given") if scene.elsewhere in PARTS or scene.model == "no tensors" else (),
    errors={
        "AssertionError": "python -O removes every assert: raise ValueError",
        "StopIteration": "next() of nothing raises StopIteration: a model may have no parameters at all",
        "No CUDA GPUs": "torch.cuda.current_device() raises where there is no GPU: ask for it only when a GPU is meant",
        "object has no attribute 'type'": "the device may be a string: torch.device(device) makes a device of it",
        "Cannot copy out of meta tensor": "the function looks at the model, and must not move it",
    },
)
