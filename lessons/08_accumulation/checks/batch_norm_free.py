"""Checks a replacement for BatchNorm: every norm in every place, with its learned values, in a copy."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import ANYTHING
from gpulab.exercise.contract import Clause, Contract, Facts, Near, holds
from gpulab.exercise.measure import equal_tensors, virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

from .common import BATCH_NORM

LEFT, NAMES, PLACES = "BatchNorms left", "names of parts that differ", "weights and biases elsewhere"
OUTPUTS = ("what the norms give for zeros, their biases", "what they give for large inputs, their weights",
           "what they give for small inputs, which eps makes smaller", "what they give for drawn inputs")  # fmt: skip
PROMISES = (  # a sentence, its facts, what is told of an answer that breaks it, and what holds whatever the mistake is
    ("Returns the copy", ["what came back"], "the function does not return a model", "return the whole copy"),
    ("every BatchNorm", [LEFT], "some BatchNorms are still there",
     "all three classes, in any mode, at any depth, and in both places of one that is used twice"),
    ("the old one's name, mode and eps", [NAMES, "norms in another mode", OUTPUTS[2]],
     "a new norm has another name, mode or eps than the old one",
     "setattr(parent, name, norm) keeps the name; the mode is in .training, eps in .eps"),
    ("a GroupNorm of `groups` groups", ["forms of what the norms give", OUTPUTS[3]],
     "a norm's output differs from that of the group norm asked for",
     "call one of them alone, and compare with torch.nn.functional.group_norm"),
    ("a weight and bias of the same values", [*OUTPUTS[:2]],
     "a new norm's weight or bias differs from the old one's",
     "a new GroupNorm starts at weight 1 and bias 0"),
    ("dtype, device and requires_grad, or none if the old one has none (affine=False)", [PLACES, "trained numbers"],
     "a new norm's weight and bias have another dtype, device or requires_grad than the old one's",
     "a new Parameter is float32, on the CPU, and requires a gradient; the old one may differ, or be missing"),
    ("A weight that is shared in `model` is shared in the copy", ["weights more than in the model"],
     "a shared weight is no longer shared in the copy",
     "they would be trained separately: a norm in two places has one weight and one bias, and norms that share a "
     "weight have one"),
    ("in memory of its own", ["parts of the original"], "the copy and the original share parts",
     "copy.copy shares the parts: copy.deepcopy does not"),
    ("Everything else in the copy is as in `model`", ["changes in the rest", "output", "gradients"],
     "something besides the norms differs from the model", "copy the model, replace the norms, touch nothing else"),
)  # fmt: skip
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
KINDS: dict[str, tuple[Any, Any, tuple[int, ...], int]] = {  # the norm, one that stays, sizes of inputs, groups
    "BatchNorm1d of (N, C)": (nn.BatchNorm1d, partial(nn.LayerNorm, elementwise_affine=False), (), 4),
    "BatchNorm1d of (N, C, L)": (nn.BatchNorm1d, nn.InstanceNorm1d, (6,), 2),
    "BatchNorm2d": (nn.BatchNorm2d, nn.InstanceNorm2d, (2, 3), 4),
    "BatchNorm3d": (nn.BatchNorm3d, nn.InstanceNorm3d, (2, 1, 3), 2),
}
EDGES = {
    "kind": tuple(KINDS),
    "affine": (True, False),  # of one of the norms
    "dtype": (torch.float64, torch.bfloat16),  # norms are in float32 there
    "device": ("cpu", "cuda:1"),  # of the block
    "training": (True, False),  # the block is in the other mode
}


class Mix(nn.Linear):
    """A layer over the channels, in the model's dtype. What it returns is in that of the norms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x.to(self.weight).movedim(1, -1)).movedim(-1, 1)
        return out.to(torch.promote_types(out.dtype, torch.float32))


class Residual(nn.Sequential):
    """Parts with names, and a way around them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for part in self:
            out = part(out)
        return x + out


def halve(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    """A hook that the model has."""
    return out / 2


def network(scene: Scene) -> nn.Module:
    """Each norm has an eps and a bias of its own, and a weight, but for the last two, which share it; some are frozen.
    A norm stands twice in the Sequential, one in two modules, a block twice, and a weight in two layers."""
    kind, other, *_ = KINDS[scene.kind]

    def mix(before: int, after: int) -> nn.Module:  # drawn in float32: PyTorch's versions draw 16-bit numbers otherwise
        return Mix(before, after, bias=False).to(scene.dtype)

    norm = partial(kind, dtype=torch.promote_types(scene.dtype, torch.float32))
    first, last, inner, after = norm(8, 1e-3), norm(24, 2e-3), norm(8, 3e-3, track_running_stats=False), norm(24, 5e-3)
    after.weight = last.weight
    inside, tied, frozen = mix(8, 8), mix(8, 8), mix(8, 8)
    rest = nn.Sequential(nn.ReLU(), nn.Sequential(mix(8, 8), norm(8, 4e-3, affine=scene.affine)))
    block = Residual(OrderedDict(mix=inside, norm=inner, rest=rest)).to(scene.device)
    block.register_buffer("calls", torch.ones(()), persistent=False)
    tied.weight = inside.weight
    begin = mix(3, 8), first, nn.ReLU(), block, nn.Dropout(0.0), block
    model = nn.Sequential(*begin, tied, inner, frozen, first, other(8), mix(8, 24), last, after).train(scene.training)
    block.train(not scene.training)
    model.register_forward_hook(halve)
    for module in (m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.affine):
        module.weight.data.uniform_(1.5, 2.5)
        module.bias.data.uniform_(-1.5, -0.5)
    for p in (first.weight, inner.weight, inner.bias, frozen.weight):
        p.requires_grad_(False)
    return model


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    *_, sizes, groups = KINDS[scene.kind]
    dtype, mode = str(scene.dtype)[6:], "training" if scene.training else "evaluation"
    facts = Facts(f"{scene.kind}, {groups} groups, {dtype}, {mode}, parts 3 and 5 on {scene.device}")

    def group_norm(old: Any, x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, groups, old.weight, old.bias, old.eps)

    with virtual_gpu(count=2):
        model = network(scene)
        new = call(model, groups)
        back = "the model itself" if new is model else "a model" if isinstance(new, nn.Module) else brief(new, 40)
        facts.add("what came back", back, "a model")
        if not facts.hold() or not compare_names(facts, model, new):
            return facts
        norms = compare_parts(facts, model, new)
        if facts.seen[PLACES]:
            return facts
        xs = [probe(old, sizes) for old, _ in norms]
        outs = [
            call(now, x, through=lambda _, norm, x: norm(x), may_change={"norm": ANYTHING}, who="a new norm")
            for (_, now), x in zip(norms, xs, strict=True)
        ]
        forms = [[f"{place_of(t)} {list(getattr(t, 'shape', []))}" for t in one] for one in (outs, xs)]
        facts.add("forms of what the norms give", *forms)
        right = [group_norm(old, x) for (old, _), x in zip(norms, xs, strict=True)]
        fine = True
        for name in OUTPUTS if forms[0] == forms[1] else ():
            facts.seen[name] = answer(outs, name)
            if fine:  # what is wrong shows in all that follow
                facts.wanted[name] = Near(answer(right, name), 1e-3)
                fine = holds(facts, name)
        if facts.hold() and scene.device == "cpu":
            x = torch.randn(4, 3, *sizes).to(scene.dtype)
            both = call(new, x, through=lambda _, new, x: run(new, x), may_change={"new": ANYTHING}, who="the copy")
            for norm, _ in norms:
                norm.register_forward_hook(lambda old, args, out: group_norm(old, *args))
            within = 0.02 if scene.dtype == torch.bfloat16 else 1e-6
            for name, got, true in zip(("output", "gradients"), both, run(model, x), strict=True):
                facts.add(name, got, Near(true, within))
    return facts


def places_of(model: nn.Module) -> list[tuple[str, Any]]:
    """Every module in every place."""
    return list(model.named_modules(remove_duplicate=False))


def compare_names(facts: Facts, model: nn.Module, new: nn.Module) -> bool:
    """Where there still is a BatchNorm, and where the parts of the model are; whether it makes sense to go on."""
    old = dict(places_of(model))
    left = [(name, m) for name, m in places_of(new) if type(m) in (*BATCH_NORMS, nn.SyncBatchNorm)]
    facts.add(LEFT, [name for name, _ in left], [])
    keys = "training", "momentum", "track_running_stats", "forward"
    other = {key for name, m in left for key in keys if vars(m).get(key) != vars(old.get(name, m)).get(key)}
    facts.seen["of those left"] = ", ".join(sorted({*other, *(type(m).__name__ for _, m in left)}))
    below = tuple(f"{name}." for name, module in old.items() if isinstance(module, BATCH_NORMS))  # parts of a new norm
    before, names = ([name for name, _ in places_of(one) if not name.startswith(below)] for one in (model, new))
    differ = [name for name in before + names if (name in before) != (name in names)]
    facts.add(NAMES, differ or ["their order"] * (before != names), [])
    return facts.hold()


def compare_parts(facts: Facts, model: nn.Module, new: nn.Module) -> list[tuple[Any, Any]]:
    """What can be told without a forward pass. Returns the norms, each once, with what stands in their places."""

    def marks_of(module: nn.Module) -> set[Any]:
        """What tells it and its memory from others."""
        return {module, *((str(t.device), t.untyped_storage().data_ptr()) for t in tensors(module).values())}

    def described(module: nn.Module) -> dict[str, Any]:
        """What has to be the same in the copy, but for its tensors' memory."""
        flags = {f"requires_grad of {key}": t.requires_grad for key, t in tensors(module).items()}
        return {"class": type(module), "mode": module.training, **tensors(module), **flags}

    def trained(norm: nn.Module) -> str:
        trains, fixed = (sum(p.numel() for p in norm.parameters() if p.requires_grad == is_) for is_ in (True, False))
        return f"{trains} of {trains + fixed}"

    both = [(name or "the copy", old, new.get_submodule(name)) for name, old in places_of(model)]
    places = [row for row in both if isinstance(row[1], BATCH_NORMS)]
    norms = list({old: (old, now) for _, old, now in places}.values())
    facts.add("norms in another mode", [name for name, old, now in places if old.training != now.training], [])
    rest = [(name, described(old), described(now)) for name, old, now in both if not isinstance(old, BATCH_NORMS)]
    changed = [f"{name}: {key}" for name, a, b in rest for key in a | b if not equal_tensors(a.get(key), b.get(key))]
    facts.add("changes in the rest", changed, [])
    marks = {mark for _, old, _ in both for mark in marks_of(old)}
    facts.add("parts of the original", [name for name, _, now in both if marks & marks_of(now)], [])
    facts.add("trained numbers", [trained(now) for _, now in norms], [trained(old) for old, _ in norms])
    moved = {place_of(p) for old, now in norms for p in now.parameters() if place_of(p) != place_of(first_of(old))}
    facts.add(PLACES, sorted(moved), [])
    more = len(list(new.parameters())) - len(list(model.parameters()))
    facts.add("weights more than in the model", max(0, more), 0)
    return norms


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Its own parameters and buffers."""
    return {key: t for key, t in (*module._parameters.items(), *module._buffers.items()) if t is not None}


def first_of(norm: nn.Module) -> torch.Tensor:
    return next(iter(tensors(norm).values()))


def place_of(tensor: Any) -> str:
    return f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, torch.Tensor) else brief(tensor)


def probe(norm: Any, sizes: tuple[int, ...]) -> torch.Tensor:
    """For each of `OUTPUTS` a sample (channels, *sizes). 1 and -1 in turn have a mean of 0 and a variance of 1 in every
    group of an even number of channels; eps is nothing to the large ones of them."""
    channels, positions = norm.num_features, math.prod(sizes)
    signs = 1.0 - 2.0 * ((torch.arange(channels).unsqueeze(1) + torch.arange(positions)) % 2)
    samples = torch.stack([0 * signs, 1e3 * signs, 0.05 * signs, torch.randn(signs.shape)])
    return samples.view(len(OUTPUTS), channels, *sizes).to(first_of(norm))


def answer(outs: list[torch.Tensor], name: str) -> torch.Tensor:
    """What the norms gave for this sample, and beside their biases; what is next to nothing is how they round."""
    number = OUTPUTS.index(name)
    found = torch.cat([(out[number] - out[0] * bool(number)).detach().double().cpu().flatten() for out in outs])
    return found.where(found.abs() > 0.01, 0.0)


def run(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """The output, and the norms of all gradients from the smallest to the largest."""
    x = x.clone().requires_grad_()
    out = model(x)
    (out * torch.arange(out.numel(), dtype=out.dtype).cos().view_as(out)).sum().backward()
    found = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return out.detach(), sorted(float(g.norm()) for g in found)


EXERCISE = Contract(
    __file__,
    says="no sample's output depends on others, so micro-batches add up to the full batch again",
    parameters=("model", "groups"),
    clauses=[Clause(*promise, BATCH_NORM) for promise in PROMISES],
    edges=EDGES,
    play=play,
    errors={
        "NoneType": "a norm with affine=False has no weight and no bias: both are None",
        'contain "."': "a name with dots is a path: set the norm on its parent, under the last part of the name",
        "divisible by num_groups": "nn.GroupNorm takes (num_groups, num_channels), in this order, and groups is given",
        "Unexpected key": "the state of a BatchNorm holds running statistics too: load weight and bias only",
    },
)
