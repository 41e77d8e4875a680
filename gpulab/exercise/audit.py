"""Detects side effects: compares a student's arguments before and after the call, and names each change.

`Audit(handed, may_change)` takes a `Snapshot` of every argument; `changes()` takes a second one and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from .snapshot import Fact, Snapshot
from .snapshot import Kind as Kind

ANYTHING: frozenset[Kind] = frozenset(get_args(Kind))
TRAINED: frozenset[Kind] = frozenset(("parameters", "buffers", "grad"))  # of a model, changed by training
MOVED: frozenset[Kind] = TRAINED | {"place"}

_IN_PLACE = (
    "an in-place operation on the argument itself: pop or sort of a list, += or a method that ends in _ on a tensor"
)
_LIKELY: dict[Kind, str] = {
    "values": _IN_PLACE,
    "items": _IN_PLACE,
    "place": "the caller's tensor was moved, cast or resized in place: model.to(...) and .data = change what they are "
    "called on",
    "requires_grad": "requires_grad_() was used on what the caller owns: put it back in a finally, or work on a "
    "detached tensor",
    "grad": "backward() adds to .grad of every leaf that the loss depends on, and zero_grad() takes it away: use "
    "torch.autograd.grad, a detached tensor, or put the gradients back",
    "hooks": "a hook stays until it is removed: keep the handle, and call handle.remove() in a finally",
    "mode": "eval() and train() set the whole model: remember each module's mode, and put it back in a finally",
    "parameters": "an optimizer's step, or an in-place operation, on weights that were to stay: work on a copy, or put "
    "them back",
    "buffers": "a forward pass in training mode updates the running statistics of batch norm: work on a copy, or put "
    "them back",
    "parts": "a layer or a parameter was put in, taken out or replaced in the caller's model: work on a copy",
    "settings": "a number was set for the work inside and not put back",
    "state": "a step or an update changes what the next step starts from: use an object of your own, or put it back",
}


@dataclass(frozen=True)
class Change:
    """One change of the argument `name`: its kind, and `words` that say where and how."""

    name: str
    kind: Kind
    words: str

    @property
    def likely(self) -> str:
        return _LIKELY[self.kind]


def named(args: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call by name; by number where there are too few names."""
    if len(names) < len(args):
        names = [f"number {i}" for i in range(1, len(args) + 1)]
    return dict(zip(names, args, strict=False))


class Audit:
    """A snapshot of the arguments `handed`, by name; `may_change` gives the kinds of change that are allowed for each.
    An object that is passed twice, as a model's parameters are in an optimizer, may change as both names allow."""

    def __init__(self, handed: Mapping[str, Any], may_change: Mapping[str, Iterable[Kind]]) -> None:
        for name, kinds in may_change.items():
            if name not in handed:
                raise ValueError(f"may_change names {name!r}; what is handed over is {', '.join(handed) or 'nothing'}")
            if unknown := sorted(set(kinds) - ANYTHING):
                raise ValueError(
                    f"may_change[{name!r}] has {unknown[0]!r}; the kinds are {', '.join(sorted(ANYTHING))}"
                )
        self._allowed = {name: set[str](may_change.get(name, ())) for name in handed}
        self._handed = {name: value for name, value in handed.items() if not self._allowed[name] >= ANYTHING}
        self._before = self._snapshot(copy=True)

    def changes(self) -> list[Change]:
        """Return the changes that are not allowed, in the order of the arguments."""
        after, found = self._snapshot(copy=False), []
        for key, old in self._before.items():
            new = after.get(key)  # None where another object took its place, which is a fact of its own
            if new is not None and old.kind not in old.allowed and not old.equals(new):
                found.append(Change(old.name, old.kind, old.words(old.value, new.value)))
        return found

    def _snapshot(self, *, copy: bool) -> dict[tuple[str, str, int], Fact]:
        snapshot = Snapshot(copy)
        for name, value in self._handed.items():
            snapshot.name, snapshot.allowed = name, self._allowed[name]
            snapshot.add(name, value)
        return snapshot.facts
