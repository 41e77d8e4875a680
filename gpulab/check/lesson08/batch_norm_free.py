"""The check of a replacement for BatchNorm: every norm in every place, with what it had learned, in a copy."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import ANYTHING
from ..contract import Clause, Contract, Facts, Near, holds
from ..measure import same, virtual_gpu
from ..scenes import Scene
from ..wording import show
from .common import BATCH_NORM

VALUES = "what the norms give"
MEASURED = "groups of the norms", "eps of the norms", "weights of the norms", "biases of the norms", VALUES
LARGE, SMALL = 1e3, 0.05  # inputs to which eps is nothing, and to which it is not
FLAT = 0.1  # of outputs where the weights are 1 and more
PROMISES = (  # a sentence, its facts, what is told of an answer that breaks it, and what holds whatever the mistake is
    ("Returns the copy", ["what came back"], "a model is wanted back", "return the whole copy"),
    ("every BatchNorm", ["BatchNorms left"], "some BatchNorms are still there", "all three classes, in any mode"),
    ("at any depth", ["BatchNorms left further down"], "BatchNorms further down are still there",
     "named_modules gives those at every depth; each is set on its parent"),
    ("A BatchNorm that stands in two places is replaced in both", ["BatchNorms left in a second place"],
     "a BatchNorm that stands in two places is still there in one",
     "named_modules gives each module once; with remove_duplicate=False it gives each place"),
    ("the old one's name, mode and eps",
     ["names that are gone", "names that are new", "norms in another mode", "eps of the norms"],
     "a new norm has another name, mode or eps than the old one",
     "setattr(parent, name, norm) keeps the name; the mode is in .training, eps in .eps"),
    ("a GroupNorm of `groups` groups", ["outputs of another form", "groups of the norms", VALUES],
     "a norm gives other values than the group norm asked for",
     "call one of them alone, and compare with torch.nn.functional.group_norm"),
    ("a weight and bias of the same values", ["weights of the norms", "biases of the norms"],
     "a new norm has another weight, or another bias, than the old one",
     "a new GroupNorm starts at weight 1 and bias 0"),
    ("dtype, device and requires_grad", ["weights and biases elsewhere", "trained numbers"],
     "a new norm's weight and bias have another dtype, device or requires_grad than the old one's",
     "a new Parameter is float32, on the CPU, and requires a gradient; each old one may be otherwise"),
    ("none where it has none (affine=False)", ["numbers where there were none"],
     "a norm that had no weight and bias has some", "affine=False leaves them out of a GroupNorm, too"),
    ("What is one weight in `model` is one in the copy", ["weights that are no longer one"],
     "what was one weight is several in the copy",
     "they would be trained apart: a norm in two places has one weight and one bias, norms that share a weight one"),
    ("in memory of its own", ["parts of the original"], "the copy and the original share parts",
     "copy.copy takes over the parts: copy.deepcopy does not"),
    ("All else in the copy is as in `model`",
     ["order", "other classes", "other modes", "other values", "other requires_grad", "output", "gradients"],
     "something besides the norms is not as in the model", "copy the model, replace the norms, touch nothing else"),
)  # fmt: skip
CLAUSES = [Clause(*promise, BATCH_NORM) for promise in PROMISES]
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
Pair = tuple[str, Any, Any]  # the name of a part; the part of that name in the model, and in the copy


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
    first, last, inner = norm(8, 1e-3), norm(24, 2e-3), norm(8, 3e-3, track_running_stats=False)
    after = norm(24, 5e-3)
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
    for _, module in named(model):
        if is_norm(module) and module.affine:
            module.weight.data.uniform_(1.5, 2.5)
            module.bias.data.uniform_(-1.5, -0.5)
    for p in (first.weight, inner.weight, inner.bias, frozen.weight):
        p.requires_grad_(False)
    return model


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    *_, sizes, groups = KINDS[scene.kind]
    dtype, mode = str(scene.dtype)[6:], "training" if scene.training else "evaluation"
    facts = Facts(f"{scene.kind}, {groups} groups, {dtype}, {mode}, parts 3 and 5 on {scene.device}")
    with virtual_gpu(count=2):
        model = network(scene)
        new = call(model, groups)
        back = "the model itself" if new is model else "a model" if isinstance(new, nn.Module) else show(new, 40)
        facts.add("what came back", back, "a model")
        if not facts.hold() or not compare_names(facts, model, new):
            return facts
        every = [(name or "the copy", old, new.get_submodule(name)) for name, old in named(model)]
        once = [(name or "the copy", old, new.get_submodule(name)) for name, old in model.named_modules()]
        compare_all(facts, every)
        compare_rest(facts, [row for row in once if not is_norm(row[1])])
        norms = [row for row in once if is_norm(row[1])]
        compare_norms(facts, norms)
        if not facts.seen["weights and biases elsewhere"]:
            compare_outputs(facts, norms, scene, call)
        if facts.hold() and scene.device == "cpu":
            x = torch.randn(4, 3, *sizes).to(scene.dtype)
            seen = call(new, x, through=lambda _, new, x: run(new, x), may_change={"new": ANYTHING}, who="the copy")
            for _, norm, _ in norms:
                norm.register_forward_hook(lambda old, args, out: group_norm(old, args[0], groups))
            within = 0.02 if scene.dtype == torch.bfloat16 else 1e-6
            for name, got, wanted in zip(("output", "gradients"), seen, run(model, x), strict=True):
                facts.add(name, got, Near(wanted, within))
    return facts


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORMS)


def named(model: nn.Module) -> list[tuple[str, Any]]:
    """Every module in every place."""
    return list(model.named_modules(remove_duplicate=False))


def compare_names(facts: Facts, model: nn.Module, new: nn.Module) -> bool:
    """Where there still is a BatchNorm, and where the parts of the model are; whether it makes sense to go on."""
    first = {module: name for name, module in model.named_modules() if is_norm(module)}
    left: dict[str, Any] = {n: m for n, m in named(new) if type(m) in (*BATCH_NORMS, nn.SyncBatchNorm)}
    places = {name: first[module] for name, module in named(model) if is_norm(module)}  # the first place of each
    alone = [name for name in left if places.get(name, name) == name]
    second = [name for name in left if places.get(name, name) not in left]
    facts.add("BatchNorms left", [name for name in alone if "." not in name], [])
    facts.add("BatchNorms left further down", [name for name in alone if "." in name], [])
    facts.add("BatchNorms left in a second place", second, [])
    keys, old = ("training", "momentum", "track_running_stats", "forward"), dict(named(model))
    other = {k for n, m in left.items() for k in keys if vars(m).get(k) != vars(old.get(n, m)).get(k)}
    other |= {"class" for module in left.values() if type(module) is nn.SyncBatchNorm}
    facts.seen["other in those left"] = ", ".join(sorted(other)) or "nothing" if left else ""
    facts.seen["names with dots"] = any("." in key for module in new.modules() for key in module._modules)
    if alone:
        return False
    below = tuple(f"{name}." for name in places)  # the parts of a norm of one's own
    before, now = ([name for name, _ in named(one) if not name.startswith(below)] for one in (model, new))
    facts.add("names that are gone", [name for name in before if name not in now], [])
    facts.add("names that are new", [name for name in now if name not in before], [])
    if set(before) == set(now):
        facts.add("order", "as before" if before == now else "another", "as before")
    return set(before) == set(now)


def compare_rest(facts: Facts, rest: list[Pair]) -> None:
    """All that is not a norm."""
    facts.add("other classes", [name for name, old, new in rest if type(old) is not type(new)], [])
    own = [(name, tensors(old), tensors(new)) for name, old, new in rest]
    both = [(f"{name}.{key}", a.get(key), b.get(key)) for name, a, b in own for key in a | b]
    facts.add("other values", [name for name, a, b in both if not same(a, b)], [])
    kept = [(name, a.requires_grad, b.requires_grad) for name, a, b in both if a is not None and b is not None]
    facts.add("other requires_grad", [name for name, old, new in kept if old != new], [])


def compare_all(facts: Facts, every: list[Pair]) -> None:
    """Modes, and which parts and weights are one."""
    for fact, of_norms in (("norms in another mode", True), ("other modes", False)):
        facts.add(fact, [n for n, a, b in every if a.training != b.training and is_norm(a) == of_norms], [])
    marks = {mark for _, old, _ in every for mark in marks_of(old)}
    facts.add("parts of the original", [name for name, _, new in every if marks & marks_of(new)], [])
    ids = [
        (name, set(map(id, old.parameters(recurse=False))), set(map(id, new.parameters()))) for name, old, new in every
    ]
    pairs = itertools.combinations(ids, 2)
    apart = [f"{a} and {b}" for (a, p, new_p), (b, q, new_q) in pairs if len(new_p & new_q) < len(p & q)]
    facts.add("weights that are no longer one", apart, [])


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Its own parameters and buffers."""
    return {key: t for key, t in (*module._parameters.items(), *module._buffers.items()) if t is not None}


def marks_of(module: nn.Module) -> set[Any]:
    """What tells it and its memory from others."""
    return {module, *((str(t.device), t.untyped_storage().data_ptr()) for t in tensors(module).values())}


def compare_norms(facts: Facts, norms: list[Pair]) -> None:
    """What the new norms hold."""
    held = [(name, old, list(new.parameters())) for name, old, new in norms]
    bare = [trained(ps) for _, old, ps in held if not old.affine]
    if bare:
        facts.add("numbers where there were none", bare, ["0 of 0"] * len(bare))
    both = [(trained(ps), trained(old.parameters())) for _, old, ps in held if old.affine]
    facts.add("trained numbers", *map(list, zip(*both, strict=True)))
    places = [(name, place_of(like(old)), place_of(p)) for name, old, ps in held for p in ps]
    facts.add("weights and biases elsewhere", sorted({f"{name}: {new}" for name, old, new in places if old != new}), [])


def trained(parameters: Iterable[torch.Tensor]) -> str:
    sizes = [(p.requires_grad, p.numel()) for p in parameters]
    return f"{sum(n for flag, n in sizes if flag)} of {sum(n for _, n in sizes)}"


def compare_outputs(facts: Facts, norms: list[Pair], scene: Scene, call: Callable[..., Any]) -> None:
    """What the new norms do when they are called alone."""
    *_, sizes, groups = KINDS[scene.kind]
    inputs = [probe(old, sizes) for _, old, _ in norms]
    outs = call([new for *_, new in norms], inputs, through=call_each, may_change={"norms": ANYTHING}, who="a new norm")
    odd = [show(out) for x, out in zip(inputs, outs, strict=True) if form(x) != form(out)]
    facts.add("outputs of another form", odd, [])
    if odd:
        return
    with torch.no_grad():
        right = [group_norm(old, x, groups) for (_, old, _), x in zip(norms, inputs, strict=True)]
    for name, seen, wanted in zip(MEASURED, measure(outs), measure(right), strict=True):
        if name != VALUES or all(holds(facts, of) for of in MEASURED if of != VALUES):
            facts.add(name, seen, Near(wanted, 1e-3))


def place_of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} on {tensor.device}"


def like(norm: Any) -> torch.Tensor:
    """A tensor of the norm's dtype, on its device."""
    found: torch.Tensor = norm.weight if norm.affine else norm.running_mean
    return found


def form(x: Any) -> Any:
    return (x.shape, place_of(x)) if isinstance(x, torch.Tensor) else None


def group_norm(old: Any, x: torch.Tensor, groups: int) -> torch.Tensor:
    """What the right norm gives in the place of `old`."""
    return F.group_norm(x, groups, old.weight, old.bias, old.eps)


def call_each(student: Any, norms: list[Any], inputs: list[torch.Tensor]) -> list[Any]:
    with torch.no_grad():
        return [norm(x) for norm, x in zip(norms, inputs, strict=True)]


def run(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """The output, and the norms of all gradients from the smallest to the largest."""
    x = x.clone().requires_grad_()
    out = model(x)
    (out * torch.arange(out.numel(), dtype=out.dtype).cos().view_as(out)).sum().backward()
    found = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return out.detach(), sorted(float(g.norm()) for g in found)


def signs(channels: int, positions: int) -> torch.Tensor:
    """1 and -1 in turn: of a mean of 0 and a variance of 1 in every group of an even number of channels."""
    return 1.0 - 2.0 * ((torch.arange(channels).unsqueeze(1) + torch.arange(positions)) % 2)


def probe(norm: Any, sizes: tuple[int, ...]) -> torch.Tensor:
    """Samples (7, channels, *sizes) that tell what a norm has: zeros, large and small signs, two random ones, and these
    again with another channel 0."""
    turns = signs(norm.num_features, math.prod(sizes))
    drawn = torch.randn(4, *turns.shape)
    drawn[2:, 1:] = drawn[:2, 1:]
    x = torch.cat([torch.stack([0 * turns, LARGE * turns, SMALL * turns]), drawn])
    return x.view(7, norm.num_features, *sizes).to(like(norm))


def measure(outs: list[torch.Tensor]) -> tuple[Any, ...]:
    """What the norms have that gave `outs` for their probes, as `MEASURED` names it."""
    rows = []
    for out in outs:
        out = out.double().cpu().reshape(*out.shape[:2], -1)
        zero, large, small = out[0], out[1] - out[0], out[2] - out[0]
        reached = int(((out[3:5] - out[5:]).abs().amax((0, 2)) > 1e-4).sum())  # channels that channel 0 has a part in
        gain = float(large.norm() / small.norm().clamp(1e-30))  # sqrt(1 + eps / SMALL**2)
        eps = SMALL**2 * (gain**2 - 1)
        if large.abs().max() < FLAT:  # each value is its own mean: what is left is how this processor rounds
            large, eps = 0 * large, math.inf
        weight = (large * signs(*large.shape)).mean(1)
        rows.append((len(zero) / max(reached, 1), eps, weight, zero.mean(1), out.flatten()))
    groups, every_eps, *vectors = map(list, zip(*rows, strict=True))
    return groups, every_eps, *map(torch.cat, vectors)


EXERCISE = Contract(
    __file__,
    says="no sample sees another one's statistics, so the micro-batches add up to the full batch again",
    parameters=("model", "groups"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    errors={"NoneType": "a norm with affine=False has no weight and no bias: both are None"},
)
