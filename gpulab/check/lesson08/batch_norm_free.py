"""The check of a replacement for BatchNorm: every norm at every depth, with what it had learned, in a copy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import Kind
from ..base import Trial, check
from ..measure import same
from ..wording import show
from .common import flat_gradient
from .misconceptions import BATCH_NORM

Norm = nn.modules.batchnorm._BatchNorm
MODEL = "the returned model"


class Residual(nn.Module):
    """A block with its norms in attributes, one of them inside a Sequential: what replacing must reach."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels, eps=1e-3)
        self.rest = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels, eps=1e-3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.rest(self.norm(self.conv(x)))
        return out


def network() -> nn.Module:
    """A small float64 network in training mode whose norms have weights and biases of their own."""
    # 12 channels in 4 or 2 groups, so that no number of channels in a group is a number of groups
    first = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12, eps=1e-3), nn.ReLU(), Residual(12))
    model = first.extend([nn.Flatten(), nn.Linear(12 * 6 * 6, 4)]).double()
    for module in norms(model).values():
        nn.init.uniform_(module.weight, 0.5, 1.5)
        nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.train()


def norms(model: nn.Module) -> dict[str, Norm]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Norm)}


@check(
    lesson=8,
    says="no sample sees another one's statistics, so the micro-batches add up to the full batch again",
)
def batch_norm_free(student: Any, trial: Trial) -> None:
    """Check a function of (model, groups): it returns a copy of the model in which a group norm with `groups`
    groups stands for each BatchNorm, at any depth, with its weight, bias, eps, dtype and place."""
    trial.function(student, ("model", "groups"))
    for model, groups in [(network(), 4), (network(), 2)]:
        before = copy.deepcopy(model)
        x, y = torch.randn(12, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (12,))
        new = trial.call(student, model, groups, may_change={"model": JUDGED}, explain=_explain)
        trial.expect(
            isinstance(new, nn.Module),
            "a model is wanted back",
            expected="the new model, an nn.Module",
            got=show(new),
            likely="the function ends without a return"
            if new is None
            else "return the whole model, with the new norms in their places",
            read=BATCH_NORM,
        )
        _judge_original(trial, before, model)
        _judge_left(trial, before, new)
        trial.expect(
            all(module.training for module in new.modules()),
            "the new model is in evaluation mode",
            expected="training mode: what is replaced is the norm, not the mode",
            got="training is False somewhere",
            likely="a new module is in training mode; eval() on the copy switched dropout off too",
            read=BATCH_NORM,
        )
        for name, old in norms(before).items():
            _judge_norm(trial, name, old, new, groups)
        _judge_rest(trial, before, model, new)
        _judge_samples(trial, new, x, y)


# What `_judge_original` compares itself, in its own words.
JUDGED: frozenset[Kind] = frozenset(("parts", "parameters", "buffers", "mode", "place"))


def _judge_original(trial: Trial, before: nn.Module, model: nn.Module) -> None:
    old, state = before.state_dict(), model.state_dict()
    there = norms(model).keys() == norms(before).keys()
    same_mode = [m.training for m in model.modules()] == [m.training for m in before.modules()]
    trial.expect(
        there and same_mode and old.keys() == state.keys() and all(same(old[k], state[k]) for k in old),
        "the model that was passed in was changed",
        expected="a copy with the norms replaced, and the original as it was",
        got=f"an original with {len(norms(model))} of {len(norms(before))} BatchNorms left"
        if not there
        else "an original in another mode, on another device, or with other values",
        likely="work on copy.deepcopy(model)",
        read=BATCH_NORM,
    )


def _judge_left(trial: Trial, before: nn.Module, new: nn.Module) -> None:
    left, old = norms(new), norms(before)
    rows = {
        "expected": "no BatchNorm at any depth: norms that look at one sample at a time",
        "got": f"{len(left)} of {len(old)} BatchNorms: {', '.join(left)}",
        "read": BATCH_NORM,
    }
    if any(isinstance(module, nn.SyncBatchNorm) for module in left.values()):
        trial.fail(
            "SyncBatchNorm is still a batch norm",
            likely="it shares statistics between processes at one moment; micro-batches come one after the other, and "
            "each is still normalised by itself",
            **rows,
        )
    if any(not module.training for module in left.values()):
        trial.fail(
            "BatchNorm in evaluation mode is not a way to train",
            likely="eval() makes it use its running statistics, which are then never learned, and which know nothing "
            "of these data yet",
            **rows,
        )
    if any(not module.track_running_stats for module in left.values()):
        trial.fail(
            "without running statistics, training normalises as before",
            likely="track_running_stats is about evaluation: in training each micro-batch is normalised by its own "
            "mean and variance all the same",
            **rows,
        )
    if any(name in old and module.momentum != old[name].momentum for name, module in left.items()):
        trial.fail(
            "another momentum does not change what training normalises with",
            likely="momentum is for the running statistics, which training does not use: each micro-batch is "
            "normalised by its own mean and variance all the same",
            **rows,
        )
    dotted = [child for _, module in new.named_modules() for child in dict(module.named_children()) if "." in child]
    if left and dotted:
        trial.fail(
            "the new norms are beside the old ones, not in their places",
            likely=f"setattr(model, {dotted[0]!r}, …) adds a module of that name to the model itself: get the parent "
            "with model.get_submodule, and set the last part of the name on it",
            **rows,
        )
    if left and len(left) == len(old):
        trial.fail(
            "every BatchNorm is still there",
            likely="assigning to a loop variable, or returning from model.apply, replaces nothing: set the attribute "
            "on the parent module (setattr)",
            **rows,
        )
    trial.expect(
        not left,
        "some BatchNorms are still there",
        likely="children() goes one level down; recurse, or walk named_modules and set each on its parent",
        **rows,
    )


def _judge_norm(trial: Trial, name: str, old: Norm, new: nn.Module, groups: int) -> None:
    """The former BatchNorm's place, called alone, gives the group norm with its weight, bias and eps."""
    try:
        put = new.get_submodule(name)
    except AttributeError:
        trial.fail(
            "the model has another structure",
            expected=f"the new norm in the place of the old one, at {name!r}",
            got="nothing of that name",
            likely="the model was built anew from a list of its parts: set the attribute on the parent module instead",
            read=BATCH_NORM,
        )
    dtypes = {p.dtype for p in put.parameters()}
    trial.expect(
        dtypes <= {old.weight.dtype},
        "the new norms have another dtype than the model",
        expected=str(old.weight.dtype),
        got=", ".join(sorted(map(str, dtypes))),
        likely="a new module is float32 on the CPU; create it with device= and dtype= of the old weight",
        read=BATCH_NORM,
    )
    places = {str(p.device) for p in put.parameters()}
    trial.expect(
        places <= {str(old.weight.device)},
        "the new norms are on another device than the model",
        expected=str(old.weight.device),
        got=" and ".join(sorted(places)),
        likely="the whole copy was moved: leave it where the model is, since whoever asked for it decides that"
        if {str(p.device) for p in new.parameters()} == places
        else "create each norm with device= and dtype= of the old weight, wherever that is",
        read=BATCH_NORM,
    )
    channels = old.num_features
    x = 3 * torch.randn(3, channels, 5, 5, dtype=old.weight.dtype) + 1
    weight, bias, eps, other = old.weight, old.bias, old.eps, 6 - groups
    ways: list[tuple[Any, ...]] = [  # known misconceptions, as the arguments of the group norm that they come to
        ("a new GroupNorm starts at weight 1 and bias 0; copy what BatchNorm had learned", groups, None, None, eps),
        ("the old weight is copied, and the old bias is not", groups, weight, None, eps),
        (f"the old eps, {eps:g}, is lost: GroupNorm's own default is 1e-05", groups, weight, bias, 1e-5),
        (
            "weight, bias and eps are all lost: GroupNorm starts at weight 1, bias 0, eps 1e-05",
            groups,
            None,
            None,
            1e-5,
        ),
        (f"one group for all channels is a layer norm; {groups} groups were asked for", 1, weight, bias, eps),
        (f"a group for each channel is an instance norm; {groups} groups were asked for", channels, weight, bias, eps),
        (
            f"channels // groups is the number of channels in a group; GroupNorm wants the number of groups, {groups}",
            *(channels // groups, weight, bias, eps),
        ),
        (f"there are {other} groups whatever the argument says; {groups} were asked for", other, weight, bias, eps),
    ]
    with torch.no_grad():
        got = trial.call(put, x.clone(), who=f"the norm at {name!r}", explain=_explain)
        right = F.group_norm(x, groups, weight, bias, eps)
        fits = isinstance(got, torch.Tensor) and _form(got) == _form(right)
        likely = next((why for why, *way in ways if fits and torch.allclose(got, F.group_norm(x, *way), atol=1e-9)), "")
        if fits and torch.equal(got, x):
            likely = "the norm was removed, not replaced: activations grow or vanish from layer to layer"
        trial.expect(
            fits and torch.allclose(got, right, atol=1e-9),
            "a norm gives other values than the group norm asked for",
            expected=f"GroupNorm({groups}, {channels}) with the old weight, bias and eps at {name!r}",
            got=f"a largest difference of {float((got - right).abs().max()):.3g}" if fits else show(got),
            likely=likely,
            read=BATCH_NORM,
        )
    trainable = [p.requires_grad for p in put.parameters()]
    trial.expect(
        len(trainable) == 2 and all(trainable),
        "the new norm's weight and bias are not trained",
        expected="two parameters with requires_grad",
        got=f"{len(trainable)} parameters, {sum(trainable)} with requires_grad",
        likely="copy into the parameters of the new norm (copy_ under no_grad), do not detach or freeze them",
        read=BATCH_NORM,
    )


def _form(x: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return x.shape, x.dtype, x.device


def _judge_rest(trial: Trial, before: nn.Module, model: nn.Module, new: nn.Module) -> None:
    """All else has the values it had, in memory of its own."""
    values, replaced = dict(new.named_parameters()), norms(before)
    places = {p.data_ptr() for p in model.parameters()}
    rest = {name: p for name, p in before.named_parameters() if name.rpartition(".")[0] not in replaced}
    lost = [name for name, p in rest.items() if name not in values or not same(p, values[name])]
    trial.expect(
        not lost,
        "other weights of the model are not what they were",
        expected="only the norms replaced",
        got=f"other values in {', '.join(lost[:4])}",
        likely="the model was built or initialised anew: copy it, then replace the norms",
        read=BATCH_NORM,
    )
    shared = [name for name, p in values.items() if p.data_ptr() in places]
    trial.expect(
        not shared,
        "the new model and the original share weights",
        expected="a copy: to train one must not change the other",
        got=f"the same memory behind {', '.join(shared[:4])}",
        likely="copy.copy takes over the parts, and a Parameter assigned to the new norm is the old one: use "
        "copy.deepcopy, and copy_ the values",
        read=BATCH_NORM,
    )


def _judge_samples(trial: Trial, new: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    def run(part: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = trial.call(new, part, who=MODEL)
        return out.detach()

    def gradient(pieces: int) -> torch.Tensor:
        new.zero_grad()
        for a, b in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            (F.cross_entropy(new(a), b) / pieces).backward()
        return flat_gradient(new.parameters())

    alone, together = torch.cat([run(row) for row in x.split(1)]), run(x)
    trial.expect(
        torch.allclose(alone, together, atol=1e-9),
        "a sample's output still depends on the others in its batch",
        expected=f"the same output alone and in a batch of {len(x)}",
        got=f"a largest difference of {float((alone - together).abs().max()):.3g}",
        likely="something besides the norms looks at the whole batch, or changes from call to call",
        read=BATCH_NORM,
    )
    whole, pieces = (trial.call(gradient, n, who=MODEL) for n in (1, 4))
    trial.expect(
        torch.allclose(whole, pieces, atol=1e-9),
        "four micro-batches still give another gradient than the full batch",
        expected="the same to rounding",
        got=f"a relative difference of {float((whole - pieces).norm() / whole.norm()):.3g}",
        likely="the outputs agree, so a backward pass does not: a custom norm or a hook takes part in it",
        read=BATCH_NORM,
    )


def _explain(error: str) -> str:
    if "divisible by num_groups" in error:
        return "nn.GroupNorm takes (num_groups, num_channels), in this order"
    if "Unexpected key(s) in state_dict" in error:
        return "BatchNorm's state holds its running statistics too: load weight and bias only"
    if "module name can" in error:
        return "a name with dots is a path: add the norm to its parent, model.get_submodule(path), by the last part"
    if "normalized_shape" in error:
        return "nn.LayerNorm normalises the last dimensions; in images the channels are dimension 1"
    return ""
